"""Settings to command lines and back: the words of SGLang for the canonical knobs."""

from __future__ import annotations

from leadline.dialect.opaque import known
from leadline.dialect.values import number_or_text, variable, whole
from leadline.engines.sglang.methods import (
    ALGORITHM,
    DFLASH_BLOCK,
    DRAFT_MODEL,
    DRAFT_TOKENS,
    DSPARK_BLOCK,
    METHODS,
    STEPS,
    TOPK,
    method_of,
)
from leadline.engines.sglang.programs import serves
from leadline.engines.sglang.rules import obey
from leadline.engines.sglang.speculation import ADAPTIVE, GROUP, in_force, put_in_force, silent_cap
from leadline.engines.sglang.values import canonical, check, check_tokens, fraction
from leadline.engines.sglang.versions import GRAPH_BATCH, GRAPH_BATCH_OLD, graph_batch_flag, refuse, refuse_early
from leadline.engines.sglang.words import CONFIG, Words, config_file, grammar, read_words
from leadline.errors import InputError
from leadline.launch import LaunchSpec
from leadline.space import Knob, Setting, Value

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 30000
HOST, PORT, METRICS, MODEL = "--host", "--port", "--enable-metrics", "--model-path"
MEMORY, RUNNING, KV_DTYPE = "--mem-fraction-static", "--max-running-requests", "--kv-cache-dtype"

_BY_KNOB = {
    STEPS: "depth",
    DFLASH_BLOCK: "depth",
    DSPARK_BLOCK: "depth",
    ALGORITHM: "spec_method",
    DRAFT_MODEL: "draft_model",
    TOPK: "topk",
    DRAFT_TOKENS: "draft_tokens",
    MEMORY: "memory_fraction",
    RUNNING: "max_running",
    GRAPH_BATCH: "graph_max_batch",
    GRAPH_BATCH_OLD: "graph_max_batch",
    KV_DTYPE: "kv_dtype",
}
_SECRET = "it is a secret, and settings are written down"
_KEPT = {
    HOST: "it belongs to the service, not to a setting",
    PORT: "it belongs to the service, not to a setting",
    MODEL: "another model is another service",
    METRICS: "Leadline reads its counters there",
    CONFIG: "it is the configuration itself",
    ADAPTIVE: "it changes the depth while the server runs",
    "--api-key": "it is a secret: give it under [service] api_key",
    "--admin-api-key": _SECRET,
    "--ssl-keyfile-password": _SECRET,
}
_ONCE = (*((flag,) for flag in (*GROUP, MEMORY, RUNNING, KV_DTYPE, HOST, PORT)), (GRAPH_BATCH, GRAPH_BATCH_OLD))

_GRAPH_LISTS = ("--cuda-graph-bs-decode", "--cuda-graph-bs")
_LISTS = " or ".join(_GRAPH_LISTS)

_FIXED_RESERVE_SINCE = 14
"""Up to 0.5.13 the default memory fraction leaves 2 GiB more to a draft model, 6 to STANDALONE's
(`_handle_gpu_memory_settings`)."""

_GRAPHS_FOLLOW_SINCE = 22
"""From 0.5.22 on the default of the largest graph is no more than the running requests that are asked for
(`memory_hook.py`)."""


def knobs(patch: int | None) -> tuple[Knob, ...]:
    def knob(name: str, flag: str, doc: str, unit: str = "", changes_output: bool = False) -> Knob:
        return Knob(name=name, values=(), flag=flag, doc=doc, unit=unit, changes_output=changes_output)

    graphs = f"{GRAPH_BATCH_OLD} | {GRAPH_BATCH}" if patch is None else graph_batch_flag(patch, None)
    return (
        knob(
            "depth",
            f"{STEPS} | {DRAFT_TOKENS}",
            "draft tokens in a chain a round; --speculative-num-draft-tokens less one with NGRAM, DFLASH, DSPARK, UNO; "
            "0 = speculation off",
            "tok",
        ),
        knob("spec_method", ALGORITHM, f"one of {', '.join(METHODS)}; NEXTN is EAGLE"),
        knob("draft_model", DRAFT_MODEL, "a folder or a name of the hub; some models bring their own"),
        knob("topk", TOPK, "branches at each step; 1 = a chain, the default"),
        knob(
            "draft_tokens",
            DRAFT_TOKENS,
            "tokens verified a round: depth + 1 with topk 1, else as given; 8 of a tree when nothing says how many",
            "tok",
        ),
        knob("memory_fraction", MEMORY, "share of device memory for weights and KV cache"),
        knob("max_running", RUNNING, "requests decoded at once; written in every arm", "requests"),
        knob("graph_max_batch", graphs, "largest batch that decodes as a captured graph", "requests"),
        knob("kv_dtype", KV_DTYPE, "type of the KV cache: auto, bf16, fp8_e4m3, ...", "", True),
    )


