"""How much memory a launch of SGLang takes, and what it leaves for tokens and requests: before it is made.

Two ways. From config.json and the device alone: weights are counted, free memory is the device less driver and CUDA
context. Better: from the log of an earlier launch, of whatever depth; then only what differs is computed.
The division of memory is in `memory_pools`, with its sources.

Accuracy on public data: see `_ERROR_BYTES`.
"""

from __future__ import annotations

from dataclasses import dataclass

from leadline.dialect.footprint import (
    GIB,
    Words,
    free_bytes,
    judged,
    line,
    unknown,
    whole_parts,
    words_of,
)
from leadline.dialect.modelshape import Shape, shape_of
from leadline.engines.sglang.memory_log import MemoryLog, read
from leadline.engines.sglang.memory_pools import (
    DFLASH,
    EAGLE,
    KNOWN,
    Ask,
    Pools,
    ask_of,
    default_fraction,
    pools,
    rest_for,
    version_of,
)
from leadline.engines.sglang.versions import patch_of
from leadline.engines.sglang.words import read_words
from leadline.errors import InputError
from leadline.evidence import Footprint, Ground, Seen, Verdict
from leadline.launch import LaunchSpec

_MULTIMODAL_BYTES = 100 << 20
"""`mm_runtime_reservation_gb`: kept back for models with a vision tower (`SGLANG_VLM_CACHE_SIZE_MB`), since 0.5.17."""

_ERROR_BYTES = {"same": 0.006 * GIB, "other": 0.29 * GIB, "config": 0.51 * GIB}
"""How far off the memory for tokens and states was at most on public data, by what it was computed from; over the
bytes of the KV pool it is `error_frac`, and twice as much is not taken for certain.

"same", an earlier launch with the same draft: 11 launches of Qwen3.5-4B on a GH200 (depths 2 to 7, with and without
prefix cache, state replay; verified-progress, tuning/launches.csv), 4 of Qwen3-30B-A3B on an H200. "other", a launch
without the draft or with another: EAGLE-3 on an H200, SGLang 0.5.16, which still held a second copy of the draft's MLP
then (0.28 GiB for Qwen3-8B; 0.5.20 collects it first). "config", config.json and device alone: all of these, 0.50 GiB
on the GH200, mostly of what the driver takes."""


@dataclass(frozen=True, slots=True)
class Draft:
    """The draft of a launch. `priced` = bytes per token that SGLang takes into account when it sizes the pools,
    `held` = what the draft's own pool takes; `weights` with its own copies of embedding and head. None = unknown."""

    priced: int | None
    held: int | None
    weights: int | None


@dataclass(frozen=True, slots=True)
class Free:
    """Bytes free when the pools are sized: `rest` = to be divided, `before` = before loading, `reserve` = kept back."""

    rest: float
    kind: str
    basis: str
    before: float | None = None
    reserve: float | None = None
    weights: float | None = None
    draft: float | None = None


@dataclass(frozen=True, slots=True)
class Earlier:
    """An earlier launch: what it asked for and what its log says."""

    ask: Ask
    log: MemoryLog


def footprint(launch: LaunchSpec, ground: Ground, version: str | None) -> Footprint:
    """Memory of one device of the launch. Nothing is guessed: what model, draft, device and logs do not tell is absent,
    and without a known model the verdict is UNKNOWN."""
    shape = None if ground.model is None else shape_of(ground.model.fields)
    if shape is None:
        return unknown("the model's config.json is not known, or of a family whose memory is not known here")
    number = version_of(version)
    ask = ask_of(_words(launch, version), shape, number)
    if ask.speculates and ask.family not in KNOWN:
        return unknown(f"the memory of {ask.family} is not known here", asked_running=ask.asked_running)
    earlier = [_earlier(seen, shape, version) for seen in ground.seen]
    target_cell = None if ask.kv_bytes is None else shape.cell_bytes(ask.tp, ask.kv_bytes)
    draft = _draft(ask, shape, ground, earlier)
    free = _free(ask, shape, ground, earlier, draft)
    if target_cell is None or draft.priced is None or free is None:
        return unknown(_missing(target_cell, draft, ask), asked_running=ask.asked_running)
    context = ask.context or shape.context or next((e.log.context for e in earlier if e.log.context), None)
    result = pools(free.rest, ask, shape, target_cell + draft.priced, context)
    return _footprint(ask, shape, free, draft, target_cell, result, _graphs(ask, earlier), ground)


