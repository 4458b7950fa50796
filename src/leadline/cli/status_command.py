"""`leadline status`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from leadline.cli.common import campaign_argument, emit, json_option, service_options

if TYPE_CHECKING:
    from leadline.folder import Folder
    from leadline.ports import Observed


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """Where a campaign stands. `state`: new, running, stopped, finished, or "died" (its process is gone, unsaid).

    `in_force` = the launch that was put in force and not said to be given back; "" = none. `queued` = settings added by
    hand that no trial has measured yet. `recommended` = for each goal a setting, or None; `reasons` says why.
    `warnings` = what has changed under an applied setting since.
    """

    state: str
    why: str = ""
    owner: str = ""
    trials: dict[str, int] = {}
    queued: tuple[str, ...] = ()
    present: str = ""
    in_force: str = ""
    last_event: str = ""
    recommended: dict[str, str | None] = {}
    reasons: dict[str, str] = {}
    applied: str = ""
    warnings: tuple[str, ...] = ()


@click.command("status", epilog="Example: leadline status ./my-campaign --json")
@campaign_argument
@service_options
@json_option
def command(campaign: str, unit: str | None, host: str, ssh_config: str, sudo: bool, as_json: bool) -> None:
    """Say where a campaign stands and who holds it, or what of ours a unit has in force. Changes nothing."""
    from leadline.folder import Folder

    if unit is not None:
        _of_a_unit(unit, host, ssh_config, sudo, as_json)
        return
    status = look(Folder.of(campaign))
    status = msgspec.structs.replace(status, warnings=_underneath(campaign) if status.applied else ())
    if as_json:
        emit(status)
        return
    click.echo(f"{status.state}{': ' + status.why if status.why else ''}")
    for label, text in (
        ("held by", status.owner),
        ("trials", ", ".join(f"{n} {state}" for state, n in status.trials.items())),
        ("queued", ", ".join(status.queued)),
        ("now", status.present),
        ("in force" if status.owner else "was in force", status.in_force),
        ("last event", status.last_event),
        ("applied", status.applied),
    ):
        if text:
            click.echo(f"{label:<11} {text}")
    for warning in status.warnings:
        click.echo(f"{'warning':<11} {warning}")
    for goal, setting in status.recommended.items():
        click.echo(f"{'for ' + goal:<11} {setting or status.reasons[goal]}")


def look(folder: Folder) -> Status:
    from collections import Counter

    from leadline.journal.file import owner_of, replay

    owner = owner_of(folder.journal)  # before the journal: one that ends meanwhile has not died
    ledger = replay(folder.journal).ledger
    history = ledger.history()
    live = ledger.live_trials()
    goals = ledger.decided.recommendation.goals if ledger.decided else ()
    state, why = "died", "its process is gone, and the server that it started with it; `leadline run` goes on"
    if owner is not None:
        state, why = "running", ""
    elif ledger.started is None:
        state, why = "new", "`leadline plan` shows what it would do"
    elif ledger.closed is not None:
        state, why = ("finished" if ledger.closed.finished else "stopped"), ledger.closed.reason
    return Status(
        state=state,
        why=why,
        owner=str(owner or ""),
        trials=dict(Counter(str(t.state) for t in history.trials)),
        queued=tuple(str(s) for s in folder.inbox.settings() if not history.of(s)),
        present=f"trial {live[0].id}, {live[0].setting}, {live[0].state}" if live and owner else "",
        in_force=ledger.in_force.launch if ledger.in_force else "",
        last_event=ledger.last_at,
        recommended={g.goal: None if g.setting is None else str(g.setting) for g in goals},
        reasons={g.goal: g.reason for g in goals},
        applied=_applied(folder),
    )


def _underneath(campaign: str) -> tuple[str, ...]:
    """Warnings about the files of an applied service; none for a launch script."""
    from leadline.applied import Applied
    from leadline.build import reach
    from leadline.errors import LeadlineError
    from leadline.steps import observe

    reached = reach(campaign)
    applied = Applied.read(reached.folder.path)
    if applied is None or reached.target.service is None:
        return ()
    try:
        observed = observe(reached.target, reached.host)
    except LeadlineError as error:
        return (f"the service cannot be looked at: {error}",)
    gone = observed.files.get(applied.path, "absent") != applied.written
    ours = (f"{applied.path} is no longer the file that was applied: somebody else changed it",) if gone else ()
    return (*ours, *_changed(observed, applied.shadowed))


def _changed(observed: Observed, shadowed: dict[str, str]) -> tuple[str, ...]:
    paths = [path for path, then in shadowed.items() if observed.files.get(path, "absent") != then]
    return tuple(
        f"{path} was changed since our setting was put over it: what it says now of the command is not in force. "
        f"`leadline undo` takes ours back; then look at the new one, and apply again."
        for path in paths
    )


def _of_a_unit(unit: str, host: str, ssh_config: str, sudo: bool, as_json: bool) -> None:
    from leadline.build import make_host, make_target
    from leadline.launch import masked
    from leadline.ports import Site
    from leadline.steps import observe

    target = make_target("systemd", Site(unit=unit, sudo=sudo))
    observed = observe(target, make_host(host, ssh_config))
    path = target.rollout_path()
    applied = path if observed.files.get(path, "absent") != "absent" else ""
    warnings = _changed(observed, observed.shadowed)
    launch = str(masked(observed.launch))
    if as_json:
        emit({"running": observed.running, "launch": launch, "trial": observed.holder if observed.held else "",
              "applied": applied, "warnings": warnings})  # fmt: skip
        return
    click.echo("running" if observed.running else "not running")
    for label, text in (
        ("launch", launch),
        ("held by", observed.holder),
        ("applied", applied),
        *(("warning", w) for w in warnings),
    ):
        if text:
            click.echo(f"{label:<11} {text}")


def _applied(folder: Folder) -> str:
    from leadline.applied import Applied
    from leadline.errors import InputError

    try:
        applied = Applied.read(folder.path)
    except InputError as error:
        return str(error)
    return f"{applied.setting} since {applied.at} ({applied.path})" if applied else ""
