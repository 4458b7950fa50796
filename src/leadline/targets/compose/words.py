"""Words of a compose file: `${NAME:-default}` and `$$` in them, and which of them stand for which word in force."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

import msgspec

from leadline.errors import InputError
from leadline.launch import LaunchFile
from leadline.masking import masked_words

_DOLLAR = re.compile(r"\$\$|\$[A-Za-z_]\w*")
_DEFAULT = re.compile(r"(\$\{[A-Za-z_]\w*:?-)(.*)\}", re.DOTALL)
_REFERENCE = re.compile(r"\$[A-Za-z_]\w*|\$\{[A-Za-z_]\w*(?::?[?+].*)?\}", re.DOTALL)
_MASK = re.compile(r"<secret:[^>]*>")
_ENDS = frozenset(";&|<>")
_QUOTES = {"'": "'", '"': '"', "`": "`", "(": ")"}
_PREFIX = "LEADLINE_SECRET_"


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """A secret that stays in the operator's file: a variable that the host fills from these bytes of it."""

    variable: str
    path: str
    start: int
    length: int


def escaped(word: str) -> str:
    """A word that means itself in a compose file."""
    return word.replace("$", "$$")


def unescaped(word: str) -> str:
    """A word of `config`, which escapes every dollar that it prints."""
    return word.replace("$$", "$")


def words_of(value: object) -> tuple[str, ...] | None:
    """`command` or `entrypoint` as `config` prints it: texts in a list. None = not given. Raises InputError."""
    if value is None:
        return None
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return tuple(map(unescaped, value))
    raise InputError("compose printed a command that is no list of words: compose 2 or later is needed")


def raw_words(value: object, resolved: Sequence[str]) -> tuple[str, ...]:
    """Each resolved word as its operator wrote it, references and all; where that is not certain, escaped."""
    plain = tuple(map(escaped, resolved))
    raw = spans(value)[0] if isinstance(value, str) else value
    if not isinstance(raw, list | tuple) or len(raw) != len(plain):
        return plain
    return tuple(str(r) if _may_be(str(r), word) else escaped(word) for r, word in zip(raw, resolved, strict=True))


def _may_be(raw: str, word: str) -> bool:
    """Whether what is literal in it is in the word, in that order."""
    parts, at = [""], 0
    for start, end in references(raw):
        parts[-1] += raw[at:start].replace("$$", "$")
        parts.append("")
        at = end
    parts[-1] += raw[at:].replace("$$", "$")
    return re.fullmatch(".*?".join(map(re.escape, parts)), word, re.DOTALL) is not None


def references(text: str) -> list[tuple[int, int]]:
    """Where each `$NAME` and `${...}` begins and ends, the outermost ones."""
    found: list[tuple[int, int]] = []
    at = 0
    while (at := text.find("$", at)) >= 0:
        if text.startswith("${", at):
            end = _closing(text, at + 2)
            found.append((at, end))
            at = end
        elif m := _DOLLAR.match(text, at):
            if m[0] != "$$":
                found.append(m.span())
            at = m.end()
        else:
            at += 1
    return found


def _closing(text: str, at: int) -> int:
    depth = 1
    while at < len(text) and depth:
        if text.startswith("${", at):
            depth, at = depth + 1, at + 2
        else:
            depth, at = depth - (text[at] == "}"), at + 1
    return at


def spans(text: str) -> tuple[list[str], list[tuple[int, int]]]:
    """A command given as one text, cut as compose cuts it, and where each word stands; references are left whole.

    Compose stops at the first `;`, `&`, `|`, `<` or `>` outside of quotes; `$(...)` and `...` in backquotes are one.
    """
    whole = dict(references(text))
    words: list[str] = []
    places: list[tuple[int, int]] = []
    word, quote, begun, at = "", "", -1, 0
    while at < len(text):
        end = whole.get(at) or (at + 2 if text[at] == "\\" and quote != "'" else at + 1)
        piece = text[at:end]
        if at not in whole and not quote and (piece.isspace() or piece in _ENDS):
            if begun >= 0:
                words.append(word)
                places.append((begun, at))
            word, begun = "", -1
            if piece in _ENDS:
                return words, places
        else:
            begun = at if begun < 0 else begun
            turned = _turned(piece, word, quote) if at not in whole else quote
            if turned == quote or "'\"".find(turned or quote) < 0:
                word += piece[1:] if piece[0] == "\\" and quote != "'" else piece
            quote = turned
        at = end
    if begun >= 0:
        words.append(word)
        places.append((begun, len(text)))
    return words, places


