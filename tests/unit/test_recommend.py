"""What is recommended, and why, for histories of which the truth is known."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from support_analysis import EIGHT, IDENTITY, ONE, campaign, d, flat, goal, history, problem, trial

from leadline.analysis.recommend import recommend
from leadline.answer import GoalAnswer, Recommendation, Verdict
from leadline.codec import from_json, to_json
from leadline.errors import InputError
from leadline.evidence import Acceptance, Diagnosis, Failure
from leadline.goal import Cell, Requirement
from leadline.space import Setting
from leadline.trial import Finding, History, Origin, Trial, TrialState

PEAK_AT_4 = (80.0, 100.0, 112.0, 107.0, 101.0)


def only(answer: Recommendation) -> GoalAnswer:
    (one,) = answer.goals
    return one


def why_not(answer: Recommendation, setting: Setting) -> str:
    return next(r.excluded for r in only(answer).ranking if r.setting == setting)


# --- ranking and choice


def test_best_setting_is_recommended_with_its_ratio_to_the_incumbent() -> None:
    got = recommend(problem(), campaign(flat(PEAK_AT_4)))
    answer = only(got)
    assert answer.setting == d(4)
    assert answer.score is not None
    assert answer.score.ratio == pytest.approx(1.12)
    assert answer.score.verdict is Verdict.BETTER
    assert answer.score.pairs == 2
    assert "1.120" in answer.reason
    assert [r.setting for r in answer.ranking] == [d(4), d(6), d(8), d(2), d(0)]
    assert got.single == d(4)
    assert got.losses[0].ratio.ratio == 1
    assert got.origin is Origin.MEASURED


def test_the_incumbent_stays_when_a_higher_score_is_not_shown_to_be_better() -> None:
    """A service is not changed for a difference that the next launch may take back."""
    got = recommend(problem(), campaign(flat((80.0, 100.0, 102.0, 99.0, 90.0)), launch_sd=0.05, seed=4))
    answer = only(got)
    best = answer.ranking[0]
    assert best.setting != d(2)
    assert best.score is not None
    assert best.score.verdict is Verdict.NO_DIFFERENCE
    assert (answer.setting, got.single) == (d(2), d(2))
    assert answer.reason.startswith(f"Keep what you have: {best.setting} scored")
    assert answer.score is not None
    assert answer.score.ratio == 1


def test_incumbent_is_in_the_ranking_with_exactly_one() -> None:
    ranking = only(recommend(problem(), campaign(flat(PEAK_AT_4), launch_sd=0.02))).ranking
    (row,) = [r for r in ranking if r.setting == d(2)]
    assert row.score is not None
    assert (row.score.ratio, row.score.lo, row.score.hi) == (1, 1, 1)
    assert row.cells[0].ratio == row.score


def test_cell_results_are_medians_with_bounds_ratio_and_launches() -> None:
    ranking = only(recommend(problem(), campaign(flat(PEAK_AT_4), rounds=3, round_sd=0.02, seed=3))).ranking
    cell = ranking[0].cells[0]
    assert (cell.cell, cell.metric, cell.launches) == (ONE, "output_tok_s", 3)
    assert cell.lo < cell.value < cell.hi
    assert cell.ratio is not None
    assert cell.ratio.ratio == pytest.approx(1.12)


def test_drift_between_rounds_does_not_matter_to_ratios() -> None:
    calm, drifting = (recommend(problem(), campaign(flat(PEAK_AT_4), round_sd=sd, seed=1)) for sd in (0.0, 0.3))
    one, other = only(calm).score, only(drifting).score
    assert one is not None
    assert other is not None
    assert other.ratio == pytest.approx(one.ratio)
    assert other.hi == pytest.approx(one.hi)
    assert {f.code for f in drifting.findings} - {f.code for f in calm.findings} == {"drift"}


def test_lower_is_better_where_the_metric_says_so() -> None:
    h = campaign(flat((100, 100, 100, 100, 100)))
    slow_first = {d(0): 50.0, d(2): 40.0, d(4): 60.0, d(6): 70.0, d(8): 80.0}
    trials = [with_values(t, {"ttft_ms.p50": slow_first[t.setting]}) for t in h.trials]
    answer = only(recommend(problem(goal(objective="ttft_ms.p50")), history(*trials)))
    assert answer.setting == d(2)
    assert [r.setting for r in answer.ranking] == [d(2), d(0), d(4), d(6), d(8)]


def test_score_is_the_weighted_geometric_mean_of_ratios() -> None:
    truth = {d(2): {ONE: 100.0, EIGHT: 400.0}, d(4): {ONE: 150.0, EIGHT: 380.0}}
    score = only(recommend(problem(goal(weights={ONE: 1, EIGHT: 3})), campaign(truth))).score
    assert score is not None
    assert score.ratio == pytest.approx((1.5 * 0.95**3) ** 0.25)


def with_values(t: Trial, values: dict[str, float], **changes: Any) -> Trial:
    ms = tuple(msgspec.structs.replace(m, values={**m.values, **values}, **changes) for m in t.measurements)
    return msgspec.structs.replace(t, measurements=ms)


def changed(h: History, setting: Setting, **changes: Any) -> History:
    """The history with every measurement of one setting changed."""
    return history(*(with_values(t, {}, **changes) if t.setting == setting else t for t in h.trials))


# --- ties


def test_tie_goes_to_the_shallower() -> None:
    answer = only(recommend(problem(), campaign(flat((80, 100, 120.0, 120.4, 120.2)))))
    assert answer.setting == d(4)
    assert set(answer.tie_with) == {d(6), d(8)}
    assert "No difference that matters to depth=6" in answer.reason
    assert "deeper" in answer.reason


def test_two_percent_is_not_given_away_for_a_shallower_setting() -> None:
    """Not shown in two rounds, and still the better bet."""
    answer = only(recommend(problem(), campaign(flat((80, 100, 120.0, 122.4, 110)))))
    assert answer.setting == d(6)
    assert answer.tie_with == (d(4),)


def test_shown_difference_is_no_tie_however_small() -> None:
    """0.4 % in forty quiet rounds."""
    truth = flat((80, 100, 120.0, 120.48, 110))
    assert only(recommend(problem(), campaign(truth, rounds=40))).setting == d(6)
    assert only(recommend(problem(), campaign(truth, rounds=2))).setting == d(4)


def test_incumbent_is_kept_when_it_ties_and_is_not_deeper() -> None:
    answer = only(recommend(problem(incumbent=4), campaign(flat((80, 100, 120.0, 120.4, 110)))))
    assert answer.setting == d(4)
    assert answer.reason.startswith("Keep what you have. No difference that matters to depth=6")


def test_deeper_incumbent_gives_way_to_a_shallower_tie() -> None:
    answer = only(recommend(problem(incumbent=6), campaign(flat((80, 100, 120.0, 120.4, 110)))))
    assert answer.setting == d(4)
    assert "no difference shown" in answer.reason


def test_incumbent_wins_a_tie_at_its_own_depth() -> None:
    now, other = d(4, max_running=8), d(4, max_running=16)
    p = msgspec.structs.replace(problem(), incumbent=now)
    answer = only(recommend(p, campaign({now: {ONE: 100.0}, other: {ONE: 100.3}})))
    assert answer.setting == now
    assert "at the same depth" in answer.reason


def test_incumbent_that_is_best_is_kept() -> None:
    answer = only(recommend(problem(incumbent=4), campaign(flat(PEAK_AT_4))))
    assert answer.setting == d(4)
    assert answer.reason == "Keep it: the best score of 5 that ran."


# --- the lab with known truth


@pytest.mark.parametrize("noise", [0.005, 0.01])
def test_true_best_is_recommended_for_every_goal_and_seed(noise: float) -> None:
    """The best is ahead by 4 % or more in each goal; 20 seeds, two rounds, launch and point noise alike."""
    goals = (goal("alone"), goal("busy", {EIGHT: 1}), goal("mixed", {ONE: 1, EIGHT: 1}))
    truth = {
        d(0): {ONE: 80.0, EIGHT: 380.0},
        d(2): {ONE: 95.0, EIGHT: 420.0},
        d(4): {ONE: 110.0, EIGHT: 400.0},
        d(6): {ONE: 115.0, EIGHT: 330.0},
        d(8): {ONE: 108.0, EIGHT: 300.0},
    }
    for seed in range(20):
        h = campaign(truth, rounds=2, launch_sd=noise, point_sd=noise, round_sd=0.1, seed=seed)
        got = recommend(problem(*goals, incumbent=0), h)
        assert {a.goal: a.setting for a in got.goals} == {"alone": d(6), "busy": d(2), "mixed": d(4)}, seed
        assert got.single == d(4), seed


def test_no_true_difference_is_rarely_called_one() -> None:
    """200 campaigns of five equal settings with 2 % + 2 % noise: how often a ratio to the incumbent says "better"."""
    said = total = 0
    for seed in range(200):
        h = campaign(flat((100.0,) * 5), launch_sd=0.02, point_sd=0.02, round_sd=0.1, seed=seed)
        scores = [r.score for r in only(recommend(problem(), h)).ranking if r.setting != d(2)]
        said += sum(s is not None and s.verdict is Verdict.BETTER for s in scores)
        total += len(scores)
    assert total == 800
    assert said / total <= 0.035


# --- who may not be recommended


def test_infeasible_setting_is_excluded_with_its_extent() -> None:
    h = campaign(flat(PEAK_AT_4))
    reason = Diagnosis(failure=Failure.DEVICE_OOM_LOAD, reason="out of memory under load")
    late = trial(
        0, d(4), {ONE: 112.0}, round=3, state=TrialState.INFEASIBLE, extent="fits up to C=16", diagnosis=reason
    )
    got = recommend(problem(), history(*h.trials, late))
    assert only(got).setting == d(6)
    assert why_not(got, d(4)) == "does not run: fits up to C=16: out of memory under load"
    assert [r.setting for r in only(got).ranking][-1] == d(4), "excluded settings come last"


@pytest.mark.parametrize("state", [TrialState.FAILED, TrialState.INTERRUPTED, TrialState.MEASURING])
def test_only_complete_trials_count(state: TrialState) -> None:
    """A number in a trial that did not complete is as if it were not there."""
    h = campaign(flat(PEAK_AT_4))
    fast = trial(0, d(10), {ONE: 900.0}, state=state)
    got = recommend(problem(), history(*h.trials, fast))
    assert only(got).setting == d(4)
    assert why_not(got, d(10)) == f"no launch was completed (the last one: {state})"


def test_setting_that_lacks_a_cell_is_excluded() -> None:
    truth = {d(2): {ONE: 100.0, EIGHT: 400.0}, d(4): {ONE: 200.0}}
    got = recommend(problem(goal(weights={ONE: 1, EIGHT: 1})), campaign(truth))
    assert only(got).setting == d(2)
    assert why_not(got, d(4)) == "not measured at chat@8"


def test_launch_that_lacks_a_cell_is_no_pair() -> None:
    truth = {d(2): {ONE: 100.0, EIGHT: 400.0}, d(4): {ONE: 200.0, EIGHT: 400.0}}
    h = campaign(truth)
    cut = msgspec.structs.replace(h.trials[3], measurements=h.trials[3].measurements[:1])
    score = only(recommend(problem(goal(weights={ONE: 1, EIGHT: 1})), history(*h.trials[:3], cut))).score
    assert score is not None
    assert score.pairs == 1


def test_broken_requirement_is_named_with_the_measured_value() -> None:
    h = campaign(flat(PEAK_AT_4))
    trials = [with_values(t, {"ttft_ms.p99": 2345.6 if t.setting == d(4) else 900.0}) for t in h.trials]
    g = goal(requirements=(Requirement(metric="ttft_ms.p99", op="<", value=2000),))
    got = recommend(problem(g), history(*trials))
    assert only(got).setting == d(6)
    assert why_not(got, d(4)) == "requires ttft_ms.p99 < 2000, measured 2346 at chat@1"


def test_requirement_is_held_against_the_median_over_launches() -> None:
    """One slow launch of three breaks nothing."""
    trials = [with_values(t, {"ttft_ms.p99": 2500.0}) for t in campaign(flat(PEAK_AT_4), rounds=3).trials]
    calm = [with_values(t, {"ttft_ms.p99": 1500.0}) if t.proposal.round != 2 else t for t in trials]
    g = goal(requirements=(Requirement(metric="ttft_ms.p99", op="<", value=2000),))
    assert only(recommend(problem(g), history(*calm))).setting == d(4)
    h = [with_values(t, {"ttft_ms.p99": 1500.0}) if t.proposal.round == 2 else t for t in trials]
    assert only(recommend(problem(g), history(*h))).setting is None


def test_requirement_that_was_not_measured_is_not_fulfilled() -> None:
    g = goal(requirements=(Requirement(metric="ttft_ms.p99", op="<", value=2000),))
    got = recommend(problem(g), campaign(flat(PEAK_AT_4)))
    assert only(got).setting is None
    assert why_not(got, d(2)) == "requires ttft_ms.p99 < 2000, which was not measured at chat@1"


def test_requirement_of_one_cell_holds_for_that_cell() -> None:
    g = goal(
        weights={ONE: 1, EIGHT: 1},
        requirements=(Requirement(metric="output_tok_s", op=">=", value=390, cell=EIGHT),),
    )
    truth = {d(2): {ONE: 100.0, EIGHT: 400.0}, d(4): {ONE: 200.0, EIGHT: 380.0}}
    assert only(recommend(problem(g), campaign(truth))).setting == d(2)


def test_too_many_errors_exclude() -> None:
    got = recommend(problem(), changed(campaign(flat(PEAK_AT_4)), d(4), errors=4))
    assert only(got).setting == d(6)
    assert why_not(got, d(4)) == "10.0% of the requests failed at chat@1; at most 1.0% may"


def test_one_error_in_two_hundred_does_not_exclude() -> None:
    got = recommend(problem(), changed(campaign(flat(PEAK_AT_4)), d(4), errors=1, requests=200))
    assert only(got).setting == d(4)
    assert only(got).ranking[0].cells[0].error_frac == 0.005


def test_zero_rate_cannot_be_scored() -> None:
    got = recommend(problem(), campaign(flat((80, 100, 112, 107, 0.0))))
    assert why_not(got, d(8)) == "no output_tok_s at chat@1"
    assert only(got).setting == d(4)


def test_setting_never_in_a_round_with_the_incumbent_cannot_be_compared() -> None:
    h = campaign(flat(PEAK_AT_4))
    got = recommend(problem(), history(*h.trials, trial(0, d(10), {ONE: 900.0}, round=9)))
    assert only(got).setting == d(4)
    assert why_not(got, d(10)) == "no launch can be compared with one of depth=2"


def test_nothing_feasible_says_why_for_each() -> None:
    bad = trial(0, d(2), {}, state=TrialState.INFEASIBLE, extent="not at all")
    lost = trial(0, d(4), {}, state=TrialState.FAILED)
    got = recommend(problem(), history(bad, lost))
    assert only(got).setting is None
    assert "depth=2: does not run: not at all" in only(got).reason
    assert "depth=4: no launch was completed" in only(got).reason
    assert got.single is None
    assert got.losses == ()


def test_empty_history_has_no_answer() -> None:
    got = recommend(problem(), history())
    assert only(got).setting is None
    assert why_not(got, d(2)) == "not run"


def test_without_a_measured_incumbent_the_best_of_the_rest_is_named_without_a_ratio_to_it() -> None:
    h = campaign({s: cells for s, cells in flat(PEAK_AT_4).items() if s != d(2)})
    bad = trial(0, d(2), {}, state=TrialState.INFEASIBLE, extent="not at all")
    got = recommend(problem(), history(bad, *h.trials))
    answer = only(got)
    assert answer.setting == d(4)
    assert answer.score is None
    assert "Not compared with the incumbent: does not run: not at all" in answer.reason
    assert [r.setting for r in answer.ranking][:2] == [d(4), d(6)]
    assert all(r.score is None for r in answer.ranking)


def test_incumbent_that_may_not_be_recommended_is_still_what_others_are_compared_with() -> None:
    got = recommend(problem(), changed(campaign(flat(PEAK_AT_4)), d(2), errors=4))
    assert only(got).setting == d(4)
    assert only(got).score is not None
    assert "The incumbent may not be recommended: 10.0%" in only(got).reason
    best_now = recommend(problem(incumbent=4), changed(campaign(flat(PEAK_AT_4)), d(4), errors=4))
    assert only(best_now).setting == d(6)


# --- what may not be compared


def test_two_origins_are_refused() -> None:
    h = changed(campaign(flat(PEAK_AT_4)), d(4), origin=Origin.SIMULATED)
    with pytest.raises(InputError, match="measured and simulated"):
        recommend(problem(), h)


def test_origin_is_passed_on() -> None:
    h = campaign(flat(PEAK_AT_4))
    simulated = history(*(with_values(t, {}, origin=Origin.SIMULATED) for t in h.trials))
    assert recommend(problem(), simulated).origin is Origin.SIMULATED


@pytest.mark.parametrize("key", ["engine", "engine_version", "model", "machine", "workload"])
def test_pair_that_differs_in_identity_is_left_out_and_said(key: str) -> None:
    h = campaign(flat(PEAK_AT_4), rounds=3)
    odd = with_values(h.trials[2], {"output_tok_s": 900.0}, identity={**IDENTITY, key: "another"})
    assert odd.setting == d(4)
    got = recommend(problem(), history(*h.trials[:2], odd, *h.trials[3:]))
    score = only(got).score
    assert score is not None
    assert score.pairs == 2
    assert score.ratio == pytest.approx(1.12)
    (finding,) = [f for f in got.findings if f.code == "identity_differs"]
    assert finding.message.startswith(f"{key} is not the same in all launches: {IDENTITY[key]} and another.")


def test_setting_that_always_differs_in_identity_cannot_be_compared() -> None:
    h = changed(campaign(flat(PEAK_AT_4)), d(4), identity={**IDENTITY, "engine_version": "b2"})
    got = recommend(problem(), h)
    assert only(got).setting == d(6)
    assert "no launch can be compared" in why_not(got, d(4))


def test_round_measured_wholly_after_an_update_still_makes_pairs() -> None:
    h = campaign(flat(PEAK_AT_4))
    after = [
        with_values(t, {}, identity={**IDENTITY, "engine_version": "b2"}) if t.proposal.round == 2 else t
        for t in h.trials
    ]
    score = only(recommend(problem(), history(*after))).score
    assert score is not None
    assert score.pairs == 2


def test_unknown_identity_is_not_equal_to_a_known_one() -> None:
    got = recommend(problem(), changed(campaign(flat(PEAK_AT_4)), d(4), identity={}))
    assert "no launch can be compared" in why_not(got, d(4))
    assert any("(not known)" in f.message for f in got.findings)


def test_settings_that_share_no_round_are_compared_through_the_incumbent() -> None:
    """As when a setting is queued by hand after the last round."""
    h = campaign({d(2): {ONE: 100.0}, d(4): {ONE: 112.0}})
    late = [trial(0, s, {ONE: x}, round=r) for r in (3, 4) for s, x in ((d(10), 140.0), (d(2), 100.0))]
    answer = only(recommend(problem(), history(*h.trials, *late)))
    assert answer.setting == d(10)
    assert answer.tie_with == ()


# --- one setting for all goals


def test_single_setting_loses_least_in_its_worst_goal() -> None:
    goals = (goal("alone"), goal("busy", {EIGHT: 1}))
    truth = {
        d(2): {ONE: 100.0, EIGHT: 400.0},
        d(4): {ONE: 130.0, EIGHT: 380.0},
        d(6): {ONE: 150.0, EIGHT: 300.0},
    }
    got = recommend(problem(*goals), campaign(truth))
    assert [a.setting for a in got.goals] == [d(6), d(2)]
    assert got.single == d(4)
    assert {x.goal: round(x.ratio.ratio, 3) for x in got.losses} == {"alone": 0.867, "busy": 0.95}
    assert got.single_reason.startswith("alone loses most by it: 0.867")


def test_single_setting_is_the_one_that_all_goals_chose() -> None:
    """Though another would score a trifle more in both."""
    goals = (goal("alone"), goal("busy", {EIGHT: 1}))
    truth = {d(2): {ONE: 100.0, EIGHT: 400.0}, d(4): {ONE: 100.2, EIGHT: 400.8}}
    got = recommend(problem(*goals), campaign(truth))
    assert [a.setting for a in got.goals] == [d(2), d(2)]
    assert got.single == d(2)
    assert got.single_reason == "No goal loses by it."


def test_single_setting_of_one_goal_is_its_choice_though_a_shallower_one_ties_with_that() -> None:
    """A tie of a tie is none: depth 2 is 0.7 % behind the best."""
    got = recommend(problem(incumbent=0), campaign(flat((80, 119.6, 120.0, 120.4, 100))))
    assert only(got).setting == d(4)
    assert got.single == d(4)


def test_single_setting_must_be_allowed_in_every_goal() -> None:
    strict = goal("strict", {EIGHT: 1}, requirements=(Requirement(metric="output_tok_s", op=">", value=390),))
    truth = {d(2): {ONE: 100.0, EIGHT: 400.0}, d(4): {ONE: 130.0, EIGHT: 380.0}}
    got = recommend(problem(goal("alone"), strict), campaign(truth))
    assert [a.setting for a in got.goals] == [d(4), d(2)]
    assert got.single == d(2)


def test_no_single_setting_when_each_goal_refuses_the_others() -> None:
    lo = goal("lo", {ONE: 1}, requirements=(Requirement(metric="output_tok_s", op=">", value=120),))
    hi = goal("hi", {EIGHT: 1}, requirements=(Requirement(metric="output_tok_s", op=">", value=390),))
    truth = {d(2): {ONE: 100.0, EIGHT: 400.0}, d(4): {ONE: 130.0, EIGHT: 380.0}}
    got = recommend(problem(lo, hi), campaign(truth))
    assert got.single is None
    assert "lo refuses depth=2" in got.single_reason
    assert "hi refuses depth=4" in got.single_reason


def test_goal_without_an_answer_is_left_out_of_the_single_one_and_named() -> None:
    never = goal("never", {EIGHT: 1}, requirements=(Requirement(metric="output_tok_s", op=">", value=9e9),))
    truth = {d(2): {ONE: 100.0, EIGHT: 400.0}, d(4): {ONE: 130.0, EIGHT: 380.0}}
    got = recommend(problem(goal("alone"), never), campaign(truth))
    assert got.single == d(4)
    assert "never, for which nothing" in got.single_reason
    assert [x.goal for x in got.losses] == ["alone"]


# --- findings


def codes(answer: GoalAnswer) -> set[str]:
    return {f.code for f in answer.findings}


def test_few_rounds_say_what_they_can_show() -> None:
    truth = flat(PEAK_AT_4)
    two, four = (only(recommend(problem(), campaign(truth, rounds=n))) for n in (2, 4))
    (finding,) = [f for f in two.findings if f.code == "few_rounds"]
    assert finding.message.startswith("2 rounds: differences above about ")
    assert finding.remedy.startswith("budget.rounds = 4")
    assert "few_rounds" not in codes(four)


def test_findings_of_the_chosen_setting_are_attached_once() -> None:
    doubt = Finding(code="acceptance_high", message="too good")
    other = Finding(code="errors", message="not this one")
    h = changed(campaign(flat(PEAK_AT_4)), d(4), findings=(doubt,))
    answer = only(recommend(problem(), changed(h, d(6), findings=(other,))))
    assert [f for f in answer.findings if f.code != "few_rounds"] == [doubt]


def test_what_the_audit_finds_across_settings_is_attached() -> None:
    h = changed(campaign(flat(PEAK_AT_4)), d(4), output_tokens=6000)
    assert "output_length_differs" in {f.code for f in recommend(problem(), h).findings}


def test_objective_without_a_direction_is_refused() -> None:
    h = campaign(flat(PEAK_AT_4))
    trials = [with_values(t, {"acceptance_length": 2.0}) for t in h.trials]
    with pytest.raises(InputError, match="neither more nor less"):
        recommend(problem(goal(objective="acceptance_length")), history(*trials))


def test_acceptance_length_of_a_cell_is_from_summed_counts() -> None:
    counts = Acceptance(decode_tokens=300, rounds=100, drafting_rounds=100, drafted=400, accepted=200)
    h = changed(campaign(flat(PEAK_AT_4)), d(4), acceptance=counts)
    assert only(recommend(problem(), h)).ranking[0].cells[0].acceptance_length == 3.0


def test_recommendation_survives_its_journal() -> None:
    got = recommend(problem(goal("a"), goal("b", {Cell("x", 1): 1})), campaign(flat(PEAK_AT_4)))
    assert from_json(to_json(got), Recommendation) == got
