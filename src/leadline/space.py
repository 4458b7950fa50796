"""What may be tuned: Knob, Space, and the Setting that names one point of it."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping

import msgspec

Value = bool | int | float | str

_BARE = re.compile(r"[A-Za-z_./:@%+,-][\w./:@%+,-]*")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_WORDS = {"true": True, "false": False}


class Setting:
    """One value per knob: canonical (sorted by name), immutable, hashable, printed as `depth=4 max_running=64`.

    `Setting.parse(str(s)) == s` for every setting. Numbers and true/false print bare; a text that would read as
    something else prints as a JSON string. (A plain class: the codec stores it as its text.)
    """

    __slots__ = ("values",)
    values: tuple[tuple[str, Value], ...]

    def __init__(self, values: tuple[tuple[str, Value], ...] = ()) -> None:
        object.__setattr__(self, "values", values)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a setting does not change")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Setting) and repr(self.values) == repr(other.values)

    def __hash__(self) -> int:
        return hash(repr(self.values))

    def __repr__(self) -> str:
        return f"Setting({self!s})"

    @classmethod
    def of(cls, values: Mapping[str, Value] | None = None, /, **named: Value) -> Setting:
        both = {**(values or {}), **named}
        for name, value in both.items():
            if not name or re.search(r"[\s=\"]", name):
                raise ValueError(f"a knob's name has no blanks, quotes or '=': {name!r}")
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{name} must be a finite number, not {value}")
        return cls(tuple(sorted(both.items())))

    @classmethod
    def parse(cls, text: str) -> Setting:
        """`depth=4 spec_method=ngram-simple` -> Setting. Raises ValueError that shows the part it cannot read."""
        values: dict[str, Value] = {}
        rest = text.strip()
        while rest:
            name, eq, tail = rest.partition("=")
            if not eq or not name or re.search(r"\s", name):
                raise ValueError(f"a setting is written name=value [name=value ...], not {rest!r}")
            if tail.startswith('"'):
                value, end = json.JSONDecoder().raw_decode(tail)
                rest = tail[end:]
            else:
                word, _, rest = tail.partition(" ")
                value = _read(word)
            if name in values:
                raise ValueError(f"{name} is given twice in {text!r}")
            values[name] = value
            rest = rest.strip()
        return cls.of(values)

    def __str__(self) -> str:
        return " ".join(f"{k}={_write(v)}" for k, v in self.values)

    def __iter__(self) -> Iterator[tuple[str, Value]]:
        return iter(self.values)

    def __contains__(self, name: str) -> bool:
        return any(k == name for k, _ in self.values)

    def __getitem__(self, name: str) -> Value:
        for k, v in self.values:
            if k == name:
                return v
        raise KeyError(name)

    def get(self, name: str, default: Value | None = None) -> Value | None:
        return next((v for k, v in self.values if k == name), default)

    def integer(self, name: str) -> int | None:
        """The value of a whole-number knob, None when it is not set."""
        value = self.get(name)
        return int(value) if isinstance(value, int | float | str) else None

    @property
    def depth(self) -> int:
        """Draft tokens a round; 0 when speculation is off or not mentioned."""
        return self.integer("depth") or 0

    def merged(self, other: Setting) -> Setting:
        """This setting with the other's values on top."""
        return Setting.of({**dict(self.values), **dict(other.values)})

    def only(self, names: Iterable[str]) -> Setting:
        keep = set(names)
        return Setting(tuple((k, v) for k, v in self.values if k in keep))

    def names(self) -> tuple[str, ...]:
        return tuple(k for k, _ in self.values)


def _read(word: str) -> Value:
    if word in _WORDS:
        return _WORDS[word]
    if _NUMBER.fullmatch(word):
        return float(word) if re.search(r"[.eE]", word) else int(word)
    return word


def _write(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if _BARE.fullmatch(value) and value not in _WORDS and not _NUMBER.fullmatch(value):
        return value
    return json.dumps(value)


class Knob(msgspec.Struct, frozen=True, kw_only=True):
    """One launch option that may be tuned.

    `name` is the same for every engine (`depth`, `max_running`, ...) or `flag:--NAME` / `env:NAME`. `flag` is the
    engine's own spelling, always shown beside the name. `values` is the domain in the order the operator gave.
    """

    name: str
    values: tuple[Value, ...]
    flag: str = ""
    unit: str = ""
    changes_output: bool = False
    doc: str = ""


class Space(msgspec.Struct, frozen=True, kw_only=True):
    """The knobs of a campaign. A setting of this space has one value for each of them."""

    knobs: tuple[Knob, ...]

    def names(self) -> tuple[str, ...]:
        return tuple(k.name for k in self.knobs)

    def settings(self) -> list[Setting]:
        """Every combination, first knob slowest."""
        names = self.names()
        return [
            Setting.of(dict(zip(names, combo, strict=True)))
            for combo in itertools.product(*(k.values for k in self.knobs))
        ]

    def problem_with(self, setting: Setting) -> str | None:
        """Why a setting given by hand does not fit: a knob that is not tuned here, or one that is missing."""
        unknown = set(setting.names()) - set(self.names())
        if unknown:
            return (
                f"{', '.join(sorted(unknown))} is not tuned in this campaign; its knobs are {', '.join(self.names())}"
            )
        missing = set(self.names()) - set(setting.names())
        return f"no value for {', '.join(sorted(missing))}" if missing else None
