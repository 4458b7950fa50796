"""A unit's environment, and what `$V`, `${V}` and `$$` in a command come to: as systemd 252 has them.

EnvironmentFile= beats Environment=, wherever it stands; UnsetEnvironment= beats both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from leadline.masking import masked_words, secret_name
from leadline.targets.systemd.unitfile import BLANK, Entry, valid
from leadline.targets.systemd.words import Cut, Piece, Unreadable, cut, quoted, specified, text_of

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_PLAIN = re.compile(r"[\w./:=,+@%^~-](?:[\w./:=,+@%^~ -]*[\w./:=,+@%^~-])?", re.ASCII)
_IN_QUOTES = '"\\`$'
BY_SYSTEMD = re.compile(
    r"HOME|USER|LOGNAME|SHELL|PATH|LANG|LC_\w+|TERM|\w*PID|INVOCATION_ID|JOURNAL_STREAM|NOTIFY_SOCKET|WATCHDOG_USEC"
    r"|LISTEN_FDNAMES|LISTEN_FDS|(RUNTIME|STATE|CACHE|LOGS|CONFIGURATION|CREDENTIALS)_DIRECTORY|XDG_\w+|MEMORY_PRESSURE_\w+"
)
"""Variables that systemd itself gives to a service, some only to some."""


class NoText(ValueError):
    """An environment file that is no valid UTF-8: systemd does not start the unit, unless the file is optional."""


class Assigned(msgspec.Struct, frozen=True):
    """Where a variable gets its value: the bytes [start, end) of a file hold `NAME=value`, one word of an Environment=
    line, or, in an environment file (`file`), the value alone, which is written there as `raw`."""

    name: str
    value: str
    path: str
    line: int
    start: int
    end: int
    file: bool = False
    raw: str = ""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"

    def written(self, value: str) -> str:
        """What to put in place of those bytes for another value."""
        if not self.file:
            return assignment(self.name, value)
        if self.raw == f"'{self.value}'" and "'" not in value:
            return f"'{value}'"
        if _PLAIN.fullmatch(value) and self.raw == self.value:
            return value
        return '"' + re.sub(r'(["\\`$])', r"\\\1", value) + '"'


def assignment(name: str, value: str) -> str:
    """One word for an Environment= line. Variables are not replaced there, specifiers are."""
    return quoted(f"{name}={value}", dollars=False)


def secret(name: str, value: str) -> bool:
    return secret_name(name) or masked_words((value,)) != (value,)


def of_line(
    entry: Entry, specifiers: Mapping[str, str], line: Callable[[int], int]
) -> tuple[list[Assigned], list[str], list[str]]:
    """The variables of one Environment= line, what systemd ignores of it, and what is not known of it."""
    found: list[Assigned] = []
    problems: list[str] = []
    unclear: list[str] = []
    where, at = f"{entry.path}:{entry.line}", 0
    while True:
        try:
            word = cut(entry.value, at, strict=True)
        except Unreadable as why:
            return found, [*problems, f"{where}: the rest of an Environment= line has {why}, ignored"], unclear
        if word is None:
            return found, problems, unclear
        at = word.next
        read = specified(word.pieces, specifiers)
        name, equals, value = text_of(read.pieces).partition("=")
        unclear += [f"what %{letter} stands for in Environment={name}" for letter in read.unknown]
        if read.wrong:
            problems.append(f"{where}: there is no specifier %{read.wrong[0]}, Environment={name} ignored")
            continue
        if not equals or not _NAME.fullmatch(name) or not valid(value):
            problems.append(f"{where}: {name!r} in Environment= is no assignment, ignored")
            continue
        start, end = span(entry, word)
        found.append(Assigned(name, value, entry.path, line(start), start, end))


def span(entry: Entry, word: Cut) -> tuple[int, int]:
    """Where a word of the entry's value stands in its file, in bytes."""
    last = entry.offsets[word.end - 1] + len(entry.value[word.end - 1].encode(errors="surrogateescape"))
    return entry.offsets[word.start], last


def of_file(path: str, text: str) -> tuple[list[Assigned], list[str]]:
    """The variables of an environment file, and what systemd ignores of it. Raises NoText."""
    found: list[Assigned] = []
    problems: list[str] = []
    whole = text.split("\0", 1)[0]
    for name, value, start, end in _pairs(whole):
        line = whole.count("\n", 0, start) + 1
        if not valid(name) or not valid(value):
            raise NoText(f"{path}:{line} is no valid UTF-8")
        if not _NAME.fullmatch(name):
            problems.append(f"{path}:{line}: {name!r} is no name of a variable, ignored")
            continue
        first, last = (len(whole[:at].encode(errors="surrogateescape")) for at in (start, end))
        found.append(Assigned(name, value, path, line, first, last, file=True, raw=whole[start:end]))
    if re.search(r"^[ \t]*[#;].*\\\n[ \t]*[^\s#;]", whole, re.MULTILINE):
        problems.append(
            f"{path}: a comment ends with a backslash: systemd before 254 takes the next line for a part of it"
        )
    return found, problems


