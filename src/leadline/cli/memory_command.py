"""`leadline memory`."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from leadline.cli.common import campaign_argument, emit, json_option

if TYPE_CHECKING:
    from leadline.build import Wired
    from leadline.evidence import Footprint, Seen
    from leadline.space import Setting

MOST = 64


@click.command("memory", epilog="Example: leadline memory ./my-campaign --json")
@campaign_argument
@json_option
def command(campaign: str, as_json: bool) -> None:
    """Foresee what each setting takes of the device's memory: KV tokens, requests at once, and whether it starts.

    Starts nothing. Rests on the models' config.json and the device, and on the logs of this campaign's launches once
    there are any: then it is much closer.
    """
    from leadline.build import wire
    from leadline.report.memory_table import data, lines

    rows = [(str(setting), footprint) for setting, footprint in foresee(wire(campaign))]
    if as_json:
        emit(data(rows))
    else:
        click.echo("\n".join(lines(rows, min(120, shutil.get_terminal_size((100, 24)).columns))))


def foresee(wired: Wired, settings: Sequence[Setting] | None = None) -> list[tuple[Setting, Footprint]]:
    """Settings, each with its footprint: those given, or all of the campaign with today's first; at most `MOST`.

    Raises InputError for a setting that the engine refuses, and for a config.json that cannot be read.
    """
    problem = wired.problem
    if settings is None:
        settings = list(dict.fromkeys((problem.incumbent, *problem.settings())))
    ground = wired.ground(seen(wired))
    return [(s, wired.engine.memory(wired.render(s), ground)) for s in settings[:MOST]]


def seen(wired: Wired) -> list[Seen]:
    """What the campaign's own launches said, the latest first; those whose log is gone are left out."""
    from leadline.errors import InputError
    from leadline.evidence import Seen
    from leadline.journal.file import replay

    out: list[Seen] = []
    for trial in reversed(replay(wired.folder.journal).ledger.history().trials):
        path = Path(wired.folder.log(trial.id, max(trial.attempt, 1)))
        try:
            launch = wired.render(trial.setting)
            log = path.read_text(encoding="utf-8", errors="replace")
        except (OSError, InputError):
            continue
        out.append(Seen(launch=launch, log=log))
    return out
