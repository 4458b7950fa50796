"""What to ask a running vLLM, and what its answers and its log say.

Any bytes are accepted; what cannot be read is None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from leadline.dialect.answers import json_of, list_of, number_of, object_of, text_of, whole_of
from leadline.dialect.prometheus import Samples, parse
from leadline.engines.vllm import counters, dialect, loglines
from leadline.engines.vllm.loglines import EngineLine
from leadline.errors import InputError
from leadline.evidence import Effective, Evidence, Probe, Reply
from leadline.launch import LaunchSpec
from leadline.space import Setting

READY_BODY = b'{"messages":[{"role":"user","content":"Say ok."}],"max_tokens":2,"temperature":0,"stream":false}'
"""Two tokens: the first comes from the prompt's own pass, the second proves a decode step. No model has to be named."""

PROBES = (
    Probe(name="health", path="/health"),
    Probe(name="ready", path="/v1/chat/completions", method="POST", body=READY_BODY, timeout_s=60.0),
    Probe(name="version", path="/version"),
    Probe(name="models", path="/v1/models"),
    Probe(name="server_info", path="/server_info?config_format=json"),
    Probe(name="metrics", path="/metrics"),
)
"""`server_info` is there with VLLM_SERVER_DEV_MODE=1 only. The counters come last, so that a window which they open
does not hold the probes' own tokens."""


def effective(evidence: Evidence) -> Effective:
    """From /server_info where it is open, else the series of /metrics, the engine's line in the log, and the launch.

    The depth is the number of positions that are counted, which a speculating server shows from its start on; a server
    that has generated and counts no drafts does not speculate. `max_running` is what was asked for: vLLM derives
    none from its memory.
    """
    info = _config(evidence)
    samples = parse(evidence.body("metrics"))
    line = loglines.engine_line(evidence.log)
    asked = _asked(evidence.argv)
    depth = _depth(info, samples, line, evidence.log)
    tokens = _graph_tokens(info, line)
    return Effective(
        depth=depth,
        speculating=None if depth is None else depth > 0,
        max_running=_first(
            whole_of(object_of(info.get("scheduler_config")).get("max_num_seqs")),
            asked.integer("max_running"),
            loglines.max_running(evidence.log),
        ),
        context=_first(whole_of(_model(evidence).get("max_model_len")), line.context),
        kv_tokens=_kv_tokens(samples, evidence.log),
        memory_fraction=_fraction(info, samples, asked, evidence.log),
        graphs=_graphs(line, evidence.log),
        graph_max_batch=tokens // (1 + depth) if tokens and depth is not None else None,
        moe_tuned=loglines.moe_tuned(evidence.log),
        weights_bytes=loglines.weights_bytes(evidence.log),
        model=text_of(_model(evidence).get("root")) or text_of(_model(evidence).get("id")) or line.model,
        version=text_of(object_of(json_of(evidence, "version")).get("version")) or line.version,
    )


def loading(reply: Reply) -> bool:
    """Never: vLLM answers nothing before its model is loaded, and 503 is a dead engine."""
    return False


def context(evidence: Evidence) -> int | None:
    return _first(whole_of(_model(evidence).get("max_model_len")), loglines.engine_line(evidence.log).context)


def _config(evidence: Evidence) -> Mapping[str, Any]:
    return object_of(object_of(json_of(evidence, "server_info")).get("vllm_config"))


def _model(evidence: Evidence) -> Mapping[str, Any]:
    data = list_of(object_of(json_of(evidence, "models")).get("data"))
    return object_of(data[0]) if data else {}


def _depth(info: Mapping[str, Any], samples: Samples, line: EngineLine, log: str) -> int | None:
    if "speculative_config" in info:
        config = info["speculative_config"]
        told = 0 if config is None else whole_of(object_of(config).get("num_speculative_tokens"))
        if told is not None:
            return told
    counted = counters.of(samples)
    if counted is not None and counted.positions:
        return len(counted.positions)
    if line.depth is not None:
        return line.depth
    reported = [len(one.position_rates) for row in log.splitlines() if (one := loglines.drafting(row)) is not None]
    if any(reported):
        return max(reported)
    return 0 if counted is not None and counted.generated and counted.drafts is None else None


def _kv_tokens(samples: Samples, log: str) -> int | None:
    """The label that says it, else the log, else blocks * block size, which is too much for a hybrid model."""
    labels = [s.labels for s in samples.by_name.get(counters.CACHE, ())]
    told = [
        (one.get("engine", ""), int(t))
        for one in labels
        if (t := one.get("kv_cache_size_tokens", "")).isdecimal() and len(t) < 16
    ]
    if told:
        return _over_engines(told)
    if (logged := loglines.kv_tokens(log)) is not None:
        return logged
    sizes = [
        (one.get("engine", ""), int(n) * int(b))
        for one in labels
        if (n := one.get("num_gpu_blocks", "")).isdecimal()
        and (b := one.get("block_size", "")).isdecimal()
        and len(n) < 12
        and len(b) < 7
    ]
    return _over_engines(sizes) if sizes else None


def _over_engines(sizes: Sequence[tuple[str, int]]) -> int:
    """Engines add up; several series of one engine say the same of it, and the largest counts."""
    most: dict[str, int] = {}
    for name, size in sizes:
        most[name] = max(size, most.get(name, 0))
    return sum(most.values())


def _fraction(info: Mapping[str, Any], samples: Samples, asked: Setting, log: str) -> float | None:
    told = number_of(object_of(info.get("cache_config")).get("gpu_memory_utilization"))
    for sample in samples.by_name.get(counters.CACHE, ()):
        told = told or _number(sample.labels.get("gpu_memory_utilization", ""))
    given = asked.get("memory_fraction")
    told = told or (given if isinstance(given, float) else None) or loglines.memory_fraction(log)
    return told if told is not None and 0 < told <= 1 else None


def _number(text: str) -> float | None:
    try:
        return number_of(float(text))
    except ValueError:
        return None


def _graphs(line: EngineLine, log: str) -> bool | None:
    if loglines.captured(log):
        return True
    if line.eager or line.graph_mode == "NONE":
        return False
    return None


def _graph_tokens(info: Mapping[str, Any], line: EngineLine) -> int | None:
    told = whole_of(object_of(info.get("compilation_config")).get("max_cudagraph_capture_size"))
    return _first(told, line.graph_tokens)


def _asked(argv: tuple[str, ...]) -> Setting:
    """What the command line asks for; nothing when it names a file, which is not at hand here."""
    if not argv:
        return Setting()
    try:
        return dialect.parse(LaunchSpec(argv=argv))
    except InputError:
        return Setting()


def _first(*values: int | None) -> int | None:
    return next((v for v in values if v is not None), None)
