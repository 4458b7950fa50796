"""The three charts, drawn by us as inline SVG: no script, no library, styled by the page's own classes.

Each has a title and a description for readers who do not see it, and a tooltip on each mark. What a colour says, a
shape says too.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from leadline.answer import Ratio, Verdict
from leadline.evidence import Acceptance
from leadline.report import scale, words
from leadline.report.markup import Markup, el, join

WIDTH = 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 50, 392, 22, 204
_ROW = 40
_LONGEST = 24  # letters of a row's name beside its numbers; the tooltip and the table have the whole
_VERDICTS = {Verdict.BETTER: "better", Verdict.WORSE: "worse", Verdict.NO_DIFFERENCE: "same"}
LEGEND = (
    ("curve", "value with 95 % bounds"),
    ("incumbent", "incumbent; dashed: its value"),
    ("ring", "recommended for a goal of this cell"),
    ("frame", "single setting for all goals"),
    ("hatch", "will not run (further)"),
)


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """One depth of a depth chart. `blocked` = why it will not run (further); the roles are drawn as shapes."""

    label: str
    value: float | None = None
    bounds: tuple[float, float] | None = None
    ratio: str = ""
    blocked: str = ""
    incumbent: bool = False
    recommended: bool = False
    single: bool = False

    def words(self) -> str:
        parts = []
        if self.value is not None:
            bounds = f" {words.bounds(*self.bounds, self.value)}" if self.bounds else ""
            parts.append(words.number(self.value) + bounds)
        parts += [f"ratio {self.ratio}"] if self.ratio else []
        named = ((self.incumbent, "incumbent"), (self.recommended, "recommended"), (self.single, "single"))
        parts += [name for plays, name in named if plays]
        return f"depth {self.label}: {', '.join([*parts, *([self.blocked] if self.blocked else [])]) or 'not measured'}"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One setting of a forest plot; `score` None = the incumbent itself, or not comparable."""

    label: str
    note: str = ""
    score: Ratio | None = None
    incumbent: bool = False

    def words(self) -> str:
        said = words.ratio(self.score) if self.score else ""
        return f"{self.label}: {' '.join(x for x in (said, self.note) if x)}"


