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


@click.command("run", epilog="Example: leadline run ./my-campaign --yes")
@campaign_argument
@yes_option
@json_option
def command(campaign: str, yes: bool, as_json: bool) -> None:
    """Start a campaign, or go on with one where it stopped. Ends with the results and a report.html.

    Whatever happens to this process, the server that it started ends with it.
    """
    from leadline.build import wire
    from leadline.cli.plan_command import look
    from leadline.cli.report_command import write_html

    wired = wire(campaign)
    outlook = look(wired)
    if outlook.launches:
        time = "not known yet" if outlook.minutes is None else f"about {outlook.minutes:.0f} min"
        question = (
            f"{outlook.launches} launches of {wired.spec.service.engine} on {wired.url}, time {time}. "
            f"Way back: {wired.target.guarantee} Start?"
        )
        confirm(question, yes=yes)
    recommendation = sail(wired)
    report = write_html(wired)
    if as_json:
        emit(recommendation)
    else:
        from leadline.cli.report_command import render

        click.echo(render(wired, "text"))
        click.echo(f"report: {report}")


def sail(wired: Wired, also: Callable[[AnyEvent], None] = lambda event: None) -> Recommendation:
    """Open the journal and run the campaign with progress on standard error. Stop signals end it in order.

    `also` is told each event once it is on disk and shown.
    """
    from leadline import __version__
    from leadline.campaign import begin, preview
    from leadline.cli.progress import Progress, screen
    from leadline.interrupts import Interrupts
    from leadline.journal.events import CampaignStarted, SessionOpened
    from leadline.journal.file import Journal
    from leadline.launch import masked

    wired.folder.prepare()
    with (
        Interrupts().installed() as interrupts,
        Journal(wired.folder.journal, reason="leadline run", utc=wired.clock.utc, shield=interrupts.shield) as journal,
    ):
        show = screen()
        ledger = journal.ledger
        progress = Progress(ledger, lambda: len(preview(wired.strategy, wired.problem, ledger.history())), show)

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
            begin(journal, start, session)
            return wired.campaign(journal, interrupts, progress.load).run()
        finally:
            show.close()
