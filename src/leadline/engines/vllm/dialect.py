"""Settings to command lines and back: vLLM's words for the canonical knobs."""

from __future__ import annotations

import json
import re

from leadline.dialect.options import MANY, plain
from leadline.dialect.values import number_or_text, variable
from leadline.engines.vllm import graphs, nested, rules, speculation
from leadline.engines.vllm.flags import JSON_HEADS, OPTIONS
from leadline.engines.vllm.methods import METHODS
from leadline.engines.vllm.reading import CONFIG, MODEL, Options, read
from leadline.engines.vllm.rules import MAX_SEQS, UTILIZATION
from leadline.engines.vllm.speculation import REQUEST_METRICS, SCHEDULE, SHORTCUTS
from leadline.engines.vllm.values import SPECULATIVE, canonical, check, owner, whole
from leadline.engines.vllm.versions import REQUEST_METRICS as REQUEST_METRICS_SINCE
from leadline.engines.vllm.versions import Release, has
from leadline.errors import InputError
from leadline.launch import LaunchSpec
from leadline.space import Knob, Setting, Value

DEFAULT_PORT = 8000
EVERYWHERE = "0.0.0.0"
HOST, PORT, KV_DTYPE, NO_STATS = "--host", "--port", "--kv-cache-dtype", "--disable-log-stats"

_BY_KNOB = {
    SPECULATIVE: "depth, spec_method or draft_model",
    **{
        f"{SPECULATIVE}.{key.replace('_', '-')}": knob
        for key, knob in (("num_speculative_tokens", "depth"), ("method", "spec_method"), ("model", "draft_model"))
    },
    **dict(zip(SHORTCUTS.values(), ("spec_method", "draft_model", "depth"), strict=True)),
    UTILIZATION: "memory_fraction",
    MAX_SEQS: "max_running",
    graphs.SIZES: "graph_max_batch",
    graphs.LIMIT: "graph_max_batch",
    graphs.OLD_SIZES: "graph_max_batch",
    f"{graphs.COMPILATION}.cudagraph-capture-sizes": "graph_max_batch",
    f"{graphs.COMPILATION}.max-cudagraph-capture-size": "graph_max_batch",
    KV_DTYPE: "kv_dtype",
}
_KEPT = {
    **dict.fromkeys((HOST, PORT, MODEL, CONFIG, "--uds", "--served-model-name"), "it belongs to the service"),
    **dict.fromkeys(("--nnodes", "--node-rank", "--headless", "--grpc"), "Leadline tunes one server on one machine"),
    **dict.fromkeys((NO_STATS, REQUEST_METRICS), "Leadline reads the server's counters"),
    "--api-key": "it is a secret: give it under [service] api_key",
    "--hf-token": "it is a secret, and settings are written down",
    **dict.fromkeys(("VLLM_API_KEY", "HF_TOKEN"), "it is a secret, and settings are written down"),
}
_ONCE = (
    *SHORTCUTS.values(),
    SPECULATIVE,
    UTILIZATION,
    MAX_SEQS,
    graphs.SIZES,
    graphs.LIMIT,
    graphs.OLD_SIZES,
    KV_DTYPE,
)
"""What we write: each is left once."""


def knobs() -> tuple[Knob, ...]:
    return (
        Knob(
            name="depth",
            values=(),
            flag=f"{SPECULATIVE} num_speculative_tokens",
            unit="tok",
            doc="draft tokens a round; 0 = no speculative configuration",
        ),
        Knob(name="spec_method", values=(), flag=f"{SPECULATIVE} method", doc=f"one of {', '.join(METHODS)}"),
        Knob(name="draft_model", values=(), flag=f"{SPECULATIVE} model", doc="for methods that draft with a model"),
        Knob(
            name="memory_fraction",
            values=(),
            flag=UTILIZATION,
            doc="of the device's whole memory, for all that vLLM keeps",
        ),
        Knob(name="max_running", values=(), flag=MAX_SEQS, unit="requests", doc="requests decoded at once, at most"),
        Knob(
            name="graph_max_batch",
            values=(),
            flag=graphs.LIMIT,
            unit="requests",
            doc="requests in the largest captured decode step; the flag counts tokens: requests * (1 + depth)",
        ),
        Knob(name="kv_dtype", values=(), flag=KV_DTYPE, changes_output=True, doc="auto, fp8, ..."),
    )


def parse(launch: LaunchSpec) -> Setting:
    """The canonical knobs in force. Depth always; the others only where the launch gives them."""
    return _parse(read(launch))


def _parse(options: Options) -> Setting:
    depth, method, draft = speculation.in_force(options)
    given: dict[str, Value | None] = {
        "depth": depth,
        "spec_method": method,
        "draft_model": draft,
        "memory_fraction": _fraction(options.text(UTILIZATION)),
        "max_running": whole(MAX_SEQS, options.text(MAX_SEQS)),
        "graph_max_batch": graphs.in_force(options, depth),
        "kv_dtype": options.text(KV_DTYPE),
    }
    return canonical(Setting.of({name: value for name, value in given.items() if value is not None}))


def render(base: LaunchSpec, setting: Setting, release: Release | None) -> LaunchSpec:
    check(setting, tuple(k.name for k in knobs()))
    for name in setting.names():
        _refuse_owned(name)
    options = read(base)
    if setting.get(f"flag:{SPECULATIVE}.{SCHEDULE}") is False:
        options = speculation.without_schedule(options)
    now = _parse(options)
    full = canonical(now.merged(canonical(setting)))
    for name in _ONCE:
        options = options.tidy(name)
    options = speculation.put_in_force(options, now, full, release)
    options = _put_numbers(options, now, full, release)
    for name, value in full:
        if name.startswith("flag:"):
            options = _put_flag(options, name, value)
    options = _countable(options, full, release)
    for name, value in full:
        if name.startswith("env:"):
            options = _put_env(options, name, value)
    rules.check(options, full, setting, speculation.config(options))
    return options.written()


