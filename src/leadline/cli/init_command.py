"""`leadline init`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from leadline.cli.common import emit, json_option, service_options, words_of

if TYPE_CHECKING:
    from leadline.launch import LaunchSpec
    from leadline.ports import Engine
    from leadline.space import Setting

DEPTHS = (0, 2, 4, 6, 8)


@click.command("init", epilog="Example: leadline init --folder ./my-campaign -- llama-server -m model.gguf --port 8080")
@click.argument("argv", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
@service_options
@click.option(
    "--compose-file", "compose_files", multiple=True, help="A compose file, instead of a command; repeatable."
)
@click.option("--service", "compose_service", help="The service in the compose files.")
@click.option("--folder", default=".", help="Where campaign.toml goes. Default: here.")
@click.option("--engine", help="Which engine the command starts; found from its program when left out.")
@json_option
def command(
    argv: tuple[str, ...],
    unit: str | None,
    host: str,
    ssh_config: str,
    sudo: bool,
    compose_files: tuple[str, ...],
    compose_service: str | None,
    folder: str,
    engine: str | None,
    as_json: bool,
) -> None:
    """Write a commented campaign.toml from the command line that starts your server today, or from a live service.

    With --unit it looks at a systemd unit, here or over ssh, and changes nothing there. Else call it where you start
    the server: the command's relative paths are taken from here. An existing campaign.toml is never overwritten.
    """
    from leadline.errors import InputError
    from leadline.ports import Site

    if sum((bool(argv), unit is not None, bool(compose_files))) != 1:
        raise InputError("say one of: -- COMMAND..., --unit NAME, --compose-file FILE --service NAME")
    if unit is None and not compose_files:
        _from_command(argv, folder, engine, as_json)
        return
    from leadline.cli.init_service import init_service

    site = Site(unit=unit or "", sudo=sudo, compose_files=compose_files, compose_service=compose_service or "")
    target = "systemd" if unit is not None else "compose"
    init_service(site, target, host, ssh_config, folder=folder, engine=engine or "", as_json=as_json)


def _from_command(argv: tuple[str, ...], folder: str, engine: str | None, as_json: bool) -> None:
    from leadline import detect
    from leadline.build import engine_of, names, plugin, refuse_container
    from leadline.config import parse_campaign, template
    from leadline.launch import LaunchSpec

    argv = words_of(argv)
    name = engine or engine_of(argv)
    launch = LaunchSpec(argv=tuple(argv), cwd=os.getcwd(), scratch=str(Path(folder).resolve() / "launch"))
    refuse_container(launch)
    host = plugin("hosts", "local", "host")()
    dialect: Engine = plugin("engines", name, "engine")
    dialect = dialect.at(detect.version(dialect, host, launch))
    launch = detect.with_files(dialect, host, launch)
    today = dialect.parse(launch)
    dialect.render(launch, today)
    path = Path(folder) / "campaign.toml"
    depths, keep = depths_of(today), kept_of(dialect, today)
    text = template(list(argv), today.only(["depth"]), name, dialect.address(launch)[1], depths, keep, cwd=os.getcwd())
    parse_campaign(text, str(path), names())  # a command line may hold what must not be written, like a secret
    write(path, text)
    reasons = refused(dialect, launch, keep, depths)
    if as_json:
        emit({"written": str(path), "engine": name, "today": today, "refused": reasons})
        return
    click.echo(f"written: {path} (today: {today}). Read it, then: leadline plan {path.parent}")
    for reason, settings in reasons.items():
        click.echo(f"refused as it stands: {', '.join(settings)}: {reason}", err=True)


def depths_of(today: Setting) -> list[int]:
    """Today's and a few around."""
    return sorted({*DEPTHS, today.depth})


def kept_of(engine: Engine, today: Setting) -> Setting:
    """The method of today, or the one that needs nothing more."""
    keep = today.only(["spec_method", "draft_model"])
    return keep if "spec_method" in keep else keep.of({**dict(keep), "spec_method": engine.drafts_alone})


def write(path: Path, text: str) -> None:
    """Raises RefusedError when there is one already."""
    from leadline.errors import RefusedError

    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise RefusedError(
            f"{path} exists already and is left as it is; name another folder, or remove it first"
        ) from None


def refused(engine: Engine, launch: LaunchSpec, keep: Setting, depths: Sequence[int]) -> dict[str, list[str]]:
    """Reasons why depths would not be launched as the campaign was written, with these depths."""
    from leadline.errors import InputError
    from leadline.space import Setting

    out: dict[str, list[str]] = {}
    for setting in (Setting.of(depth=depth) for depth in depths):
        try:
            engine.render(launch, keep.merged(setting))
        except InputError as error:
            out.setdefault(str(error), []).append(str(setting))
    return out
