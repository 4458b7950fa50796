"""`leadline rehearse`."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import click

from leadline.cli.common import campaign_argument, confirm, emit, json_option, yes_option

if TYPE_CHECKING:
    from leadline.build import Wired
    from leadline.deploy import Deployer, Running
    from leadline.interrupts import Interrupts
    from leadline.launch import LaunchSpec
    from leadline.ports import Observed
    from leadline.rehearsal import Rehearsal

POLL_S = 0.02


@click.command("rehearse", epilog="Example: leadline rehearse ./my-campaign")
@campaign_argument
@yes_option
@json_option
@click.option("--child", is_flag=True, hidden=True)
def command(campaign: str, yes: bool, as_json: bool, child: bool) -> None:
    """Prove the way back before anything is tried: two starts on today's setting, nothing else.

    First a process of ours starts the server and is killed with SIGKILL in the middle of the load: nothing of the
    server may be left, and a service is put back by its guard. Then the server is loaded to its first token, timed, and
    ended or put back in order.
    """
    from leadline.build import wire
    from leadline.interrupts import Interrupts
    from leadline.journal.file import Journal

    wired = wire(campaign)
    wired.refuse_unguarded()
    wired.folder.prepare()
    with Interrupts().installed() as interrupts:
        if child:
            _start_and_wait(wired, interrupts)
            return
        question = f"Start the server on {wired.url} twice, on today's setting ({wired.problem.incumbent})?"
        confirm(question, yes=yes)
        with Journal(wired.folder.journal, reason="leadline rehearse", utc=wired.clock.utc):
            result = _rehearse(wired, interrupts, campaign)
    result.write(wired.folder.path)
    if as_json:
        emit(result)
        return
    if wired.observed is not None:
        click.echo(f"killed in the middle of a load: the original served again after {result.killed_back_s:.1f} s")
        click.echo(f"loaded on {result.setting} in {result.load_s:.1f} s, the original back in {result.back_s:.1f} s")
        return
    click.echo(f"killed in the middle of a load: nothing was left after {result.killed_back_s:.2f} s")
    click.echo(
        f"loaded on {result.setting} to the first token in {result.load_s:.1f} s, ended in {result.back_s:.2f} s"
    )
    click.echo("the port is free, as before; `leadline plan` now knows the time of a load")


def _rehearse(wired: Wired, interrupts: Interrupts, campaign: str) -> Rehearsal:
    from leadline.rehearsal import Rehearsal

    deployer, clock = wired.deployer(interrupts), wired.clock
    launch = wired.render(wired.problem.incumbent)
    observed = deployer.observe()
    if not deployer.stays:
        deployer.refuse_if_taken(launch)
    deployer.refuse_if_short_of_memory()
    killed_back_s = _kill_ourselves(wired, deployer, campaign)
    try:
        running = _load(deployer, launch, observed, wired.folder.log(0, 2))
    except BaseException:
        if deployer.stays:
            with interrupts.shield():
                deployer.return_service(observed, wired.folder.log(0, 3))
        raise
    with interrupts.shield():
        began = clock.now_ns()
        if deployer.stays:
            deployer.return_service(observed, wired.folder.log(0, 3))
        else:
            deployer.give_back(running, observed)
    return Rehearsal(
        at=clock.utc(),
        setting=str(wired.problem.incumbent),
        load_s=running.load_s,
        back_s=(clock.now_ns() - began) / 1e9,
        killed_back_s=killed_back_s,
    )


def _load(deployer: Deployer, launch: LaunchSpec, observed: Observed, log: str) -> Running:
    from leadline.deploy import StartFailed
    from leadline.errors import NothingFeasibleError

    try:
        return deployer.start(launch, observed, log)
    except StartFailed as failed:
        why, remedy = failed.diagnosis, failed.diagnosis.remedy.rstrip(".")
        raise NothingFeasibleError(
            f"today's setting does not run here: {why}. {f'What to do: {remedy}. ' * bool(remedy)}Its log: {log}"
        ) from failed


def _kill_ourselves(wired: Wired, deployer: Deployer, campaign: str) -> float:
    """Seconds from the SIGKILL of a child that holds the server until the server is gone."""
    from leadline.errors import HostError, NotGivenBackError

    argv = [sys.executable, "-m", "leadline", "rehearse", campaign, "--child", "--json"]
    child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        said = child.stdout.readline()
        pid = int(said.split()[1]) if said.startswith("started ") else None
        why = "" if pid is not None else _message(said + child.stdout.read())
    finally:
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()
    if pid is None:
        raise HostError(why)
    clock = wired.clock
    began = clock.now_ns()
    if deployer.stays:
        _await_guard(wired, deployer)
        return (clock.now_ns() - began) / 1e9
    limit_s = wired.spec.safety.grace_s + 2
    while _alive(pid) or deployer.host.listener(*wired.engine.address(wired.trial_base)) is not None:
        if clock.now_ns() - began > limit_s * 1e9:
            raise NotGivenBackError(
                f"Leadline was killed and the server (pid {pid}) was still there {limit_s:g} s later"
            )
        clock.sleep(POLL_S)
    return (clock.now_ns() - began) / 1e9


def _await_guard(wired: Wired, deployer: Deployer) -> None:
    """Until the guard on the service's host has put the original back without us, and it serves. Raises
    NotGivenBackError."""
    from leadline.errors import NotGivenBackError
    from leadline.steps import command as ask

    service, clock, limit_s = wired.target.service, wired.clock, wired.spec.safety.disconnect_grace_s + 15
    until = clock.now_ns() + limit_s * 1e9
    while service is not None and service.facts(ask(wired.host, service.look())).trial != "absent":
        if clock.now_ns() > until:
            raise NotGivenBackError(
                f"Leadline was killed, and {limit_s:g} s later its guard had not put the original back: "
                f"{wired.target.guarantee}. Do so by hand now."
            )
        clock.sleep(POLL_S)
    deployer.return_service(deployer.observe(), wired.folder.log(0, 3))


def _message(said: str) -> str:
    """What the child's error says, which it printed as JSON."""
    from leadline.codec import from_json

    try:
        return str(from_json(said, dict[str, object])["error"])
    except (ValueError, KeyError):
        return f"the process that was to start the server ended without it: {said.strip() or 'it said nothing'}"


def _alive(pid: int) -> bool:
    import psutil

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _start_and_wait(wired: Wired, interrupts: Interrupts) -> None:
    """The child: starts the server, says so, and holds it until it is killed or its parent goes."""
    from leadline.launch import Start
    from leadline.steps import execute

    deployer = wired.deployer(interrupts)
    launch = wired.render(wired.problem.incumbent)
    observed: Observed = deployer.observe()
    log = wired.folder.log(0, 1)
    if deployer.stays:
        deployer.begin(launch, observed)
        click.echo("started 0")
        sys.stdin.read()
        return
    for step in wired.target.plan(launch, observed, log):
        session = execute(wired.host, step)
        if isinstance(step, Start) and session is not None:
            process = session.process()
            click.echo(f"started {process.pid if process else 0}")
            sys.stdin.read()
            session.end(wired.spec.safety.grace_s)
