"""What `run` shows while it goes on: lines that stay, and on a terminal what happens at the moment."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support_sim import Sim

from leadline.campaign import Campaign
from leadline.cli.progress import Progress
from leadline.errors import NoAnswerError
from leadline.journal.events import SessionOpened
from leadline.journal.file import Journal
from leadline.outlook import preview
from leadline.testing.faults import Fault, FaultKind
from leadline.testing.lab import Lab
from leadline.testing.spec import LabSpec


class Screen:
    """progress.Screen that remembers what it was given."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.moments: list[str] = []

    def line(self, text: str) -> None:
        self.lines.append(text)

    def now(self, text: str) -> None:
        self.moments.append(text)

    def close(self) -> None:
        self.lines.append("closed")


class Shown(Sim):
    """A campaign in virtual time with its progress on a Screen."""

    def campaign(self, journal: Journal) -> Campaign:
        built = super().campaign(journal)
        self.screen = Screen()
        ledger = journal.ledger
        self.progress = Progress(
            ledger, lambda: len(preview(built.strategy, self.problem, ledger.history())), self.screen
        )
        journal.watch = self.progress
        return built


def sailed(folder: Path, *faults: Fault, **options) -> list[str]:
    sim = Shown(Lab(LabSpec(faults=faults, launch_sd=0.0)), folder, **options)
    try:
        sim.run()
    except NoAnswerError as paused:
        sim.screen.lines.append(str(paused))
    return sim.screen.lines


def test_each_launch_is_numbered_named_and_told_why(tmp_path: Path) -> None:
    lines = sailed(tmp_path, rounds=1)
    heads = [line for line in lines if line.startswith("[")]
    assert [head.split("]")[0] for head in heads] == ["[1/4", "[2/4", "[3/4", "[4/4"]
    assert heads[0] == "[1/4] depth=2 round 1, incumbent: The setting in force today: everything is compared with it."


def test_the_time_that_is_left_gets_shorter_and_is_not_told_at_the_end(tmp_path: Path) -> None:
    lines = sailed(tmp_path, rounds=2)
    told = [line for line in lines if line.startswith("    complete")]
    seconds = [float(m[1]) for line in told if (m := re.fullmatch(r"    complete; about (\d+) s left", line))]
    assert len(seconds) == 7
    assert seconds[0] > 2 * seconds[-1] > 0
    assert told[-1] == "    complete"


def test_a_measurement_shows_speed_and_counts_and_depth_0_no_counts(tmp_path: Path) -> None:
    lines = sailed(tmp_path, rounds=1)
    measured = [line for line in lines if " tok/s" in line]
    assert len(measured) == 8
    assert sum("accepted " in line for line in measured) == 6


def test_what_goes_wrong_is_told_with_the_reason(tmp_path: Path) -> None:
    lines = sailed(tmp_path, Fault(kind=FaultKind.OOM_AT_START, depths=(4,)), rounds=1)
    assert any(line.startswith("    void: ") for line in lines)
    assert any(line.startswith("    infeasible (not at all): ") for line in lines)


def test_the_answer_comes_last(tmp_path: Path) -> None:
    lines = sailed(tmp_path, rounds=1)
    assert lines[-2].startswith("all: depth=")
    assert lines[-1] == "ended: every setting has been launched in 1 round"


def test_going_on_says_what_is_done_and_what_was_repaired(tmp_path: Path) -> None:
    sim = Shown(Lab(), tmp_path, rounds=1)
    sim.run()
    sim.screen.lines.clear()
    sim.progress(SessionOpened(pid=1, host="here", repaired="cut 12 bytes of an unfinished last line"))
    assert sim.screen.lines == [
        "journal repaired: cut 12 bytes of an unfinished last line",
        "going on: 4 trials are complete",
    ]


def test_a_wait_for_the_window_is_one_line_and_moments(tmp_path: Path) -> None:
    sim = Shown(Lab(), tmp_path, rounds=1)
    sim.run()
    sim.screen.lines.clear()
    sim.screen.moments.clear()
    for seconds in (7200.0, 7170.0, 7140.0):
        sim.progress.wait(seconds)
    assert sim.screen.lines == ["waiting 120 min for window.hours"]
    assert sim.screen.moments[-1] == "waiting 119 min for window.hours"


@pytest.mark.parametrize("tokens", [0, 240])
def test_within_a_measurement_the_moment_tells_requests_and_tokens(tmp_path: Path, tokens: int) -> None:
    sim = Shown(Lab(), tmp_path, rounds=1)
    sim.run()
    sim.progress.load(3, 8, tokens)
    assert sim.screen.moments[-1].endswith(f": 3/8 requests, {tokens} tokens")
