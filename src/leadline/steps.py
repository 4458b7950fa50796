"""Carry out a Target's Steps on a Host. Knows no engine, target or host by name."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from leadline.errors import HostError, HostLost, RefusedError
from leadline.evidence import ServiceFacts
from leadline.launch import Halt, LaunchSpec, Put, Remove, Run, Start, Step, Stop
from leadline.ports import Clock, Completed, Host, Observed, Service, Session, Target

POLL_S = 0.1
AGAIN_S = 1.0
KILLED_S = 20.0


def observe(target: Target, host: Host) -> Observed:
    """The service as it is; changes nothing."""
    return target.interpret([command(host, step) for step in target.observe()])


def carry_out(
    steps: Sequence[Step],
    *,
    host: Host,
    target: Target,
    clock: Clock,
    launch: LaunchSpec,
    shield: Callable[[], AbstractContextManager[object]] = nullcontext,
    halted: Callable[[ServiceFacts], None] = lambda facts: None,
    assured: Callable[[], None] = lambda: None,
    away_s: float = 0.0,
) -> None:
    """Steps of a service target, in order. What an asked Run answers is judged before the next Step; `halted` is called
    once the service has stopped, `assured` before each Step. A Step is repeated while the host is out of reach, for at
    most `away_s`. Raises InputError, RefusedError or HostError at the first that fails."""
    answers: list[Completed] = []

    def carry(step: Step) -> None:
        assured()
        if isinstance(step, Halt):
            with shield():
                command(host, step.stop)
            halted(await_halt(step, host=host, service=_service(target), clock=clock))
        elif isinstance(step, Run) and step.asked:
            answers.append(command(host, step))
            target.confirm(launch, answers)
        else:
            with shield():
                execute(host, step)

    for step in steps:
        insist(partial(carry, step), clock=clock, away_s=away_s)


def insist(action: Callable[[], object], *, clock: Clock, away_s: float) -> None:
    """Again while the host is out of reach. Raises HostLost when it stays so."""
    until = clock.now_ns() + away_s * 1e9
    while True:
        try:
            action()
            return
        except HostLost:
            if clock.now_ns() > until:
                raise
            clock.sleep(AGAIN_S)


def await_halt(step: Halt, *, host: Host, service: Service, clock: Clock) -> ServiceFacts:
    """Wait until no process of the service is left; what is still there after its time is killed."""
    until = clock.now_ns() + step.timeout_s * 1e9
    killed = False
    while True:
        facts = service.facts(command(host, service.look()))
        if facts.state.at_rest and not facts.pids:
            return facts
        if clock.now_ns() > until:
            if killed:
                left = ", ".join(map(str, facts.pids)) or facts.state
                raise HostError(f"the service does not stop, not even when it is killed (left: {left}); look at it now")
            command(host, step.kill)
            killed, until = True, clock.now_ns() + KILLED_S * 1e9
        clock.sleep(POLL_S)


def execute(host: Host, step: Step, session: Session | None = None) -> Session | None:
    """One Step. A Start gives the session that it began. An `expect` that no longer holds is refused."""
    match step:
        case Start():
            for file in step.launch.ours:
                host.write(file.path, file.content.encode(), 0o600)  # it may hold a secret of the original
            return host.start(step)
        case Stop():
            if session is not None:
                session.end(step.grace_s)
        case Run():
            done = command(host, step)
            if done.code != 0:
                error = done.stderr.decode(errors="replace").strip() or done.stdout.decode(errors="replace").strip()
                raise HostError(f"{step.argv[0]} ended with {done.code}: {error}")
        case Put():
            _put(host, step)
        case Remove():
            _expect(host, step.path, step.expect, step.sudo)
            host.remove(step.path, sudo=step.sudo)
        case Halt():
            raise HostError("a service is stopped by carry_out, which can see whether it has")
    return None


def _put(host: Host, step: Put) -> None:
    """Nothing to do when it was written and only the answer was lost."""
    if digest(host, step.path, sudo=step.sudo) != hashlib.sha256(step.content.encode()).hexdigest():
        _expect(host, step.path, step.expect, step.sudo)
        host.write(step.path, step.content.encode(), step.mode, sudo=step.sudo)


def digest(host: Host, path: str, *, sudo: bool = False) -> str:
    """SHA-256 of a file on the host, or "absent"."""
    content = host.read(path, sudo=sudo)
    return "absent" if content is None else hashlib.sha256(content).hexdigest()


def command(host: Host, step: Run) -> Completed:
    """Run it, whatever its exit code."""
    argv = ("sudo", "-n", *step.argv) if step.sudo else step.argv
    return host.run(argv, stdin=step.stdin.encode(), timeout_s=step.timeout_s)


def _expect(host: Host, path: str, expected: str, sudo: bool) -> None:
    found = digest(host, path, sudo=sudo)
    if found != expected:
        raise RefusedError(
            f"{path} is not as it was when this was planned (then {expected[:12]}, now {found[:12]}): somebody else "
            f"changed it. Nothing was written; look at it and plan again."
        )


def _service(target: Target) -> Service:
    if target.service is None:
        raise HostError(f"target {target.name} halts a service, and has none")
    return target.service
