"""What the operator wants: cells, goals, budget; together with the space they are the Problem."""

from __future__ import annotations

import re

import msgspec

from leadline.space import Setting, Space

_CELL = re.compile(r"(?P<workload>[A-Za-z][\w-]*)@(?P<concurrency>[1-9]\d*)")


class Cell:
    """A workload at a load point, written `coding@4`: closed loop, 4 requests in flight. Immutable, hashable."""

    __slots__ = ("concurrency", "workload")
    workload: str
    concurrency: int

    def __init__(self, workload: str, concurrency: int) -> None:
        object.__setattr__(self, "workload", workload)
        object.__setattr__(self, "concurrency", concurrency)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a cell does not change")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cell) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash((self.workload, self.concurrency))

    def __repr__(self) -> str:
        return f"Cell({self})"

    @classmethod
    def parse(cls, text: str) -> Cell:
        match = _CELL.fullmatch(text)
        if not match:
            raise ValueError(f"a cell is written WORKLOAD@CONCURRENCY, like coding@4, not {text!r}")
        return cls(match["workload"], int(match["concurrency"]))

    def __str__(self) -> str:
        return f"{self.workload}@{self.concurrency}"


class Weight(msgspec.Struct, frozen=True):
    cell: Cell
    weight: float


class Requirement(msgspec.Struct, frozen=True):
    """`ttft_ms.p99 < 2000`, for every cell of the goal, or for one."""

    metric: str
    op: str
    value: float
    cell: Cell | None = None

    def __str__(self) -> str:
        where = f" at {self.cell}" if self.cell else ""
        return f"{self.metric} {self.op} {self.value:g}{where}"

    def holds(self, measured: float) -> bool:
        return {
            "<": measured < self.value,
            "<=": measured <= self.value,
            ">": measured > self.value,
            ">=": measured >= self.value,
        }[self.op]


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """Weights over cells, the metric that counts, and what must hold.

    Score of a setting = exp(sum w_i log(ratio_i) / sum w_i), ratio_i = this setting over the incumbent in cell i,
    turned so that above 1 is better.
    """

    name: str
    weights: tuple[Weight, ...]
    objective: str = "output_tok_s"
    requirements: tuple[Requirement, ...] = ()

    def cells(self) -> tuple[Cell, ...]:
        return tuple(w.cell for w in self.weights)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator does not want risked."""

    max_oom_chance: float = 0.05
    may_change_output: tuple[str, ...] = ()
    max_error_frac: float = 0.01


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """When to stop: launches, minutes; `rounds` = launches of each setting, interleaved and shuffled."""

    rounds: int = 2
    max_launches: int | None = None
    max_minutes: float | None = None


class Refusal(msgspec.Struct, frozen=True):
    """A setting of the space that is never launched: the engine would refuse it, or another one is the same launch."""

    setting: Setting
    reason: str


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a strategy may know, besides the history.

    `incumbent` is the setting in force before the campaign, over the same knobs as `space`; `kept` is pinned in every
    launch; `refused` are settings of the space that must not be proposed; `seed` fixes shuffles and resampling.
    """

    space: Space
    incumbent: Setting
    goals: tuple[Goal, ...]
    kept: Setting = Setting()
    refused: tuple[Refusal, ...] = ()
    limits: Limits = Limits()
    budget: Budget = Budget()
    seed: int = 0

    def cells(self) -> tuple[Cell, ...]:
        """Every cell that some goal needs, lightest load first: concurrency is ramped within a launch."""
        return tuple(sorted({c for g in self.goals for c in g.cells()}, key=lambda c: (c.concurrency, c.workload)))

    def settings(self) -> list[Setting]:
        """The settings of the space that may be launched."""
        refused = {r.setting for r in self.refused}
        return [s for s in self.space.settings() if s not in refused]

    def baseline(self) -> Setting | None:
        """The incumbent with speculation off; None when depth is not a knob here."""
        return self.incumbent.merged(Setting.of(depth=0)) if "depth" in self.space.names() else None
