"""`leadline init`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from leadline.cli.common import emit, json_option, words_of

if TYPE_CHECKING:
    from leadline.launch import LaunchSpec
    from leadline.ports import Engine
    from leadline.space import Setting

DEPTHS = (0, 2, 4, 6, 8)


@click.command("init", epilog="Example: leadline init --folder ./my-campaign -- llama-server -m model.gguf --port 8080")
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.option("--folder", default=".", help="Where campaign.toml goes. Default: here.")
@click.option("--engine", help="Which engine the command starts; found from its program when left out.")
@json_option
def command(argv: tuple[str, ...], folder: str, engine: str | None, as_json: bool) -> None:
    """Write a commented campaign.toml from the command line that starts your server today.

    Call it where you start the server: the command's relative paths are taken from here. An existing campaign.toml is
    never overwritten.
    """
    from leadline import detect
    from leadline.build import engine_of, names, plugin, refuse_container
    from leadline.config import parse_campaign, template
    from leadline.errors import RefusedError
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
    if path.exists():
        raise RefusedError(f"{path} exists already and is left as it is; name another folder, or remove it first")
    depths = sorted({*DEPTHS, today.depth})
    keep = today.only(["spec_method", "draft_model"])
    if "spec_method" not in keep:
        keep = keep.of({**dict(keep), "spec_method": dialect.drafts_alone})
    text = template(list(argv), today.only(["depth"]), name, dialect.address(launch)[1], depths, keep, cwd=os.getcwd())
    parse_campaign(text, str(path), names())  # a command line may hold what must not be written, like a secret
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
    reasons = _refused(dialect, launch, keep, depths)
    if as_json:
        emit({"written": str(path), "engine": name, "today": today, "refused": reasons})
        return
    click.echo(f"written: {path} (today: {today}). Read it, then: leadline plan {path.parent}")
    for reason, settings in reasons.items():
        click.echo(f"refused as it stands: {', '.join(settings)}: {reason}", err=True)


def _refused(engine: Engine, launch: LaunchSpec, keep: Setting, depths: Sequence[int]) -> dict[str, list[str]]:
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
