"""Every strategy obeys the laws of its port, and each law catches a strategy that breaks it."""

from __future__ import annotations

import importlib
import pkgutil
import random
from collections.abc import Callable, Sequence

import msgspec
import pytest

import leadline.strategies
from leadline.goal import Problem
from leadline.ports import Done, Strategy
from leadline.space import Setting
from leadline.strategies.grid import Grid
from leadline.testing.strategy_suite import LAWS
from leadline.trial import History, Proposal, TrialState

BUILT_IN: dict[str, Strategy] = {
    module.name: importlib.import_module(f"leadline.strategies.{module.name}").strategy
    for module in pkgutil.iter_modules(leadline.strategies.__path__)
}
Answer = Sequence[Proposal] | Done


def test_the_folder_holds_the_built_ins_under_their_own_names() -> None:
    assert set(BUILT_IN) >= {"grid", "random"}
    assert all(name == strategy.name for name, strategy in BUILT_IN.items())


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("name", BUILT_IN)
def test_strategy_obeys_the_law(name: str, law: str) -> None:
    LAWS[law](lambda: BUILT_IN[name])


# --- strategies that break one law each, made of a lawful one


class Bent:
    """Grid, with what it sees or what it answers bent."""

    name = "bent"

    def sees(self, history: History) -> History:
        return history

    def says(self, answer: Answer) -> Answer:
        return answer

    def propose(self, problem: Problem, history: History, n: int, rng: random.Random) -> Answer:
        return self.says(Grid().propose(problem, self.sees(history), n, rng))


def each(answer: Answer, change: Callable[[Proposal], Proposal | None]) -> Answer:
    if isinstance(answer, Done):
        return answer
    return [p for p in map(change, answer) if p is not None]


def mistaken(history: History, seen: TrialState, taken_for: TrialState | None) -> History:
    """The history of somebody who takes one state for another, or overlooks it."""
    trials = [
        t if t.state is not seen else taken_for and msgspec.structs.replace(t, state=taken_for) for t in history.trials
    ]
    return msgspec.structs.replace(history, trials=tuple(t for t in trials if t is not None))


class Remembers(Bent):
    def __init__(self) -> None:
        self.calls = 0

    def says(self, answer: Answer) -> Answer:
        self.calls += 1
        return each(answer, lambda p: msgspec.structs.replace(p, reason=f"question {self.calls}"))


class DrawsGlobally(Bent):
    def says(self, answer: Answer) -> Answer:
        random.random()
        return answer


class LeavesTheSpace(Bent):
    def says(self, answer: Answer) -> Answer:
        return each(answer, lambda p: msgspec.structs.replace(p, setting=p.setting.merged(Setting.of(max_running=99))))


class MeasuresNothing(Bent):
    def says(self, answer: Answer) -> Answer:
        return each(answer, lambda p: msgspec.structs.replace(p, cells=()))


class GivesNoReason(Bent):
    def says(self, answer: Answer) -> Answer:
        return each(answer, lambda p: msgspec.structs.replace(p, reason=""))


class Floods(Bent):
    def propose(self, problem: Problem, history: History, n: int, rng: random.Random) -> Answer:
        return Grid().propose(problem, history, n + 1, rng)


class Skips(Bent):
    """Everything but one setting: asks for enough to find another one to propose."""

    def skipped(self, problem: Problem) -> Setting:
        return problem.incumbent

    def propose(self, problem: Problem, history: History, n: int, rng: random.Random) -> Answer:
        answer = Grid().propose(problem, history, 1000, rng)
        kept = each(answer, lambda p: None if p.setting == self.skipped(problem) else p)
        if isinstance(kept, Done) or not kept:
            return Done(reason="all but one")
        return kept[:n]


class SkipsBaseline(Skips):
    def skipped(self, problem: Problem) -> Setting:
        baseline = problem.baseline()
        assert baseline is not None
        return baseline

    def propose(self, problem: Problem, history: History, n: int, rng: random.Random) -> Answer:
        answer = Grid().propose(problem, history, 1000, rng)
        kept = each(answer, lambda p: p if p.setting.depth else None)
        return kept if isinstance(kept, Done) else kept[:n] or Done(reason="never speculation off")


class Insists(Bent):
    def sees(self, history: History) -> History:
        return mistaken(history, TrialState.INFEASIBLE, TrialState.FAILED)


class TakesInterruptedForDone(Bent):
    def sees(self, history: History) -> History:
        return mistaken(history, TrialState.INTERRUPTED, TrialState.COMPLETE)


class TriesForEver(Bent):
    def sees(self, history: History) -> History:
        return mistaken(history, TrialState.FAILED, TrialState.INTERRUPTED)


class NeverDone(Bent):
    def propose(self, problem: Problem, history: History, n: int, rng: random.Random) -> Answer:
        answer = Grid().propose(problem, history, n, rng)
        if not isinstance(answer, Done):
            return answer
        first = history.trials[0].proposal
        return [msgspec.structs.replace(first, round=1 + max(t.proposal.round for t in history.trials))]


class OverlooksLive(Bent):
    def sees(self, history: History) -> History:
        return mistaken(history, TrialState.MEASURING, None)


class TakesLiveForAll(Bent):
    def propose(self, problem: Problem, history: History, n: int, rng: random.Random) -> Answer:
        if any(t.live for t in history.trials):
            return Done(reason="all done")
        return Grid().propose(problem, history, n, rng)


class IgnoresTheQueue(Bent):
    def sees(self, history: History) -> History:
        return msgspec.structs.replace(history, queued=())


class NeverPairsTheQueue(Bent):
    def says(self, answer: Answer) -> Answer:
        return each(answer, lambda p: msgspec.structs.replace(p, round=p.round + (50 if p.purpose == "manual" else 0)))


BROKEN: list[tuple[type[Bent], str, str]] = [
    (Remembers, "is_pure", "another answer"),
    (DrawsGlobally, "is_pure", "global random"),
    (LeavesTheSpace, "proposes_what_is_allowed", "neither in the space"),
    (MeasuresNothing, "proposes_what_is_allowed", "no cell"),
    (GivesNoReason, "proposes_what_is_allowed", "no reason"),
    (Floods, "proposes_no_more_than_asked", "2 proposals when asked for 1"),
    (Skips, "includes_incumbent_and_baseline", "incumbent was never launched"),
    (SkipsBaseline, "includes_incumbent_and_baseline", "depth 0 was never launched"),
    (Insists, "never_repeats_an_infeasible_setting", "was launched again"),
    (TakesInterruptedForDone, "repeats_what_was_interrupted", "never asked again"),
    (TriesForEver, "ends", "does not end"),
    (NeverDone, "ends", "does not end"),
    (OverlooksLive, "knows_what_is_live", "was proposed again"),
    (TakesLiveForAll, "knows_what_is_live", "Done while"),
    (IgnoresTheQueue, "launches_what_is_queued", "never launched"),
    (NeverPairsTheQueue, "launches_what_is_queued", "does not end|no incumbent"),
]


@pytest.mark.parametrize(("broken", "law", "words"), BROKEN)
def test_law_catches_a_strategy_that_breaks_it(broken: type[Bent], law: str, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        LAWS[law](broken)


def test_every_law_has_a_broken_strategy() -> None:
    assert {law for _, law, _ in BROKEN} == set(LAWS)


# --- what the two of them do


def test_bent_nothing_is_lawful() -> None:
    """So each broken strategy is caught for its bend and nothing else."""
    for law in LAWS.values():
        law(Bent)
