"""What the supervisor and the kernel say of a service that has ended, before its engine's own log is asked. Pure.

The lines are systemd's, docker's and Linux's own; the remedies speak the words of a unit file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from leadline.dialect.signs import SIGKILL, masked_line
from leadline.evidence import Diagnosis, ExitFacts, Failure, ServiceFacts, ServiceState

NO_SIGKILL = 128 + SIGKILL

_ENDED = re.compile(r"Main process exited, code=(?P<how>exited|killed|dumped), status=(?P<status>\d+)")
_RESULT = re.compile(r"Failed with result '(?P<result>[a-z-]+)'")
_OOM_HOST = re.compile(r"oom-kill:constraint=CONSTRAINT_(?:NONE|CPUSET|MEMORY_POLICY)\b|\bOut of memory: Killed")
_OOM = re.compile(
    r"oom-kill:constraint=CONSTRAINT_MEMCG|Memory cgroup out of memory: Killed process|killed by the OOM killer"
    r"|systemd-oomd killed|OOMKilled['\"]?[:=] ?true\b|Failed with result 'oom-kill'|" + _OOM_HOST.pattern
)
_LIMIT = re.compile(r"Start request repeated too quickly|start of the service was attempted too often")
_START_TIMEOUT = re.compile(r"\bstart(?:-pre|-post)? operation timed out")
_STOP_TIMEOUT = re.compile(r"State '(?:stop|final)-[a-z-]+' timed out|Stopping timed out")
_RUN_TIMEOUT = re.compile(r"reached runtime time limit")
_TIMEOUTS = re.compile("|".join(p.pattern for p in (_START_TIMEOUT, _STOP_TIMEOUT, _RUN_TIMEOUT)))
_WATCHDOG = re.compile(r"Watchdog timeout|Failed with result 'watchdog'")
_LEFT_AT_START = re.compile(r"Found left-over process")
_BEFORE_START = re.compile(_LEFT_AT_START.pattern + r"|This usually indicates unclean termination of a previous run")
_LEFT_AT_STOP = re.compile(r"remains running after unit stopped|Unit process \d+ \S+ remains running")
_KILLED = re.compile(r"Sent signal SIGKILL to |code=killed, status=9/KILL")
_AUTOMATIC = re.compile(r"Scheduled restart job")
_STOPPED = re.compile(r"(?:^|: )Stopping (?!timed)")
_CONTROL = re.compile(r"Control process exited, code=\w+, status=(?P<status>\d+\S*)")
_NOT_RUN = re.compile(
    r"Failed to load environment files|Failed to run 'start' task|Failed to spawn |Dependency failed for "
    r"|was skipped because |Condition check resulted in |unit configuration has fatal error|has a bad unit file setting"
    r"|OCI runtime (?:create|exec) failed|executable file not found in|Failed at step \S+ spawning"
)
_CAUSES = {
    "resources": "a file or a resource that the unit names could not be had",
    "exec-condition": "its ExecCondition= said no",
    "condition": "a Condition...= of the unit is not met",
}

EXECUTION: dict[int, tuple[str, str, str]] = {
    200: ("CHDIR", "it cannot enter its working directory", "correct WorkingDirectory="),
    201: ("NICE", "its priority cannot be set", "correct Nice="),
    202: ("FDS", "its file descriptors cannot be set up", "look at its Sockets= and FileDescriptorStoreMax="),
    203: ("EXEC", "its program is not there or cannot be executed", "correct the program's path in ExecStart="),
    204: ("MEMORY", "there was no memory to begin it", "free memory on the host"),
    205: ("LIMITS", "a resource limit cannot be set", "correct Limit...="),
    206: ("OOM_ADJUST", "its out-of-memory score cannot be set", "correct OOMScoreAdjust="),
    207: ("SIGNAL_MASK", "its signal mask cannot be set", "correct IgnoreSIGPIPE="),
    208: ("STDIN", "its standard input cannot be set up", "correct StandardInput="),
    209: ("STDOUT", "its standard output cannot be set up", "correct StandardOutput=: is the folder of its log there?"),
    210: ("CHROOT", "its root directory cannot be entered", "correct RootDirectory="),
    211: ("IOPRIO", "its I/O priority cannot be set", "correct IOSchedulingClass= and IOSchedulingPriority="),
    212: ("TIMERSLACK", "its timer slack cannot be set", "correct TimerSlackNSec="),
    213: ("SECUREBITS", "its secure bits cannot be set", "correct SecureBits="),
    214: ("SETSCHEDULER", "its scheduler cannot be set", "correct CPUSchedulingPolicy= and CPUSchedulingPriority="),
    215: ("CPUAFFINITY", "it cannot be bound to those processors", "correct CPUAffinity="),
    216: ("GROUP", "its group does not exist", "correct Group= and SupplementaryGroups=, or create the group"),
    217: ("USER", "its user does not exist", "correct User=, or create the user"),
    218: ("CAPABILITIES", "its capabilities cannot be set", "correct CapabilityBoundingSet= and AmbientCapabilities="),
    219: ("CGROUP", "its control group cannot be set up", "correct Slice= and Delegate="),
    220: ("SETSID", "its session cannot be begun", "look at the kernel's messages"),
    221: ("CONFIRM", "somebody at the console declined its start", "boot without systemd.confirm_spawn"),
    222: ("STDERR", "its standard error cannot be set up", "correct StandardError=: is the folder of its log there?"),
    224: ("PAM", "its PAM session cannot be begun", "correct PAMName="),
    225: ("NETWORK", "its network namespace cannot be set up", "correct PrivateNetwork= and NetworkNamespacePath="),
    226: (
        "NAMESPACE",
        "its view of the file system cannot be set up",
        "correct ReadWritePaths=, ReadOnlyPaths=, InaccessiblePaths=, BindPaths=, PrivateTmp= or ProtectSystem=: each "
        "path must be there",
    ),
    227: ("NO_NEW_PRIVILEGES", "it cannot be kept from new privileges", "correct NoNewPrivileges="),
    228: ("SECCOMP", "its system-call filter cannot be set", "correct SystemCallFilter="),
    229: ("SELINUX_CONTEXT", "its SELinux context cannot be set", "correct SELinuxContext="),
    230: ("PERSONALITY", "its execution domain cannot be set", "correct Personality="),
    231: ("APPARMOR_PROFILE", "its AppArmor profile cannot be used", "correct AppArmorProfile="),
    232: ("ADDRESS_FAMILIES", "its address families cannot be restricted", "correct RestrictAddressFamilies="),
    233: ("RUNTIME_DIRECTORY", "its runtime directory cannot be made", "correct RuntimeDirectory="),
    235: ("CHOWN", "the owner of a socket cannot be changed", "correct the owner of its socket unit"),
    236: ("SMACK_PROCESS_LABEL", "its SMACK label cannot be set", "correct SmackProcessLabel="),
    237: ("KEYRING", "its keyring cannot be set up", "correct KeyringMode="),
    238: ("STATE_DIRECTORY", "its state directory cannot be made", "correct StateDirectory="),
    239: ("CACHE_DIRECTORY", "its cache directory cannot be made", "correct CacheDirectory="),
    240: ("LOGS_DIRECTORY", "its log directory cannot be made", "correct LogsDirectory="),
    241: ("CONFIGURATION_DIRECTORY", "its configuration directory cannot be made", "correct ConfigurationDirectory="),
    242: ("NUMA_POLICY", "its NUMA policy cannot be set", "correct NUMAPolicy= and NUMAMask="),
    243: ("CREDENTIALS", "a credential cannot be had", "correct LoadCredential= and SetCredential="),
    245: ("BPF", "its BPF restrictions cannot be set", "correct RestrictFileSystems="),
}
"""systemd's own exit codes, of what failed between its fork and the program: name, what it means, what to change."""


