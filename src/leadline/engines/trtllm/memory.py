"""How much memory a launch of trtllm-serve takes, and what it leaves for tokens.

Law (`_torch/pyexecutor/_util.py` -> `configure_kv_cache_capacity`): a dummy run measures the peak of weights and
activations; the KV cache gets `free_gpu_memory_fraction` of what is left; tokens = that // bytes per token, draft
layers included. `max_batch_size` is a cap, never lowered: no concurrency is derived from memory.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from leadline.dialect import yamlfile
from leadline.dialect.answers import number_of, object_of, text_of, whole_of
from leadline.dialect.footprint import (
    GIB,
    Words,
    allocatable_bytes,
    finite,
    judged,
    number_bytes,
    unknown,
    whole_parts,
    words_of,
)
from leadline.dialect.modelshape import Shape, shape_of
from leadline.errors import InputError
from leadline.evidence import Footprint, Ground, Seen, Verdict
from leadline.launch import LaunchSpec

_FRACTION, _BATCH = 0.9, 2048
_PEAK = re.compile(
    r"Peak memory during memory usage profiling \(torch \+ non-torch\): ([\d.]+) GiB, available KV cache memory when "
    r"calculating max tokens: (-?[\d.]+) GiB, fraction is set ([\d.]+), kv size (?:per token )?is ([\d.]+)"
)
_ALLOCATED = re.compile(r"Allocated [\d.]+ GiB for max tokens in paged KV cache \((\d+)\)")


@dataclass(frozen=True, slots=True)
class _Ask:
    fraction: float
    batch: int | None
    context: int | None
    max_tokens: int | None
    tp: int
    depth: int
    kv_bytes: int | None


@dataclass(frozen=True, slots=True)
class _Told:
    """One log: bytes of the peak, bytes for KV at `fraction`, bytes per token, tokens allocated."""

    peak: float
    available: float
    fraction: float
    each: float
    tokens: int | None


def footprint(launch: LaunchSpec, ground: Ground, version: str | None) -> Footprint:
    """From the log of an earlier launch when there is one, else weights and bytes per token from config.json.

    `error_frac` is None: there are no public figures to try it on. `version` does not change the law in 1.2 to 1.3.
    """
    shape = None if ground.model is None else shape_of(ground.model.fields)
    ask = _ask(launch, shape)
    told = next((t for seen in reversed(ground.seen) if (t := _told(seen)) is not None), None)
    each = _bytes_per_token(ask, shape, ground)
    if told is not None:
        return _from_log(ask, told, each, shape, ground)
    weights = None if shape is None else shape.weight_bytes(ask.tp)
    draft = _draft_weights(ask, shape, ground)
    if each is None or weights is None or draft is None or ground.device is None:
        return unknown("without a log, model, draft and device must be known", asked_running=ask.batch)
    total = allocatable_bytes(ground.device)
    left = total - weights - draft
    parts = [
        ("driver", ground.device.total_bytes - total),
        ("weights", float(weights)),
        ("draft weights", float(draft)),
        ("KV pool", left * ask.fraction),
        ("left for activations", left * (1 - ask.fraction)),
    ]
    basis = "config.json and the device's size; activations, which TensorRT-LLM measures first, are not subtracted"
    return _judged(ask, left * ask.fraction, each, parts, basis)


def _from_log(ask: _Ask, told: _Told, each: float | None, shape: Shape | None, ground: Ground) -> Footprint:
    """The memory left then, at the fraction asked for now; another draft changes weights and bytes per token.

    Whether the earlier launch had the draft is told by its bytes per token, since its YAML file is not kept.
    """
    left = told.available / told.fraction
    basis = "the log of an earlier launch"
    if each is not None and abs(each - told.each) > 1:
        plain = None if shape is None or ask.kv_bytes is None else shape.cell_bytes(ask.tp, ask.kv_bytes)
        draft = _draft_weights(ask, shape, ground)
        if plain is None or abs(plain - told.each) > 1 or draft is None:
            return unknown("the earlier launch kept other bytes per token than this one will", asked_running=ask.batch)
        left -= draft
        basis = "config.json and the log of an earlier launch without this draft"
    parts = [
        ("weights and activations", told.peak),
        ("KV pool", left * ask.fraction),
        ("left", left * (1 - ask.fraction)),
    ]
    return _judged(ask, left * ask.fraction, each or told.each, parts, basis)


def _judged(ask: _Ask, kv: float, each: float, parts: list[tuple[str, float]], basis: str) -> Footprint:
    tokens = max(0, int(kv // each))
    if ask.max_tokens is not None:
        tokens = min(tokens, ask.max_tokens)
    parts = [(n, tokens * each if n == "KV pool" else size) for n, size in parts]
    verdict, reason = judged(tokens, ask.batch, ask.batch, ask.context)
    if tokens <= 0:
        verdict, reason = (
            Verdict.WILL_NOT_START,
            f"weights leave no memory for the KV cache ({-kv / GIB:.2f} GiB short)",
        )
    return Footprint(
        verdict=verdict,
        reason=reason,
        kv_tokens=tokens,
        max_running=ask.batch or _BATCH,
        asked_running=ask.batch,
        parts=whole_parts(parts),
        basis=basis,
    )


def _ask(launch: LaunchSpec, shape: Shape | None) -> _Ask:
    """Flags first, then the YAML file; where both say something else, the engine refuses the launch or warns itself."""
    words = words_of(launch)
    config = _config(words)
    kv, spec = object_of(config.get("kv_cache_config")), object_of(config.get("speculative_config"))
    fraction = words.number("--kv-cache-free-gpu-memory-fraction", "--free-gpu-memory-fraction")
    dtype = words.text("--kv-cache-dtype") or text_of(kv.get("dtype"))
    return _Ask(
        fraction=fraction or number_of(kv.get("free_gpu_memory_fraction")) or _FRACTION,
        batch=words.whole("--max-batch-size") or whole_of(config.get("max_batch_size")),
        context=words.whole("--max-seq-len") or whole_of(config.get("max_seq_len")),
        max_tokens=whole_of(kv.get("max_tokens")),
        tp=words.whole("--tp-size", "--tensor-parallel-size") or whole_of(config.get("tensor_parallel_size")) or 1,
        depth=whole_of(spec.get("max_draft_len")) or whole_of(spec.get("num_nextn_predict_layers")) or 0,
        kv_bytes=None if shape is None else number_bytes(dtype, shape),
    )


def _config(words: Words) -> Mapping[str, Any]:
    """The YAML file that the launch names; empty when it is not there or cannot be read."""
    path = words.text("--config", "--extra-llm-api-options")
    file = next((f for f in words.files if f.path == path), None)
    try:
        return {} if file is None else yamlfile.load(file)
    except InputError:
        return {}


def _told(seen: Seen) -> _Told | None:
    peak, tokens = None, None
    for row in seen.log.splitlines():
        peak = _PEAK.search(row) or peak
        if m := _ALLOCATED.search(row):
            tokens = int(m[1])
    if peak is None:
        return None
    numbers = [finite(g) for g in peak.groups()]
    used, left, fraction, each = (0.0 if n is None else n for n in numbers)
    return _Told(used * GIB, left * GIB, fraction, each, tokens) if fraction > 0 and each > 0 else None


def _bytes_per_token(ask: _Ask, shape: Shape | None, ground: Ground) -> float | None:
    if shape is None or ask.kv_bytes is None or (cell := shape.cell_bytes(ask.tp, ask.kv_bytes)) is None:
        return None
    if not ask.depth:
        return cell
    draft = None if ground.draft is None else shape_of(ground.draft.fields)
    if draft is None:
        more = shape.cell_bytes(ask.tp, ask.kv_bytes, layers=shape.mtp_layers) if shape.mtp_layers else None
    else:
        more = draft.cell_bytes(ask.tp, ask.kv_bytes)
    return None if more is None else cell + more


def _draft_weights(ask: _Ask, shape: Shape | None, ground: Ground) -> int | None:
    if not ask.depth:
        return 0
    draft = None if ground.draft is None else shape_of(ground.draft.fields)
    if draft is not None:
        return draft.weight_bytes(ask.tp)
    if shape is None or shape.mtp is None:
        return None
    with_copies, plain = shape.mtp_bytes(ask.tp), (shape.embed + (0 if shape.tied else shape.head)) * shape.number_bytes
    return None if with_copies is None else with_copies - plain // ask.tp
