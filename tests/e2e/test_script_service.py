"""Real scripts start and stop real servers, and what they say of them is believed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import psutil
import pytest
from support_lab import FAST, free_port

from leadline.clock import SystemClock
from leadline.evidence import ExitFacts, ServiceFacts, ServiceState
from leadline.hosts.local import LocalHost
from leadline.launch import Halt, LaunchSpec, Step
from leadline.ports import Observed, Site
from leadline.steps import await_halt, carry_out, command, observe
from leadline.targets.script import ScriptTarget
from leadline.testing.labserver import install

LIMIT_S = 30.0
RUN = """
import os, pathlib, subprocess, sys
folder = pathlib.Path(sys.argv[1])
def put(name, text):
    (folder / "draft").write_text(text)
    (folder / "draft").rename(folder / name)
with open(folder / "log", "wb") as log:
    server = subprocess.Popen(sys.argv[2:], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
put("pid", str(server.pid))
code = server.wait()
put("end", f"exit={code}\\n" if code >= 0 else f"signal={-code}\\n")
(folder / "pid").unlink()
"""
START = """#!/bin/sh
cd "{folder}" && rm -f end asked log || exit 1
shift
"{python}" run.py "{folder}" "$@" >/dev/null 2>&1 </dev/null &
until [ -e pid ] || [ -e end ]; do sleep 0.01; done
"""
STOP = """#!/bin/sh
cd "{folder}" && touch asked && {{ [ ! -e pid ] || kill "$(cat pid)"; }}
"""
BACK = """#!/bin/sh
"{folder}/stop" || exit 1
while [ -e "{folder}/pid" ]; do sleep 0.01; done
exec "{folder}/start" -- $(cat "{folder}/original")
"""
STATUS = """#!/bin/sh
cd "{folder}" || exit 1
if pid=$(cat pid 2>/dev/null); then echo "pid=$pid"; exit 0; fi
cat end 2>/dev/null
[ -e asked ] || [ ! -e end ] && exit 3
echo 'it is gone'
exit 1
"""
LOGS = '#!/bin/sh\nexec cat "{folder}/log"\n'


class Scripts:
    """A service of its own scripts in a folder, which runs `original` now."""

    def __init__(self, folder: Path, original: Sequence[str]) -> None:
        self.folder = folder
        folder.mkdir()
        (folder / "original").write_text(" ".join(original))
        (folder / "run.py").write_text(RUN)
        for name, text in {"start": START, "stop": STOP, "back": BACK, "status": STATUS, "logs": LOGS}.items():
            (folder / name).write_text(text.format(folder=folder, python=sys.executable))
            (folder / name).chmod(0o755)
        launch = LaunchSpec(argv=tuple(original), scratch=str(folder / "launch"))
        start, stop, back, status, logs = (
            (str(folder / name),) for name in ("start", "stop", "back", "status", "logs")
        )
        home = str(folder / "home")
        self.target = ScriptTarget(
            Site(launch=launch, start=start, stop=stop, give_back=back, status=status, logs=logs, home=home)
        )
        self.host, self.clock = LocalHost(), SystemClock()
        self.by_hand("back")

    def by_hand(self, name: str) -> None:
        subprocess.run([self.folder / name], check=True, timeout=LIMIT_S)

    def observe(self) -> Observed:
        return observe(self.target, self.host)

    def facts(self) -> ServiceFacts:
        return self.target.service.facts(command(self.host, self.target.service.look()))

    def do(self, steps: Sequence[Step]) -> None:
        launch = self.target.interpret([command(self.host, s) for s in self.target.observe()]).launch
        carry_out(steps, host=self.host, target=self.target, clock=self.clock, launch=launch)

    def argv(self) -> list[str]:
        """What runs, as the kernel has it; empty when nothing does."""
        process = self.facts().process
        return psutil.Process(process.pid).cmdline() if process else []

    def log(self) -> str:
        return self.target.service.logged(command(self.host, self.target.service.log("")))[0]

    def until(self, true: Callable[[], object], what: str) -> None:
        end = time.monotonic() + LIMIT_S
        while not true():
            assert time.monotonic() < end, f"not within {LIMIT_S:g} s: {what}; {self.facts()}; {self.log()}"
            time.sleep(0.02)

    def ended(self) -> ServiceFacts:
        self.until(lambda: self.facts().state.at_rest, "its end")
        return self.facts()

    def close(self) -> None:
        self.by_hand("stop")
        self.until(lambda: not (self.folder / "pid").exists(), "the end of the test's server")


@pytest.fixture
def scripts(tmp_path: Path) -> Iterator[Callable[..., Scripts]]:
    made: list[Scripts] = []

    def make(*original: str, name: str = "service") -> Scripts:
        made.append(Scripts(tmp_path / name, original))
        return made[-1]

    yield make
    for service in made:
        service.close()


SLEEP = ("sleep", "1000")
TRIAL = LaunchSpec(argv=("sleep", "2000"), env=(("A", "it's"),), cwd="/")


def test_the_lab_server_is_tried_and_the_original_given_back(scripts: Callable[..., Scripts], tmp_path: Path) -> None:
    program, port = install(tmp_path, FAST), free_port()
    words = (str(program), "-m", "lab", "-np", "4", "-c", "16384", "--port", str(port))
    service = scripts(*words, name="lab")
    trial = LaunchSpec(argv=(*words, "--alias", "a trial; $HOME"), scratch=str(tmp_path))

    def healthy() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as reply:
                return bool(reply.status == 200)
        except OSError:
            return False

    original = service.argv()
    service.until(healthy, "the original's health")
    before, first = service.observe(), service.facts()
    service.do(service.target.plan(trial, before, "log"))
    service.until(healthy, "the trial's health")
    running = service.facts()
    assert (running.state, running.exit) == (ServiceState.RUNNING, None)
    assert running.incarnation != first.incarnation
    assert service.argv()[-2:] == ["--alias", "a trial; $HOME"]
    assert "a trial" not in service.log()
    assert str(port) in service.log()
    service.do(service.target.restore(before))
    service.until(healthy, "the original's health again")
    assert service.argv() == original
    assert service.observe() == before


def test_from_wherever_a_plan_stopped_the_original_comes_back_and_twice_too(scripts: Callable[..., Scripts]) -> None:
    service = scripts(*SLEEP)
    before = service.observe()
    assert (before.running, before.held) == (True, False)
    for done in range(len(service.target.plan(TRIAL, before, "log")) + 1):
        service.do(service.target.plan(TRIAL, before, "log")[:done])
        during = service.observe()
        assert (during.running, during.held) == (True, done > 0)
        for _ in range(2):
            service.do(service.target.restore(during))
            assert service.argv() == list(SLEEP)
            assert service.observe() == before


def test_a_trial_follows_another_with_its_words_variables_and_folder(scripts: Callable[..., Scripts]) -> None:
    service = scripts(*SLEEP)
    for seconds in ("2000", "3000"):
        launch = msgspec.structs.replace(TRIAL, argv=("sleep", seconds))
        service.do(service.target.plan(launch, service.observe(), "log"))
        service.until(lambda: service.argv()[:1] == ["sleep"], "the trial")
        (pid,) = service.facts().pids
        process = psutil.Process(pid)
        assert process.cmdline() == ["sleep", seconds]
        assert (process.environ()["A"], process.cwd()) == ("it's", "/")
    assert service.observe().running
    service.do(service.target.restore(service.observe()))
    assert service.argv() == list(SLEEP)


def test_what_was_stopped_is_stopped_again(scripts: Callable[..., Scripts]) -> None:
    service = scripts(*SLEEP)
    service.by_hand("stop")
    service.ended()
    before = service.observe()
    assert not before.running
    service.do(service.target.plan(TRIAL, before, "log"))
    assert service.facts().state is ServiceState.RUNNING
    during = service.observe()
    assert (during.running, during.held) == (False, True)
    service.do(service.target.restore(during))
    assert service.facts().state is ServiceState.STOPPED
    assert service.observe() == before


@pytest.mark.parametrize(
    ("end", "exit"),
    [
        ("exit 137", ExitFacts(code=137)),
        ("kill -9 $$", ExitFacts(signal=9)),
        ("exit 0", ExitFacts(code=0)),
        ("no-such-program", ExitFacts(code=127)),
    ],
)
def test_an_exit_code_of_137_is_no_signal(scripts: Callable[..., Scripts], end: str, exit: ExitFacts) -> None:
    service = scripts(*SLEEP)
    launch = LaunchSpec(argv=("sh", "-c", f"echo began; {end}"))
    service.do(service.target.plan(launch, service.observe(), "log"))
    facts = service.ended()
    assert (facts.state, facts.exit, facts.process) == (ServiceState.FAILED, exit, None)
    assert facts.lines == ("it is gone",)
    assert service.log().startswith("began\n")


def test_a_server_that_somebody_kills_was_killed(scripts: Callable[..., Scripts]) -> None:
    service = scripts(*SLEEP)
    service.do(service.target.plan(TRIAL, service.observe(), "log"))
    (pid,) = service.facts().pids
    os.kill(pid, signal.SIGKILL)
    assert service.ended().exit == ExitFacts(signal=9)


def test_a_halt_waits_until_the_last_process_is_gone(scripts: Callable[..., Scripts]) -> None:
    service = scripts(*SLEEP)
    slow = "trap 'until [ -e go ]; do sleep 0.01; done; exit 0' TERM; touch ready; while :; do sleep 0.01; done"
    launch = LaunchSpec(argv=("sh", "-c", slow), cwd=str(service.folder))
    service.do(service.target.plan(launch, service.observe(), "log"))
    service.until(lambda: (service.folder / "ready").exists(), "its trap")
    _, halt, _ = service.target.plan(launch, service.observe(), "log")
    assert isinstance(halt, Halt)
    command(service.host, halt.stop)
    assert service.facts().state is ServiceState.RUNNING
    (service.folder / "go").touch()
    facts = await_halt(halt, host=service.host, service=service.target.service, clock=service.clock)
    assert (facts.state, facts.pids, facts.exit) == (ServiceState.STOPPED, (), ExitFacts(code=0))
