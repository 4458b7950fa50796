"""The lab in virtual time: a host, a prober and a loader over lab physics. A campaign of hours runs in seconds.

Everything is in memory and single-threaded. Time passes only when somebody sleeps, waits for an answer or runs a load,
so the same seed and the same calls give the same numbers to the last digit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

import msgspec

from leadline.errors import HostError, HostLost
from leadline.evidence import Diagnosis, ExitFacts, Probe, ProcessFacts, Reply
from leadline.launch import Start
from leadline.metrics import NS_PER_S
from leadline.ports import Completed, Held, Host, Loader, Prober, Session
from leadline.testing.clock import VirtualClock
from leadline.testing.dialects import Dialect
from leadline.testing.dialects.registry import named
from leadline.testing.labload import LabLoader, Realised
from leadline.testing.labprocess import LabProcess
from leadline.testing.physics import LabSpec

__all__ = ["Lab", "LabFile", "LabHeld", "LabHost", "LabLoader", "LabProber", "LabSession", "Realised"]

_FREE_MEMORY_BYTES = 16 << 30
_SERVER_BYTES = 20 << 30
_SUDO = ("sudo", "-n")


class LabFile(msgspec.Struct, frozen=True):
    content: bytes
    mode: int


class Lab:
    """One machine of the lab and everything on it.

    `processes` = every server ever started here, in order; `realised` = one entry for each load; `files` and
    `squatters` (port -> somebody else's listener) may be changed by a test. `commands` answers what a campaign runs
    on the host: `sha256sum` and `test -e` over `files`, and what a test adds; `programs` is the same for those that
    read their input, `holding` for those whose input a campaign keeps open. Another program is not found, as in a
    shell; what runs through sudo runs as it is. `tenants_bytes` = what others use of the accelerator, None = nothing
    tells; `disk_full` = nothing can be written. `seed` replaces the spec's, `dialect` the one that it names.
    """

    def __init__(self, spec: LabSpec | None = None, *, seed: int | None = None, dialect: Dialect | None = None) -> None:
        spec = spec or LabSpec()
        self.spec = spec if seed is None else msgspec.structs.replace(spec, seed=seed)
        self.dialect: Dialect = dialect or named(self.spec.dialect, self.spec.version)
        self.clock = VirtualClock()
        self.files: dict[str, LabFile] = {}
        self.squatters: dict[int, ProcessFacts] = {}
        self.commands: dict[str, Callable[[Sequence[str]], Completed]] = {
            "sha256sum": self._sha256sum,
            "test": self._test,
        }
        self.programs: dict[str, Callable[[Sequence[str], bytes], Completed]] = {}
        self.holding: dict[str, Callable[[Sequence[str]], LabHeld]] = {}
        self.on_crash: list[Callable[[], None]] = []
        self.on_boot: list[Callable[[], None]] = []
        self.ran: list[tuple[str, ...]] = []
        self.processes: list[LabProcess] = []
        self.realised: list[Realised] = []
        self.free_memory_bytes = _FREE_MEMORY_BYTES
        self.tenants_bytes: int | None = None
        self.disk_full = False
        self.boot = 1
        self._of_services: set[int] = set()
        self._held: list[LabHeld] = []
        self._lost_until_ns = 0
        self.host: Host = LabHost(self)
        self.loader: Loader = LabLoader(self.clock, self.at, self.realised, lambda: not self.lost)

    def prober(self, url: str) -> Prober:
        return LabProber(self, url)

    def launch(self, argv: Sequence[str], log: str, *, ours: bool = True) -> LabProcess:
        """Execute a server's command line. It may end at once, as the real one does. `ours` = it ends with us."""
        process = LabProcess(
            spec=self.spec,
            dialect=self.dialect,
            clock=self.clock,
            argv=tuple(argv),
            log=log,
            launch=len(self.processes) + 1,
            taken=lambda port: self.listener(port) is not None,
            read=self._read,
        )
        self.processes.append(process)
        if not ours:
            self._of_services.add(process.pid)
        return process

    def at(self, url: str) -> LabProcess | None:
        """The server of ours that listens where this URL points, and can be reached."""
        if self.lost:
            return None
        port = urlsplit(url).port or 80
        return next((p for p in reversed(self.processes) if p.answers(port)), None)

    def _read(self, path: str) -> str | None:
        file = self.files.get(path)
        return file.content.decode() if file else None

    def listener(self, port: int) -> ProcessFacts | None:
        owner = self.squatters.get(port)
        if owner is not None:
            return owner
        return next((p.facts() for p in self.processes if p.listens(port)), None)

    def disconnect(self) -> None:
        """Our process dies: the supervisors end what it had started, and its connections are gone."""
        for process in self.processes:
            if process.pid not in self._of_services:
                process.end()
        self._hang_up()

    # --- what happens to the machine and the way to it

    @property
    def lost(self) -> bool:
        """Whether the host cannot be reached just now, neither for commands nor for requests."""
        return self.clock.now_ns() < self._lost_until_ns

    def cut(self, s: float) -> None:
        """The connection is gone for so many seconds; the machine notices at once."""
        self._lost_until_ns = max(self._lost_until_ns, self.clock.now_ns() + round(s * NS_PER_S))
        self._hang_up()

    def crash(self, down_s: float = 30.0) -> None:
        """Power cut: everything ends, and /run is empty. It boots after so many seconds."""
        for process in self.processes:
            process.kill()
        for held in self._held:
            held.lose()
        self._held.clear()
        for action in self.on_crash:
            action()
        for path in [p for p in self.files if p.startswith("/run/")]:
            del self.files[path]
        self._lost_until_ns = max(self._lost_until_ns, self.clock.now_ns() + round(down_s * NS_PER_S))
        self.clock.after(down_s, self._boots)

    def _boots(self) -> None:
        self.boot += 1
        for action in self.on_boot:
            action()

    def _hang_up(self) -> None:
        held, self._held = self._held, []
        for one in held:
            one.end()

    # --- what its commands do

    def execute(self, argv: Sequence[str], stdin: bytes = b"") -> Completed:
        """A command on the machine itself."""
        self.ran.append(tuple(argv))
        argv = self._as_root(argv)
        if (program := self.programs.get(argv[0])) is not None:
            return program(argv, stdin)
        if (command := self.commands.get(argv[0])) is not None:
            return command(argv)
        return completed(argv, 127, stderr=f"{argv[0]}: not found\n")

    def _as_root(self, argv: Sequence[str]) -> Sequence[str]:
        through_sudo = tuple(argv[: len(_SUDO)]) == _SUDO and _SUDO[0] not in self.commands
        return argv[len(_SUDO) :] if through_sudo else argv

    def hold(self, argv: Sequence[str]) -> LabHeld:
        """Raises HostError when there is no such command, or it refuses."""
        self.ran.append(tuple(argv))
        argv = self._as_root(argv)
        if argv[0] not in self.holding:
            raise HostError(f"{argv[0]}: not found")
        held = self.holding[argv[0]](argv)
        self._held.append(held)
        return held

    def write(self, path: str, content: bytes, mode: int) -> None:
        """Raises HostError when the disk is full."""
        if self.disk_full:
            raise HostError(f"cannot write {path}: No space left on device. What was there is still there.")
        self.files[path] = LabFile(content, mode)

    def device_used_bytes(self) -> tuple[int, ...] | None:
        if self.tenants_bytes is None:
            return None
        return (self.tenants_bytes + _SERVER_BYTES * sum(p.exit() is None for p in self.processes),)

    def _sha256sum(self, argv: Sequence[str]) -> Completed:
        file = self.files.get(argv[-1])
        if file is None:
            return completed(argv, 1, stderr=f"sha256sum: {argv[-1]}: No such file or directory\n")
        return completed(argv, 0, stdout=f"{hashlib.sha256(file.content).hexdigest()}  {argv[-1]}\n")

    def _test(self, argv: Sequence[str]) -> Completed:
        return completed(argv, 0 if argv[1] == "-e" and argv[-1] in self.files else 1)


def completed(argv: Sequence[str], code: int, *, stdout: str = "", stderr: str = "") -> Completed:
    return Completed(argv=tuple(argv), code=code, stdout=stdout.encode(), stderr=stderr.encode())


class LabHeld:
    """`ports.Held`: a command of the lab's machine that goes on until we let go of it."""

    def __init__(self, let_go: Callable[[], None]) -> None:
        self._let_go: Callable[[], None] | None = let_go

    def alive(self) -> bool:
        return self._let_go is not None

    def end(self) -> None:
        let_go, self._let_go = self._let_go, None
        if let_go is not None:
            let_go()

    def lose(self) -> None:
        """The machine is gone: nobody there notices."""
        self._let_go = None


class LabSession:
    """`ports.Session` of a lab process."""

    def __init__(self, process: LabProcess) -> None:
        self._process = process

    def process(self) -> ProcessFacts | None:
        return self._process.facts()

    def exit(self) -> ExitFacts | None:
        return self._process.exit()

    def owns(self, pid: int) -> bool:
        return pid == self._process.pid and self._process.exit() is None

    def log(self) -> str:
        return self._process.log_text()

    def doubt(self) -> Diagnosis | None:
        return None

    def blips(self) -> int:
        return 0

    def end(self, grace_s: float) -> ExitFacts:
        return self._process.end()


class LabHost:
    """`ports.Host` of the lab's machine."""

    name = "lab"

    def __init__(self, lab: Lab) -> None:
        self._lab = lab

    def _reach(self) -> Lab:
        if self._lab.lost:
            raise HostLost("lab: the connection is gone")
        return self._lab

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0) -> Completed:
        return self._reach().execute(argv, stdin)

    def start(self, step: Start) -> Session:
        return LabSession(self._reach().launch(step.launch.argv, step.log))

    def hold(self, argv: Sequence[str], *, timeout_s: float = 60.0) -> Held:
        return self._reach().hold(argv)

    def read(self, path: str, *, sudo: bool = False) -> bytes | None:
        file = self._reach().files.get(path)
        return file.content if file else None

    def write(self, path: str, content: bytes, mode: int, *, sudo: bool = False) -> None:
        self._reach().write(path, content, mode)

    def remove(self, path: str, *, sudo: bool = False) -> None:
        self._reach().files.pop(path, None)

    def log(self, path: str) -> str:
        return "".join(p.log_text() for p in self._reach().processes if p.log == path)

    def listener(self, host: str, port: int) -> ProcessFacts | None:
        return self._reach().listener(port)

    def forward(self, host: str, port: int) -> tuple[str, int]:
        return host, port

    def free_memory_bytes(self) -> int:
        return self._reach().free_memory_bytes

    def device_used_bytes(self) -> tuple[int, ...] | None:
        return self._reach().device_used_bytes()

    def identity(self) -> dict[str, str]:
        return {"processor": "leadline-lab (simulated)"}


class LabProber:
    """`ports.Prober` against one URL of the lab. Control endpoints answer in no time; a completion takes its steps."""

    def __init__(self, lab: Lab, url: str) -> None:
        self._lab = lab
        self._url = url

    def fetch(self, probe: Probe) -> Reply:
        process = self._lab.at(self._url)
        if process is None:
            error = "connection reset" if self._lab.lost else "connection refused"
            return Reply(name=probe.name, status=0, error=error)
        got = probe.method == "GET"
        answer = process.get(probe.path) if got else process.complete(probe.path, probe.body, probe.timeout_s)
        if isinstance(answer, str):
            return Reply(name=probe.name, status=0, error=answer)
        return Reply(name=probe.name, status=answer.status, body=answer.body)
