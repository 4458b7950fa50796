"""The lab's service in virtual time: its supervisor's manners, its guard, and a campaign of the core on it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from support_service import DRAIN, TERMS, UNDRAIN, UNIT, URL, ServiceSim, deployer, service
from support_sim import BASE, PORT
from support_world import HEALTH, plan

from leadline import supervision
from leadline.deploy import StartFailed
from leadline.errors import HostError, HostLost, InputError, LeadlineError
from leadline.evidence import Failure, ServiceFacts, ServiceState
from leadline.journal.events import AnyEvent, DeployFinished, MeasureStarted
from leadline.launch import LaunchSpec
from leadline.ports import Completed, Host, Site, Terms
from leadline.service import changed
from leadline.steps import carry_out, command, execute, observe
from leadline.testing.faults import Fault, FaultKind
from leadline.testing.lab import Lab, LabFile
from leadline.testing.labservice import LabService, LabServiceTarget
from leadline.testing.labunit import definition, digest
from leadline.testing.spec import LabSpec

TARGET = LabServiceTarget(Site(unit=UNIT))
TRIAL = msgspec.structs.replace(BASE, argv=(*BASE.argv[:-1], "6"))
FILE = f"/etc/systemd/system/{UNIT}"


def try_it(world: LabService, launch: LaunchSpec = TRIAL) -> None:
    """A trial's plan, carried out by the core."""
    host, clock = world.lab.host, world.lab.clock
    steps = TARGET.plan(launch, observe(TARGET, host), "log")
    carry_out(steps, host=host, target=TARGET, clock=clock, launch=launch)


def arm(world: LabService, terms: Terms = TERMS) -> None:
    guard = TARGET.guard(terms)
    assert guard is not None
    for step in guard.arm:
        execute(world.lab.host, step)


def looked(world: LabService) -> ServiceFacts:
    return TARGET.facts(command(world.lab.host, TARGET.look()))


def ours(world: LabService) -> list[str]:
    """Files of ours on its machine."""
    return [path for path in world.lab.files if "leadline" in path]


def is_original(world: LabService) -> bool:
    facts = looked(world)
    return facts.process is not None and facts.process.argv == BASE.argv and facts.trial == "absent"


# --- the supervisor


def test_a_trial_is_a_file_beside_the_definition_which_stays_as_it_was() -> None:
    world = service(Lab())
    before, then = dict(world.lab.files), looked(world)
    try_it(world)
    facts = looked(world)
    assert facts.process is not None
    assert facts.process.argv == TRIAL.argv
    assert facts.trial == digest(definition(TRIAL, f"A trial. By hand: labctl back {UNIT}").encode())
    assert facts.incarnation != then.incarnation
    assert facts.restarts == 0
    assert facts.files == then.files == {FILE: digest(before[FILE].content)}
    assert ours(world) == [world.unit.trial_path]
    assert {p: f for p, f in world.lab.files.items() if p in before} == before


def test_while_a_trial_is_in_force_the_launch_is_the_one_from_before_it() -> None:
    world = service(Lab())
    before = observe(TARGET, world.lab.host)
    assert (before.launch, before.running, before.held) == (BASE, True, False)
    arm(world)
    try_it(world)
    during = observe(TARGET, world.lab.host)
    assert (during.launch, during.running, during.held) == (BASE, True, True)
    assert "anna@desk (campaign sim)" in during.holder
    assert changed(before.files, during.files) is None


def test_there_is_no_other_service() -> None:
    world = service(Lab())
    with pytest.raises(InputError, match=r"other\.service could not be found"):
        observe(LabServiceTarget(Site(unit="other.service")), world.lab.host)


def test_a_file_is_in_force_from_the_reload_on_and_the_last_by_name_wins() -> None:
    world = service(Lab())
    world.lab.files[f"{FILE}.d/50-site.conf"] = LabFile(definition(TRIAL).encode(), 0o644)
    world.unit.restart()
    world.lab.clock.sleep(1)
    assert is_original(world)
    world.unit.reload()
    world.unit.restart()
    world.lab.clock.sleep(1)
    assert not is_original(world)
    assert observe(TARGET, world.lab.host).launch == TRIAL


