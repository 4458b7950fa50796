"""The answers of SGLang's control endpoints, for the lab (as seen of 0.5.16)."""

from __future__ import annotations

from typing import Any

from leadline.testing.dialects import Flags, View
from leadline.testing.dialects.openai import context_of, exactly, model_name
from leadline.testing.dialects.prom import Page
from leadline.testing.dialects.sglang_log import GIB_PER_TOKEN, GRAPH_GB, TOTAL_GB, WEIGHTS_GB, batch_sizes
from leadline.testing.physics import Finish

_RANKS = {"moe_ep_rank": "0", "pp_rank": "0", "tp_rank": "0"}


def server_args(flags: Flags, depth: int) -> dict[str, Any]:
    """Resolved options, speculation as it is in force."""
    on = depth > 0
    asked = on and depth == flags.depth
    return {
        "model_path": flags.model,
        "served_model_name": model_name(flags),
        "host": flags.host,
        "port": flags.port,
        "context_length": flags.context or None,
        "mem_fraction_static": flags.memory_fraction,
        "max_running_requests": flags.max_running,
        "enable_metrics": flags.metrics,
        "decode_log_interval": flags.decode_log_interval,
        **flags.told,
        "speculative_algorithm": flags.method if on else None,
        "speculative_draft_model_path": flags.draft_model or None if on else None,
        "speculative_num_steps": depth if on else None,
        "speculative_eagle_topk": flags.topk if on else None,
        "speculative_num_draft_tokens": (flags.draft_tokens if asked else depth + 1) if on else None,
        "speculative_adaptive": False,
    }


def server_info(view: View, version: str) -> dict[str, Any]:
    """`internal_states` holds what the scheduler really runs; `max_running_requests` above it is what was asked."""
    engine = view.model.engine
    args = server_args(view.flags, engine.depth)
    rounds, now = engine.counters.rounds, engine.counters
    state = {
        **args,
        "context_length": context_of(view.flags),
        "last_gen_throughput": now.predicted_tokens / now.predicted_s if now.predicted_s else 0.0,
        "memory_usage": {
            "weight": WEIGHTS_GB,
            "kvcache": round(engine.pool * GIB_PER_TOKEN, 2),
            "token_capacity": engine.pool,
            "graph": GRAPH_GB,
        },
        "effective_max_running_requests_per_dp": engine.max_running,
    }
    if engine.depth:
        state["avg_spec_accept_length"] = 1 + now.accepted / rounds if rounds else 0.0
        state["max_speculative_num_draft_tokens"] = args["speculative_num_draft_tokens"]
    ready = "starting" if view.loading else "ready"
    return {
        **args,
        "cuda_graph_config": {"decode": {"backend": "full", "bs": batch_sizes(view.flags)}},
        "status": ready,
        "max_total_num_tokens": engine.pool,
        "max_req_input_len": context_of(view.flags) - 6,
        "internal_states": [state],
        "version": version,
    }


def model_info(view: View) -> dict[str, Any]:
    return {
        "model_path": view.flags.model,
        "tokenizer_path": view.flags.model,
        "is_generation": True,
        "weight_version": "default",
    }


def models(view: View) -> dict[str, Any]:
    name = model_name(view.flags)
    card = {"id": name, "object": "model", "created": 0, "owned_by": "sglang", "root": name, "parent": None}
    return {"object": "list", "data": [{**card, "max_model_len": context_of(view.flags)}]}


def metrics(view: View) -> bytes:
    """Counters of requests move when a request ends; each is absent before it moves for the first time."""
    engine, c = view.model.engine, view.model.engine.counters
    page = Page(engine_type="unified", model_name=model_name(view.flags))
    ended = {
        "prompt_tokens_total": c.prompt_tokens,
        "generation_tokens_total": c.predicted_tokens,
        "spec_verify_calls_total": c.rounds if engine.depth else 0,
        "num_requests_total": c.admitted,
    }
    for name, count in ended.items():
        if count:
            page.counter(f"sglang:{name}", count)
    gauges: dict[str, float] = {
        "max_total_num_tokens": engine.pool,
        "context_len": context_of(view.flags),
        "startup_available_gpu_memory_gb": TOTAL_GB - WEIGHTS_GB - engine.pool * GIB_PER_TOKEN,
        "num_running_reqs": engine.running,
        "num_queue_reqs": engine.queued,
        "gen_throughput": c.predicted_tokens / c.predicted_s if engine.running and c.predicted_s else 0.0,
        "token_usage": engine.kv_used / max(1, engine.pool),
        "cache_hit_rate": 0.0,
        "spec_accept_length": 1 + c.accepted / c.rounds if engine.depth and c.rounds else 0.0,
        "spec_accept_rate": c.accepted / (c.rounds * engine.depth) if engine.depth and c.rounds else 0.0,
        "spec_num_steps": engine.depth,
        "spec_num_draft_tokens": engine.depth + 1 if engine.depth else 0,
        "num_retracted_reqs": 0,
    }
    for name, value in gauges.items():
        page.gauge(f"sglang:{name}", value, **_RANKS)
    if view.model.retractions:
        page.counter("sglang:num_retracted_requests_total", view.model.retractions, **_RANKS)
    return page.body()


def speculation(finish: Finish, depth: int) -> dict[str, Any]:
    """`spec_tokens_details`: every round counts as one that drafted, as EAGLE's do."""
    seen = finish.acceptance
    histogram = exactly(seen, seen.rounds)
    while histogram and not histogram[-1]:
        histogram.pop()
    proposed = seen.rounds * depth
    return {
        "spec_accept_rate": seen.accepted / proposed if proposed else 0.0,
        "spec_accept_length": finish.output_tokens / seen.rounds if seen.rounds else 0.0,
        "spec_cap_length": 0.0,
        "spec_block_accept_length": 0.0,
        "spec_num_correct_drafts": seen.accepted,
        "spec_num_proposed_drafts": proposed,
        "spec_verify_ct": seen.rounds,
        "spec_correct_drafts_histogram": histogram,
        "spec_cap_lens_histogram": [],
    }
