"""The twelve faults over real HTTP and real processes: one campaign in which each depth has a fault of its own."""

from __future__ import annotations

import msgspec
import pytest
from support_faults import EXPECTED, Expected
from support_lab import FAST, LabCampaign

from leadline.trial import TrialState

FIRST = 3  # fault 1 strikes at this depth, fault 2 at the next, ...
DEPTH = {e.number: FIRST + i for i, e in enumerate(EXPECTED)}
SECONDS = {9: 3.0}  # real ones


@pytest.fixture(scope="module")
def sailed(tmp_path_factory: pytest.TempPathFactory) -> LabCampaign:
    """Run until it ends; a paused campaign is run again, as an operator would."""
    faults = tuple(
        msgspec.structs.replace(e.fault, depths=(DEPTH[e.number],), seconds=SECONDS.get(e.number, e.fault.seconds))
        for e in EXPECTED
    )
    campaign = LabCampaign(
        tmp_path_factory.mktemp("faults"),
        msgspec.structs.replace(FAST, faults=faults),
        depths=(0, 2, *DEPTH.values()),
        requests=10,
        start_stall_s=2.0,
        request_stall_s=2.0,
    )
    for _ in range(10):
        done = campaign.run()
        assert not campaign.listening()
        if done.returncode == 0:
            return campaign
        assert done.returncode == 4, done.stderr
        assert "paused" in done.stderr
    raise AssertionError("the campaign does not end")


@pytest.mark.parametrize("expected", EXPECTED, ids=lambda e: f"{e.number}-{e.fault.kind}")
def test_the_table(sailed: LabCampaign, expected: Expected) -> None:
    trials = [t for t in sailed.ledger().history().trials if t.setting.depth == DEPTH[expected.number]]
    assert {t.state for t in trials} == {expected.state}
    for trial in trials:
        assert (trial.diagnosis.failure if trial.diagnosis else None) == expected.failure
        assert len(trial.voids) == expected.voids
        if expected.finding is not None:
            assert any(f.code == expected.finding for m in trial.measurements for f in m.findings)


def test_the_healthy_settings_are_complete(sailed: LabCampaign) -> None:
    trials = [t for t in sailed.ledger().history().trials if t.setting.depth in (0, 2)]
    assert [t.state for t in trials] == [TrialState.COMPLETE] * 2
    assert not any(t.voids for t in trials)


def test_the_recommendation_rests_on_none_of_the_faulty_ones(sailed: LabCampaign) -> None:
    healthy = {0, 2, DEPTH[9]}
    recommendation = sailed.ledger().decided.recommendation
    assert recommendation.single.depth in healthy
    for answer in recommendation.goals:
        assert answer.setting.depth in healthy
        assert {r.setting.depth for r in answer.ranking if not r.excluded} <= healthy
