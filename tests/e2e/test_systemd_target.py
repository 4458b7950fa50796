"""A unit of a real systemd: trials come and go, an accepted setting too, and its own files are never written."""

from __future__ import annotations

import hashlib

import msgspec
import pytest
from support_systemd import SystemdHost, needs_systemd
from support_unit import DEPTH, Make, Unit, make, ssh, with_words

from leadline.errors import HostError, InputError, RefusedError
from leadline.evidence import ServiceState
from leadline.hosts.ssh import SshHost
from leadline.launch import LaunchSpec, Put, Step
from leadline.ports import Site
from leadline.targets.systemd import target

pytestmark = needs_systemd
__all__ = ["make", "ssh"]
SECRET = "hf_nobodyMaySeeThis123"
NOTE = "2026-11-30T15:53:00Z depth=4\ncampaign demo"


def digest_of(steps: list[Step], path: str) -> str:
    return next(hashlib.sha256(s.content.encode()).hexdigest() for s in steps if isinstance(s, Put) and s.path == path)


# --- trials


def test_a_trial_is_put_another_follows_directly_and_all_is_as_before(make: Make) -> None:
    unit = make()
    before = unit.observe()
    assert before.running
    assert not before.held
    assert before.launch.argv == unit.argv()
    unit.trial(*DEPTH)
    unit.until(lambda: unit.argv() == (*before.launch.argv, *DEPTH), "the first trial runs")
    first = unit.look()
    held = unit.trial("--depth", "7")
    unit.until(lambda: unit.argv() == (*before.launch.argv, "--depth", "7"), "the second trial runs")
    assert held == msgspec.structs.replace(before, held=True)
    second = unit.look()
    assert first.trial != second.trial != "absent"
    assert first.incarnation != second.incarnation
    assert first.files == second.files
    for _ in range(2):
        unit.do(*unit.target.restore(held))
        unit.until(lambda: unit.argv() == before.launch.argv, "the original runs")
    assert unit.observe() == before
    assert not unit.ours()


def test_a_plain_user_tries_it_through_sudo(make: Make, systemd_host: SystemdHost) -> None:
    unit = make()
    unit.host.put("/etc/sudoers.d/operator", "operator ALL=(root) NOPASSWD: ALL\n", 0o440)
    operator = SshHost(f"operator@{systemd_host.ssh_name}", str(systemd_host.ssh_config))
    try:
        by_sudo = unit.by(operator, sudo=True)
        guard = by_sudo.guard()
        before = by_sudo.observe()
        by_sudo.do(*guard.arm)
        by_sudo.trial(*DEPTH)
        by_sudo.until(lambda: by_sudo.argv()[-2:] == DEPTH, "the trial runs")
        by_sudo.do(guard.renew, guard.back, guard.hook, *guard.disarm)
        by_sudo.until(lambda: by_sudo.argv() == before.launch.argv, "the original runs")
        with pytest.raises(HostError, match=r"only root .* service\.sudo"):
            unit.by(operator, sudo=False).trial(*DEPTH)
    finally:
        operator.close()
    assert not unit.ours()


@pytest.mark.torture
def test_restoring_gives_it_back_from_wherever_a_plan_stopped(make: Make) -> None:
    unit = make()
    before = unit.observe()
    launch = with_words(before.launch, *DEPTH)
    steps = unit.target.plan(launch, before, "")
    for done in range(len(steps)):
        unit.carry(steps[:done], launch)
        unit.do(*unit.target.restore(before))
        unit.until(lambda: unit.argv() == before.launch.argv, f"the original runs after {done} Steps")
        assert unit.observe() == before
        assert not unit.ours()


def test_a_secret_of_an_environment_file_is_in_no_file_of_ours(make: Make) -> None:
    env = "/etc/llm-secret.env"
    probe = make("EnvironmentFile=/etc/llm-secret.env\n", " --token ${HF_TOKEN}", running=False)
    probe.host.put(env, f"HF_TOKEN={SECRET}\n", 0o600)
    probe.sh(f"systemctl start {probe.unit}")
    before = probe.observe()
    assert SECRET in before.launch.argv
    launch = with_words(before.launch, *DEPTH)
    steps = [*probe.target.plan(launch, before, ""), *probe.target.rollout(launch, before, "absent", NOTE)]
    assert SECRET not in "".join(map(str, steps))
    probe.trial(*DEPTH)
    probe.until(lambda: probe.argv()[-4:] == ("--token", SECRET, *DEPTH), "the trial runs, with its secret")
    places = "/run/leadline /run/systemd /etc/systemd /var/lib/leadline"
    assert probe.sh(f"grep -rlF {SECRET} {places} 2>/dev/null", check=False) == ""
    assert probe.sh(f"stat -c %a /run/systemd/system/{probe.unit}.d/zzz-leadline.conf") == "600"
    probe.do(*probe.target.restore(before))


