"""Runs a LoadPlan in a worker process, and always ends that process."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import IO, Any

import msgspec

from leadline import codec
from leadline.errors import HostError
from leadline.load.records import read_records
from leadline.ports import LoadPlan
from leadline.trial import LoadReport

__all__ = ["ProcessLoader", "read_records"]

_POLL_S = 0.2
_STDERR_TAIL = 2_000

OnProgress = Callable[[int, int, int], None]
"""Requests ended, requests in all, output tokens so far."""


class _Said(msgspec.Struct):
    """One line of the worker."""

    done: int | None = None
    of: int = 0
    tokens: int = 0
    report: LoadReport | None = None
    end: bool = False


class ProcessLoader:
    """A Loader. The worker runs in a session of its own: a terminal's Ctrl-C reaches us alone, and it ends with us.

    `grace_s`: how long a worker that was told to stop may take to write its records; `exit_s`: how long its process may
    take to end after its last word.
    """

    def __init__(self, on_progress: OnProgress | None = None, *, grace_s: float = 10.0, exit_s: float = 5.0) -> None:
        self._on_progress = on_progress
        self._exit_s = exit_s
        self._grace_s = grace_s

    def run(self, plan: LoadPlan, alive: Callable[[], bool]) -> LoadReport:
        with tempfile.TemporaryFile() as stderr, _worker(stderr) as process:
            watched = _Watched(process, self._on_progress)
            watched.send(codec.to_json(plan) + b"\n")
            stopped = watched.follow(alive, self._grace_s)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(self._exit_s)
            if watched.ended:
                return watched.report or read_records(plan.records)
            if stopped and process.returncode == -signal.SIGTERM:  # it had not begun
                return LoadReport(records=(), window_start_ns=0, window_end_ns=0)
            raise HostError(_why(process.returncode, stderr))


@contextlib.contextmanager
def _worker(stderr: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """A worker process that is gone when this ends, however it ends."""
    # -P: a file in the working directory must not stand in for a module of the standard library
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "leadline.load.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
        )
    except OSError as e:
        raise HostError(f"the load worker could not be started: {e.strerror}") from None
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def _why(code: int | None, stderr: IO[bytes]) -> str:
    size = stderr.seek(0, os.SEEK_END)
    stderr.seek(max(0, size - _STDERR_TAIL))
    tail = stderr.read().decode("utf-8", "replace").strip()
    how = "did not end when told to" if code is None else f"ended with code {code} before its work was done"
    return f"the load worker {how}; its last words: {tail or 'none'}"


class _Watched:
    """Follows what a worker says until its standard output ends."""

    def __init__(self, process: subprocess.Popen[bytes], on_progress: OnProgress | None) -> None:
        self._process = process
        self._on_progress = on_progress
        self._rest = b""
        self.report: LoadReport | None = None
        self.ended = False

    def send(self, line: bytes) -> None:
        stdin = self._process.stdin
        with contextlib.suppress(BrokenPipeError):  # it died at once: its standard error says why
            if stdin is not None:
                stdin.write(line)
                stdin.flush()

    def follow(self, alive: Callable[[], bool], grace_s: float) -> bool:
        """True when the worker was told to stop, since `alive` said no. Gives up after the grace."""
        give_up = float("inf")
        stdout: Any = self._process.stdout
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            ask_at = time.monotonic() + _POLL_S
            while (now := time.monotonic()) < give_up:
                if now >= ask_at:
                    ask_at = now + _POLL_S
                    if give_up == float("inf") and not alive():
                        self._process.terminate()
                        give_up = now + grace_s
                if selector.select(max(0.0, min(ask_at, give_up) - now)) and not self._hear(stdout.fileno()):
                    break
        return give_up < float("inf")

    def _hear(self, fd: int) -> bool:
        data = os.read(fd, 1 << 20)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            said = codec.from_json(line, _Said)
            self.ended = self.ended or said.end
            self.report = said.report or self.report
            if said.done is not None and self._on_progress is not None:
                self._on_progress(said.done, said.of, said.tokens)
        return bool(data)
