"""What commands share: the campaign argument, JSON output, and asking before anything is started."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from leadline.errors import InputError

F = TypeVar("F", bound=Callable[..., Any])


def campaign_argument(function: F) -> F:
    return click.argument("campaign", default=".", required=False)(function)


def json_option(function: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(function)


def yes_option(function: F) -> F:
    return click.option("--yes", "-y", is_flag=True, help="Do not ask.")(function)


def service_options(function: F) -> F:
    """--unit, --host, --ssh-config and --sudo: a service without a campaign."""
    for option in (
        click.option("--sudo", is_flag=True, help="Do there through `sudo -n` what only root may do."),
        click.option("--ssh-config", default="", help="A file for `ssh -F`. Default: your own."),
        click.option("--host", default="local", help="ssh://[user@]name[:port]. Default: this machine."),
        click.option("--unit", help="A systemd unit, instead of a campaign."),
    ):
        function = option(function)
    return function


def words_of(argv: tuple[str, ...]) -> tuple[str, ...]:
    """A command line as it was given: also in one pair of quotes, or with NAME=value before it, as a shell takes it.

    Raises InputError for quotes that are not closed.
    """
    import re
    import shlex

    if len(argv) == 1 and " " in argv[0]:
        try:
            argv = tuple(shlex.split(argv[0]))
        except ValueError as error:
            raise InputError(f"the command cannot be read as a shell would: {error}") from error
    if argv and re.match(r"[A-Za-z_]\w*=", argv[0]):
        return ("env", *argv)
    return argv


def emit(value: object) -> None:
    """A value as JSON on standard output."""
    from leadline.codec import to_pretty

    click.echo(to_pretty(value))


def let_go(*fds: int) -> None:
    """Whoever read what we write is gone: from now on it goes nowhere, so that it cannot fail once more at our end."""
    null = os.open(os.devnull, os.O_WRONLY)
    for fd in fds:
        os.dup2(null, fd)
    os.close(null)


def confirm(question: str, *, yes: bool) -> None:
    """Go on only with --yes or a typed yes. Raises InputError on no, and without a terminal to ask on."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise InputError(f"{question} There is no terminal to ask on: say --yes.")
    if not click.confirm(question, err=True):
        raise InputError("not confirmed, so nothing was changed")
