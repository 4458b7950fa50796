"""What `[ ... ]`, `[[ ... ]]` and the patterns of `case` come to, when everything in them is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from fnmatch import fnmatchcase

from leadline.dialect.opaque import is_opaque
from leadline.dialect.shellvalues import Scope
from leadline.dialect.shellwords import Text, Token


class Truth(Enum):
    """How a command ended. RAN = not a test: taken for a success, but not when something waits for its failure."""

    NO = 0
    RAN = 1
    UNSURE = 2
    YES = 3

    def denied(self) -> Truth:
        return {Truth.YES: Truth.NO, Truth.NO: Truth.YES}.get(self, Truth.UNSURE)


_TEXT: dict[str, Callable[[str, str], bool]] = {
    "=": lambda a, b: a == b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}
_NUMBER: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
}
_ONE: dict[str, Callable[[str], bool]] = {"-z": lambda a: not a, "-n": lambda a: bool(a)}


def truth_of(tokens: Sequence[Token], scope: Scope) -> Truth:
    """Of the words between the brackets. A pattern, a file, a `&&` inside: unsure."""
    if any(t.op for t in tokens):
        return Truth.UNSURE
    words = [w.value for t in tokens for w in scope.words(t)]
    if any(is_opaque(w) for w in words):
        return Truth.UNSURE
    if words[:1] == ["!"]:
        return _compare(words[1:]).denied()
    return _compare(words)


def matches(subject: str, pattern: Token) -> Truth:
    """Whether the text of a `case` is that of a pattern without variables."""
    if is_opaque(subject) or not all(isinstance(p, Text) for p in pattern.pieces) or pattern.name:
        return Truth.UNSURE
    text = "".join(
        p.text.replace("[", "[[]").replace("*", "[*]").replace("?", "[?]") if p.quoted else p.text
        for p in pattern.pieces
        if isinstance(p, Text)
    )
    return _truth(fnmatchcase(subject, text))


def _compare(words: Sequence[str]) -> Truth:
    if len(words) == 3 and words[1] in _TEXT:
        return _truth(_TEXT[words[1]](words[0], words[2]))
    if len(words) == 3 and words[1] in _NUMBER:
        try:
            return _truth(_NUMBER[words[1]](int(words[0]), int(words[2])))
        except ValueError:
            return Truth.UNSURE
    if len(words) == 2 and words[0] in _ONE:
        return _truth(_ONE[words[0]](words[1]))
    if len(words) == 1 and not words[0].startswith("-"):
        return _truth(bool(words[0]))
    return Truth.UNSURE


def _truth(yes: bool) -> Truth:
    return Truth.YES if yes else Truth.NO
