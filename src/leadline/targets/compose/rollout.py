"""A setting for good: a file of ours beside the operator's, which his commands must name."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from leadline.errors import RefusedError
from leadline.launch import Put, Remove, Run, Step
from leadline.targets.compose.override import Override, text_of
from leadline.targets.compose.place import Place
from leadline.targets.compose.scripts import ASK_S, again

ABSENT = "absent"
KEPT = ".leadline-previous"


def rollout(place: Place, override: Override, present: str, note: str) -> tuple[Step, ...]:
    """Written first, then the container is made again, if it runs. The file that was there is kept by a hard link,
    which fails when one is kept already."""
    path = place.rollout
    add = shlex.join((*place.words, "-f", path, "up", "-d", place.service))
    header = (
        "Written by `leadline apply`. Once it is edited, `leadline undo` no longer replaces it.",
        *note.splitlines(),
        "compose reads it only when it is named: add it to your -f list, last, or to COMPOSE_FILE:",
        f"  {add}",
        "Undo: leadline undo CAMPAIGN. By hand: remove this file and run `up -d` again.",
    )
    keep = Run(argv=("ln", "-P", "--", path, path + KEPT), timeout_s=ASK_S, sudo=place.sudo)
    text = text_of(place.service, override, header)
    put = Put(path=path, content=text, mode=0o644, expect=present, sudo=place.sudo)
    return (*(() if present == ABSENT else (keep,)), put, again(place, rolled_out=True))


def undo(place: Place, files: Mapping[str, str], written: str, previous: str) -> tuple[Step, ...]:
    """By what is at the two paths now. The container is made again before the last trace goes."""
    path, sudo = place.rollout, place.sudo
    now, kept = (files.get(p, ABSENT) for p in (path, path + KEPT))
    drop = Remove(path=path, expect=written, sudo=sudo)
    link = Run(argv=("ln", "-P", "--", path + KEPT, path), timeout_s=ASK_S, sudo=sudo)
    forget = Remove(path=path + KEPT, expect=previous, sudo=sudo)
    without, with_it = again(place, rolled_out=False), again(place, rolled_out=True)
    ways: dict[str, tuple[Step, ...]] = {}
    if previous == ABSENT:
        ways = {ABSENT: (), written: (without, drop)}
    elif kept == previous:
        ways = {written: (drop, link, with_it, forget), ABSENT: (link, with_it, forget), previous: (with_it, forget)}
    elif kept == ABSENT:
        ways = {previous: ()}
    if now not in ways:
        raise RefusedError(
            f"somebody else changed {path} (now {now[:12]}, written {written[:12]}) or {path + KEPT} (now {kept[:12]}, "
            f"was {previous[:12]}). Nothing was changed; look at both and put the right one in place."
        )
    return ways[now]
