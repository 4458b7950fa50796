"""The operator's own commands as a service: what is made of their words, their answers, and the mark of a trial."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from leadline.config.target_rules import _PLACEHOLDERS
from leadline.errors import HostError, InputError, RefusedError
from leadline.evidence import ExitFacts, ServiceState
from leadline.hosts.local import LocalHost
from leadline.launch import Halt, LaunchFile, LaunchSpec, Run, Step
from leadline.ports import Completed, Observed, Site, Terms
from leadline.steps import command
from leadline.targets.script import ScriptTarget, started
from leadline.testing.target_suite import LAWS, Case

HOST = LocalHost()
ORIGINAL = LaunchSpec(argv=("server", "--depth", "4"), scratch="/campaigns/a/launch")
LAUNCH = LaunchSpec(argv=("server", "--name", "it's; $HOME"), env=(("A", "1 2"), ("B", "")), cwd="/srv")
BARE = LaunchSpec(argv=("server", "-x"))
SEEN = Observed(launch=ORIGINAL, running=True)
ECHO = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]))"
SITE = Site(
    launch=ORIGINAL, start=("start",), stop=("stop",), give_back=("back",), logs=("logs",), status=("true",)
)  # fmt: skip
SECRET = "wW7-do-not-show"


ENV_SERVER = ("env", "-C", "/srv", "server", "--name", "it's; $HOME")


def site(**changes: object) -> Site:
    return msgspec.structs.replace(SITE, **changes)


def answer(code: int, stdout: str | bytes = b"", stderr: str = "") -> Completed:
    said = stdout.encode() if isinstance(stdout, str) else stdout
    return Completed(argv=("sh",), code=code, stdout=said, stderr=stderr.encode())


# --- the start command


@pytest.mark.parametrize(
    ("start", "launch", "words"),
    [
        (("start",), BARE, ("start", "--", "server", "-x")),
        (("start",), LAUNCH, ("start", "--", "env", "-C", "/srv", "A=1 2", "B=", "server", "--name", "it's; $HOME")),
        (("start", "{argv}", "end"), BARE, ("start", "server", "-x", "end")),
        (("start", "{env}"), LAUNCH, ("start", "A=1 2", "B=", "--", *ENV_SERVER)),
        (("start", "{env}"), BARE, ("start", "--", "server", "-x")),
        (("env", "{env}", "{argv}"), LAUNCH, ("env", "A=1 2", "B=", *ENV_SERVER)),
        (("sh", "-c", "{command} &"), BARE, ("sh", "-c", "server -x &")),
        (("wrap={command}",), LAUNCH, ("wrap=env -C /srv 'A=1 2' B= server --name 'it'\"'\"'s; $HOME'",)),
        (("x", '{"argv": 1}', "{since}"), BARE, ("x", '{"argv": 1}', "{since}", "--", "server", "-x")),
    ],
)  # fmt: skip
def test_the_launch_goes_where_the_start_command_says(
    start: tuple[str, ...], launch: LaunchSpec, words: tuple[str, ...]
) -> None:
    assert started(start, launch) == words


@pytest.mark.parametrize(
    "start", [("env", "{argv}"), ("sh", "-c", "exec {command}"), ("env", "{env}", "{argv}"), ("env",)]
)
def test_the_server_gets_its_words_its_variables_and_its_folder(tmp_path: Path, start: tuple[str, ...]) -> None:
    odd = ("", "two words", "it's", '"', "$HOME `id`", "a\nb", "*", "{argv}", "größe", "a=b")
    launch = LaunchSpec(argv=(sys.executable, "-c", ECHO, *odd), env=(("EXTRA", "x {command} 'y'"),), cwd=str(tmp_path))
    done = HOST.run(started(start, launch))
    assert done.code == 0, done.stderr
    words, environ, folder = json.loads(done.stdout)
    assert (words, environ["EXTRA"], folder) == (list(odd), "x {command} 'y'", str(tmp_path))


def test_every_placeholder_that_a_campaign_may_hold_means_something() -> None:
    for name, placeholders in _PLACEHOLDERS.items():
        for placeholder in placeholders:
            words = ("x", placeholder)
            made = started(words, LAUNCH) if name == "start" else ScriptTarget(site(logs=words)).service.log("7").argv
            assert placeholder not in made


@pytest.mark.parametrize(
    "launch",
    [
        LaunchSpec(argv=("server", "--api-key", SECRET)),
        LaunchSpec(argv=("server", "--api-key", "$KEY")),
        LaunchSpec(argv=("sh", "-c", f"server --api-key {SECRET}")),
        LaunchSpec(argv=("server",), env=(("HF_TOKEN", SECRET),)),
        LaunchSpec(argv=("server",), env=(("ENDPOINT", f"https://me:{SECRET}@hub"),)),
        LaunchSpec(argv=("server",), files=(LaunchFile("/s/a.yaml", f"api_key: {SECRET}"),), scratch="/s"),
    ],
)
def test_a_launch_with_a_secret_is_refused_with_the_way_out(launch: LaunchSpec) -> None:
    with pytest.raises(InputError, match="Let the start command itself add the secret") as caught:
        ScriptTarget(SITE).plan(launch, SEEN, "log")
    assert SECRET not in str(caught.value)


def test_what_only_refers_to_a_secret_is_no_secret() -> None:
    launch = LaunchSpec(argv=("sh", "-c", 'exec server --api-key "$KEY"'), env=(("HF_TOKEN_PATH", "/k"),))
    assert ScriptTarget(SITE).plan(launch, SEEN, "log")


# --- Steps


def test_a_plan_stops_what_runs_and_starts_the_launch() -> None:
    _, halt, start = ScriptTarget(SITE).plan(BARE, SEEN, "log")
    assert isinstance(halt, Halt)
    assert (halt.stop.argv, halt.kill.argv) == (("stop",), ("stop",))
    assert isinstance(start, Run)
    assert start.argv == ("start", "--", "server", "-x")


def test_the_way_back_is_the_operators_and_a_stopped_service_is_stopped_again() -> None:
    ours, back, forget = ScriptTarget(SITE).restore(SEEN)
    assert isinstance(back, Run)
    assert back.argv == ("back",)
    steps = ScriptTarget(SITE).restore(Observed(launch=ORIGINAL, running=False))
    assert (steps[0], steps[1], steps[3]) == (ours, back, forget)
    assert isinstance(steps[2], Halt)


def test_the_same_question_gets_the_same_steps_and_each_prints_on_one_line() -> None:
    target = ScriptTarget(SITE)
    asks: list[Callable[[], Sequence[Step]]] = [
        target.observe, lambda: target.plan(LAUNCH, SEEN, "log"), lambda: target.restore(SEEN)
    ]  # fmt: skip
    for ask in asks:
        assert list(ask()) == list(ask())
        assert all(len(str(step).splitlines()) == 1 for step in ask())


def test_a_file_of_the_launch_is_written_before_it_starts(tmp_path: Path) -> None:
    file = LaunchFile(f"{tmp_path}/new/it's.yaml", "depth: 2\n")
    launch = LaunchSpec(argv=("server", file.path), files=(file, LaunchFile("/theirs", "x")), scratch=str(tmp_path))
    _, write, halt, _ = ScriptTarget(SITE).plan(launch, SEEN, "log")
    assert isinstance(write, Run)
    assert isinstance(halt, Halt)
    for _ in range(2):
        assert command(HOST, write).code == 0
        assert Path(file.path).read_text() == file.content
    assert Path(file.path).stat().st_mode & 0o777 == 0o600
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["it's.yaml"]


def test_apply_is_refused_with_the_command_line_and_without_its_secrets() -> None:
    target = ScriptTarget(site(script="/c/serve.sh"))
    launch = LaunchSpec(argv=("server", "--depth", "2", "--api-key", SECRET))
    for ask in (lambda: target.rollout(launch, SEEN, "absent", "note"), lambda: target.patch(launch, SEEN)):
        with pytest.raises(RefusedError, match="server --depth 2 --api-key '<secret:api-key>'"):
            ask()
    assert (target.rollout_path(), target.undo(SEEN, "0", "1")) == ("/c/serve.sh", ())


def test_it_says_that_nothing_brings_the_service_back_without_us(tmp_path: Path) -> None:
    LAWS["says_what_brings_the_service_back"](
        Case(make=lambda launch, folder: ScriptTarget(SITE), host=HOST, folder=str(tmp_path))
    )
    assert ScriptTarget.guarantee.startswith("none: ")
    terms = Terms(owner="o", reason="r", campaign="c", grace_s=1, lease_s=1, end_s=1, port=1)
    assert ScriptTarget(SITE).service.guard(terms) is None


# --- what the status command says


@pytest.mark.parametrize(
    ("code", "stdout", "state", "exit"),
    [
        (0, "", ServiceState.RUNNING, None),
        (0, "exit=1\nsignal=9\n", ServiceState.RUNNING, None),
        (3, "", ServiceState.STOPPED, None),
        (3, "exit=0", ServiceState.STOPPED, ExitFacts(code=0)),
        (4, "", ServiceState.MISSING, None),
        (1, "exit=137", ServiceState.FAILED, ExitFacts(code=137)),
        (1, "signal=9", ServiceState.FAILED, ExitFacts(signal=9)),
        (1, "exit=137\nsignal=9", ServiceState.FAILED, ExitFacts(signal=9)),
        (1, "exit=1\nsignal=0", ServiceState.FAILED, ExitFacts(code=1)),
        (125, "exit=\nsignal=\noom=", ServiceState.FAILED, None),
        (2, "signal=9\r\noom=1", ServiceState.FAILED, ExitFacts(signal=9, host_oom_kills=1, result="oom-kill")),
        (2, "exit=137\noom=true", ServiceState.FAILED, ExitFacts(code=137, host_oom_kills=1, result="oom-kill")),
        (2, "exit=137\noom=false", ServiceState.FAILED, ExitFacts(code=137)),
    ],
)
def test_the_status_command_tells_how_it_is_and_how_it_ended(
    code: int, stdout: str, state: ServiceState, exit: ExitFacts | None
) -> None:
    facts = ScriptTarget(SITE).service.facts(answer(code, stdout))
    assert (facts.state, facts.exit) == (state, exit)
    assert (facts.process is None) == state.at_rest


def test_processes_restarts_and_incarnations_are_read() -> None:
    facts = ScriptTarget(SITE).service.facts(
        answer(0, "pid=12\n  pid=13\npid=0\npid=\nrestarts=2\nincarnation=pod a=b\n")
    )
    assert (facts.pids, facts.restarts, facts.incarnation) == ((12, 13), 2, "pod a=b")
    assert facts.process is not None
    assert (facts.process.pid, facts.process.start_id) == (12, "pod a=b")


def test_without_an_incarnation_another_pid_is_another_start() -> None:
    service = ScriptTarget(SITE).service
    first, same, other, silent = (service.facts(answer(0, s)) for s in ("pid=1", "pid=1", "pid=2", ""))
    assert first.incarnation == same.incarnation != other.incarnation
    assert (silent.incarnation, silent.pids) == ("", ())
    assert silent.process is not None
    assert silent.process.pid == 0


@pytest.mark.parametrize("code", [126, 127, 137, 143, 255])
def test_a_status_command_that_did_not_run_is_no_answer(code: int) -> None:
    target = ScriptTarget(site(status=("look", "--token", SECRET)))
    with pytest.raises(HostError, match=rf"look --token .* gave no answer \(exit code {code}\): who knows"):
        target.service.facts(answer(code, "", "who knows"))
    with pytest.raises(InputError, match="gave no answer") as caught:
        target.interpret([answer(code)])
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "line", ["pid=x", "pid=-1", "pid=1.5", "restarts=many", "exit=one", "signal=KILL", "oom=2", "pid=²"]
)
def test_what_is_no_number_is_not_guessed(line: str) -> None:
    with pytest.raises(HostError, match=f"says {line.partition('=')[0]}="):
        ScriptTarget(SITE).service.facts(answer(1, line))


def test_other_lines_are_kept_for_the_diagnosis_without_secrets() -> None:
    said = "\n".join(["pid=1", *map(str, range(30)), f"HF_TOKEN={SECRET}", f"api_key: {SECRET}"])
    lines = ScriptTarget(SITE).service.facts(answer(1, said.encode() + b"\n\xff", "OOMKilled: true")).lines
    assert (len(lines), lines[-1]) == (20, "OOMKilled: true")
    assert SECRET not in "\n".join(lines)


def test_a_service_that_is_not_there_is_an_error_before_anything_starts() -> None:
    with pytest.raises(InputError, match="no such service"):
        ScriptTarget(SITE).interpret([answer(4)])


@pytest.mark.parametrize(("code", "running"), [(0, True), (3, False), (1, False)])
def test_the_original_is_what_the_campaign_says_and_runs_or_not(code: int, running: bool) -> None:
    assert ScriptTarget(SITE).interpret([answer(code)]) == Observed(launch=ORIGINAL, running=running)


# --- the mark of a trial


def marked(tmp_path: Path, campaign: str = "a", status: str = "true") -> ScriptTarget:
    launch = LaunchSpec(argv=("server",), scratch=f"/campaigns/{campaign}/launch")
    return ScriptTarget(site(launch=launch, home=f"{tmp_path}/not there/it's", status=("sh", "-c", status)))


def observed(target: ScriptTarget) -> Observed:
    return target.interpret([command(HOST, step) for step in target.observe()])


def run(*steps: object) -> list[Completed]:
    return [command(HOST, step) for step in steps if isinstance(step, Run)]


def test_a_trial_leaves_a_mark_that_outlives_us_and_is_forgotten_with_the_way_back(tmp_path: Path) -> None:
    (tmp_path / "code").write_text("0")
    target = marked(tmp_path, status=f"exit $(cat '{tmp_path}/code')")
    before = observed(target)
    assert (before.held, before.running, before.holder) == (False, True, "")
    for _ in range(2):
        assert run(target.plan(BARE, before, "log")[0])[0].code == 0
    (tmp_path / "code").write_text("1")
    during = observed(target)
    assert (during.held, during.running) == (True, True)
    assert during.holder.startswith("/campaigns/a/launch since 2")
    ours, _, forget = target.restore(during)
    for _ in range(2):
        assert [done.code for done in run(ours, forget)] == [0, 0]
    assert (observed(target).held, observed(target).running) == (False, False)
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and p.name != "code"]


def test_a_service_that_was_stopped_before_the_trial_is_stopped_after_it(tmp_path: Path) -> None:
    target = marked(tmp_path)
    run(target.plan(BARE, Observed(launch=ORIGINAL, running=False), "log")[0])
    during = observed(target)
    assert (during.held, during.running) == (True, False)
    assert len(target.restore(during)) == 4


def test_looking_sees_the_mark_come_and_go(tmp_path: Path) -> None:
    target = marked(tmp_path)
    looks = []
    for step in (target.plan(BARE, SEEN, "log")[0], target.restore(SEEN)[-1]):
        looks.append(target.service.facts(*run(target.service.look())).trial)
        run(step)
    looks.append(target.service.facts(*run(target.service.look())).trial)
    assert looks[0] == looks[2] == "absent"
    assert len(looks[1]) == 64


def test_another_campaign_can_neither_take_the_service_nor_give_it_back(tmp_path: Path) -> None:
    ours, theirs = marked(tmp_path), marked(tmp_path, "b")
    run(ours.plan(BARE, observed(ours), "log")[0])
    with pytest.raises(RefusedError, match=r"/campaigns/a/launch since .*`leadline unlock`"):
        theirs.restore(observed(theirs))
    for step in (theirs.plan(BARE, SEEN, "log")[0], theirs.restore(SEEN)[0]):
        (done,) = run(step)
        assert done.code == 1
        assert b"leadline-holder=/campaigns/a/launch" in done.stderr
    assert observed(ours).held


def test_a_mark_cut_short_by_a_power_cut_still_holds(tmp_path: Path) -> None:
    target = marked(tmp_path)
    run(target.plan(BARE, SEEN, "log")[0])
    (mark,) = (p for p in tmp_path.rglob("script-*"))
    mark.write_text("")
    assert (observed(target).held, observed(target).running) == (True, True)


def test_two_services_of_one_host_do_not_share_a_mark(tmp_path: Path) -> None:
    run(marked(tmp_path).plan(BARE, SEEN, "log")[0])
    assert not observed(marked(tmp_path, status="exit 0")).held


def test_the_mark_is_kept_where_the_user_keeps_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    target = ScriptTarget(SITE)
    assert run(target.plan(BARE, SEEN, "log")[0])[0].code == 0
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert not observed(target).held
    assert run(target.plan(BARE, SEEN, "log")[0])[0].code == 0
    assert observed(target).held
    assert sorted(str(p.parent.relative_to(tmp_path)) for p in tmp_path.rglob("script-*")) == [
        "home/.local/state/leadline",
        "state/leadline",
    ]
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.delenv("HOME")
    assert run(target.plan(BARE, SEEN, "log")[0])[0].code != 0


@pytest.mark.parametrize(("running", "done"), [(True, "back\n"), (False, "back\nstop\n")])
def test_a_lock_is_broken_by_giving_the_service_back(tmp_path: Path, running: bool, done: str) -> None:
    launch, journal = LaunchSpec(argv=("s",), scratch="/campaigns/a"), tmp_path / "done"
    target = ScriptTarget(
        site(
            launch=launch,
            home=str(tmp_path / "home"),
            give_back=("sh", "-c", f"echo back >>'{journal}'"),
            stop=("sh", "-c", f"echo stop >>'{journal}'"),
        )
    )
    who, *_ = target.service.unlock()
    assert who.asked
    assert run(who)[0].stdout == b""
    run(target.plan(BARE, Observed(launch=launch, running=running), "log")[0])
    assert run(who)[0].stdout.startswith(b"/campaigns/a\nsince 2")
    assert [c.code for c in run(*target.service.unlock()[1:])] == [0, 0, 0]
    assert journal.read_text() == done
    assert not observed(target).held


# --- the log


@pytest.mark.parametrize("words", ["cat '{path}'", "tail -c +$(({since} + 1)) '{path}'"])
def test_the_log_is_read_as_it_grows_byte_by_byte(tmp_path: Path, words: str) -> None:
    path = tmp_path / "server.log"
    service = ScriptTarget(site(logs=("sh", "-c", words.replace("{path}", str(path))))).service
    text, cursor = service.logged(*run(service.log("")))
    assert (text, cursor) == ("", "0")
    content = "first\ngröße €\n\nno end".encode()
    seen = ""
    for end in itertools.chain(range(1, len(content) + 1), [len(content)]):
        if end % 5 and end < len(content):
            continue
        path.write_bytes(content[:end])
        text, cursor = service.logged(*run(service.log(cursor)))
        seen += text
    assert seen == content.decode()
    assert cursor == str(len(content))


def test_bytes_that_are_no_text_are_replaced_and_counted(tmp_path: Path) -> None:
    service = ScriptTarget(SITE).service
    assert service.logged(answer(0, b"5\n\xffa\xe2\x82")) == ("�a", "7")
    assert service.logged(answer(0, b"7\n\xe2\x82\xac")) == ("€", "10")


def test_both_outputs_of_the_logs_command_are_the_log_and_its_failure_is_not() -> None:
    service = ScriptTarget(site(logs=("sh", "-c", "echo out; echo err >&2"))).service
    assert service.logged(*run(service.log(""))) == ("out\nerr\n", "8")
    failing = ScriptTarget(site(logs=("sh", "-c", "echo no such pod >&2; exit 1"))).service
    assert failing.logged(*run(failing.log("8"))) == ("", "8")
    missing = ScriptTarget(site(logs=("/no/such/program",))).service
    assert missing.logged(*run(missing.log("8"))) == ("", "8")
