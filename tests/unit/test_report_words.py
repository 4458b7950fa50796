"""Wording: numbers, verdicts, and settings with the engine's flags."""

from __future__ import annotations

import itertools

import pytest
import support_report as sample

from leadline.answer import GoalAnswer, Loss, Ratio
from leadline.report import answers, scale, words
from leadline.report.model import build
from leadline.space import Knob, Setting, Space

SHOWN = Ratio(ratio=1.25, lo=1.21, hi=1.29, pairs=4)
WORSE = Ratio(ratio=0.9, lo=0.85, hi=0.95, pairs=4)
NOT_SHOWN = Ratio(ratio=1.02, lo=0.97, hi=1.07, pairs=4)
NO_PAIRS = Ratio(ratio=1.5, lo=1.4, hi=1.6, pairs=0)


@pytest.mark.parametrize(
    ("value", "said"),
    [(1253.4, "1253"), (402.04, "402.0"), (41.66, "41.7"), (1.237, "1.24"), (0.1234, "0.123"), (0.0, "0"), (None, "-")],
)
def test_numbers_have_four_digits_at_most(value, said):
    assert words.number(value) == said


def test_bounds_have_the_decimals_of_their_value():
    assert words.bounds(99.95, 1000.2, 101.0) == "[100.0, 1000.2]"


def test_a_difference_that_is_not_shown_is_marked_and_has_no_percentage():
    assert words.ratio(NOT_SHOWN) == "1.020 [0.970, 1.070] ~"
    assert words.gain(NOT_SHOWN) == "no difference shown"
    assert words.verdict(NOT_SHOWN) == "no difference shown"


def test_a_difference_that_is_shown_has_a_percentage_and_no_mark():
    assert words.ratio(SHOWN) == "1.250 [1.210, 1.290]"
    assert words.gain(SHOWN) == "+25.0 %"
    assert words.gain(WORSE) == "-10.0 %"


def test_a_ratio_that_rests_on_no_pair_is_not_shown():
    for said in (words.ratio(NO_PAIRS), words.gain(NO_PAIRS), words.verdict(NO_PAIRS), words.ratio(None)):
        assert said == "not comparable"


def test_an_interval_names_its_confidence_and_the_launch_pairs():
    assert words.interval(SHOWN) == "95 % interval 1.210 to 1.290, 4 launch pairs"


def test_control_and_direction_characters_become_visible():
    assert words.clean("a\x1b[31m\u202eb\r\n") == "a\\x1b[31m\\u202eb\\r\n"


def test_the_engines_flag_stands_beside_each_knob():
    space = Space(
        knobs=(
            Knob(name="depth", values=(0, 4), flag="--spec-draft-n-max"),
            Knob(name="flag:--ubatch-size", values=(64,), flag="--ubatch-size"),
        )
    )
    setting = Setting.of({"depth": 4, "flag:--ubatch-size": 64})
    assert words.setting(setting, space) == "depth=4 (--spec-draft-n-max) flag:--ubatch-size=64"
    assert words.knobs(space) == "depth (--spec-draft-n-max), flag:--ubatch-size"


def test_a_goal_that_keeps_the_incumbent_claims_no_gain():
    view = answers.goals(sample.simulated())[2]
    assert view.action == "keep depth=4 (--spec-ngram-simple-size-m)"
    assert (view.verdict, view.gain, view.interval) == ("today's setting", "", "")


def test_a_goal_without_an_answer_says_so_and_why():
    report = sample.measured()
    assert report.recommendation is not None
    silent = GoalAnswer(goal="edit", objective="output_tok_s", setting=None, score=None, reason="Nothing ran.")
    view = answers._goal(report, silent, None)
    assert (view.action, view.verdict, view.reason) == ("no recommendation", "", "Nothing ran.")


def test_what_a_goal_loses_is_a_percentage_only_when_shown():
    def loses(ratio: Ratio, own: bool = False) -> str:
        return answers._loss(Loss(goal="g", ratio=ratio), own).loses

    assert loses(WORSE) == "10.0 %"
    assert loses(NOT_SHOWN) == "no difference shown"
    assert loses(SHOWN) == "nothing"
    assert loses(NO_PAIRS) == "not comparable"
    assert loses(WORSE, own=True).startswith("nothing")


def test_a_campaign_without_an_answer_says_its_state():
    report = build(sample.problem(), sample.history(), None, sample.META)
    assert answers.pending(report) == "No recommendation. State: complete."
    assert answers.pending(sample.running()).startswith("No recommendation yet. State: running: 5 of 14")


def test_an_axis_never_blows_up_noise():
    low, high = scale.padded([100.0, 101.0])
    assert high - low > 30
    assert low < 100 < 101 < high


def test_an_axis_holds_its_values_and_stays_at_0_or_above():
    low, high = scale.padded([0.5, 200.0])
    assert low == 0.0
    assert high > 200


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0.0, 10.0, [0, 2, 4, 6, 8, 10]), (38.0, 59.0, [40, 45, 50, 55]), (0.0, 0.03, [0, 0.01, 0.02, 0.03])],
)
def test_ticks_are_round(low, high, expected):
    assert scale.ticks(low, high) == pytest.approx(expected)


def test_ratio_ticks_hold_1_and_keep_their_distance():
    low, high = scale.ratio_range([(0.7, 0.8), (1.2, 1.4)])
    ticks = scale.ratio_ticks(low, high, 0.1)
    places = [scale.log_place(t, low, high) for t in ticks]
    assert 1.0 in ticks
    assert min(b - a for a, b in itertools.pairwise(places)) >= 0.1


def test_extreme_ratios_stop_at_the_ends_of_the_axis():
    low, high = scale.ratio_range([(0.0001, 90.0)])
    assert (low, high) == (0.2, 5.0)
    assert scale.log_place(0.0, low, high) == 0.0
    assert scale.log_place(90.0, low, high) == 1.0