def test_what_systemd_does_not_take_is_refused_before_the_service_is_touched(make: Make) -> None:
    unit = make()
    before, start = unit.observe(), unit.show("InvocationID")
    launch = msgspec.structs.replace(before.launch, argv=("/usr/bin/nosuch", *before.launch.argv[1:]))
    with pytest.raises(InputError, match="/usr/bin/nosuch is not executable"):
        unit.carry(unit.target.plan(launch, before, ""), launch)
    assert unit.show("InvocationID") == start
    assert not unit.ours()


@pytest.mark.torture
def test_warnings_that_a_unit_had_already_are_not_ours(make: Make) -> None:
    unit = make("Colour=blue\n")
    before = unit.trial(*DEPTH)
    unit.until(lambda: unit.argv()[-2:] == DEPTH, "the trial runs")
    unit.do(*unit.target.restore(before))


@pytest.mark.parametrize("what", ["the unit", "a drop-in of theirs", "an edit that is not loaded"])
def test_what_somebody_else_changed_meanwhile_is_not_overwritten(what: str, make: Make) -> None:
    unit = make()
    before, start = unit.observe(), unit.show("InvocationID")
    edits = {
        "the unit": f"echo '# theirs' >>{unit.path}",
        "a drop-in of theirs": f"mkdir -p {unit.path}.d && echo '[Service]' >{unit.path}.d/10-theirs.conf",
        "an edit that is not loaded": f"echo '# theirs' >>{unit.path}",
    }
    unit.sh(edits[what])
    if what == "an edit that is not loaded":
        before = unit.observe()
    theirs = unit.sh(f"sha256sum {unit.path} {unit.path}.d/*", check=False)
    launch = with_words(before.launch, *DEPTH)
    with pytest.raises(RefusedError, match="edited, and not" if "edit" in what else "changed by somebody else: /etc/"):
        unit.carry(unit.target.plan(launch, before, ""), launch)
    unit.do(*unit.target.restore(before))
    assert unit.show("InvocationID") == start
    assert unit.sh(f"sha256sum {unit.path} {unit.path}.d/*", check=False) == theirs


@pytest.mark.torture
def test_a_drop_in_of_theirs_that_comes_after_ours_is_seen(make: Make) -> None:
    unit = make()
    line = f"ExecStart=/usr/bin/python3 /opt/server.py --port {unit.port}"
    unit.host.put(f"{unit.path}.d/zzzz.conf", f"[Service]\nExecStart=\n{line} --theirs\n")
    unit.sh(f"systemctl daemon-reload; systemctl restart {unit.unit}")
    before = unit.observe()
    assert before.launch.argv[-1] == "--theirs"
    with pytest.raises(InputError, match="--theirs"):
        unit.trial(*DEPTH)
    unit.do(*unit.target.restore(before))
    unit.until(lambda: unit.argv() == before.launch.argv, "the original runs")
    assert unit.observe() == before


# --- an accepted setting


def rollout(unit: Unit, *words: str) -> tuple[list[Step], str, str]:
    """The Steps, and SHA-256 of what they write and of what they replace."""
    observed = unit.observe()
    path = unit.target.rollout_path()
    present = observed.files[path]
    steps = list(unit.target.rollout(with_words(unit_launch(unit), *words), observed, present, NOTE))
    return steps, digest_of(steps, path), present


def unit_launch(unit: Unit) -> LaunchSpec:
    return msgspec.structs.replace(
        unit.observe().launch, argv=("/usr/bin/python3", "/opt/server.py", "--port", str(unit.port))
    )


def undo(unit: Unit, written: str, previous: str) -> list[Step]:
    return list(unit.target.undo(unit.observe(), written, previous))


