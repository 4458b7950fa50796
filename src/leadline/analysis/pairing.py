"""Which launches may be compared, and their logarithms in a table.

Two launches make a pair when they belong to one round and agree in everything that `Measurement.identity` names, in
every cell concerned. Everything else is left out, and said.
"""

from __future__ import annotations

from collections.abc import Sequence

from leadline import metrics
from leadline.analysis import stats
from leadline.analysis.stats import Difference, Noise
from leadline.errors import InputError
from leadline.goal import Cell, Weight
from leadline.space import Setting
from leadline.trial import Finding, Measurement, Origin, Trial

Block = tuple[int, tuple[tuple[tuple[str, str], ...], ...]]
"""A round, and the identity of each cell: launches of one block are pairs."""


class Table:
    """Weighted mean logarithm of a metric over some cells, for each setting and block; more is better.

    The reference is the incumbent as long as it has a number, else the setting with the most launches.
    """

    def __init__(self, trials: Sequence[Trial], weights: Sequence[Weight], metric: str, incumbent: Setting) -> None:
        self.rows = _rows(trials, weights, metric)
        self.reference: Setting | None = incumbent if incumbent in self.rows else _most_launched(self.rows)
        ordered = sorted(self.rows, key=lambda s: s != self.reference)
        prior = stats.prior_noise([w.weight for w in weights])
        self.noise: Noise = stats.pooled_noise([self.rows[s] for s in ordered], prior)

    def launches(self, setting: Setting) -> int:
        return len(self.rows.get(setting, ()))

    def versus(self, a: Setting, b: Setting) -> Difference | None:
        """a over b: by the blocks that they share, else through the reference; None when neither is possible."""
        direct = self._direct(a, b)
        if direct is not None or self.reference is None or self.reference in (a, b):
            return direct
        to_a, to_b = self._direct(a, self.reference), self._direct(b, self.reference)
        return to_a.minus(to_b) if to_a and to_b else None

    def _direct(self, a: Setting, b: Setting) -> Difference | None:
        row, other = self.rows.get(a, {}), self.rows.get(b, {})
        logs = [x - other[block] for block, x in row.items() if block in other]
        return Difference.of(logs, self.noise) if logs else None


def _rows(trials: Sequence[Trial], weights: Sequence[Weight], metric: str) -> dict[Setting, dict[Block, float]]:
    found: dict[Setting, dict[Block, list[float]]] = {}
    for trial in trials:
        number = _score(trial, weights, metric)
        if number is not None:
            found.setdefault(trial.setting, {}).setdefault(_block(trial, weights), []).append(number)
    return {s: {b: sum(xs) / len(xs) for b, xs in blocks.items()} for s, blocks in found.items()}


def _score(trial: Trial, weights: Sequence[Weight], metric: str) -> float | None:
    """None when a cell is missing, or its number is not positive."""
    total = 0.0
    for w in weights:
        measured = trial.measurement(w.cell)
        value = measured.values.get(metric, 0.0) if measured else 0.0
        if not value > 0:
            return None
        total += w.weight * stats.log(value, metrics.better(metric))
    return total / sum(w.weight for w in weights)


def _block(trial: Trial, weights: Sequence[Weight]) -> Block:
    found = (trial.measurement(w.cell) for w in weights)
    return trial.proposal.round, tuple(tuple(sorted(m.identity.items())) for m in found if m)


def _most_launched(rows: dict[Setting, dict[Block, float]]) -> Setting | None:
    return max(rows, key=lambda s: (len(rows[s]), -s.depth), default=None)


def measurements(trials: Sequence[Trial], cell: Cell) -> list[Measurement]:
    return [m for t in trials if (m := t.measurement(cell)) is not None]


def origin(trials: Sequence[Trial]) -> Origin:
    """The one origin of all numbers. Raises InputError when there are two: they are never mixed."""
    found = sorted({m.origin for t in trials for m in t.measurements})
    if len(found) > 1:
        raise InputError(
            f"this campaign holds {' and '.join(found)} numbers, which are never compared; "
            "keep each kind in a campaign of its own"
        )
    return found[0] if found else Origin.MEASURED


def mixed_identities(trials: Sequence[Trial]) -> tuple[Finding, ...]:
    """One finding for each thing that differs between launches of the same cell."""
    found: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for cell in dict.fromkeys(m.cell for t in trials for m in t.measurements):
        here = measurements(trials, cell)
        for key in sorted({k for m in here for k in m.identity}):
            values = tuple(dict.fromkeys(m.identity.get(key, "(not known)") for m in here))
            if len(values) > 1:
                found.setdefault((key, values), []).append(str(cell))
    return tuple(_mixed(key, values, cells) for (key, values), cells in found.items())


def _mixed(key: str, values: tuple[str, ...], cells: list[str]) -> Finding:
    return Finding(
        code="identity_differs",
        message=f"{key} is not the same in all launches: {' and '.join(values)}. Those that differ are not compared.",
        evidence=f"at {', '.join(cells)}",
        remedy="Measure again what lacks a partner, or start a new campaign.",
    )