def verdict(facts: ServiceFacts) -> Diagnosis | None:
    """Why it ended, as far as they tell. None = they say nothing special of it: ask the engine, for an exit code too.

    Its lines may go back to earlier starts: those do not count. Of a start that was refused, an exit is that of an
    earlier start. One restart by the supervisor makes a loop: what ended once under a setting ends again.
    """
    facts = msgspec.structs.replace(facts, lines=of_last_start(facts.lines))
    if facts.state is ServiceState.MISSING:
        return _missing(facts)
    exit = ended(facts)
    if exit is None or exit.asked:
        return None
    return (
        (None if facts.restarts else _start_limit(facts, exit))
        or _out_of_memory(facts, exit)
        or _not_executed(facts, exit)
        or _watchdog(facts, exit)
        or _timeout(facts, exit)
        or _killed(facts, exit)
        or _leftovers(facts, exit)
        or _restart_loop(facts, exit)
        or _stopped(facts, exit)
    )


def ended(facts: ServiceFacts) -> ExitFacts | None:
    """How its main process ended, with what the lines add: the kernel's out-of-memory kills (cgroup v1 reports a signal
    alone), and the end of one that has been started again since. None = nothing has ended."""
    facts = msgspec.structs.replace(facts, lines=of_last_start(facts.lines))
    over = facts.state.at_rest or facts.state is ServiceState.RESTARTING or facts.restarts > 0
    if facts.exit is None and not over:
        return None
    exit = facts.exit or ExitFacts()
    if exit.code is None and exit.signal is None:
        exit = msgspec.structs.replace(exit, **_told(facts))
    result = _search(facts, _RESULT)
    return msgspec.structs.replace(
        exit,
        host_oom_kills=max(exit.host_oom_kills, int(bool(_line(facts, _OOM)))),
        result=exit.result or (result["result"] if result else ""),
    )


