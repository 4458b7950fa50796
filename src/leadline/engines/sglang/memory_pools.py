"""SGLang's arithmetic from free memory to KV tokens, state slots and requests; the same steps in the same order.

Sources, of 0.5.16, 0.5.20 and 0.5.23: `mem_cache/kv_cache_configurator.py` -> `_profile_available_bytes`,
`_handle_max_mamba_cache`, `_calculate_mamba_ratio`, `resolve_max_num_reqs`; `model_executor/pool_configurator.py` ->
`DefaultPoolConfigurator`; `arg_groups/memory_hook.py` -> `handle_gpu_memory_settings`; `configs/mamba_utils.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from leadline.dialect.answers import object_of
from leadline.dialect.footprint import Words, number_bytes
from leadline.dialect.modelshape import Linear, Shape
from leadline.dialect.question import numbers
from leadline.evidence import Device

EAGLE = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "FROZEN_KV_MTP")
DFLASH = ("DFLASH",)
KNOWN = (*EAGLE, *DFLASH, "NGRAM")
SPECULATIVE_RUNNING = 48
"""`arg_groups/speculative_hook.py`: requests at once under speculation when nothing is asked for."""
ADAPTIVE_DEEPEST = 7
"""`speculative/adaptive_spec_params.py`: the deepest candidate of the default schedule; memory is sized for it."""
_PADDED_SINCE = (0, 5, 17)
"""The first version after the last one read (0.5.16) that does not yet charge the pools' padding slot; 0.5.20 does."""
_OVERLAPPED_SINCE = (0, 5, 14)
"""Likewise for `extra_buffer` as the automatic strategy under the overlap scheduler: not in 0.5.13, in 0.5.16."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What a launch asks for, as SGLang resolves it. `steps`, `width` = draft steps and tokens verified a round."""

    family: str
    steps: int
    width: int
    draft_path: str | None
    model_path: str | None
    fraction: float | None
    asked_running: int | None
    given_running: int | None
    max_tokens: int | None
    page: int
    tp: int
    dp: int
    shards: int
    kv_bytes: int | None
    radix: bool
    slots_each: int
    slots: int | None
    ratio: float
    state_bytes: int
    conv_bytes: int
    replay: int
    context: int | None
    graph_batch: int | None
    graphs: bool
    prefill_graphs: bool
    chunk: int | None
    language_only: bool
    padding: int

    @property
    def speculates(self) -> bool:
        return self.family != ""

    @property
    def running(self) -> int | None:
        """Requests at once that one data-parallel worker is asked to hold; None = as many as it can."""
        return None if self.asked_running is None else max(1, self.asked_running // self.dp)

    def state(self, linear: Linear) -> int:
        """Bytes of one request's state, `mamba_cache_per_req`."""
        return linear.state_bytes(self.tp, self.state_bytes, self.conv_bytes)


def version_of(text: str | None) -> tuple[int, ...] | None:
    return numbers(text)


def ask_of(words: Words, shape: Shape, version: tuple[int, ...] | None) -> Ask:
    family = (words.text("--speculative-algorithm", "--speculative-algo") or "").upper()
    steps, width = _depth(words, family)
    asked = words.whole("--max-running-requests")
    shards = words.whole("--tp-size", "--tp", "--tensor-parallel-size") or 1
    attention_dp = words.on("--enable-dp-attention")
    dp = words.whole("--attn-dp-size") or (words.whole("--dp-size", "--dp", "--data-parallel-size") or 1) * attention_dp
    graphs = not words.on("--disable-cuda-graph", "--disable-decode-cuda-graph")
    prefill_off = words.on("--disable-prefill-cuda-graph") or words.text("--cuda-graph-backend-prefill") == "disabled"
    return Ask(
        family=family,
        steps=steps,
        width=width,
        draft_path=words.text("--speculative-draft-model-path", "--speculative-draft-model"),
        model_path=words.text("--model-path", "--model") or words.first or None,
        fraction=words.number("--mem-fraction-static"),
        asked_running=asked if asked is not None or not family else SPECULATIVE_RUNNING,
        given_running=asked,
        max_tokens=words.whole("--max-total-tokens"),
        page=words.whole("--page-size") or 1,
        tp=max(1, shards // max(1, dp)),
        dp=max(1, dp),
        shards=shards,
        kv_bytes=number_bytes(words.text("--kv-cache-dtype"), shape),
        radix=not words.on("--disable-radix-cache"),
        slots_each=_slots_each(words, version),
        slots=words.whole("--max-mamba-cache-size"),
        ratio=words.number("--mamba-full-memory-ratio") or 0.9,
        state_bytes=_state_bytes(words, shape),
        conv_bytes=4 if words.env.get("SGLANG_MAMBA_CONV_DTYPE") == "float32" else 2,
        replay=(words.whole("--linear-replayssm-cache-len") or 16) if words.on("--enable-linear-replayssm-spec") else 0,
        context=words.whole("--context-length"),
        graph_batch=words.whole("--cuda-graph-max-bs-decode", "--cuda-graph-max-bs"),
        graphs=graphs,
        prefill_graphs=graphs and not prefill_off,
        chunk=words.whole("--chunked-prefill-size"),
        language_only=words.on("--language-only", "--language-model-only"),
        padding=1 if version is None or version >= _PADDED_SINCE else 0,
    )


def _depth(words: Words, family: str) -> tuple[int, int]:
    """Steps and width; `arg_groups/speculative_hook.py`: a chain verifies its steps and one token more."""
    steps = words.whole("--speculative-num-steps")
    width = words.whole("--speculative-num-draft-tokens")
    if not family:
        return 0, 0
    if family in DFLASH:
        width = words.whole("--speculative-dflash-block-size") or width or 16
        return 1, width
    if family == "NGRAM":
        return 0, width or 12
    steps = 3 if steps is None else steps
    if words.on("--speculative-adaptive"):
        steps = max(_deepest(words), steps)
        return steps, steps + 1
    chain = (words.whole("--speculative-eagle-topk") or 1) == 1
    return steps, steps + 1 if chain or width is None else width


def _deepest(words: Words) -> int:
    """The deepest candidate of the adaptive schedule, {batch size: [steps, ...]}."""
    path = words.text("--speculative-adaptive-config")
    content = next((f.content for f in words.files if f.path == path), "")
    try:
        table = object_of(msgspec.json.decode(content)) if content else {}
    except (ValueError, msgspec.MsgspecError):
        table = {}
    listed = [n for value in table.values() if isinstance(value, list) for n in value if isinstance(n, int)]
    return max(listed, default=ADAPTIVE_DEEPEST)


def _slots_each(words: Words, version: tuple[int, ...] | None) -> int:
    """State slots per running request, `_calculate_mamba_ratio`."""
    if words.on("--disable-radix-cache"):
        return 1
    overlap = not words.on("--disable-overlap-schedule")
    skips = words.env.get("SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK", "").lower() in ("1", "true", "yes")
    strategy = words.text("--mamba-radix-cache-strategy", "--mamba-scheduler-strategy") or "auto"
    if strategy == "auto":
        paged = (words.whole("--page-size") or 1) > 1
        automatic = (overlap or paged) and (version is None or version >= _OVERLAPPED_SINCE)
        strategy = "extra_buffer" if automatic else "no_buffer"
    more = {"extra_buffer": 2 if overlap else 1, "extra_buffer_lazy": 1}.get(strategy, 1 if skips else 0)
    return 3 - (1 if skips else 0) + more


def _state_bytes(words: Words, shape: Shape) -> int:
    dtype = words.text("--mamba-ssm-dtype") or words.env.get("SGLANG_MAMBA_SSM_DTYPE") or shape.state_dtype
    return 2 if dtype in ("bfloat16", "float16") else 4


@dataclass(frozen=True, slots=True)
class Pools:
    """What the free memory is divided into, in bytes and counts. `refusal` = why the server would not start."""

    tokens: int = 0
    running: int = 0
    slots: int | None = None
    state: int = 0
    intermediate: int = 0
    ring: int = 0
    refusal: str = ""


def pools(rest: float, ask: Ask, shape: Shape, cell: int, context: int | None) -> Pools:
    """The pools that SGLang makes of `rest` bytes. `cell` = bytes per token, the priced draft layers included."""
    part = Pools()
    if shape.linear is not None:
        slots = slots_of(rest, ask, shape.linear)
        part = states(slots, ask, shape.linear)
        if slots <= 0:
            return Pools(slots=slots, refusal="no room for the state of a single request (max_mamba_cache_size <= 0)")
    left = rest - part.state - part.intermediate - part.ring
    tokens = int(left // cell)
    if ask.max_tokens is not None:
        tokens = min(tokens, ask.max_tokens)
    tokens = tokens // ask.page * ask.page
    running = _running(tokens, part.slots, ask, context)
    refusal = ""
    if left <= 0 or tokens <= 0:
        before = "weights" if shape.linear is None else "weights and the states of the linear layers"
        refusal = f"{before} leave no memory for the KV cache"
    elif running <= 0:
        refusal = f"{part.slots} state slots hold no request at {ask.slots_each} slots each"
    return Pools(max(0, tokens), max(0, running), part.slots, part.state, part.intermediate, part.ring, refusal)


def _running(tokens: int, slots: int | None, ask: Ask, context: int | None) -> int:
    """`resolve_max_num_reqs`, of one data-parallel worker."""
    free = min(max(int(tokens / context * 512), 2048), 4096) if context else 4096
    most = min(free if ask.running is None else ask.running, tokens // 2)
    return most if slots is None else min(most, slots // ask.slots_each)


def slots_of(rest: float, ask: Ask, linear: Linear) -> int:
    """State slots: given, or one a request without prefix cache, or solved from the share of memory that states get."""
    if ask.slots is not None:
        return ask.slots // ask.dp
    if not ask.radix and ask.running is not None:
        return ask.running
    one = ask.state(linear)
    budget = rest * ask.ratio / (1 + ask.ratio)
    if not ask.speculates or ask.replay:
        return int((budget - _ring(ask, linear) - ask.padding * one) // one)
    fixed = ask.padding * one * (1 + ask.width)
    return int((budget - fixed) // (one * (1 + ask.width / ask.slots_each)))


def states(slots: int, ask: Ask, linear: Linear) -> Pools:
    """The bytes that so many slots take, with the states kept for each draft token until it is verified."""
    one = ask.state(linear)
    intermediate = 0
    if ask.speculates and not ask.replay:
        held = min(ask.running or slots, slots // ask.slots_each)
        intermediate = one * (held + ask.padding) * ask.width
    return Pools(slots=slots, state=(slots + ask.padding) * one, intermediate=intermediate, ring=_ring(ask, linear))


def _ring(ask: Ask, linear: Linear) -> int:
    """`replayssm_ring_bytes_per_req` of Gated DeltaNet, for every request and one more."""
    if not ask.replay or ask.running is None or not ask.speculates:
        return 0
    heads, keys = linear.heads // ask.tp, max(1, linear.key_heads // ask.tp)
    halves = 2 if ask.conv_bytes != 4 else 1
    numbers = halves * (heads * linear.value + keys * linear.key) * ask.conv_bytes + heads * 4
    return linear.layers * ask.replay * numbers * (ask.running + 1)


def rest_for(tokens: int, slots: int | None, ask: Ask, shape: Shape, cell: int) -> float | None:
    """The bytes that were divided when so many tokens came out, up to half a page of tokens.

    `slots` = the number that the server told. Without it, the one that agrees with itself is looked for.
    """
    kv = (tokens + ask.page / 2) * cell
    if shape.linear is None:
        return kv
    if slots is not None or ask.slots is not None or (not ask.radix and ask.running is not None):
        return kv + _held(slots if slots is not None else slots_of(0.0, ask, shape.linear), ask, shape.linear)
    for guess in range(1, 1 << 16):
        rest = kv + _held(guess, ask, shape.linear)
        if slots_of(rest, ask, shape.linear) == guess:
            return rest
    return None


def _held(slots: int, ask: Ask, linear: Linear) -> int:
    part = states(slots, ask, linear)
    return part.state + part.intermediate + part.ring


def default_fraction(ask: Ask, shape: Shape, device: Device) -> float | None:
    """`--mem-fraction-static` when it is not given, on an NVIDIA device; `handle_gpu_memory_settings` of 0.5.16 to
    0.5.23. For models with a vision tower as for one of 24 layers and width 1024."""
    total = device.total_bytes / (1 << 20)
    if total <= 0:
        return None
    chunk, batch = _by_size(total, ask)
    if ask.graph_batch is None and ask.given_running is not None:  # resolved before speculation sets its own
        batch = min(batch, ask.given_running)
    reserved = 512 + 1.5 * max(ask.chunk if ask.chunk and ask.chunk > 0 else chunk, 2048) + ask.shards / 8 * 1024
    if ask.graphs:
        reserved += 2 * batch
    if ask.prefill_graphs:
        reserved += 1536 if shape.latent is not None else 8 * _prefill_sizes(ask.chunk or chunk)
    if total > 60 * 1024:
        reserved = max(reserved, 10 * 1024)
    vision = 0.95 if shape.multimodal and not ask.language_only else 1.0
    return round((total - reserved) / total, 3) * vision


def _by_size(total_mib: float, ask: Ask) -> tuple[int, int]:
    """Chunk of a prefill, and largest decode graph. Of versions that differ (20 to 35 GiB) the newest is meant."""
    table = ((20, 2048, 8, 8), (35, 4096, 48, 160), (60, 4096, 32, 160), (160, 8192, 256, 512))
    row = next((r for r in table if total_mib < r[0] * 1024), (0, 16384, 512, 512))
    return row[1], ask.graph_batch or (row[2] if ask.shards < 4 else row[3])


def _prefill_sizes(most: int) -> int:
    """How many prefill graphs: `generate_prefill_cuda_graph_batch_sizes`."""
    steps = ((4, 33, 4), (48, 257, 16), (288, 513, 32), (576, 1025, 64), (1280, 4097, 256), (4608, most + 1, 512))
    return sum(1 for a, b, step in steps for n in range(a, b, step) if n <= most)
