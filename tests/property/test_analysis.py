"""What holds for every sample, every history and every fate of the launches."""

from __future__ import annotations

import itertools
import math
import random

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support_analysis import DEPTHS, EIGHT, IDENTITY, ONE, d, goal, history, problem, trial

from leadline.analysis import stats
from leadline.analysis.recommend import recommend
from leadline.answer import Recommendation
from leadline.codec import from_json, to_json
from leadline.ports import Done
from leadline.strategies.grid import Grid
from leadline.strategies.random import Random
from leadline.testing.strategy_suite import grown
from leadline.trial import History, Trial, TrialState

positive = st.floats(0.01, 1e5, allow_nan=False)
pairs = st.lists(st.tuples(positive, positive), min_size=1, max_size=8)
PROBLEM = problem(goal("alone"), goal("mixed", {ONE: 1, EIGHT: 2}))
ENDED = (TrialState.COMPLETE, TrialState.INFEASIBLE, TrialState.FAILED, TrialState.INTERRUPTED)


@given(pairs)
def test_ratio_lies_inside_an_interval_of_some_width(given_pairs: list[tuple[float, float]]) -> None:
    got = stats.paired_ratio(given_pairs)
    assert 0 <= got.lo < got.ratio < got.hi
    assert got.pairs == len(given_pairs)


@given(pairs)
def test_swapped_pairs_and_a_metric_turned_round_both_invert_the_ratio(given_pairs: list[tuple[float, float]]) -> None:
    plain = stats.paired_ratio(given_pairs)
    swapped = stats.paired_ratio([(b, a) for a, b in given_pairs])
    turned = stats.paired_ratio(given_pairs, better="lower")
    for other in (swapped, turned):
        assert math.log(other.ratio) == pytest.approx(-math.log(plain.ratio), abs=1e-9)
        assert math.log(other.hi) == pytest.approx(-math.log(plain.lo), rel=1e-6, abs=1e-9)


@given(pairs, positive)
def test_what_slows_both_of_a_pair_alike_cancels(given_pairs: list[tuple[float, float]], factor: float) -> None:
    slowed = [(a * factor**i, b * factor**i) for i, (a, b) in enumerate(given_pairs[:3])]
    one, other = stats.paired_ratio(given_pairs[:3]), stats.paired_ratio(slowed)
    assert math.log(other.ratio) == pytest.approx(math.log(one.ratio), abs=1e-7)
    assert math.log(other.hi) == pytest.approx(math.log(one.hi), abs=1e-6)


@given(st.floats(0.01, 0.999), st.integers(1, 60))
def test_quantile_inverts_the_probability_and_shrinks_with_more_data(confidence: float, df: int) -> None:
    t = stats.t_quantile(confidence, df)
    assert stats.t_probability(t, df) == pytest.approx(confidence, abs=1e-9)
    assert stats.t_quantile(confidence, df + 1) < t


tables = st.integers(2, 5).flatmap(
    lambda n: st.lists(
        st.lists(st.none() | st.floats(-1, 1), min_size=n, max_size=n),
        min_size=2,
        max_size=5,
    )
)


