"""What a key may hold: a kind says it in words, and reads a value or reports why it cannot. Here: the general ones."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from leadline.config.review import Review, found, listed, meant
from leadline.config.spec import Hours, Names
from leadline.space import Value

NAME = re.compile(r"[A-Za-z][\w-]*", re.ASCII)


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """`read(review, key, value)` returns the value for the spec; when it reported a problem, what it returns is unused.

    `choices` = the names that are allowed, where they are not known before the plug-ins are.
    """

    words: str
    read: Callable[[Review, str, object], Any]
    choices: Callable[[Names], Sequence[str]] | None = None

    def allowed(self, names: Names) -> str:
        return f"one of {listed(self.choices(names))}" if self.choices else self.words


def simple(words: str, accept: Callable[[object], Any]) -> Kind:
    """A kind whose `accept` returns None for what it refuses."""

    def read(review: Review, key: str, value: object) -> Any:
        good = accept(value)
        if good is None:
            review.wrong(key, found(value), words)
        return good

    return Kind(words=words, read=read)


def as_int(value: object) -> int | None:
    """TOML's whole numbers have 64 bits; true and false are none."""
    ok = isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
    return value if ok and isinstance(value, int) else None


def as_float(value: object) -> float | None:
    """A finite number."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return None if (whole := as_int(value)) is None else float(whole)


def as_text(value: object) -> str | None:
    """Any text that a command line or a variable can carry; it may be empty."""
    return value if isinstance(value, str) and "\0" not in value else None


def _filled(value: object) -> str | None:
    text = as_text(value)
    return text if text and text.strip() else None


def _scalar(value: object) -> Value | None:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return as_text(value)
    return as_float(value) if isinstance(value, float) else as_int(value)


def whole(low: int, high: int | None = None) -> Kind:
    words = f"a whole number, {low} or more" if high is None else f"a whole number from {low} to {high}"

    def accept(value: object) -> int | None:
        number = as_int(value)
        return number if number is not None and low <= number and (high is None or number <= high) else None

    return simple(words, accept)


def number(low: float, high: float | None = None, *, above: bool = False) -> Kind:
    """A number from `low` to `high`, both included; with `above`, `low` itself is refused."""
    words = f"a number above {low:g}" if above else f"a number, {low:g} or more"
    if high is not None:
        words = f"a number above {low:g}, at most {high:g}" if above else f"a number from {low:g} to {high:g}"

    def accept(value: object) -> float | None:
        number = as_float(value)
        if number is None or number < low or (above and number == low) or (high is not None and number > high):
            return None
        return number

    return simple(words, accept)


def one_of(words: str, choices: Callable[[Names], Sequence[str]]) -> Kind:
    def read(review: Review, key: str, value: object) -> str | None:
        allowed = choices(review.names)
        if isinstance(value, str) and value in allowed:
            return value
        review.wrong(key, found(value), f"one of {listed(allowed)}", meant(value, allowed))
        return None

    return Kind(words=words, read=read, choices=choices)


def list_of(item: Kind, what: str, *, alone: bool = False) -> Kind:
    """At least one item, all distinct; with `alone`, one text may stand without brackets."""
    words = f"a list of {what}, at least one" + (", or one alone" if alone else "")

    def read(review: Review, key: str, value: object) -> tuple[Any, ...] | None:
        if alone and isinstance(value, str):
            value = [value]
        if not isinstance(value, list) or not value:
            review.wrong(key, found(value), words)
            return None
        return distinct(review, key, value, [item.read(review, f"{key}[{i}]", raw) for i, raw in enumerate(value)])

    return Kind(words=words, read=read)


def distinct(review: Review, key: str, raw: list[object], values: list[Any]) -> tuple[Any, ...]:
    """The values that could be read; one that was there before is reported."""
    good: list[Any] = []
    for i, value in enumerate(values):
        if value is not None and value in good:
            review.wrong(f"{key}[{i}]", f"{found(raw[i])} a second time", "each value once", "remove one")
        elif value is not None:
            good.append(value)
    return tuple(good)


def _hours(value: object) -> Hours | None:
    try:
        return Hours.parse(value) if isinstance(value, str) else None
    except ValueError:
        return None


TEXT = simple("a text that is not empty", _filled)
FLAG = simple("true or false", lambda value: value if isinstance(value, bool) else None)
SCALAR = simple("a number, a text, true or false", _scalar)
HOURS = list_of(
    simple('"HH:MM-HH:MM", two different times from 00:00 to 24:00, like "22:00-06:00"', _hours),
    'spans "HH:MM-HH:MM"',
    alone=True,
)