@pytest.mark.parametrize("bad", ['ExecStart="x', "ExecStart=", "[Service]"])
def test_the_supervisor_refuses_a_candidate_that_it_cannot_read(bad: str) -> None:
    world = service(Lab())
    (check, *_) = TARGET.plan(TRIAL, observe(TARGET, world.lab.host), "log")
    answer = command(world.lab.host, msgspec.structs.replace(check, stdin=bad))
    with pytest.raises(InputError, match="refuses"):
        TARGET.confirm(TRIAL, [answer])


def test_words_that_the_supervisor_has_understood_otherwise_are_refused() -> None:
    world = service(Lab())
    show = next(
        s for s in TARGET.plan(TRIAL, observe(TARGET, world.lab.host), "log") if "show" in getattr(s, "argv", ())
    )
    with pytest.raises(InputError, match="was meant"):
        TARGET.confirm(TRIAL, [command(world.lab.host, show)])


def test_a_stop_takes_its_time_and_then_nothing_is_left() -> None:
    world = service(Lab())
    world.unit.stop_s = 3.0
    world.unit.stop()
    assert (looked(world).state, looked(world).process is not None) == (ServiceState.STOPPING, True)
    world.lab.clock.sleep(3)
    assert (looked(world).state, looked(world).pids) == (ServiceState.STOPPED, ())
    assert world.lab.at(URL) is None


def test_a_stop_that_hangs_is_killed_by_the_supervisor_and_told_apart() -> None:
    world = service(Lab())
    world.unit.stop_s = None
    world.unit.stop()
    world.lab.clock.sleep(89)
    assert looked(world).state is ServiceState.STOPPING
    world.lab.clock.sleep(1)
    facts = looked(world)
    assert facts.state is ServiceState.FAILED
    assert facts.exit is not None
    assert (facts.exit.signal, facts.exit.result) == (9, "timeout")
    assert verdict(facts) is Failure.STOP_TIMEOUT


def verdict(facts: ServiceFacts) -> Failure | None:
    said = supervision.verdict(facts)
    return None if said is None else said.failure


def test_a_trial_that_hangs_in_stop_is_killed_before_the_next() -> None:
    world = service(Lab())
    world.unit.stop_s = None
    try_it(world)
    assert looked(world).state is ServiceState.RUNNING
    assert world.lab.processes[0].exit() is not None
    assert world.lab.processes[0].exit().signal == 9


def test_processes_that_a_stop_spares_are_gone_before_the_next_start() -> None:
    world = service(Lab(), running=False)
    world.unit.spares = 2
    world.unit.start()
    world.unit.stop()
    world.lab.clock.sleep(1)
    facts = looked(world)
    assert (facts.state, len(facts.pids)) == (ServiceState.STOPPED, 2)
    assert verdict(facts) is Failure.LEFTOVERS
    world.unit.spares = 0
    try_it(world)
    assert looked(world).pids == (looked(world).process.pid,)


def test_a_server_that_dies_is_started_again_and_each_start_is_another() -> None:
    world = service(Lab(), restart="always")
    first = looked(world)
    world.lab.processes[0].kill()
    world.lab.clock.sleep(0.15)
    assert looked(world).state is ServiceState.RESTARTING
    world.lab.clock.sleep(1)
    again = looked(world)
    assert (again.state, again.restarts, again.exit) == (ServiceState.RUNNING, 1, None)
    assert again.incarnation != first.incarnation
    assert verdict(again) is Failure.KILLED


