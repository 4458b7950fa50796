"""Small leads against room for requests: when a setting that memory lets run more at once is preferred."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest
from support_analysis import EIGHT, ONE, campaign, d, flat, goal, problem

from leadline.analysis.recommend import recommend
from leadline.answer import GoalAnswer
from leadline.evidence import Effective
from leadline.goal import Cell
from leadline.space import Setting
from leadline.trial import History

NEAR_6 = (80, 100, 120.0, 121.8, 110)  # depth 6 is 1.5 % ahead of 4


def told(h: History, room: Mapping[Setting, int]) -> History:
    """The server of each launch said how many requests it runs; that of others said nothing."""
    trials = (
        msgspec.structs.replace(t, effective=Effective(max_running=room.get(t.setting)) if t.setting in room else None)
        for t in h.trials
    )
    return History(trials=tuple(trials))


def answer(h: History, cell: Cell = ONE, incumbent: int = 2) -> GoalAnswer:
    (found,) = recommend(problem(goal(weights={cell: 1}), incumbent=incumbent), h).goals
    return found


def test_a_lead_below_two_percent_is_not_worth_two_places() -> None:
    found = answer(told(campaign(flat(NEAR_6), rounds=40), {d(4): 12, d(6): 10}))
    assert found.setting == d(4)
    assert "depth=6 scored best (1.015" in found.reason
    assert "10 requests fit" in found.reason
    assert "12 into this one's" in found.reason


@pytest.mark.parametrize(
    ("room", "why"),
    [
        ({d(4): 12, d(6): 12}, "as much room"),
        ({d(4): 10, d(6): 12}, "less room"),
        ({d(4): 100, d(6): 97}, "hardly more room"),
        ({d(4): 12}, "nobody knows"),
        ({}, "nobody knows of either"),
    ],
)
def test_the_lead_counts_otherwise(room: dict[Setting, int], why: str) -> None:
    assert answer(told(campaign(flat(NEAR_6)), room)).setting == d(6), why


def test_a_lead_above_two_percent_counts_whatever_the_room() -> None:
    h = campaign(flat((80, 100, 120.0, 123.0, 110)))
    assert answer(told(h, {d(4): 40, d(6): 10})).setting == d(6)


def test_a_load_that_fills_the_server_has_its_room_in_the_score_already() -> None:
    h = told(campaign(flat(NEAR_6, EIGHT)), {d(4): 8, d(6): 7})
    assert answer(h, EIGHT).setting == d(6)
    assert answer(told(h, {d(4): 10, d(6): 8}), EIGHT).setting == d(4)


def test_of_equals_the_deeper_one_wins_when_it_has_more_room() -> None:
    h = campaign(flat((80, 100, 120.0, 120.4, 110)))
    assert answer(told(h, {d(4): 10, d(6): 12})).setting == d(6)


def test_room_that_the_operator_chose_is_no_reason() -> None:
    few, many = d(4, max_running=8), d(4, max_running=64)
    p = msgspec.structs.replace(problem(), incumbent=few)
    h = told(campaign({few: {ONE: 101.5}, many: {ONE: 100.0}}), {few: 8, many: 64})
    (found,) = recommend(p, h).goals
    assert found.setting == few


def test_one_launch_that_did_not_say_leaves_the_room_unknown() -> None:
    h = told(campaign(flat(NEAR_6)), {d(4): 12, d(6): 10})
    silent = msgspec.structs.replace(next(t for t in h.trials if t.setting == d(4)), effective=None)
    trials = tuple(silent if t.id == silent.id else t for t in h.trials)
    assert answer(History(trials=trials)).setting == d(6)


def test_an_incumbent_within_two_percent_that_has_more_room_is_kept() -> None:
    found = answer(told(campaign(flat(NEAR_6), rounds=40), {d(4): 12, d(6): 10}), incumbent=4)
    assert found.setting == d(4)
    assert found.reason.startswith("Keep what you have. depth=6 scored best")
