"""A compose service under real Steps on this machine, with a `docker` that keeps its containers as local processes."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from support_docker import FakeDocker
from support_lab_engines import FAST, words

from leadline.build import plugin
from leadline.clock import SystemClock
from leadline.errors import HostError, InputError
from leadline.evidence import ServiceFacts, ServiceState
from leadline.hosts.local import LocalHost
from leadline.launch import LaunchSpec, Run
from leadline.ports import Observed, Site
from leadline.space import Setting
from leadline.steps import carry_out, command, observe
from leadline.targets.compose.target import ComposeTarget, target
from leadline.testing.labserver import install

KEY = "sk-in-the-clear-0123456789"
PATIENCE_S = 30.0


class World:
    """One service, `llm`, of a project in a folder; its server is the lab's vLLM at depth 3."""

    def __init__(self, folder: Path, *, restart: str = "no", env: str = "", command: str = "") -> None:
        self.project = folder / "my project"
        self.project.mkdir()
        self.docker = FakeDocker(folder / "docker")
        spec = msgspec.structs.replace(FAST, dialect="vllm")
        self.port = _free_port()
        program = install(folder, spec)
        self.docker.image("lab", entrypoint=[str(program)])
        argv = words("vllm", 3, port=self.port).argv
        lines = [f"      - '{word}'" for word in (*argv[:-2], *command.split(), *argv[-2:])]
        self.file = self.project / "compose.yaml"
        self.file.write_text(
            f"name: lab\nservices:\n  llm:\n    image: lab\n    network_mode: host\n    restart: '{restart}'\n"
            f"    environment:\n      TOKEN_OF_MINE: ${{TOKEN_OF_MINE}}\n{env}    command:\n" + "\n".join(lines) + "\n"
        )
        (self.project / ".env").write_text("TOKEN_OF_MINE=hf_abc$$d\n")
        self.host, self.home = LocalHost(), folder / "state"
        self.target: ComposeTarget = target(
            Site(
                compose_files=(str(self.file),),
                compose_service="llm",
                compose_program=(self.docker.program, "compose"),
                home=str(self.home),
            )
        )
        self.engine = plugin("engines", "vllm", "engine")

    def up(self) -> Observed:
        self.docker.run("compose", "-f", str(self.file), "up", "-d", "llm")
        return self.observed()

    def observed(self) -> Observed:
        return observe(self.target, self.host)

    def try_depth(self, depth: int, stop_after: int | None = None) -> LaunchSpec:
        observed = self.observed()
        launch: LaunchSpec = self.engine.render(observed.launch, Setting.parse(f"depth={depth}"))
        steps = self.target.plan(launch, observed, "log")[:stop_after]
        carry_out(steps, host=self.host, target=self.target, clock=SystemClock(), launch=launch)
        return launch

    def back(self) -> None:
        carry_out(
            self.target.restore(self.observed()),
            host=self.host,
            target=self.target,
            clock=SystemClock(),
            launch=LaunchSpec(argv=()),
        )

    def facts(self) -> ServiceFacts:
        assert self.target.service is not None
        return self.target.service.facts(command(self.host, self.target.service.look()))

    def log(self, cursor: str = "") -> tuple[str, str]:
        assert self.target.service is not None
        return self.target.service.logged(command(self.host, self.target.service.log(cursor)))

    def argv(self) -> tuple[str, ...]:
        (one,) = self.docker.containers()
        return (one["Path"], *one["Args"])

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5) as reply:
                return bool(reply.status == 200)
        except OSError:
            return False

    def digests(self) -> dict[str, str]:
        return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in self.project.iterdir()}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(holds: Callable[[], object], what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, f"not within {PATIENCE_S:g} s: {what}"
        time.sleep(0.02)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def one(**how: str) -> World:
        made.append(World(tmp_path, **how))
        return made[-1]

    yield one
    for world in made:
        world.docker.down()


def test_trials_follow_one_another_and_the_service_comes_back(make: Callable[..., World]) -> None:
    world = make()
    original, files = world.up(), world.digests()
    assert original.running
    assert not original.held
    assert str(world.engine.parse(original.launch)).startswith("depth=3")
    before = world.argv()
    for depth in (5, 2):
        launch = world.try_depth(depth)
        assert world.argv() == launch.argv
        until(world.answers, "the trial answers")
        held = world.observed()
        assert (held.held, held.running, held.launch) == (True, True, original.launch)
        assert held.files == original.files
    world.back()
    until(world.answers, "the original answers")
    assert world.argv() == before
    assert world.digests() == files
    assert not world.home.exists()
    assert world.observed() == msgspec.structs.replace(original, texts=world.observed().texts)


@pytest.mark.torture
@pytest.mark.parametrize("state", ["stopped", "missing"])
def test_what_did_not_run_does_not_run_afterwards(make: Callable[..., World], state: str) -> None:
    world = make()
    world.up()
    before = world.argv()
    world.docker.run("compose", "-f", str(world.file), "stop" if state == "stopped" else "rm", "llm")
    assert not world.observed().running
    for depth in (5, 2):
        world.try_depth(depth)
    until(world.answers, "the trial answers")
    world.back()
    assert not world.answers()
    assert world.facts().state in (ServiceState.STOPPED, ServiceState.FAILED, ServiceState.MISSING)
    assert [(c["Path"], *c["Args"]) for c in world.docker.containers()] == ([before] if state == "stopped" else [])


@pytest.mark.torture
@pytest.mark.parametrize("done", range(6))
def test_comes_back_from_wherever_a_plan_stopped(make: Callable[..., World], done: int) -> None:
    world = make()
    world.up()
    before = world.argv()
    world.try_depth(5, stop_after=done)
    for _ in range(2):
        world.back()
        until(world.answers, "the original answers")
        assert world.argv() == before
        assert not world.home.exists()


def test_a_secret_in_the_clear_stays_in_its_own_file(make: Callable[..., World]) -> None:
    world = make(command=f"--api-key {KEY}")
    observed = world.up()
    launch = world.engine.render(observed.launch, Setting.parse("depth=5"))
    steps = world.target.plan(launch, observed, "log")
    text = " ".join(f"{step} {step.stdin if isinstance(step, Run) else ''}" for step in steps)
    assert KEY not in text
    assert "hf_abc" not in text
    world.try_depth(5)
    assert KEY in world.argv()
    assert KEY not in (world.home / "override.yaml").read_text()
    assert (world.home / "override.yaml").stat().st_mode & 0o777 == 0o600
    (env,) = [c["Config"]["Env"] for c in world.docker.containers()]
    assert env == ["TOKEN_OF_MINE=hf_abc$d"] or env == ["TOKEN_OF_MINE=hf_abc$$d"]


def test_a_file_that_somebody_changes_meanwhile_is_not_read_for_its_secret(make: Callable[..., World]) -> None:
    world = make(command=f"--api-key {KEY}")
    observed = world.up()
    launch = world.engine.render(observed.launch, Setting.parse("depth=5"))
    steps = world.target.plan(launch, observed, "log")
    world.file.write_text("# changed\n" + world.file.read_text())
    with pytest.raises(InputError, match="changed by somebody else"):
        carry_out(steps, host=world.host, target=world.target, clock=SystemClock(), launch=launch)
    assert world.answers() or world.facts().state is ServiceState.RUNNING
    assert world.facts().files != {p: d for p, d in observed.files.items() if d != "absent"}


def test_what_the_engine_says_of_a_server(make: Callable[..., World]) -> None:
    world = make()
    world.up()
    until(world.answers, "it answers")
    facts = world.facts()
    assert facts.state is ServiceState.RUNNING
    assert facts.process is not None
    assert facts.process.pid in facts.pids
    listener = world.host.listener("127.0.0.1", world.port)
    assert listener is not None
    assert listener.pid in facts.pids
    lines, cursor = world.log()
    assert "Application startup complete" in lines
    assert world.log(cursor)[0] == "" or "health" in world.log(cursor)[0]
    os.killpg(facts.process.pid, signal.SIGKILL)
    until(lambda: world.facts().state.at_rest, "it has ended")
    ended = world.facts()
    assert (ended.state, ended.pids, ended.process) == (ServiceState.FAILED, (), None)
    assert ended.exit is not None
    assert (ended.exit.code, ended.exit.signal, ended.exit.host_oom_kills, ended.exit.result) == (137, None, 0, "")
    assert ended.incarnation == facts.incarnation


def test_out_of_memory_is_told_from_exit_137(make: Callable[..., World]) -> None:
    world = make(env="      OUT_OF_MEMORY: '1'\n")
    world.up()
    process = world.facts().process
    assert process is not None
    os.killpg(process.pid, signal.SIGKILL)
    until(lambda: world.facts().state.at_rest, "it has ended")
    ended = world.facts()
    assert ended.exit is not None
    assert (ended.exit.host_oom_kills, ended.exit.result) == (1, "oom-kill")
    assert any("OOMKilled=true" in line for line in ended.lines)


def test_a_restart_by_the_engine_is_seen(make: Callable[..., World]) -> None:
    world = make(restart="always")
    world.up()
    first = world.facts()
    assert first.process is not None
    os.killpg(first.process.pid, signal.SIGKILL)
    until(lambda: world.facts().restarts == 1 and world.facts().process is not None, "it is started again")
    assert world.facts().incarnation != first.incarnation
    world.try_depth(5)
    assert world.facts().restarts == 0
    assert world.facts().trial != "absent"


@pytest.mark.torture
def test_a_new_container_begins_a_new_log(make: Callable[..., World]) -> None:
    world = make()
    world.up()
    until(world.answers, "it answers")
    _, cursor = world.log()
    world.try_depth(5)
    until(world.answers, "the trial answers")
    until(lambda: "Application startup complete" in world.log(cursor)[0], "its own log from its beginning")
    assert world.log(cursor)[1].split()[0] != cursor.split()[0]


def test_a_setting_for_good_and_its_undo(make: Callable[..., World]) -> None:
    world = make()
    observed = world.up()
    before, files = world.argv(), world.digests()
    launch = world.engine.render(observed.launch, Setting.parse("depth=5"))
    path = world.target.rollout_path()
    steps = world.target.rollout(launch, observed, "absent", "2026-11-30T15:53:00Z\ndepth=5")
    carry_out(steps, host=world.host, target=world.target, clock=SystemClock(), launch=launch)
    assert world.argv() == launch.argv
    assert f"-f {path}" in Path(path).read_text().replace("'", "")
    after = world.observed()
    assert after.launch == launch
    written = after.files[path]
    for _ in range(2):
        undo = world.target.undo(world.observed(), written, "absent")
        carry_out(undo, host=world.host, target=world.target, clock=SystemClock(), launch=launch)
        assert world.argv() == before
        assert world.digests() == files
    assert not world.target.undo(world.observed(), written, "absent")


def test_a_container_that_its_files_would_not_make_is_refused(make: Callable[..., World]) -> None:
    world = make()
    world.up()
    world.file.write_text(world.file.read_text().replace("--max-num-seqs", "--max_num_seqs"))
    with pytest.raises(InputError, match="run `up -d` first"):
        world.try_depth(5)
    world.up()
    world.docker.image("lab", entrypoint=[world.argv()[0]], build=2)
    with pytest.raises(InputError, match="pulled or built again"):
        world.try_depth(5)


def test_an_engine_that_does_not_answer_is_no_missing_service(make: Callable[..., World]) -> None:
    world = make()
    world.up()
    Path(world.docker.program).write_text("#!/bin/sh\necho 'Cannot connect to the Docker daemon' >&2\nexit 1\n")
    with pytest.raises(InputError, match="Cannot connect to the Docker daemon"):
        world.observed()
    with pytest.raises(HostError, match="Cannot connect to the Docker daemon"):
        world.facts()


def test_every_change_is_made_through_compose(make: Callable[..., World]) -> None:
    world = make()
    world.up()
    world.try_depth(5)
    world.back()
    ups = [call for call in world.docker.did("compose", "up") if "--force-recreate" in call]
    assert [str(world.home / "override.yaml") in call for call in ups] == [True, False]
    assert all({"--no-deps", "--no-build"} <= set(call) for call in ups)
    assert json.dumps(ups).count("never") == 2
