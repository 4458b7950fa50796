"""`leadline parse`."""

from __future__ import annotations

import click

from leadline.cli.common import emit, json_option, words_of


@click.command(
    "parse", epilog="Example: leadline parse --engine vllm --set 'depth=3' -- vllm serve my-model --port 8000"
)
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.option("--engine", help="Which engine the command starts; found from its program when left out.")
@click.option("--engine-version", help="The server's version; default: its program is asked.")
@click.option("--set", "setting", help="Also show the command with this setting in force, like 'depth=4 topk=1'.")
@json_option
def command(
    argv: tuple[str, ...], engine: str | None, engine_version: str | None, setting: str | None, as_json: bool
) -> None:
    """Say which setting a command line has in force, where the server will listen, and what else it names.

    Starts nothing but the program's own question for its version, and only when --engine-version is left out.
    """
    import os

    from leadline import detect
    from leadline.build import engine_of, plugin
    from leadline.errors import InputError
    from leadline.launch import LaunchSpec, masked
    from leadline.outlook import difference, rewritten
    from leadline.ports import Engine
    from leadline.space import Setting

    argv = words_of(argv)
    host = plugin("hosts", "local", "host")()
    launch = LaunchSpec(argv=argv, cwd=os.getcwd(), scratch=os.path.join(os.getcwd(), "leadline-launch"))
    dialect: Engine = plugin("engines", engine or engine_of(argv), "engine")
    version = engine_version or detect.version(dialect, host, launch)
    dialect = dialect.at(version)
    launch = detect.with_files(dialect, host, launch)
    now = dialect.parse(launch)
    name, port = dialect.address(launch)
    said: dict[str, object] = {
        "engine": dialect.name,
        "version": version,
        "setting": now,
        "flags": {k.name: k.flag for k in dialect.knobs()},
        "model": dialect.model(launch),
        "address": f"{name}:{port}",
        "files": [f.path for f in launch.files],
    }
    changed: dict[str, tuple[str, ...]] = {}
    if setting is not None:
        try:
            wanted = Setting.parse(setting)
        except ValueError as error:
            raise InputError(f"--set {setting!r}: {error}") from error
        rendered = dialect.render(launch, wanted)
        removed, added = difference(launch, rendered)
        changed = rewritten(launch, rendered)
        said |= {"command": str(masked(rendered)), "removed": removed, "added": added}
        said |= {"writes": {f.path: f.content for f in masked(rendered).ours}}
    if as_json:
        emit(said)
        return
    for label in ("engine", "version", "setting", "model", "address", "command"):
        if said.get(label) is not None:
            click.echo(f"{label:<9} {said[label]}")
    for label in ("files", "removed", "added", "writes"):
        for item in _listed(said.get(label)):
            click.echo(f"{label:<9} {item}")
    for change in (line for changes in changed.values() for line in changes):
        click.echo(f"{'':<9} {change}")


def _listed(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple | dict) else []