def _missing(cell: int | None, draft: Draft, ask: Ask) -> str:
    if cell is None:
        return "the bytes of a token in its KV cache are not known (packed type, or layers that keep a window)"
    if draft.priced is None:
        return f"the draft model {ask.draft_path or ''} is not known, and no earlier launch ran it"
    return "free memory is not known: no device, no log of an earlier launch, or an unknown quantisation"


def _words(launch: LaunchSpec, version: str | None) -> Words:
    """As SGLang reads them, abbreviations and its --config file included; what it would refuse is read word by word."""
    try:
        words = read_words(launch, patch_of(version))
    except InputError:
        return words_of(launch)
    return Words.of([*(item for _, item in words.filed), *words.line.items], words.env, launch.files)


def _earlier(seen: Seen, shape: Shape, version: str | None) -> Earlier:
    words = _words(seen.launch, version)
    return Earlier(ask_of(words, shape, version_of(version)), read(seen.log))


def _draft(ask: Ask, shape: Shape, ground: Ground, earlier: list[Earlier]) -> Draft:
    """`spec_aux_hidden_state.py` -> `_resolve_eagle_aux_hidden_state`: layers are priced as layers of the target.

    A prediction layer inside the target's checkpoint, used without a draft path, is priced only when config.json says
    `num_nextn_predict_layers` (SGLang PR #35566); its pool is made all the same, out of the reserve.
    """
    if not ask.speculates or ask.family == "NGRAM":
        return Draft(0, 0, 0)
    if ask.kv_bytes is None or (each := shape.cell_bytes(ask.tp, ask.kv_bytes, layers=1)) is None:
        return Draft(None, None, None)
    known = None if ground.draft is None else shape_of(ground.draft.fields)
    own = known is None and ask.family in EAGLE and ask.draft_path in (None, ask.model_path)
    if own and shape.mtp_layers:
        priced = (shape.nextn or 0) if ask.draft_path is None else (shape.nextn or 1)
        return Draft(priced * each, shape.mtp_layers * each, shape.mtp_bytes(ask.shards))
    if known is None:
        return _draft_of_log(ask, earlier)
    if known.mtp_layers and ask.family != "STANDALONE":
        return Draft((known.nextn or 1) * each, known.mtp_layers * each, known.mtp_bytes(ask.shards))
    held = known.cell_bytes(ask.tp, ask.kv_bytes)
    return Draft(
        held if ask.family in DFLASH else known.layers * each,
        held,
        None if ask.family in DFLASH else known.weight_bytes(ask.shards),
    )


def _draft_of_log(ask: Ask, earlier: list[Earlier]) -> Draft:
    """From the draft's own lines of an earlier launch that ran it."""
    for e in reversed(earlier):
        if _same_draft(e.ask, ask) and len(e.log.pools) > 1 and e.log.pools[1][0] > 0:
            tokens, size = e.log.pools[1]
            return Draft(round(size / tokens), round(size / tokens), _second(e.log))
    return Draft(None, None, None)


def _second(log: MemoryLog) -> int | None:
    return round(log.loaded[1]) if len(log.loaded) > 1 else None


def _same_draft(one: Ask, other: Ask) -> bool:
    return (one.family, one.draft_path) == (other.family, other.draft_path)


def _free(ask: Ask, shape: Shape, ground: Ground, earlier: list[Earlier], draft: Draft) -> Free | None:
    """From the best earlier launch: one with the same draft, else the last. Else from config and device."""
    order = sorted(earlier, key=lambda e: _same_draft(e.ask, ask))
    for e in reversed(order):
        alike = e.ask.shards == ask.shards and e.ask.model_path == ask.model_path
        found = _from_log(ask, e, shape, ground, earlier, draft) if alike else None
        if found is not None:
            return found
    return _from_config(ask, shape, ground, draft)