def parse(launch: LaunchSpec, patch: int | None) -> Setting:
    """The canonical knobs in force; those outside speculation only when the launch gives them, but for the cap of 48
    running requests that SGLang sets by itself under speculation."""
    return _parse(read_words(launch, patch))


def _parse(words: Words) -> Setting:
    values = in_force(words)
    memory = fraction(MEMORY, words.value(MEMORY))
    running = whole(RUNNING, words.value(RUNNING))
    graphs = whole(GRAPH_BATCH, words.value(GRAPH_BATCH, GRAPH_BATCH_OLD))
    found: dict[str, Value | None] = {
        "memory_fraction": memory,
        "max_running": silent_cap(words) if running is None else running,
        "graph_max_batch": graphs,
        "kv_dtype": words.value(KV_DTYPE),
    }
    return canonical(Setting.of({**values, **{name: v for name, v in found.items() if v is not None}}))


def render(base: LaunchSpec, setting: Setting, patch: int | None) -> LaunchSpec:
    check(setting, tuple(k.name for k in knobs(patch)))
    _check_names(setting, patch)
    words = read_words(base, patch)
    now = _parse(words)
    full = canonical(now.merged(setting))
    for names in _ONCE:
        words = words.tidy(*names)
    for name, value in full:
        if name.startswith("env:"):
            words = _put_env(words, name, value)
        elif name.startswith("flag:"):
            words = _put_flag(words, name, value)
    words = put_in_force(words, now, full)
    check_tokens(setting, now, full)
    _check_cap(full, patch)
    words = _put_rest(words, now, full)
    if not words.has(METRICS):
        words = words.put(METRICS, METRICS)
    obey(words, full)
    return words.written()


def _put_rest(words: Words, now: Setting, full: Setting) -> Words:
    if "max_running" in full:
        words = words.set(RUNNING, str(full["max_running"]))
    for name, flag in (("memory_fraction", MEMORY), ("kv_dtype", KV_DTYPE)):
        if full.get(name) != now.get(name):
            words = words.set(flag, str(full[name]))
    if full.get("graph_max_batch") != now.get("graph_max_batch"):
        words = _put_graph_batch(words, str(full["graph_max_batch"]))
    return words


def _put_graph_batch(words: Words, text: str) -> Words:
    if words.has(*_GRAPH_LISTS):
        raise InputError(f"the command lists the graphs' batch sizes, which win over graph_max_batch: remove {_LISTS}")
    present = words.last(GRAPH_BATCH, GRAPH_BATCH_OLD)
    flag = graph_batch_flag(words.patch, None if present is None else present.name)
    return words.put(flag, flag, text)


def _check_cap(full: Setting, patch: int | None) -> None:
    """An arm that speculates must not hold fewer requests than one that does not, only because nobody said how many."""
    if full.depth and "max_running" not in full and method_of(str(full["spec_method"]), patch).caps:
        raise InputError(
            "SGLang would silently cap running requests at 48 with speculation; pin max_running under [keep] (the "
            "running server's own is shown by /server_info)"
        )


