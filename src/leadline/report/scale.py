"""Scales and ticks of our charts: plain arithmetic from values to user units of an SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence

RATIO_TICKS = (
    0.2,
    0.25,
    0.3,
    0.4,
    0.5,
    0.6,
    0.7,
    0.8,
    0.9,
    0.95,
    1.0,
    1.05,
    1.1,
    1.2,
    1.3,
    1.5,
    1.75,
    2.0,
    2.5,
    3.0,
    4.0,
    5.0,
)
LEAST_SPAN = 0.3  # an axis covers at least this part of its middle value, so that noise never looks like a result


def padded(values: Sequence[float]) -> tuple[float, float]:
    """The range of an axis that holds all values with some air; not below 0 when no value is."""
    low, high = min(values), max(values)
    middle = (low + high) / 2
    span = max(high - low, LEAST_SPAN * abs(middle), 1e-9)
    half = 0.58 * span
    return (max(0.0, middle - half) if low >= 0 else middle - half), middle + half


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """At most `most` + 1 round numbers within the range: steps of 1, 2 or 5 times a power of ten."""
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(s * power for s in (1, 2, 5, 10) if s * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]


def ratio_range(bounds: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The range of a ratio axis: holds 1 and every interval, within 0.2 to 5."""
    low = min([0.95, *(lo for lo, _ in bounds)])
    high = max([1.05, *(hi for _, hi in bounds)])
    return max(0.2, low / 1.03), min(5.0, high * 1.03)


def ratio_ticks(low: float, high: float, room: float) -> list[float]:
    """Round ratios within the range, 1 always among them, at least `room` (a part of the axis) apart."""
    inside = [t for t in RATIO_TICKS if low <= t <= high and t != 1]
    kept = [1.0]
    for tick in sorted(inside, key=lambda t: -abs(math.log(t))):
        if all(abs(log_place(tick, low, high) - log_place(k, low, high)) >= room for k in kept):
            kept.append(tick)
    return sorted(kept)


def place(value: float, low: float, high: float) -> float:
    """Where a value lies on a linear axis, 0 to 1; outside values stop at the ends."""
    return min(1.0, max(0.0, (value - low) / (high - low)))


def log_place(value: float, low: float, high: float) -> float:
    """The same on a logarithmic axis."""
    return place(math.log(max(value, 1e-9)), math.log(low), math.log(high))
