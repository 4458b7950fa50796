"""`leadline undo`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from leadline.cli.common import campaign_argument, confirm, emit, json_option, service_options, yes_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leadline.build import Reach
    from leadline.interrupts import Interrupts
    from leadline.launch import Step
    from leadline.ports import Host, Target


@click.command("undo", epilog="Example: leadline undo ./my-campaign")
@campaign_argument
@service_options
@yes_option
@json_option
def command(campaign: str, unit: str | None, host: str, ssh_config: str, sudo: bool, yes: bool, as_json: bool) -> None:
    """Take back what `leadline apply` has put in force, at any time; --unit does so without the campaign's folder.

    A launch script: the previous one is put back, and nothing is restarted. A service: our file is removed, and the
    service restarted on what was there before. Refused when somebody else changed our file meanwhile.
    """
    from leadline.build import reach
    from leadline.interrupts import Interrupts

    with Interrupts().installed() as interrupts:
        if unit is not None:
            _of_a_unit(unit, host, ssh_config, sudo, interrupts, yes=yes, as_json=as_json)
        else:
            _of_a_campaign(reach(campaign), interrupts, yes=yes, as_json=as_json)


def _of_a_campaign(reached: Reach, interrupts: Interrupts, *, yes: bool, as_json: bool) -> None:
    from leadline.applied import Applied
    from leadline.errors import InputError
    from leadline.steps import execute, observe

    applied = Applied.read(reached.folder.path)
    if applied is None:
        raise InputError("nothing is applied from this campaign, so there is nothing to undo")
    steps = reached.target.undo(observe(reached.target, reached.host), applied.written, applied.previous)
    if not as_json:
        click.echo("\n".join([f"take back {applied.setting}, applied {applied.at}", *map(str, steps)]))
    confirm(f"Put {applied.path} back as it was before?", yes=yes)
    if reached.target.service is not None:
        _restore(reached.target, reached.host, steps, interrupts, reached.headers(), reached.spec.service.engine)
    else:
        with interrupts.shield():
            for step in steps:
                execute(reached.host, step)
    Applied.forget(reached.folder.path)
    if as_json:
        emit({"undone": applied.setting, "path": applied.path, "steps": [str(s) for s in steps]})
    elif reached.target.service is not None:
        click.echo("the service runs as it did before, and serves")
    else:
        click.echo(f"{applied.path} is as it was before; a server that runs by now was not touched")


def _of_a_unit(
    unit: str, host: str, ssh_config: str, sudo: bool, interrupts: Interrupts, *, yes: bool, as_json: bool
) -> None:
    from leadline.build import make_host, make_target
    from leadline.errors import InputError
    from leadline.ports import Site
    from leadline.steps import observe

    at = make_host(host, ssh_config)
    target = make_target("systemd", Site(unit=unit, sudo=sudo))
    observed = observe(target, at)
    path = target.rollout_path()
    written = observed.files.get(path, "absent")
    if written == "absent":
        raise InputError(f"{unit} has no setting of ours in force: there is no {path}")
    steps = target.undo(observed, written, observed.previous)
    if not as_json:
        click.echo("\n".join(map(str, steps)))
    confirm(f"Remove {path} and restart {unit} as it was before?", yes=yes)
    _restore(target, at, steps, interrupts, {}, "")
    if as_json:
        emit({"undone": unit, "path": path, "steps": [str(s) for s in steps]})
    else:
        click.echo(f"{unit} runs as it did before, and serves")


def _restore(
    target: Target, host: Host, steps: Sequence[Step], interrupts: Interrupts, headers: dict[str, str], engine: str
) -> None:
    from leadline.build import look_at
    from leadline.promotion import take_back

    live = look_at(target, host, headers=headers, engine=engine)
    deployer = live.deployer(interrupts.shield)
    service = target.service
    assert service is not None
    take_back(deployer, service, steps, "")