@given(tables, st.lists(st.floats(-3, 3), min_size=5, max_size=5), st.lists(st.floats(-3, 3), min_size=5, max_size=5))
def test_noise_does_not_depend_on_how_good_a_setting_or_round_is(
    table: list[list[float | None]], by_row: list[float], by_column: list[float]
) -> None:
    plain = [{c: x for c, x in enumerate(row) if x is not None} for row in table]
    moved = [{c: x + shift + by_column[c] for c, x in row.items()} for row, shift in zip(plain, by_row, strict=False)]
    one, other = (stats.pooled_noise(rows, stats.prior_noise()) for rows in (plain, moved))
    assert one.df == other.df >= 0
    assert other.sd == pytest.approx(one.sd, rel=1e-4, abs=1e-6)


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Any campaign: some launches fail, some cells are missing, some launches are of another version."""
    trials: list[Trial] = []
    for number, depth in itertools.product((1, 2, 3), DEPTHS):
        if draw(st.integers(0, 5)) == 0:
            continue
        state = draw(st.sampled_from((TrialState.COMPLETE,) * 5 + ENDED))
        cells = draw(st.sampled_from(((ONE, EIGHT),) * 5 + ((ONE,), ())))
        tok_s = {c: draw(st.floats(0, 1000)) for c in cells}
        changes = {
            "errors": draw(st.sampled_from((0,) * 9 + (8,))),
            "identity": {**IDENTITY, "engine_version": draw(st.sampled_from(("b1",) * 9 + ("b2",)))},
        }
        trials.append(trial(0, d(depth), tok_s, round=number, state=state, changes=changes))
    return history(*trials)


@settings(max_examples=150, deadline=None)
@given(histories())
def test_only_what_ran_in_every_cell_without_trouble_is_recommended(given_history: History) -> None:
    got = recommend(PROBLEM, given_history)
    bad = {t.setting for t in given_history.trials if t.state is TrialState.INFEASIBLE}
    for answer, asked in zip(got.goals, PROBLEM.goals, strict=True):
        assert {r.setting for r in answer.ranking} == {PROBLEM.incumbent, *given_history.settings()}
        assert all(r.score.ratio == 1 for r in answer.ranking if r.score and r.setting == PROBLEM.incumbent)
        assert answer.reason
        if answer.setting is None:
            assert all(r.excluded for r in answer.ranking)
            continue
        assert answer.setting not in bad
        launches = [t for t in given_history.complete() if t.setting == answer.setting]
        for cell in asked.cells():
            assert any(t.measurement(cell) for t in launches)
            assert all(m.errors == 0 for t in launches if (m := t.measurement(cell))) or len(launches) > 1
        assert next(r for r in answer.ranking if r.setting == answer.setting).excluded == ""
    recommended = {a.setting for a in got.goals} - {None}
    assert got.single is None or got.single not in bad
    assert (got.single is None) <= (len(recommended) != 1)


@settings(max_examples=100, deadline=None)
@given(histories(), st.randoms(use_true_random=False))
def test_order_of_trials_does_not_matter(given_history: History, rng: random.Random) -> None:
    trials = list(given_history.trials)
    rng.shuffle(trials)
    one, other = recommend(PROBLEM, given_history), recommend(PROBLEM, history(*trials))
    assert [a.setting for a in one.goals] == [a.setting for a in other.goals]
    assert one.single == other.single
    for a, b in zip(one.goals, other.goals, strict=True):
        if a.score is not None and b.score is not None:
            assert b.score.hi == pytest.approx(a.score.hi)


@settings(max_examples=100, deadline=None)
@given(histories())
def test_recommendation_can_be_stored(given_history: History) -> None:
    got = recommend(PROBLEM, given_history)
    assert from_json(to_json(got), Recommendation) == got


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from([Grid(), Random()]),
    st.lists(st.sampled_from(ENDED), max_size=40),
    st.lists(st.integers(0, 30), max_size=3, unique=True),
    st.integers(1, 4),
    st.integers(0, 1000),
)
def test_campaign_ends_with_one_complete_trial_a_slot_whatever_happens(
    strategy: Grid | Random, fates: list[TrialState], queue_at: list[int], rounds: int, seed: int
) -> None:
    given_problem = msgspec.structs.replace(problem(rounds=rounds), seed=seed)
    now, done = History(), False
    while not done:
        assert len(now.trials) < 200
        late = tuple(d(20 + at) for at in sorted(queue_at) if at <= len(now.trials))
        now = msgspec.structs.replace(now, queued=late)
        answer = strategy.propose(given_problem, now, 1, random.Random(seed))
        if isinstance(answer, Done):
            done = len(now.queued) == len(queue_at)
            queue_at = [min(at, len(now.trials)) for at in queue_at] if not done else queue_at
            assume(len(set(queue_at)) == len(queue_at))
            continue
        (proposal,) = answer
        slot = (proposal.round, proposal.setting)
        assert proposal.setting not in now.infeasible()
        assert slot not in {(t.proposal.round, t.setting) for t in now.complete()}
        fate = fates[len(now.trials)] if len(now.trials) < len(fates) else TrialState.COMPLETE
        now = grown(now, proposal, fate)
    failed_out = {t.setting for t in now.trials if t.state is TrialState.FAILED}
    for setting in set(now.settings()) - set(now.infeasible()) - failed_out - {given_problem.incumbent}:
        assert len([t for t in now.complete() if t.setting == setting]) == rounds
