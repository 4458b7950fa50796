"""`leadline diagnose`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from leadline.cli.common import emit, json_option

if TYPE_CHECKING:
    from leadline.evidence import ExitFacts

RESULTS = ("success", "exit-code", "signal", "core-dump", "oom-kill", "timeout", "watchdog", "start-limit-hit")
_SIGKILL = 9


@click.command("diagnose", epilog="Example: leadline diagnose --engine sglang server.log --exit 137 --result signal")
@click.argument("log")
@click.option("--engine", required=True, help="What kind of server wrote the log.")
@click.option("--exit", "code", type=click.IntRange(0, 255), help="The exit code that was seen; 128+n = signal n.")
@click.option("--result", type=click.Choice(RESULTS), help="What systemd's `Result` says of the unit.")
@json_option
def command(log: str, engine: str, code: int | None, result: str | None, as_json: bool) -> None:
    """Say why a server ended or does not serve: the class, the telling line, what to change, what else would fail.

    LOG is the server's output since its last start; "-" reads it from standard input. Exit code 137 is a kill only
    when systemd says `signal`: a server may end itself with that code.
    """
    import msgspec

    from leadline.build import plugin
    from leadline.errors import InputError
    from leadline.evidence import Evidence, Failure
    from leadline.ports import Engine
    from leadline.report.words import clean

    try:
        data = sys.stdin.buffer.read() if log == "-" else Path(log).read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {log}: {error.strerror}") from error
    dialect: Engine = plugin("engines", engine, "engine")
    seen = _facts(code, result)
    found = dialect.diagnose(Evidence(log=data.decode(errors="replace"), exit=seen))
    if seen is None and found.failure is Failure.UNKNOWN:
        reason = "no line of the log says what is wrong, and it is not known whether the server ended"
        remedy = "if it has ended, say how: --exit CODE, and --result as systemd shows it"
        found = msgspec.structs.replace(found, reason=reason, remedy=remedy)
    if as_json:
        emit(found)
        return
    for label, text in (
        ("class", found.failure),
        ("why", found.reason),
        ("line", found.line),
        ("change", found.remedy),
        ("also", found.implies),
        ("fails too", " ".join(found.fails_too)),
    ):
        if text:
            click.echo(f"{label:<10} {clean(text)}")


def _facts(code: int | None, result: str | None) -> ExitFacts | None:
    """What the supervisor saw; None when nothing was given: the server may still run."""
    from leadline.evidence import ExitFacts

    if result == "oom-kill":
        return ExitFacts(signal=_SIGKILL, host_oom_kills=1)
    if result in ("signal", "core-dump", "watchdog", "timeout"):
        signal = code - 128 if code is not None and code > 128 else (code or _SIGKILL)
        return ExitFacts(signal=signal)
    if code is not None or result is not None:
        return ExitFacts(code=0 if code is None and result == "success" else code)
    return None
