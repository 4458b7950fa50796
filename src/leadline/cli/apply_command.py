"""`leadline apply`."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import click

from leadline.cli.common import campaign_argument, confirm, emit, json_option, yes_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leadline.applied import Applied
    from leadline.build import Wired
    from leadline.interrupts import Interrupts
    from leadline.launch import LaunchSpec, Step
    from leadline.space import Setting


@click.command("apply", epilog="Example: leadline apply ./my-campaign --goal interactive")
@campaign_argument
@click.option("--goal", help="The recommendation for this goal. Default: the one setting for all goals.")
@click.option("--setting", "words", help='A setting that this campaign has measured, like "depth=4".')
@click.option("--as", "form", type=click.Choice(["patch"]), help="Print a diff of your own files; change nothing.")
@yes_option
@json_option
def command(campaign: str, goal: str | None, words: str | None, form: str | None, yes: bool, as_json: bool) -> None:
    """Make a setting that ran the permanent one. `leadline undo` takes it back at any time.

    A plain command gets a launch script; nothing is restarted. A service gets a file of ours beside its own, which stay
    as they are; it is restarted, measured against what the campaign promised, and watched for canary.minutes. What is
    worse than promised, or does not stay up, is taken back at once.
    """
    from leadline.build import wire
    from leadline.cli.applying import apply_service
    from leadline.interrupts import Interrupts

    wired = wire(campaign)
    if form is None:
        _refuse_twice(wired)
    setting = _chosen(wired, goal, words)
    launch = wired.permanent(setting)
    if form == "patch":
        _show_patch(wired, launch, as_json)
        return
    with Interrupts().installed() as interrupts:
        if wired.target.service is not None:
            apply_service(wired, interrupts, setting, launch, goal=goal, yes=yes, as_json=as_json)
        else:
            _write_script(wired, interrupts, setting, launch, yes=yes, as_json=as_json)


def _show_patch(wired: Wired, launch: LaunchSpec, as_json: bool) -> None:
    from leadline.steps import observe

    text = wired.target.patch(launch, wired.observed or observe(wired.target, wired.host))
    if as_json:
        emit({"patch": text})
    else:
        click.echo(text, nl=False)


def _write_script(
    wired: Wired, interrupts: Interrupts, setting: Setting, launch: LaunchSpec, *, yes: bool, as_json: bool
) -> None:
    from leadline.applied import Applied
    from leadline.errors import RefusedError
    from leadline.launch import Put
    from leadline.outlook import difference
    from leadline.steps import digest, observe

    removed, added = difference(wired.base, launch)
    path = wired.target.rollout_path()
    note = f"{setting}, written {wired.clock.utc()} from campaign {wired.folder.path.name}"
    present = digest(wired.host, path)
    steps = wired.target.rollout(launch, observe(wired.target, wired.host), present, note)
    content = next(s.content for s in steps if isinstance(s, Put) and s.path == path)
    if not as_json:
        click.echo("\n".join([f"setting  {setting}", *(f"  - {u}" for u in removed), *(f"  + {u}" for u in added)]))
        click.echo("\n".join(str(s) for s in steps))
    confirm(f"Write {path}?", yes=yes)
    with interrupts.shield():
        if digest(wired.host, path) != present:
            raise RefusedError(f"somebody else changed {path} meanwhile. Nothing was written; apply again.")
        applied = Applied(
            path=path,
            setting=str(setting),
            at=wired.clock.utc(),
            written=hashlib.sha256(content.encode()).hexdigest(),
            previous=present,
        )
        applied.write(wired.folder.path)
        _roll_out(wired, applied, steps)
    if as_json:
        emit({"setting": setting, "path": path, "removed": removed, "added": added, "steps": [str(s) for s in steps]})
    else:
        click.echo(f"written: {path}. Start your service with it; `leadline undo` puts the previous one back.")


def _roll_out(wired: Wired, applied: Applied, steps: Sequence[Step]) -> None:
    """All steps, or none: what was done is taken back when one fails, so that it can be tried again."""
    from leadline.errors import HostError, LeadlineError
    from leadline.steps import execute

    try:
        for step in steps:
            execute(wired.host, step)
    except LeadlineError as error:
        _take_back(wired, applied)
        raise HostError(f"{error}. {applied.path} is as it was: see to what is in the way, and apply again.") from error


def _take_back(wired: Wired, applied: Applied) -> None:
    from leadline.errors import RefusedError
    from leadline.steps import digest, execute, observe

    try:
        for step in wired.target.undo(observe(wired.target, wired.host), applied.written, applied.previous):
            execute(wired.host, step)
    except RefusedError:  # somebody else's file beside the script; ours is not in place
        if digest(wired.host, applied.path) != applied.previous:
            raise
    applied.forget(wired.folder.path)


def _refuse_twice(wired: Wired) -> None:
    """One applied setting at a time: the script kept from before must be the operator's own."""
    from leadline.applied import Applied
    from leadline.errors import RefusedError

    applied = Applied.read(wired.folder.path)
    if applied is not None:
        raise RefusedError(f"{applied.setting} is applied already ({applied.path}): `leadline undo` first")


def _chosen(wired: Wired, goal: str | None, words: str | None) -> Setting:
    from leadline.errors import InputError
    from leadline.journal.file import replay
    from leadline.launch import masked
    from leadline.space import Setting

    ledger = replay(wired.folder.journal).ledger
    if ledger.started is not None and ledger.started.launch != str(masked(wired.base)):
        raise InputError(
            f"today's launch is not the one that was measured: then {ledger.started.launch}, now {masked(wired.base)}."
            f" What ran there says nothing of this one: put it back, or run a campaign in another folder."
        )
    if goal is not None and words is not None:
        raise InputError("--goal and --setting exclude each other: say which one you want")
    if words is not None:
        try:
            setting = wired.problem.incumbent.merged(Setting.parse(words))
        except ValueError as error:
            raise InputError(str(error)) from error
        ran = {t.setting for t in ledger.history().complete()}
        if setting not in ran:
            raise InputError(
                f"{setting} has not run in this campaign, and only what ran is applied; measured are "
                f"{', '.join(map(str, ran)) or 'none'}. `leadline try` measures it."
            )
        return setting
    if ledger.decided is None:
        raise InputError("this campaign has no recommendation yet: `leadline run` goes on with it")
    answer = ledger.decided.recommendation
    if goal is None:
        chosen, why = answer.single, answer.single_reason
    else:
        found = next((g for g in answer.goals if g.goal == goal), None)
        if found is None:
            raise InputError(f"no goal named {goal!r}; there are {', '.join(g.goal for g in answer.goals)}")
        chosen, why = found.setting, found.reason
    if chosen is None:
        raise InputError(f"nothing is recommended: {why}")
    return chosen
