"""How much memory a launch of vLLM takes, and what it leaves for tokens.

Law (`v1/worker/gpu_worker.py` -> `determine_available_memory`): KV gets the device's total times
--gpu-memory-utilization, less weights, the peak of a profile run (the drafter's included) and, since 0.21, an estimate
of CUDA graphs. Tokens (`v1/core/kv_cache_utils.py`) = the requests of --max-model-len that fit, times that length; the
draft's layers are ordinary layers of the cache; a linear layer holds 1 + depth states a request. --max-num-seqs is a
cap that memory never lowers: beyond the KV cache, requests are preempted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from leadline.dialect.answers import object_of, text_of, whole_of
from leadline.dialect.commandline import Item
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
from leadline.engines.vllm import loglines
from leadline.engines.vllm.reading import MODEL, model, read, word
from leadline.errors import InputError
from leadline.evidence import Device, Footprint, Ground, Seen, Verdict
from leadline.launch import LaunchSpec

_UTILISATION = 0.92
_ROUNDED = 0.02
"""The log rounds requests to 1/100, and tokens to whole blocks."""
_LOAD = re.compile(r"Model loading took ([\d.]+) GiB")
_AVAILABLE = re.compile(r"Available KV cache memory: (-?[\d.]+) GiB")
_TOKENS = re.compile(r"KV cache size: ([\d,]+) tokens")
_LENGTH = re.compile(r"Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x")
_GRAPH = re.compile(r"Graph capturing finished in \d+ secs, took (-?[\d.]+) GiB")
_NO_MODEL = ("ngram", "ngram_gpu", "suffix")


@dataclass(frozen=True, slots=True)
class _Ask:
    """`length` None = the model's own; 0 = as long as fits (`auto`, -1)."""

    utilisation: float
    kv_given: int | None
    seqs: int | None
    batched: int | None
    length: int | None
    tp: int
    kv_bytes: int | None
    state_bytes: int
    depth: int
    method: str
    draft_path: str | None
    model: str


@dataclass(frozen=True, slots=True)
class _Told:
    """What one launch asked for and its log says; bytes and tokens."""

    ask: _Ask
    available: float
    tokens: int
    length: int | None
    weights: float | None
    graphs: float | None
    requests: float | None = None
    """How many of `length` tokens fit, as the log says."""


def footprint(launch: LaunchSpec, ground: Ground, version: str | None) -> Footprint:
    """From the log of an earlier launch when there is one, else from config.json and the device.

    `error_frac` is None: it was tried on one model and device only, EAGLE-3 on Qwen3-30B-A3B on an H200 with vLLM
    0.22.1: 0.02 % off from the log of another depth, 0.17 to 0.31 % too much from config.json alone. There, activations
    are an estimate, and the basis says so. `version` does not change the law from 0.11 on.
    """
    shape = None if ground.model is None else shape_of(ground.model.fields)
    ask = _ask(_words(launch), shape)
    told = [t for seen in ground.seen if (t := _told(seen, shape)) is not None and t.ask.model == ask.model]
    alike = [t for t in told if _same_draft(t.ask, ask)]
    earlier = next(iter((alike or told)[::-1]), None)
    if earlier is not None:
        return _from_log(ask, earlier, shape, ground)
    return _from_config(ask, shape, ground)


def _from_log(ask: _Ask, then: _Told, shape: Shape | None, ground: Ground) -> Footprint:
    same = _same_draft(then.ask, ask)
    now_weights, then_weights = _draft_weights(ask, shape, ground), _draft_weights_then(then, shape, ground)
    available = then.available
    if ask.kv_given is not None:
        available = float(ask.kv_given)
    elif ask.utilisation != then.ask.utilisation:
        if ground.device is None:
            return unknown("another --gpu-memory-utilization, and the device is not known", asked_running=ask.seqs)
        available += allocatable_bytes(ground.device) * (ask.utilisation - then.ask.utilisation)
    if not same and ask.kv_given is None:
        if now_weights is None or then_weights is None:
            return unknown("the draft's weights are not known", asked_running=ask.seqs)
        available += then_weights - now_weights
    length = ask.length or then.length or (None if shape is None else shape.context)
    each = _each_from_log(ask, then, shape, ground, length, same)
    if each is None:
        return unknown("the bytes of a token in the KV cache are not known", asked_running=ask.seqs)
    basis = "the log of an earlier launch" + ("" if same else " with another draft, and config.json")
    weights = then.weights
    if not same and weights is not None and now_weights is not None and then_weights is not None:
        weights += now_weights - then_weights
    parts = [
        ("weights", weights),
        ("KV pool", available),
        ("graphs", then.graphs),
    ]
    return _judged(ask, available, each, length, parts, basis + _at_odds(then), certain=True)


def _at_odds(then: _Told) -> str:
    """Layers with a window or with states hold more requests than the tokens tell (noonghunna/club-3090 issue 613:
    106,240 tokens, and 24.20 requests of 16,384)."""
    if not then.length or then.requests is None or abs(then.requests * then.length / then.tokens - 1) < _ROUNDED:
        return ""
    return (
        f"; that log counts {then.requests:.2f} requests of {then.length:,} tokens in a cache of {then.tokens:,}: "
        "neither figure follows from the other"
    )