def test_an_accepted_setting_survives_a_boot_and_is_taken_back_by_what_its_file_says(make: Make) -> None:
    unit = make()
    before = unit.observe()
    steps, written, _ = rollout(unit, *DEPTH)
    unit.carry(steps, with_words(before.launch, *DEPTH))
    unit.until(lambda: unit.argv() == (*before.launch.argv, *DEPTH), "the accepted setting runs")
    observed = unit.observe()
    path = unit.target.rollout_path()
    assert observed.files[path] == written
    assert observed.shadowed == {unit.path: before.files[unit.path]}
    assert observed.previous == "absent"
    assert unit.sh(f"stat -c %a {path}") == "644"
    assert unit.ours().split() == [path.rpartition("/")[0], path]
    second, rewritten, _ = rollout(unit, "--depth", "2")
    unit.carry(second, with_words(before.launch, "--depth", "2"))
    third, *_ = rollout(unit, "--depth", "3")
    with pytest.raises(RefusedError):
        unit.carry(third, with_words(before.launch, "--depth", "3"))
    latest = unit.observe()
    assert (latest.files[path], latest.previous) == (rewritten, written)
    unit.carry(undo(unit, rewritten, latest.previous), before.launch)
    unit.until(lambda: unit.argv() == (*before.launch.argv, *DEPTH), "the first accepted setting runs")
    unit.carry(undo(unit, written, "absent"), before.launch)
    unit.until(lambda: unit.argv() == before.launch.argv, "the original runs")
    assert undo(unit, written, "absent") == []
    assert unit.observe() == before
    assert not unit.ours()


@pytest.mark.torture
def test_a_trial_over_an_accepted_setting_returns_to_it(make: Make) -> None:
    unit = make()
    steps, written, _ = rollout(unit, *DEPTH)
    launch = with_words(unit.observe().launch, *DEPTH)
    unit.carry(steps, launch)
    before = unit.observe()
    assert before.launch == launch
    unit.trial("--trial")
    unit.until(lambda: unit.argv() == (*launch.argv, "--trial"), "the trial runs")
    with pytest.raises(RefusedError, match="a trial is in force"):
        unit.target.rollout(launch, unit.observe(), written, NOTE)
    unit.do(*unit.target.restore(before))
    unit.until(lambda: unit.argv() == launch.argv, "the accepted setting runs")


def test_an_undo_refuses_what_somebody_else_changed(make: Make) -> None:
    unit = make()
    steps, written, _ = rollout(unit, *DEPTH)
    launch = with_words(unit.observe().launch, *DEPTH)
    unit.carry(steps, launch)
    planned = undo(unit, written, "absent")
    unit.sh(f"echo '# theirs' >>{unit.target.rollout_path()}")
    for way in (lambda: undo(unit, written, "absent"), lambda: unit.carry(planned, launch)):
        with pytest.raises(RefusedError):
            way()
    assert unit.sh(f"tail -n 1 {unit.target.rollout_path()}") == "# theirs"


@pytest.mark.torture
@pytest.mark.parametrize("over", [False, True], ids=["first", "second"])
def test_an_undo_takes_back_any_part_of_a_rollout_and_of_an_undo(over: bool, make: Make) -> None:
    unit = make()
    if over:
        steps, *_ = rollout(unit, "--depth", "2")
        unit.carry(steps, with_words(unit.observe().launch, "--depth", "2"))
    before = unit.observe()
    launch = with_words(unit_launch(unit), *DEPTH)
    steps, written, previous = rollout(unit, *DEPTH)
    for done in range(len(steps) + 1):
        unit.carry(steps[:done], launch)
        unit.carry(undo(unit, written, previous), launch)
        unit.until(lambda: unit.argv() == before.launch.argv, f"the original runs after {done} Steps of the rollout")
        assert unit.observe() == before
        assert undo(unit, written, previous) == []
    for done in range(len(undo(unit, written, previous)) + 9):
        unit.carry(steps, launch)
        unit.carry(undo(unit, written, previous)[:done], launch)
        unit.carry(undo(unit, written, previous), launch)
        unit.until(lambda: unit.argv() == before.launch.argv, f"the original runs after {done} Steps of the undo")
        assert unit.observe() == before


# --- what can be seen of it


