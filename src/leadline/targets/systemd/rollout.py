"""The accepted setting of a unit: a drop-in under /etc, and how it is taken back."""

from __future__ import annotations

from collections.abc import Sequence

from leadline.errors import RefusedError
from leadline.launch import LaunchSpec, Put, Remove, Run, Step
from leadline.masking import masked_text, masked_words
from leadline.ports import Observed
from leadline.targets.systemd.definition import undoubted, unit_of
from leadline.targets.systemd.place import ABSENT, Place
from leadline.targets.systemd.plan import checked, dropin, expected, read_back, staged

SECRET, OPEN = 0o600, 0o644


def rollout(place: Place, launch: LaunchSpec, observed: Observed, present: str, note: str) -> Sequence[Step]:
    """The unit's own files are read without what an earlier rollout put over them."""
    undoubted(observed)
    theirs = {p: d for p, d in observed.files.items() if p in observed.texts and p != place.accepted}
    header = (
        "An accepted setting of Leadline:",
        note,
        f"To undo it: leadline undo --unit {place.unit}",
        f"By hand: {_by_hand(place, present)}",
        "It was put over these files; `leadline status` warns when they change:",
        *(f"shadows {digest} {path}" for path, digest in theirs.items()),
        f"replaces {present} {place.accepted}",
    )
    content = dropin(unit_of(observed, without=place.accepted), launch, header)
    secret = masked_text(content) != content or masked_words(launch.argv, references=False) != launch.argv
    files = {**expected(observed), place.accepted: present}
    if present != ABSENT:
        files[place.previous] = ABSENT
    return (
        *staged(place, content, launch, place.accepted),
        checked(place, "same", files),
        *(() if present == ABSENT else (_run(place, "keep"),)),
        _run(place, "folder"),
        Put(path=place.accepted, content=content, mode=SECRET if secret else OPEN, expect=present, sudo=place.sudo),
        place.systemctl("daemon-reload"),
        read_back(place),
        _run(place, "restart"),
    )


def undo(place: Place, observed: Observed, written: str, previous: str) -> Sequence[Step]:
    """By what is at the two paths now, and whether an undo was begun: its mark stands until all of it is done."""
    now, kept = (observed.files.get(path, ABSENT) for path in (place.accepted, place.previous))
    begun = observed.files.get(place.undoing, ABSENT) != ABSENT
    mark, reload = _run(place, "undoing"), place.systemctl("daemon-reload")
    drop = Remove(path=place.accepted, expect=written, sudo=place.sudo)
    forget = Remove(path=place.previous, expect=previous, sudo=place.sudo)
    end = (reload, _run(place, "resume"))
    last = _run(place, "undone")
    revert = place.run("revert", written, previous, of=("change",), asked=True)
    ways: dict[str, tuple[Step, ...]] = {}
    if previous == ABSENT:
        ways = {ABSENT: (*end, last) if begun else (), written: (mark, drop, *end, last)}
    elif kept == previous:
        whole = (mark, revert, *end, forget, last)
        ways = {written: whole, ABSENT: whole, previous: (*end, forget, last) if begun else (forget, last)}
    elif kept == ABSENT:
        ways = {previous: (*end, last) if begun else ()}
    if now not in ways:
        raise RefusedError(
            f"somebody else changed {place.accepted} (now {now[:12]}, written {written[:12]}) or {place.previous} (now "
            f"{kept[:12]}, was {previous[:12]}). Nothing was changed; look at both and put the right one in place."
        )
    return ways[now]


def _run(place: Place, verb: str) -> Run:
    return place.run(verb, of=("change",))


def _by_hand(place: Place, present: str) -> str:
    first = f"rm {place.accepted}" if present == ABSENT else f"cp -p {place.previous} {place.accepted}"
    return f"{first} && systemctl daemon-reload && systemctl restart {place.unit}"
