"""The lab in virtual time: a host, a prober and a loader over lab physics. A campaign of hours runs in seconds.

Everything is in memory and single-threaded. Time passes only when somebody sleeps, waits for an answer or runs a load,
so the same seed and the same calls give the same numbers to the last digit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

import msgspec

from leadline.evidence import ExitFacts, Probe, ProcessFacts, Reply
from leadline.launch import Start
from leadline.ports import Completed, Host, Loader, Prober, Session
from leadline.testing.clock import VirtualClock
from leadline.testing.dialects import Dialect
from leadline.testing.dialects.registry import named
from leadline.testing.labload import LabLoader, Realised
from leadline.testing.labprocess import LabProcess
from leadline.testing.physics import LabSpec

__all__ = ["Lab", "LabFile", "LabHost", "LabLoader", "LabProber", "LabSession", "Realised"]

_FREE_MEMORY_BYTES = 16 << 30


class LabFile(msgspec.Struct, frozen=True):
    content: bytes
    mode: int


class Lab:
    """One machine of the lab and everything on it.

    `processes` = every server ever started here, in order; `realised` = one entry for each load; `files` and
    `squatters` (port -> somebody else's listener) may be changed by a test. `commands` answers what a campaign runs
    on the host: `sha256sum` and `test -e` over `files`, and what a test adds; another program is not found, as in a
    shell. `seed` replaces the spec's, `dialect` the one that it names.
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
        self.ran: list[tuple[str, ...]] = []
        self.processes: list[LabProcess] = []
        self.realised: list[Realised] = []
        self.free_memory_bytes = _FREE_MEMORY_BYTES
        self.host: Host = LabHost(self)
        self.loader: Loader = LabLoader(self.clock, self.at, self.realised)

    def prober(self, url: str) -> Prober:
        return LabProber(self, url)

    def launch(self, argv: Sequence[str], log: str) -> LabProcess:
        """Execute a server's command line. It may end at once, as the real one does."""
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
        return process

    def at(self, url: str) -> LabProcess | None:
        """The server of ours that listens where this URL points."""
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
        """Our process dies: the supervisors end what it had started."""
        for process in self.processes:
            process.end()

    def _sha256sum(self, argv: Sequence[str]) -> Completed:
        file = self.files.get(argv[-1])
        if file is None:
            return _completed(argv, 1, stderr=f"sha256sum: {argv[-1]}: No such file or directory\n")
        return _completed(argv, 0, stdout=f"{hashlib.sha256(file.content).hexdigest()}  {argv[-1]}\n")

    def _test(self, argv: Sequence[str]) -> Completed:
        return _completed(argv, 0 if argv[1] == "-e" and argv[-1] in self.files else 1)


def _completed(argv: Sequence[str], code: int, *, stdout: str = "", stderr: str = "") -> Completed:
    return Completed(argv=tuple(argv), code=code, stdout=stdout.encode(), stderr=stderr.encode())


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

    def end(self, grace_s: float) -> ExitFacts:
        return self._process.end()


class LabHost:
    """`ports.Host` of the lab's machine."""

    name = "lab"

    def __init__(self, lab: Lab) -> None:
        self._lab = lab

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0) -> Completed:
        self._lab.ran.append(tuple(argv))
        command = self._lab.commands.get(argv[0])
        if command is None:
            return _completed(argv, 127, stderr=f"{argv[0]}: not found\n")
        return command(argv)

    def start(self, step: Start) -> Session:
        return LabSession(self._lab.launch(step.launch.argv, step.log))

    def read(self, path: str) -> bytes | None:
        file = self._lab.files.get(path)
        return file.content if file else None

    def write(self, path: str, content: bytes, mode: int) -> None:
        self._lab.files[path] = LabFile(content, mode)

    def remove(self, path: str) -> None:
        self._lab.files.pop(path, None)

    def log(self, path: str) -> str:
        return "".join(p.log_text() for p in self._lab.processes if p.log == path)

    def listener(self, host: str, port: int) -> ProcessFacts | None:
        return self._lab.listener(port)

    def free_memory_bytes(self) -> int:
        return self._lab.free_memory_bytes

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
            return Reply(name=probe.name, status=0, error="connection refused")
        got = probe.method == "GET"
        answer = process.get(probe.path) if got else process.complete(probe.path, probe.body, probe.timeout_s)
        if isinstance(answer, str):
            return Reply(name=probe.name, status=0, error=answer)
        return Reply(name=probe.name, status=answer.status, body=answer.body)
