"""How a server is started, and the printable Steps that a Target makes of it."""

from __future__ import annotations

import shlex

import msgspec

from leadline.masking import masked_text, masked_words, secret_name


class LaunchFile(msgspec.Struct, frozen=True):
    """A configuration file that a launch names, and its content."""

    path: str
    content: str


class LaunchSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What to execute: argv with the program first; `env` holds only what we add; `cwd` None = the host's default.

    `files` are the configuration files that argv names. Those under the folder `scratch` are ours: they are written
    before the launch, under names made from their content. All others are the operator's, and only read.
    As text it is a command line without secrets; `argv` and `env` hold them in clear.
    """

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    cwd: str | None = None
    files: tuple[LaunchFile, ...] = ()
    scratch: str = ""

    @property
    def ours(self) -> tuple[LaunchFile, ...]:
        """The files that must be written before the launch."""
        return tuple(f for f in self.files if self.scratch and f.path.startswith(self.scratch.rstrip("/") + "/"))

    def __str__(self) -> str:
        shown = masked(self)
        return " ".join([*(f"{k}={shlex.quote(v)}" for k, v in shown.env), shlex.join(shown.argv)])


def masked(launch: LaunchSpec) -> LaunchSpec:
    """The launch with `<secret:NAME>` for each value that looks like a secret, for printing and storing.

    Secret are: the value of an environment variable with KEY, TOKEN, SECRET, PASSWORD or the like in its name; the
    words after `--api-key`, `--hf-token` and the like up to the next flag (vLLM takes several keys), in scripts too;
    `user:PASSWORD@`; what begins like a token (`hf_`, `sk-`, `nvapi-`). In files, the value of a key with such a name.
    Any other secret under an innocent name stays. May be repeated.
    """
    files = tuple(LaunchFile(f.path, masked_text(f.content)) for f in launch.files)
    env = tuple((n, f"<secret:{n}>" if secret_name(n) else masked_words((v,))[0]) for n, v in launch.env)
    return msgspec.structs.replace(launch, argv=masked_words(launch.argv), env=env, files=files)


class Run(msgspec.Struct, frozen=True, kw_only=True, tag="run"):
    """Execute a command on the host and wait for it. `stdin` is what it reads; it holds no secret.

    `asked` = its answer goes to `Target.confirm`, also when its exit code is not 0.
    """

    argv: tuple[str, ...]
    timeout_s: float
    sudo: bool = False
    stdin: str = ""
    asked: bool = False

    def __str__(self) -> str:
        read = f" (reads {len(self.stdin.encode())} bytes from us)" if self.stdin else ""
        return f"run     {'sudo -n ' if self.sudo else ''}{' '.join(shlex.join(self.argv).split())}{read}"


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
        written = "".join(f" (writes {f.path})" for f in self.launch.ours)
        return f"start   {self.launch}{written}"


class Stop(msgspec.Struct, frozen=True, kw_only=True, tag="stop"):
    """End what our Start began: its whole process group, nothing else."""

    grace_s: float = 10.0

    def __str__(self) -> str:
        return f"stop    the server that we started (SIGTERM, SIGKILL after {self.grace_s:g} s)"


class Halt(msgspec.Struct, frozen=True, kw_only=True, tag="halt"):
    """Stop a service of a supervisor's and wait until nothing of it is left.

    `stop` returns at once; after `timeout_s` with processes left, `kill` ends them: those of this service alone.
    """

    stop: Run
    kill: Run
    timeout_s: float

    def __str__(self) -> str:
        words = f"{'sudo -n ' if self.stop.sudo else ''}{shlex.join(self.stop.argv)}"
        return f"halt    {words}, and wait; what is left of it after {self.timeout_s:g} s: {shlex.join(self.kill.argv)}"


Step = Run | Put | Remove | Start | Stop | Halt
