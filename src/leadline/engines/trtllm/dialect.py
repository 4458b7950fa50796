"""Settings to launches and back: the words and the YAML keys of trtllm-serve for the canonical knobs."""

from __future__ import annotations

from leadline.dialect.commandline import CommandLine, is_flag
from leadline.dialect.opaque import is_opaque, known
from leadline.dialect.options import plain
from leadline.dialect.question import ask_package
from leadline.dialect.values import number_or_text, variable
from leadline.engines.trtllm import speculation
from leadline.engines.trtllm.options import (
    BACKEND,
    BATCH,
    CONFIG,
    FRACTION,
    HOST,
    KV_DTYPE,
    OPTIONS,
    OVERRIDE,
    PORT,
    ROLES,
    SERVER,
    own_spelling,
    read,
    starts,
)
from leadline.engines.trtllm.site import GRAPHS, METRICS, PLACES, Site, site_of
from leadline.engines.trtllm.values import canonical, check, whole
from leadline.errors import InputError
from leadline.launch import LaunchSpec
from leadline.space import Setting, Value

DEFAULT_PORT = 8000
DEFAULT_HOST = "localhost"
FAKE = "TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS"

_BY_KNOB = {FRACTION: "memory_fraction", BATCH: "max_running", KV_DTYPE: "kv_dtype"}
_KEPT = {
    HOST: "it belongs to the service, not to a setting",
    PORT: "it belongs to the service, not to a setting",
    CONFIG: "Leadline writes a changed copy of that file for each setting",
    OVERRIDE: "it overrules the YAML file that Leadline writes",
    BACKEND: "another backend is another server",
    **dict.fromkeys(ROLES, "it makes the server a part of a disaggregated service"),
    FAKE: "it makes acceptance up, so that nothing measured would be real",
}


def parse(launch: LaunchSpec, version: str | None) -> Setting:
    """The canonical knobs in force; those without a default that is the same everywhere only when the launch says it.

    Raises InputError when the depth is not fixed, or the YAML file was not read.
    """
    return _parse(site_of(launch, version))


def _parse(site: Site) -> Setting:
    values = speculation.in_force(site)
    for knob in PLACES:
        if (value := site.value(knob)) is not None:
            values[knob] = value
    if (graphs := _graphs(site)) is not None:
        values["graph_max_batch"] = graphs
    return canonical(Setting.of(values))


def render(base: LaunchSpec, setting: Setting, version: str | None) -> LaunchSpec:
    check(setting)
    for name in setting.names():
        _refuse_owned(name)
    site = site_of(base, version)
    now = _parse(site)
    full = canonical(now.merged(setting))
    speculation.allowed(site, setting, full)
    site = speculation.put_in_force(site, now, full)
    for knob in PLACES:
        if full.get(knob) != now.get(knob):
            site = site.set(knob, full[knob])
    if full.get("graph_max_batch") != now.get("graph_max_batch"):
        site = _put_graphs(site, int(full["graph_max_batch"]))
    # Without it there is no /prometheus/metrics; every arm has it, so that what it costs tells none apart.
    site = site.putting((METRICS,), True)
    return _put_others(site.written(), full)


def value_of(launch: LaunchSpec, name: str, version: str | None) -> Value | None:
    """What a launch has in force for any knob, `flag:--NAME` and `env:NAME` included; None = it does not say.

    Flags: numbers as numbers, a bare flag as true, else text. A variable is always text.
    """
    if not name.startswith(("flag:", "env:")):
        return parse(launch, version).get(name)
    line = read(launch)
    if name.startswith("env:"):
        return line.env.get(name.removeprefix("env:"))
    spelling = plain(name.removeprefix("flag:"))
    option = OPTIONS.get(spelling)
    item = line.last(option.name if option else spelling)
    if item is None:
        return None
    if item.value is None and not (option and option.values):
        return True
    text = line.value(option.name) if option else item.value
    return None if text is None else number_or_text(known(text))


def files(launch: LaunchSpec) -> tuple[str, ...]:
    path = read(launch).value(CONFIG)
    return () if path is None else (path,)


