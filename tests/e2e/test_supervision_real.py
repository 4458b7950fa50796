"""The class of each failure that a real systemd and a real kernel can tell of: units that fail, and what is said."""

from __future__ import annotations

import itertools
import shlex
import time
from collections.abc import Iterator

import msgspec
import pytest
from support_systemd import SystemdHost, needs_systemd, needs_uml

from leadline.evidence import Failure, ServiceFacts, ServiceState
from leadline.ports import Completed, Site
from leadline.supervision import verdict
from leadline.targets.systemd.target import SystemdTarget

pytestmark = needs_systemd

NUMBERS = itertools.count()
LIMIT_S = 30.0
EATER = "/usr/bin/python3 -c 'x = bytearray(300 << 20); import time; time.sleep(60)'"
CALM = "/bin/sleep 600"


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """A unit of its own for each test: the kernel's messages of earlier ones stay."""

    host: SystemdHost
    name: str

    def sh(self, script: str, *, check: bool = True) -> str:
        return self.host.sh(f"unit={self.name}; {script}", check=check).stdout

    def clear(self) -> None:
        kill = "systemctl kill -s KILL $unit"
        undo = "rm -f /run/systemd/system/$unit; systemctl daemon-reload; systemctl reset-failed $unit"
        self.sh(f"{kill}; systemctl stop $unit; {kill}; {undo}", check=False)


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A unit's [Service] lines, what is done to it once it was started, and what must be said. `until` = the state at
    which it is looked at; `unit` = lines of its [Unit]."""

    service: tuple[str, ...]
    failure: Failure | None
    unit: tuple[str, ...] = ()
    then: str = ""
    until: ServiceState = ServiceState.FAILED
    restarts: int = 0
    reason: str = ""


CASES = {
    "kill -9": Case(
        service=(f"ExecStart={CALM}",), then="systemctl kill -s KILL $unit", failure=Failure.KILLED, reason="no lack of"
    ),
    "kill -9 and started again": Case(
        service=(f"ExecStart={CALM}", "Restart=always", "RestartSec=50ms"),
        then="systemctl kill -s KILL $unit",
        until=ServiceState.RUNNING,
        restarts=1,
        failure=Failure.KILLED,
    ),
    "exit 137": Case(service=('ExecStart=/bin/sh -c "exit 137"',), failure=None),
    "restart loop": Case(
        service=('ExecStart=/bin/sh -c "exit 137"', "Restart=always", "RestartSec=50ms"),
        unit=("StartLimitBurst=4", "StartLimitIntervalSec=60"),
        restarts=3,
        failure=Failure.RESTART_LOOP,
        reason="exit code 137, which is a code of its own",
    ),
    "waiting for its restart": Case(
        service=('ExecStart=/bin/sh -c "exit 3"', "Restart=always", "RestartSec=600"),
        until=ServiceState.RESTARTING,
        failure=Failure.RESTART_LOOP,
        reason="about to start it again",
    ),
    "start limit": Case(
        service=(f"ExecStart={CALM}",),
        unit=("StartLimitBurst=2", "StartLimitIntervalSec=60"),
        then="systemctl restart $unit; systemctl restart $unit",
        failure=Failure.START_LIMIT,
    ),
    "start limit after starts that failed": Case(
        service=("ExecStart=/bin/false",),
        unit=("StartLimitBurst=1", "StartLimitIntervalSec=60"),
        then="sleep 0.2; systemctl start $unit",
        failure=Failure.START_LIMIT,
    ),
    "missing binary": Case(service=("ExecStart=/no/such/server",), failure=Failure.NOT_EXECUTED, reason="203/EXEC"),
    "missing binary again and again": Case(
        service=("ExecStart=/no/such/server", "Restart=always", "RestartSec=50ms"),
        unit=("StartLimitBurst=3", "StartLimitIntervalSec=60"),
        restarts=2,
        failure=Failure.NOT_EXECUTED,
        reason="203/EXEC",
    ),
    "bad user": Case(
        service=(f"ExecStart={CALM}", "User=nobody-of-that-name"), failure=Failure.NOT_EXECUTED, reason="217/USER"
    ),
    "bad group": Case(
        service=(f"ExecStart={CALM}", "Group=none-of-that-name"), failure=Failure.NOT_EXECUTED, reason="216/GROUP"
    ),
    "bad directory": Case(
        service=(f"ExecStart={CALM}", "WorkingDirectory=/no/such"), failure=Failure.NOT_EXECUTED, reason="200/CHDIR"
    ),
    "bad namespace": Case(
        service=(f"ExecStart={CALM}", "ReadWritePaths=/no/such"), failure=Failure.NOT_EXECUTED, reason="226/NAMESPACE"
    ),
    "no environment file": Case(
        service=(f"ExecStart={CALM}", "EnvironmentFile=/no/such"),
        failure=Failure.NOT_EXECUTED,
        reason="could not be had",
    ),
    "a command before it fails": Case(
        service=("ExecStartPre=/bin/false", f"ExecStart={CALM}"), failure=Failure.NOT_EXECUTED, reason="1/FAILURE"
    ),
    "start time-out": Case(
        service=(f"ExecStart={CALM}", "Type=notify", "TimeoutStartSec=1"), failure=Failure.START_TIMEOUT
    ),
    "start time-out of one that ignores SIGTERM": Case(
        service=(
            "ExecStart=/bin/sh -c \"trap '' TERM; while :; do sleep 1; done\"",
            "Type=notify",
            "TimeoutStartSec=1",
            "TimeoutStopSec=1",
        ),
        failure=Failure.START_TIMEOUT,
    ),
    "stop time-out": Case(
        service=("ExecStart=/bin/sh -c \"trap '' TERM; while :; do sleep 1; done\"", "TimeoutStopSec=1"),
        then="sleep 0.3; systemctl stop $unit",
        failure=Failure.STOP_TIMEOUT,
    ),
    "run time-out": Case(
        service=(f"ExecStart={CALM}", "RuntimeMaxSec=1"), failure=Failure.ENVIRONMENT, reason="as long as its unit"
    ),
    "watchdog": Case(service=(f"ExecStart={CALM}", "WatchdogSec=1"), failure=Failure.WATCHDOG),
    "KillMode=process leftovers": Case(
        service=(f'ExecStart=/bin/sh -c "sleep 600 & exec {CALM}"', "KillMode=process"),
        then="sleep 0.3; systemctl stop $unit",
        until=ServiceState.STOPPED,
        failure=Failure.LEFTOVERS,
    ),
    "KillMode=none leftovers": Case(
        service=(f"ExecStart={CALM}", "KillMode=none"),
        then="systemctl stop $unit",
        until=ServiceState.STOPPED,
        failure=Failure.LEFTOVERS,
    ),
    "stopped by somebody": Case(
        service=(f"ExecStart={CALM}",),
        then="systemctl stop $unit",
        until=ServiceState.STOPPED,
        failure=Failure.CHANGED,
        reason="somebody stopped",
    ),
    "ended by itself": Case(service=("ExecStart=/bin/true",), until=ServiceState.STOPPED, failure=None),
    "out of memory": Case(service=(f"ExecStart={EATER}", "MemoryMax=60M", "MemorySwapMax=0"), failure=Failure.HOST_OOM),
    "out of memory and started again": Case(
        service=(f"ExecStart={EATER}", "MemoryMax=60M", "MemorySwapMax=0", "Restart=always", "RestartSec=50ms"),
        unit=("StartLimitBurst=2", "StartLimitIntervalSec=600"),
        restarts=1,
        failure=Failure.HOST_OOM,
    ),
}


def look(unit: Unit) -> ServiceFacts:
    """As a campaign on this unit looks at it."""
    service = SystemdTarget(Site(unit=unit.name)).service
    assert service is not None
    run = service.look()
    script = f"exec {shlex.join(run.argv)} <<'END-OF-INPUT'\n{run.stdin}\nEND-OF-INPUT\n"
    done = unit.host.sh(script, check=False)
    answer = Completed(argv=run.argv, code=done.returncode, stdout=done.stdout.encode(), stderr=done.stderr.encode())
    return service.facts(answer)


def played(unit: Unit, case: Case) -> ServiceFacts:
    """The case at the state in which it is looked at."""
    text = "\n".join(["[Unit]", "Description=a case", *case.unit, "[Service]", *case.service, ""])
    unit.host.put(f"/run/systemd/system/{unit.name}", text)
    unit.sh(f"systemctl daemon-reload; systemctl start $unit; {case.then or ':'}", check=False)
    until = time.monotonic() + LIMIT_S
    while True:
        facts = look(unit)
        if facts.state is case.until and facts.restarts >= case.restarts:
            return facts
        assert time.monotonic() < until, facts
        time.sleep(0.05)


def judge(unit: Unit, case: Case) -> None:
    facts = played(unit, case)
    said = verdict(facts)
    assert (said.failure if said else None) is case.failure, (facts, said)
    assert case.reason in (said.reason if said else ""), said
    if said is not None:
        assert said.remedy
        assert said.line, facts


@pytest.fixture
def unit(systemd_host: SystemdHost) -> Iterator[Unit]:
    unit = Unit(host=systemd_host, name=f"case{next(NUMBERS)}.service")
    yield unit
    unit.clear()


@pytest.mark.parametrize("name", CASES)
def test_systemd_and_the_kernel_are_understood(unit: Unit, name: str) -> None:
    judge(unit, CASES[name])


def test_a_process_left_by_an_earlier_stop_is_told_at_the_next_start(unit: Unit) -> None:
    played(unit, CASES["KillMode=process leftovers"])
    service = ("ExecStart=/bin/false", "KillMode=process")
    judge(unit, Case(service=service, failure=Failure.LEFTOVERS, reason="an earlier stop"))


def test_what_happened_in_earlier_starts_is_not_held_against_the_last(unit: Unit) -> None:
    played(unit, CASES["stop time-out"])
    unit.sh("systemctl reset-failed $unit")
    judge(unit, CASES["exit 137"])


@pytest.fixture(scope="module")
def uml() -> Iterator[SystemdHost]:
    host = SystemdHost.up(backend="uml")
    yield host
    host.down()


@needs_uml
@pytest.mark.torture
@pytest.mark.parametrize("name", ["out of memory", "out of memory and started again", "kill -9", "exit 137"])
def test_a_kernel_with_control_groups_of_the_second_version_says_oom_kill(uml: SystemdHost, name: str) -> None:
    unit = Unit(host=uml, name=f"case{next(NUMBERS)}.service")
    judge(unit, CASES[name])
    result = unit.sh("systemctl show $unit -p Result --value").strip()
    assert result == {"kill -9": "signal", "exit 137": "exit-code"}.get(name, "oom-kill")
    unit.clear()
