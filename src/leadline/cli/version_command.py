"""`leadline version`."""

from __future__ import annotations

import click

from leadline import __version__


@click.command("version", epilog="Example: leadline version --json")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(as_json: bool) -> None:
    """Print the version."""
    click.echo(f'{{"version": "{__version__}"}}' if as_json else f"leadline {__version__}")