def test_a_loop_of_restarts_ends_at_the_limit() -> None:
    world = service(Lab(LabSpec(faults=(Fault(kind=FaultKind.OOM_AT_START),))), running=False, restart="on-failure")
    world.unit.start()
    world.lab.clock.sleep(2)
    loading = looked(world).restarts
    world.unit.burst_s = 600.0
    world.lab.clock.sleep(300)
    facts = looked(world)
    assert (facts.state, facts.restarts > loading) == (ServiceState.FAILED, True)
    assert verdict(facts) is Failure.RESTART_LOOP
    assert "too quickly" in facts.lines[-1]


def test_too_many_starts_are_refused_until_they_are_forgotten() -> None:
    world = service(Lab(), running=False)
    for _ in range(6):
        world.unit.start()
        world.lab.clock.sleep(0.2)
        world.unit.stop()
        world.lab.clock.sleep(0.2)
    assert verdict(looked(world)) is Failure.START_LIMIT
    try_it(world)
    assert looked(world).state is ServiceState.RUNNING


def test_a_start_that_does_not_get_as_far_as_its_program() -> None:
    world = service(Lab())
    world.unit.broken = 203
    try_it(world)
    assert verdict(looked(world)) is Failure.NOT_EXECUTED


def test_its_log_goes_on_where_it_was_left_over_restarts_too() -> None:
    world = service(Lab(), restart="always")
    text, cursor = TARGET.logged(command(world.lab.host, TARGET.log("")))
    assert "listening" in text
    assert TARGET.logged(command(world.lab.host, TARGET.log(cursor))) == ("", cursor)
    world.lab.processes[0].kill()
    world.lab.clock.sleep(60)
    more, after = TARGET.logged(command(world.lab.host, TARGET.log(cursor)))
    assert more == world.lab.processes[1].log_text()
    assert TARGET.logged(command(world.lab.host, TARGET.log("")))[0] == more
    assert after != cursor


def test_an_accepted_setting_is_a_file_that_undo_takes_away() -> None:
    world = service(Lab())
    for step in TARGET.rollout(TRIAL, observe(TARGET, world.lab.host), "absent", "note"):
        execute(world.lab.host, step)
    observed = observe(TARGET, world.lab.host)
    assert observed.launch == TRIAL
    written = observed.files[TARGET.rollout_path()]
    for step in TARGET.undo(observed, written, "absent"):
        execute(world.lab.host, step)
    observed = observe(TARGET, world.lab.host)
    assert observed.launch == BASE
    assert TARGET.undo(observed, written, "absent") == ()
    assert ours(world) == []


# --- the guard


@pytest.mark.parametrize("running", [True, False], ids=["it ran", "it was stopped"])
def test_the_end_of_the_connection_brings_it_back_after_the_grace_to_the_second(running: bool) -> None:
    world = service(Lab(), running=running)
    arm(world)
    held = world.lab.host.hold(("labctl", "hold", UNIT))
    try_it(world)
    ended_ns = world.lab.clock.now_ns()
    held.end()
    world.lab.clock.sleep(119.9)
    assert looked(world).trial != "absent"
    world.lab.clock.sleep(1000)  # nobody looks meanwhile
    assert world.guard.reverts == [(ended_ns + 120 * 10**9, "grace")]
    assert looked(world).state is (ServiceState.RUNNING if running else ServiceState.STOPPED)
    assert is_original(world) is running
    assert ours(world) == []
    assert (world.lab.ran.count(DRAIN), world.lab.ran.count(UNDRAIN)) == (1, 1)


def test_another_connection_within_the_grace_calls_it_off() -> None:
    world = service(Lab())
    arm(world)
    first = world.lab.host.hold(("labctl", "hold", UNIT))
    try_it(world)
    first.end()
    world.lab.clock.sleep(100)
    second = world.lab.host.hold(("labctl", "hold", UNIT))
    world.lab.clock.sleep(300)
    assert (first.alive(), second.alive()) == (False, True)
    third = world.lab.host.hold(("labctl", "hold", UNIT))
    second.end()  # not the last of them
    world.lab.clock.sleep(150)
    assert world.guard.reverts == []
    assert third.alive()