def of_last_start(lines: Sequence[str]) -> tuple[str, ...]:
    """The lines since the last start that somebody asked for, with the supervisor's own restarts after it."""
    first, found, announced = 0, 0, False
    for at, line in enumerate(lines):
        if _BEFORE_START.search(line):
            continue  # said before the start that it is about
        if line.startswith(("Starting ", "Started ")):
            first, announced = first if announced else found, line.startswith("Starting ")
        elif _AUTOMATIC.search(line):
            announced = True
        elif line.startswith("Failed to start "):
            announced = False
        found = at + 1
    return tuple(lines[first:])


def _told(facts: ServiceFacts) -> dict[str, int]:
    found = _search(facts, _ENDED)
    if found is None:
        return {}
    return {"code" if found["how"] == "exited" else "signal": int(found["status"])}


def _search(facts: ServiceFacts, pattern: re.Pattern[str]) -> re.Match[str] | None:
    return next((found for line in facts.lines if (found := pattern.search(line))), None)


def _line(facts: ServiceFacts, pattern: re.Pattern[str]) -> str:
    """The first such line, fit to be shown; "" = there is none."""
    return next((masked_line(line) for line in facts.lines if pattern.search(line)), "")


def _how(exit: ExitFacts) -> str:
    if exit.code == NO_SIGKILL:
        return f"exit code {NO_SIGKILL}, which is a code of its own or of a wrapper and no SIGKILL"
    return str(exit)


def _missing(facts: ServiceFacts) -> Diagnosis:
    return Diagnosis(
        failure=Failure.CHANGED,
        reason="its supervisor knows no such service any more",
        line=_line(facts, re.compile("")),
        remedy="see who removed it, and put its definition back",
        implies="says nothing of any setting",
    )


def _start_limit(facts: ServiceFacts, exit: ExitFacts) -> Diagnosis | None:
    line = _line(facts, _LIMIT)
    if not line and exit.result != "start-limit-hit":
        return None
    return Diagnosis(
        failure=Failure.START_LIMIT,
        reason="systemd does not start it any more: it had been started too often, before this setting came",
        line=line,
        remedy="`systemctl reset-failed` the unit, and read why the earlier starts ended; StartLimitBurst= and "
        "StartLimitIntervalSec= are its limit",
        implies="says nothing of the setting",
    )


def _out_of_memory(facts: ServiceFacts, exit: ExitFacts) -> Diagnosis | None:
    if not exit.host_oom_kills and exit.result != "oom-kill":
        return None
    peak = f", after a peak of {facts.memory_peak_bytes / 2**30:.1f} GiB" if facts.memory_peak_bytes else ""
    whole = _line(facts, _OOM_HOST)
    return Diagnosis(
        failure=Failure.HOST_OOM,
        reason=f"the kernel killed it for want of host memory ({exit}){peak}: "
        + ("the whole host ran out of it" if whole else "the limit of its control group was reached"),
        line=whole or _line(facts, _OOM),
        remedy="use a setting, a context or a cache that needs less host memory, or "
        + ("free memory on the host" if whole else "raise MemoryMax= of the unit (mem_limit of the container)"),
        implies="whatever needs as much host memory or more fails too",
    )


def _not_executed(facts: ServiceFacts, exit: ExitFacts) -> Diagnosis | None:
    name, reason, remedy = EXECUTION.get(exit.code or 0, ("", "", ""))
    line = _line(facts, _NOT_RUN)
    if name:
        reason = f"{reason} (systemd's exit code {exit.code}/{name})"
    elif exit.result in _CAUSES or line:
        reason = _CAUSES.get(exit.result, "its supervisor did not get as far as its program")
        remedy = "read what the supervisor says (`systemctl status`, `docker inspect`), and correct the definition"
    elif not _line(facts, _ENDED) and (control := _search(facts, _CONTROL)) and not exit.signal:
        line = masked_line(control.string)
        reason = f"a command that the unit runs beside its program failed ({control['status']})"
        remedy = "run the ExecStartPre= and ExecStartPost= of the unit by hand"
    else:
        return None
    return Diagnosis(
        failure=Failure.NOT_EXECUTED,
        reason=f"the server was not executed: {reason}",
        line=line or _line(facts, _ENDED),
        remedy=remedy,
        implies="no setting starts",
    )


