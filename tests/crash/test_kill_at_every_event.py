"""SIGKILL of `leadline run` at each event of its journal, and of its parts: what is left, and how it goes on."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import crash_driver
import pytest
from support_crash import (
    GONE_S,
    SUPERVISOR,
    WORKER,
    Crash,
    assert_whole,
    freeze,
    measuring,
    starting,
    states,
    wait_until,
)

from leadline.journal.events import tag
from leadline.trial import TrialState

SETTINGS = ("depth=0", "depth=2", "depth=4")
TRIAL = (
    "trial_planned", "deploy_started", "deploy_finished", "measure_started", "measured", "measure_started", "measured",
    "returning", "returned", "trial_ended",
)  # fmt: skip
EVENTS = ("campaign_started", "session_opened", *TRIAL * len(SETTINGS), "decided", "session_closed")
"""Of a campaign that nothing disturbs. A test below holds this list to what really happens."""
SAMPLE = (
    ("trial_planned", 2),
    ("deploy_started", 1),
    ("deploy_finished", 2),
    ("measure_started", 4),
    ("measured", 1),
    ("returning", 2),
    ("trial_ended", 3),
    ("decided", 1),
)
"""One event of each kind that changes what is to be done, in different trials. `make torture` takes all events."""


def place(kind: str, number: int) -> int:
    return [i for i, k in enumerate(EVENTS, 1) if k == kind][number - 1]


@pytest.fixture
def it(tmp_path: Path) -> Iterator[Crash]:
    crash = Crash.lab(tmp_path / "campaign")
    yield crash
    crash.end()


def kill_at(it: Crash, number: int) -> None:
    killed = it.start([sys.executable, crash_driver.__file__, str(it.folder), str(number)])
    assert killed.ended() == 128 + 9, killed.said()
    it.assert_all_gone(killed)
    assert [tag(e) for e in it.entries()] == list(EVENTS[:number])
    before, live = it.journal.read_bytes(), it.ledger().live_trials()
    it.finish()
    assert it.journal.read_bytes().startswith(before)
    trials = assert_whole(it, SETTINGS).history().trials
    again = [t.id for t in trials if t.state is TrialState.INTERRUPTED]
    assert again == [t.id for t in live]
    assert len(trials) == len(SETTINGS) + len(again)


def test_the_events_of_an_undisturbed_campaign(it: Crash) -> None:
    it.finish()
    assert [tag(e) for e in it.entries()] == list(EVENTS)
    assert_whole(it, SETTINGS)


@pytest.mark.parametrize("number", [place(*s) for s in SAMPLE], ids=[s[0] for s in SAMPLE])
def test_killed_at_an_event_of_each_kind(it: Crash, number: int) -> None:
    kill_at(it, number)


@pytest.mark.torture
@pytest.mark.parametrize("number", range(1, len(EVENTS) + 1), ids=lambda n: f"{n:02d}-{EVENTS[n - 1]}")
def test_killed_at_every_event(it: Crash, number: int) -> None:
    kill_at(it, number)


def test_killed_in_the_middle_of_a_load(it: Crash) -> None:
    killed = starting(it)
    killed.signal(signal.SIGKILL)
    assert killed.ended() == 128 + 9
    it.assert_all_gone(killed)
    it.set_lab()
    it.finish()
    assert states(assert_whole(it, SETTINGS)) == ["interrupted", *["complete"] * 3]


def test_the_next_start_waits_for_a_server_that_only_sigkill_ends(it: Crash) -> None:
    """It is frozen, so that it cannot hear SIGTERM, and the next run starts while it still holds the port."""
    killed = measuring(it)
    server = killed.find("labserver")
    freeze(server)
    killed.signal(signal.SIGKILL)
    assert killed.ended() == 128 + 9
    assert server.is_running()
    it.set_lab()
    following = it.sail()
    wait_until(lambda: not killed.crew(), "the end of the first server", GONE_S)
    assert following.ended() == 0, following.said()
    assert states(assert_whole(it, SETTINGS)) == ["interrupted", *["complete"] * 3]


def test_leadline_and_its_supervisor_killed_in_one_moment(it: Crash) -> None:
    killed = measuring(it)
    supervisors = killed.crew(SUPERVISOR)
    assert len(supervisors) == 2
    for process in supervisors:
        freeze(process)  # so that neither can act between the first blow and the last
    for process in (killed.process, *supervisors):
        process.send_signal(signal.SIGKILL)
    assert killed.ended() == 128 + 9
    it.assert_all_gone(killed)
    it.set_lab()
    it.finish()
    assert states(assert_whole(it, SETTINGS)) == ["interrupted", *["complete"] * 3]


def test_a_load_worker_that_is_killed_gives_no_number_and_pauses_the_campaign(it: Crash) -> None:
    """Our side failed: that says nothing about the setting, which is asked for again."""
    hurt = measuring(it)
    hurt.find(WORKER).kill()
    assert hurt.ended() == 4
    assert "load worker" in hurt.said()
    assert not it.left(hurt)
    (trial,) = it.ledger().history().trials
    assert (trial.state, trial.measurements) == (TrialState.FAILED, ())
    assert it.ledger().in_force is None
    it.set_lab()
    it.finish()
    assert states(assert_whole(it, SETTINGS)) == ["failed", *["complete"] * 3]


@pytest.mark.parametrize("which", ["outer", "inner"])
def test_a_supervisor_that_is_killed_says_nothing_about_the_setting(it: Crash, which: str) -> None:
    hurt = measuring(it)
    inner, outer = sorted(hurt.crew(SUPERVISOR), key=lambda p: p.ppid() == hurt.process.pid)
    (outer if which == "outer" else inner).kill()
    assert hurt.ended() == 4
    assert "paused" in hurt.said()
    assert not it.left(hurt)
    (trial,) = it.ledger().history().trials
    assert (trial.state, trial.measurements) == (TrialState.FAILED, ())
    it.set_lab()
    it.finish()
    assert states(assert_whole(it, SETTINGS)) == ["failed", *["complete"] * 3]
