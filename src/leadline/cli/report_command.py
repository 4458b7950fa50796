"""`leadline report`."""

from __future__ import annotations

import importlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from leadline.cli.common import campaign_argument, emit, json_option

if TYPE_CHECKING:
    from leadline.build import Reach
    from leadline.report.model import Report
    from leadline.trial import History

FORMATS = {"text": "text", "md": "markdown", "html": "html", "json": "data", "csv": "data"}


@click.command("report", epilog="Example: leadline report ./my-campaign --format html --output report.html")
@campaign_argument
@click.option("--format", "form", type=click.Choice(list(FORMATS)), default="text", help="Default: text.")
@click.option("--output", "-o", type=click.Path(dir_okay=False), help="Write to this file instead of the screen.")
@json_option
def command(campaign: str, form: str, output: str | None, as_json: bool) -> None:
    """Print or write what is known so far; the campaign may be running. Starts nothing and changes nothing."""
    from leadline.build import reach

    form = "json" if as_json and form == "text" else form
    text = render(reach(campaign), form)
    if output is not None:
        _write(Path(output), text)
        if as_json:
            emit({"written": output, "format": form})
        else:
            click.echo(f"written: {output}")
    elif as_json and form != "json":
        emit({"format": form, "report": text})
    else:
        click.echo(text, nl=False)


def render(wired: Reach, form: str) -> str:
    """The report of a campaign in one of FORMATS."""
    report = _report(wired)
    module = importlib.import_module(f"leadline.report.{FORMATS[form]}")
    function = {"json": "to_json", "csv": "to_csv"}.get(form, "render")
    text: str = getattr(module, function)(report)
    return text


def brief(wired: Reach) -> str:
    """What `run` ends with: the answer and the tables behind it, on a screen or two."""
    from leadline.report import text

    return text.render(_report(wired), brief=True)


def write_html(wired: Reach) -> Path:
    """report.html in the campaign's folder."""
    path = wired.folder.path / "report.html"
    _write(path, render(wired, "html"))
    return path


def _write(path: Path, text: str) -> None:
    from leadline.errors import InputError

    part = path.with_name(path.name + ".part")
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; name another place with --output") from error


def _measured_on(history: History) -> dict[str, str]:
    """The machine of the measurements, which need not be the one that prints the report; empty when there is none."""
    text = next((m.identity.get("machine", "") for t in history.trials for m in t.measurements), "")
    pairs = (pair.partition(" ") for pair in re.split(r", (?=[a-z_]+ )", text) if pair)
    return {name: value for name, _, value in pairs}


def _report(wired: Reach) -> Report:
    from leadline import __version__
    from leadline.cli.status_command import look
    from leadline.errors import InputError
    from leadline.journal.file import replay
    from leadline.measure import origin
    from leadline.report.model import Meta, ServerKind, build
    from leadline.trial import Origin

    ledger = replay(wired.folder.journal).ledger
    if ledger.started is None or ledger.problem is None:
        raise InputError(f"{wired.folder.path} has no journal yet: `leadline run` starts the campaign")
    history = ledger.history()
    effective = next((t.effective for t in reversed(history.trials) if t.effective is not None), None)
    status = look(wired.folder)
    lab = effective is not None and origin(effective) is Origin.SIMULATED
    meta = Meta(
        campaign=ledger.started.name,
        engine=ledger.started.engine,
        engine_version=(effective.version if effective else None) or "",
        model=(effective.model if effective else None) or "",
        target=ledger.started.target,
        server=ServerKind.LAB if lab else ServerKind.REAL,
        machine=_measured_on(history) or wired.host.identity(),
        workloads={n: f"{w.origin}, {w.available} sessions, {w.digest}" for n, w in wired.workloads.items()},
        tool_version=__version__,
        started=ledger.started.at,
        ended=ledger.last_at,
        journal=str(wired.folder.journal),
        minutes_without_service=ledger.without_service_s() / 60,
        restarts=ledger.launches,
        state=f"{status.state}: {status.why}" if status.why else status.state,
    )
    decided = ledger.decided.recommendation if ledger.decided else None
    return build(ledger.problem, history, decided, meta)
