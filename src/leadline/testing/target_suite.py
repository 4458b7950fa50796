"""The laws of ports.Target as checks that any target, ours or a third party's, can be put through.

A law takes a Case. It raises AssertionError in words when the target breaks it, and lets through what it raises.
Steps are carried out for real on a host, in a folder of their own; only servers are noted instead of started. A target
whose service is not such a note (a systemd unit) brings its own Service. Needs no test framework:

    @pytest.mark.parametrize("law", LAWS)
    def test_obeys(law, tmp_path):
        LAWS[law](Case(make=..., host=LocalHost(), folder=str(tmp_path)))
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from leadline.errors import RefusedError
from leadline.launch import LaunchSpec, Put, Remove, Run, Start, Step, Stop
from leadline.ports import Completed, Host, Observed, Target

ABSENT = "absent"
SECRETS = ("wW7-in-the-environment", "wW7-on-the-command-line")
TODAY = LaunchSpec(argv=("server", "--depth", "4"))
NEXT = LaunchSpec(
    argv=("server", "--depth", "10", "--api-key", SECRETS[1], "--name", "it's; $HOME"),
    env=(("HF_TOKEN", SECRETS[0]), ("THREADS", "2")),
    cwd="/",
)
NOTE = "2026-11-30T15:53:00Z\ndepth=10\rcampaign demo"
THEIRS = b"somebody else's"
SCRIPT = b"#!/bin/sh\nexec server --depth 4\n"


class Service:
    """A small service: files in a folder of a host, and the server that was last started and not stopped."""

    def __init__(self, make: Callable[[LaunchSpec, str], Target], host: Host, folder: str) -> None:
        self.target = make(TODAY, folder)
        self.running: LaunchSpec | None = None
        self._host = host
        self._folder = folder

    def do(self, step: Step) -> Completed | None:
        """Carry out one Step. Raises RefusedError when an `expect` does not hold."""
        match step:
            case Start():
                self.running = step.launch
            case Stop():
                self.running = None
            case Run():
                return self._host.run(step.argv, timeout_s=step.timeout_s)
            case Put():
                self._expect(step.path, step.expect)
                self._host.write(step.path, step.content.encode(), step.mode)
            case Remove():
                self._expect(step.path, step.expect)
                self._host.remove(step.path)
        return None

    def do_all(self, steps: Sequence[Step]) -> None:
        """In order, up to the first that is refused or whose command fails."""
        for step in steps:
            done = self.do(step)
            if done is not None and done.code != 0:
                raise RefusedError(f"{step}: {done.stderr.decode(errors='replace')}")

    def observe(self) -> Observed:
        done = [self.do(step) for step in self.target.observe()]
        return self.target.interpret([d for d in done if d is not None])

    def put(self, path: str, content: bytes) -> None:
        """Somebody else writes a file."""
        self._host.write(path, content, 0o750)

    def digest(self, path: str) -> str:
        content = self._host.read(path)
        return ABSENT if content is None else hashlib.sha256(content).hexdigest()

    def state(self) -> tuple[LaunchSpec | None, tuple[str, ...]]:
        """What runs, and every file with its mode and digest."""
        listing = 'find "$1" -type f -printf "%m %p " -exec sha256sum {} ";" | sort'
        files = self._host.run(("sh", "-c", listing, "sh", self._folder)).stdout.decode(errors="replace")
        return self.running, tuple(files.splitlines())

    def _expect(self, path: str, expected: str) -> None:
        if self.digest(path) != expected:
            raise RefusedError(f"{path} is not as it was")


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """`make(launch, folder)` builds the target for a service with that launch whose files are in that folder.

    `service` builds what the Steps are carried out on.
    """

    make: Callable[[LaunchSpec, str], Target]
    host: Host
    folder: str
    service: Callable[[Callable[[LaunchSpec, str], Target], Host, str], Service] = Service

    def fresh(self, name: str, script: bytes | None = None) -> Service:
        """A service of its own; `script` = what is at the path of a rollout."""
        folder = f"{self.folder}/{name}"
        self.host.run(("mkdir", "-p", folder))
        service = self.service(self.make, self.host, folder)
        if script is not None:
            service.put(service.target.rollout_path(), script)
        return service


def _must(condition: object, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def _must_refuse(action: Callable[[], object], what: str) -> None:
    try:
        action()
    except RefusedError:
        return
    raise AssertionError(f"{what} must be refused")


class _Rollout(msgspec.Struct, frozen=True, kw_only=True):
    steps: Sequence[Step]
    written: str
    previous: str


def _rollout(service: Service, launch: LaunchSpec = NEXT) -> _Rollout:
    """A rollout on the service as it is, not carried out."""
    path = service.target.rollout_path()
    previous = service.digest(path)
    steps = service.target.rollout(launch, service.observe(), previous, NOTE)
    contents = [step.content for step in steps if isinstance(step, Put) and step.path == path]
    _must(len(contents) == 1, f"a rollout writes {path} once, not {len(contents)} times")
    return _Rollout(steps=steps, written=hashlib.sha256(contents[0].encode()).hexdigest(), previous=previous)


def _undo(service: Service, rollout: _Rollout) -> Sequence[Step]:
    return service.target.undo(service.observe(), rollout.written, rollout.previous)


def says_what_brings_the_service_back(case: Case) -> None:
    """In one line; the target has a name."""
    target = case.fresh("a").target
    _must(target.name and target.guarantee.strip(), "a target has a name and a guarantee")
    _must(len(target.guarantee.splitlines()) == 1, "the guarantee is one line")


def changes_nothing_by_looking(case: Case) -> None:
    """And tells the same from the same answers."""
    for name, script in (("a", None), ("b", SCRIPT)):
        service = case.fresh(name, script)
        before = service.state()
        done = [d for d in map(service.do, service.target.observe()) if d is not None]
        _must(service.state() == before, "observing changed the service")
        observed = service.target.interpret(done)
        _must(observed == service.target.interpret(done), "the same answers must mean the same")
        _must(observed.launch == TODAY, f"the launch in force is {TODAY}, not {observed.launch}")
        path = service.target.rollout_path()
        _must(observed.files.get(path) == service.digest(path), "it must see what is at the path of a rollout")


def answers_the_same_when_asked_again(case: Case) -> None:
    service = case.fresh("a", SCRIPT)
    target, observed = service.target, service.observe()
    previous = service.digest(target.rollout_path())
    asks: list[Callable[[], Sequence[Step]]] = [
        target.observe,
        partial(target.plan, NEXT, observed, "log"),
        partial(target.restore, observed),
        partial(target.rollout, NEXT, observed, ABSENT, NOTE),
        partial(target.undo, observed, "0" * 64, previous),
    ]
    for ask in asks:
        _must(list(ask()) == list(ask()), "a target has no memory: the same question, the same Steps")


def puts_a_launch_in_force(case: Case) -> None:
    """And writes no file that was there."""
    service = case.fresh("a", SCRIPT)
    _, before = service.state()
    service.do_all(service.target.plan(NEXT, service.observe(), "log"))
    running, after = service.state()
    _must(running == NEXT, f"planned was {NEXT}, running is {running}")
    _must(set(before) <= set(after), "a plan must not touch the user's files")


def restores_from_wherever_a_plan_stopped(case: Case) -> None:
    """Restoring after any number of a plan's Steps gives the service back, and a second time too."""
    steps = len(case.fresh("n").target.plan(NEXT, case.fresh("n").observe(), "log"))
    for done in range(steps + 1):
        service = case.fresh(str(done), SCRIPT)
        before, observed = service.state(), service.observe()
        service.do_all(service.target.plan(NEXT, observed, "log")[:done])
        for _ in range(2):
            service.do_all(service.target.restore(observed))
            _must(service.state() == before, f"after {done} Steps of the plan, restoring did not give it back")


