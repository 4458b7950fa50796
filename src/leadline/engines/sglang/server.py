"""What really runs, from `/server_info`, the metrics and the log of an SGLang server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from leadline.dialect import prometheus
from leadline.dialect.answers import json_of, list_of, number_of, object_of, text_of, whole_of
from leadline.engines.sglang import log
from leadline.evidence import Effective, Evidence

_LATEST = 20
"""Decode lines that tell whether graphs are used, and whether it speculates: earlier ones may be of another load."""
_ENOUGH = 3
"""Decode lines without an acceptance length that show that it does not speculate: one alone may lack it."""
_STEPS = frozenset({"EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "FROZEN_KV_MTP"})
"""Algorithms whose depth is `speculative_num_steps`. The others (NGRAM, DFLASH, DSPARK) verify a block, and SGLang sets
their steps to what its loops need (`arg_groups/speculative_hook.py`): their depth is draft tokens - 1."""


class Told:
    """The resolved arguments: from `/server_info`, else from the line that the server prints at its start."""

    def __init__(self, evidence: Evidence, seen: log.Log) -> None:
        self.info: Mapping[str, Any] = object_of(json_of(evidence, "server_info"))
        self.states: Sequence[Mapping[str, Any]] = [object_of(s) for s in list_of(self.info.get("internal_states"))]
        self._printed = seen.arguments

    def knows(self, name: str) -> bool:
        return name in self.info or name in self._printed

    def text(self, name: str) -> str | None:
        if name in self.info:
            return text_of(self.info[name])
        printed = self._printed.get(name)
        return None if printed in (None, "", "None") else printed

    def whole(self, name: str) -> int | None:
        if name in self.info:
            return whole_of(self.info[name])
        printed = self._printed.get(name, "")
        return int(printed) if printed.isascii() and printed.isdigit() else None

    def number(self, name: str) -> float | None:
        if name in self.info:
            return number_of(self.info[name])
        try:
            return number_of(float(self._printed.get(name, "")))
        except ValueError:
            return None

    def true(self, name: str) -> bool:
        return self.info.get(name) is True or (name not in self.info and self._printed.get(name) == "True")


def effective(evidence: Evidence) -> Effective:
    """`max_running` is what the schedulers say that they admit, not the argument of that name, which is what was asked
    for (sgl-project/sglang issue 36889). It and `kv_tokens` are summed over data-parallel ranks. `weights_bytes` is the
    target and the draft model, as one rank's log says; the draft's own copies of embeddings are part of it."""
    seen = log.read(evidence.log)
    told = Told(evidence, seen)
    samples = prometheus.parse(evidence.body("metrics"))
    speculating = _speculating(told, seen, samples)
    method = (told.text("speculative_algorithm") or "").upper()
    graphs = _graphs(told, seen, samples)
    weights = sum(seen.weights_gib)
    return Effective(
        depth=_depth(told, seen, samples, speculating),
        speculating=speculating,
        topk=told.whole("speculative_eagle_topk") if speculating and method in _STEPS else None,
        draft_tokens=_draft_tokens(told, seen, samples) if speculating else None,
        max_running=_sum(told.states, "effective_max_running_requests_per_dp") or seen.max_running,
        context=_context(told, seen, samples),
        kv_tokens=_kv_tokens(told, seen, samples),
        memory_fraction=told.number("mem_fraction_static"),
        graphs=graphs,
        graph_max_batch=None if graphs is False and _disabled(told) else _graph_max_batch(told, seen),
        moe_tuned=seen.moe_tuned,
        weights_bytes=round(weights * log.GIB) if weights else None,
        model=told.text("model_path") or _model_id(evidence),
        version=text_of(told.info.get("version")),
    )


def _speculating(told: Told, seen: log.Log, samples: prometheus.Samples) -> bool | None:
    """What its decode lines show comes first: they carry an acceptance length when it speculates. Some of the latest
    with and the last without one, or too few, tell nothing."""
    latest = [d for d in seen.decodes if d.running != 0][-_LATEST:]
    if latest and latest[-1].accepted is not None:
        return True
    if told.knows("speculative_algorithm") and told.text("speculative_algorithm") is None:
        return False
    if latest:
        return False if len(latest) >= _ENOUGH and all(d.accepted is None for d in latest) else None
    if told.knows("speculative_algorithm"):
        return True
    if samples.most("sglang:spec_num_draft_tokens"):
        return True
    if seen.steps is not None or any(c.what == "target verify" for c in seen.captures):
        return True
    return None


def _adaptive(told: Told, seen: log.Log) -> bool:
    return told.true("speculative_adaptive") or seen.steps is not None


def _depth(told: Told, seen: log.Log, samples: prometheus.Samples, speculating: bool | None) -> int | None:
    """0 without speculation; None while `--speculative-adaptive` moves it. The gauges follow the last decode line."""
    if speculating is not True:
        return 0 if speculating is False else None
    if _adaptive(told, seen):
        return None
    method = (told.text("speculative_algorithm") or "").upper()
    if method in _STEPS:
        return told.whole("speculative_num_steps")
    if method:
        tokens = told.whole("speculative_num_draft_tokens")
        return None if tokens is None else max(0, tokens - 1)
    return _gauge(samples, "sglang:spec_num_steps")


def _draft_tokens(told: Told, seen: log.Log, samples: prometheus.Samples) -> int | None:
    captured = next((c.width for c in seen.captures if c.what == "target verify"), None)
    asked = told.whole("speculative_num_draft_tokens")
    if _adaptive(told, seen):
        return None
    return asked or captured or _gauge(samples, "sglang:spec_num_draft_tokens")


def _kv_tokens(told: Told, seen: log.Log, samples: prometheus.Samples) -> int | None:
    usage = [object_of(state.get("memory_usage")) for state in told.states]
    return (
        _sum(usage, "token_capacity")
        or told.whole("max_total_num_tokens")
        or _gauge(samples, "sglang:max_total_num_tokens")
        or seen.kv_tokens
    )


def _context(told: Told, seen: log.Log, samples: prometheus.Samples) -> int | None:
    state = whole_of(told.states[0].get("context_length")) if told.states else None
    return state or told.whole("context_length") or seen.context or _gauge(samples, "sglang:context_len")


def _graphs(told: Told, seen: log.Log, samples: prometheus.Samples) -> bool | None:
    """By what most of the latest decode lines say, then by the counter of passes, then by the arguments."""
    lines = [d.graph for d in seen.decodes[-_LATEST:] if d.graph is not None]
    if lines:
        return 2 * sum(lines) > len(lines)
    passes = samples.by_label("sglang:cuda_graph_passes_total", "mode")
    decodes = {mode: n for mode, n in passes.items() if mode.startswith("decode_") and n > 0}
    if decodes:
        return max(decodes, key=lambda mode: decodes[mode]) != "decode_none"
    if _disabled(told):
        return False
    return True if any(c.gib is not None for c in _of_target(seen)) else None


def _of_target(seen: log.Log) -> list[log.Capture]:
    return [c for c in seen.captures if c.what in ("target decode", "target verify")]


def _disabled(told: Told) -> bool:
    decode = object_of(object_of(told.info.get("cuda_graph_config")).get("decode"))
    if decode.get("backend") == "disabled" or told.text("cuda_graph_backend_decode") == "disabled":
        return True
    return told.true("disable_cuda_graph") or told.true("disable_decode_cuda_graph")


def _graph_max_batch(told: Told, seen: log.Log) -> int | None:
    """The largest batch that was captured; else what the arguments say is captured."""
    captured = [n for c in _of_target(seen) for n in c.batches]
    if captured:
        return max(captured)
    decode = object_of(object_of(told.info.get("cuda_graph_config")).get("decode"))
    state = list_of(told.states[0].get("decode_cuda_graph_bs")) if told.states else []
    batches = [n for n in (whole_of(b) for b in state or list_of(decode.get("bs"))) if n is not None]
    most = max(batches) if batches else whole_of(decode.get("max_bs"))
    return most or told.whole("cuda_graph_max_bs_decode") or told.whole("cuda_graph_max_bs")


def _sum(states: Sequence[Mapping[str, Any]], name: str) -> int | None:
    values = [whole_of(state.get(name)) for state in states]
    known = [v for v in values if v is not None]
    return sum(known) if known and len(known) == len(values) else None


def _gauge(samples: prometheus.Samples, name: str) -> int | None:
    most = samples.most(name)
    return whole_of(int(most)) or None if most is not None else None


def _model_id(evidence: Evidence) -> str | None:
    data = list_of(object_of(json_of(evidence, "models")).get("data"))
    return text_of(object_of(data[0]).get("id")) if data else None
