"""The difference of two versions of a unit's file, for people: no secret of either is in it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Container

from leadline.masking import masked_words, secret_name
from leadline.targets.systemd import environment
from leadline.targets.systemd.environment import Assigned, NoText, span
from leadline.targets.systemd.unitfile import Entry, parse
from leadline.targets.systemd.words import Cut, Unreadable, cut, text_of

_ASSIGNS = re.compile(r"(\w+)=")
_REFERENCE = re.compile(r"(?:-[\w-]*[= ]?)?(?:[A-Za-z_]\w*=)?(?:\$\w+|\$\{\w+\})")


def unified(path: str, old: str, new: str, environment_files: Container[str]) -> str:
    """A unified diff; "" when nothing differs. A file without a last line end is told as `diff` does."""
    before, after = (
        [line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in _lines(text)]
        for text in (without_secrets(path, text, path in environment_files) for text in (old, new))
    )
    return "".join(difflib.unified_diff(before, after, f"a{path}", f"b{path}"))


def without_secrets(path: str, text: str, is_environment: bool) -> str:
    """The file with `<secret:NAME>` for the values of variables with a secret's name, and for what looks like one."""
    data = text.encode(errors="surrogateescape")
    places = _in_environment(path, text) if is_environment else _in_unit(path, text)
    for start, end, shown in sorted(places, reverse=True):
        data = data[:start] + shown.encode() + data[end:]
    return "".join(map(_masked_line, _lines(data.decode(errors="surrogateescape"))))


def _lines(text: str) -> list[str]:
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _masked_line(line: str) -> str:
    body = line.rstrip("\r\n")
    key, equals, value = body.partition("=")
    if equals and key.strip().isalnum():
        return f"{key}={_masked(value)}{line[len(body) :]}"
    return _masked(body) + line[len(body) :]


def _masked(text: str) -> str:
    """As several words: of one that begins with `API_KEY=` all would be hidden."""
    return masked_words((f" {text}",), references=False)[0][1:]


def _in_environment(path: str, text: str) -> list[tuple[int, int, str]]:
    try:
        found, _ = environment.of_file(path, text)
    except NoText:
        return []
    return [(a.start, a.end, f"<secret:{a.name}>") for a in found if _secret(a)]


def _in_unit(path: str, text: str) -> list[tuple[int, int, str]]:
    out: list[tuple[int, int, str]] = []
    file = parse(path, text)
    for entry in file.entries:
        if entry.key == "Environment":
            found, problems, _ = environment.of_line(entry, {}, file.line)
            hidden = [name for name in _ASSIGNS.findall(entry.value) if secret_name(name)]
            if problems and hidden:
                out.append((entry.offsets[0], entry.offsets[-1], f"<secret:{hidden[0]}>"))
            else:
                out += [(a.start, a.end, f"{a.name}=<secret:{a.name}>") for a in found if _secret(a)]
        elif entry.key.startswith("Exec") and entry.value:
            out += _in_command(entry)
    return out


def _secret(assigned: Assigned) -> bool:
    return secret_name(assigned.name)


def _in_command(entry: Entry) -> list[tuple[int, int, str]]:
    """The words that `masked_words` changes, each as a whole but for scripts, whose lines are masked one by one."""
    words: list[Cut] = []
    at = 0
    try:
        while (word := cut(entry.value, at)) is not None:
            words.append(word)
            at = word.next
    except Unreadable:
        return []
    texts = [text_of(w.pieces) for w in words]
    out: list[tuple[int, int, str]] = []
    for word, text, shown in zip(words, texts, masked_words(texts), strict=True):
        if text != shown and not _REFERENCE.fullmatch(text) and not any(c in text for c in " \n"):
            out.append((*span(entry, word), shown))
    return out
