"""Killed at each event and gone on with ten hours later, in virtual time: the pause counts for nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from support_crash import slots
from support_sim import Sim, goal

from leadline.campaign import Conduct
from leadline.testing.lab import Lab
from leadline.testing.spec import LabSpec

PAUSE_S = 36_000
EVENTS = 28  # of this campaign, undisturbed


def world(folder: Path) -> Sim:
    conduct = Conduct(max_minutes_without_service=30)
    goals = (goal("one", "coding@1"),)
    return Sim(Lab(LabSpec(), seed=3), folder, depths=(0, 2, 4), goals=goals, rounds=1, requests=2, conduct=conduct)


def kill_at(sim: Sim, number: int) -> None:
    """The journal as it was when event `number` was on disk; whatever ran ends with its supervisor."""
    lines = (sim.folder / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (sim.folder / "journal.jsonl").write_bytes(b"".join(lines[:number]))
    sim.lab.disconnect()


@pytest.mark.parametrize("number", range(1, EVENTS + 1))
def test_goes_on_ten_hours_later(tmp_path: Path, number: int) -> None:
    sim = world(tmp_path)
    sim.run()
    assert sim.ledger().events == EVENTS
    undisturbed_s = sim.ledger().without_service_s()
    kill_at(sim, number)
    killed = sim.ledger()
    sim.lab.clock.sleep(PAUSE_S)
    sim.run()
    ledger = sim.ledger()
    assert ledger.closed.finished
    assert ledger.in_force is None
    assert slots(ledger.history().trials) == {(1, f"depth={depth}"): 1 for depth in (0, 2, 4)}
    assert killed.without_service_s() <= ledger.without_service_s() <= killed.without_service_s() + undisturbed_s
    assert ledger.spent_s() < PAUSE_S / 10