def _pairs(text: str) -> Iterator[tuple[str, str, int, int]]:
    """Name, value, and where the value stands, as systemd's own reader has them. Values know neither `%` nor `$`."""
    at = 0
    while at < len(text):
        char = text[at]
        if char in "#;":
            at = _after_comment(text, at)
        elif char in BLANK:
            at += 1
        else:
            stop = re.compile(r"[=\n\r]").search(text, at)
            if stop is None:
                return
            if stop[0] != "=":
                at = stop.end()
                continue
            value, start, end, after = _value(text, stop.end())
            yield text[at : stop.start()].rstrip(BLANK), value, start, end
            at = after


def _after_comment(text: str, at: int) -> int:
    while at < len(text) and text[at] not in "\n\r":
        at += 2 if text[at] == "\\" else 1
    return at + 1


def _value(text: str, at: int) -> tuple[str, int, int, int]:
    """The value, where it begins and ends, and where its line ends.

    Behind a closing quote blanks count for nothing until another character comes; then they do, but not at the end.
    """
    while at < len(text) and text[at] in " \t":
        at += 1
    start = end = at
    out, kept, plain = "", 0, False
    while at < len(text) and text[at] not in "\n\r":
        char = text[at]
        if char in "'\"" and not plain:
            inner, at = _in_quotes(text, at + 1, char)
            out += inner
            kept, end = len(out), at
        elif char == "\\":
            plain = True
            after = text[at + 1 : at + 2]
            out += "" if after in ("\n", "\r") else after
            at += 2
            kept, end = len(out), min(at, len(text))
        elif char in " \t":
            out += char if plain else ""
            at += 1
        else:
            plain = True
            out += char
            at += 1
            kept, end = len(out), at
    return out[:kept], start, end, at + 1


def _in_quotes(text: str, at: int, quote: str) -> tuple[str, int]:
    out = ""
    while at < len(text) and text[at] != quote:
        char = text[at]
        if char == "\\" and quote == '"':
            after = text[at + 1 : at + 2]
            out += after if after and after in _IN_QUOTES else "" if after in ("\n", "") else f"\\{after}"
            at += 2
        else:
            out += char
            at += 1
    return out, at + 1


def lone(text: str) -> str | None:
    """The variable that this word consists of: it comes to several words, one, or none. None = no such word."""
    return text[1:] if text[:1] == "$" and text[1:2] not in ("{", "$") else None


def references(text: str) -> Iterator[tuple[int, int, str]]:
    """Where each `${NAME}` (with its name) and each `$$` (with "") stands. `$NAME` inside of a word is no reference."""
    at = 0
    while (at := text.find("$", at)) >= 0:
        after = text[at + 1 : at + 2]
        if after == "$":
            yield at, at + 2, ""
            at += 2
        elif after == "{":
            stop = re.compile(r"[}:]|\Z").search(text, at + 2)
            end = stop.end() if stop else len(text)
            if text[end - 1 : end] == "}":
                yield at, end, text[at + 2 : end - 1]
            at = end
        else:
            at += 1


def replaced(pieces: Sequence[Piece], values: Mapping[str, str]) -> tuple[Piece, ...] | None:
    """With the variables of a word that is no lone one. None when one begins or ends within a specifier's text."""
    flat = [(char, i) for i, piece in enumerate(pieces) for char in piece.text]
    out: list[Piece] = []
    done = 0
    for start, end, name in references("".join(char for char, _ in flat)):
        first, last = flat[start][1], flat[end - 1][1]
        cuts = (start and flat[start - 1][1] == first) or (end < len(flat) and flat[end][1] == last)
        if cuts:
            return None
        out += pieces[done:first]
        whole = values.get(name, "") if name else "$"
        out.append(Piece(whole, pieces[first].start, pieces[last].end, pieces[first].quote, name))
        done = last + 1
    return (*out, *pieces[done:])


def expanded(text: str, values: Mapping[str, str]) -> tuple[str, ...]:
    """What one word of a command comes to."""
    name = lone(text)
    if name is not None:
        return split(values.get(name, ""))
    out, done = "", 0
    for start, end, found in references(text):
        out += text[done:start] + (values.get(found, "") if found else "$")
        done = end
    return (out + text[done:],)


def names(text: str) -> tuple[str, ...]:
    """The variables that a word of a command refers to."""
    name = lone(text)
    return (name,) if name is not None else tuple(found for _, _, found in references(text) if found)


def split(value: str) -> tuple[str, ...]:
    """A lone variable's value: blanks divide it, quotes hold it together, a backslash makes the next one plain."""
    words: list[str] = []
    word: str | None = None
    quote, i = "", 0
    while i < len(value):
        char = value[i]
        if char == "\\":
            word = (word or "") + value[i + 1 : i + 2]
            i += 1
        elif quote:
            quote, word = ("", word) if char == quote else (quote, (word or "") + char)
        elif char in "'\"":
            quote, word = char, word or ""
        elif char not in BLANK:
            word = (word or "") + char
        elif word is not None:
            words.append(word)
            word = None
        i += 1
    return (*words, word) if word is not None else tuple(words)
