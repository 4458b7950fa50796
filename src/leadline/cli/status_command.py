"""`leadline status`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from leadline.cli.common import campaign_argument, emit, json_option

if TYPE_CHECKING:
    from leadline.build import Folder


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """Where a campaign stands. `state`: new, running, stopped, finished, or "died" (its process is gone, unsaid).

    `in_force` = the launch that was put in force and not said to be given back; "" = none.
    """

    state: str
    why: str = ""
    owner: str = ""
    trials: dict[str, int] = {}
    present: str = ""
    in_force: str = ""
    last_event: str = ""
    recommended: dict[str, str] = {}
    applied: str = ""


@click.command("status", epilog="Example: leadline status ./my-campaign --json")
@campaign_argument
@json_option
def command(campaign: str, as_json: bool) -> None:
    """Say where a campaign stands and who holds it. Changes nothing."""
    from leadline.build import Folder

    status = look(Folder.of(campaign))
    if as_json:
        emit(status)
        return
    click.echo(f"{status.state}{': ' + status.why if status.why else ''}")
    for label, text in (
        ("held by", status.owner),
        ("trials", ", ".join(f"{n} {state}" for state, n in status.trials.items())),
        ("now", status.present),
        ("in force", status.in_force),
        ("last event", status.last_event),
    ):
        if text:
            click.echo(f"{label:<12}{text}")
    for goal, setting in status.recommended.items():
        click.echo(f"{'for ' + goal:<12}{setting}")


def look(folder: Folder) -> Status:
    from collections import Counter

    from leadline.journal.file import owner_of, replay

    ledger = replay(folder.journal).ledger
    if ledger.started is None:
        return Status(state="new", why="`leadline plan` shows what it would do")
    owner = owner_of(folder.journal)
    history = ledger.history()
    live = ledger.live_trials()
    state, why = "died", "its process is gone; `leadline run` goes on"
    if owner is not None:
        state, why = "running", ""
    elif ledger.closed is not None:
        state, why = ("finished" if ledger.closed.finished else "stopped"), ledger.closed.reason
    return Status(
        state=state,
        why=why,
        owner=str(owner or ""),
        trials=dict(Counter(str(t.state) for t in history.trials)),
        present=f"trial {live[0].id}, {live[0].setting}, {live[0].state}" if live and owner else "",
        in_force=ledger.in_force.launch if ledger.in_force else "",
        last_event=ledger.last_at,
        recommended={
            g.goal: str(g.setting) if g.setting is not None else g.reason for g in ledger.decided.recommendation.goals
        }
        if ledger.decided
        else {},
    )
