"""Settings to command lines and back: the words of llama-server for the canonical knobs."""

from __future__ import annotations

from leadline.dialect.commandline import CommandLine
from leadline.dialect.options import plain
from leadline.dialect.values import number_or_text, variable, whole
from leadline.engines.llamacpp.flags import BY_ENV, OPTIONS
from leadline.engines.llamacpp.methods import DEPTH_FLAGS, METHODS
from leadline.engines.llamacpp.reading import HOST, PORT, grammar, read
from leadline.engines.llamacpp.speculation import DRAFT_HF, DRAFT_MODEL, SPEC_DEFAULT, SPEC_TYPE, in_force, put_in_force
from leadline.engines.llamacpp.values import canonical, check, kv_pair
from leadline.errors import InputError
from leadline.launch import LaunchSpec
from leadline.space import Knob, Setting, Value

PARALLEL, CACHE_K, CACHE_V = "--parallel", "--cache-type-k", "--cache-type-v"
METRICS, SLOTS = "--metrics", "--slots"

_BY_KNOB = {
    **{flag: "depth" for flag in DEPTH_FLAGS},
    SPEC_TYPE: "spec_method",
    SPEC_DEFAULT: "spec_method",
    DRAFT_MODEL: "draft_model",
    DRAFT_HF: "draft_model",
    PARALLEL: "max_running",
    CACHE_K: "kv_dtype",
    CACHE_V: "kv_dtype",
}
_KEPT = {
    HOST: "it belongs to the service, not to a setting",
    PORT: "it belongs to the service, not to a setting",
    METRICS: "Leadline reads its counters from there",
    SLOTS: "Leadline sees there whether speculation is on",
    "--api-key": "it is a secret: give it under [service] api_key",
    "--hf-token": "it is a secret, and settings are written down",
}
_PARTNERS = tuple(flag for m in METHODS.values() for flag in (m.lookup_flag, m.least_flag) if flag)
_ONCE = ((SPEC_TYPE, SPEC_DEFAULT), *((name,) for name in (*_BY_KNOB, *_PARTNERS, HOST, PORT, SLOTS, METRICS)))
"""What we write: each is left once."""


def knobs() -> tuple[Knob, ...]:
    return (
        Knob(
            name="depth",
            values=(),
            flag=" | ".join(DEPTH_FLAGS),
            unit="tok",
            doc="most tokens drafted a round; the flag is that of the method; 0 = speculation off",
        ),
        Knob(
            name="spec_method", values=(), flag=SPEC_TYPE, doc=f"one of {', '.join(METHODS)}, or a comma list of them"
        ),
        Knob(name="draft_model", values=(), flag=DRAFT_MODEL, doc="a GGUF file, for the draft-* methods"),
        Knob(name="max_running", values=(), flag=PARALLEL, unit="requests", doc="slots: requests decoded at once"),
        Knob(
            name="kv_dtype",
            values=(),
            flag=f"{CACHE_K} {CACHE_V}",
            changes_output=True,
            doc="type of K and V (q8_0), or one for each (q8_0/f16)",
        ),
    )


def parse(launch: LaunchSpec, build: int | None) -> Setting:
    """The canonical knobs in force. `max_running` and `kv_dtype` only when the launch gives them."""
    return _parse(read(launch, build), build)


def _parse(line: CommandLine, build: int | None) -> Setting:
    depth, method = in_force(line, build)
    values: dict[str, Value] = {"depth": depth}
    if method is not None:
        values["spec_method"] = method
    if draft := line.value(DRAFT_MODEL):
        values["draft_model"] = draft
    slots = whole(PARALLEL, line.value(PARALLEL))
    if slots is not None and slots > 0:  # negative: the server chooses
        values["max_running"] = slots
    k, v = line.value(CACHE_K), line.value(CACHE_V)
    if k is not None or v is not None:
        values["kv_dtype"] = f"{k or 'f16'}/{v or 'f16'}"
    return canonical(Setting.of(values))


def render(base: LaunchSpec, setting: Setting, build: int | None) -> LaunchSpec:
    check(setting, tuple(k.name for k in knobs()))
    for name in setting.names():
        _refuse_owned(name, build)
    line = read(base, build)
    now = _parse(line, build)
    full = canonical(now.merged(canonical(setting)))
    for names in _ONCE:
        line = line.tidy(*names)
    for name, value in full:
        if name.startswith("flag:"):
            line = _put_flag(line, name, value)
    line = put_in_force(line, now, full)
    if full.get("max_running") != now.get("max_running"):
        line = line.set(PARALLEL, str(full["max_running"]))
    if full.get("kv_dtype") != now.get("kv_dtype"):
        k, v = kv_pair(str(full["kv_dtype"]))
        line = line.set(CACHE_K, k).set(CACHE_V, v)
    if line.last(METRICS) is None:
        line = line.put(METRICS, METRICS)
    line = line.put(SLOTS, SLOTS)
    for name, value in full:
        if name.startswith("env:"):
            line = _put_env(line, name, value)
    return line.written()


def value_of(launch: LaunchSpec, name: str, build: int | None) -> Value | None:
    """What a command line has in force for any knob, `flag:--NAME` and `env:NAME` included; None = not given.

    Flags: numbers as numbers, a bare flag as true (false when it is switched off by its opposite), else text. A
    variable is always text.
    """
    line = read(launch, build)
    if name.startswith("env:"):
        return line.env.get(name.removeprefix("env:"))
    if not name.startswith("flag:"):
        return _parse(line, build).get(name)
    spelling = plain(name.removeprefix("flag:"))
    option = OPTIONS.get(spelling)
    item = line.last(option.name if option else spelling)
    if item is not None and item.value is None and not (option and option.values):
        return option is None or (plain(item.words[0]) in option.off) == (spelling in option.off)
    if option is None:
        return None if item is None else number_or_text(str(item.value))
    text = line.value(option.name) if option.values == 1 else None
    return None if text is None else number_or_text(text)


def _put_flag(line: CommandLine, name: str, value: Value) -> CommandLine:
    spelling = plain(name.removeprefix("flag:"))
    option = OPTIONS.get(spelling)
    owner = option.name if option else spelling
    if value is False:
        return line.drop(lambda other: other == owner)
    if option and option.values > 1:
        raise InputError(f"{name} takes {option.values} values, which a knob cannot hold")
    if option and option.values == (value is True):
        raise InputError(f"{name} is {'followed by a value' if option.values else 'true or false'}, not {value!r}")
    words = (spelling,) if value is True else (spelling, str(value))
    return line.put(owner, *words)


def _put_env(line: CommandLine, name: str, value: Value) -> CommandLine:
    return line.assign(*variable(name, value))


def _refuse_owned(name: str, build: int | None) -> None:
    """For `flag:` and `env:` names of what belongs to a knob, to the service, or to us, and of what is not there."""
    kind, _, word = name.partition(":")
    if kind not in ("flag", "env"):
        return
    spelling = plain(word)
    option = (OPTIONS if kind == "flag" else BY_ENV).get(spelling)
    owner = option.name if option else spelling
    grammar(build).refuse(owner)
    if owner in _BY_KNOB:
        raise InputError(f"{name} is the knob {_BY_KNOB[owner]}: tune it under that name")
    if owner in _KEPT:
        raise InputError(f"{name} cannot be tuned: {_KEPT[owner]}")
