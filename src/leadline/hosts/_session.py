"""The holder's end of a supervised server: a pipe whose closing ends the server."""

from __future__ import annotations

import os
import select
import shlex
import subprocess
import sys
import weakref
from pathlib import Path
from typing import IO, cast

import msgspec

from leadline.errors import HostError
from leadline.evidence import ExitFacts, ProcessFacts
from leadline.hosts import _machine
from leadline.launch import Start, masked

SUPERVISOR = Path(__file__).with_name("supervisor.py")


class _Started(msgspec.Struct, frozen=True):
    pid: int
    start_id: str


class _Exit(msgspec.Struct, frozen=True):
    code: int | None
    signal: int | None
    asked: bool


class _Message(msgspec.Struct, frozen=True):
    started: _Started | None = None
    error: str | None = None
    exit: _Exit | None = None
    gone: bool = False


class LocalSession:
    """ports.Session on this machine. For one thread.

    The pipes live in this process alone: other programs that it starts do not inherit them, a fork drops them.
    """

    def __init__(self, step: Start) -> None:
        """Starts the server and returns when its program runs. Raises HostError when it cannot be executed."""
        self._oom_kills = _machine.oom_kills()
        self._log = step.log
        self._unread = b""
        self._open = True
        self._started: _Started | None = None
        self._error: str | None = None
        self._exit: ExitFacts | None = None
        try:
            self._supervisor = subprocess.Popen(
                [sys.executable, "-I", "-S", str(SUPERVISOR)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            raise HostError(f"cannot start the supervisor with {sys.executable}: {error.strerror}") from error
        _held.add(self)
        try:
            self._begin(step)
        except BaseException:
            self._close()
            raise

    def _begin(self, step: Start) -> None:
        launch = step.launch
        order = {"argv": launch.argv, "env": launch.env, "cwd": launch.cwd, "log": step.log, "grace_s": step.grace_s}
        self._order(msgspec.json.encode(order))
        while self._open and self._started is None and self._error is None:
            self._listen(None)
        if self._started is None:
            why = self._error or self._pipe("stderr").read().decode(errors="replace").strip() or "the supervisor ended"
            raise HostError(
                f"cannot start {shlex.join(masked(launch).argv[:1])}: {why}. Nothing was started; check the command, "
                f"its folder and its log file in [service]."
            )
        self._pid, self._start_id = self._started.pid, self._started.start_id

    def process(self) -> ProcessFacts | None:
        """`rss_bytes` and `read_bytes` are sums over the server and its living descendants; memory that they share
        counts for each of them."""
        import psutil

        try:
            server = psutil.Process(self._pid)
            facts = _machine.facts(server)
            if facts.start_id != self._start_id or server.status() == psutil.STATUS_ZOMBIE:
                return None
            outer = psutil.Process(self._supervisor.pid)
            inner, family = outer.children(), outer.children(recursive=True)
        except psutil.NoSuchProcess:
            return None
        others = [p for p in family if p != server and p not in inner]
        used = [(facts.rss_bytes, facts.read_bytes), *(_machine.usage(p) for p in others)]
        rss_bytes, read_bytes = (sum(column) for column in zip(*used, strict=True))
        return msgspec.structs.replace(facts, rss_bytes=rss_bytes, read_bytes=read_bytes)

    def exit(self) -> ExitFacts | None:
        while self._exit is None and self._listen(0):
            pass
        return self._exit

    def owns(self, pid: int) -> bool:
        """Everything that the server started stays below the supervisor, which is our child: while we have not reaped
        it, its pid cannot be in other hands."""
        import psutil

        if self._supervisor.returncode is not None:
            return False
        try:
            # psutil's parents() follows a parent only when it is older than its child: no reused pid.
            above = psutil.Process(pid).parents()
        except psutil.NoSuchProcess:
            return False
        return self._supervisor.pid in [p.pid for p in above[1:]]

    def log(self) -> str:
        try:
            return Path(self._log).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise HostError(f"cannot read {self._log}: {error.strerror}") from error

    def doubt(self) -> None:
        """Nothing is between us and the server: it is what we started, or it has ended."""

    def blips(self) -> int:
        """This machine is always reached."""
        return 0

    def end(self, grace_s: float) -> ExitFacts:
        """An exception in here (Ctrl-C) closes the pipe, so that the supervisor goes on without us."""
        try:
            if self._open:
                self._order(f"end {grace_s}".encode())
            while self._open:
                self._listen(None)
        finally:
            self._pipe("stdin").close()
        self._close()
        return self._exit or ExitFacts()

    def _order(self, line: bytes) -> None:
        pipe = self._pipe("stdin")
        try:
            data = line + b"\n"
            while data and not pipe.closed:
                data = data[pipe.write(data) :]
        except BrokenPipeError:  # the supervisor is gone or going; what it reported is still to be read
            return

    def _listen(self, timeout_ms: int | None) -> bool:
        """Take in what the supervisor reports; False when nothing came in that time."""
        reports = self._pipe("stdout")
        if not self._open:
            return False
        poll = select.poll()
        poll.register(reports, select.POLLIN)
        if not poll.poll(timeout_ms):
            return False
        data = reports.read(65536)
        *lines, self._unread = (self._unread + (data or b"")).split(b"\n")
        for line in lines:
            self._take(msgspec.json.decode(line, type=_Message))
        if not data:
            # Both processes of the supervisor are gone, so is the server; if they were killed, nobody saw how.
            self._open = False
            self._exit = self._exit or ExitFacts()
        return True

    def _take(self, message: _Message) -> None:
        self._started = message.started or self._started
        self._error = message.error or self._error
        if message.exit:
            kills = max(0, _machine.oom_kills() - self._oom_kills)
            seen = message.exit
            self._exit = ExitFacts(code=seen.code, signal=seen.signal, asked=seen.asked, host_oom_kills=kills)

    def _close(self) -> None:
        """Let go of the supervisor: it ends what is left, and we wait for that."""
        self._pipe("stdin").close()
        self._supervisor.wait()
        self.drop()

    def drop(self) -> None:
        """Close our ends without waiting: in a fork they belong to the parent."""
        self._open = False
        for name in ("stdin", "stdout", "stderr"):
            self._pipe(name).close()

    def _pipe(self, name: str) -> IO[bytes]:
        return cast("IO[bytes]", getattr(self._supervisor, name))


_held: weakref.WeakSet[LocalSession] = weakref.WeakSet()


def _drop_all() -> None:
    for session in list(_held):
        session.drop()


os.register_at_fork(after_in_child=_drop_all)
