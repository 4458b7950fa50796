"""The record file: JSON Lines, a header and then one RequestRecord a line; complete or not there at all.

Format history. leadline-records-1: the first.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

import msgspec

from leadline import codec
from leadline.errors import HostError, InputError
from leadline.trial import LoadReport, RequestRecord

T = TypeVar("T")
FORMAT = "leadline-records-1"


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What a LoadReport says besides its records."""

    format: str
    window_start_ns: int
    window_end_ns: int
    clock: str
    lag_p99_ms: float
    cpu_share: float


def check_place(path: str) -> None:
    """Raises HostError when no record file could be written there: better before the load than after it."""
    folder = Path(path).parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise HostError(f"{path}: the request records cannot be written: {folder} is not a folder that we may write to")


def write_records(path: str, report: LoadReport) -> None:
    """Durable when it returns: temporary file in the same folder, fsync, rename, fsync of the folder."""
    header = Header(
        format=FORMAT,
        window_start_ns=report.window_start_ns,
        window_end_ns=report.window_end_ns,
        clock=report.clock,
        lag_p99_ms=report.lag_p99_ms,
        cpu_share=report.cpu_share,
    )
    final = Path(path)
    part = final.with_name(f".{final.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as out:
            for value in (header, *report.records):
                out.write(codec.to_json(value) + b"\n")
            out.flush()
            os.fsync(out.fileno())
        part.replace(final)
        _sync_folder(final.parent)
    except OSError as e:
        raise HostError(f"{path}: the request records cannot be written: {e.strerror}") from None
    finally:
        part.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read_records(path: str) -> LoadReport:
    """Raises InputError, with the line, for a file that is not there or not whole."""
    try:
        head, *lines = Path(path).read_bytes().splitlines()
    except OSError as e:
        raise InputError(f"{path}: the request records cannot be read: {e.strerror}") from None
    except ValueError:
        raise InputError(f"{path}: an empty file holds no request records") from None
    header = _line(path, 1, head, Header)
    if header.format != FORMAT:
        raise InputError(f"{path}: its format is {header.format[:40]!r}; this version reads {FORMAT}")
    return LoadReport(
        records=tuple(_line(path, i, line, RequestRecord) for i, line in enumerate(lines, 2)),
        window_start_ns=header.window_start_ns,
        window_end_ns=header.window_end_ns,
        clock=header.clock,
        lag_p99_ms=header.lag_p99_ms,
        cpu_share=header.cpu_share,
    )


def _line(path: str, number: int, line: bytes, kind: type[T]) -> T:
    try:
        return codec.from_json(line, kind)
    except ValueError as e:
        raise InputError(f"{path}, line {number}: not a request record: {e}") from None
