"""One word changed for another text with as little of its raw form as can be: what refers to something stays."""

from __future__ import annotations

import difflib
import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec

from leadline.errors import RefusedError
from leadline.targets.systemd.environment import lone, references, replaced, secret
from leadline.targets.systemd.words import Piece, Unreadable, cut, escaped, quoted, specified, text_of

_TOKEN = re.compile(r"\w+|\W", re.DOTALL)


class Reading(msgspec.Struct, frozen=True):
    """What words are read by. `dollars` = variables are replaced; `moved` = those whose value will not be this one."""

    specifiers: Mapping[str, str]
    values: Mapping[str, str]
    dollars: bool = True
    moved: frozenset[str] = frozenset()


class Change(msgspec.Struct, frozen=True):
    """Put `text` in place of the pieces [first, last)."""

    first: int
    last: int
    text: str


class Edit(msgspec.Struct, frozen=True):
    """Put `text` in place of raw[start:end]."""

    start: int
    end: int
    text: str


def pieces_of(raw: str, reading: Reading) -> tuple[Piece, ...] | None:
    """What the parts of a raw word stand for; None for one that can only be changed as a whole."""
    try:
        word = cut(raw, 0)
    except Unreadable:
        return None
    if word is None or word.end != len(raw) or word.start or raw in (";", "\\;"):
        return None
    found = specified(word.pieces, reading.specifiers)
    pieces, text = found.pieces, text_of(found.pieces)
    if found.unknown or text != "".join(p.text for p in pieces):
        return None
    if not reading.dollars:
        return pieces
    return None if lone(text) is not None else replaced(pieces, reading.values)


def edited(raw: str, new: str, reading: Reading) -> tuple[Edit, ...]:
    """The edits of `raw` that make it mean `new`. Raises RefusedError when a secret would have to be written."""
    whole = (Edit(0, len(raw), quoted(new, dollars=reading.dollars)),)
    pieces = pieces_of(raw, reading)
    if pieces is None:
        refuse_secrets(_names(raw, reading), reading)
        return whole
    changes = changes_of(pieces, new, reading)
    gone = {i for change in changes for i in range(change.first, change.last)}
    refuse_secrets([pieces[i].name for i in gone], reading)
    kept = [p.name for i, p in enumerate(pieces) if p.name and i not in gone]
    edits = _in_place(pieces, changes, reading)
    if edits is not None and _means(apply(raw, edits), new, kept, reading):
        return edits
    composed = _composed(pieces, changes, reading)
    if _means(composed, new, kept, reading):
        return (Edit(0, len(raw), composed),)
    refuse_secrets(kept, reading)
    return whole


def apply(raw: str, edits: Sequence[Edit]) -> str:
    for edit in sorted(edits, key=lambda e: (e.start, e.end), reverse=True):
        raw = raw[: edit.start] + edit.text + raw[edit.end :]
    return raw


def refuse_secrets(names: Sequence[str], reading: Reading) -> None:
    for name in names:
        if name in reading.values and secret(name, reading.values[name]):
            raise RefusedError(
                f"the change would write the value of the variable {name} in clear, and it is a secret: give it a word "
                "of its own in ExecStart="
            )


def changes_of(pieces: Sequence[Piece], new: str, reading: Reading) -> tuple[Change, ...]:
    """Which pieces must be written anew so that the word means `new`: whole ones, those of moved variables too."""
    bounds = [0]
    for piece in pieces:
        bounds.append(bounds[-1] + len(piece.text))
    old = "".join(p.text for p in pieces)
    steps = _steps(old, new)
    touched = {i for i, p in enumerate(pieces) if p.name in reading.moved}
    inserts: list[int] = []
    for equal, a1, a2, _, _ in steps:
        first = bisect_right(bounds, a1) - 1
        if equal:
            continue
        if a1 < a2 or bounds[first] < a1:
            touched |= set(range(first, bisect_left(bounds, max(a2, a1 + 1))))
        else:
            inserts.append(a1)
    runs: list[tuple[int, int]] = []
    for i in sorted(touched):
        if runs and runs[-1][1] == i:
            runs[-1] = (runs[-1][0], i + 1)
        else:
            runs.append((i, i + 1))
    edges = {bounds[edge] for run in runs for edge in run}
    runs += [(k, k) for at in inserts if at not in edges for k in (bisect_left(bounds, at),)]
    return tuple(
        Change(first, last, new[_left(bounds[first], steps) : _right(bounds[last], steps)])
        for first, last in sorted(runs)
    )


