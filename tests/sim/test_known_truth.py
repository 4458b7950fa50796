"""The lab's truth is known: does a campaign find it?

Frozen before the code was scored: the lab's numbers below, the goals, and seeds 1 to 20. The best setting leads by 4 %
or more for each goal (`test_the_lab_is_as_described` computes it from noise-free physics).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support_sim import Sim, goal

from leadline.measure import LoadRules
from leadline.testing.lab import Lab
from leadline.testing.physics import truth
from leadline.testing.spec import LabSpec
from leadline.trial import Trial, TrialState
from leadline.workloads.file import FileWorkload

SEEDS = range(1, 21)
DEPTHS = (0, 1, 2, 4, 8)
SPEC = LabSpec(launch_sd=0.006, point_sd=0.004)
GOALS = (goal("one editor", "coding@1"), goal("many editors", "coding@16"), goal("many chats", "chat@16"))
BEST = {"one editor": 4, "many editors": 2, "many chats": 1}
LEAD = 1.04
PROMPT = ("Please go on with this text in your own words and keep to its style. " * 12)[:795]
PROMPT_TOKENS = 200  # four characters a token, in the lab


def long_workload(name: str) -> FileWorkload:
    body = {"messages": [{"role": "user", "content": ""}], "max_tokens": 128}
    lines = []
    for i in range(400):
        body["messages"][0]["content"] = f"{i:03}. {PROMPT}"
        lines.append(json.dumps({"id": str(i), **body}))
    return FileWorkload(name, lines, "made by the test", {})


WORKLOADS = {name: long_workload(name) for name in ("coding", "chat")}


def true_tok_s(depth: int, workload: str, concurrency: int) -> float:
    return truth(
        SPEC, depth=depth, concurrency=concurrency, max_running=64, mix={workload: 1.0}, prompt_tokens=PROMPT_TOKENS
    )


@pytest.fixture(scope="module")
def truths() -> dict[tuple[str, int], float]:
    cells = {c for g in GOALS for c in g.cells()}
    return {(str(c), d): true_tok_s(d, c.workload, c.concurrency) for c in cells for d in DEPTHS}


def test_the_lab_is_as_described(truths: dict[tuple[str, int], float]) -> None:
    for g in GOALS:
        (cell,) = g.cells()
        ranked = sorted(DEPTHS, key=lambda d: truths[str(cell), d], reverse=True)
        assert ranked[0] == BEST[g.name]
        assert truths[str(cell), ranked[0]] >= LEAD * truths[str(cell), ranked[1]]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_campaign_finds_it(tmp_path: Path, seed: int, truths: dict[tuple[str, int], float]) -> None:
    sim = Sim(Lab(SPEC, seed=seed), tmp_path, depths=DEPTHS, goals=GOALS, rounds=3, workloads=WORKLOADS)
    sim.load = LoadRules(requests=80, per_user=5)
    recommendation = sim.run()
    assert {a.goal: a.setting.depth for a in recommendation.goals} == BEST
    for answer in recommendation.goals:
        chosen = next(r for r in answer.ranking if r.setting == answer.setting)
        (result,) = chosen.cells
        assert result.value == pytest.approx(truths[str(result.cell), answer.setting.depth], rel=0.02)
    trials = sim.ledger().history().trials
    assert {m.prompt_tokens / m.requests for t in trials for m in t.measurements} == {PROMPT_TOKENS}
    assert {t.state for t in trials} == {TrialState.COMPLETE}
    assert_counts_are_the_realised_ones(trials, sim.lab)


def assert_counts_are_the_realised_ones(trials: tuple[Trial, ...], lab: Lab) -> None:
    """Exactly, in every measurement of the campaign: what the counters gave is what the lab really did."""
    measured = [m.acceptance for t in trials for m in t.measurements]
    assert measured == [r.total for r in lab.realised]
