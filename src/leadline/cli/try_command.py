"""`leadline try`."""

from __future__ import annotations

import click

from leadline.cli.common import emit, json_option


@click.command("try", epilog="Example: leadline try ./my-campaign depth=10")
@click.argument("campaign")
@click.argument("setting", nargs=-1, required=True)
@json_option
def command(campaign: str, setting: tuple[str, ...], as_json: bool) -> None:
    """Queue one more setting by hand: values outside the campaign's lists are welcome.

    A campaign that runs takes it up after the present trial; otherwise the next `leadline run` does. Knobs that you do
    not name keep today's value.
    """
    from leadline.build import wire
    from leadline.errors import InputError
    from leadline.journal.file import owner_of, replay
    from leadline.outlook import difference
    from leadline.space import Setting

    wired = wire(campaign)
    try:
        asked = wired.problem.incumbent.merged(Setting.parse(" ".join(setting)))
    except ValueError as error:
        raise InputError(str(error)) from error
    problem = wired.problem.space.problem_with(asked)
    if problem:
        raise InputError(problem)
    removed, added = difference(wired.trial_base, wired.render(asked))
    known = sum(t.setting == asked for t in replay(wired.folder.journal).ledger.history().complete())
    if known:
        raise InputError(
            f"{asked} has been measured already, in {known} launch{'es' * (known > 1)}: `leadline report` shows it. "
            f"For more launches of every setting raise budget.rounds and run again."
        )
    queued = wired.folder.inbox.add(asked)
    owner = owner_of(wired.folder.journal)
    if as_json:
        emit({"setting": asked, "queued": queued, "removed": removed, "added": added, "running": owner is not None})
        return
    click.echo(f"{asked}: {'queued' if queued else 'was queued already'}")
    for unit in removed:
        click.echo(f"  - {unit}")
    for unit in added:
        click.echo(f"  + {unit}")
    after = "the running campaign takes it up after the present trial" if owner else "`leadline run` will measure it"
    click.echo(after)
