"""Reads one table of the file against its row in the table of keys."""

from __future__ import annotations

from typing import Any

from leadline.config.review import Review, dotted, meant
from leadline.config.table import SECTIONS, Section


def read_keys(review: Review, section: Section, where: str, table: dict[str, Any]) -> dict[str, Any]:
    """The good values among a section's keys; what is unknown, missing or wrong is reported."""
    good: dict[str, Any] = {}
    known = tuple(k.name for k in section.keys)
    for name in table:
        if name not in known:
            review.unknown(dotted(where, name), known, meant_key(name, section.name, known))
    for key in section.keys:
        at = dotted(where, key.name)
        if key.name in table:
            value = key.kind.read(review, at, table[key.name])
            if value is not None:
                good[key.name] = value
        elif key.name in section.must_have():
            review.wrong(at, "nothing", key.kind.allowed(review.names))
    return good


def meant_key(word: str, home: str, choices: tuple[str, ...]) -> str:
    """A near miss of a name allowed here, or a name that belongs to another section."""
    others = [s for s in SECTIONS if s.name != home and s.shape == "one" and word in [k.name for k in s.keys]]
    return f"did you mean {others[0].name}.{word}?" if others else meant(word, choices)
