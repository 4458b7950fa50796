"""Never an orphan: keeps one server, and ends it and all that it started when our holder goes away.

A program of its own (`python -I -S supervisor.py`): standard library only, imports nothing of Leadline. For Linux;
elsewhere it knows the server and its process group, not what left the group.

In, on stdin: one JSON line {"argv", "env", "cwd", "log", "grace_s"}; later a line `end` or `end SECONDS`. The end of
stdin, however it comes, means `end` too.
Out, on stdout, JSON lines: {"started": {"pid", "start_id"}} or {"error": text}; {"exit": {"code", "signal", "asked"}}
when the server's main process ends (`asked`: we had signalled it); {"gone": true} when nothing is left, and only then
it exits. What a server that ends by itself leaves behind is ended too.

It is two processes. The inner one starts the server and takes orders. Both are child subreapers, so that whatever loses
its parent becomes their child. SIGKILL of the inner one: the kernel kills the server, the outer one ends the rest.
SIGKILL of the outer one: the inner one gets SIGTERM, which counts as `end`. SIGKILL of both in one moment ends the
server's main process alone.

Only own children that are not reaped yet are signalled, and process groups that such a child leads: neither number can
be in other hands.
"""

from __future__ import annotations

import json
import math
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

try:
    import ctypes

    _LIBC: Any = ctypes.CDLL(None)
except (ImportError, OSError):
    _LIBC = None

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
ORDERS, REPORTS = 0, 1


def prctl(option: int, value: int) -> None:
    """prctl(2); nothing happens on a system without it."""
    if hasattr(_LIBC, "prctl"):
        _LIBC.prctl(option, *(ctypes.c_ulong(v) for v in (value, 0, 0, 0)))


def say(**message: object) -> None:
    """One JSON line to the holder, who may be gone."""
    try:
        os.write(REPORTS, json.dumps(message).encode() + b"\n")
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), REPORTS)


def stat_fields(pid: int | str) -> list[bytes]:
    """/proc/PID/stat from the third field (state) on; empty when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def own_children(main: int) -> list[int]:
    """Our children, dead ones that are not reaped yet included; where there is no /proc, `main` alone."""
    if not os.path.isdir("/proc/self"):
        return [main]
    me = str(os.getpid()).encode()
    return [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and stat_fields(pid)[1:2] == [me]]


class Keeper:
    """Sleeps until a child ends, an order comes or the grace is over; ends whatever `main` leaves behind."""

    def __init__(self, grace_s: float, orders: int | None = None, received: bytes = b"") -> None:
        self._grace_s = grace_s
        self._orders = orders
        self._received = received
        self._deadline: float | None = None
        self._late = False
        self._told: set[int] = set()
        self._wake, write = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        self._poll = select.poll()
        self._poll.register(self._wake, select.POLLIN)
        if orders is not None:
            self._poll.register(orders, select.POLLIN)

    def end(self, grace_s: float) -> None:
        """SIGTERM now, SIGKILL after the grace; a second call can only shorten it."""
        deadline = time.monotonic() + grace_s
        self._deadline = deadline if self._deadline is None else min(deadline, self._deadline)

    def run(self, main: int, ended: Callable[[int, bool], None]) -> None:
        """Returns when no child is left. `ended(wait status, asked)` is called when `main` ends."""
        self._obey()
        while self._reap(main, ended):
            if self._deadline is not None:
                self._signal_all(main)
            self._sleep()

    def _reap(self, main: int, ended: Callable[[int, bool], None]) -> bool:
        """False when there is no child any more; as we are a subreaper, no descendant then."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == main:
                ended(status, bool(self._told))
                self.end(self._grace_s)

    def _signal_all(self, main: int) -> None:
        """Orphans become our children as their parents die, each death wakes us, so every round gets further down."""
        self._late = self._deadline is not None and time.monotonic() >= self._deadline
        for child in own_children(main):
            try:
                self._kill(child) if self._late else self._ask(child)
            except (ProcessLookupError, PermissionError):
                continue

    def _ask(self, child: int) -> None:
        """SIGTERM once only: many servers take a second one for an order to drop everything.

        A process that got it with its group gets no second one when it becomes our child. A pid that is told and used
        again is left to SIGKILL.
        """
        group = os.getpgid(child)
        if self._told.isdisjoint((child, group)):
            self._told.add(child)
            os.killpg(child, signal.SIGTERM) if group == child else os.kill(child, signal.SIGTERM)

    def _kill(self, child: int) -> None:
        self._told.add(child)
        os.killpg(child, signal.SIGKILL) if os.getpgid(child) == child else os.kill(child, signal.SIGKILL)

    def _sleep(self) -> None:
        """Until something happens. When everybody was killed, their deaths wake us."""
        timeout_ms = None
        if self._deadline is not None and not self._late:
            timeout_ms = max(0, math.ceil((self._deadline - time.monotonic()) * 1000))
        ready = {fd for fd, _ in self._poll.poll(timeout_ms)}
        if self._wake in ready and signal.SIGTERM in os.read(self._wake, 4096) and self._orders is not None:
            self.end(self._grace_s)
        if self._orders is not None and self._orders in ready:
            self._read(self._orders)

    def _read(self, orders: int) -> None:
        data = os.read(orders, 4096)
        self._received += data
        if not data:
            self._poll.unregister(orders)
            self.end(self._grace_s)
        self._obey()

    def _obey(self) -> None:
        *lines, self._received = self._received.split(b"\n")
        for words in (line.split() for line in lines):
            if words[:1] == [b"end"]:
                self.end(float(words[1]) if words[1:] else self._grace_s)


