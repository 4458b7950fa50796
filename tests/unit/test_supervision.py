"""What the supervisor and the kernel say of the end of a service, by the texts of systemd 252 and Linux 6.18."""

from __future__ import annotations

import msgspec
import pytest

from leadline.evidence import ExitFacts, Failure, ProcessFacts, ServiceFacts, ServiceState
from leadline.supervision import EXECUTION, ended, of_last_start, verdict

KILLED_LINES = ("k.service: Main process exited, code=killed, status=9/KILL", "k.service: Failed with result 'signal'.")
LIMIT_LINE = "k.service: Start request repeated too quickly."
CGROUP = "/testhost/system.slice/k.service"
OOM_V1 = (
    *KILLED_LINES,
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=testhost,mems_allowed=0,"
    f"oom_memcg={CGROUP},task_memcg={CGROUP},task=python3,pid=11931,uid=0",
    "Memory cgroup out of memory: Killed process 11931 (python3) total-vm:320964kB, anon-rss:61056kB, file-rss:2400kB",
)
OOM_V2 = (
    "k.service: A process of this unit has been killed by the OOM killer.",
    "k.service: Main process exited, code=killed, status=9/KILL",
    "k.service: Failed with result 'oom-kill'.",
)
OOM_HOST = (
    *KILLED_LINES,
    "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,"
    "task_memcg=/system.slice/k.service,task=python3,pid=77,uid=0",
    "Out of memory: Killed process 77 (python3) total-vm:320964kB, anon-rss:61056kB",
)
START_TIMEOUT = (
    "Starting k.service - k...",
    "k.service: start operation timed out. Terminating.",
    "k.service: Failed with result 'timeout'.",
)
STOP_TIMEOUT = (
    "Stopping k.service - k...",
    "k.service: State 'stop-sigterm' timed out. Killing.",
    "k.service: Killing process 430 (sh) with signal SIGKILL.",
    "k.service: Main process exited, code=killed, status=9/KILL",
    "k.service: Failed with result 'timeout'.",
)
LEFT_LINE = "k.service: Unit process 519 (sleep) remains running after unit stopped."
FOUND_LINE = "k.service: Found left-over process 519 (sleep) in control group while starting unit. Ignoring."
FOUND = (
    FOUND_LINE,
    "This usually indicates unclean termination of a previous run, or service implementation deficiencies.",
)
STOPPED = ("Stopping k.service - k...", "k.service: Deactivated successfully.", "Stopped k.service - k.")
WATCHDOG = (
    "k.service: Watchdog timeout (limit 1s)!",
    "k.service: Killing process 461 (sleep) with signal SIGABRT.",
    "k.service: Main process exited, code=killed, status=6/ABRT",
    "k.service: Failed with result 'watchdog'.",
)


def code(number: int) -> tuple[str, ...]:
    name = EXECUTION[number][0] if number in EXECUTION else "n/a"
    return (
        f"k.service: Main process exited, code=exited, status={number}/{name}",
        "k.service: Failed with result 'exit-code'.",
    )


def restarts(n: int, lines: tuple[str, ...]) -> tuple[str, ...]:
    told = [line for i in range(1, n + 1) for line in (*lines, f"k.service: Scheduled restart job, counter is at {i}.")]
    return (*told, *lines)


def failed(result: str, *lines: str, signal: int | None = None, code: int | None = None, **more) -> ServiceFacts:
    exit = ExitFacts(code=code, signal=signal, result=result)
    return ServiceFacts(**{"state": ServiceState.FAILED, "exit": exit, "lines": lines, **more})


def running(*lines: str, **more) -> ServiceFacts:
    process = ProcessFacts(pid=7, start_id="7", argv=("server",))
    return ServiceFacts(state=ServiceState.RUNNING, process=process, pids=(7,), lines=lines, **more)


