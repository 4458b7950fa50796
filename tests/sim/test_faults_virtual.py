"""The twelve faults in virtual time: what each makes of its trial, and that no other trial is touched.

The same table is run against the real lab server over HTTP in tests/e2e/test_faults_real.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support_faults import EXPECTED, SICK, Expected
from support_sim import Sim, goal

from leadline.campaign import Conduct
from leadline.errors import NoAnswerError
from leadline.evidence import Failure
from leadline.measure import LoadRules
from leadline.testing.faults import Fault, FaultKind
from leadline.testing.lab import Lab
from leadline.testing.spec import LabSpec
from leadline.trial import TrialState


def sail(folder: Path, fault: Fault, **options) -> tuple[Sim, object]:
    """Run to the end; a paused campaign is run again, as an operator would."""
    sim = Sim(Lab(LabSpec(faults=(fault,)), seed=5), folder, start_stall_s=20.0, **options)
    for _ in range(8):
        try:
            return sim, sim.run()
        except NoAnswerError as stopped:
            paused = stopped
        assert "paused" in str(paused)
        assert sim.ledger().in_force is None
    raise AssertionError("the campaign does not end")


@pytest.mark.parametrize("expected", EXPECTED, ids=lambda e: f"{e.number}-{e.fault.kind}")
def test_the_table(tmp_path: Path, expected: Expected) -> None:
    sim, recommendation = sail(tmp_path, expected.fault)
    history = sim.ledger().history()
    sick = [t for t in history.trials if t.setting.depth == SICK]
    assert {t.state for t in sick} == {expected.state}
    assert {t.diagnosis.failure if t.diagnosis else None for t in sick} == {expected.failure}
    for trial in sick:
        assert len(trial.voids) == expected.voids
        assert expected.finding is None or any(
            f.code == expected.finding for m in trial.measurements for f in m.findings
        )
    well = [t for t in history.trials if t.setting.depth != SICK]
    assert {t.state for t in well} == {TrialState.COMPLETE}
    assert sorted(t.setting.depth for t in well) == [0, 0, 2, 2, 6, 6]
    assert not any(v for t in well for v in t.voids)
    assert (recommendation.single.depth == SICK) == expected.recommendable


def test_no_failed_setting_is_launched_more_often_than_needed(tmp_path: Path) -> None:
    """An INFEASIBLE setting is not tried in the second round; a FAILED one is asked for once more."""
    for expected in EXPECTED:
        folder = tmp_path / str(expected.number)
        folder.mkdir()
        sim, _ = sail(folder, expected.fault)
        launches = sum(1 for t in sim.ledger().history().trials if t.setting.depth == SICK)
        allowed = {TrialState.INFEASIBLE: 1, TrialState.FAILED: 2, TrialState.COMPLETE: 2}
        assert launches <= allowed[expected.state], expected.number


def test_out_of_memory_above_16_says_how_far_it_fits(tmp_path: Path) -> None:
    fault = Fault(kind=FaultKind.OOM_UNDER_LOAD, depths=(SICK,), above_running=16)
    sim = Sim(
        Lab(LabSpec(faults=(fault,)), seed=5),
        tmp_path,
        goals=(goal("all", "coding@1", "coding@16", "coding@32"),),
    )
    sim.load = LoadRules(warmup=0, requests=8, per_user=1)
    recommendation = sim.run()
    (sick,) = [t for t in sim.ledger().history().trials if t.setting.depth == SICK]
    assert (sick.state, sick.extent) == (TrialState.INFEASIBLE, "fits up to C=16")
    assert sick.diagnosis.failure is Failure.DEVICE_OOM_LOAD
    assert [m.cell.concurrency for m in sick.measurements] == [1, 16]
    ranked = next(r for r in recommendation.goals[0].ranking if r.setting.depth == SICK)
    assert "C=16" in ranked.excluded
    assert recommendation.single.depth != SICK


@pytest.mark.parametrize("kind", [FaultKind.RESTART, FaultKind.FOREIGN, FaultKind.HANG])
def test_a_fault_that_strikes_once_costs_one_void_and_the_trial_is_complete(tmp_path: Path, kind: FaultKind) -> None:
    sim, _ = sail(tmp_path, Fault(kind=kind, launches=(2,)))
    history = sim.ledger().history()
    assert {t.state for t in history.trials} == {TrialState.COMPLETE}
    assert [len(t.voids) for t in history.trials].count(1) == 1
    assert history.trials[1].attempt == 2


def test_foreign_requests_may_be_skipped_or_kept(tmp_path: Path) -> None:
    fault = Fault(kind=FaultKind.FOREIGN, depths=(SICK,))
    for policy, state in (("skip", TrialState.FAILED), ("keep", TrialState.COMPLETE)):
        folder = tmp_path / policy
        folder.mkdir()
        sim = Sim(Lab(LabSpec(faults=(fault,)), seed=5), folder, conduct=Conduct(foreign=policy))
        sim.run()
        sick = [t for t in sim.ledger().history().trials if t.setting.depth == SICK]
        assert {t.state for t in sick} == {state}
        if policy == "keep":
            assert all(any(f.code == "foreign_requests" for f in m.findings) for t in sick for m in t.measurements)


def test_a_server_that_is_mute_for_a_while_is_waited_for(tmp_path: Path) -> None:
    sim, _ = sail(tmp_path, Fault(kind=FaultKind.MUTE, depths=(SICK,), seconds=7.0))
    assert {t.state for t in sim.ledger().history().trials} == {TrialState.COMPLETE}