def model(launch: LaunchSpec) -> str | None:
    """MODEL, the one word that belongs to no option."""
    word = next((i.words[0] for i in read(launch).items if i.name is None and not is_flag(i.words[0])), None)
    return None if word is None or is_opaque(word) else word


def address(launch: LaunchSpec) -> tuple[str, int]:
    """As the launch says it: a wildcard host stays a wildcard."""
    line = read(launch)
    port = line.value(PORT)
    return line.value(HOST) or DEFAULT_HOST, DEFAULT_PORT if port is None else whole(PORT, port)


def move(launch: LaunchSpec, port: int) -> LaunchSpec:
    line = read(launch).tidy(PORT)
    return line.set(PORT, str(port)).written()


def version_argv(launch: LaunchSpec) -> tuple[str, ...] | None:
    """Asks the package's metadata: trtllm-serve has no such option, and importing the package starts its libraries."""
    asked = "from importlib.metadata import version; print(version('tensorrt_llm'))"
    otherwise = ("python3", "-c", asked)
    return ask_package(launch, SERVER, starts, "tensorrt_llm", programs=(SERVER,), otherwise=otherwise)


def _graphs(site: Site) -> int | None:
    """The largest captured batch, where the file says one; 0 when it switches graphs off (`CudaGraphConfig`)."""
    where = f"{site.name}: {GRAPHS}"
    if site.holds((GRAPHS,)) and site.at((GRAPHS,)) is None:
        return 0
    sizes, most = site.at((GRAPHS, "batch_sizes")), site.at((GRAPHS, "max_batch_size"))
    largest = None if most in (None, 0) else whole(f"{where}.max_batch_size", most)
    if not sizes:
        return largest
    if not isinstance(sizes, list):
        raise InputError(f"{where}.batch_sizes must be a list")
    listed = max(whole(f"{where}.batch_sizes", size) for size in sizes)
    if largest not in (None, listed):
        raise InputError(f"{where}: max_batch_size must equal max(batch_sizes), {listed}")
    return listed


def _put_graphs(site: Site, largest: int) -> Site:
    if largest == 0:
        return site.putting((GRAPHS,), None)
    sizes = site.at((GRAPHS, "batch_sizes"))
    if not sizes:
        return site.putting((GRAPHS, "max_batch_size"), largest)
    kept = sorted({whole("batch_sizes", s) for s in sizes if whole("batch_sizes", s) < largest} | {largest})
    site = site.putting((GRAPHS, "batch_sizes"), kept)
    return site.putting((GRAPHS, "max_batch_size"), largest) if site.at((GRAPHS, "max_batch_size")) else site


def _put_others(launch: LaunchSpec, full: Setting) -> LaunchSpec:
    """The setting's `flag:` and `env:` values."""
    others = [(n, v) for n, v in full if n.startswith(("flag:", "env:"))]
    if not others:
        return launch
    line = read(launch)
    for name, value in others:
        line = _put_flag(line, name, value) if name.startswith("flag:") else _put_env(line, name, value)
    return line.written()


def _put_flag(line: CommandLine, name: str, value: Value) -> CommandLine:
    word = name.removeprefix("flag:")
    option = OPTIONS.get(plain(word))
    owner = option.name if option else plain(word)
    if value is False:
        return line.drop(lambda other: other == owner)
    if option and option.values == (value is True):
        raise InputError(f"{name} is {'followed by a value' if option.values else 'true or false'}, not {value!r}")
    spelling = own_spelling(word) if option else word
    return line.put(owner, *((spelling,) if value is True else (spelling, str(value))))


def _put_env(line: CommandLine, name: str, value: Value) -> CommandLine:
    return line.assign(*variable(name, value))


def _refuse_owned(name: str) -> None:
    """For `flag:` and `env:` names of what belongs to a knob, to the service, or to us."""
    kind, _, word = name.partition(":")
    if kind not in ("flag", "env"):
        return
    option = OPTIONS.get(plain(word)) if kind == "flag" else None
    owner = option.name if option else word
    if owner in _BY_KNOB:
        raise InputError(f"{name} is the knob {_BY_KNOB[owner]}: tune it under that name")
    if owner in _KEPT:
        raise InputError(f"{name} cannot be tuned: {_KEPT[owner]}")
