"""`leadline unlock`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from leadline.cli.common import campaign_argument, confirm, emit, json_option, service_options, yes_option

if TYPE_CHECKING:
    from leadline.ports import Host, Target

WARNING = (
    "If a campaign is at work there, its trial ends now: the service is put back as it was, and restarted if a trial "
    "is in force."
)


@click.command("unlock", epilog="Example: leadline unlock --unit sglang-qwen --host ssh://gpu-box")
@campaign_argument
@service_options
@yes_option
@json_option
def command(campaign: str, unit: str | None, host: str, ssh_config: str, sudo: bool, yes: bool, as_json: bool) -> None:
    """Break the lock that a campaign holds on a service, and give the service back first.

    For a campaign whose machine is gone. One that only crashed goes on with `leadline run`.
    """
    from leadline.errors import InputError
    from leadline.steps import command as ask
    from leadline.steps import execute

    target, at = _named(campaign, unit, host, ssh_config, sudo)
    service = target.service
    if service is None:
        raise InputError(f"target {target.name} has no lock: its server ends with the process that started it")
    who, *steps = service.unlock()
    holder = ask(at, who).stdout.decode(errors="replace").strip()
    if not holder:
        raise InputError("nobody holds this service")
    click.echo(holder, err=True)
    confirm(f"{WARNING} Break the lock?", yes=yes)
    for step in steps:
        execute(at, step)
    if as_json:
        emit({"held_by": holder, "steps": [str(s) for s in steps]})
    else:
        click.echo("the lock is broken, and the service given back")


def _named(campaign: str, unit: str | None, host: str, ssh_config: str, sudo: bool) -> tuple[Target, Host]:
    from leadline.build import make_host, make_target, reach
    from leadline.ports import Site

    if unit is not None:
        return make_target("systemd", Site(unit=unit, sudo=sudo)), make_host(host, ssh_config)
    reached = reach(campaign)
    return reached.target, reached.host