def unpinned(launch: LaunchSpec, patch: int | None) -> tuple[str, ...]:
    """Knobs that the launch does not give, and whose default is not the same in every arm.

    `max_running`: 48 with speculation, else from the KV cache's size (2048 to 4096, as far as memory goes).
    `memory_fraction`: before 0.5.14 the default leaves room for a draft model; since, it depends on the device, the
    chunked prefill size and the graphs alone. `graph_max_batch`: depends on the device and, from 0.5.22 on, on
    `max_running` too. With an unknown version all that may differ are named.
    """
    words = read_words(launch, patch)
    running = words.has(RUNNING)
    found = {
        "max_running": not running,
        "memory_fraction": not words.has(MEMORY) and (patch is None or patch < _FIXED_RESERVE_SINCE),
        "graph_max_batch": not running
        and not words.has(GRAPH_BATCH, GRAPH_BATCH_OLD)
        and (patch is None or patch >= _GRAPHS_FOLLOW_SINCE),
    }
    return tuple(name for name, differs in found.items() if differs)


def value_of(launch: LaunchSpec, name: str, patch: int | None) -> Value | None:
    """What a launch has in force for any knob, `flag:--NAME` and `env:NAME` included; None = not given.

    Flags: numbers as numbers, a bare flag as true (false when it is switched off by its opposite), else text. A
    variable is always text.
    """
    words = read_words(launch, patch)
    if name.startswith("env:"):
        return words.env.get(name.removeprefix("env:"))
    if not name.startswith("flag:"):
        return _parse(words).get(name)
    spelling = name.removeprefix("flag:").replace("_", "-")
    option = grammar(patch).option(spelling)
    item = words.last(option.name if option else spelling)
    if item is None:
        return None
    if item.value is None:
        return option is None or (item.spelling in option.off) == (spelling in option.off)
    text = " ".join(known(word) for word in item.values)
    return text if len(item.values) > 1 else number_or_text(text)


def address(launch: LaunchSpec, patch: int | None) -> tuple[str, int]:
    """As the launch says it: a wildcard host stays a wildcard."""
    words = read_words(launch, patch)
    port = whole(PORT, words.value(PORT))
    return words.value(HOST) or DEFAULT_HOST, DEFAULT_PORT if port is None else port


def move(launch: LaunchSpec, port: int, patch: int | None) -> LaunchSpec:
    return read_words(launch, patch).tidy(PORT).set(PORT, str(port)).written()


def model(launch: LaunchSpec, patch: int | None) -> str | None:
    """From `--model-path`, or from the first word after `sglang serve`."""
    words = read_words(launch, patch)
    named = words.value(MODEL)
    first = words.line.items[0] if words.line.items else None
    if named is None and first is not None and first.name is None and serves(words.line.source):
        return known(first.words[0])
    return named


def files(launch: LaunchSpec) -> tuple[str, ...]:
    path = config_file(launch)
    return () if path is None else (path,)


def _put_flag(words: Words, name: str, value: Value) -> Words:
    spelling = name.removeprefix("flag:").replace("_", "-")
    option = grammar(words.patch).option(spelling)
    owner = option.name if option else spelling
    if value is False:
        return words.drop(lambda other: other == owner)
    if option and option.values not in (0, 1):
        raise InputError(f"{name} takes several values, which a knob cannot hold")
    if option and option.values == (value is True):
        raise InputError(f"{name} is {'followed by a value' if option.values else 'true or false'}, not {value!r}")
    if value is True:
        return words.put(owner, spelling)
    item = words.last(owner)
    same = item is not None and item.value is not None and number_or_text(item.value) == value
    return words if same else words.put(owner, spelling, str(value))


def _put_env(words: Words, name: str, value: Value) -> Words:
    return words.assign(*variable(name, value))


def _check_names(setting: Setting, patch: int | None) -> None:
    """Raises InputError for `flag:` names of what belongs to a knob, to the service, or to us, and for two of one."""
    seen: dict[str, str] = {}
    for name in setting.names():
        if not name.startswith("flag:"):
            continue
        spelling = name.removeprefix("flag:").replace("_", "-")
        option = grammar(patch).option(spelling)
        if option is None:
            refuse(spelling, patch)
            refuse_early(spelling, patch)
        owner = option.name if option else spelling
        if owner in _BY_KNOB:
            raise InputError(f"{name} is the knob {_BY_KNOB[owner]}: tune it under that name")
        if owner in _KEPT:
            raise InputError(f"{name} cannot be tuned: {_KEPT[owner]}")
        if owner in seen:
            raise InputError(f"{seen[owner]} and {name} are the same option of SGLang: keep one")
        seen[owner] = name
