"""A plan as a value: exact differences between launches, and what is still to come."""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from support_sim import BASE, Sim

from leadline.build import plugin
from leadline.errors import InputError, NoAnswerError
from leadline.goal import Budget
from leadline.launch import LaunchSpec
from leadline.outlook import difference, look_ahead
from leadline.space import Setting
from leadline.testing.lab import Lab
from leadline.testing.spec import LabSpec
from leadline.trial import History, TrialState


def launch(*argv: str, **env: str) -> LaunchSpec:
    return LaunchSpec(argv=("server", *argv), env=tuple(env.items()))


@pytest.mark.parametrize(
    ("before", "after", "removed", "added"),
    [
        (launch("-c", "4096"), launch("-c", "4096"), (), ()),
        (launch("-c", "4096"), launch("-c", "8192"), ("-c 4096",), ("-c 8192",)),
        (launch("--slots"), launch(), ("--slots",), ()),
        (launch("--flag", "-1"), launch("--flag", "-2"), ("--flag -1",), ("--flag -2",)),
        (launch("--slots", "-np", "4"), launch("--slots", "-np", "8"), ("-np 4",), ("-np 8",)),
        (launch("--depth=2"), launch("--depth=4"), ("--depth=2",), ("--depth=4",)),
        (launch(THREADS="1"), launch(THREADS="2"), ("THREADS=1",), ("THREADS=2",)),
        (launch("-a", "1", "-b", "2"), launch("-b", "2"), ("-a 1",), ()),
        (launch(), launch(NEW="x"), (), ("NEW=x",)),
    ],
)
def test_difference(before: LaunchSpec, after: LaunchSpec, removed: tuple, added: tuple) -> None:
    assert difference(before, after) == (removed, added)


def test_a_difference_shows_no_secret() -> None:
    before, after = launch("--api-key", "hush", API_TOKEN="hush"), launch("--api-key", "loud", API_TOKEN="loud", X="1")
    shown = str(difference(before, after))
    assert shown == "((), ('X=1',))"


NOTHING_YET = History()


def look(sim: Sim, history: History = NOTHING_YET, **options):
    fields = {"trial_s": None, "based_on": "nothing", "guard": "a guard"}
    return look_ahead(
        problem=sim.problem,
        strategy=plugin("strategies", "grid", "strategy"),
        history=history,
        render=sim.render,
        base=BASE,
        **{**fields, **options},
    )


def test_todays_setting_comes_first_then_by_depth(tmp_path: Path) -> None:
    outlook = look(Sim(Lab(), tmp_path, depths=(6, 2, 4, 0)))
    assert [(d.setting.depth, d.incumbent, d.launches) for d in outlook.settings] == [
        (2, True, 2),
        (0, False, 2),
        (4, False, 2),
        (6, False, 2),
    ]
    assert outlook.launches == 8
    assert outlook.cells == ("coding@1", "coding@4")


def test_minutes_are_those_of_all_launches_to_come_and_unknown_before_one_was_timed(tmp_path: Path) -> None:
    sim = Sim(Lab(), tmp_path)
    assert look(sim).minutes is None
    assert look(sim, trial_s=30.0).minutes == 4.0


def test_a_setting_that_the_engine_refuses_is_shown_with_the_reason(tmp_path: Path) -> None:
    sim = Sim(Lab(), tmp_path)
    allowed = sim.render

    def render(setting: Setting) -> LaunchSpec:
        if setting.depth == 4:
            raise InputError("no such depth today")
        return allowed(setting)

    outlook = look_ahead(
        problem=sim.problem, strategy=plugin("strategies", "grid", "strategy"), history=History(), render=render,
        base=BASE, guard="", trial_s=None, based_on="",
    )  # fmt: skip
    refused = {d.setting.depth: d.refused for d in outlook.settings}
    assert refused == {2: "", 0: "", 4: "no such depth today", 6: ""}


def test_what_is_planned_is_what_runs_in_number_and_in_kind(tmp_path: Path) -> None:
    sim = Sim(Lab(LabSpec(launch_sd=0.0)), tmp_path)
    planned = {d.launch: d.launches for d in look(sim).settings}
    launched: Counter[str] = Counter()
    sim.run(lambda event: launched.update([event.launch]) if hasattr(event, "undo") else None)
    assert launched == planned
    assert look(sim, sim.ledger().history()).launches == 0


def test_limits_are_planned_with_and_cut_the_same_launches_that_run_would(tmp_path: Path) -> None:
    sim = Sim(Lab(), tmp_path)
    sim.problem = msgspec.structs.replace(sim.problem, budget=Budget(rounds=2, max_launches=3))
    outlook = look(sim, most=3)
    assert outlook.launches == 3
    planned = {d.setting for d in outlook.settings}
    with contextlib.suppress(NoAnswerError):
        sim.run()
    trials = sim.ledger().history().trials
    assert {t.setting for t in trials} == planned
    assert [t.state for t in trials] == [TrialState.COMPLETE] * 3
    assert look(sim, sim.ledger().history(), most=0).settings == ()


def test_a_setting_queued_by_hand_is_part_of_the_plan(tmp_path: Path) -> None:
    sim = Sim(Lab(), tmp_path)
    outlook = look(sim, History(queued=(Setting.of(depth=9),)))
    assert [d.launches for d in outlook.settings if d.setting.depth == 9] == [2]
