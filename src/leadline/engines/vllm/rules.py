"""What vLLM refuses at its start, and what one launch on one machine cannot do, as data.

Each rule looks at a launch as it would be made, and says why it cannot be; an empty text = it can, as far as is known.
What depends on the model's own configuration (its `n_predict`, its vocabulary) shows at the start only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from leadline.engines.vllm import graphs, methods, nested
from leadline.engines.vllm.programs import serves
from leadline.engines.vllm.reading import MODEL, Options
from leadline.engines.vllm.speculation import MODEL as DRAFT
from leadline.engines.vllm.values import SPECULATIVE, whole
from leadline.errors import InputError
from leadline.space import Setting

MAX_SEQS, MAX_TOKENS, UTILIZATION = "--max-num-seqs", "--max-num-batched-tokens", "--gpu-memory-utilization"
KV_BYTES, EAGER = "--kv-cache-memory-bytes", "--enforce-eager"


@dataclass(frozen=True, slots=True)
class Look:
    """A launch as it would be made: `spec` = its speculative configuration, empty when speculation is off; `asked` =
    what the setting names."""

    options: Options
    depth: int
    method: str | None
    spec: dict[str, Any]
    asked: frozenset[str]

    def number(self, flag: str) -> int | None:
        return whole(flag, self.options.text(flag))


Rule = Callable[[Look], str]


def check(options: Options, full: Setting, asked: Setting, spec: dict[str, Any] | None) -> None:
    """Raises InputError with the first reason against it."""
    method = full.get("spec_method")
    look = Look(options, full.depth, method if isinstance(method, str) else None, spec or {}, frozenset(asked.names()))
    for rule in RULES:
        if why := rule(look):
            raise InputError(why)


def several_machines(look: Look) -> str:
    if (look.number("--nnodes") or 1) > 1 or look.number("--node-rank"):
        return "--nnodes: the model runs on several machines, and only one of them would be restarted"
    for flag in ("--headless", "--data-parallel-hybrid-lb", "--data-parallel-external-lb"):
        if look.options.on(flag):
            return f"{flag}: this is one part of a server that has others, and only this one would be restarted"
    for flag in ("--data-parallel-rank", "--data-parallel-start-rank", "--data-parallel-address"):
        if look.options.has(flag):
            return f"{flag}: this is one part of a server that has others, and only this one would be restarted"
    local, ranks = look.number("--data-parallel-size-local"), look.number("--data-parallel-size") or 1
    if local is not None and local != ranks:
        return f"--data-parallel-size-local: {ranks - local} of {ranks} ranks run elsewhere, and would not be restarted"
    return ""


def split_roles(look: Look) -> str:
    for head, key in (("--kv-transfer-config", "kv_role"), ("--ec-transfer-config", "ec_role")):
        role = (nested.given(look.options, head) or {}).get(key)
        if isinstance(role, str) and role.endswith(("_producer", "_consumer")):
            return f"{head} has {key}={role}: prefill and decode run apart, and tuning one alone would break the pair"
    return ""


def no_http(look: Look) -> str:
    if look.options.on("--grpc"):
        return "--grpc: this server speaks gRPC only, and Leadline sends HTTP requests"
    return ""


def two_models(look: Look) -> str:
    if look.options.line.last(MODEL) is not None and look.options.loose() and serves(look.options.line.source.head):
        return f"the model is given twice, as {look.options.loose()[0]} and with {MODEL}: vLLM would not start"
    return ""


def draft_tensor_parallel(look: Look) -> str:
    if look.spec.get("tensor_parallel_size") is not None:
        return f"'tensor_parallel_size' is not valid in {SPECULATIVE}: vLLM wants 'draft_tensor_parallel_size'"
    size, ranks = look.spec.get("draft_tensor_parallel_size"), look.number("--tensor-parallel-size") or 1
    if size is not None and size not in (1, ranks):
        return f"draft_tensor_parallel_size={size} can only be 1 or --tensor-parallel-size, which is {ranks}"
    return ""


def draft_is_there(look: Look) -> str:
    if look.depth and methods.needs_draft(look.method) and not look.spec.get(DRAFT):
        return (
            f"{look.method} needs a draft model, and vLLM does not start without one: set draft_model under [keep] or "
            "[knobs]"
        )
    return ""


def lookup_window(look: Look) -> str:
    if look.method not in ("ngram", "ngram_gpu"):
        return ""
    least, most = look.spec.get("prompt_lookup_min"), look.spec.get("prompt_lookup_max")
    if isinstance(least, int) and isinstance(most, int) and least > most:
        return f"prompt_lookup_min={least} must be at most prompt_lookup_max={most}"
    return ""


def synthetic_acceptance(look: Look) -> str:
    rates, length = look.spec.get("synthetic_acceptance_rates"), look.spec.get("synthetic_acceptance_length")
    if isinstance(rates, list) and len(rates) != look.depth:
        return f"synthetic_acceptance_rates has {len(rates)} entries, and must have one for each of {look.depth} tokens"
    if isinstance(length, int | float) and not 1 <= length <= look.depth + 1:
        return f"synthetic_acceptance_length={length} must be from 1 to depth + 1 = {look.depth + 1}"
    return ""


def fly_window(look: Look) -> str:
    if look.spec.get("rejection_sample_method") != "fly":
        return ""
    window = look.spec.get("fly_window_size")
    if look.depth < 2 or (isinstance(window, int) and window >= look.depth):
        return (
            f"rejection_sample_method=fly needs a depth of at least 2 and more than fly_window_size, not {look.depth}"
        )
    return ""


def custom_logits(look: Look) -> str:
    if look.depth and look.options.has("--logits-processors"):
        return "--logits-processors are not supported while speculative decoding is enabled"
    return ""


def token_budget(look: Look) -> str:
    tokens, requests = look.number(MAX_TOKENS), look.number(MAX_SEQS)
    if tokens is None or requests is None:
        return ""
    if tokens < requests:
        return f"{MAX_TOKENS} {tokens} must be at least {MAX_SEQS} {requests}"
    need = requests * (1 + look.depth)
    if look.depth and look.options.on("--enable-lora") and tokens < need:
        return (
            f"with LoRA, {MAX_TOKENS} {tokens} must be at least {MAX_SEQS} * (depth + 1) = {need}: raise it, or take "
            "less of depth or max_running"
        )
    return ""


def graph_tokens(look: Look) -> str:
    if "graph_max_batch" not in look.asked:
        return ""
    if look.options.on(EAGER):
        return f"graph_max_batch has no meaning under {EAGER}: no graph is captured"
    tokens, most = look.number(MAX_TOKENS), graphs.max_tokens(look.options)
    if tokens is not None and most is not None and most > tokens:
        return (
            f"graph_max_batch: graphs of {most} tokens are more than {MAX_TOKENS} {tokens}, and would not be captured"
        )
    return ""


def fraction_counts(look: Look) -> str:
    if "memory_fraction" in look.asked and look.options.text(KV_BYTES) not in (None, "None", ""):
        return f"memory_fraction would change nothing: {KV_BYTES} sets the size of the KV cache instead"
    return ""


RULES: tuple[Rule, ...] = (
    several_machines,
    split_roles,
    no_http,
    two_models,
    draft_tensor_parallel,
    draft_is_there,
    lookup_window,
    synthetic_acceptance,
    fly_window,
    custom_logits,
    token_budget,
    graph_tokens,
    fraction_counts,
)
