"""`leadline run`."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from leadline.cli.common import campaign_argument, confirm, emit, json_option, yes_option

if TYPE_CHECKING:
    from leadline.answer import Recommendation
    from leadline.build import Wired
    from leadline.journal.events import AnyEvent
    from leadline.outlook import Outlook


@click.command("run", epilog="Example: leadline run ./my-campaign --yes")
@campaign_argument
@click.option("--detach", is_flag=True, help="Go on without this terminal; `leadline status` and `stop` reach it.")
@yes_option
@json_option
def command(campaign: str, detach: bool, yes: bool, as_json: bool) -> None:
    """Start a campaign, or go on with one where it stopped. Ends with the results and a report.html.

    Whatever happens to this process, the server that it started ends with it, and a service is put back by the guard
    that stands on its host.
    """
    from leadline.build import wire
    from leadline.cli.plan_command import look
    from leadline.cli.report_command import brief, write_html
    from leadline.errors import RefusedError

    wired = wire(campaign)
    wired.refuse_unguarded()
    outlook = look(wired)
    if outlook.launches:
        _refuse_nothing_to_compare(outlook)
        if outlook.in_the_way and not wired.spec.traffic.drain:
            raise RefusedError(outlook.in_the_way)
        confirm(_question(wired, outlook), yes=yes)
    if detach:
        _detach(campaign, wired, as_json)
        return
    recommendation = sail(wired)
    report = write_html(wired)
    if as_json:
        emit(recommendation)
        return
    click.echo(brief(wired))
    click.echo(f"report: {report}; `leadline report {campaign}` prints it")
    click.echo(f"next:   {_next(campaign, recommendation)}")


def _detach(campaign: str, wired: Wired, as_json: bool) -> None:
    """The same command in a session of its own, deaf to a hang-up; what it says goes into the campaign's folder."""
    import signal
    import subprocess
    import sys

    log = wired.folder.path / "run.log"
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # what is ignored stays ignored in a child
    try:
        with log.open("ab") as out:
            child = subprocess.Popen(
                [sys.executable, "-m", "leadline", "run", str(wired.folder.path), "--yes"],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
    finally:
        signal.signal(signal.SIGHUP, before)
    if as_json:
        emit({"pid": child.pid, "log": str(log)})
    else:
        click.echo(f"runs on as pid {child.pid}; it writes {log}. `leadline status {campaign}` says how it goes")


def _refuse_nothing_to_compare(outlook: Outlook) -> None:
    """Raises InputError when today's setting is all that is left, since the engine refuses every other."""
    from leadline.errors import InputError

    refused = [row for row in outlook.settings if row.refused]
    if refused and all(row.incumbent or row.refused for row in outlook.settings):
        reasons = dict.fromkeys(row.refused for row in refused)
        raise InputError(
            "nothing would be compared with today's setting, since every other one is refused:\n"
            + "\n".join(f"  {reason}" for reason in reasons)
        )


def _next(campaign: str, recommendation: Recommendation) -> str:
    goals = recommendation.goals
    if all(g.setting in (None, recommendation.incumbent) for g in goals):
        return "nothing to change; `leadline try` measures a setting of your own"
    one = "" if recommendation.single is not None else " --goal NAME"
    return f"leadline apply {campaign}{one or ' (or --goal NAME for what one goal wants)' * (len(goals) > 1)}"


def _question(wired: Wired, outlook: Outlook) -> str:
    from leadline.cli.plan_command import minutes

    time = "time not known yet" if outlook.minutes is None else f"{minutes(outlook.minutes)} ({outlook.based_on})"
    launches = f"{outlook.launches} launch{'es' * (outlook.launches > 1)}"
    service = f"{wired.spec.service.engine} on {wired.url}"
    return f"{launches} of {service}, {time}.\nWay back: {wired.target.guarantee}.\nStart?"


def sail(wired: Wired, also: Callable[[AnyEvent], None] = lambda event: None) -> Recommendation:
    """Open the journal and run the campaign with progress on standard error. Stop signals end it in order.

    `also` is told each event once it is on disk and shown.
    """
    from leadline import __version__
    from leadline.campaign import begin
    from leadline.cli.progress import Progress, screen
    from leadline.interrupts import Interrupts
    from leadline.journal.events import CampaignStarted, SessionOpened
    from leadline.journal.file import Journal
    from leadline.launch import masked
    from leadline.outlook import preview
    from leadline.trial import TrialState

    wired.endpoint()  # a secret that cannot be had is refused before anything is written
    wired.folder.prepare()
    with (
        Interrupts().installed() as interrupts,
        Journal(wired.folder.journal, reason="leadline run", utc=wired.clock.utc, shield=interrupts.shield) as journal,
    ):
        show = screen()
        ledger = journal.ledger

        def left() -> int:
            about_to = sum(t.state is TrialState.PLANNED for t in ledger.live_trials())
            most = wired.launches_left(ledger.launches + about_to)
            return len(preview(wired.strategy, wired.problem, ledger.history(), most))

        progress = Progress(ledger, left, show)

        def watch(event: AnyEvent) -> None:
            progress(event)
            also(event)

        journal.watch = watch
        start = CampaignStarted(
            name=wired.folder.path.name,
            problem=wired.problem,
            engine=wired.engine.name,
            target=wired.target.name,
            launch=str(masked(wired.base)),
            config_digest=wired.spec.digest,
            tool_version=__version__,
        )
        try:
            session = SessionOpened(pid=os.getpid(), host=socket.gethostname(), repaired=journal.repaired)
            campaign = wired.campaign(journal, interrupts, progress.load, progress.wait)
            return campaign.run(lambda: begin(journal, start, session))
        finally:
            show.close()
