"""The table of `leadline memory`: what each setting leaves for tokens and requests, and where each GiB goes.

Pure: rows in, lines or a JSON-able value out. A figure that is not known is "-", never 0.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import msgspec

from leadline.evidence import Footprint, Verdict
from leadline.report.words import NONE, clean, count

_GIB = 1 << 30

Row = tuple[str, Footprint]
"""The setting as text ("depth=3"), and its footprint."""


def lines(rows: Sequence[Row], width: int = 120) -> list[str]:
    """Two tables: capacity of each setting, then its parts in GiB; with why a setting does not fit, and what the
    figures come from. No line is longer than `width`. Text from models and logs is made harmless.
    """
    if not rows:
        return ["no setting to show"]
    out = _grid(
        ["setting", "KV tokens", "requests at once", "tokens each", "memory"],
        [[clean(name), _tokens(f), _running(f), _each(f), str(f.verdict)] for name, f in rows],
        width,
    )
    reasons = [f"{clean(name)} {f.verdict}: {clean(f.reason)}" for name, f in rows if _needs_reason(f)]
    if reasons:
        out += ["", *(piece for reason in reasons for piece in _wrapped(reason, width))]
    parts = _part_names(rows)
    if parts:
        out += ["", "Where the memory of one device goes, GiB:", ""]
        out += _chunks(rows, parts, width)
    bases = [piece for basis in _bases(rows) for piece in _wrapped(basis, width)]
    return [*out, "", *bases] if bases else out


def data(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The same for programs: bytes and counts, None for what is not known; parts keep their order."""
    return [{"setting": name, **msgspec.to_builtins(f)} for name, f in rows]


def _tokens(f: Footprint) -> str:
    if f.kv_tokens is None:
        return NONE
    if f.verdict is Verdict.WILL_NOT_START or not f.error_frac or f.error_frac < 0.005:
        return count(f.kv_tokens)
    return f"{count(f.kv_tokens)} ±{100 * min(f.error_frac, 9.99):.0f} %"


def _running(f: Footprint) -> str:
    """`128 -> 75` when fewer fit than were asked for."""
    asked, got = f.asked_running, f.max_running
    if got is None or asked == got:
        return NONE if asked is None else count(asked)
    return count(got) if asked is None else f"{count(asked)} -> {count(got)}"


def _each(f: Footprint) -> str:
    """KV tokens for each request of those asked for; empty when nothing was asked or nothing is known."""
    if not f.kv_tokens or not f.max_running or not f.asked_running:
        return NONE
    return count(f.kv_tokens // f.max_running)


def _needs_reason(f: Footprint) -> bool:
    return f.verdict is not Verdict.FITS and f.reason != ""


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(20, width), subsequent_indent="  ") or [""]


def _part_names(rows: Sequence[Row]) -> list[str]:
    """All parts in the order of the engine: a part that only later rows have comes after the one that it follows."""
    names: list[str] = []
    for _, f in rows:
        at = 0
        for name in f.parts:
            if name not in names:
                names.insert(at, name)
            at = names.index(name) + 1
    return names


def _chunks(rows: Sequence[Row], parts: Sequence[str], width: int) -> list[str]:
    """One row a part and one column a setting; settings that do not fit beside each other follow below."""
    label = max(len(p) for p in (*parts, "sum"))
    out: list[str] = []
    left = [row for row in rows if row[1].parts]
    while left:
        taken = [left.pop(0)]
        used = label + 2 + _column(taken[0])
        while left and used + 2 + _column(left[0]) <= width:
            used += 2 + _column(left[0])
            taken.append(left.pop(0))
        body = [
            [clean(p), *(_gib(f.parts.get(p)) for _, f in taken)] for p in parts if any(p in f.parts for _, f in taken)
        ]
        body.append(["sum", *(_gib(sum(f.parts.values())) for _, f in taken)])
        out += ([""] if out else []) + _grid(["", *(clean(name) for name, _ in taken)], body, width, right=True)
    return out


def _column(row: Row) -> int:
    return max(len(clean(row[0])), 7)


def _gib(size: int | None) -> str:
    return NONE if size is None else f"{size / _GIB:.2f}"


def _bases(rows: Sequence[Row]) -> list[str]:
    """What the figures come from, once for all settings that share it."""
    shared: dict[str, list[str]] = {}
    for name, f in rows:
        if f.basis:
            shared.setdefault(f.basis, []).append(clean(name))
    if len(shared) == 1 and len(rows) == len(next(iter(shared.values()))):
        return [f"Figures from {clean(next(iter(shared)))}."]
    return [f"{', '.join(names)}: figures from {clean(basis)}." for basis, names in shared.items()]


def _grid(head: Sequence[str], body: Sequence[Sequence[str]], width: int, right: bool = False) -> list[str]:
    """Columns two spaces apart, numbers to the right; a line is cut where the width ends."""
    sizes = [max(len(row[i]) for row in (head, *body)) for i in range(len(head))]
    out = []
    for row in (head, *body):
        cells = [
            cell.rjust(size) if i and (right or i < len(row) - 1) else cell.ljust(size)
            for i, (cell, size) in enumerate(zip(row, sizes, strict=True))
        ]
        out.append(_cut("  ".join(cells).rstrip(), width))
    return out


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