CASES = {
    "oom v1": (failed("signal", *OOM_V1, signal=9), Failure.HOST_OOM, "control group", "MemoryMax="),
    "oom v2": (failed("oom-kill", *OOM_V2, signal=9), Failure.HOST_OOM, "control group", "MemoryMax="),
    "oom v2 by its result alone": (failed("oom-kill", signal=9), Failure.HOST_OOM, "signal 9", "MemoryMax="),
    "oom of a child": (failed("oom-kill", OOM_V2[0], code=1), Failure.HOST_OOM, "exit code 1", "MemoryMax="),
    "oom of the host": (failed("signal", *OOM_HOST, signal=9), Failure.HOST_OOM, "whole host", "free memory on"),
    "oom under a shell": (failed("exit-code", *OOM_V1[2:], code=137), Failure.HOST_OOM, "137", "MemoryMax="),
    "oom by docker": (failed("", '"OOMKilled": true', code=137), Failure.HOST_OOM, "", "mem_limit"),
    "oom counted by the target": (
        ServiceFacts(state=ServiceState.FAILED, exit=ExitFacts(code=137, host_oom_kills=1)),
        Failure.HOST_OOM,
        "",
        "mem_limit",
    ),
    "oom and restarted": (running(*OOM_V1, restarts=1), Failure.HOST_OOM, "signal 9", "MemoryMax="),
    "oom by oomd": (
        failed("signal", "k.service: systemd-oomd killed 2 process(es) in this unit.", signal=9),
        Failure.HOST_OOM,
        "",
        "MemoryMax=",
    ),
    "kill -9": (failed("signal", *KILLED_LINES, signal=9), Failure.KILLED, "somebody killed it", "person"),
    "kill -9 and restarted": (running(*KILLED_LINES, restarts=1), Failure.KILLED, "somebody killed it", "person"),
    "missing binary": (failed("exit-code", *code(203), code=203), Failure.NOT_EXECUTED, "203/EXEC", "ExecStart="),
    "bad user": (failed("exit-code", *code(217), code=217), Failure.NOT_EXECUTED, "217/USER", "User="),
    "bad group": (failed("exit-code", *code(216), code=216), Failure.NOT_EXECUTED, "216/GROUP", "Group="),
    "bad directory": (failed("exit-code", code=200), Failure.NOT_EXECUTED, "200/CHDIR", "WorkingDirectory="),
    "bad namespace": (failed("exit-code", code=226), Failure.NOT_EXECUTED, "226/NAMESPACE", "ReadWritePaths="),
    "missing binary again and again": (
        running(*restarts(2, code(203)), restarts=2),
        Failure.NOT_EXECUTED,
        "203/EXEC",
        "ExecStart=",
    ),
    "no environment file": (
        failed("resources", "k.service: Failed to load environment files: No such file or directory"),
        Failure.NOT_EXECUTED,
        "could not be had",
        "systemctl status",
    ),
    "ExecStartPre": (
        failed("exit-code", "k.service: Control process exited, code=exited, status=1/FAILURE", code=0),
        Failure.NOT_EXECUTED,
        "1/FAILURE",
        "ExecStartPre=",
    ),
    "no such program in the container": (
        failed("", "OCI runtime create failed: exec: llama: executable file not found in $PATH", code=127),
        Failure.NOT_EXECUTED,
        "",
        "docker inspect",
    ),
    "start time-out": (failed("timeout", *START_TIMEOUT, signal=15), Failure.START_TIMEOUT, "", "TimeoutStartSec="),
    "start time-out, and then it ignored SIGTERM": (
        failed("timeout", *START_TIMEOUT[:2], *STOP_TIMEOUT[1:], signal=9),
        Failure.START_TIMEOUT,
        "signal 9",
        "TimeoutStartSec=",
    ),
    "stop time-out": (failed("timeout", *STOP_TIMEOUT, signal=9), Failure.STOP_TIMEOUT, "", "TimeoutStopSec="),
    "run time-out": (
        failed("timeout", "k.service: Service reached runtime time limit. Stopping.", signal=15),
        Failure.ENVIRONMENT,
        "as long as its unit allows",
        "RuntimeMaxSec=",
    ),
    "watchdog": (failed("watchdog", *WATCHDOG, signal=6), Failure.WATCHDOG, "signal 6", "WatchdogSec="),
    "watchdog and restarted": (running(*WATCHDOG, restarts=1), Failure.WATCHDOG, "signal 6", "WatchdogSec="),
    "restart loop": (running(*restarts(3, code(1)), restarts=3), Failure.RESTART_LOOP, "exit code 1", "Restart="),
    "restart loop with code 137": (
        running(*restarts(2, code(137)), restarts=2),
        Failure.RESTART_LOOP,
        "exit code 137, which is a code of its own or of a wrapper and no SIGKILL",
        "Restart=",
    ),
    "waiting for its restart": (
        failed("exit-code", *code(1), code=1, state=ServiceState.RESTARTING),
        Failure.RESTART_LOOP,
        "about to start it again",
        "RestartSec=",
    ),
    "restart loop up to the limit": (
        failed("exit-code", *restarts(4, code(1)), LIMIT_LINE, code=1, restarts=4),
        Failure.RESTART_LOOP,
        "start limit",
        "Restart=",
    ),
    "start limit": (
        failed("start-limit-hit", LIMIT_LINE, signal=15),
        Failure.START_LIMIT,
        "before this setting came",
        "reset-failed",
    ),
    "start limit after starts that failed": (
        failed("exit-code", *code(203), LIMIT_LINE, code=203),
        Failure.START_LIMIT,
        "before this setting came",
        "StartLimitBurst=",
    ),
    "left by its stop": (
        ServiceFacts(state=ServiceState.STOPPED, exit=ExitFacts(signal=15), pids=(519,), lines=(LEFT_LINE,)),
        Failure.LEFTOVERS,
        "519",
        "KillMode=",
    ),
    "left, and nobody says so": (
        ServiceFacts(state=ServiceState.STOPPED, exit=ExitFacts(code=0, result="success"), pids=(519, 520)),
        Failure.LEFTOVERS,
        "519, 520",
        "KillMode=",
    ),
    "left by a stop that timed out": (
        failed("timeout", *STOP_TIMEOUT, LEFT_LINE, signal=9, pids=(519,)),
        Failure.LEFTOVERS,
        "1 of its processes",
        "KillMode=",
    ),
    "left by an earlier stop": (
        failed("exit-code", FOUND_LINE, *code(1), code=1),
        Failure.LEFTOVERS,
        "an earlier stop",
        "KillMode=",
    ),
    "stopped by somebody": (
        ServiceFacts(state=ServiceState.STOPPED, exit=ExitFacts(code=0, result="success"), lines=STOPPED),
        Failure.CHANGED,
        "somebody stopped",
        "journalctl",
    ),
    "removed by somebody": (ServiceFacts(state=ServiceState.MISSING), Failure.CHANGED, "no such service", "removed it"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_class_its_reason_and_its_remedy(name: str) -> None:
    facts, failure, reason, remedy = CASES[name]
    said = verdict(facts)
    assert said is not None
    assert said.failure is failure
    assert reason in said.reason
    assert remedy in said.remedy
    assert said.line == "" or any(said.line in line for line in facts.lines)


@pytest.mark.parametrize(
    "facts",
    [
        failed("exit-code", *code(137), code=137),
        failed("exit-code", *code(1), code=1),
        failed("exit-code", *code(1), code=1, pids=(519,)),
        failed("signal", "k.service: Main process exited, code=dumped, status=11/SEGV", signal=11),
        ServiceFacts(state=ServiceState.STOPPED, exit=ExitFacts(code=0), lines=STOPPED[1:2]),
        ServiceFacts(state=ServiceState.STOPPED),
        running(),
        running(*OOM_V1),
        running(FOUND_LINE),
        ServiceFacts(state=ServiceState.STARTING),
        failed("", *KILLED_LINES, signal=9, exit=ExitFacts(signal=9, asked=True)),
    ],
    ids=[
        "exit 137", "exit 1", "exit 1 with a child left", "segfault", "end by itself", "end that nobody saw", "running",
        "running, a child was killed", "running beside leftovers", "starting", "we asked for it",
    ],
)  # fmt: skip
def test_what_only_the_engine_can_tell(facts: ServiceFacts) -> None:
    assert verdict(facts) is None


def test_exit_code_137_is_no_sigkill_but_both_may_be_a_kill_for_memory() -> None:
    assert verdict(failed("exit-code", *code(137), code=137)) is None
    told = ended(failed("exit-code", *code(137), code=137))
    assert (told.code, told.signal, told.host_oom_kills) == (137, None, 0)
    assert ended(failed("signal", *OOM_V1, signal=9)).host_oom_kills == 1
    assert ended(failed("exit-code", *OOM_V1[2:], code=137)).host_oom_kills == 1


def test_of_a_server_that_was_started_again_the_lines_say_how_the_first_ended() -> None:
    assert ended(running(*restarts(2, code(3)), restarts=2)) == ExitFacts(code=3, result="exit-code")
    assert ended(running(*KILLED_LINES, restarts=1)) == ExitFacts(signal=9, result="signal")
    assert ended(running(restarts=1)) == ExitFacts()
    assert ended(running(*KILLED_LINES)) is None


STARTED, STARTING = "Started k.service - k.", "Starting k.service - k..."
STOPPING = "Stopping k.service - k..."
AGAIN = "k.service: Scheduled restart job, restart counter is at 1."
REFUSED = (LIMIT_LINE, "k.service: Failed with result 'exit-code'.", "Failed to start k.service - k.")


@pytest.mark.parametrize(
    ("earlier", "last"),
    [
        ((STARTED, *STOP_TIMEOUT, "Stopped k.service - k."), (STARTED, *code(1))),
        ((STARTED, *KILLED_LINES), (STARTED, *code(1), AGAIN, "Stopped k.service - k.", STARTED, *code(2))),
        ((STARTED, *KILLED_LINES), (STARTING, STARTED, *code(1), AGAIN, STARTING, STARTED)),
        ((*START_TIMEOUT, "Failed to start k.service - k."), (STARTED, *code(1))),
        ((*START_TIMEOUT, "Failed to start k.service - k."), START_TIMEOUT),
        ((STARTED, STOPPING, LEFT_LINE, "Stopped k.service - k."), (*FOUND, *FOUND, STARTED, *code(1))),
        ((STARTED, *code(203)), (STARTED, *code(203), *REFUSED)),
        ((*REFUSED,), (STARTED, *code(1))),
        ((), code(1)),
        ((), ()),
    ],
)
def test_what_was_said_of_earlier_starts_does_not_count(earlier: tuple[str, ...], last: tuple[str, ...]) -> None:
    assert of_last_start((*earlier, *last)) == last


def test_an_earlier_stop_that_hung_is_not_held_against_a_server_that_ended_by_itself() -> None:
    facts = failed("exit-code", STARTED, *STOP_TIMEOUT, STARTED, *code(1), code=1)
    assert verdict(facts) is None
    assert ended(facts) == facts.exit


def test_the_peak_of_its_memory_is_told_where_memory_ended_it() -> None:
    facts = msgspec.structs.replace(CASES["oom v2"][0], memory_peak_bytes=3 << 29)
    assert "peak of 1.5 GiB" in verdict(facts).reason


@pytest.mark.parametrize("number", EXECUTION)
def test_each_code_of_systemds_own_names_itself_and_what_to_change(number: int) -> None:
    name, _, remedy = EXECUTION[number]
    said = verdict(failed("exit-code", code=number))
    assert said.failure is Failure.NOT_EXECUTED
    assert f"{number}/{name}" in said.reason
    assert said.remedy == remedy


def test_a_line_is_shown_without_secrets() -> None:
    line = "k.service: Failed to spawn 'start' task: env HF_TOKEN=hf_abcdefghijklmnopqrstuvwx"
    said = verdict(failed("resources", line))
    assert "hf_abc" not in str(said)
    assert "<secret>" in said.line