def shows_no_secret(case: Case) -> None:
    """A Step prints on one line, without the secrets of the launch, and puts none into a file."""
    service = case.fresh("a", SCRIPT)
    steps = [*service.target.plan(NEXT, service.observe(), "log"), *_rollout(service).steps]
    for step in steps:
        shown = str(step)
        _must(len(shown.splitlines()) == 1, f"a Step prints on one line: {shown!r}")
        written = step.content if isinstance(step, Put) else ""
        _must(not any(s in shown + written for s in SECRETS), f"a {type(step).__name__} step shows a secret")
    shown = " ".join(map(str, steps))
    _must("<secret:" in shown, "a secret is shown as <secret:NAME>")


def rolls_out_over_what_it_saw_alone(case: Case) -> None:
    """Whoever wrote the file in between keeps it as it is."""
    for name, script in (("a", None), ("b", SCRIPT)):
        service = case.fresh(name, script)
        rollout, path = _rollout(service), service.target.rollout_path()
        service.put(path, THEIRS)
        theirs = service.digest(path)
        _must_refuse(partial(service.do_all, rollout.steps), "a rollout over another file")
        _must(service.digest(path) == theirs, "a refused rollout changed the file")


def loses_no_earlier_file(case: Case) -> None:
    """A second rollout over the first fails, or the first can still be taken back to where it began."""
    for name, script in (("a", None), ("b", SCRIPT)):
        service = case.fresh(name, script)
        before = service.state()
        first = _rollout(service)
        service.do_all(first.steps)
        second = _rollout(service, TODAY)
        try:
            service.do_all(second.steps)
        except RefusedError:
            _must(service.digest(service.target.rollout_path()) == first.written, "a refused rollout changed the file")
        else:
            service.do_all(_undo(service, second))
        service.do_all(_undo(service, first))
        _must(service.state() == before, "what was there before the first of two rollouts is lost")


