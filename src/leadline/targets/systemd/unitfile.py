"""The lines of a unit file, cut as systemd cuts them, with the place in the file of every character.

A line ends with LF, CR, both, or NUL. One that ends with an odd number of backslashes goes on in the next line that is
no comment; the last of them counts as a blank. A comment is a whole line, and no backslash makes it longer.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator

import msgspec

BLANK = " \t\n\r"
_BOM = "\ufeff"
_END = re.compile(r"(?:\r\n|\n\r|\r|\n)\0?|\0")


class Entry(msgspec.Struct, frozen=True):
    """`key = value` in a section. `offsets[i]` = where the i-th character of the value begins in the file, in bytes;
    the last one is where the value ends. `line` counts from 1."""

    section: str
    key: str
    value: str
    path: str
    line: int
    offsets: tuple[int, ...]


class UnitFile(msgspec.Struct, frozen=True):
    """`problems` = lines that systemd ignores, and why; `fatal` = why it refuses the whole file, "" when it does not.
    `starts` = where each line begins, in bytes."""

    path: str
    entries: tuple[Entry, ...]
    starts: tuple[int, ...]
    problems: tuple[str, ...] = ()
    fatal: str = ""

    def line(self, offset: int) -> int:
        return bisect_right(self.starts, offset)


class _Line(msgspec.Struct, frozen=True):
    text: str
    start: int
    """In bytes."""
    number: int


def parse(path: str, text: str) -> UnitFile:
    """Undecodable bytes of the file stand in the text as by `surrogateescape`. Raises nothing."""
    lines = tuple(_physical(text))
    entries: list[Entry] = []
    problems: list[str] = []
    fatal = ""
    section: str | None = None
    for line, (chars, offsets) in _logical(lines):
        whole = chars.strip(BLANK)
        where = f"{path}:{line.number}"
        if not whole:
            continue
        if not valid(whole):
            fatal = f"{where} is no valid UTF-8"
            break
        if whole.startswith("["):
            if not whole.endswith("]"):
                fatal = f"{where}: invalid section header {whole!r}"
                break
            section = whole[1:-1]
        elif section is None:
            problems.append(f"{where}: assignment outside of a section, ignored")
        elif "=" not in whole:
            problems.append(f"{where}: a line without '=', ignored")
        else:
            key, _, value = chars.partition("=")
            if not key.strip(BLANK):
                problems.append(f"{where}: nothing before '=', ignored")
                continue
            inner = value.strip(BLANK)
            at = len(key) + 1 + (len(value) - len(value.lstrip(BLANK)) if inner else len(value))
            places = offsets[at : at + len(inner) + 1]
            if inner:  # the value ends with its last character, not where a continued line goes on
                places = (*places[:-1], places[-2] + len(inner[-1].encode(errors="surrogateescape")))
            entries.append(Entry(section, key.strip(BLANK), inner, path, line.number, places))
    return UnitFile(path, tuple(entries), tuple(line.start for line in lines), tuple(problems), fatal)


def valid(text: str) -> bool:
    """Whether systemd takes it for UTF-8: it refuses what is no character, too."""
    return not any(
        0xD800 <= (c := ord(char)) <= 0xDFFF or 0xFDD0 <= c <= 0xFDEF or c & 0xFFFE == 0xFFFE for char in text
    )


def _physical(text: str) -> Iterator[_Line]:
    at = start = number = 0
    while at < len(text):
        end = _END.search(text, at)
        stop = end.start() if end else len(text)
        number += 1
        yield _Line(text[at:stop], start, number)
        after = end.end() if end else stop
        start += len(text[at:after].encode(errors="surrogateescape"))
        at = after


def _logical(lines: tuple[_Line, ...]) -> Iterator[tuple[_Line, tuple[str, tuple[int, ...]]]]:
    """Each assignment or header: the line where it begins, its characters, and where these stand, its end too."""
    first: _Line | None = None
    chars: list[str] = []
    offsets: list[int] = []
    marked = False
    end = 0
    for line in lines:
        text, start = line.text, line.start
        if text.lstrip(BLANK)[:1] in ("#", ";"):
            continue
        if not marked and text.startswith(_BOM):
            marked, text, start = True, text[1:], start + len(_BOM.encode())
        first = first or line
        at = start
        for char in text:
            chars.append(char)
            offsets.append(at)
            at += len(char.encode(errors="surrogateescape"))
        end = at
        if (len(text) - len(text.rstrip("\\"))) % 2:
            chars[-1] = " "
            continue
        yield first, ("".join(chars), (*offsets, end))
        first, chars, offsets = None, [], []
    if first is not None:
        yield first, ("".join(chars), (*offsets, end))
