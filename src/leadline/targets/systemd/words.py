"""Words of a unit's lines as systemd cuts them: quotes, C escapes, `%` specifiers; and words written for it.

A word is read in three passes, in this order: quotes and escapes, specifiers, variables. Each leaves Pieces, which know
which part of the raw word they come from, so that a part of a word can be changed and the rest kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from leadline.targets.systemd.unitfile import BLANK, valid

SPECIFIERS = frozenset("aAbBcCdDEfgGhHiIjJlLmMnNopPqrRsStTuUvVwWyY")
"""Letters that stand for something. Any other letter or digit behind a % is refused; before the rest a % is itself."""

_ESCAPE = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{3})|([abfnrtvs\\\"'])")
_SIMPLE = dict(zip("abfnrtvs\\\"'", "\a\b\f\n\r\t\v \\\"'", strict=True))
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\a": "\\a", "\b": "\\b", "\f": "\\f", "\v": "\\v"}
_PLAIN = re.compile(r"[\w./:=,+@~^-]+", re.ASCII)


class Unreadable(ValueError):
    """The line cannot be cut into words: a quote without its end, or (`escape`) an escape that there is not."""

    def __init__(self, *, escape: bool = False) -> None:
        self.escape = escape
        super().__init__("unknown escape" if escape else "unbalanced quotes")


class Piece(msgspec.Struct, frozen=True):
    """What raw[start:end] stands for, inside of which quotes. `name` = what it refers to: `V`, or `%n`; "" = itself."""

    text: str
    start: int
    end: int
    quote: str
    name: str = ""


class Cut(msgspec.Struct, frozen=True):
    """One word of a line: its pieces (places in the line), where it begins and ends, where the next one begins.

    `relaxed` = it has escapes that there are not, which stand for themselves.
    """

    pieces: tuple[Piece, ...]
    start: int
    end: int
    next: int
    relaxed: bool = False


def text_of(pieces: Sequence[Piece]) -> str:
    """Bytes written as escapes join to characters."""
    text = "".join(p.text for p in pieces)
    return text if text.isascii() else text.encode(errors="surrogateescape").decode(errors="surrogateescape")


def cut(line: str, at: int, *, strict: bool = False) -> Cut | None:
    """The next word; None at the end of the line. Raises Unreadable."""
    while line[at : at + 1] and line[at] in BLANK:
        at += 1
    if at >= len(line):
        return None
    pieces: list[Piece] = []
    quote, i, relaxed = "", at, False
    while i < len(line) and (quote or line[i] not in BLANK):
        if line[i] == "\\":
            found = _unescaped(line, i + 1)
            if found is None and strict:
                raise Unreadable(escape=True)
            relaxed = relaxed or found is None
            new = [Piece(found[0], i, found[1], quote)] if found else _as_they_are(line, i, quote)
            pieces += new
            i = new[-1].end
            continue
        if line[i] == quote or (not quote and line[i] in "'\""):
            quote = "" if quote else line[i]
        else:
            pieces.append(Piece(line[i], i, i + 1, quote))
        i += 1
    if quote:
        raise Unreadable
    end = i
    while i < len(line) and line[i] in BLANK:
        i += 1
    return Cut(tuple(pieces), at, end, i, relaxed)


def _as_they_are(line: str, at: int, quote: str) -> list[Piece]:
    """A backslash, and the character behind it when there is one."""
    return [Piece(char, i, i + 1, quote) for i, char in enumerate(line[at : at + 2], at)]


class Specified(msgspec.Struct, frozen=True):
    """`unknown` = letters that nobody told us the text of, `wrong` = those that stand for nothing: left as they are."""

    pieces: tuple[Piece, ...]
    unknown: str = ""
    wrong: str = ""


def specified(pieces: Sequence[Piece], specifiers: Mapping[str, str]) -> Specified:
    """With specifiers replaced."""
    out: list[Piece] = []
    unknown = wrong = ""
    i = 0
    while i < len(pieces):
        piece = pieces[i]
        letter = pieces[i + 1].text if piece.text == "%" and i + 1 < len(pieces) else ""
        if letter == "%" or letter in SPECIFIERS:
            text = "%" if letter == "%" else specifiers.get(letter)
            if text is None:
                unknown += letter
                text = f"%{letter}"
            name = "" if letter == "%" else f"%{letter}"
            out.append(Piece(text, piece.start, pieces[i + 1].end, piece.quote, name))
            i += 2
        elif letter:
            wrong += letter if letter.isascii() and letter.isalnum() else ""
            out += pieces[i : i + 2]
            i += 2
        else:
            out.append(piece)
            i += 1
    return Specified(tuple(out), unknown, wrong)


def tame(raw: str) -> str:
    """The same word without escapes that there are not: systemd reads the same and no longer warns."""
    out, i = "", 0
    while i < len(raw):
        if raw[i] != "\\":
            out += raw[i]
            i += 1
            continue
        found = _unescaped(raw, i + 1)
        if found is not None:
            out += raw[i : found[1]]
            i = found[1]
            continue
        after = raw[i + 1 : i + 2]
        out += "\\\\" + {" ": "\\s", "\t": "\\t"}.get(after, after)
        i += 2
    return out


def quoted(text: str, *, dollars: bool = True) -> str:
    """A word for systemd that means exactly this text; `dollars` = variables are replaced where it will stand."""
    if _PLAIN.fullmatch(text):
        return text
    quote = "'" if '"' in text and "'" not in text else '"'
    return f"{quote}{escaped(text, quote, dollars=dollars)}{quote}"


def escaped(text: str, quote: str, *, dollars: bool) -> str:
    """The text inside of these quotes, or of none."""
    return "".join(_written(char, quote, dollars) for char in text)


def _written(char: str, quote: str, dollars: bool) -> str:
    if char == "\\" or (char in "'\"" and (char == quote or not quote)):
        return "\\" + char
    if char == "%" or (char == "$" and dollars):
        return char * 2
    if char in _NAMED:
        return _NAMED[char]
    if char == " " and not quote:
        return "\\s"
    if char < " " or char == "\x7f" or not valid(char):
        return "".join(f"\\x{byte:02x}" for byte in char.encode(errors="surrogateescape"))
    return char


def _unescaped(line: str, at: int) -> tuple[str, int] | None:
    """What the escape behind a backslash stands for, and where it ends; None when there is no such escape."""
    found = _ESCAPE.match(line, at)
    if found is None:
        return None
    byte, short, long, octal, simple = found.groups()
    if simple:
        return _SIMPLE[simple], found.end()
    code = int(octal, 8) if octal else int(byte or short or long, 16)
    if not code or (octal and code > 255) or (long and (code > 0x10FFFF or not valid(chr(code)))):
        return None
    raw = bytes([code]) if byte or octal else chr(code).encode(errors="surrogatepass")
    return raw.decode(errors="surrogateescape"), found.end()
