"""`leadline plan`."""

from __future__ import annotations

import shutil
import textwrap
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import click

from leadline.cli.common import campaign_argument, emit, json_option

if TYPE_CHECKING:
    from leadline.build import Wired
    from leadline.evidence import Footprint
    from leadline.outlook import Outlook

NOTHING = "nothing more would be launched: `leadline report` shows the results, `leadline try` adds a setting"


@click.command("plan", epilog="Example: leadline plan ./my-campaign --json")
@campaign_argument
@json_option
def command(campaign: str, as_json: bool) -> None:
    """Show each setting's exact difference to today's command line, the restarts, the minutes, and the way back.

    Changes nothing on disk and starts nothing.
    """
    from leadline.build import wire

    wired = wire(campaign)
    outlook = with_memory(wired, look(wired))
    if as_json:
        emit(outlook)
    else:
        click.echo("\n".join(lines(wired, outlook)))


def look(wired: Wired) -> Outlook:
    """What is still to come, timed by what is known of this campaign."""
    import msgspec

    from leadline.journal.file import owner_of, replay
    from leadline.listening import in_the_way
    from leadline.outlook import look_ahead, shown
    from leadline.rehearsal import Rehearsal

    owner = owner_of(wired.folder.journal)
    ledger = replay(wired.folder.journal).ledger
    history = ledger.history()
    queued = tuple(dict.fromkeys((*history.queued, *wired.folder.inbox.settings())))
    # then it is our own server that may still listen there, or the service itself
    ours = owner is not None or ledger.in_force is not None or wired.observed is not None
    rehearsal = Rehearsal.read(wired.folder.path)
    trial_s, based_on = None, "nothing was timed yet: `leadline rehearse` times the load"
    if ledger.trial_seconds:
        trial_s = sum(ledger.trial_seconds) / len(ledger.trial_seconds)
        based_on = f"launches so far took {trial_s:.0f} s each"
    elif rehearsal is not None:
        trial_s = rehearsal.load_s + rehearsal.back_s
        based_on = f"loads alone, {trial_s:.0f} s each as rehearsed; the measurements come on top"
    outlook = look_ahead(
        problem=wired.problem,
        strategy=wired.strategy,
        history=msgspec.structs.replace(history, queued=queued),
        render=wired.render,
        base=wired.trial_base,
        guard=wired.target.guarantee,
        trial_s=trial_s,
        based_on=based_on,
        most=wired.launches_left(ledger.launches),
        in_the_way="" if ours else in_the_way(wired.engine, wired.host, wired.trial_base),
        steps=wired.steps,
    )
    return msgspec.structs.replace(outlook, guarding=shown(wired.guarding()), back=shown(wired.way_back()))


def with_memory(wired: Wired, outlook: Outlook) -> Outlook:
    """The outlook with what each setting is foreseen to take of the device's memory, where that is known."""
    import msgspec

    from leadline.cli.memory_command import foresee
    from leadline.errors import LeadlineError
    from leadline.evidence import Verdict

    try:
        found = dict(foresee(wired, [row.setting for row in outlook.settings if not row.refused]))
    except LeadlineError as error:  # a plan does not depend on it
        return msgspec.structs.replace(outlook, memory_unknown=str(error))
    known = {s: f for s, f in found.items() if f.verdict is not Verdict.UNKNOWN}
    rows = (msgspec.structs.replace(row, memory=known.get(row.setting)) for row in outlook.settings)
    return msgspec.structs.replace(outlook, settings=tuple(rows))


