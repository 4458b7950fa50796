"""Commands that are our own children: one that is waited for, and one whose standard input is kept open."""

from __future__ import annotations

import os
import select
import shlex
import signal
import subprocess
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO, Protocol, cast

from leadline.errors import HostError
from leadline.launch import LaunchSpec, masked
from leadline.ports import Completed

END_S = 15.0
"""How long a held command may take to end after its input: longer than ssh needs to notice a dead network."""
WORD = 120
"""Longer words of a command, such as whole scripts, are cut in messages."""


class _Droppable(Protocol):
    def drop(self) -> None: ...


_ours: weakref.WeakSet[_Droppable] = weakref.WeakSet()


def for_us_alone(thing: _Droppable) -> None:
    """Its pipes are closed in a fork of this process, so that our own death closes them at the far end."""
    _ours.add(thing)


def _drop_all() -> None:
    for thing in list(_ours):
        thing.drop()


os.register_at_fork(after_in_child=_drop_all)


class Slow(Exception):
    """A command did not end in its time, and was killed."""


def call(argv: Sequence[str], stdin: bytes, timeout_s: float) -> Completed:
    """Run it without a shell; when the time is over or we are interrupted, its process group is killed.

    Raises Slow, and OSError or ValueError when it cannot be run.
    """
    # A group of its own, not a session: sudo must still find our terminal.
    child = subprocess.Popen(
        list(argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0
    )
    try:
        stdout, stderr = child.communicate(stdin, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise Slow from None
    finally:
        end(child)
    return Completed(argv=tuple(argv), code=shell_code(child.returncode), stdout=stdout, stderr=stderr)


def shell_code(code: int) -> int:
    """As a shell counts: 128 + n = killed by signal n."""
    return 128 - code if code < 0 else code


def end(child: subprocess.Popen[bytes]) -> None:
    """Kill a command that has not ended, with its group: as long as the leader is not reaped, it is the one we made.

    One that sudo runs for another user is out of our reach and is left.
    """
    for pipe in (child.stdin, child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()
    if child.returncode is None:
        try:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        except (ProcessLookupError, PermissionError):
            return


def slow(argv: Sequence[str], timeout_s: float, name: str) -> HostError:
    return HostError(
        f"{shown(argv)} on {name} did not end within {timeout_s:g} s; run it by hand to see what it waits for"
    )


def shown(argv: Sequence[str]) -> str:
    """A command for messages: without secrets, long words cut."""
    words = masked(LaunchSpec(argv=tuple(argv))).argv
    return shlex.join(" ".join(w.split())[:WORD] + " ..." if len(w) > WORD else w for w in words)


def why(error: OSError | ValueError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


class Said:
    """Where a child writes its messages: in memory, so that it never waits for us to read them."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("said")

    def text(self) -> str:
        return os.pread(self.fd, os.fstat(self.fd).st_size, 0).decode(errors="replace") if self.fd >= 0 else ""

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Lines:
    """Lines of a pipe, with a deadline."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self.unread = b""
        self.ended = False
        os.set_blocking(pipe.fileno(), False)

    def read(self, timeout_s: float) -> bytes | None:
        """A whole line; b"" at the end; None when none came in that time."""
        until = time.monotonic() + timeout_s
        poll = select.poll()
        poll.register(self._pipe, select.POLLIN)
        while b"\n" not in self.unread:
            if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
                return None
            data = os.read(self._pipe.fileno(), 65536)
            if not data:
                self.ended = True
                return b""
            self.unread += data
        line, _, self.unread = self.unread.partition(b"\n")
        return line + b"\n"

    def skip(self) -> None:
        """Throw away what has come, so that the writer never waits for us."""
        self.unread = b""
        try:
            while os.read(self._pipe.fileno(), 65536):
                continue
        except BlockingIOError:
            return


class HeldCommand:
    """ports.Held as our own child. The pipe to it lives in this process alone. For one thread."""

    def __init__(
        self, argv: Sequence[str], *, words: Sequence[str], timeout_s: float, failed: Callable[[Completed], HostError]
    ) -> None:
        """Returns after its first line. `words` = the command as messages show it; `failed` says why it ended without
        a line. Raises OSError or ValueError when it cannot be run."""
        self._words = shown(words)
        self._said = Said()
        try:
            self._child = subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said.fd,
                bufsize=0,
                process_group=0,
            )
        except BaseException:
            self._said.close()
            raise
        for_us_alone(self)
        try:
            self._lines = Lines(cast("IO[bytes]", self._child.stdout))
            line = self._lines.read(timeout_s)
            if line is None:
                raise HostError(f"{self._words} said nothing within {timeout_s:g} s, so it does not hold")
            if not line:
                raise failed(self._ended(words))
        except BaseException:
            end(self._child)
            self.drop()
            raise

    def _ended(self, words: Sequence[str]) -> Completed:
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(END_S)
        end(self._child)
        code, said = shell_code(self._child.returncode or 0), self._said.text().encode()
        return Completed(argv=tuple(words), code=code, stdout=self._lines.unread, stderr=said)

    def alive(self) -> bool:
        if self._child.poll() is None:
            self._lines.skip()
            return True
        self.drop()
        return False

    def end(self) -> None:
        """One that does not heed the end of its input is killed here; on another machine it is left to itself."""
        pipe = self._child.stdin
        if pipe is not None:
            pipe.close()
        until = time.monotonic() + END_S
        try:
            if self._child.poll() is None:
                while self._lines.read(until - time.monotonic()):
                    continue
                with suppress(subprocess.TimeoutExpired):
                    self._child.wait(max(0.0, until - time.monotonic()))
        finally:
            end(self._child)
            self.drop()

    def drop(self) -> None:
        """Close our ends without waiting."""
        for pipe in (self._child.stdin, self._child.stdout, self._said):
            if pipe is not None:
                pipe.close()
