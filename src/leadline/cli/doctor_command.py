"""`leadline doctor`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from leadline.cli.common import campaign_argument, emit, json_option, service_options

if TYPE_CHECKING:
    from leadline.build.examine import Place


@click.command("doctor", epilog="Example: leadline doctor --unit sglang-qwen --host ssh://anna@gpu-box --sudo")
@campaign_argument
@service_options
@click.option("--sudoers", is_flag=True, help="Print the sudo rules that the user there needs, and nothing else.")
@json_option
def command(
    campaign: str, unit: str | None, host: str, ssh_config: str, sudo: bool, sudoers: bool, as_json: bool
) -> None:
    """Say what a service's host lacks, and which sudo rules it needs. Changes nothing.

    The exit code is 0 when all is there that a trial needs, and 2 otherwise.
    """
    from leadline.build.examine import examine, place_of_campaign, place_of_unit

    place = place_of_campaign(campaign) if unit is None else place_of_unit(unit, host, ssh_config, sudo=sudo)
    if sudoers:
        _print_rules(place, as_json)
        return
    from leadline.doctor import lacking

    checks = []
    for check in examine(place):
        checks.append(check)
        if not as_json:
            click.echo(str(check))
    if as_json:
        emit({"ready": not lacking(checks), "checks": checks})
    if lacking(checks):
        sys.exit(2)


def _print_rules(place: Place, as_json: bool) -> None:
    from leadline.build.examine import sudo_rules

    text, rules = sudo_rules(place)
    if as_json:
        emit({"rules": rules, "text": text})
    else:
        click.echo(text, nl=False)
