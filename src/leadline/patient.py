"""A host that may be out of reach for a while: whoever only looks waits for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from leadline.evidence import ProcessFacts
from leadline.launch import Start
from leadline.ports import Clock, Completed, Held, Host, Session
from leadline.steps import insist

T = TypeVar("T")


class PatientHost:
    """ports.Host over another one. Looks are repeated for at most `away_s`, then raise HostLost; what changes something
    is tried once, since it may have happened although the answer was lost."""

    def __init__(self, host: Host, clock: Clock, away_s: float) -> None:
        self.name = host.name
        self._host, self._clock, self._away_s = host, clock, away_s

    def _look(self, ask: Callable[[], T]) -> T:
        answers: list[T] = []
        insist(lambda: answers.append(ask()), clock=self._clock, away_s=self._away_s)
        return answers[0]

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0) -> Completed:
        return self._host.run(argv, stdin=stdin, timeout_s=timeout_s)

    def start(self, step: Start) -> Session:
        return self._host.start(step)

    def hold(self, argv: Sequence[str], *, timeout_s: float = 60.0) -> Held:
        return self._host.hold(argv, timeout_s=timeout_s)

    def read(self, path: str, *, sudo: bool = False) -> bytes | None:
        return self._look(lambda: self._host.read(path, sudo=sudo))

    def write(self, path: str, content: bytes, mode: int, *, sudo: bool = False) -> None:
        self._host.write(path, content, mode, sudo=sudo)

    def remove(self, path: str, *, sudo: bool = False) -> None:
        self._host.remove(path, sudo=sudo)

    def log(self, path: str) -> str:
        return self._look(lambda: self._host.log(path))

    def listener(self, host: str, port: int) -> ProcessFacts | None:
        return self._look(lambda: self._host.listener(host, port))

    def forward(self, host: str, port: int) -> tuple[str, int]:
        return self._look(lambda: self._host.forward(host, port))

    def free_memory_bytes(self) -> int:
        return self._look(self._host.free_memory_bytes)

    def device_used_bytes(self) -> tuple[int, ...] | None:
        return self._look(self._host.device_used_bytes)

    def identity(self) -> dict[str, str]:
        return self._look(self._host.identity)