def start(order: dict[str, Any]) -> subprocess.Popen[bytes]:
    """The server as our child in a session of its own. It dies when we do, without a word from anybody.

    Does not hold for a set-user-id program: the kernel forgets the tie there. Hold the result: when it is collected, it
    reaps the server behind our back.
    """
    parent = os.getpid()

    def tie() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(127)

    with open(order["log"], "ab", opener=lambda path, flags: os.open(path, flags, 0o600)) as log:
        return subprocess.Popen(
            order["argv"],
            env={**os.environ, **dict(order["env"])},
            cwd=order["cwd"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=tie,
        )


def report_exit(status: int, asked: bool) -> None:
    killed = os.WIFSIGNALED(status)
    facts = {
        "code": None if killed else os.waitstatus_to_exitcode(status),
        "signal": os.WTERMSIG(status) if killed else None,
        "asked": asked,
    }
    say(exit=facts)


def keep(order: dict[str, Any], received: bytes, outer: int) -> int:
    """The inner process."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    keeper = Keeper(order["grace_s"], ORDERS, received)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != outer:
        return 1
    try:
        server = start(order)
    except OSError as error:
        say(error=f"{error.strerror}: {error.filename or order['argv'][0]}")
        return 1
    except (ValueError, subprocess.SubprocessError) as error:
        say(error=str(error))
        return 1
    fields = stat_fields(server.pid)
    say(started={"pid": server.pid, "start_id": fields[19].decode() if fields else ""})
    keeper.run(server.pid, report_exit)
    return 0


def read_order() -> tuple[bytes, bytes]:
    """The first line of stdin and what already came after it; two empty ones when there is none."""
    data = b""
    while b"\n" not in data:
        more = os.read(ORDERS, 65536)
        if not more:
            return b"", b""
        data += more
    line, _, rest = data.partition(b"\n")
    return line, rest


def main() -> int:
    # Handlers, not SIG_IGN: what is ignored stays ignored in the server, a handler does not outlive exec.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    if os.getsid(0) != os.getpid():
        os.setsid()
    line, received = read_order()
    if not line:
        return 0
    order = json.loads(line)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    outer = os.getpid()
    inner = os.fork()
    if inner == 0:
        os._exit(keep(order, received, outer))
    os.dup2(os.open(os.devnull, os.O_RDONLY), ORDERS)
    Keeper(order["grace_s"]).run(inner, lambda status, asked: None)
    say(gone=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