def _fraction(ask: Ask, shape: Shape, ground: Ground) -> float | None:
    if ask.fraction is not None:
        return ask.fraction
    return None if ground.device is None else default_fraction(ask, shape, ground.device)


def _from_config(ask: Ask, shape: Shape, ground: Ground, draft: Draft) -> Free | None:
    fraction, weights = _fraction(ask, shape, ground), shape.weight_bytes(ask.shards)
    if ground.device is None or fraction is None or weights is None or draft.weights is None:
        return None
    before = free_bytes(ground.device)
    reserve = before * (1 - fraction) + _kept_back(ask, shape)
    rest = before - weights - draft.weights - reserve
    return Free(rest, "config", "config.json and the device's size", before, reserve, weights, draft.weights)


def _kept_back(ask: Ask, shape: Shape) -> int:
    return _MULTIMODAL_BYTES if shape.multimodal and ask.padding and not ask.language_only else 0


def _from_log(ask: Ask, e: Earlier, shape: Shape, ground: Ground, earlier: list[Earlier], draft: Draft) -> Free | None:
    """What was divided then, changed by what differs now: the fraction, the draft's weights."""
    was = _draft(e.ask, shape, ground, earlier)
    before = e.log.free_before
    if before is None and ground.device is not None:
        before = free_bytes(ground.device)
    now_fraction = _fraction(ask, shape, ground)
    then_fraction = e.log.fraction if e.ask.fraction is None else e.ask.fraction
    if then_fraction is None:
        then_fraction = _fraction(e.ask, shape, ground)
    if ask.fraction is None and e.ask.fraction is None and then_fraction is not None:
        now_fraction = then_fraction
    if now_fraction is None or then_fraction is None or (before is None and now_fraction != then_fraction):
        return None
    kept = _kept_back(ask, shape)
    rest = _rest_then(e, shape, was, (before or 0.0) * (1 - then_fraction) + kept)
    if rest is None:
        return None
    same = _same_draft(e.ask, ask)
    loaded = _second(e.log)
    then_weights = loaded if loaded is not None else was.weights
    now_weights = then_weights if same else _known_weights(ask, earlier, draft)
    if not same and (then_weights is None or now_weights is None):
        return None
    rest += (before or 0.0) * (now_fraction - then_fraction)
    rest += 0 if same else (then_weights or 0) - (now_weights or 0)
    reserve = None if before is None else before * (1 - now_fraction) + kept
    weights = e.log.loaded[0] if e.log.loaded else None
    how = "the log of an earlier launch with the same draft" if same else "config.json and the log of an earlier launch"
    return Free(rest, "same" if same else "other", how, before, reserve, weights, now_weights)


def _known_weights(ask: Ask, earlier: list[Earlier], draft: Draft) -> int | None:
    told = next((w for e in reversed(earlier) if _same_draft(e.ask, ask) and (w := _second(e.log)) is not None), None)
    return draft.weights if told is None else told


def _rest_then(e: Earlier, shape: Shape, was: Draft, reserve: float) -> float | None:
    """The bytes that were divided: from the tokens that came out of it, else from the memory free after loading, less
    what is free beside the pools: as the log says, else by the fraction."""
    capped = e.ask.max_tokens is not None and e.log.tokens is not None and e.log.tokens > e.ask.max_tokens - e.ask.page
    cell = None if e.ask.kv_bytes is None else shape.cell_bytes(e.ask.tp, e.ask.kv_bytes)
    if e.log.tokens and cell is not None and was.priced is not None and not capped:
        rest = rest_for(e.log.tokens, e.log.slots, e.ask, shape, cell + was.priced)
        if rest is not None:
            return rest
    loads = 2 if e.ask.speculates and e.ask.family != "NGRAM" else 1
    if len(e.log.free_after) < loads:
        return None
    if len(e.log.free_beside) == loads and not capped:
        return e.log.free_after[-1] - e.log.free_beside[-1]
    return e.log.free_after[-1] - reserve if reserve > 0 else None


