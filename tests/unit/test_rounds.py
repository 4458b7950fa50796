"""In which order settings are launched: rounds, failures, and what is queued by hand."""

from __future__ import annotations

import random

import msgspec
import pytest
from support_analysis import d, problem

from leadline.goal import Budget, Problem
from leadline.ports import Done, Strategy
from leadline.space import Setting
from leadline.strategies.grid import Grid
from leadline.strategies.random import Random
from leadline.testing.strategy_suite import grown
from leadline.trial import History, Proposal, Purpose, TrialState

PROBLEM = problem(incumbent=3, rounds=2)
FIVE_AND_INCUMBENT = {d(0), d(2), d(3), d(4), d(6), d(8)}
Slot = tuple[int, Setting]


def ask(history: History, n: int = 1, p: Problem = PROBLEM, strategy: Strategy | None = None) -> list[Proposal]:
    answer = (strategy or Grid()).propose(p, history, n, random.Random(p.seed))
    return [] if isinstance(answer, Done) else list(answer)


def go(history: History | None = None, until: int = 1000, p: Problem = PROBLEM) -> History:
    """Launch until Done, or until so many trials, all well."""
    history = history or History()
    while len(history.trials) < until and (due := ask(history, p=p)):
        history = grown(history, due[0], TrialState.COMPLETE)
    return history


def queue(history: History, *settings: Setting) -> History:
    return msgspec.structs.replace(history, queued=(*history.queued, *settings))


def slots(history: History) -> list[Slot]:
    return [(t.proposal.round, t.setting) for t in history.trials]


def test_grid_launches_every_setting_once_a_round() -> None:
    got = slots(go())
    assert [r for r, _ in got] == [1] * 6 + [2] * 6, "round after round"
    assert {s for r, s in got if r == 1} == {s for r, s in got if r == 2} == FIVE_AND_INCUMBENT
    assert len(set(got)) == 12


def test_incumbent_is_first_and_rounds_are_shuffled() -> None:
    orders = set()
    for seed in range(20):
        order = [s for r, s in slots(go(p=msgspec.structs.replace(PROBLEM, seed=seed)))]
        assert order[0] == d(3)
        orders.add((tuple(order[:6]), tuple(order[6:])))
        assert order[:6] != order[6:]
    assert len(orders) == 20


def test_purposes_and_reasons() -> None:
    trials = go(queue(go(until=1), d(10))).trials
    purposes = {(t.setting, t.proposal.round): t.proposal.purpose for t in trials}
    assert purposes[d(3), 1] is purposes[d(3), 2] is Purpose.INCUMBENT
    assert purposes[d(0), 1] is Purpose.BASELINE
    assert purposes[d(10), 1] is Purpose.MANUAL
    assert purposes[d(4), 1] is Purpose.PROBE
    assert purposes[d(4), 2] is Purpose.CONFIRM
    assert all(t.proposal.reason.endswith(".") and t.proposal.cells == PROBLEM.cells() for t in trials)


def test_order_of_a_round_is_the_same_whatever_happened_before() -> None:
    plain = slots(go())
    history = History()
    while due := ask(history):
        tried = sum(t.setting == due[0].setting and t.proposal.round == due[0].round for t in history.trials)
        history = grown(history, due[0], TrialState.COMPLETE if tried else TrialState.INTERRUPTED)
    assert list(dict.fromkeys(slots(history))) == plain
    assert len(history.trials) == 24


def test_many_at_once_are_the_next_ones_in_order() -> None:
    assert [(p.round, p.setting) for p in ask(History(), 100)] == slots(go())
    assert [(p.round, p.setting) for p in ask(go(until=3), 4)] == slots(go())[3:7]


def test_failed_launch_is_asked_again_once_at_once() -> None:
    (first,) = ask(History())
    once = grown(History(), first, TrialState.FAILED)
    (again,) = ask(once)
    assert (again.setting, again.round) == (first.setting, first.round)
    assert "failed" in again.reason
    (other,) = ask(grown(once, again, TrialState.FAILED))
    assert other.setting != first.setting
    later = go(grown(once, again, TrialState.FAILED))
    assert (2, first.setting) in slots(later), "its other rounds are not lost"


def test_setting_that_failed_twice_and_never_ran_costs_no_more_launches() -> None:
    history = go(until=1)
    (first,) = ask(history)
    assert first.setting != PROBLEM.incumbent
    later = go(grown(grown(history, first, TrialState.FAILED), first, TrialState.FAILED))
    assert [t.setting for t in later.trials].count(first.setting) == 2


