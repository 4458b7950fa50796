"""A unit's definition as our reader has it, and whether systemd has understood the same."""

from __future__ import annotations

import json
from collections.abc import Mapping

from leadline.errors import InputError
from leadline.launch import LaunchSpec, masked
from leadline.ports import Observed
from leadline.targets.systemd import execline
from leadline.targets.systemd.execline import UnitExec
from leadline.targets.systemd.frames import Frames
from leadline.targets.systemd.place import ABSENT, Place

SPECIFIERS = "systemd: specifiers"
ENVIRONMENT = "systemd: environment files"
DOUBT = "systemd: doubt"
"""What a reading of the texts goes by, and why it may be wrong, stand among them under these names, which are no
paths."""


def observed_of(place: Place, frames: Frames) -> Observed:
    """Raises InputError for a definition that cannot be read as systemd does."""
    unit = execline.read(frames.texts, frames.specifiers, frames.environment_files)
    launch = execline.launch(unit)
    accepted = frames.texts.get(place.accepted, "")
    texts = {**frames.texts, **frames.environment_files}
    texts[SPECIFIERS] = json.dumps(dict(frames.specifiers))
    texts[ENVIRONMENT] = json.dumps(list(frames.environment_files))
    texts[DOUBT] = _difference(place, frames, _in_force(place, frames))
    return Observed(
        launch=LaunchSpec(argv=launch.argv, env=launch.env, cwd=launch.cwd, files=launch.files, scratch=place.files),
        running=frames.running,
        files=dict(frames.digests) | {place.undoing: "there" if frames.undoing else ABSENT},
        texts=texts,
        held=frames.trial is not None or frames.begun,
        holder=_holder(frames.owner),
        shadowed=noted(accepted, "shadows"),
        previous=noted(accepted, "replaces").get(place.accepted, ABSENT),
    )


def agree(place: Place, frames: Frames) -> UnitExec:
    """The unit with ours in force. Raises InputError when systemd's own words are others than we read."""
    unit = _in_force(place, frames)
    doubt = _difference(place, frames, unit)
    if doubt:
        raise InputError(doubt)
    return unit


def _in_force(place: Place, frames: Frames) -> UnitExec:
    return execline.read(frames.with_trial(place), frames.specifiers, frames.environment_files)


def _difference(place: Place, frames: Frames, unit: UnitExec) -> str:
    """Before variables are replaced, byte for byte; "" = none."""
    if not frames.exec or frames.exec[-1] == unit.words:
        return ""
    ours, theirs = (str(masked(LaunchSpec(argv=words))) for words in (unit.words, frames.exec[-1]))
    return (
        f"systemd has loaded other words for {place.unit} than its files have now: {theirs}, and not {ours}. If "
        f"somebody has edited them, run systemctl daemon-reload, and see that it is what you want; else tell us of it"
    )


def undoubted(observed: Observed) -> UnitExec:
    """As `unit_of`. Raises InputError when systemd had read the files otherwise."""
    if observed.texts[DOUBT]:
        raise InputError(observed.texts[DOUBT])
    return unit_of(observed)


def unit_of(observed: Observed, *, without: str = "") -> UnitExec:
    """The unit as it was observed, no trial of ours in force; `without` one of its files."""
    environment = json.loads(observed.texts[ENVIRONMENT])
    special = {SPECIFIERS, ENVIRONMENT, DOUBT, without, *environment}
    texts = {path: text for path, text in observed.texts.items() if path not in special}
    return execline.read(texts, json.loads(observed.texts[SPECIFIERS]), {p: observed.texts[p] for p in environment})


def noted(text: str, word: str) -> dict[str, str]:
    """What the header of an accepted setting says of other files: path to SHA-256."""
    lines = [line.split(" ", 3) for line in text.splitlines() if line.startswith(f"# {word} ")]
    return {line[3]: line[2] for line in lines if len(line) == 4}


def _holder(owner: Mapping[str, str]) -> str:
    if not owner:
        return ""
    return (
        f"{owner.get('owner', '')}, campaign {owner.get('campaign', '')} ({owner.get('reason', '')}), until "
        + owner.get("until", "")
    )