def test_a_lease_that_is_not_renewed_and_the_end_bring_it_back_while_the_connection_holds() -> None:
    for why, renewals in (("lease", 0), ("end", 9)):
        world = service(Lab())
        arm(world, msgspec.structs.replace(TERMS, end_s=1000.0))
        world.lab.host.hold(("labctl", "hold", UNIT))
        try_it(world)
        for _ in range(renewals):
            assert world.lab.host.run(("labctl", "renew", UNIT)).code == 0
            world.lab.clock.sleep(100)
        world.lab.clock.sleep(601)
        assert [w for _, w in world.guard.reverts] == [why]
        assert is_original(world)
        assert world.lab.host.run(("labctl", "renew", UNIT)).code == 1


def test_a_trial_that_hangs_in_stop_is_killed_and_the_original_comes_back() -> None:
    world = service(Lab())
    arm(world)
    try_it(world)
    world.unit.stop_s = None
    world.lab.clock.sleep(600)
    world.unit.stop_s = 0.05
    world.lab.clock.sleep(10.5)
    assert is_original(world)


def test_another_campaign_cannot_take_it_until_the_lock_is_broken() -> None:
    world = service(Lab())
    arm(world)
    other = msgspec.structs.replace(TERMS, campaign="desk:/other", owner="bob@desk")
    with pytest.raises(HostError, match=r"held by anna@desk \(campaign sim\)"):
        arm(world, other)
    who, unlock = TARGET.unlock()
    assert b"anna@desk" in command(world.lab.host, who).stdout
    execute(world.lab.host, unlock)
    arm(world, other)
    assert "bob@desk" in observe(TARGET, world.lab.host).holder


def test_the_way_back_and_the_hooks_are_gone_once_whoever_calls_and_armed_again_by_the_same() -> None:
    world = service(Lab())
    guard = TARGET.guard(TERMS)
    arm(world)
    arm(world)
    try_it(world)
    for step in (guard.back, guard.back, guard.hook, guard.hook):
        execute(world.lab.host, step)
    incarnation = looked(world).incarnation
    world.lab.clock.sleep(1)
    execute(world.lab.host, guard.back)
    assert looked(world).incarnation != incarnation  # the restart that the first of them began
    execute(world.lab.host, guard.disarm[0])
    world.lab.clock.sleep(3000)
    assert is_original(world)
    assert world.guard.reverts == []
    assert (world.lab.ran.count(DRAIN), world.lab.ran.count(UNDRAIN)) == (1, 1)


def test_a_guard_that_finds_nothing_changed_restarts_nothing() -> None:
    world = service(Lab())
    arm(world)
    before = looked(world).incarnation
    world.lab.clock.sleep(601)
    assert [w for _, w in world.guard.reverts] == ["lease"]
    assert looked(world).incarnation == before


def test_a_trial_that_was_stopped_and_not_begun_is_brought_back_too() -> None:
    world = service(Lab())
    arm(world)
    world.unit.stop()
    world.lab.clock.sleep(601)
    assert is_original(world)


# --- the machine and the way to it


def test_nothing_of_the_host_answers_while_the_connection_is_cut() -> None:
    world = service(Lab())
    host: Host = world.lab.host
    held_by = arm(world) or host.hold(("labctl", "hold", UNIT))
    world.lab.cut(30)
    for ask in (
        lambda: host.run(("labctl", "status", UNIT)),
        lambda: host.hold(("labctl", "hold", UNIT)),
        lambda: host.read(FILE),
        lambda: host.write("f", b"", 0o600),
        lambda: host.listener("127.0.0.1", PORT),
    ):
        with pytest.raises(HostLost):
            ask()
    assert world.lab.prober(URL).fetch(HEALTH).error == "connection reset"
    assert not held_by.alive()
    world.lab.clock.sleep(30)
    assert world.lab.prober(URL).fetch(HEALTH).ok
    assert looked(world).state is ServiceState.RUNNING


