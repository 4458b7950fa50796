"""A campaign on a service: no going back in between, and back whatever happens."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from support_service import TERMS, ServiceSim, deployer, service

from leadline.campaign import Conduct
from leadline.deploy import Deployer
from leadline.errors import NoAnswerError
from leadline.evidence import Failure, ServiceState
from leadline.journal.events import DeployFinished, DeployStarted, Measured, MeasureStarted, Returned, Voided
from leadline.service import ServiceSession
from leadline.testing.lab import Lab, LabFile
from leadline.testing.labunit import LabUnit
from leadline.testing.physics import LabSpec
from leadline.trial import TrialState

LOAD_S = 40.0


def on_service(folder: Path, *, running: bool = True, **options) -> ServiceSim:
    lab = Lab(LabSpec(load_s=LOAD_S, launch_sd=0.0, point_sd=0.0))
    sim = ServiceSim(lab, folder, **options)
    sim.service = service(lab, running=running)
    return sim


def service_session(hand: Deployer) -> ServiceSession:
    assert hand.target.service is not None
    return ServiceSession(
        service=hand.target.service, host=hand.host, clock=hand.clock, custody=hand.in_custody(), away_s=30.0
    )


def unit(sim: ServiceSim) -> LabUnit:
    return sim.service.unit


def original_serves(sim: ServiceSim) -> bool:
    facts = unit(sim).facts()
    assert facts.process is not None
    return (
        facts.state is ServiceState.RUNNING
        and facts.trial == "absent"
        and facts.process.argv == unit(sim).launch(trial=False).argv
    )


def test_each_trial_costs_one_restart_and_the_original_one_more(tmp_path: Path) -> None:
    sim = on_service(tmp_path)
    sim.run()
    launches = sim.ledger().launches
    assert len(sim.lab.processes) == 1 + launches + 1
    assert original_serves(sim)
    assert unit(sim).facts().trial == "absent", "nothing of ours is left"
    assert [r.ended for r in sim.ledger().returns] == ["the original serves again"]


def test_minutes_without_service_are_the_loads_alone(tmp_path: Path) -> None:
    sim = on_service(tmp_path)
    sim.run()
    loads = sim.ledger().launches + 1
    assert sim.ledger().without_service_s() == pytest.approx(loads * LOAD_S, abs=1.0 * loads)


def test_a_service_that_was_stopped_stays_stopped(tmp_path: Path) -> None:
    sim = on_service(tmp_path, running=False, rounds=1)
    sim.run()
    assert unit(sim).facts().state.at_rest
    assert unit(sim).facts().trial == "absent"


def test_a_blip_during_a_load_costs_nothing(tmp_path: Path) -> None:
    sim = on_service(tmp_path, rounds=1)

    def watch(event: object) -> None:
        if isinstance(event, DeployStarted) and event.trial == 2:
            sim.lab.cut(TERMS.grace_s / 2)

    sim.run(watch)
    assert len(sim.lab.processes) == 1 + sim.ledger().launches + 1
    assert all(t.state is TrialState.COMPLETE for t in sim.ledger().history().trials)


def test_a_measurement_across_a_blip_is_made_again_on_the_same_server(tmp_path: Path) -> None:
    sim = on_service(tmp_path, rounds=1)
    cut = False

    def watch(event: object) -> None:
        nonlocal cut
        if isinstance(event, MeasureStarted) and event.trial == 2 and not cut:
            cut = True
            sim.lab.cut(1.0)

    sim.run(watch)
    ledger = sim.ledger()
    voids = [v.diagnosis.failure for t in ledger.history().trials for v in t.voids]
    assert voids == [Failure.ENVIRONMENT]
    assert len(sim.lab.processes) == 1 + ledger.launches + 1
    assert all(t.state is TrialState.COMPLETE for t in ledger.history().trials)


def test_cut_off_for_longer_than_the_grace_the_guard_gives_it_back(tmp_path: Path) -> None:
    sim = on_service(tmp_path, rounds=1)

    def watch(event: object) -> None:
        if isinstance(event, DeployFinished) and event.trial == 2:
            sim.lab.cut(TERMS.grace_s * 2)

    with pytest.raises(NoAnswerError, match="paused"):
        sim.run(watch)
    assert original_serves(sim)


def test_a_service_that_somebody_changes_pauses_the_campaign_and_keeps_the_change(tmp_path: Path) -> None:
    sim = on_service(tmp_path, rounds=1)
    path = next(p for p in unit(sim).files() if p != unit(sim).trial_path)
    theirs = LabFile(sim.lab.files[path].content + b"# theirs\n", 0o644)

    def watch(event: object) -> None:
        if isinstance(event, Measured) and event.measurement.trial == 2:
            sim.lab.files[path] = theirs

    with pytest.raises(NoAnswerError, match="somebody else changed the service"):
        sim.run(watch)
    assert sim.lab.files[path] == theirs
    assert original_serves(sim)


def test_the_lease_ends_a_trial_of_a_process_that_is_frozen(tmp_path: Path) -> None:
    sim = on_service(tmp_path, rounds=1)

    def watch(event: object) -> None:
        if isinstance(event, MeasureStarted) and event.trial == 2:
            sim.lab.clock.sleep(TERMS.lease_s * 2)

    with pytest.raises(NoAnswerError, match="guard on the service's host has put the original back"):
        sim.run(watch)
    assert original_serves(sim)


def test_the_guards_end_is_never_overrun(tmp_path: Path) -> None:
    terms = msgspec.structs.replace(TERMS, end_s=70.0)
    sim = on_service(tmp_path, rounds=2, terms=terms)
    with pytest.raises(NoAnswerError):
        sim.run()
    assert original_serves(sim)


def test_what_a_killed_process_left_is_taken_over_within_the_grace(tmp_path: Path) -> None:
    sim = on_service(tmp_path, rounds=1)

    sim.run_and_die(lambda event: isinstance(event, DeployFinished) and event.trial == 2)
    assert unit(sim).facts().trial != "absent"
    sim.run()
    assert original_serves(sim)
    closed = sim.ledger().closed
    assert closed is not None
    assert closed.finished


def test_what_the_guard_took_back_is_known_when_we_come_late(tmp_path: Path) -> None:
    sim = on_service(tmp_path, rounds=1)

    sim.run_and_die(lambda event: isinstance(event, DeployFinished) and event.trial == 2)
    sim.lab.clock.sleep(TERMS.grace_s + LOAD_S + 5)
    assert original_serves(sim)
    seen: list[object] = []
    sim.run(seen.append)
    assert any(isinstance(e, Returned) and "guard" in e.ended for e in seen)
    assert not any(isinstance(e, Voided) for e in seen)


def test_users_are_served_by_the_original_while_the_window_is_closed(tmp_path: Path) -> None:
    closed_s = 300.0
    asked: list[float] = []

    def wait_s(minutes: float) -> float:
        asked.append(minutes)
        return closed_s if len(asked) == 3 else 0.0

    sim = on_service(tmp_path, rounds=1, conduct=Conduct(wait_s=wait_s))
    sim.run()
    assert len(sim.ledger().returns) == 2
    assert original_serves(sim)


def test_a_log_that_is_read_all_the_time_hides_no_end(tmp_path: Path) -> None:
    sim = on_service(tmp_path)
    hand = deployer(sim)
    session = service_session(hand)
    assert session.exit() is None
    unit(sim).kill()
    for _ in range(20):
        session.log()
        sim.lab.clock.sleep(0.3)
    assert session.exit() is not None
