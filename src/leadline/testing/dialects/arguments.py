"""Command lines as Python's argparse reads them, for the lab: which words it knows, and what it says to others."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

_FLAG = re.compile(r"-{1,2}[A-Za-z].*", re.DOTALL)
_T = TypeVar("_T")


class ArgumentError(ValueError):
    """What the program says to a command line that it refuses, without its own name. It ends with exit code 2."""


class Grammar(NamedTuple):
    """`known` = all flags; `bare` = those without a value, `many` = with one or more; `aliases` -> main names."""

    known: frozenset[str]
    bare: frozenset[str]
    many: frozenset[str]
    aliases: Mapping[str, str]


class Given:
    """Options as they were given; the last one counts. `positional` = words of no option."""

    def __init__(self, pairs: Sequence[tuple[str, tuple[str, ...]]], positional: Sequence[str]) -> None:
        self._pairs, self.positional = pairs, tuple(positional)

    def has(self, name: str) -> bool:
        return any(n == name for n, _ in self._pairs)

    def words(self, name: str) -> tuple[str, ...]:
        return next((v for n, v in reversed(self._pairs) if n == name), ())

    def text(self, name: str) -> str | None:
        found = self.words(name)
        return found[-1] if found else None

    def integer(self, name: str) -> int | None:
        return self._as(name, int, "int")

    def number(self, name: str) -> float | None:
        return self._as(name, float, "float")

    def _as(self, name: str, kind: Callable[[str], _T], called: str) -> _T | None:
        text = self.text(name)
        try:
            return None if text is None else kind(text)
        except ValueError:
            raise ArgumentError(f"argument {name}: invalid {called} value: {text!r}") from None


def read(argv: Sequence[str], grammar: Grammar, *, positionals: int = 0) -> Given:
    """Raises ArgumentError in argparse's words. A prefix of one flag alone stands for it."""
    pairs: list[tuple[str, tuple[str, ...]]] = []
    positional: list[str] = []
    unknown: list[str] = []
    words = list(argv)
    while words:
        word = words.pop(0)
        if not _FLAG.fullmatch(word):
            (positional if len(positional) < positionals else unknown).append(word)
            continue
        name, inline, value = word.partition("=")
        name = _resolved(name, grammar)
        if name not in grammar.known:
            unknown.append(word)
        elif name in grammar.bare:
            if inline:
                raise ArgumentError(f"argument {name}: ignored explicit argument {value!r}")
            pairs.append((grammar.aliases.get(name, name), ()))
        else:
            found = [value] if inline else _values(words, grammar.many if name in grammar.many else ())
            if not found:
                raise ArgumentError(f"argument {name}: expected {'at least ' * (name in grammar.many)}one argument")
            pairs.append((grammar.aliases.get(name, name), tuple(found)))
    if unknown:
        raise ArgumentError(f"unrecognized arguments: {' '.join(unknown)}")
    return Given(pairs, positional)


def _resolved(name: str, grammar: Grammar) -> str:
    if name in grammar.known:
        return name
    found = sorted(n for n in grammar.known if n.startswith(name)) if name.startswith("--") else []
    if len(found) > 1:
        raise ArgumentError(f"ambiguous option: {name} could match {', '.join(found)}")
    return found[0] if found else name


def _values(words: list[str], many: Sequence[str] | frozenset[str]) -> list[str]:
    """The next word; all up to the next flag where there may be many."""
    found: list[str] = []
    while words and not _FLAG.fullmatch(words[0]) and (many or not found):
        found.append(words.pop(0))
    return found
