"""`leadline undo`."""

from __future__ import annotations

import click

from leadline.cli.common import campaign_argument, confirm, emit, json_option, yes_option


@click.command("undo", epilog="Example: leadline undo ./my-campaign")
@campaign_argument
@yes_option
@json_option
def command(campaign: str, yes: bool, as_json: bool) -> None:
    """Put the launch script back that `leadline apply` replaced; remove ours when there was none. Restarts nothing.

    Refused when somebody else changed the script meanwhile.
    """
    from leadline.applied import Applied
    from leadline.build import reach
    from leadline.deploy import execute, observe
    from leadline.errors import InputError
    from leadline.interrupts import Interrupts

    wired = reach(campaign)
    applied = Applied.read(wired.folder.path)
    if applied is None:
        raise InputError("nothing is applied from this campaign, so there is nothing to undo")
    with Interrupts().installed() as interrupts:
        steps = wired.target.undo(observe(wired.target, wired.host), applied.written, applied.previous)
        if not as_json:
            click.echo("\n".join([f"take back {applied.setting}, applied {applied.at}", *map(str, steps)]))
        confirm(f"Put {applied.path} back as it was before?", yes=yes)
        with interrupts.shield():
            for step in steps:
                execute(wired.host, step)
            Applied.forget(wired.folder.path)
    if as_json:
        emit({"undone": applied.setting, "path": applied.path, "steps": [str(s) for s in steps]})
    else:
        click.echo(f"{applied.path} is as it was before; a server that runs by now was not touched")
