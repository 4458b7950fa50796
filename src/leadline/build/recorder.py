"""What Steps execute on a host, learnt without one."""

from __future__ import annotations

from collections.abc import Sequence

from leadline.errors import HostError
from leadline.hosts._remote import RemoteHost
from leadline.launch import Halt, Put, Remove, Run, Step
from leadline.ports import Completed, Held
from leadline.steps import command, digest

SUDO = ("sudo", "-n")


class Recorder(RemoteHost):
    """A host that executes nothing and remembers what it was asked: each command, and what it would read."""

    name = "nowhere"

    def __init__(self) -> None:
        self.asked: list[tuple[tuple[str, ...], str]] = []

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0) -> Completed:
        self.asked.append((tuple(argv), stdin.decode(errors="replace")))
        return Completed(argv=tuple(argv), code=0, stdout=b"", stderr=b"")

    def hold(self, argv: Sequence[str], *, timeout_s: float = 60.0) -> Held:
        raise HostError(f"{self.name} holds nothing")

    def forward(self, host: str, port: int) -> tuple[str, int]:
        return host, port


def asked_of(step: Step) -> list[tuple[tuple[str, ...], str]]:
    """The commands of one Step with what they read, files included as the hosts handle them; none for a Start."""
    host = Recorder()
    match step:
        case Run():
            command(host, step)
        case Halt():
            command(host, step.stop)
            command(host, step.kill)
        case Put():
            digest(host, step.path, sudo=step.sudo)
            host.write(step.path, step.content.encode(), step.mode, sudo=step.sudo)
        case Remove():
            digest(host, step.path, sudo=step.sudo)
            host.remove(step.path, sudo=step.sudo)
    return host.asked


def as_root(step: Step) -> list[tuple[str, ...]]:
    """Those that go through sudo, without its words."""
    return [argv[len(SUDO) :] for argv, _ in asked_of(step) if argv[: len(SUDO)] == SUDO]