def test_a_cut_in_a_load_fails_its_requests_and_leaves_the_server_free() -> None:
    world = service(Lab())
    load = msgspec.structs.replace(plan(2, 400), url=URL)
    world.lab.clock.after(5.0, lambda: world.lab.cut(60))
    report = world.lab.loader.run(load, lambda: True)
    errors = {r.error for r in report.records}
    assert errors == {"", "connection reset", "connection refused"}
    world.lab.clock.sleep(61)
    assert not any(
        r.error for r in world.lab.loader.run(msgspec.structs.replace(load, sessions=()), lambda: True).records
    )


def test_after_a_power_cut_the_original_boots_and_nothing_of_ours_is_left() -> None:
    world = service(Lab())
    arm(world)
    world.lab.host.hold(("labctl", "hold", UNIT))
    try_it(world)
    then = looked(world)
    world.lab.crash(down_s=40)
    world.lab.clock.sleep(39)
    with pytest.raises(HostLost):
        looked(world)
    world.lab.clock.sleep(2)
    assert is_original(world)
    assert looked(world).incarnation.split("-")[0] != then.incarnation.split("-")[0]
    assert ours(world) == []
    world.lab.clock.sleep(3000)
    assert world.guard.reverts == []


def test_a_unit_that_is_not_enabled_does_not_boot() -> None:
    world = service(Lab())
    world.unit.enabled = False
    world.lab.crash()
    world.lab.clock.sleep(60)
    assert looked(world).state is ServiceState.STOPPED


def test_on_a_full_disk_nothing_is_written_and_the_way_back_still_works() -> None:
    world = service(Lab())
    arm(world)
    try_it(world)
    world.lab.disk_full = True
    with pytest.raises(HostError, match="No space left"):
        try_it(world)
    with pytest.raises(HostError, match="No space left"):
        world.lab.host.write("f", b"", 0o600)
    execute(world.lab.host, TARGET.guard(TERMS).back)
    world.lab.clock.sleep(1)
    assert is_original(world)


def test_the_accelerator_holds_what_runs_and_what_others_use() -> None:
    world = service(Lab())
    assert world.lab.host.device_used_bytes() is None
    world.lab.tenants_bytes = 1 << 30
    running = world.lab.host.device_used_bytes()
    world.unit.stop()
    world.lab.clock.sleep(1)
    assert world.lab.host.device_used_bytes() == (1 << 30,)
    assert running > (1 << 30,)


def test_our_death_ends_a_service_of_a_supervisor_not_at_once() -> None:
    world = service(Lab())
    arm(world)
    held = world.lab.host.hold(("labctl", "hold", UNIT))
    try_it(world)
    world.lab.disconnect()
    assert not held.alive()
    assert looked(world).process is not None
    world.lab.clock.sleep(121)
    assert is_original(world)


def test_what_only_root_may_do_goes_through_sudo() -> None:
    world = service(Lab())
    target = LabServiceTarget(Site(unit=UNIT, sudo=True))
    assert observe(target, world.lab.host).launch == BASE
    assert world.lab.ran[-1] == ("sudo", "-n", "labctl", "cat", UNIT)


def test_an_answer_that_makes_no_sense_is_the_hosts_fault() -> None:
    with pytest.raises(HostError, match="makes no sense"):
        TARGET.facts(Completed(argv=("labctl",), code=0, stdout=b"Segmentation fault", stderr=b""))


# --- the core on it


def test_a_campaign_changes_the_service_and_gives_it_back(tmp_path: Path) -> None:
    world = service(Lab(seed=1), restart="always")
    before, launches = world.lab.files[FILE], len(world.lab.processes)
    answer = ServiceSim(world.lab, tmp_path).run()
    assert answer.single.depth == 4
    assert is_original(world)
    assert world.lab.files[FILE] == before
    assert ours(world) == []
    assert world.guard.reverts == []
    assert (world.lab.ran.count(DRAIN), world.lab.ran.count(UNDRAIN)) == (1, 1)
    assert len(world.lab.processes) - launches == 8 + 1  # trials follow one another, and then the original