def _turned(piece: str, word: str, quote: str) -> str:
    """What is closed by which sign from here on; "" = nothing is open."""
    if quote:
        return "" if piece == quote else quote
    return _QUOTES.get(piece, "") if piece != "(" or word.endswith("$") else ""


def carried(new: Sequence[str], old: Sequence[str], raw: Sequence[str]) -> tuple[str, ...]:
    """The new words for a compose file: what did not change as its operator wrote it, the rest escaped.

    Of a word that is a script, what did not change of it is kept too.
    """
    out: list[str] = []
    for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, list(old), list(new), autojunk=False).get_opcodes():
        if tag == "equal":
            out += raw[i1:i2]
        elif i2 - i1 == j2 - j1:
            out += map(_carried_within, new[j1:j2], old[i1:i2], raw[i1:i2])
        else:
            out += map(escaped, new[j1:j2])
    return tuple(out)


def _carried_within(new: str, old: str, raw: str) -> str:
    pieces, before, written = (re.split(r"(\s+)", text) for text in (new, old, raw))
    if len(before) == 1 or len(before) != len(written) or not all(map(_may_be, written, before)):
        return escaped(new)
    return "".join(carried(pieces, before, written))


def without_secrets(
    words: Sequence[str], files: Sequence[LaunchFile], known: Sequence[Taken] = ()
) -> tuple[tuple[str, ...], tuple[Taken, ...]]:
    """The words with a variable for each secret in clear, which the host takes out of the operator's own file.

    Raises InputError for one that stands in none of the files letter by letter.
    """
    taken = list(known)
    out: list[str] = []
    plain = [word.replace("$$", "$") for word in words]
    seen = masked_words(words, references=False), masked_words(plain, references=False)
    for word, as_shell, shown, kept in zip(words, plain, *seen, strict=True):
        out.append(word if word == shown or as_shell == kept else _hidden(word, shown, files, taken))
    return tuple(out), tuple(taken)


def _hidden(word: str, shown: str, files: Sequence[LaunchFile], taken: list[Taken]) -> str:
    found = re.fullmatch("(.+)".join(map(re.escape, _MASK.split(shown))), word, re.DOTALL)
    if found is None:
        raise InputError(_no_place(shown))
    out, at = "", 0
    for i in range(1, len(found.groups()) + 1):
        out += word[at : found.start(i)] + _reference(found[i], shown, files, taken)
        at = found.end(i)
    return out + word[at:]


def _reference(secret: str, shown: str, files: Sequence[LaunchFile], taken: list[Taken]) -> str:
    if _REFERENCE.fullmatch(secret.replace("$$", "$")):
        return secret
    if m := _DEFAULT.fullmatch(secret):
        inner = _reference(m[2], shown, files, taken) if m[2] else ""
        return m[1] + inner + "}"
    for file in files:
        at = file.content.find(secret)
        if at < 0 or "$" in secret or secret != secret.strip():
            continue
        start, length = len(file.content[:at].encode()), len(secret.encode())
        again = next((t for t in taken if (t.path, t.start, t.length) == (file.path, start, length)), None)
        if again is None:
            again = Taken(variable=f"{_PREFIX}{len(taken) + 1}", path=file.path, start=start, length=length)
            taken.append(again)
        return f"${{{again.variable}:?}}"
    raise InputError(_no_place(shown))


def _no_place(shown: str) -> str:
    return (
        f"the word {shown} holds a secret that no file of ours may hold, and it stands in none of the compose files "
        f"letter by letter: put it into .env and write ${{NAME}} in its place"
    )
