"""The answer of a campaign as values: ratios with intervals, results per setting, a recommendation per goal."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from leadline.goal import Cell
from leadline.space import Setting
from leadline.trial import Finding, Origin


class Verdict(StrEnum):
    BETTER = "better"
    WORSE = "worse"
    NO_DIFFERENCE = "no difference shown"


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """A paired ratio, above 1 = better, with its interval; `pairs` = launch pairs it rests on (0: not comparable)."""

    ratio: float
    lo: float
    hi: float
    pairs: int
    confidence: float = 0.95
    warnings: tuple[Finding, ...] = ()

    @property
    def verdict(self) -> Verdict:
        if self.lo > 1:
            return Verdict.BETTER
        return Verdict.WORSE if self.hi < 1 else Verdict.NO_DIFFERENCE

    def __str__(self) -> str:
        return f"{self.ratio:.3f} [{self.lo:.3f}, {self.hi:.3f}]"


class CellResult(msgspec.Struct, frozen=True, kw_only=True):
    """A metric of one setting in one cell over its launches: median, 95 % bounds, and the ratio to the incumbent."""

    cell: Cell
    metric: str
    value: float
    lo: float
    hi: float
    launches: int
    ratio: Ratio | None = None
    acceptance_length: float | None = None
    error_frac: float = 0.0


class SettingResult(msgspec.Struct, frozen=True, kw_only=True):
    """One setting against one goal. `score` None = cannot be scored; `excluded` says why it may not be recommended."""

    setting: Setting
    cells: tuple[CellResult, ...]
    score: Ratio | None = None
    excluded: str = ""


class GoalAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What to run for one goal. `setting` None = nothing may be recommended, and `reason` says why.

    `ranking` is best first. `tie_with` = other settings that were not shown to be worse than the chosen one.
    """

    goal: str
    objective: str
    setting: Setting | None
    score: Ratio | None
    reason: str
    ranking: tuple[SettingResult, ...] = ()
    tie_with: tuple[Setting, ...] = ()
    findings: tuple[Finding, ...] = ()


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """What a goal gives up when all goals share one setting: shared over the goal's own best (1 = nothing)."""

    goal: str
    ratio: Ratio


class Recommendation(msgspec.Struct, frozen=True, kw_only=True):
    """Per goal, and the best single setting for all of them, since one unit runs one setting."""

    goals: tuple[GoalAnswer, ...]
    single: Setting | None
    single_reason: str
    losses: tuple[Loss, ...]
    incumbent: Setting
    origin: Origin
    findings: tuple[Finding, ...] = ()