def test_a_start_that_fails_in_a_service_is_told_by_its_supervisor(tmp_path: Path) -> None:
    world = service(Lab(seed=1))
    deploy = deployer(ServiceSim(world.lab, tmp_path))
    world.unit.broken = 217
    with pytest.raises(StartFailed) as failed:
        deploy.start(TRIAL, deploy.observe(), "trial.log")
    assert failed.value.diagnosis.failure is Failure.NOT_EXECUTED
    assert "User=" in failed.value.diagnosis.remedy


def test_a_unit_that_somebody_changes_meanwhile_pauses_the_campaign_and_is_not_overwritten(tmp_path: Path) -> None:
    world = service(Lab(seed=1))
    theirs = LabFile(definition(BASE, "edited by somebody").encode(), 0o644)
    world.lab.clock.after(60.0, lambda: world.lab.files.update({FILE: theirs}))
    with pytest.raises(LeadlineError, match="somebody else changed"):
        ServiceSim(world.lab, tmp_path).run()
    assert world.lab.files[FILE] == theirs
    assert is_original(world)
    assert ours(world) == []


def killed_in_a_trial(world: LabService, folder: Path, terms: Terms) -> ServiceSim:
    """A campaign that died once its second trial was up; what comes back finds the journal as it was then."""
    sim = ServiceSim(world.lab, folder, terms=terms)
    sim.run_and_die(lambda event: isinstance(event, DeployFinished) and event.trial == 2)
    return sim


def test_killed_in_a_trial_we_go_on_after_the_guard_has_taken_it_back(tmp_path: Path) -> None:
    world = service(Lab(seed=1))
    again = killed_in_a_trial(world, tmp_path, TERMS)
    world.lab.clock.sleep(300)
    assert [w for _, w in world.guard.reverts] == ["grace"]
    assert is_original(world)
    assert again.run().single.depth == 4
    assert is_original(world)
    assert ours(world) == []
    assert (world.lab.ran.count(DRAIN), world.lab.ran.count(UNDRAIN)) == (2, 2)


def test_killed_in_a_trial_we_go_on_from_it_within_the_grace(tmp_path: Path) -> None:
    world = service(Lab(seed=1))
    again = killed_in_a_trial(world, tmp_path, msgspec.structs.replace(TERMS, grace_s=900.0, lease_s=3600.0))
    world.lab.clock.sleep(300)
    assert not is_original(world)
    assert again.run().single.depth == 4
    assert world.guard.reverts == []
    assert is_original(world)
    assert ours(world) == []
    assert (world.lab.ran.count(DRAIN), world.lab.ran.count(UNDRAIN)) == (1, 1)


def test_a_short_cut_costs_no_restart(tmp_path: Path) -> None:
    world = service(Lab(seed=1))
    world.lab.clock.after(10.0, lambda: world.lab.cut(20))
    answer = ServiceSim(world.lab, tmp_path).run()
    assert answer.single.depth == 4
    assert world.guard.reverts == []
    assert len(world.lab.processes) == 1 + 8 + 1


def test_frozen_for_longer_than_the_lease_we_find_it_taken_back(tmp_path: Path) -> None:
    world = service(Lab(seed=1))
    sim = ServiceSim(world.lab, tmp_path)
    frozen: list[int] = []

    def freeze(event: AnyEvent) -> None:
        if isinstance(event, MeasureStarted) and not frozen:
            frozen.append(world.lab.clock.now_ns())
            world.lab.clock.sleep(1200)

    with pytest.raises(LeadlineError, match="put the original back"):
        sim.run(freeze)
    assert [w for _, w in world.guard.reverts] == ["lease"]
    assert is_original(world)
    assert sim.run().single.depth == 4