def _watchdog(facts: ServiceFacts, exit: ExitFacts) -> Diagnosis | None:
    line = _line(facts, _WATCHDOG)
    if not line and exit.result != "watchdog":
        return None
    return Diagnosis(
        failure=Failure.WATCHDOG,
        reason=f"it gave systemd no sign of life in time, and was ended ({exit})",
        line=line,
        remedy="look for what hung; raise WatchdogSec= when it only took long",
    )


def _timeout(facts: ServiceFacts, exit: ExitFacts) -> Diagnosis | None:
    """The first of them tells: a start that timed out may time out again while it is ended."""
    line = _line(facts, _TIMEOUTS)
    if not line and exit.result != "timeout":
        return None
    if _RUN_TIMEOUT.search(line):
        return Diagnosis(
            failure=Failure.ENVIRONMENT,
            reason="systemd ended it: it had run for as long as its unit allows",
            line=line,
            remedy="raise RuntimeMaxSec=",
            implies="says nothing of any setting",
        )
    if _STOP_TIMEOUT.search(line) or (not line and facts.state is ServiceState.STOPPING):
        left = f"; {len(facts.pids)} of its processes are left, since KillMode= spares them" if _spared(facts) else ""
        return Diagnosis(
            failure=Failure.LEFTOVERS if left else Failure.STOP_TIMEOUT,
            reason=f"it was told to stop, did not in time, and was killed ({exit}){left}",
            line=line,
            remedy="use KillMode=control-group" if left else "look for what it waits for; raise TimeoutStopSec= for it",
            implies="says nothing of the setting that was to be stopped",
        )
    return Diagnosis(
        failure=Failure.START_TIMEOUT,
        reason=f"its start took longer than its unit allows, and systemd ended it ({exit})",
        line=line,
        remedy="raise TimeoutStartSec= to longer than the model takes to load",
        implies="whatever takes longer to load fails too",
    )


def _killed(facts: ServiceFacts, exit: ExitFacts) -> Diagnosis | None:
    if exit.signal != SIGKILL:
        return None
    return Diagnosis(
        failure=Failure.KILLED,
        reason="somebody killed it (signal 9), and the kernel reported no lack of memory",
        line=_line(facts, _KILLED),
        remedy="look for a supervisor, a time limit or a person that killed it",
    )


def _leftovers(facts: ServiceFacts, exit: ExitFacts) -> Diagnosis | None:
    """Of an earlier stop, they are in the way of this start; of this one, they hold the device and the port."""
    before, after = _line(facts, _LEFT_AT_START), _line(facts, _LEFT_AT_STOP)
    failed_by_itself = bool(exit.code) and exit.result not in ("", "success")
    if not before and (failed_by_itself or not (after or _spared(facts))):
        return None
    when = "an earlier stop of it" if before else "its stop"
    pids = f" ({', '.join(map(str, facts.pids))})" if _spared(facts) else ""
    return Diagnosis(
        failure=Failure.LEFTOVERS,
        reason=f"{when} left processes behind{pids}: they may hold the port and the memory of the device",
        line=before or after,
        remedy="use KillMode=control-group (or mixed); `systemctl kill -s KILL` ends those of the unit now",
        implies="says nothing of the setting",
    )


def _spared(facts: ServiceFacts) -> bool:
    return facts.state.at_rest and bool(facts.pids)


def _restart_loop(facts: ServiceFacts, exit: ExitFacts) -> Diagnosis | None:
    if not facts.restarts and facts.state is not ServiceState.RESTARTING:
        return None
    limit = _line(facts, _LIMIT)
    again = (
        f"was started again by its supervisor {facts.restarts} times"
        if facts.restarts > 1
        else ("was started again by its supervisor" if facts.restarts else "its supervisor is about to start it again")
    )
    return Diagnosis(
        failure=Failure.RESTART_LOOP,
        reason=f"it ended ({_how(exit)}) and {again}" + (", until systemd's start limit stopped that" if limit else ""),
        line=_line(facts, _ENDED) or limit,
        remedy="read why the first one ended; Restart= and RestartSec= of the unit only repeat it",
        implies="whatever made it end makes it end again",
    )


def _stopped(facts: ServiceFacts, exit: ExitFacts) -> Diagnosis | None:
    """A program that ends by itself is not stopped."""
    line = _line(facts, _STOPPED)
    if not line or facts.state is not ServiceState.STOPPED or exit.code:
        return None
    return Diagnosis(
        failure=Failure.CHANGED,
        reason="somebody stopped the service meanwhile",
        line=line,
        remedy="see who stopped it (`journalctl -u` the unit), then go on with `leadline run`",
        implies="says nothing of the setting",
    )