def undoes_from_wherever_a_rollout_stopped(case: Case) -> None:
    """Undoing after any number of a rollout's Steps brings back what was there, with its mode; then nothing is left
    to do."""
    for name, script in (("a", None), ("b", SCRIPT)):
        for done in range(len(_rollout(case.fresh(f"{name}n", script)).steps) + 1):
            service = case.fresh(f"{name}{done}", script)
            before, rollout = service.state(), _rollout(service)
            service.do_all(rollout.steps[:done])
            service.do_all(_undo(service, rollout))
            _must(service.state() == before, f"after {done} Steps of the rollout, undo did not bring it back")
            _must(not _undo(service, rollout), "after an undo nothing is left to do")


def undoes_from_wherever_an_undo_stopped(case: Case) -> None:
    """An undo that was interrupted after any of its Steps is finished by asking again."""
    for name, script in (("a", None), ("b", SCRIPT)):
        for done in range(10):
            service = case.fresh(f"{name}{done}", script)
            before, rollout = service.state(), _rollout(service)
            service.do_all(rollout.steps)
            _must(service.state() != before, "a rollout changes the service")
            steps = _undo(service, rollout)
            service.do_all(steps[:done])
            service.do_all(_undo(service, rollout))
            _must(service.state() == before, f"after {done} Steps of an undo, another did not bring it back")
            if done >= len(steps):
                break


def undoes_nothing_that_somebody_else_changed(case: Case) -> None:
    """Neither when the file is another one already, nor when it becomes one before the Steps are carried out."""
    for name, script in (("a", None), ("b", SCRIPT)):
        for early in (True, False):
            service = case.fresh(f"{name}{early}", script)
            rollout = _rollout(service)
            service.do_all(rollout.steps)
            _must_refuse(partial(_undo_disturbed, service, rollout, early), "an undo over another file")
            theirs = service.digest(service.target.rollout_path())
            _must(theirs == hashlib.sha256(THEIRS).hexdigest(), "a refused undo changed the file")


def _undo_disturbed(service: Service, rollout: _Rollout, early: bool) -> None:
    path = service.target.rollout_path()
    if early:
        service.put(path, THEIRS)
    steps = _undo(service, rollout)
    if not early:
        service.put(path, THEIRS)
    service.do_all(steps)


LAWS: Mapping[str, Callable[[Case], None]] = {
    law.__name__: law
    for law in (
        says_what_brings_the_service_back,
        changes_nothing_by_looking,
        answers_the_same_when_asked_again,
        puts_a_launch_in_force,
        restores_from_wherever_a_plan_stopped,
        shows_no_secret,
        rolls_out_over_what_it_saw_alone,
        loses_no_earlier_file,
        undoes_from_wherever_a_rollout_stopped,
        undoes_from_wherever_an_undo_stopped,
        undoes_nothing_that_somebody_else_changed,
    )
}
