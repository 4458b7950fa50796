"""The journal: one line of JSON per event, in order; the only state of a campaign.

Guarantees. An event is on disk (fsync of the file, and of the folder when the file is new) before `append` returns, so
that intent is recorded before its effect. A torn last line (no newline: we died while writing) is cut on open, and
said. A bad line anywhere else is refused with its number: nothing is skipped silently. One writer: the lock names its
owner and reason, and ends with the process. Replaying the lines gives the campaign's whole state.
"""

from __future__ import annotations

import errno
import fcntl
import getpass
import os
import socket
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import msgspec

from leadline.codec import from_json, reader, to_json
from leadline.errors import JournalError
from leadline.journal.events import AnyEvent
from leadline.journal.ledger import Ledger

NAME = "journal.jsonl"
_read_event = reader(AnyEvent)


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """A journal that was read. `torn` = the bytes after the last newline."""

    ledger: Ledger
    entries: tuple[AnyEvent, ...]
    good_bytes: int
    torn: bytes = b""


def replay(path: Path) -> Replay:
    """Read without a lock and without repairing. An absent file is an empty campaign.

    Raises JournalError with the number of a line that is not ours or cannot follow.
    """
    data = path.read_bytes() if path.exists() else b""
    *lines, torn = data.split(b"\n")
    ledger = Ledger()
    entries: list[AnyEvent] = []
    for number, line in enumerate(lines, 1):
        try:
            event: AnyEvent = _read_event(line)
            ledger.apply(event)
        except (ValueError, JournalError) as error:
            raise JournalError(
                f"{path}: line {number} cannot be trusted: {error}. Nothing was changed. The events before it are "
                f"good: to go on from there, keep a copy and remove this line and those after it."
            ) from error
        entries.append(event)
    return Replay(ledger=ledger, entries=tuple(entries), good_bytes=len(data) - len(torn), torn=torn)


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds a campaign."""

    pid: int
    host: str
    user: str
    reason: str
    since: str

    def __str__(self) -> str:
        return f"{self.reason}, pid {self.pid} on {self.host} ({self.user}), since {self.since}"


class Journal:
    """The one writer. Use as a context manager; `watch` is called with every event after it is safe on disk."""

    def __init__(
        self,
        path: Path,
        *,
        reason: str,
        utc: Callable[[], str],
        shield: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """Lock, read, cut a torn tail. A stop signal waits (`shield`) while an event is written.

        Raises JournalError when somebody else holds it or a line cannot be trusted.
        """
        self.path = path
        self.watch: Callable[[AnyEvent], None] = lambda event: None
        self._utc, self._shield = utc, shield
        self._broken = ""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(path.with_suffix(".lock"), reason, utc())
        try:
            read = replay(path)
            self.ledger = read.ledger
            self.repaired = ""
            new = not path.exists()
            self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            if read.torn:
                os.ftruncate(self._fd, read.good_bytes)
                self.repaired = f"cut {len(read.torn)} bytes of an unfinished last line"
            os.fsync(self._fd)
            if new:
                _sync_folder(path.parent)
        except BaseException:
            os.close(self._lock)
            raise

    def append(self, event: AnyEvent) -> AnyEvent:
        """Check that the event may follow, write it, wait until it is on disk, then tell the watcher."""
        with self._shield():
            if self._broken:
                raise JournalError(f"{self.path}: an event before this one could not be written: {self._broken}")
            event = msgspec.structs.replace(event, seq=self.ledger.events + 1, at=self._utc())
            self.ledger.apply(event)
            self._write(to_json(event) + b"\n")
            self.watch(event)
        return event

    def _write(self, line: bytes) -> None:
        """All of it and on disk, or nothing and never again: a gap would make the whole journal unreadable."""
        size = os.fstat(self._fd).st_size
        try:
            if os.write(self._fd, line) != len(line):
                raise OSError(errno.ENOSPC, "only a part of the event fitted")
            os.fsync(self._fd)
        except OSError as error:
            self._broken = error.strerror or str(error)
            os.ftruncate(self._fd, size)
            raise JournalError(f"{self.path}: {self._broken}; free some space and run again") from error

    def close(self) -> None:
        os.close(self._fd)
        os.close(self._lock)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def owner_of(path: Path) -> Owner | None:
    """Who holds the journal now; None when nobody does."""
    lock = path.with_suffix(".lock")
    if not lock.exists():
        return None
    fd = os.open(lock, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        owner = _read_owner(fd)
        return owner if owner is None or not _gone(owner) else None
    finally:
        os.close(fd)


def _lock(path: Path, reason: str, since: str) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    if not _try_lock(fd):
        owner = _read_owner(fd)
        os.close(fd)
        raise JournalError(
            f"{path.parent} is held by another process: {owner or 'unknown'}. Wait for it, or `leadline stop` it."
        )
    owner = Owner(pid=os.getpid(), host=socket.gethostname(), user=getpass.getuser(), reason=reason, since=since)
    os.ftruncate(fd, 0)
    os.pwrite(fd, to_json(owner), 0)
    return fd


def _gone(owner: Owner) -> bool:
    """Whether that process is known to be dead: a child of it, killed between fork and exec, may hold its lock on."""
    return (
        owner.host == socket.gethostname() and not Path(f"/proc/{owner.pid}").exists() and Path("/proc/self").exists()
    )


def _try_lock(fd: int) -> bool:
    """Half a second of patience: `owner_of` in another process holds the lock for a moment to look."""
    for _ in range(10):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(0.05)
    return False


def _read_owner(fd: int) -> Owner | None:
    try:
        return from_json(os.pread(fd, 4096, 0), Owner)
    except ValueError:
        return None


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