def _each_from_log(
    ask: _Ask, then: _Told, shape: Shape | None, ground: Ground, length: int | None, same: bool
) -> float | None:
    """Bytes per token as they were then, scaled by what config.json says of both launches where they differ."""
    each = then.available / then.tokens
    plain = shape is not None and shape.linear is None
    if same and ask.kv_bytes == then.ask.kv_bytes and (plain or (ask.depth, length) == (then.ask.depth, then.length)):
        return each
    now, was = _each(ask, shape, ground, length), _each(then.ask, shape, ground, then.length or length)
    return None if now is None or was is None else each * now / was


def _from_config(ask: _Ask, shape: Shape | None, ground: Ground) -> Footprint:
    device = ground.device
    draft, length = _draft_weights(ask, shape, ground), ask.length or (None if shape is None else shape.context)
    weights = None if shape is None else shape.weight_bytes(ask.tp)
    each = _each(ask, shape, ground, length)
    if shape is None or device is None or weights is None or draft is None or each is None:
        return unknown("without a log, model, draft and device must be known", asked_running=ask.seqs)
    total = allocatable_bytes(device)
    peak = _peak(ask, shape, device)
    available = total * ask.utilisation - weights - draft - peak
    parts = [
        ("driver", device.total_bytes - total),
        ("weights", float(weights)),
        ("draft weights", float(draft)),
        ("activations (estimate)", peak),
        ("KV pool", available if ask.kv_given is None else float(ask.kv_given)),
        ("left outside --gpu-memory-utilization", total * (1 - ask.utilisation)),
    ]
    basis = "config.json and the device's size; activations are estimated, graphs are not subtracted"
    kv = available if ask.kv_given is None else float(ask.kv_given)
    return _judged(ask, kv, each, length, parts, basis, certain=abs(kv) > peak + GIB)


