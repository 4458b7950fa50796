"""The guard on a real systemd: whatever happens to us, the unit runs as it did before, and nothing of ours is left."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest
from support_systemd import SystemdHost, needs_systemd
from support_unit import DEPTH, Make, Unit, make, ssh, with_words

from leadline.errors import HostError
from leadline.hosts.ssh import SshHost
from leadline.launch import Halt

pytestmark = needs_systemd
__all__ = ["make", "ssh"]


def digest(unit: Unit) -> str:
    return unit.sh(f"sha256sum {unit.path}")


def is_back(unit: Unit) -> bool:
    argv = unit.argv()
    return argv != () and "--depth" not in argv


def hooks(unit: Unit) -> dict[str, tuple[str, ...]]:
    return {name: ("sh", "-c", f"echo {name} >>/tmp/hooks-{unit.name}") for name in ("start", "end")}


def hooked(unit: Unit) -> list[str]:
    return unit.sh(f"cat /tmp/hooks-{unit.name}", check=False).split()


def test_a_cut_connection_brings_the_original_back_within_two_seconds_of_the_grace(make: Make) -> None:
    unit = make()
    before, guard = digest(unit), unit.guard(grace_s=1.0)
    unit.do(*guard.arm)
    unit.hold(guard)
    try:
        unit.trial(*DEPTH)
        assert unit.argv()[-2:] == DEPTH
        unit.host.cut()
        unit.until(lambda: is_back(unit), "the original runs")
        unit.until(lambda: not unit.ours(), "nothing of ours is left")
    finally:
        unit.host.mend()
    lost, back = (
        float(unit.sh(f"journalctl -t leadline -o short-unix -g '{unit.unit}: {what}'").splitlines()[-1].split()[0])
        for what in ("the connection is gone", "given back")
    )
    assert 1.0 <= back - lost < 3.0
    assert digest(unit) == before
    assert unit.show("NeedDaemonReload", "DropInPaths") == "no"


def test_a_blip_shorter_than_the_grace_restarts_nothing(make: Make) -> None:
    unit = make()
    guard = unit.guard(grace_s=300.0)
    unit.do(*guard.arm)
    unit.hold(guard)
    unit.trial(*DEPTH)
    start, grace = unit.show("InvocationID"), f"systemctl is-active leadline-grace@{unit.name}.timer"
    unit.host.cut()
    unit.until(lambda: unit.sh(grace, check=False) == "active", "the grace has begun")
    unit.host.mend()
    held = unit.hold(guard)
    assert unit.sh(grace, check=False) == "inactive"
    assert unit.show("InvocationID") == start
    unit.do(guard.back, guard.hook)
    held.end()
    unit.do(*guard.disarm)
    assert is_back(unit)
    assert unit.sh(f"ls -d /run/leadline/{unit.unit}", check=False) == "" == unit.ours()


def test_an_old_connection_that_ends_late_begins_no_grace(make: Make) -> None:
    unit = make()
    guard = unit.guard()
    unit.do(*guard.arm)
    old, new = unit.hold(guard), unit.hold(guard)
    old.end()
    assert unit.sh(f"systemctl is-active leadline-grace@{unit.name}.timer", check=False) == "inactive"
    new.end()
    assert unit.sh(f"systemctl is-active leadline-grace@{unit.name}.timer", check=False) == "active"
    unit.do(*guard.disarm)


@pytest.mark.parametrize("which", ["lease_s", pytest.param("end_s", marks=pytest.mark.torture)])
def test_a_time_that_is_over_brings_the_original_back(which: str, make: Make) -> None:
    unit = make()
    guard = unit.guard()
    unit.do(*guard.arm)
    unit.hold(guard)
    unit.trial(*DEPTH)
    unit.do(*unit.guard(**{which: 0.5}).arm)
    unit.until(lambda: is_back(unit), "the original runs")
    unit.until(lambda: not unit.ours(), "nothing of ours is left")
    assert "(" + which[:-2] in unit.sh(f"cat /run/leadline/{unit.unit}/log")


def test_a_sign_of_life_begins_the_lease_anew(make: Make) -> None:
    unit = make()
    guard = unit.guard()
    unit.do(*guard.arm)
    due = f"systemctl show -p NextElapseUSecMonotonic --value leadline-lease@{unit.name}.timer"
    first = unit.sh(due)
    unit.do(guard.renew)
    assert unit.sh(due) != first
    unit.do(*guard.disarm)
    assert not unit.ours()


def test_a_trial_that_crashed_comes_back_by_hand_too(make: Make) -> None:
    unit = make()
    guard = unit.guard(**hooks(unit))
    unit.do(*guard.arm)
    unit.trial("--depth", "4", "--exit", "3")
    unit.until(lambda: unit.show("ActiveState") == "failed", "the trial has crashed")
    unit.sh(f"systemctl start leadline-restore@{unit.name}")
    unit.until(lambda: is_back(unit), "the original runs")
    unit.until(lambda: not unit.ours(), "nothing of ours is left")
    assert hooked(unit) == ["start", "end"]


def test_what_was_stopped_is_stopped_again(make: Make) -> None:
    unit = make(running=False)
    guard = unit.guard()
    unit.do(*guard.arm)
    observed = unit.trial(*DEPTH)
    assert not observed.running
    unit.until(lambda: unit.argv()[-2:] == DEPTH, "the trial runs")
    again = unit.observe()
    assert again.held
    assert not again.running
    unit.do(guard.back)
    unit.until(lambda: unit.show("ActiveState") == "inactive", "it is stopped")
    unit.do(guard.hook, *guard.disarm)
    assert not unit.ours()


def test_nothing_is_restarted_when_nothing_was_touched(make: Make) -> None:
    unit = make()
    guard = unit.guard(**hooks(unit))
    start, before = unit.show("InvocationID"), unit.observe()
    unit.do(*guard.arm)
    launch = with_words(before.launch, *DEPTH)
    unit.carry(
        list(itertools.takewhile(lambda s: not isinstance(s, Halt), unit.target.plan(launch, before, ""))), launch
    )
    unit.do(guard.back, guard.hook, *guard.disarm)
    assert unit.show("InvocationID") == start
    assert hooked(unit) == ["start", "end"]


def test_hooks_run_once_when_we_and_the_deadline_call_at_once(make: Make) -> None:
    unit = make()
    guard = unit.guard(**hooks(unit))
    unit.do(*guard.arm, *guard.arm)
    due = f"/bin/sh /run/leadline/{unit.unit}/guard due {unit.unit} end"
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda call: call(), [lambda: unit.sh(due), lambda: unit.do(guard.hook), lambda: unit.sh(due)]))
    unit.until(lambda: not unit.ours(), "nothing of ours is left")
    unit.do(guard.hook, *guard.disarm)
    assert hooked(unit) == ["start", "end"]


def test_a_failed_start_hook_calls_users_back_and_leaves_nothing(make: Make) -> None:
    unit = make()
    guard = unit.guard(**(hooks(unit) | {"start": ("sh", "-c", "exit 9")}))
    with pytest.raises(HostError, match="the start hook ended with 9"):
        unit.do(*guard.arm)
    assert hooked(unit) == ["end"]
    assert unit.sh(f"ls -d /run/leadline/{unit.unit}", check=False) == "" == unit.ours()


def test_another_campaign_is_refused_until_the_lock_is_broken(make: Make) -> None:
    unit = make()
    unit.do(*unit.guard().arm)
    unit.trial(*DEPTH)
    other = unit.guard(campaign="shed:/two", owner="bert@shed")
    with pytest.raises(HostError, match="anna@desk"):
        unit.do(*other.arm)
    who, *steps = unit.service.unlock()
    assert "campaign=desk:/one" in unit.run(who).stdout.decode()
    unit.do(*steps)
    unit.until(lambda: is_back(unit), "the original runs")
    assert unit.run(who).stdout == b""
    unit.do(*other.arm, *other.disarm)
    assert not unit.ours()


def test_a_host_that_cannot_be_written_to_is_left_as_it_is(make: Make) -> None:
    unit = make()
    state, guard = f"/run/leadline/{unit.unit}", unit.guard(**hooks(unit))
    unit.sh(f"mkdir -p {state} && mount -t tmpfs -o size=4k,nr_inodes=2 tmpfs {state} && : >{state}/lock")
    try:
        with pytest.raises(HostError, match="nothing of the service was changed"):
            unit.do(*guard.arm)
    finally:
        unit.sh(f"umount {state}; rmdir {state}")
    assert not unit.ours()
    assert hooked(unit) == []


@pytest.mark.torture
@pytest.mark.parametrize("mode", ["control-group", "process", "none"])
def test_a_trial_that_does_not_stop_is_killed(mode: str, make: Make) -> None:
    unit = make(f"TimeoutStopSec=600\nKillMode={mode}\n")
    guard = unit.guard()
    unit.do(*guard.arm)
    unit.trial("--depth", "4", "--stubborn")
    unit.until(lambda: "Dummy" in unit.sh(f"systemctl status {unit.unit}") and "--stubborn" in unit.argv(), "it runs")
    unit.do(guard.back)
    unit.until(lambda: is_back(unit), "the original runs")
    assert len(unit.look().pids) == 1
    unit.do(guard.hook, *guard.disarm)
    assert not unit.ours()


def test_a_power_cut_boots_the_original(ssh: SshHost, systemd_host: SystemdHost) -> None:
    """The last of them: the host is another after it."""
    unit = Unit(systemd_host, ssh)
    before, guard = digest(unit), unit.guard()
    unit.do(*guard.arm)
    unit.trial(*DEPTH)
    systemd_host.crash()
    systemd_host.again()
    unit.until(lambda: is_back(unit), "the original runs")
    assert digest(unit) == before
    assert unit.sh("ls -d /run/leadline", check=False) == "" == unit.ours()
