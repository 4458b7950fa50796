"""The answers of vLLM's control endpoints, for the lab, as of 0.33."""

from __future__ import annotations

from typing import Any

from leadline.testing.dialects import View
from leadline.testing.dialects.openai import context_of, exactly, model_name
from leadline.testing.dialects.prom import Page
from leadline.testing.physics import Finish

_BLOCK = 16
_SECONDS = (0.01, 0.1, 1.0, 10.0)


def models(view: View) -> dict[str, Any]:
    name = model_name(view.flags)
    card = {"id": name, "object": "model", "created": 0, "owned_by": "vllm", "root": view.flags.model, "parent": None}
    return {"object": "list", "data": [{**card, "max_model_len": context_of(view.flags), "permission": []}]}


def metrics(view: View) -> bytes:
    """Counters move with every step, and are there from the start; those of drafts only with speculation."""
    engine, c = view.model.engine, view.model.engine.so_far()
    page = Page(engine="0", model_name=model_name(view.flags))
    page.gauge("vllm:num_requests_running", engine.running)
    page.gauge("vllm:num_requests_waiting", engine.queued)
    page.gauge("vllm:kv_cache_usage_perc", engine.kv_used / max(1, engine.pool))
    page.counter("vllm:num_preemptions_total", view.model.retractions)
    page.counter("vllm:prompt_tokens_total", c.prompt_tokens)
    page.counter("vllm:generation_tokens_total", c.predicted_tokens)
    for reason in ("stop", "length", "abort", "error"):
        page.counter("vllm:request_success_total", c.ended.get(reason, 0), finished_reason=reason)
    page.histogram("vllm:request_decode_time_seconds", engine.counters.predicted_s, sum(c.ended.values()), _SECONDS)
    if engine.depth:
        page.counter("vllm:spec_decode_num_drafts_total", c.drafts)
        page.counter("vllm:spec_decode_num_draft_tokens_total", c.draft_tokens)
        page.counter("vllm:spec_decode_num_accepted_tokens_total", c.accepted)
        for i, n in enumerate(c.per_position):
            page.counter("vllm:spec_decode_num_accepted_tokens_per_pos_total", n, position=str(i))
    return page.body() + _cache(view)


def _cache(view: View) -> bytes:
    pool = view.model.engine.pool
    page = Page(
        engine="0",
        block_size=str(_BLOCK),
        cache_dtype=str(view.flags.told["cache_dtype"]),
        enable_prefix_caching=str(view.flags.told["enable_prefix_caching"]),
        gpu_memory_utilization=str(view.flags.memory_fraction),
        kv_cache_max_concurrency=str(pool / context_of(view.flags)),
        kv_cache_size_tokens=str(pool),
        num_gpu_blocks=str(pool // _BLOCK),
        num_gpu_blocks_override="None",
        sliding_window="None",
    )
    page.gauge("vllm:cache_config_info", 1)
    return page.body()


def speculation(finish: Finish, depth: int) -> dict[str, Any]:
    """`metrics.speculative_decoding`: over the rounds that drafted, as the server counts."""
    seen = finish.acceptance
    histogram = exactly(seen, seen.drafting_rounds) if seen.per_position else [0] * (depth + 1)
    return {
        "mean_acceptance_length": seen.drafted_acceptance_length or 1.0,
        "draft_acceptance_rate": seen.accepted / seen.drafted if seen.drafted else 0.0,
        "acceptance_histogram": histogram,
        "num_spec_steps": seen.drafting_rounds,
        "num_accepted_draft_tokens": seen.accepted,
        "num_draft_tokens": seen.drafted,
        "num_spec_tokens": depth,
        "per_step_accepted": None,
        "per_step_drafted": None,
    }
