"""Another value for a JSON object that somebody wrote: only the text of what differs changes.

Blanks, the order of the keys and the spelling of all other values stay, so that a text that a script puts together
from variables can still be traced back to them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

_BLANKS = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()


def changed(text: str, value: Mapping[str, Any]) -> str:
    """The text of an object, with this value; empty text = a new one. Keys that are new come last.

    Where a key goes away, or is there twice, all of it is written anew, as tight or as wide as it was.
    """
    edited = _edited(text, _blanks(text, 0), value) if text else None
    if edited is not None and json.loads(edited) == value:
        return edited
    return _dumped(value, text)


def _edited(text: str, at: int, value: Mapping[str, Any]) -> str | None:
    """All of the text with the object at `at` changed; None when that cannot be done in place."""
    members = list(_members(text, at))
    keys = [key for key, _, _ in members]
    if not members or len(set(keys)) < len(keys) or not set(keys) <= set(value):
        return None
    new = [key for key in value if key not in keys]
    out = text
    if new:
        last = members[-1][2]
        more = _dumped({key: value[key] for key in new}, text)[1:-1]
        out = f"{text[:last]}{',' if _tight(text) else ', '}{more}{text[last:]}"
    for key, start, end in reversed(members):  # from the end, so that places before it stay where they are
        old, wanted = json.loads(text[start:end]), value[key]
        if old == wanted and type(old) is type(wanted):
            continue
        piece = changed(text[start:end], wanted) if isinstance(wanted, dict) and isinstance(old, dict) else None
        out = out[:start] + (_dumped(wanted, text) if piece is None else piece) + out[end:]
    return out


def _members(text: str, at: int) -> Iterator[tuple[str, int, int]]:
    """Key, and where its value begins and ends, of each member of the object that opens at `at`: known to be JSON."""
    at = _blanks(text, at + 1)
    while text[at] == '"':
        key, at = _DECODER.raw_decode(text, at)
        start = _blanks(text, _blanks(text, at) + 1)  # behind the colon
        _, end = _DECODER.raw_decode(text, start)
        yield key, start, end
        at = _blanks(text, end)
        at = _blanks(text, at + 1) if text[at] == "," else at


def _dumped(value: object, like: str) -> str:
    separators = (",", ":") if _tight(like) else (", ", ": ")
    return json.dumps(value, separators=separators, ensure_ascii=like.isascii())


def _tight(like: str) -> bool:
    return bool(like) and not re.search(r"[:,]\s", like)


def _blanks(text: str, at: int) -> int:
    found = _BLANKS.match(text, at)
    return found.end() if found else at