def depth_chart(ident: str, title: str, axis: str, marks: list[Mark]) -> Markup:
    """The objective against depth in one cell: one line, whiskers, roles as shapes, hatching where it will not run."""
    known = [v for m in marks for v in (m.value, *(m.bounds or ())) if v is not None]
    low, high = scale.padded(known) if known else (0.0, 1.0)
    step = (_RIGHT - _LEFT) / max(len(marks), 1)
    xs = [_LEFT + step * (i + 0.5) for i in range(len(marks))]

    def y(value: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * scale.place(value, low, high)

    parts = [_hatch(ident)]
    parts += [_blocked(ident, x, step, m) for x, m in zip(xs, marks, strict=True) if m.blocked]
    parts += [_gridline(y(t), f"{t:.10g}") for t in scale.ticks(low, high)]
    today = next((m.value for m in marks if m.incumbent and m.value is not None), None)
    if today is not None:
        parts.append(el("line", x1=_LEFT, x2=_RIGHT, y1=y(today), y2=y(today), class_="today"))
    points = [(x, y(m.value)) for x, m in zip(xs, marks, strict=True) if m.value is not None]
    path = " ".join(f"{x:.1f},{at:.1f}" for x, at in points)
    parts += [el("polyline", points=path, class_="curve")] if len(points) > 1 else []
    for x, m in zip(xs, marks, strict=True):
        parts.append(el("text", m.label, x=x, y=_BOTTOM + 17, class_="tick mid"))
        if m.value is not None:
            whisker = (y(m.bounds[0]), y(m.bounds[1])) if m.bounds else None
            parts.append(_mark(x, y(m.value), whisker, m))
    parts.append(el("text", axis, x=(_LEFT + _RIGHT) / 2, y=_BOTTOM + 37, class_="axis mid"))
    return _svg(ident, title, "; ".join(m.words() for m in marks), _BOTTOM + 44, parts)


def _mark(x: float, y: float, whisker: tuple[float, float] | None, mark: Mark) -> Markup:
    parts = [el("title", mark.words())]
    top = y
    if whisker:
        low, top = whisker
        parts.append(
            el(
                "path",
                d=f"M{x:.1f} {low:.1f}V{top:.1f}M{x - 4:.1f} {low:.1f}h8M{x - 4:.1f} {top:.1f}h8",
                class_="whisker",
            )
        )
    if mark.recommended:
        parts.append(el("circle", cx=x, cy=y, r=9, class_="ring"))
    if mark.single:
        parts.append(el("rect", x=x - 8, y=y - 8, width=16, height=16, class_="frame"))
    if mark.incumbent:
        parts.append(_diamond(x, y))
    else:
        parts.append(el("circle", cx=x, cy=y, r=4, class_="dot"))
    if mark.recommended or mark.incumbent or mark.single:
        parts.append(el("text", words.number(mark.value), x=x, y=min(top, y - 9) - 5, class_="value mid"))
    return el("g", *parts)


def _blocked(ident: str, x: float, step: float, mark: Mark) -> Markup:
    middle = (_TOP + _BOTTOM) / 2
    return el(
        "g",
        el("title", mark.words()),
        el("rect", x=x - step / 2, y=_TOP - 10, width=step, height=_BOTTOM - _TOP + 10, fill=f"url(#{ident}-hatch)"),
        el(
            "text",
            mark.blocked,
            x=x + min(14, step / 3),
            y=middle,
            class_="blocked mid",
            transform=f"rotate(-90 {x + min(14, step / 3):.1f} {middle:.1f})",
        ),
    )


def forest(ident: str, title: str, rows: list[Row], low: float, high: float) -> Markup:
    """Ratios to the incumbent with their intervals, best first, on a logarithmic axis with the line at 1."""
    bottom = 10 + _ROW * len(rows)

    def x(value: float) -> float:
        return 12 + (WIDTH - 24) * scale.log_place(value, low, high)

    parts = []
    for tick in scale.ratio_ticks(low, high, 0.1):
        parts.append(el("line", x1=x(tick), x2=x(tick), y1=bottom, y2=bottom + 4, class_="grid"))
        parts.append(el("text", f"{tick:g}", x=x(tick), y=bottom + 17, class_="tick mid"))
    for n, row in enumerate(rows):
        parts.append(_forest_row(row, 8.0 + _ROW * n, x))
    parts.append(el("text", "ratio to the incumbent, above 1 = better", x=WIDTH / 2, y=bottom + 34, class_="axis mid"))
    return _svg(ident, title, "; ".join(r.words() for r in rows), bottom + 42, parts)


def _forest_row(row: Row, top: float, x: Callable[[float], float]) -> Markup:
    short = row.label if len(row.label) <= _LONGEST else row.label[: _LONGEST - 3] + "..."
    name = [short, *([el("tspan", row.note, dx=8, class_="note")] if row.note else [])]
    parts = [el("title", row.words()), el("text", *name, x=12, y=top + 13, class_="name")]
    parts.append(el("line", x1=12, x2=WIDTH - 12, y1=top + 25, y2=top + 25, class_="grid"))
    parts.append(el("line", x1=x(1), x2=x(1), y1=top + 17, y2=top + 33, class_="one"))
    if row.score is not None:
        parts.append(el("text", words.ratio(row.score), x=WIDTH - 12, y=top + 13, class_="value end"))
        parts.append(_interval(row.score, x, top + 25))
    elif row.incumbent:
        parts.append(_diamond(x(1), top + 25))
    return el("g", *parts)


def interval_bar(ident: str, title: str, score: Ratio, low: float, high: float) -> Markup:
    """One row of a forest plot, for an answer card."""

    width = 290

    def x(value: float) -> float:
        return 6 + (width - 12) * scale.log_place(value, low, high)

    parts = [
        el("line", x1=0, x2=width, y1=13, y2=13, class_="grid"),
        el("line", x1=x(1), x2=x(1), y1=2, y2=24, class_="one"),
        _interval(score, x, 13),
        el("text", "1", x=x(1), y=37, class_="tick mid"),
    ]
    return _svg(ident, title, words.ratio(score), 40, parts, width)


def position_chart(ident: str, title: str, counts: Acceptance) -> Markup:
    """For each draft position, the part of the drafting rounds in which it was accepted, as bars from 0 to 1."""
    width, left, top, bottom = 190, 42, 8, 84
    step = (width - left - 4) / max(len(counts.per_position), 1)
    parts = []
    for part in (0.0, 0.5, 1.0):
        at = bottom - (bottom - top) * part
        parts.append(el("line", x1=left, x2=width - 4, y1=at, y2=at, class_="grid"))
        parts.append(el("text", f"{100 * part:.0f} %", x=left - 5, y=at + 4, class_="tick end"))
    every = math.ceil(18 / step)
    said = []
    for n, accepted in enumerate(counts.per_position):
        part = min(1.0, accepted / counts.drafting_rounds) if counts.drafting_rounds else 0.0
        height = (bottom - top) * part
        said.append(f"position {n + 1}: {100 * part:.0f} %, {words.count(accepted)} accepted")
        x = left + step * n
        bar = el("rect", x=x + 0.12 * step, y=bottom - height, width=0.76 * step, height=height, class_="bar")
        parts.append(el("g", el("title", said[-1]), bar))
        if n % every == 0:
            parts.append(el("text", str(n + 1), x=x + step / 2, y=bottom + 15, class_="tick mid"))
    return _svg(ident, title, "; ".join(said), bottom + 20, parts, width)


def swatch(kind: str) -> Markup:
    """The mark of a legend's line."""
    dot = el("circle", cx=14, cy=10, r=4, class_="dot")
    shapes = {
        "curve": [el("line", x1=0, x2=28, y1=10, y2=10, class_="curve"), dot],
        "incumbent": [el("line", x1=0, x2=28, y1=10, y2=10, class_="today"), _diamond(14, 10)],
        "ring": [el("circle", cx=14, cy=10, r=9, class_="ring"), dot],
        "frame": [el("rect", x=6, y=2, width=16, height=16, class_="frame"), dot],
        "hatch": [_hatch("legend"), el("rect", x=3, y=1, width=22, height=18, fill="url(#legend-hatch)")],
    }
    return el("svg", *shapes[kind], viewBox="0 0 28 20", aria_hidden="true", class_="swatch")


def _interval(score: Ratio, x: Callable[[float], float], y: float) -> Markup:
    kind = _VERDICTS[score.verdict]
    shape = (
        el("circle", cx=x(score.ratio), cy=y, r=4.5, class_="mark")
        if score.verdict is Verdict.NO_DIFFERENCE
        else el("rect", x=x(score.ratio) - 4.5, y=y - 4.5, width=9, height=9, class_="mark")
    )
    return el("g", el("line", x1=x(score.lo), x2=x(score.hi), y1=y, y2=y, class_="span"), shape, class_=kind)


def _gridline(y: float, label: str) -> Markup:
    return join(
        el("line", x1=_LEFT, x2=_RIGHT, y1=y, y2=y, class_="grid"),
        el("text", label, x=_LEFT - 7, y=y + 4, class_="tick end"),
    )


def _diamond(x: float, y: float) -> Markup:
    return el("path", d=f"M{x:.1f} {y - 6:.1f}l6 6l-6 6l-6 -6z", class_="incumbent")


def _hatch(ident: str) -> Markup:
    stripe = el("line", x1=0, y1=0, x2=0, y2=6, class_="stripe")
    pattern = el(
        "pattern",
        stripe,
        id=f"{ident}-hatch",
        width=6,
        height=6,
        patternUnits="userSpaceOnUse",
        patternTransform="rotate(45)",
    )
    return el("defs", pattern)


def _svg(ident: str, title: str, said: str, height: float, parts: list[Markup], width: int = WIDTH) -> Markup:
    return el(
        "svg",
        el("title", title, id=f"{ident}-t"),
        el("desc", said, id=f"{ident}-d"),
        *parts,
        role="img",
        viewBox=f"0 0 {width} {height:.0f}",
        aria_labelledby=f"{ident}-t {ident}-d",
    )
