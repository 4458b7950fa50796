"""The command line: names of commands to modules, loaded when they are called, and exit codes.

Exit codes: see EXIT_CODES.
"""

from __future__ import annotations

import importlib
import sys
from typing import NoReturn

import click

from leadline import __version__
from leadline.cli.common import let_go
from leadline.errors import InterruptedRun, LeadlineError

COMMANDS = {
    "init": "Write a campaign.toml from a server's command line, or from a live service.",
    "plan": "Show what a campaign would do. Changes nothing.",
    "rehearse": "Restart on today's setting, break off midway, and prove the way back.",
    "run": "Start a campaign, or go on with one.",
    "try": "Queue one more setting by hand.",
    "status": "Say where a campaign stands.",
    "stop": "End a running campaign and give the service back.",
    "report": "Print or write the results.",
    "memory": "Foresee what each setting takes of the device's memory.",
    "diagnose": "Say why a server ended, from its log.",
    "parse": "Say which setting a server's command line has in force.",
    "bench": "Measure one running server. No campaign.",
    "apply": "Make a setting the permanent one.",
    "undo": "Take an applied setting back.",
    "unlock": "Break the lock that a campaign holds on a service.",
    "doctor": "Say what a service's host lacks, and which sudo rules it needs.",
    "version": "Print the version.",
}


EXIT_CODES = """\b
Exit codes:
  0  done
  1  this machine failed: a disk, a connection, a command
  2  wrong input, or refused because it could harm what is not ours
  3  nothing feasible
  4  stopped before an answer: the budget is spent, or paused to be looked at
  5  the service is not given back: act now
  128+n  ended by signal n
"""


class Lazy(click.Group):
    """A group that imports a command's module only when that command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"leadline.cli.{cmd_name}_command")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.version_option(__version__, message="leadline %(version)s")
@click.group(
    cls=Lazy, epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
def cli() -> None:
    """Find how deep your LLM server should speculate, for your traffic, and get the server back as it was.

    A campaign is a folder with a campaign.toml; commands take that folder, or "." when none is given.

    \b
    First:      leadline init -- llama-server -m model.gguf --port 8080
    Look:       leadline plan
    Prove:      leadline rehearse
    Go:         leadline run
    """


def main() -> NoReturn:
    """Entry point: every error that is ours becomes one message and its exit code."""
    json_wanted = "--json" in sys.argv[1 : sys.argv.index("--") if "--" in sys.argv else None]
    try:
        cli(standalone_mode=False)
    except InterruptedRun as stop:
        _say(f"{stop}; what was finished is kept, and the same command goes on", stop.exit_code, json_wanted)
    except LeadlineError as error:
        _say(str(error), error.exit_code, json_wanted)
    except click.ClickException as error:
        if json_wanted:
            _say(error.format_message(), 2, json_wanted)
        error.show()
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        _say("stopped", 130, json_wanted)
    except BrokenPipeError:
        let_go(1, 2)
        sys.exit(141)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _say(f"{where}{error.strerror or error}; what we started ends with us", 1, json_wanted)
    sys.exit(0)


def _say(message: str, code: int, json_wanted: bool) -> NoReturn:
    try:
        if json_wanted:
            from leadline.codec import to_pretty

            click.echo(to_pretty({"error": message, "exit_code": code}))
        else:
            click.echo(f"leadline: {message}", err=True)
    except OSError:  # the terminal is closed, or nobody reads us
        let_go(1, 2)
    sys.exit(code)
