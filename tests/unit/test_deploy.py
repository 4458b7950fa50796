"""Put a setting in force, wait until it generates, prove it ours, give it back: over the lab's host and clock."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator

import msgspec
import pytest
from support_sim import BASE, PORT

from leadline.build import plugin
from leadline.deploy import Deployer, Rules, StartFailed
from leadline.errors import HostError, InterruptedRun, NotGivenBackError, RefusedError
from leadline.evidence import Effective, ExitFacts, Failure, ProcessFacts
from leadline.launch import LaunchSpec, Put, Remove, Run, Start
from leadline.listening import in_the_way
from leadline.ports import Clock, Completed, Site
from leadline.space import Setting
from leadline.steps import execute
from leadline.targets.command import CommandTarget
from leadline.testing.faults import Fault, FaultKind
from leadline.testing.lab import Lab, LabFile
from leadline.testing.spec import LabSpec
from leadline.verdict import differences

ENGINE = plugin("engines", "llamacpp", "engine")
STRANGER = ProcessFacts(pid=77, start_id="7", argv=("nginx",), name="nginx")
GIB = 2**30


def deployer(lab: Lab, clock: Clock | None = None, **rules) -> Deployer:
    return Deployer(
        engine=ENGINE,
        target=CommandTarget(Site(launch=BASE, script="serve.sh")),
        host=lab.host,
        prober=lab.prober(f"http://127.0.0.1:{PORT}"),
        clock=clock or lab.clock,
        rules=Rules(**{"start_stall_s": 20.0, "ready_s": 5.0, "grace_s": 2.0, **rules}),
    )


def launch(depth: int = 2) -> LaunchSpec:
    return ENGINE.render(BASE, Setting.of(depth=depth, spec_method="ngram-simple"))


def faulty(kind: FaultKind, **options) -> Lab:
    return Lab(LabSpec(faults=(Fault(kind=kind, **options),)))


def start(deploy: Deployer, depth: int = 2):
    return deploy.start(launch(depth), deploy.observe(), "trial.log")


# --- before anything starts


def test_a_port_in_use_is_refused_with_its_owners_name_and_pid_and_nothing_is_started() -> None:
    lab = Lab()
    lab.squatters[PORT] = STRANGER
    with pytest.raises(RefusedError, match=rf"port {PORT} is in use by nginx \(pid 77\).*traffic\.private_port"):
        start(deployer(lab))
    assert lab.processes == []
    assert lab.squatters == {PORT: STRANGER}


def test_nobody_is_in_the_way_of_a_free_port() -> None:
    assert in_the_way(ENGINE, Lab().host, launch()) == ""


def test_too_little_free_memory_is_refused_with_both_figures() -> None:
    lab = Lab()
    lab.free_memory_bytes = GIB // 2
    with pytest.raises(RefusedError, match=r"only 0\.5 GiB .*min_free_memory_gib asks for\s+1\.0"):
        start(deployer(lab, min_free_memory_bytes=GIB))
    assert lab.processes == []


def test_as_much_memory_as_asked_for_is_enough() -> None:
    lab = Lab()
    lab.free_memory_bytes = GIB
    deploy = deployer(lab, min_free_memory_bytes=GIB)
    deploy.give_back(start(deploy), deploy.observe())


# --- the start


def test_ready_is_a_generated_token_and_the_server_is_the_one_that_we_started() -> None:
    lab = Lab()
    deploy = deployer(lab)
    running = start(deploy, depth=4)
    (process,) = lab.processes
    assert (running.pid, running.start_id) == (process.pid, f"{process.pid}-0")
    assert running.load_s == pytest.approx(LabSpec().load_s, abs=1.0)
    assert ENGINE.effective(deploy.evidence(running)).speculating
    assert deploy.doubt(running, generate=True) is None


def test_evidence_asks_for_a_token_only_when_told_to_since_that_moves_the_counters() -> None:
    lab = Lab()
    deploy = deployer(lab)
    running = start(deploy)
    assert "ready" not in deploy.evidence(running).replies
    assert deploy.evidence(running, generate=True).replies["ready"].ok


@pytest.mark.parametrize(
    ("lab", "failure", "told"),
    [
        (faulty(FaultKind.OOM_AT_START), Failure.DEVICE_OOM_START, "memory"),
        (faulty(FaultKind.SILENT_START), Failure.NO_PROGRESS, "no progress for 20 s"),
        (faulty(FaultKind.SILENT_START, refused=True), Failure.NO_PROGRESS, "no progress for 20 s"),
        (faulty(FaultKind.MUTE), Failure.NOT_GENERATING, "does not generate"),
    ],
    ids=["out of memory", "silent", "silent and closed", "healthy but mute"],
)
def test_a_start_that_fails_is_diagnosed_and_nothing_of_it_is_left(lab: Lab, failure: Failure, told: str) -> None:
    with pytest.raises(StartFailed) as failed:
        start(deployer(lab))
    assert failed.value.diagnosis.failure is failure
    assert told in str(failed.value)
    assert [p.exit() is not None for p in lab.processes] == [True]


def test_a_start_fails_on_lack_of_progress_and_not_on_age() -> None:
    """Loading takes three times the stall time, with signs of life all along."""
    lab = faulty(FaultKind.SLOW_START, seconds=60.0)
    running = start(deployer(lab, start_stall_s=20.0))
    assert running.load_s == pytest.approx(60.0, abs=1.0)


def test_but_not_for_longer_than_the_deadline() -> None:
    lab = faulty(FaultKind.SLOW_START, seconds=600.0)
    with pytest.raises(StartFailed):
        start(deployer(lab, deadline_s=100.0))
    assert lab.clock.now_ns() / 1e9 == pytest.approx(100.0, abs=5.0)


def test_a_command_line_that_the_server_does_not_know_is_a_diagnosis_with_its_own_words() -> None:
    lab = Lab()
    deploy = deployer(lab)
    odd = LaunchSpec(argv=(*launch().argv, "--no-such-flag"))
    with pytest.raises(StartFailed) as failed:
        deploy.start(odd, deploy.observe(), "trial.log")
    assert failed.value.diagnosis.failure is Failure.BAD_FLAG
    assert "--no-such-flag" in str(failed.value)


class StopsAfter:
    """A Clock whose user is told to stop at the n-th sleep, as by a signal."""

    def __init__(self, clock: Clock, sleeps: int) -> None:
        self._clock, self._left = clock, sleeps

    def now_ns(self) -> int:
        return self._clock.now_ns()

    def utc(self) -> str:
        return self._clock.utc()

    def sleep(self, s: float) -> None:
        self._left -= 1
        if self._left < 0:
            raise InterruptedRun(15)
        self._clock.sleep(s)


def test_a_stop_signal_in_the_middle_of_a_load_ends_the_server_that_loads() -> None:
    lab = Lab()
    with pytest.raises(InterruptedRun):
        start(deployer(lab, StopsAfter(lab.clock, 3)))
    assert [p.exit() for p in lab.processes] == [ExitFacts(code=0, asked=True)]


def test_there_is_no_gap_between_starting_a_server_and_holding_it() -> None:
    """Every Step of a plan is executed inside a shield."""
    lab = Lab()
    open_shields: list[int] = []

    @contextlib.contextmanager
    def shield() -> Iterator[None]:
        before = len(lab.processes)
        yield
        open_shields.append(len(lab.processes) - before)

    start(msgspec.structs.replace(deployer(lab), shield=shield))
    assert open_shields == [1]


# --- doubt


def test_doubt_when_somebody_else_answers_on_the_port() -> None:
    lab = Lab()
    deploy = deployer(lab)
    running = start(deploy)
    lab.squatters[PORT] = STRANGER
    doubt = deploy.doubt(running)
    assert doubt is not None
    assert doubt.failure is Failure.PORT_IN_USE
    assert "nginx (pid 77)" in doubt.reason


def test_doubt_when_the_server_has_ended() -> None:
    lab = Lab()
    deploy = deployer(lab)
    running = start(deploy)
    lab.processes[0].end()
    doubt = deploy.doubt(running)
    assert doubt is not None
    assert doubt.failure in (Failure.CRASHED, Failure.STOPPED_BY_US, Failure.UNKNOWN)


def test_doubt_when_another_process_has_its_pid() -> None:
    lab = Lab()
    deploy = deployer(lab)
    running = msgspec.structs.replace(start(deploy), start_id="another start")
    doubt = deploy.doubt(running)
    assert doubt is not None
    assert doubt.failure is Failure.RESTARTED


# --- the way back


def test_giving_back_ends_our_server_and_nobody_elses() -> None:
    lab = Lab()
    deploy = deployer(lab)
    lab.squatters[PORT + 1] = STRANGER
    running = start(deploy)
    assert deploy.give_back(running, deploy.observe()) == ExitFacts(code=0, asked=True)
    assert lab.host.listener("127.0.0.1", PORT) is None
    assert lab.squatters == {PORT + 1: STRANGER}


def test_a_server_that_still_listens_is_said_at_once_and_is_exit_code_5() -> None:
    lab = Lab()
    deploy = deployer(lab)
    running = start(deploy)

    class Immortal:
        """A Session whose server survives everything."""

        def process(self) -> ProcessFacts | None:
            return running.session.process()

        def exit(self) -> ExitFacts | None:
            return None

        def owns(self, pid: int) -> bool:
            return pid == running.pid

        def end(self, grace_s: float) -> ExitFacts:
            return ExitFacts()

    with pytest.raises(NotGivenBackError, match=rf"port {PORT} \(pid {running.pid}\): stop it now") as raised:
        deploy.give_back(msgspec.structs.replace(running, session=Immortal()), deploy.observe())
    assert raised.value.exit_code == 5


@pytest.mark.parametrize("gone_after_s", [0.0, 3.0, 3600.0])
def test_a_dying_server_is_waited_for_no_longer_than_the_grace_and_five_seconds(gone_after_s: float) -> None:
    lab = Lab()
    deploy = deployer(lab, grace_s=2.0)

    class Host:
        """Its listener goes away by itself."""

        def __getattr__(self, name: str) -> object:
            return getattr(lab.host, name)

        def listener(self, host: str, port: int) -> ProcessFacts | None:
            return STRANGER if lab.clock.now_ns() < gone_after_s * 1e9 else None

    msgspec.structs.replace(deploy, host=Host()).await_gone(launch())
    assert lab.clock.now_ns() / 1e9 == pytest.approx(min(gone_after_s, 7.0), abs=0.2)


# --- steps


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize(
    ("step", "after"),
    [
        (Put(path="new", content="ours", mode=0o755, expect="absent"), b"ours"),
        (Put(path="old", content="ours", mode=0o644, expect=sha(b"theirs")), b"ours"),
        (Remove(path="old", expect=sha(b"theirs")), None),
    ],
)
def test_a_file_that_is_as_expected_is_changed(step: Put | Remove, after: bytes | None) -> None:
    lab = Lab()
    lab.files["old"] = LabFile(b"theirs", 0o644)
    execute(lab.host, step)
    assert lab.host.read(step.path) == after


@pytest.mark.parametrize(
    "step",
    [
        Put(path="old", content="ours", mode=0o755, expect="absent"),
        Put(path="old", content="ours", mode=0o755, expect=sha(b"as it was planned")),
        Remove(path="old", expect=sha(b"as it was planned")),
    ],
)
def test_a_file_that_somebody_else_changed_is_refused_and_left(step: Put | Remove) -> None:
    lab = Lab()
    lab.files["old"] = LabFile(b"theirs", 0o644)
    with pytest.raises(RefusedError, match=r"old is not as it was.*plan again"):
        execute(lab.host, step)
    assert lab.files == {"old": LabFile(b"theirs", 0o644)}


def test_a_command_that_fails_is_an_error_with_its_last_words() -> None:
    lab = Lab()
    lab.commands["router"] = lambda argv: Completed(argv=tuple(argv), code=3, stdout=b"", stderr=b"no such pool\n")
    with pytest.raises(HostError, match="router ended with 3: no such pool"):
        execute(lab.host, Run(argv=("router", "off"), timeout_s=5.0))


def test_a_command_for_root_asks_sudo_without_a_password_prompt() -> None:
    lab = Lab()
    lab.commands["sudo"] = lambda argv: Completed(argv=tuple(argv), code=0, stdout=b"", stderr=b"")
    execute(lab.host, Run(argv=("router", "off"), timeout_s=5.0, sudo=True))
    assert lab.ran == [("sudo", "-n", "router", "off")]


def test_only_a_start_gives_a_session() -> None:
    lab = Lab()
    assert execute(lab.host, Put(path="f", content="", mode=0o644, expect="absent")) is None
    assert execute(lab.host, Start(launch=launch(), log="a.log")) is not None


# --- what really runs

ASKED = Setting.of(depth=4, max_running=64)


@pytest.mark.parametrize(
    ("asked", "found", "failure"),
    [
        (ASKED, Effective(depth=4, speculating=True, max_running=64), None),
        (ASKED, Effective(), None),  # an engine that does not tell is not accused
        (ASKED, Effective(depth=2), Failure.WRONG_DEPTH),
        (ASKED, Effective(depth=4, speculating=False), Failure.NO_SPECULATION),
        (ASKED, Effective(speculating=False), Failure.NO_SPECULATION),
        (Setting.of(depth=0), Effective(depth=0, speculating=False), None),
        (Setting.of(depth=0), Effective(speculating=True), Failure.WRONG_DEPTH),
        (Setting.of(max_running=4), Effective(depth=7, speculating=True), None),  # depth is not tuned
    ],
)
def test_another_depth_than_asked_is_never_this_setting(
    asked: Setting, found: Effective, failure: Failure | None
) -> None:
    wrong, findings = differences(asked, found)
    assert (wrong.failure if wrong else None) == failure
    assert findings == ()


@pytest.mark.parametrize(("found", "size"), [(32, "-32 requests"), (65, "+1 requests"), (64, None)])
def test_another_cap_of_requests_is_a_finding_and_no_failure(found: int, size: str | None) -> None:
    wrong, findings = differences(ASKED, Effective(depth=4, max_running=found))
    assert wrong is None
    assert [f.size for f in findings if f.code == "max_running_cut"] == ([size] if size else [])


def test_every_reason_says_what_to_do() -> None:
    for found in (Effective(depth=2), Effective(speculating=False)):
        wrong, _ = differences(ASKED, found)
        assert wrong is not None
        assert wrong.remedy
