"""The Steps of a trial on a unit: the candidate is checked first, then the service stops, then ours is in force."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from leadline.launch import Halt, LaunchSpec, Put, Run, Step
from leadline.ports import Observed
from leadline.targets.systemd import execline
from leadline.targets.systemd.definition import undoubted
from leadline.targets.systemd.execline import UnitExec
from leadline.targets.systemd.place import ABSENT, Place, assignments

VERIFY_S = 90.0
STOP_S, SPARED_S = 60.0, 10.0
"""How long a stop may take; and where systemd itself leaves processes alone (KillMode=)."""


def plan(place: Place, launch: LaunchSpec, observed: Observed) -> Sequence[Step]:
    header = (
        f"Only while a campaign of Leadline runs: a boot forgets it. Who and until when: {place.state}/owner",
        f"To undo it by hand: {place.by_hand}",
    )
    unit = undoubted(observed)
    content = dropin(unit, launch, header)
    return (
        *staged(place, content, launch, place.trial),
        _checked(place, "begin", observed),
        halt(place, SPARED_S if unit.kill_mode in ("process", "none") else STOP_S),
        _checked(place, "enforce", observed),
        place.systemctl("daemon-reload"),
        read_back(place),
        place.run("begin_trial", of=("change",)),
    )


def dropin(unit: UnitExec, launch: LaunchSpec, header: Sequence[str]) -> str:
    """A drop-in that resets ExecStart= and sets it, with the header as comments."""
    lines = [line for text in header for line in (text.splitlines() or [""])]
    return "\n".join(
        [
            *(f"# {line}" for line in lines),
            "[Service]",
            *execline.environment_lines(unit, launch),
            "ExecStart=",
            f"ExecStart={execline.rendered(unit, launch)}",
            "",
        ]
    )


def staged(place: Place, content: str, launch: LaunchSpec, path: str) -> tuple[Step, ...]:
    """The candidate on the host and checked; it is to lie at `path`. Nothing of the service is touched."""
    ours = launch.ours
    clear = Run(argv=("rm", "-f", "--", *(f.path for f in ours)), timeout_s=30, sudo=place.sudo)
    files: tuple[Step, ...] = ()
    if ours:
        puts = [Put(path=f.path, content=f.content, mode=0o600, expect=ABSENT, sudo=place.sudo) for f in ours]
        owned = place.run("owned", *(f.path for f in ours), of=("change",))
        files = (place.run("owned", of=("change",)), clear, *puts, owned)
    return (
        place.run("prepare", of=("change",)),
        Put(path=place.candidate, content=content, mode=0o600, expect=ABSENT, sudo=place.sudo),
        place.run("verify", path, of=("change",), asked=True, timeout_s=VERIFY_S),
        *files,
    )


def expected(observed: Observed) -> dict[str, str]:
    """`expected` for `change.sh`: what the service's files must still be."""
    return {p: d for p, d in observed.files.items() if p in observed.texts}


def checked(place: Place, verb: str, files: Mapping[str, str]) -> Run:
    lines = "\n".join(f"{digest} {path}" for path, digest in sorted(files.items()))
    return place.run(verb, of=("guard", "change"), asked=True, before=assignments(expected=lines))


def _checked(place: Place, verb: str, observed: Observed) -> Run:
    return checked(place, verb, expected(observed))


def halt(place: Place, timeout_s: float) -> Halt:
    return Halt(
        stop=place.systemctl("stop", "--no-block", place.unit),
        kill=place.systemctl("kill", "--signal=KILL", place.unit),
        timeout_s=timeout_s,
    )


def read_back(place: Place) -> Run:
    """What systemd has understood, and the files that it has read."""
    return place.run("observe", place.bus_path, of=("observe",), asked=True)
