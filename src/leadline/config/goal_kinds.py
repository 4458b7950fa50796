"""Kinds of [goals.NAME]: weights over cells, the objective, and requirements."""

from __future__ import annotations

import math
import re

from leadline import metrics
from leadline.config.kinds import NAME, Kind, list_of, number
from leadline.config.review import Review, dotted, found, listed, meant
from leadline.config.spec import WeightSpec
from leadline.goal import Cell, Requirement

MAX_CONCURRENCY = 10_000
_ABOVE_ZERO = number(0, above=True)
_REQUIREMENT = re.compile(
    r"\s*(?P<metric>[A-Za-z_][\w.]*)\s*(?P<op><=|>=|<|>)\s*(?P<value>[^\s=<>]+)(\s+at\s+(?P<cell>\S+))?\s*"
)
_REQUIREMENT_WORDS = '"METRIC < NUMBER" or "METRIC < NUMBER at WORKLOAD@CONCURRENCY", with <, <=, > or >='


def _weight(name: str, weight: float) -> WeightSpec | None:
    if "@" not in name:
        return WeightSpec(name, None, weight) if NAME.fullmatch(name) else None
    try:
        cell = Cell.parse(name)
    except ValueError:
        return None
    return WeightSpec(cell.workload, cell.concurrency, weight) if cell.concurrency <= MAX_CONCURRENCY else None


def _read_weights(review: Review, key: str, value: object) -> tuple[WeightSpec, ...] | None:
    if not isinstance(value, dict) or not value:
        review.wrong(key, found(value), WEIGHTS.words)
        return None
    good: list[WeightSpec] = []
    for name, raw in value.items():
        at = dotted(key, name)
        spec = _weight(name, _ABOVE_ZERO.read(review, at, raw) or math.nan)
        if spec is None:
            review.wrong(at, found(name), f"WORKLOAD or WORKLOAD@CONCURRENCY, concurrency 1 to {MAX_CONCURRENCY}")
        else:
            good.append(spec)
    return tuple(good) if len(good) == len(value) else None


def _read_requirement(review: Review, key: str, value: object) -> Requirement | None:
    match = _REQUIREMENT.fullmatch(value) if isinstance(value, str) else None
    try:
        limit = float(match["value"]) if match else math.nan
        cell = Cell.parse(match["cell"]) if match and match["cell"] else None
    except ValueError:
        match = None
    if not match or not math.isfinite(limit):
        review.wrong(key, found(value), _REQUIREMENT_WORDS, 'as in "ttft_ms.p99 < 2000 at coding@4"')
        return None
    if match["metric"] not in metrics.names():
        hint = meant(match["metric"], metrics.names())
        review.wrong(key, f"the metric {match['metric']}", _metrics(directed=False), hint)
    return Requirement(match["metric"], match["op"], limit, cell)


def _metrics(*, directed: bool) -> str:
    """The metrics in few words."""
    table = [m for m in metrics.METRICS.values() if m.better or not directed]
    plain, split = ([m.name for m in table if m.per_request is per] for per in (False, True))
    stats = " or ".join(f".{stat}" for stat in metrics.STATS)
    return f"one of {listed(plain)}, or one of {listed(split)} with {stats}"


def _read_objective(review: Review, key: str, value: object) -> str | None:
    choices = [name for name in metrics.names() if metrics.better(name)]
    if isinstance(value, str) and value in choices:
        return value
    review.wrong(key, found(value), _metrics(directed=True), meant(value, choices))
    return None


WEIGHTS = Kind(words="a table of WORKLOAD = weight or WORKLOAD@CONCURRENCY = weight, above 0", read=_read_weights)
OBJECTIVE = Kind(words="a metric that is better high or low", read=_read_objective)
REQUIREMENTS = list_of(Kind(words=_REQUIREMENT_WORDS, read=_read_requirement), "requirements")