_Step = tuple[bool, int, int, int, int]


def _steps(old: str, new: str) -> list[_Step]:
    """Which characters of the one are which of the other, by whole tokens."""
    tokens = _TOKEN.findall(old), _TOKEN.findall(new)
    starts = [[0], [0]]
    for side, found in zip(starts, tokens, strict=True):
        for token in found:
            side.append(side[-1] + len(token))
    a, b = starts
    codes = difflib.SequenceMatcher(None, tokens[0], tokens[1], autojunk=False).get_opcodes()
    return [(tag == "equal", a[i1], a[i2], b[j1], b[j2]) for tag, i1, i2, j1, j2 in codes]


def _left(at: int, steps: Sequence[_Step]) -> int:
    """The first place of the new text that goes with that of the old."""
    found = ((equal, a1, b1, b2) for equal, a1, a2, b1, b2 in steps if a1 <= at <= a2)
    return next((b1 + at - a1 if equal else b1 if at == a1 else b2 for equal, a1, b1, b2 in found), 0)


def _right(at: int, steps: Sequence[_Step]) -> int:
    """The last one."""
    found = ((equal, a1, a2, b1, b2) for equal, a1, a2, b1, b2 in reversed(steps) if a1 <= at <= a2)
    return next((b1 + at - a1 if equal else b2 if at == a2 else b1 for equal, a1, a2, b1, b2 in found), 0)


def _in_place(pieces: Sequence[Piece], changes: Sequence[Change], reading: Reading) -> tuple[Edit, ...] | None:
    """None when quotes stand in the way, or are missing."""
    edits: list[Edit] = []
    for change in changes:
        run = pieces[change.first : change.last]
        if not pieces:
            return None
        if not run:
            near = pieces[max(change.first - 1, 0)]
            start = end = near.end if change.first else near.start
            quote = near.quote
        else:
            start, end, quote = run[0].start, run[-1].end, run[0].quote
            if any(p.quote != quote for p in run) or any(p.end != q.start for p, q in pairwise(run)):
                return None
        if not quote and escaped(change.text, "", dollars=reading.dollars) != change.text:
            return None
        edits.append(Edit(start, end, escaped(change.text, quote, dollars=reading.dollars)))
    return tuple(edits)


def _composed(pieces: Sequence[Piece], changes: Sequence[Change], reading: Reading) -> str:
    """The word written anew in one pair of quotes, with its references."""
    parts: list[tuple[str, bool]] = []
    at = 0
    for change in (*changes, Change(len(pieces), len(pieces), "")):
        for piece in pieces[at : change.first]:
            reference = piece.name if piece.name.startswith("%") else f"${{{piece.name}}}"
            parts.append((reference, True) if piece.name else (piece.text, False))
        parts.append((change.text, False))
        at = change.last
    literal = "".join(text for text, reference in parts if not reference)
    quote = "'" if '"' in literal and "'" not in literal else '"'
    inner = "".join(t if reference else escaped(t, quote, dollars=reading.dollars) for t, reference in parts)
    return f"{quote}{inner}{quote}"


def _means(raw: str, new: str, kept: Sequence[str], reading: Reading) -> bool:
    pieces = pieces_of(raw, reading)
    if pieces is None:
        return False
    return "".join(p.text for p in pieces) == new and [p.name for p in pieces if p.name] == list(kept)


def _names(raw: str, reading: Reading) -> list[str]:
    """The variables of a word that cannot be changed in parts."""
    word = None if raw == "\\;" else cut(raw, 0)
    if word is None or not reading.dollars:
        return []
    text = text_of(specified(word.pieces, reading.specifiers).pieces)
    name = lone(text)
    return [name] if name is not None else [found for _, _, found in references(text) if found]
