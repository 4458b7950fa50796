"""JSON to and from our values: the one place that knows how each is spelt.

Values that print as one word (`Setting`, `Cell`) are stored as that word, so that the journal can be read and searched
by a person. A type takes part by having `__str__` and a classmethod `parse(text)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar, runtime_checkable

import msgspec

T = TypeVar("T")


@runtime_checkable
class Word(Protocol):
    """A value that is stored as its own text."""

    @classmethod
    def parse(cls, text: str) -> Word: ...


def _enc(value: Any) -> Any:
    if isinstance(value, Word):
        return str(value)
    raise TypeError(f"cannot store a {type(value).__name__}")


def _dec(kind: type, value: Any) -> Any:
    if kind is object:  # msgspec knows `Any`, not `object`
        return value
    if isinstance(value, str) and hasattr(kind, "parse"):
        return kind.parse(value)
    raise TypeError(f"cannot read a {kind.__name__} from {value!r}")


def to_json(value: Any) -> bytes:
    """Compact JSON, keys in field order, no newline inside."""
    return msgspec.json.encode(value, enc_hook=_enc)


def to_pretty(value: Any) -> str:
    """The same, indented, for people."""
    return msgspec.json.format(to_json(value), indent=2).decode()


def from_json(data: bytes | str, kind: type[T]) -> T:
    """Raises msgspec.ValidationError (a ValueError) that names the path of what is wrong."""
    return msgspec.json.decode(data, type=kind, dec_hook=_dec)


def reader(kind: Any) -> Callable[[bytes], Any]:
    """`from_json` for one type, unions included, prepared once."""
    return msgspec.json.Decoder(kind, dec_hook=_dec).decode


def to_builtins(value: Any) -> Any:
    """Dicts, lists and numbers, as `to_json` would write them."""
    return msgspec.to_builtins(value, enc_hook=_enc, str_keys=True)
