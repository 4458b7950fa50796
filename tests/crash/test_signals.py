"""SIGTERM, SIGHUP, Ctrl-C and a closed terminal: Leadline ends in order, and what it started ends before it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support_crash import (
    Crash,
    Terminal,
    Voyage,
    assert_whole,
    freeze,
    measuring,
    mute,
    nohup,
    starting,
    states,
    told,
    wait_until,
)

from leadline.journal.events import tag
from leadline.trial import TrialState

SETTINGS = ("depth=0", "depth=2")
SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
PHASES = (starting, measuring)
Phase = Callable[..., Voyage]


@pytest.fixture
def it(tmp_path: Path) -> Iterator[Crash]:
    crash = Crash.lab(tmp_path / "campaign", depths=(0, 2))
    yield crash
    crash.end()


def assert_ended_in_order(it: Crash, voyage: Voyage, number: signal.Signals) -> None:
    """At the very moment of its end nothing is left, and the journal says so."""
    assert voyage.ended() == 128 + number, voyage.said()
    assert not it.left(voyage)
    ledger = it.ledger()
    (trial,) = ledger.history().trials
    assert (trial.state, trial.measurements) == (TrialState.INTERRUPTED, ())
    assert ledger.in_force is None
    assert [tag(e) for e in it.entries()][-4:] == ["returning", "returned", "trial_ended", "session_closed"]
    assert ledger.closed.reason == f"stopped by signal {int(number)}"
    assert not ledger.closed.finished


def assert_goes_on(it: Crash) -> None:
    it.set_lab()
    it.finish()
    assert states(assert_whole(it, SETTINGS)) == ["interrupted", "complete", "complete"]


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal(it: Crash, phase: Phase, number: signal.Signals) -> None:
    voyage = phase(it)
    voyage.signal(number)
    assert_ended_in_order(it, voyage, number)
    assert_goes_on(it)


@pytest.mark.parametrize("phase", PHASES)
def test_more_signals_while_it_gives_back(it: Crash, phase: Phase) -> None:
    """The server cannot hear SIGTERM, so that giving back takes the whole grace."""
    voyage = phase(it)
    server = voyage.find("labserver")
    freeze(server)
    voyage.signal(signal.SIGTERM)
    wait_until(lambda: told(server.pid, signal.SIGTERM), "SIGTERM of the server")
    for number in SIGNALS:
        voyage.signal(number)
    assert voyage.process.poll() is None
    assert server.is_running()
    assert_ended_in_order(it, voyage, signal.SIGTERM)


def test_a_signal_while_the_server_lets_us_wait_for_a_token(it: Crash) -> None:
    voyage = mute(it)
    voyage.signal(signal.SIGTERM)
    assert_ended_in_order(it, voyage, signal.SIGTERM)


def test_a_signal_while_the_next_run_waits_for_the_server_of_one_that_was_killed(it: Crash) -> None:
    killed = measuring(it)
    server = killed.find("labserver")
    freeze(server)
    killed.signal(signal.SIGKILL)
    assert killed.ended() == 128 + 9
    following = it.sail()
    it.await_event("session_opened", 2)
    following.signal(signal.SIGTERM)
    assert following.ended() == 143
    assert it.ledger().closed is not None
    it.assert_all_gone(killed)
    assert_goes_on(it)


@pytest.mark.parametrize("phase", PHASES)
def test_the_terminal_is_closed(it: Crash, phase: Phase) -> None:
    terminal = Terminal()
    voyage = phase(it, terminal)
    terminal.close()
    assert_ended_in_order(it, voyage, signal.SIGHUP)
    assert_goes_on(it)


def test_nohup_goes_on_when_the_terminal_is_closed(it: Crash) -> None:
    voyage = it.sail(setup=nohup)
    it.await_event("measure_started")
    voyage.signal(signal.SIGHUP)
    assert voyage.ended() == 0, voyage.said()
    assert states(assert_whole(it, SETTINGS)) == ["complete", "complete"]


def test_somebody_who_reads_the_progress_and_goes_away_costs_no_trial(it: Crash) -> None:
    reader, writer = os.pipe()
    voyage = it.sail(stderr=writer)
    os.close(writer)
    it.await_event("deploy_started")
    os.close(reader)
    assert voyage.ended() == 0, voyage.said()
    assert not it.left(voyage)
    assert states(assert_whole(it, SETTINGS)) == ["complete", "complete"]
