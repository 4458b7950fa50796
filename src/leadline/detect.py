"""What the host can tell of a launch before it is made: the server's version, its files, the models, the device.

Asks through the Host and changes nothing. What cannot be found is None; only a file that the launch itself names and
that is not there is an error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

import msgspec

from leadline.errors import HostError, InputError
from leadline.evidence import Device, Ground, Model, Seen
from leadline.launch import LaunchFile, LaunchSpec
from leadline.ports import Engine, Host

_SAID = re.compile(r"\bversion\W+(\S.*)", re.IGNORECASE)
_VERSION = re.compile(r"v?\d+\.\d[\w.+!-]*")
_GPU_QUERY = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
_HUB = "~/.cache/huggingface/hub"
_ASK_S = 30.0


def version(engine: Engine, host: Host, launch: LaunchSpec) -> str | None:
    """The version of the server that the launch would start, asked of its own program."""
    argv = engine.version_argv(launch)
    if argv is None:
        return None
    try:
        done = host.run(argv, timeout_s=_ASK_S)
    except (HostError, OSError):
        return None
    if done.code != 0:
        return None
    lines = [line.strip() for line in done.stdout.decode(errors="replace").splitlines() if line.strip()]
    plain = next((line for line in reversed(lines) if _VERSION.fullmatch(line)), None)
    said = _SAID.search("\n".join([*lines, done.stderr.decode(errors="replace")]))
    return plain or (said[1].strip() if said else None)


def with_files(engine: Engine, host: Host, launch: LaunchSpec) -> LaunchSpec:
    """The launch with the content of the configuration files that it names. Raises InputError when one is missing."""
    files: list[LaunchFile] = []
    for path in engine.files(launch):
        at = _absolute(path, launch.cwd)
        content = host.read(at)
        if content is None:
            raise InputError(f"the launch names the configuration file {path}, and there is none at {at}")
        try:
            files.append(LaunchFile(path, content.decode()))
        except UnicodeDecodeError as error:
            raise InputError(f"{at} is not UTF-8 at byte {error.start}: save it as UTF-8") from error
    return msgspec.structs.replace(launch, files=tuple(files))


def ground(
    engine: Engine,
    host: Host,
    launch: LaunchSpec,
    *,
    model_config: str | None,
    draft_config: str | None,
    device_bytes: int | None,
    seen: Sequence[Seen] = (),
) -> Ground:
    """What a memory law can be told. `model_config`, `draft_config` = paths given by the operator."""
    draft = engine.parse(launch).get("draft_model")
    device = _device(host)
    if device_bytes is not None:
        device = Device(name=device.name if device else "given", total_bytes=device_bytes)
    return Ground(
        model=_model(host, launch, engine.model(launch), model_config),
        draft=_model(host, launch, draft if isinstance(draft, str) else None, draft_config),
        device=device,
        seen=tuple(seen),
    )


def _model(host: Host, launch: LaunchSpec, name: str | None, given: str | None) -> Model | None:
    """By its config.json: the one given, the one in a local folder, or the one in the hub's cache."""
    if given is not None:
        content = host.read(given)
        if content is None:
            raise InputError(f"there is no {given}, which [service] names as a model's config.json")
        return _read(name or given, content, given)
    if name is None:
        return None
    for path in (f"{_absolute(name, launch.cwd)}/config.json", *_cached(host, launch, name)):
        content = host.read(path)
        if content is not None:
            return _read(name, content, path)
    return None


def _read(name: str, content: bytes, path: str) -> Model:
    try:
        return Model(name=name, fields=msgspec.json.decode(content, type=dict[str, object]))
    except msgspec.DecodeError as error:
        raise InputError(f"{path} is no JSON object: {error}") from error


def _cached(host: Host, launch: LaunchSpec, name: str) -> list[str]:
    """Where the hub's cache on the host keeps the config.json of a model that is named ORGANISATION/NAME."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        return []
    env = dict(launch.env)
    root = env.get("HF_HUB_CACHE") or (f"{env['HF_HOME']}/hub" if "HF_HOME" in env else _HUB)
    folder = f"models--{name.replace('/', '--')}/snapshots"
    script = 'cd -- "${1/#\\~/$HOME}/$2" 2>/dev/null && ls -1d -- "$PWD"/*/config.json'
    try:
        done = host.run(("bash", "-c", script, "look", root, folder), timeout_s=_ASK_S)
    except (HostError, OSError):
        return []
    return done.stdout.decode(errors="replace").split("\n")[:-1] if done.code == 0 else []


def _device(host: Host) -> Device | None:
    """The first of the accelerators that nvidia-smi lists."""
    try:
        done = host.run(_GPU_QUERY, timeout_s=_ASK_S)
    except (HostError, OSError):
        return None
    rows = [line.rsplit(",", 1) for line in done.stdout.decode(errors="replace").splitlines() if "," in line]
    if done.code != 0 or not rows or not rows[0][1].strip().isdigit():
        return None
    alike = sum(1 for row in rows if row == rows[0])
    return Device(name=rows[0][0].strip(), total_bytes=int(rows[0][1]) << 20, count=alike)


def _absolute(path: str, cwd: str | None) -> str:
    return str(PurePosixPath(cwd or ".") / path)
