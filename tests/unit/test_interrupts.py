"""Stop signals as one exception. The signals are real; they are raised in this very process."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator

import pytest

from leadline.errors import InterruptedRun
from leadline.interrupts import STOPS, Interrupts


@pytest.fixture(autouse=True)
def no_nohup() -> Iterator[None]:
    """The tests themselves may run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def interrupts() -> Iterator[Interrupts]:
    with Interrupts().installed() as installed:
        yield installed


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
def test_a_stop_signal_becomes_an_exception_with_its_exit_code(interrupts: Interrupts, number: int, code: int) -> None:
    with pytest.raises(InterruptedRun) as stopped:
        signal.raise_signal(number)
    assert stopped.value.exit_code == code
    assert stopped.value.signum == number


def shielded(interrupts: Interrupts, *signals: int, then: Callable[[], object] = lambda: None) -> None:
    """Gets the signals inside a shield, and goes on with `then` in it."""
    with interrupts.shield():
        for number in signals:
            signal.raise_signal(number)
        then()


def test_in_a_shield_a_signal_waits_until_the_end_of_the_block(interrupts: Interrupts) -> None:
    done: list[str] = []
    with pytest.raises(InterruptedRun):
        shielded(interrupts, signal.SIGTERM, then=lambda: done.append("went on"))
    assert done


def test_it_waits_for_the_outermost_of_nested_shields(interrupts: Interrupts) -> None:
    done: list[str] = []

    def outer() -> None:
        with interrupts.shield():
            shielded(interrupts, signal.SIGTERM)
            done.append("went on after the inner one")

    with pytest.raises(InterruptedRun):
        outer()
    assert done


def test_of_two_signals_in_a_shield_the_first_counts(interrupts: Interrupts) -> None:
    with pytest.raises(InterruptedRun) as stopped:
        shielded(interrupts, signal.SIGHUP, signal.SIGTERM)
    assert stopped.value.signum == signal.SIGHUP


def test_while_we_already_stop_further_signals_change_nothing(interrupts: Interrupts) -> None:
    with pytest.raises(InterruptedRun):
        signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGTERM)
    with interrupts.shield():
        signal.raise_signal(signal.SIGINT)


def test_an_error_in_a_shield_does_not_swallow_the_signal(interrupts: Interrupts) -> None:
    """The error goes first; the next shield that ends in order, of which a way out has many, stops the run."""

    def fail() -> None:
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        shielded(interrupts, signal.SIGTERM, then=fail)
    with pytest.raises(InterruptedRun):
        shielded(interrupts)


def test_the_handlers_from_before_come_back() -> None:
    before = {number: signal.getsignal(number) for number in STOPS}
    with Interrupts().installed():
        assert all(signal.getsignal(number) != handler for number, handler in before.items())
    assert {number: signal.getsignal(number) for number in STOPS} == before


def test_sighup_stays_ignored_where_nohup_ignored_it() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Interrupts().installed():
        signal.raise_signal(signal.SIGHUP)
        with pytest.raises(InterruptedRun):
            signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
