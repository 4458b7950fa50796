"""The process that keeps one test host alive: `python -m testhost.supervisor NAME`.

The first line of its stdin is a Plan; each further one (status, boot, crash, cut, mend) is answered by one JSON line on
stdout. When stdin ends or the owner is gone, everything of the host is removed. Its children die with it, however it
ends itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from testhost import cgroups
from testhost import plan as plans
from testhost.forward import Forward
from testhost.plan import Plan

_CLONE_NEWNET = 0x40000000
_PR_SET_PDEATHSIG = 1
_INIT_S = 10.0
_libc = ctypes.CDLL(None, use_errno=True)


class Supervisor:
    """Made in the owner's network namespace: the listeners are bound there, then a new one is entered."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._forwards = {port: Forward((plans.INNER_ADDRESS[plan.backend], port)) for port in plan.ports}
        self._process: subprocess.Popen[bytes] | None = None
        self._init = 0
        self._wanted = False
        self._cut = False
        _own_network(plan.backend)

    def status(self) -> dict[str, object]:
        ports = {str(inner): forward.port for inner, forward in self._forwards.items()}
        return {"on": self._process is not None, "init": self._init, "cut": self._cut, "ports": ports}

    async def obey(self, command: str) -> dict[str, object]:
        if command == "boot" and self._process is None:
            self._boot()
        elif command == "crash":
            await self._off()
        elif command == "cut":
            self._cut = True
            await self._forwards[plans.SSH_PORT].close()
        elif command == "mend":
            self._cut = False
            if self._process is not None:
                self._forwards[plans.SSH_PORT].open()
        return self.status()

    async def end(self) -> None:
        await self._off()
        shutil.rmtree(self._plan.state)
        Path(self._plan.lock).unlink()

    def _boot(self) -> None:
        if self._plan.backend == "container":
            cgroups.make(self._plan.leaf)
            command, environment = plans.container(self._plan)
        else:
            command, environment = plans.uml(self._plan, _memory_folder(self._plan.state))
        with open(Path(self._plan.state) / "console.log", "ab") as console:
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=console,
                stderr=console,
                cwd=self._plan.state,
                preexec_fn=_prepared(self._plan),
            )
        assert process.stdin is not None
        self._process, self._wanted = process, True
        self._init = _only_child(process.pid)
        if self._plan.backend == "container" and cgroups.unified():
            cgroups.enter("", process.pid)  # on v2 a group with a process of its own cannot have controllers below it
        process.stdin.write(b"go\n")
        process.stdin.close()
        watch = os.pidfd_open(process.pid)
        asyncio.get_running_loop().add_reader(watch, self._ended, process, watch)
        for port, forward in self._forwards.items():
            if not (port == plans.SSH_PORT and self._cut):
                forward.open()

    def _ended(self, process: subprocess.Popen[bytes], watch: int) -> None:
        """Init is gone: by us, by a power-off inside, or to boot again (the kernel then ends it with SIGHUP)."""
        asyncio.get_running_loop().remove_reader(watch)
        os.close(watch)
        code = process.wait()
        self._process, self._init = None, 0
        cgroups.sweep(self._plan.leaf)
        if code == -signal.SIGHUP and self._wanted:
            self._boot()

    async def _off(self) -> None:
        """As when the power is cut: every process at once. Connections are reset and new ones refused."""
        self._wanted = False
        await asyncio.gather(*(forward.close() for forward in self._forwards.values()))
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._init, signal.SIGKILL)
        deadline = time.monotonic() + _INIT_S
        while self._process is not None:
            if time.monotonic() > deadline:
                raise TimeoutError("its process 1 does not die")
            await asyncio.sleep(0.005)


def _own_network(backend: str) -> None:
    if _libc.unshare(_CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "cannot make a network namespace")
    commands = ["link set lo up"]
    if backend == "uml":
        commands += ["tuntap add tap0 mode tap", "addr add 10.0.2.1/24 dev tap0", "link set tap0 up"]
    for command in commands:
        subprocess.run(["ip", *command.split()], check=True, env={"PATH": plans.PATH})


def _prepared(plan: Plan) -> Callable[[], None]:
    """What the child does before its command: die with us, and be in the host's cgroup."""

    def prepare() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if plan.backend == "container":
            cgroups.enter(plan.leaf, os.getpid())

    return prepare


def _only_child(pid: int) -> int:
    deadline = time.monotonic() + _INIT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(FileNotFoundError):
            if children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                return int(children[0])
        time.sleep(0.005)
    raise TimeoutError("unshare made no child")


def _memory_folder(state: str) -> str:
    shared = "/dev/shm"
    fits = os.access(shared, os.W_OK) and not os.statvfs(shared).f_flag & os.ST_NOEXEC
    return shared if fits else state


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin.buffer)
    loop.add_reader(os.pidfd_open(os.getppid()), lines.feed_eof)  # a child of the owner may hold our stdin open
    supervisor = Supervisor(Plan.parse((await lines.readline()).decode()))
    while line := await lines.readline():
        try:
            answer = await supervisor.obey(line.decode().strip())
        except (OSError, subprocess.SubprocessError) as error:
            answer = {"error": str(error)}
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(answer), flush=True)
    await supervisor.end()


if __name__ == "__main__":
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    asyncio.run(_serve())