def _graphs(ask: Ask, earlier: list[Earlier]) -> float | None:
    """Graph memory from earlier launches with a draft, or without, as this one: by tokens of the largest graph.

    Through two launches or more a line, through one in proportion: every graph holds `width` tokens a request. On an
    H200 Qwen3-30B-A3B took 0.29, 0.48, 0.60 and 0.91 GiB at depths 1, 2, 3 and 5, up to batch 64.
    """
    if not ask.graphs:
        return 0.0
    alike = [e for e in earlier if e.ask.speculates == ask.speculates and e.log.decode_graphs is not None]
    points = [e.log.decode_graphs for e in alike if e.log.decode_graphs is not None]
    batch = ask.graph_batch or next((e.ask.graph_batch for e in alike if e.ask.graph_batch), None)
    if not points or batch is None:
        return None
    tokens = batch * max(1, ask.width)
    through = line(points, tokens)
    at, size = points[-1]
    decode = size * tokens / at if through is None else max(0.0, through)
    return decode + (alike[-1].log.prefill_graph_bytes if ask.prefill_graphs else 0.0)


def _footprint(
    ask: Ask,
    shape: Shape,
    free: Free,
    draft: Draft,
    cell: int,
    result: Pools,
    graphs: float | None,
    ground: Ground,
) -> Footprint:
    draft_kv = result.tokens * (draft.held or 0)
    unpriced = draft_kv - result.tokens * (draft.priced or 0)
    left = None if free.reserve is None else free.reserve - unpriced - (graphs or 0.0)
    priced = result.tokens * (cell + (draft.priced or 0))
    running = result.running * ask.dp
    verdict, reason = _verdict(ask, free, result, left, graphs)
    return Footprint(
        verdict=verdict,
        reason=reason,
        kv_tokens=result.tokens,
        max_running=running,
        asked_running=ask.asked_running,
        parts=_parts(ask, shape, free, result, draft_kv, cell, graphs, left, ground),
        basis=free.basis,
        error_frac=round(_ERROR_BYTES[free.kind] / priced, 4) if priced else None,
    )


def _parts(
    ask: Ask,
    shape: Shape,
    free: Free,
    result: Pools,
    draft_kv: int,
    cell: int,
    graphs: float | None,
    left: float | None,
    ground: Ground,
) -> dict[str, int]:
    taken = None
    if ground.device is not None and free.before is not None:
        taken = ground.device.total_bytes - free.before
    return whole_parts(
        [
            ("driver and context", taken),
            ("weights", shape.weight_bytes(ask.shards) if free.weights is None else free.weights),
            ("draft weights", free.draft if ask.speculates else None),
            ("KV pool", result.tokens * cell),
            ("draft KV pool", draft_kv),
            ("state slots", result.state),
            ("intermediate states", result.intermediate),
            ("replay buffers", result.ring),
            ("graphs", graphs),
            ("reserve left", left),
        ]
    )


def _verdict(ask: Ask, free: Free, result: Pools, left: float | None, graphs: float | None) -> tuple[Verdict, str]:
    error = 2 * _ERROR_BYTES[free.kind]
    if result.refusal:
        needed = result.state + result.intermediate + result.ring
        short = needed - free.rest
        if 0 <= short < error or (not needed and -error < free.rest < error):
            return Verdict.UNKNOWN, f"{result.refusal}, but only just: the figures are good to {error / GIB:.2f} GiB"
        lacking = f" ({short / GIB:.2f} GiB short)" if short > 0 else ""
        return Verdict.WILL_NOT_START, f"{result.refusal}{lacking}{_least_fraction(free)}"
    if left is not None and left < 0:
        what = "graphs and the draft's KV pool need" if graphs else "the draft's own KV pool needs"
        return Verdict.WILL_NOT_START, f"{what} {-left / GIB:.2f} GiB more than --mem-fraction-static leaves"
    return judged(result.tokens * ask.dp, result.running * ask.dp, ask.asked_running, ask.context)


def _least_fraction(free: Free) -> str:
    """SGLang's own advice, when a larger fraction would do."""
    if free.before is None or free.rest > 0 or free.reserve is None:
        return ""
    least = 1 - (free.rest + free.reserve) / free.before
    return f"; it needs --mem-fraction-static above {least:.3f}" if least < 1 else "; the weights alone do not fit"
