"""What is pure in targets.systemd, with answers of a host as it gives them."""

from __future__ import annotations

import base64
import json
import subprocess

import pytest

from leadline.errors import HostError, InputError, RefusedError
from leadline.evidence import ServiceState
from leadline.launch import LaunchSpec, Run
from leadline.ports import Completed, Site, Terms
from leadline.targets.systemd import look, target
from leadline.targets.systemd.confirm import confirm
from leadline.targets.systemd.frames import unescaped
from leadline.targets.systemd.place import place_of, script

PLACE = place_of(Site(unit="llm"))
TERMS = Terms(owner="a\nb", reason="r", campaign="it's; $HOME", grace_s=0.5, lease_s=60, end_s=3600, port=8000)


@pytest.mark.parametrize(
    ("unit", "why"),
    [
        ("", "name of its unit"),
        ("llm.timer", "not a service"),
        ("llm@.service", "template"),
        ("llm@", "template"),
        ("../llm", "no name"),
        ("llm service", "no name"),
        ("$(reboot)", "no name"),
    ],
)
def test_what_is_no_service_unit_is_refused(unit: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        target(Site(unit=unit))


@pytest.mark.parametrize("unit", ["llm", "llm.service", "a@b", "a@b.service", "foo\\x2dbar", "v1.2"])
def test_a_unit_is_named_with_its_suffix(unit: str) -> None:
    assert place_of(Site(unit=unit)).unit == unit.removesuffix(".service") + ".service"


def test_paths_on_the_bus_are_escaped_as_systemd_does() -> None:
    assert place_of(Site(unit="a-b@c")).bus_path == "/org/freedesktop/systemd1/unit/a_2db_40c_2eservice"
    assert unescaped("foo\\x2dbar-baz") == "foo-bar/baz"


@pytest.mark.parametrize("names", [("guard",), ("look",), ("observe",), ("log",), ("guard", "change")])
def test_every_script_is_one_that_sh_reads(names: tuple[str, ...]) -> None:
    done = subprocess.run(["sh", "-n"], input=script(*names), text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_the_guard_is_told_cannot_leave_its_quotes() -> None:
    service = target(Site(unit="llm")).service
    assert service is not None
    guard = service.guard(TERMS)
    assert guard is not None
    (arm,) = guard.arm
    assert isinstance(arm, Run)
    told = arm.stdin.split("until=$(")[0] + 'printf "%s|%s|%s" "$campaign" "$owner" "$grace"\n'
    assert subprocess.run(["sh"], input=told, text=True, capture_output=True).stdout == "it's; $HOME|a b|500ms"


def answer(
    active: str, *, show: str = "", kernel: tuple[str, ...] = (), journal: tuple[tuple[str, str], ...] = ()
) -> Completed:
    lines = [
        json.dumps({"MESSAGE": m, "INVOCATION_ID": i, "__REALTIME_TIMESTAMP": str(n)})
        for n, (i, m) in enumerate(journal)
    ]
    from_kernel = [json.dumps({"MESSAGE": m, "__REALTIME_TIMESTAMP": "5"}) for m in kernel]
    text = "\n".join([
        "\n@leadline show", "LoadState=loaded", f"ActiveState={active}", show, "\n@leadline boot", "b0",
        "\n@leadline journal", *lines, "\n@leadline kernel", *from_kernel, "",
    ])  # fmt: skip
    return Completed(argv=("sh",), code=0, stdout=text.encode(), stderr=b"")


def test_only_kills_in_the_unit_s_own_group_count() -> None:
    kernel = (
        "oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/x/system.slice/llm.service,task_memcg=/x/system.slice/llm.service,pid=7",
        "Memory cgroup out of memory: Killed process 7 (python3)",
        "oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/system.slice/my-llm.service,task_memcg=/system.slice/my-llm.service,pid=8",
        "Memory cgroup out of memory: Killed process 8 (python3)",
    )
    facts = look.facts(
        PLACE, answer("failed", show="MainPID=0\nExecMainCode=2\nExecMainStatus=9\nResult=signal", kernel=kernel)
    )
    assert facts.exit is not None
    assert (facts.exit.signal, facts.exit.host_oom_kills) == (9, 1)
    assert facts.lines == kernel[:2]


def test_lines_are_those_of_the_last_start_that_somebody_asked_for() -> None:
    journal = (
        ("a", "Started llm."), ("a", "status=1"), ("b", "Started llm."), ("b", "status=2"),
        ("b", "llm.service: Scheduled restart job, restart counter is at 1."), ("c", "Started llm."), ("c", "status=3"),
    )  # fmt: skip
    facts = look.facts(PLACE, answer("failed", journal=journal))
    assert facts.lines == tuple(m for _, m in journal[2:])
    assert facts.incarnation == "b0:c"


@pytest.mark.parametrize(
    ("show", "state"),
    [
        ("SubState=auto-restart", ServiceState.RESTARTING),
        ("LoadState=not-found", ServiceState.MISSING),
        ("", ServiceState.STOPPED),
    ],
)
def test_states_are_told_apart(show: str, state: ServiceState) -> None:
    assert look.facts(PLACE, answer("inactive", show=show)).state is state


def test_an_answer_that_makes_no_sense_is_the_host_s_fault() -> None:
    for bad in (Completed(argv=("sh",), code=1, stdout=b"", stderr=b"sudo: a password is required"), answer("purple")):
        with pytest.raises(HostError):
            look.facts(PLACE, bad)
    with pytest.raises(HostError):
        target(Site(unit="llm")).interpret([Completed(argv=("sh",), code=0, stdout=b"show x", stderr=b"")])


@pytest.mark.parametrize(
    ("verb", "code", "said", "error"),
    [
        ("begin", 75, "changed by somebody else: /etc/x", RefusedError),
        ("begin", 73, "", HostError),
        ("verify", 0, "verified\nllm.service: Command /x is not executable\nexit code 1", InputError),
        ("verify", 0, "nonsense", HostError),
    ],
)
def test_answers_are_judged(verb: str, code: int, said: str, error: type[Exception]) -> None:
    done = Completed(
        argv=("sudo", "-n", "sh", "-s", "--", verb, "llm.service"), code=code, stdout=said.encode(), stderr=b""
    )
    with pytest.raises(error):
        confirm(PLACE, LaunchSpec(argv=("x",)), [done])


def test_a_good_answer_passes() -> None:
    done = Completed(argv=("sh", "-s", "--", "verify", "llm.service"), code=0, stdout=b"verified\n", stderr=b"")
    confirm(PLACE, LaunchSpec(argv=("x",)), [done])


def test_log_cursors_go_round() -> None:
    service = target(Site(unit="llm")).service
    assert service is not None
    step = service.log("")
    out = b"invocation ab\nfile 10 4\nfileone\ntwo\n-- cursor: s=1;i=2\n"
    text, cursor = service.logged(Completed(argv=step.argv, code=0, stdout=out, stderr=b""))
    assert (text, cursor) == ("one\ntwo\nfile", "ab|14|s=1;i=2")
    assert service.log(cursor).argv[-3:] == ("ab", "s=1;i=2", "14")


def frame(kind: str, name: str, content: str) -> str:
    return f"{kind} {base64.b64encode(name.encode()).decode()} {base64.b64encode(content.encode()).decode()}"


@pytest.mark.parametrize(
    ("show", "why"),
    [
        ("LoadState=not-found", "no unit llm.service"),
        ("LoadState=masked", "masked"),
        ("LoadState=loaded\nId=other.service", "another name of other.service"),
        ("LoadState=loaded\nTransient=yes", "systemd-run"),
        ("LoadState=loaded\nRefuseManualStop=yes", "by hand"),
        ("LoadState=bad-setting\nFragmentPath=/x\nLoadError=boom", "boom"),
    ],
)
def test_a_unit_that_cannot_be_tried_is_refused_with_the_reason(show: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        target(Site(unit="llm")).interpret(
            [Completed(argv=("sh",), code=0, stdout=frame("show", "", show).encode(), stderr=b"")]
        )
