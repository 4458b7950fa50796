"""Judges what the asked Steps have answered."""

from __future__ import annotations

from collections.abc import Sequence

from leadline.dialect.signs import masked_line
from leadline.errors import HostError, InputError, RefusedError
from leadline.launch import LaunchSpec, masked
from leadline.ports import Completed
from leadline.targets.systemd import execline
from leadline.targets.systemd.definition import agree
from leadline.targets.systemd.frames import read
from leadline.targets.systemd.place import Place

CHANGED = 75


def confirm(place: Place, launch: LaunchSpec, answers: Sequence[Completed]) -> None:
    """Raises RefusedError when somebody else changed the unit, InputError for a candidate that systemd does not take as
    it was meant, HostError for a Step that failed."""
    for answer in answers:
        verb = answer.argv[answer.argv.index("--") + 1]
        text = answer.stdout.decode(errors="replace").strip()
        if answer.code == CHANGED:
            raise RefusedError(f"{masked_line(text)}. Nothing of it was overwritten; look at it, then plan again.")
        if answer.code != 0:
            why = answer.stderr.decode(errors="replace").strip() or text or "it said nothing"
            raise HostError(f"{verb} of {place.unit} ended with {answer.code}: {masked_line(why)}")
        if verb == "verify":
            _verified(place, text)
        elif verb == "observe":
            _understood(place, launch, answer)


def _verified(place: Place, text: str) -> None:
    first, *new = text.splitlines() or [""]
    if first != "verified":
        raise HostError(f"systemd-analyze could not look at {place.unit}: {masked_line(text)}")
    said = [line for line in new if not line.startswith("exit code ")] or new
    if said:
        raise InputError(
            f"systemd does not take the setting for {place.unit}: " + "; ".join(map(masked_line, said[:4]))
        )


def _understood(place: Place, launch: LaunchSpec, answer: Completed) -> None:
    """systemd's own words, then ours once variables are replaced, are what was meant."""
    frames = read(place, answer)
    if frames.show.get("NeedDaemonReload") == "yes":
        raise RefusedError(f"changed by somebody else: {place.unit}, since it was loaded. Look at it, then plan again.")
    if not frames.exec:
        raise HostError(f"systemd does not say which words {place.unit} has (busctl)")
    found = execline.launch(agree(place, frames))
    if found.argv != launch.argv:
        meant, is_ = (str(masked(LaunchSpec(argv=argv))) for argv in (launch.argv, found.argv))
        raise InputError(
            f"{place.unit} would start {is_}, and {meant} was meant: another drop-in may come after ours (see "
            f"`systemctl cat {place.unit}`)"
        )
    wrong = [name for name, value in launch.env if dict(found.env).get(name) != value]
    if wrong:
        raise InputError(
            f"{', '.join(wrong)} would not have the value that was meant in {place.unit}: an EnvironmentFile= of it or "
            f"another drop-in sets it after ours (`systemctl cat {place.unit}`)"
        )
