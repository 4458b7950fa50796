"""How a server is started, and the printable Steps that a Target makes of it."""

from __future__ import annotations

import shlex

import msgspec


class LaunchSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What to execute: argv with the program first; `env` holds only what we add; `cwd` None = the host's default."""

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    cwd: str | None = None

    def __str__(self) -> str:
        return " ".join([*(f"{k}={shlex.quote(v)}" for k, v in self.env), shlex.join(self.argv)])


class Run(msgspec.Struct, frozen=True, kw_only=True, tag="run"):
    """Execute a command on the host and wait for it."""

    argv: tuple[str, ...]
    timeout_s: float
    sudo: bool = False

    def __str__(self) -> str:
        return f"run     {'sudo -n ' if self.sudo else ''}{shlex.join(self.argv)}"


class Put(msgspec.Struct, frozen=True, kw_only=True, tag="put"):
    """Write a whole file atomically. `expect` is the SHA-256 that the present file must have, or "absent".

    An `expect` that does not hold means that somebody else changed it: refuse, never overwrite.
    """

    path: str
    content: str
    mode: int
    expect: str
    sudo: bool = False

    def __str__(self) -> str:
        return f"put     {self.path} (mode {self.mode:04o}, {len(self.content.encode())} bytes, was {self.expect[:12]})"


class Remove(msgspec.Struct, frozen=True, kw_only=True, tag="remove"):
    """Remove a file that must still have the SHA-256 `expect`."""

    path: str
    expect: str
    sudo: bool = False

    def __str__(self) -> str:
        return f"remove  {self.path} (was {self.expect[:12]})"


class Start(msgspec.Struct, frozen=True, kw_only=True, tag="start"):
    """Start a server of our own under the supervisor, which ends it when our connection closes."""

    launch: LaunchSpec
    log: str
    grace_s: float = 10.0

    def __str__(self) -> str:
        return f"start   {self.launch}"


class Stop(msgspec.Struct, frozen=True, kw_only=True, tag="stop"):
    """End what our Start began: its whole process group, nothing else."""

    grace_s: float = 10.0

    def __str__(self) -> str:
        return f"stop    the server that we started (SIGTERM, SIGKILL after {self.grace_s:g} s)"


Step = Run | Put | Remove | Start | Stop