def test_infeasible_setting_is_dropped_from_later_rounds() -> None:
    history = go(until=2)
    (bad,) = ask(history)
    history = go(grown(history, bad, TrialState.INFEASIBLE))
    assert sum(t.setting == bad.setting for t in history.trials) == 1
    answer = Grid().propose(PROBLEM, history, 1, random.Random(0))
    assert isinstance(answer, Done)
    assert answer.reason == f"every setting has been launched in 2 rounds, but for {bad.setting}"


def test_live_launch_is_waited_for() -> None:
    history = go(until=11)
    (last,) = ask(history)
    assert Grid().propose(PROBLEM, grown(history, last, TrialState.DEPLOYING), 1, random.Random(0)) == []


# --- queued by hand


@pytest.mark.parametrize("after", range(6))
def test_queued_in_the_first_round_takes_part_in_both(after: int) -> None:
    got = slots(go(queue(go(until=after), d(10))))
    assert sorted(got, key=str) == sorted([*slots(go()), (1, d(10)), (2, d(10))], key=str)
    assert got[0] == (1, d(3)), "the incumbent is first all the same"
    assert [s for s in got if s[1] != d(10)] == slots(go()), "the order of the others does not change"


@pytest.mark.parametrize("after", range(6, 12))
def test_queued_in_the_second_round_gets_one_round_of_its_own(after: int) -> None:
    got = slots(go(queue(go(until=after), d(10))))
    assert got[12:] != []
    assert (2, d(10)) in got
    assert got[-2:] == [(3, d(10)), (3, d(3))]
    assert len(got) == 15


def test_queued_after_the_end_gets_pairs_with_the_incumbent_in_turned_order() -> None:
    got = slots(go(queue(go(), d(10))))
    assert got[12:] == [(3, d(10)), (3, d(3)), (4, d(3)), (4, d(10))]


def test_each_late_setting_has_pairs_of_its_own() -> None:
    """The second comes when the first is done: an incumbent measured long ago would be no partner."""
    got = slots(go(queue(go(queue(go(), d(10))), d(12))))
    assert got[16:] == [(5, d(12)), (5, d(3)), (6, d(3)), (6, d(12))]


def test_late_setting_that_does_not_run_costs_no_incumbent() -> None:
    history = queue(go(), d(10))
    (first,) = ask(history)
    assert first.setting == d(10)
    assert ask(grown(history, first, TrialState.INFEASIBLE)) == []


def test_queue_of_what_is_launched_anyway_changes_nothing() -> None:
    assert slots(go(queue(go(until=2), d(4), d(3)))) == slots(go())


def test_queue_works_when_there_is_nothing_but_the_incumbent() -> None:
    alone = Setting.of(max_running=8)
    space = msgspec.structs.replace(PROBLEM.space, knobs=())
    p = msgspec.structs.replace(PROBLEM, space=space, incumbent=alone)
    assert [s for _, s in slots(go(queue(History(), d(10)), p=p))].count(d(10)) == 2


# --- random


def budget(launches: int | None, rounds: int = 2, seed: int = 0) -> Problem:
    changed = Budget(rounds=rounds, max_launches=launches)
    return msgspec.structs.replace(PROBLEM, budget=changed, seed=seed)


@pytest.mark.parametrize(("launches", "settings"), [(8, 4), (9, 4), (12, 6), (100, 6), (2, 2), (None, 6)])
def test_random_takes_as_many_settings_as_the_budget_pays_for(launches: int | None, settings: int) -> None:
    due = ask(History(), 100, budget(launches), Random())
    assert len({p.setting for p in due}) == settings
    assert len(due) == 2 * settings
    assert {d(0), d(3)} <= {p.setting for p in due}


def test_random_samples_by_its_seed() -> None:
    samples = {frozenset(p.setting for p in ask(History(), 100, budget(6, seed=s), Random())) for s in range(40)}
    assert samples == {frozenset({d(0), d(3), d(k)}) for k in (2, 4, 6, 8)}, "each of the four, sooner or later"


def test_random_goes_on_with_the_sample_it_began_with() -> None:
    p, history = budget(8), History()
    planned = [(x.round, x.setting) for x in ask(history, 100, p, Random())]
    while due := ask(history, 1, p, Random()):
        history = grown(history, due[0], TrialState.COMPLETE)
    assert slots(history) == planned