def _judged(
    ask: _Ask,
    available: float,
    each: float,
    length: int | None,
    parts: Sequence[tuple[str, float | None]],
    basis: str,
    certain: bool,
) -> Footprint:
    tokens = max(0, int(available // each))
    verdict, reason = judged(tokens, ask.seqs, ask.seqs, None)
    if available <= 0:
        verdict, reason = Verdict.WILL_NOT_START, f"no memory for the cache blocks ({-available / GIB:.2f} GiB short)"
    elif length and tokens < length and ask.length != 0:
        verdict = Verdict.WILL_NOT_START
        reason = f"{tokens:,} KV tokens, and vLLM starts only if one request of --max-model-len {length:,} fits"
    if verdict is Verdict.WILL_NOT_START and not certain:
        verdict, reason = Verdict.UNKNOWN, f"{reason}; but activations are only estimated"
    return Footprint(
        verdict=verdict,
        reason=reason,
        kv_tokens=tokens,
        max_running=ask.seqs,
        asked_running=ask.seqs,
        parts=whole_parts(parts),
        basis=basis,
    )


def _peak(ask: _Ask, shape: Shape, device: Device) -> float:
    """A rough peak of the profile run: the widest hidden states of one batch of prompt tokens, and the logits of
    --max-num-seqs requests in 32 bits. Kernels' work space is not in it."""
    large = device.total_bytes >= 70 * GIB  # `arg_utils.py` -> `get_batch_defaults`
    batched = ask.batched or (8192 if large else 2048)
    seqs = min(ask.seqs or (1024 if large else 256), batched)
    hidden = batched * (4 * shape.hidden + 3 * shape.intermediate // ask.tp) * shape.number_bytes
    return float(hidden + seqs * (1 + ask.depth) * shape.vocab * 4)


def _each(ask: _Ask, shape: Shape | None, ground: Ground, length: int | None) -> float | None:
    """Bytes per token: the cells of target and draft, and a request's states spread over its length."""
    if shape is None or ask.kv_bytes is None or (cell := shape.cell_bytes(ask.tp, ask.kv_bytes)) is None:
        return None
    draft = _draft_cell(ask, shape, ground)
    if draft is None or (shape.linear is not None and not length):
        return None
    if shape.linear is None:
        return cell + draft
    states = shape.linear.state_bytes(ask.tp, ask.state_bytes, 2) * (1 + ask.depth)
    return cell + draft + states / (length or 1)


def _draft_cell(ask: _Ask, shape: Shape, ground: Ground) -> int | None:
    if not ask.depth or ask.method in _NO_MODEL or ask.kv_bytes is None:
        return 0
    draft = None if ground.draft is None else shape_of(ground.draft.fields)
    if draft is not None:
        return draft.cell_bytes(ask.tp, ask.kv_bytes)
    if _own_head(ask) and shape.mtp_layers:
        return shape.cell_bytes(ask.tp, ask.kv_bytes, layers=shape.mtp_layers)
    return None


def _draft_weights(ask: _Ask, shape: Shape | None, ground: Ground) -> int | None:
    """vLLM's drafts share the target's embedding and head where they are the same; a separate draft may not."""
    if not ask.depth or ask.method in _NO_MODEL:
        return 0
    draft = None if ground.draft is None else shape_of(ground.draft.fields)
    if draft is not None:
        return draft.weight_bytes(ask.tp)
    if shape is None or not _own_head(ask) or shape.mtp is None:
        return None
    with_copies, plain = shape.mtp_bytes(ask.tp), (shape.embed + (0 if shape.tied else shape.head)) * shape.number_bytes
    return None if with_copies is None else with_copies - plain // ask.tp


def _draft_weights_then(then: _Told, shape: Shape | None, ground: Ground) -> int | None:
    """What the log's weights leave beside the target's, when the draft's own would be more: a draft without embedding
    or head of its own is given the target's (`v1/spec_decode/llm_base_proposer.py`; the log says "Sharing target
    model embedding weights with the draft model")."""
    own, target = _draft_weights(then.ask, shape, ground), None if shape is None else shape.weight_bytes(then.ask.tp)
    if not own or target is None or then.weights is None:
        return own
    return min(own, max(0, round(then.weights) - target))


def _own_head(ask: _Ask) -> bool:
    return ask.draft_path in (None, ask.model) or "mtp" in ask.method


def _same_draft(one: _Ask, other: _Ask) -> bool:
    return (one.depth > 0, one.method, one.draft_path) == (other.depth > 0, other.method, other.draft_path)


def _words(launch: LaunchSpec) -> Words:
    """As vLLM reads them, its --config file included; what it would refuse is read word by word."""
    try:
        options = read(launch)
    except InputError:
        return words_of(launch)
    filed = [Item((options.name_of(key), word(value)), options.name_of(key)) for key, value in options.values.items()]
    named = model(options)
    model_item = [] if named is None else [Item((MODEL, named), MODEL)]
    return Words.of([*filed, *options.line.items, *model_item], options.line.env, launch.files)


def _ask(words: Words, shape: Shape | None) -> _Ask:
    spec = _speculation(words)
    length = (words.text("--max-model-len") or "").lower()
    dtype = words.text("--mamba-ssm-cache-dtype") or (None if shape is None else shape.state_dtype)
    return _Ask(
        utilisation=words.number("--gpu-memory-utilization", "--device-memory-utilization") or _UTILISATION,
        kv_given=_human(words.text("--kv-cache-memory-bytes", "--kv-cache-memory")),
        seqs=words.whole("--max-num-seqs"),
        batched=_human(words.text("--max-num-batched-tokens")),
        length=0 if length in ("auto", "-1") else _human(length),
        tp=words.whole("--tensor-parallel-size", "-tp") or 1,
        kv_bytes=None if shape is None else number_bytes(words.text("--kv-cache-dtype"), shape),
        state_bytes=4 if dtype == "float32" else 2,
        depth=whole_of(spec.get("num_speculative_tokens")) or 0,
        method=(text_of(spec.get("method")) or "").lower(),
        draft_path=text_of(spec.get("model")),
        model=words.text("--model") or words.first,
    )


def _speculation(words: Words) -> Mapping[str, Any]:
    """The JSON object, its single keys (`--speculative-config.KEY`), and the short flags of 0.33."""
    written = words.text("--speculative-config", "-sc")
    try:
        spec = dict(object_of(msgspec.json.decode(written))) if written else {}
    except (ValueError, msgspec.MsgspecError):
        spec = {}
    for name, value in words.flags.items():
        head, _, key = name.partition(".")
        if head in ("--speculative-config", "-sc") and key:
            number = finite(value)
            spec[key.replace("-", "_")] = value if number is None else int(number)
    short = {"method": "--spec-method", "model": "--spec-model"}
    spec.update({key: text for key, flag in short.items() if (text := words.text(flag))})
    tokens = words.whole("--spec-tokens")
    return spec if tokens is None else {**spec, "num_speculative_tokens": tokens}


def _human(text: str | None) -> int | None:
    """`8192`, `8k` (thousands), `8K` (times 1024): `human_readable_int` of `arg_utils.py`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgtKMGT]?)", text or "")
    if found is None:
        return None
    power = " kmgt".index(found[2].lower()) if found[2] else 0
    return int(float(found[1]) * (1024 if found[2].isupper() else 1000) ** power)


def _told(seen: Seen, shape: Shape | None) -> _Told | None:
    """The log's own figures; None without both available memory and tokens."""
    patterns = {"load": _LOAD, "available": _AVAILABLE, "tokens": _TOKENS, "length": _LENGTH, "graph": _GRAPH}
    found: dict[str, str] = {}
    for row in seen.log.splitlines():
        found.update({name: m[1].replace(",", "") for name, p in patterns.items() if (m := p.search(row))})
    available, tokens = finite(found.get("available")), finite(found.get("tokens"))
    if not available or available <= 0 or not tokens:
        return None
    ask = _ask(_words(seen.launch), shape)
    length, load, graph = (finite(found.get(name)) for name in ("length", "load", "graph"))
    return _Told(
        ask,
        available * GIB,
        int(tokens),
        None if length is None else int(length),
        None if load is None else load * GIB,
        None if graph is None else graph * GIB,
        loglines.concurrency(seen.log),
    )
