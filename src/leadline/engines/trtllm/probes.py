"""What to ask a running trtllm-serve, and what its answers say. Any bytes are accepted; what cannot be read is None."""

from __future__ import annotations

import re

from leadline.dialect.answers import json_of, list_of, object_of, text_of
from leadline.dialect.prometheus import Samples, parse
from leadline.engines.trtllm.counters import DRAFTED, KV_INFO, LIMITS, MODEL_INFO, SPEC_INFO, context, samples
from leadline.evidence import Busy, Effective, Evidence, Probe, Reply

READY_BODY = b'{"model":"any","prompt":"Say ok.","max_tokens":2,"temperature":0,"stream":false}'
"""Two tokens: the first comes from the prompt's own pass, the second proves a decode step. A name of the model must be
given and is not looked at."""

PROBES = (
    Probe(name="health", path="/health"),
    Probe(name="ready", path="/v1/completions", method="POST", body=READY_BODY, timeout_s=60.0),
    Probe(name="version", path="/version"),
    Probe(name="models", path="/v1/models"),
    # Never /metrics or /perf_metrics: they hand out what came in since the last question and forget it, so that asking
    # would take the figures away from whoever else reads them. /server_info tells nothing of a single server.
    Probe(name="metrics", path="/prometheus/metrics"),
)
"""The counters come last, so that a window which they open does not hold the probes' own tokens."""

GATE = re.compile(
    r"Speculative decoding disabled: rolling acceptance avg (?P<avg>[\d.]+) < threshold (?P<least>[\d.]+)"
)

_GIB = 1 << 30
_PEAK = re.compile(
    r"available KV cache memory when calculating max tokens: [\d.]+ GiB, fraction is set (0?\.\d+|1\.0*)"
)
_ALLOCATED = re.compile(r"\[MemUsageChange\] Allocated [\d.]+ GiB for max tokens in paged KV cache \((\d{1,12})\)")
_ITERATION = re.compile(
    r"iter = \d{1,15}, .*num_scheduled_requests: (?P<requests>\d{1,9}), states = \{.*'num_ctx_requests': 0, .*"
    r"'num_generation_tokens': (?P<tokens>\d{1,12})"
)
"""With `print_iter_log: true` (`py_executor.py`). Tokens = requests that decode, and their drafts
(`model_engine.py`, `_prepare_tp_inputs`)."""
_GRAPHS = re.compile(r"CUDA graph warmup for batch size=(\d{1,6})")
_WEIGHTS = re.compile(
    r"Memory used after loading model weights \(inside torch\) in memory usage profiling: (\d+\.\d+) GiB"
)


def effective(evidence: Evidence) -> Effective:
    """What the server shows of its configuration in `*_config_info` (newer releases), or else its log.

    The depth is the one that it runs with, and 0 once its acceptance gate has switched speculation off for good;
    `speculating` is true when it has drafted.
    """
    seen = samples(evidence)
    depth, speculating = _depth(seen, evidence.log)
    limits = LIMITS.findall(evidence.log)
    weights = _WEIGHTS.findall(evidence.log)
    graphs = [int(size) for size in _GRAPHS.findall(evidence.log)]
    return Effective(
        depth=depth,
        speculating=speculating,
        max_running=int(limits[-1][1]) if limits else _gauge(seen, "trtllm_max_batch_size_static"),
        context=context(evidence),
        kv_tokens=_kv_tokens(seen, evidence.log),
        memory_fraction=_fraction(seen, evidence.log),
        graphs=True if graphs else None,
        graph_max_batch=max(graphs, default=None),
        weights_bytes=int(float(weights[-1]) * _GIB) if weights and len(weights[-1]) < 12 else None,
        model=_model(evidence),
        version=text_of(object_of(json_of(evidence, "version")).get("version")),
    )


def busy(reply: Reply) -> Busy | None:
    """The gauges of the last iteration that the server looked at: only with `enable_iter_perf_stats: true`, and only
    as of the last request that ended."""
    seen = parse(reply.body if reply.ok else None)
    running = seen.count("trtllm_num_requests_running")
    if running is None:
        return None
    usage = seen.most("trtllm_kv_cache_utilization")
    return Busy(
        running=running,
        waiting=seen.count("trtllm_num_requests_waiting"),
        kv_usage=usage if usage is not None and 0 <= usage <= 1 else None,
    )


def _depth(seen: Samples, log: str) -> tuple[int | None, bool | None]:
    if GATE.search(log):
        return 0, False
    drafted = (seen.total(DRAFTED) or 0) > 0
    for sample in seen.by_name.get(SPEC_INFO, ()):
        text = sample.labels.get("spec_num_tokens", "")
        return (int(text) if re.fullmatch(r"\d{1,6}", text) else None), drafted or None
    if drafted:  # an older release, which does not show its configuration
        positions = [int(p) for p in seen.by_label(DRAFTED, "token_position") if re.fullmatch(r"\d{1,4}", p)]
        return max(positions) + 1 if positions else None, True
    return (0, False) if seen.has(MODEL_INFO) else _iterated(log)


def _iterated(log: str) -> tuple[int | None, bool | None]:
    """By the fullest iteration that read no prompt: each request has one token and its drafts in it. One without drafts
    says nothing: a request's first step may have none."""
    found = [(int(requests), int(tokens)) for requests, tokens in _ITERATION.findall(log)]
    depth = max(
        (tokens // requests - 1 for requests, tokens in found if requests and tokens % requests == 0), default=0
    )
    return (depth, True) if depth > 0 else (None, None)


def _kv_tokens(seen: Samples, log: str) -> int | None:
    """The last allocation counts: an earlier one is for the measurement of peak memory."""
    found = _ALLOCATED.findall(log)
    if found:
        return int(found[-1])
    blocks, size = _gauge(seen, "trtllm_kv_cache_max_blocks"), _gauge(seen, "trtllm_kv_cache_tokens_per_block")
    return blocks * size if blocks and size else None


def _fraction(seen: Samples, log: str) -> float | None:
    """Rounded, since the log prints a 32-bit float (0.8999999761581421)."""
    shown = [s.labels.get("free_gpu_memory_fraction", "") for s in seen.by_name.get(KV_INFO, ())]
    texts = [t for t in shown if re.fullmatch(r"[01]?\.\d{1,18}|1", t)] or _PEAK.findall(log)[-1:]
    return round(float(texts[0]), 4) if texts else None


def _gauge(seen: Samples, name: str) -> int | None:
    value = seen.most(name)
    return int(value) if value is not None and value > 0 else None


def _model(evidence: Evidence) -> str | None:
    data = list_of(object_of(json_of(evidence, "models")).get("data"))
    return text_of(object_of(data[0]).get("id")) if data else None