def value_of(launch: LaunchSpec, name: str) -> Value | None:
    """What a launch has in force for any knob, `flag:--NAME`, `flag:--NAME.key` and `env:NAME` too; None = not given.

    Flags: numbers as numbers, a bare flag as true (false when it is switched off by its opposite), else text; of
    several values all, with blanks between. A variable is always text.
    """
    options = read(launch)
    if name.startswith("env:"):
        return options.line.env.get(name.removeprefix("env:"))
    if not name.startswith("flag:"):
        return _parse(options).get(name)
    flag = owner(name)
    head, _, path = flag.partition(".")
    if path and head in JSON_HEADS:
        return _json_value(nested.found(nested.given(options, head), tuple(path.replace("-", "_").split("."))))
    known = OPTIONS.get(flag)
    item = options.line.last(flag)
    bare = known.values == 0 if known else item is not None and item.value is None
    if bare:
        on = options.on(flag)
        spelling = plain(name.removeprefix("flag:"))
        return None if on is None else on != bool(known and spelling in known.off)
    words = options.words(flag)
    return number_or_text(" ".join(words)) if words else None


def address(launch: LaunchSpec) -> tuple[str, int]:
    """As the launch says it. Without --host vLLM listens on every interface."""
    options = read(launch)
    if uds := options.text("--uds"):
        raise InputError(f"the server listens on the socket file {uds}: give it {HOST} and {PORT} instead of --uds")
    port = whole(PORT, options.text(PORT))
    return options.text(HOST) or EVERYWHERE, DEFAULT_PORT if port is None else port


def move(launch: LaunchSpec, port: int) -> LaunchSpec:
    return read(launch).tidy(PORT).set(PORT, port).written()


def _put_numbers(options: Options, now: Setting, full: Setting, release: Release | None) -> Options:
    for knob, flag in (("memory_fraction", UTILIZATION), ("max_running", MAX_SEQS), ("kv_dtype", KV_DTYPE)):
        value = full.get(knob)
        if value is not None and value != now.get(knob):
            options = options.set(flag, value)
    pair = [(s.depth, s.integer("graph_max_batch")) for s in (now, full)]
    return graphs.put_in_force(options, pair[0], pair[1], release)


def _countable(options: Options, full: Setting, release: Release | None) -> Options:
    """Counters are on unless --disable-log-stats takes them away; each answer can tell its own from 0.32 on.

    vLLM does not start with the latter while speculation is off (`VllmConfig.__post_init__`).
    """
    if options.has(NO_STATS):
        options = options.drop(lambda name: name == NO_STATS)
    if (
        full.depth
        and has(release, REQUEST_METRICS_SINCE, unknown=False)
        and options.text(REQUEST_METRICS) in (None, "none")
    ):
        options = options.set(REQUEST_METRICS, "summary")
    return options


def _put_flag(options: Options, name: str, value: Value) -> Options:
    flag = owner(name)
    head, _, path = flag.partition(".")
    if path and head in JSON_HEADS:
        if flag == f"{SPECULATIVE}.{SCHEDULE.replace('_', '-')}" and value is False:
            return options
        return nested.put(options, head, path, value)
    known, spelling = OPTIONS.get(flag), plain(name.removeprefix("flag:"))
    if known and known.values != 0 and isinstance(value, bool) and value:
        raise InputError(f"{name} is followed by a value, and is not {value!r}")
    if known and known.values == 0 and not isinstance(value, bool):
        raise InputError(f"{name} is true or false, not {value!r}")
    if value is False:
        opposite = _opposite(known.spellings, known.off, spelling) if known and not known.values else None
        return options.drop(lambda other: other == flag) if opposite is None else options.put(flag, opposite)
    if known and known.values == MANY and options.words(flag) == tuple(str(value).split(" ")):
        return options
    return options.put(flag, spelling) if value is True else options.put(flag, spelling, str(value))


def _opposite(spellings: frozenset[str], off: frozenset[str], spelling: str) -> str | None:
    """The flag that switches off what a spelling switches on; None when there is none."""
    if not off:
        return None
    if spelling in off:
        return max((s for s in spellings - off if s.startswith("--")), key=len)
    return next(s for s in sorted(off) if s.startswith("--no-"))


def _put_env(options: Options, name: str, value: Value) -> Options:
    return Options(options.line.assign(*variable(name, value)), options.file, options.values)


def _refuse_owned(name: str) -> None:
    """For `flag:` and `env:` names of what belongs to a knob, to the service, or to us."""
    kind, _, word = name.partition(":")
    if kind not in ("flag", "env"):
        return
    option = owner(name) if kind == "flag" else word
    if option in _BY_KNOB:
        raise InputError(f"{name} is the knob {_BY_KNOB[option]}: tune it under that name")
    if option in _KEPT:
        raise InputError(f"{name} cannot be tuned: {_KEPT[option]}")


def _fraction(text: str | None) -> float | None:
    if text is None:
        return None
    if not re.fullmatch(r"\s*\d*\.?\d+(e-\d+)?\s*|\s*\d+\.\s*", text):
        raise InputError(f"{UTILIZATION} is followed by {text!r}, which is no share of the memory")
    return float(text)


def _json_value(value: object) -> Value | None:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return json.dumps(value)