def lines(wired: Wired, outlook: Outlook) -> list[str]:
    """The plan for people."""
    width = min(100, shutil.get_terminal_size((100, 24)).columns)
    spec = wired.spec
    out = [
        f"service    {spec.service.engine}, target {spec.service.target}, {wired.url}",
        f"today      {wired.problem.incumbent}",
        *_wrapped("           ", outlook.today, width),
        f"measured   {', '.join(outlook.cells)}",
        f"launches   {_launches(wired, outlook)}",
        *([f"without    service: {minutes(outlook.minutes)} ({outlook.based_on})"] if outlook.launches else []),
        *_latest(outlook),
        *_wrapped("guard      ", wired.target.guarantee, width),
        f"limits     {_limits(wired)}",
        *(_wrapped("memory     ", f"not foreseen: {outlook.memory_unknown}", width) if outlook.memory_unknown else []),
        *(_wrapped("in the way ", outlook.in_the_way, width) if outlook.in_the_way else []),
        "",
        "setting, launches, difference to today's command" if outlook.settings else NOTHING,
    ]
    for row in outlook.settings:
        mark = " (today)" if row.incumbent else ""
        out.append(f"  {row.setting!s:<24} {row.launches}x{mark}")
        if row.refused:
            out.append(f"      refused: {row.refused}")
        out += [f"      - {unit}" for unit in row.removed] + [f"      + {unit}" for unit in row.added]
        for path, changes in row.files.items():
            out += [f"      in {path}:", *(f"        {change}" for change in changes)]
        if not row.removed and not row.added and not row.refused:
            out.append("      (none)")
        if row.memory is not None:
            out += _wrapped("      memory: ", memory_of(row.memory), width)
    return out + _as_executed(outlook)


def _as_executed(outlook: Outlook) -> list[str]:
    """Each Step of a service, exactly as it would run."""
    out: list[str] = []
    for title, steps in (
        ("before the first launch", outlook.guarding),
        *((f"to put {row.setting} in force", row.steps) for row in outlook.settings),
        ("the way back", outlook.back),
    ):
        if steps:
            out += ["", f"{title}:", *(f"  {step}" for step in steps)]
    return out


def memory_of(footprint: Footprint) -> str:
    """`509,729 KV tokens, 128 requests at once, fits`; of one that will not start only why."""
    from leadline.evidence import Verdict
    from leadline.report.words import clean, count

    asked, got = footprint.asked_running, footprint.max_running
    parts = []
    if footprint.verdict is not Verdict.WILL_NOT_START:
        if footprint.kv_tokens is not None:
            parts.append(f"{count(footprint.kv_tokens)} KV tokens")
        if got is not None:
            of = f" of {count(asked)}" if asked is not None and asked > got else ""
            parts.append(f"{count(got)}{of} requests at once")
    said = ", ".join([*parts, str(footprint.verdict)])
    why = "" if footprint.verdict is Verdict.FITS else footprint.reason
    return f"{said}: {clean(why)}" if why else said


def _wrapped(label: str, text: str, width: int) -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=label, subsequent_indent=" " * 11, break_long_words=False, break_on_hyphens=False
    )


def _launches(wired: Wired, outlook: Outlook) -> str:
    settings, rounds = sum(1 for row in outlook.settings if row.launches), wired.spec.budget.rounds
    if not outlook.launches:
        return "0"
    return f"{outlook.launches} ({settings} setting{'s' * (settings > 1)}, {rounds} round{'s' * (rounds > 1)})"


def minutes(known: float | None) -> str:
    """`about 4 min`, or seconds when it is short."""
    if known is None:
        return "time not known"
    return f"about {known:.0f} min" if known >= 2 else f"about {known * 60:.0f} s"


def _latest(outlook: Outlook) -> list[str]:
    if not outlook.minutes:
        return []
    end = datetime.now() + timedelta(minutes=outlook.minutes)
    least = "not before" if "on top" in outlook.based_on else "about"
    return [f"returned   {least} {end:%H:%M} if started now"]


def _limits(wired: Wired) -> str:
    window, budget = wired.spec.window, wired.spec.budget
    parts = [f"hours {', '.join(map(str, window.hours))}"] if window.hours else ["any hour"]
    for name, value in (
        ("launches", budget.max_launches),
        ("minutes", budget.max_minutes),
        ("restarts", window.max_restarts),
        ("minutes without service", window.max_minutes_without_service),
    ):
        if value is not None:
            parts.append(f"at most {value:g} {name}")
    return ", ".join(parts)
