"""When a campaign may launch: budget, window and hooks, in virtual time."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from support_sim import PORT, Sim

from leadline.campaign import Campaign, Conduct
from leadline.errors import (
    HostError,
    InputError,
    InterruptedRun,
    NoAnswerError,
    NotGivenBackError,
)
from leadline.goal import Budget
from leadline.journal.events import (
    DeployFinished,
    DeployStarted,
    Measured,
    Returned,
    tag,
)
from leadline.journal.file import Journal
from leadline.ports import Completed
from leadline.testing.faults import Fault, FaultKind
from leadline.testing.lab import Lab
from leadline.testing.spec import LabSpec

QUIET = LabSpec(launch_sd=0.0, point_sd=0.0)


def budgeted(sim: Sim, **limits) -> Sim:
    sim.problem = msgspec.structs.replace(sim.problem, budget=Budget(**{"rounds": 2, **limits}))
    return sim


def hooked(lab: Lab, *, failing: str = "") -> Conduct:
    """Commands `router off` and `router on`; the failing one ends with 3."""

    def router(argv) -> Completed:
        bad = argv[-1] == failing
        return Completed(argv=tuple(argv), code=3 if bad else 0, stdout=b"", stderr=b"no such pool" if bad else b"")

    lab.commands["router"] = router
    return Conduct(drain=("router", "off"), undrain=("router", "on"))


def hooks(lab: Lab) -> list[str]:
    return [argv[-1] for argv in lab.ran if argv[0] == "router"]


# --- limits


def test_max_launches_is_an_exact_limit_and_a_larger_budget_goes_on(tmp_path: Path) -> None:
    sim = budgeted(Sim(Lab(QUIET), tmp_path), max_launches=3)
    sim.run()
    assert sim.ledger().launches == 3
    assert sim.ledger().closed.reason == "budget.max_launches = 3 is spent"
    assert not sim.ledger().closed.finished
    budgeted(sim, max_launches=5).run()
    assert sim.ledger().launches == 5
    budgeted(sim).run()
    assert sim.ledger().launches == 8
    assert sim.ledger().closed.finished


def test_a_budget_that_ends_before_anything_was_measured_is_no_answer(tmp_path: Path) -> None:
    sim = budgeted(Sim(Lab(QUIET), tmp_path), max_launches=1)
    sim.lab.spec = msgspec.structs.replace(QUIET, faults=(Fault(kind=FaultKind.OOM_AT_START),))
    with pytest.raises(NoAnswerError, match=r"max_launches = 1 is spent.*leadline report") as raised:
        sim.run()
    assert raised.value.exit_code == 4


def test_max_restarts_of_the_window_is_a_limit_too(tmp_path: Path) -> None:
    sim = Sim(Lab(QUIET), tmp_path, conduct=Conduct(max_restarts=2))
    sim.run()
    assert sim.ledger().launches == 2
    assert "window.max_restarts = 2" in sim.ledger().closed.reason


@pytest.mark.parametrize("limit", ["budget.max_minutes", "window.max_minutes_without_service"])
def test_no_launch_begins_that_would_not_fit_into_the_minutes(tmp_path: Path, limit: str) -> None:
    minutes = 1.0
    lab = Lab(QUIET)
    if limit.startswith("budget"):
        sim = budgeted(Sim(lab, tmp_path), max_minutes=minutes)
    else:
        sim = Sim(lab, tmp_path, conduct=Conduct(max_minutes_without_service=minutes))
    sim.run()
    ledger = sim.ledger()
    longest = max(ledger.trial_seconds)
    assert 1 < ledger.launches < 8
    assert f"does not fit into {limit} = 1" in ledger.closed.reason
    assert 60 * minutes - longest < sum(ledger.trial_seconds) <= 60 * minutes


# --- the window

HOUR_S, OPEN_S = 3600, 60


def windowed(lab: Lab, conduct: Conduct) -> Conduct:
    """Open for the first minute of every hour, for what ends within it."""

    def wait_s(minutes: float) -> float:
        into = lab.clock.now_ns() / 1e9 % HOUR_S
        return 0.0 if into + 60 * minutes <= OPEN_S else HOUR_S - into

    return msgspec.structs.replace(conduct, wait_s=wait_s)


def test_no_restart_begins_outside_the_window_and_users_are_served_while_it_is_closed(tmp_path: Path) -> None:
    lab = Lab(QUIET)
    sim = Sim(lab, tmp_path, conduct=windowed(lab, hooked(lab)))
    moments: list[tuple[str, float, list[str]]] = []
    sim.run(lambda e: moments.append((tag(e), lab.clock.now_ns() / 1e9, hooks(lab))))
    starts = [(at, router) for name, at, router in moments if name == "deploy_started"]
    assert all(at % HOUR_S <= OPEN_S for at, _ in starts)
    assert all(at % HOUR_S <= OPEN_S for name, at, _ in moments if name == "returned")
    assert len(starts) == 8
    assert starts[-1][0] > HOUR_S, "they do not all fit into one window"
    assert all(router[-1] == "off" for _, router in starts)
    windows = len({at // HOUR_S for at, _ in starts})
    assert hooks(lab) == ["off", "on"] * windows


class Told(Sim):
    """Notes what its operator is told about a closed window."""

    def campaign(self, journal: Journal) -> Campaign:
        self.told: list[float] = []
        built = super().campaign(journal)
        built.on_wait = self.told.append
        return built


def test_the_wait_is_told(tmp_path: Path) -> None:
    lab = Lab(QUIET)
    sim = Told(lab, tmp_path, rounds=1, conduct=Conduct(wait_s=lambda minutes: 300.0 - lab.clock.now_ns() / 1e9))
    sim.run()
    assert sim.told[0] == 300.0
    assert sim.told == sorted(sim.told, reverse=True)


def test_a_window_that_is_never_long_enough_is_said_and_nothing_is_started(tmp_path: Path) -> None:
    def wait_s(minutes: float) -> float:
        raise InputError("one launch takes 40 min, longer than any span of window.hours: 02:00-02:30")

    lab = Lab(QUIET)
    sim = Sim(lab, tmp_path, conduct=Conduct(wait_s=wait_s))
    with pytest.raises(InputError, match=r"window\.hours"):
        sim.run()
    assert lab.processes == []
    assert "window.hours" in sim.ledger().closed.reason


# --- hooks


def test_the_hooks_run_once_each_around_all_launches(tmp_path: Path) -> None:
    lab = Lab(QUIET)
    sim = Sim(lab, tmp_path, conduct=hooked(lab))
    during: set[tuple[str, ...]] = set()
    sim.run(lambda e: during.add(tuple(hooks(lab))) if isinstance(e, DeployStarted | Returned) else None)
    assert during == {("off",)}
    assert hooks(lab) == ["off", "on"]


def test_with_nothing_to_launch_no_hook_runs(tmp_path: Path) -> None:
    lab = Lab(QUIET)
    sim = Sim(lab, tmp_path, conduct=hooked(lab))
    sim.run()
    lab.ran.clear()
    sim.run()
    assert hooks(lab) == []


def test_a_drain_that_fails_starts_nothing_and_is_taken_back(tmp_path: Path) -> None:
    lab = Lab(QUIET)
    sim = Sim(lab, tmp_path, conduct=hooked(lab, failing="off"))
    with pytest.raises(HostError, match="the hook router ended with 3; run it by hand"):
        sim.run()
    assert hooks(lab) == ["off", "on"]
    assert lab.processes == []
    assert sim.ledger().closed.reason.startswith("the hook router")


def test_an_undrain_that_fails_is_a_service_not_given_back(tmp_path: Path) -> None:
    lab = Lab(QUIET)
    sim = Sim(lab, tmp_path, rounds=1, conduct=hooked(lab, failing="on"))
    with pytest.raises(NotGivenBackError, match=r"users do not reach the service: the hook router .*by hand") as raised:
        sim.run()
    assert raised.value.exit_code == 5
    assert sim.ledger().decided is not None, "the answer is not lost"


@pytest.mark.parametrize("moment", [DeployStarted, DeployFinished, Measured])
def test_the_undrain_also_runs_when_a_signal_stops_us(tmp_path: Path, moment: type) -> None:
    lab = Lab(QUIET)
    sim = Sim(lab, tmp_path, conduct=hooked(lab))

    def watch(event) -> None:
        if isinstance(event, moment):
            raise InterruptedRun(15)

    with pytest.raises(InterruptedRun):
        sim.run(watch)
    assert hooks(lab) == ["off", "on"]
    assert lab.host.listener("127.0.0.1", PORT) is None
    assert (sim.ledger().closed.reason, sim.ledger().in_force) == ("stopped by signal 15", None)
