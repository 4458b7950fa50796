"""The cgroup of one test host, in every hierarchy that this machine has."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")
V2 = "v2"
_SWEEP_S = 5.0


@dataclass(frozen=True)
class Hierarchy:
    """`options` are those of mount(8) for a v1 hierarchy, or V2."""

    at: Path
    options: str


def hierarchies() -> list[Hierarchy]:
    """A hierarchy that the host does not get of its own would be mounted by its systemd at the machine's root."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        before, after = line.split(" - ")
        fields, (kind, _, options) = before.split(), after.split()[:3]
        if fields[3] == "/" and Path(fields[4]).is_relative_to(MOUNT):
            if kind == "cgroup2":
                found.append(Hierarchy(Path(fields[4]), V2))
            elif kind == "cgroup":
                found.append(Hierarchy(Path(fields[4]), _v1_options(options.split(","))))
    return found


def _v1_options(options: list[str]) -> str:
    named = next((o for o in options if o.startswith("name=")), None)
    if named:
        return f"none,{named}"
    noise = ("rw", "ro", "xattr", "clone_children")
    return ",".join(o for o in options if o not in noise and not o.startswith("release_agent"))


def unified() -> bool:
    """Whether this machine has cgroup v2 alone."""
    return any(h.options == V2 and h.at == MOUNT for h in hierarchies())


def make(leaf: str) -> None:
    for hierarchy in hierarchies():
        folder = hierarchy.at / leaf
        folder.mkdir(exist_ok=True)
        if "cpuset" in hierarchy.options.split(","):
            for name in ("cpuset.cpus", "cpuset.mems"):
                (folder / name).write_text((hierarchy.at / name).read_text())
        if hierarchy.options == V2:
            for controller in (hierarchy.at / "cgroup.controllers").read_text().split():
                with contextlib.suppress(OSError):  # one that is bound to v1, or not ours to give
                    (hierarchy.at / "cgroup.subtree_control").write_text(f"+{controller}")


def enter(leaf: str, pid: int) -> None:
    """`leaf` "" is the root of each hierarchy."""
    for hierarchy in hierarchies():
        (hierarchy.at / leaf / "cgroup.procs").write_text(str(pid))


def sweep(leaf: str) -> None:
    """Kill what is in the cgroup and remove it. Raises TimeoutError naming what stays."""
    deadline = time.monotonic() + _SWEEP_S
    while tops := [h.at / leaf for h in hierarchies() if (h.at / leaf).exists()]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"cannot remove {', '.join(map(str, tops))}: something in it does not die")
        for top in tops:
            for pid in _inside(top):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for folder, _, _ in os.walk(top, topdown=False):
                with contextlib.suppress(OSError):  # still busy: the next round
                    os.rmdir(folder)
        time.sleep(0.02)


def _inside(top: Path) -> Iterator[int]:
    for file in list(top.rglob("cgroup.procs")):
        try:
            pids = [int(word) for word in file.read_text().split()]
        except OSError:
            continue
        yield from (pid for pid in pids if pid not in (0, os.getpid()))
