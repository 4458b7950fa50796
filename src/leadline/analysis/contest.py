"""All settings against one goal: who may be recommended, in which order, and which one is.

The choice. The best score is the *best*. Another setting *ties* with it when no difference is shown between the two
(the interval of their ratio holds 1) **and** choosing it costs less than 0.5 % on average: its paired score lies less
than that below the best's. Also up to 2 % below ties a setting with *more room*: memory lets it run at least 5 % more
requests at once, while the goal's users fill neither of the two, so that the room is not in their scores already.
Of the best and its ties, those go out that have less room than the roomiest; of the rest the shallowest is chosen, at
equal depth the incumbent, then the better score.

In simulated campaigns of two or three rounds with 1-2 % noise, a wider rule ("no difference shown" and within 2 %) gave
a true lead of 4 % away two to ten times as often; a narrower one (expected regret below 0.5 %) hardly ever found a tie
on a plateau.

What the intervals do not do: the best of many settings looks a little better than it is, and an interval belongs to one
comparison, not to all of them at once.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence

from leadline.analysis import stats
from leadline.analysis.pairing import Table, measurements
from leadline.answer import CellResult, GoalAnswer, Ratio, SettingResult, Verdict
from leadline.evidence import Acceptance
from leadline.goal import Cell, Goal, Problem, Requirement, Weight
from leadline.space import Setting
from leadline.trial import Finding, History, Measurement, Trial, TrialState

TIE_LOSS = -math.log1p(-0.005)
ROOM_LOSS = -math.log1p(-0.02)
MORE_ROOM = 1.05


class Contest:
    """All settings against one goal. `feasible` are those that may be recommended, best first.

    Raises InputError when the goal's objective has no direction.
    """

    def __init__(self, problem: Problem, history: History, goal: Goal) -> None:
        self.goal = goal
        self.incumbent = problem.incumbent
        self.max_error_frac = problem.limits.max_error_frac
        self.history = history
        trials = history.complete()
        self.complete = {s: [t for t in trials if t.setting == s] for s in history.settings()}
        self.table = Table(trials, goal.weights, goal.objective, problem.incumbent)
        self.cells = {c: Table(trials, (Weight(c, 1.0),), goal.objective, problem.incumbent) for c in goal.cells()}
        self.settings = tuple(dict.fromkeys((problem.incumbent, *history.settings())))
        self.excluded = {s: self._why_not(s) for s in self.settings}
        self.feasible = sorted((s for s in self.settings if not self.excluded[s]), key=self._rank)

    def _rank(self, setting: Setting) -> tuple[float, int]:
        """Better scores first; settings without a score last."""
        return -self.mean(setting), setting.depth

    def mean(self, setting: Setting) -> float:
        """Log score against the reference: -inf without one."""
        if setting == self.table.reference:
            return 0.0
        difference = self.table.versus(setting, self.table.reference) if self.table.reference else None
        return difference.mean if difference else -math.inf

    def ratio(self, a: Setting, b: Setting) -> Ratio:
        """a over b, both with a score; exactly 1 for a setting and itself."""
        difference = self.table.versus(a, b) if a != b else None
        return difference.ratio() if difference else _exactly_one(self.table.launches(a))

    def measured(self, setting: Setting, cell: Cell) -> list[Measurement]:
        return measurements(self.complete.get(setting, []), cell)

    # --- who may not be recommended

    def _why_not(self, setting: Setting) -> str:
        """The first reason against a setting; "" when there is none."""
        checks: tuple[Callable[[Setting], str], ...] = (
            self._not_run,
            self._not_measured,
            self._too_many_errors,
            self._breaks_requirement,
            self._not_comparable,
        )
        return next((reason for reason in (check(setting) for check in checks) if reason), "")

    def _not_run(self, setting: Setting) -> str:
        trials = self.history.of(setting)
        bad = next((t for t in trials if t.state is TrialState.INFEASIBLE), None)
        if bad is not None:
            return f"does not run: {bad.extent or 'not at all'}{_because(bad)}"
        if self.complete.get(setting):
            return ""
        return (
            f"no launch was completed (the last one: {trials[-1].state}{_because(trials[-1])})" if trials else "not run"
        )

    def _not_measured(self, setting: Setting) -> str:
        for cell in self.goal.cells():
            found = self.measured(setting, cell)
            if not found:
                return f"not measured at {cell}"
            if not any(m.values.get(self.goal.objective, 0.0) > 0 for m in found):
                return f"no {self.goal.objective} at {cell}"
        return "" if self.table.launches(setting) else "no launch has all cells of this goal"

    def _too_many_errors(self, setting: Setting) -> str:
        for cell in self.goal.cells():
            frac = _error_frac(self.measured(setting, cell))
            if frac > self.max_error_frac:
                return f"{frac:.1%} of the requests failed at {cell}; at most {self.max_error_frac:.1%} may"
        return ""

    def _breaks_requirement(self, setting: Setting) -> str:
        for requirement in self.goal.requirements:
            for cell in self.goal.cells() if requirement.cell is None else (requirement.cell,):
                broken = _broken(requirement, cell, self.measured(setting, cell))
                if broken:
                    return broken
        return ""

    def _not_comparable(self, setting: Setting) -> str:
        if math.isfinite(self.mean(setting)):
            return ""
        return f"no launch can be compared with one of {self.table.reference}"

    # --- the answer

    def answer(self) -> GoalAnswer:
        chosen, reason = self._choose()
        scored = chosen is not None and self.table.reference == self.incumbent
        return GoalAnswer(
            goal=self.goal.name,
            objective=self.goal.objective,
            setting=chosen,
            score=self.ratio(chosen, self.incumbent) if chosen is not None and scored else None,
            reason=reason,
            ranking=self._ranking(),
            tie_with=tuple(s for s in self.feasible if s != chosen and chosen and self._not_worse(s, chosen)),
            findings=self._findings(chosen) if chosen is not None else (),
        )

    def _not_worse(self, setting: Setting, chosen: Setting) -> bool:
        return self.ratio(setting, chosen).verdict is not Verdict.WORSE

    def _choose(self) -> tuple[Setting | None, str]:
        if not self.feasible:
            return None, "Nothing can be recommended. " + "; ".join(f"{s}: {why}" for s, why in self.excluded.items())
        best = self.feasible[0]
        tied = [s for s in self.feasible[1:] if self._ties(best, s)]
        near = (best, *tied)
        most = max(near, key=lambda s: self._room(s) or 0)
        roomy = [s for s in near if s == most or not self._more_room(most, s)]
        chosen = min(roomy, key=lambda s: (s.depth, s != self.incumbent))
        if self._only_looks_better(chosen):
            return self.incumbent, " ".join(self._keep(chosen))
        return chosen, " ".join(self._reason(chosen, best))

    def _only_looks_better(self, setting: Setting) -> bool:
        """Whether it scored higher than an incumbent that may stay, but is not shown to be better: a service is not
        changed for a difference that the next launch may take back."""
        if setting == self.incumbent or self.incumbent not in self.feasible:
            return False
        return not self._ties(setting, self.incumbent) and not self.beats_incumbent(setting)

    def beats_incumbent(self, setting: Setting) -> bool:
        return self.ratio(setting, self.incumbent).verdict is Verdict.BETTER

    def _keep(self, best: Setting) -> Iterable[str]:
        ratio = self.ratio(best, self.incumbent)
        yield f"Keep what you have: {best} scored {ratio} times its {self.goal.objective}, but {_pairs(ratio)} cannot"
        yield "show that it is better. More rounds may."

    def _ties(self, best: Setting, other: Setting) -> bool:
        ratio = self.ratio(best, other)
        if self._more_room(other, best):
            return math.log(ratio.ratio) < ROOM_LOSS
        return ratio.verdict is not Verdict.BETTER and math.log(ratio.ratio) < TIE_LOSS

    def _more_room(self, a: Setting, b: Setting) -> bool:
        """Whether memory, and not the operator, lets `a` run more requests at once than `b`, and both hold the goal's
        users: then the scores do not show it."""
        room, less = self._room(a), self._room(b)
        if room is None or less is None or a.get("max_running") != b.get("max_running"):
            return False
        users = max(c.concurrency for c in self.goal.cells())
        return users <= less and room >= MORE_ROOM * less

    def _room(self, setting: Setting) -> int | None:
        """Requests that it runs at once, as the server said in every launch; None = it did not."""
        told = [t.effective.max_running if t.effective else None for t in self.complete.get(setting, [])]
        known = [n for n in told if n is not None]
        return min(known) if known and len(known) == len(told) else None

    def _reason(self, chosen: Setting, best: Setting) -> Iterable[str]:
        if self.table.reference != self.incumbent:
            why = self.excluded[self.incumbent] or "it has no number"
            yield f"The best score of {len(self.feasible)} that ran. Not compared with the incumbent: {why}."
        elif chosen != self.incumbent:
            ratio = self.ratio(chosen, self.incumbent)
            if ratio.verdict is Verdict.BETTER:
                yield f"{ratio} times the incumbent's {self.goal.objective}, over {_pairs(ratio)}."
            else:
                yield f"{ratio} times the incumbent's {self.goal.objective}: {ratio.verdict} in {_pairs(ratio)}."
            if self.excluded[self.incumbent]:
                yield f"The incumbent may not be recommended: {self.excluded[self.incumbent]}."
        elif best == self.incumbent:
            yield f"Keep it: the best score of {len(self.feasible)} that ran."
        else:
            yield "Keep what you have."
        if chosen != best and self._more_room(chosen, best):
            yield f"{best} scored best ({self.ratio(best, chosen)} times this one), but {self._room(best)} requests fit"
            yield f"into its memory at once and {self._room(chosen)} into this one's: not worth it for so little."
        elif chosen != best:
            yield f"No difference that matters to {best}, which scored best ({self.ratio(best, chosen)} times this one)"
            yield "but is deeper." if chosen.depth < best.depth else "at the same depth."

    def _ranking(self) -> tuple[SettingResult, ...]:
        ordered = sorted(self.settings, key=lambda s: (bool(self.excluded[s]), *self._rank(s)))
        return tuple(self._result(s) for s in ordered)

    def _result(self, setting: Setting) -> SettingResult:
        known = self.table.reference == self.incumbent and math.isfinite(self.mean(setting))
        return SettingResult(
            setting=setting,
            cells=tuple(c for c in (self._cell(setting, cell) for cell in self.cells) if c is not None),
            score=self.ratio(setting, self.incumbent) if known else None,
            excluded=self.excluded[setting],
        )

    def _cell(self, setting: Setting, cell: Cell) -> CellResult | None:
        table, found = self.cells[cell], self.measured(setting, cell)
        values = [m.values[self.goal.objective] for m in found if m.values.get(self.goal.objective, 0.0) > 0]
        if not values:
            return None
        level = stats.level(values, table.noise)
        same = setting == self.incumbent
        difference = None if same else table.versus(setting, self.incumbent)
        ratio = difference.ratio() if difference else None
        return CellResult(
            cell=cell,
            metric=self.goal.objective,
            value=level.center,
            lo=level.lo,
            hi=level.hi,
            launches=len(values),
            ratio=_exactly_one(len(values)) if same else ratio,
            acceptance_length=_acceptance_length(found),
            error_frac=_error_frac(found),
        )

    def _findings(self, chosen: Setting) -> tuple[Finding, ...]:
        own = [f for cell in self.goal.cells() for m in self.measured(chosen, cell) for f in m.findings]
        unique = {(f.code, f.message): f for f in reversed(own)}
        return (*self._few_rounds(chosen), *reversed(unique.values()))

    def _few_rounds(self, chosen: Setting) -> tuple[Finding, ...]:
        launches = self.table.launches(chosen)
        if launches >= stats.FEW or len(self.feasible) < 2:
            return ()
        small = stats.detectable(self.table.noise, launches)
        return (
            Finding(
                code="few_rounds",
                message=f"{launches} round{'s' * (launches > 1)}: differences above about {small:.1%} can be shown, "
                "smaller ones cannot.",
                evidence=f"one launch differs from the next by {self.table.noise.sd:.1%} (sd), {self.table.noise.df} "
                "degrees of freedom",
                remedy=f"budget.rounds = {2 * max(launches, 2)} would show "
                f"{stats.detectable(self.table.noise, 2 * max(launches, 2)):.1%}.",
            ),
        )


# --- small facts


def _exactly_one(launches: int) -> Ratio:
    return Ratio(ratio=1.0, lo=1.0, hi=1.0, pairs=launches)


def _because(trial: Trial) -> str:
    return f": {trial.diagnosis.reason}" if trial.diagnosis else ""


def _pairs(ratio: Ratio) -> str:
    return f"{ratio.pairs} launch pair{'s' * (ratio.pairs > 1)}"


def _error_frac(found: Sequence[Measurement]) -> float:
    requests = sum(m.requests for m in found)
    return sum(m.errors for m in found) / requests if requests else 0.0


def _acceptance_length(found: Sequence[Measurement]) -> float | None:
    counts = [m.acceptance for m in found if m.acceptance is not None]
    total: Acceptance | None = None
    for count in counts:
        total = count if total is None else total.plus(count)
    return total.acceptance_length if total else None


def _broken(requirement: Requirement, cell: Cell, found: Sequence[Measurement]) -> str:
    """What a requirement says against the median over launches; "" when it holds."""
    values = [m.values[requirement.metric] for m in found if requirement.metric in m.values]
    if not values:
        return f"requires {requirement}, which was not measured at {cell}"
    value = statistics.median(values)
    return "" if requirement.holds(value) else f"requires {requirement}, measured {value:.4g} at {cell}"