def test_a_service_that_ended_is_seen_as_it_ended(make: Make) -> None:
    """An exit code of 137 is no signal 9, and the kernel's lines are those of this unit."""
    unit = make(words=" --exit 137", running=False)
    unit.sh(f"systemctl start {unit.unit}")
    unit.until(lambda: unit.look().state is ServiceState.FAILED, "it has ended")
    facts = unit.look()
    assert facts.exit is not None
    assert (facts.exit.code, facts.exit.signal, facts.exit.result) == (137, None, "exit-code")
    assert any("status=137" in line for line in facts.lines)
    eater = make("MemoryMax=40M\nMemorySwapMax=0\n", " --eat", running=False)
    eater.sh(f"systemctl start {eater.unit}")
    eater.until(lambda: eater.look().state is ServiceState.FAILED, "the kernel has killed it")
    eater.until(lambda: (exit := eater.look().exit) is not None and exit.host_oom_kills, "the kernel has said so")
    facts = eater.look()
    assert facts.exit is not None
    assert facts.exit.signal == 9
    assert any(f"/{eater.unit}" in line for line in facts.lines)
    ended = unit.look().exit
    assert ended is not None
    assert ended.host_oom_kills == 0


def test_what_restarts_by_itself_tells_the_whole_story(make: Make) -> None:
    unit = make(
        "Restart=always\nRestartSec=50ms\n[Unit]\nStartLimitBurst=3\nStartLimitIntervalSec=60\n",
        " --exit 3",
        running=False,
    )
    before = unit.look()
    assert before.state is ServiceState.STOPPED
    unit.sh(f"systemctl start {unit.unit}")
    unit.until(lambda: unit.look().state is ServiceState.FAILED, "its start limit is reached")
    facts = unit.look()
    assert facts.restarts >= 2
    assert facts.incarnation != before.incarnation
    text = "\n".join(facts.lines)
    assert text.count("status=3") == 3
    assert "Start request repeated too quickly" in text


def test_a_running_service_is_seen_with_its_process_and_memory(make: Make) -> None:
    unit = make()
    facts = unit.look()
    assert facts.state is ServiceState.RUNNING
    assert facts.process is not None
    assert facts.process.argv == unit.argv()
    assert facts.pids == (facts.process.pid,)
    assert facts.process.start_id == unit.sh(f"cut -d' ' -f22 /proc/{facts.process.pid}/stat")
    assert (facts.memory_peak_bytes or 0) > 1 << 20
    assert facts.exit is None
    unit.sh(f"systemctl stop {unit.unit}")
    stopped = unit.look()
    assert stopped.state is ServiceState.STOPPED
    assert stopped.incarnation == facts.incarnation


@pytest.mark.parametrize("where", ["journal", pytest.param("append:/tmp/%N.log", marks=pytest.mark.torture)])
def test_the_log_is_that_of_the_present_start_and_goes_on_from_its_cursor(where: str, make: Make) -> None:
    unit = make(f"StandardOutput={where}\n")
    before = unit.trial("--first")
    unit.until(lambda: "--first" in unit.argv(), "the trial runs")
    unit.until(lambda: "--first" in unit.service.logged(unit.run(unit.service.log("")))[0], "it has said so")
    text, cursor = unit.service.logged(unit.run(unit.service.log("")))
    assert text.count("serving") == 1
    again, same = unit.service.logged(unit.run(unit.service.log(cursor)))
    assert "serving" not in again
    assert same == cursor or again
    unit.do(*unit.target.restore(before))


def test_what_cannot_be_tried_is_refused_by_name(make: Make, ssh: SshHost) -> None:
    unit = make()
    unit.sh(f"ln -s {unit.path} /etc/systemd/system/also-{unit.unit}; systemctl daemon-reload")
    unit.sh("systemd-run -q --unit=passing sleep 1000")
    for name, why in (
        (f"also-{unit.unit}", "another name of"),
        ("nosuch", "there is no unit"),
        ("passing", "systemd-run"),
    ):
        other = target(Site(unit=name))
        with pytest.raises(InputError, match=why):
            other.interpret([unit.run(step) for step in other.observe()])
    with pytest.raises(HostError, match="systemd does not answer"):
        unit.target.interpret([ssh.run(("sh", "-c", "echo systemd does not answer here >&2; exit 69"))])
