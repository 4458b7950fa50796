"""The answers of trtllm-serve's control endpoints, for the lab (`metrics/collector.py` of 1.3rc)."""

from __future__ import annotations

from typing import Any

from leadline.testing.dialects import LAB, View
from leadline.testing.dialects.openai import context_of, model_name
from leadline.testing.dialects.prom import Page
from leadline.testing.dialects.trtllm_log import BLOCK


def models(view: View) -> dict[str, Any]:
    card = {"id": model_name(view.flags), "object": "model", "created": 0, "owned_by": f"tensorrt_llm {LAB}"}
    return {"object": "list", "data": [card]}


def metrics(view: View) -> bytes:
    """Counters move when a request ends, and are absent before; the configuration is there from the start."""
    engine, c = view.model.engine, view.model.engine.counters
    page = Page(model_name=model_name(view.flags), engine_type="undefined")
    _configuration(page, view)
    ended = {k: n for k, n in c.ended.items() if k != "cancelled"}
    for reason, n in ended.items():
        page.counter("trtllm_request_success_total", n, finished_reason=reason)
    if ended:
        page.counter("trtllm_prompt_tokens_total", c.prompt_tokens)
        page.counter("trtllm_generation_tokens_total", c.predicted_tokens)
    if engine.depth and c.drafts:
        for position, (drafted, accepted) in enumerate(zip(c.drafted_at, c.per_position, strict=True)):
            page.counter("trtllm_spec_decode_drafted_tokens_total", drafted, token_position=str(position))
            page.counter("trtllm_spec_decode_accepted_tokens_total", accepted, token_position=str(position))
    if view.flags.told["iter_stats"]:
        page.gauge("trtllm_num_requests_running", engine.running)
        page.gauge("trtllm_num_requests_waiting", engine.queued)
        page.gauge("trtllm_kv_cache_utilization", engine.kv_used / max(1, engine.pool))
        page.gauge("trtllm_kv_cache_max_blocks", engine.pool // BLOCK)
        page.gauge("trtllm_kv_cache_tokens_per_block", BLOCK)
    return page.body()


def _configuration(page: Page, view: View) -> None:
    flags, engine = view.flags, view.model.engine
    page.gauge("trtllm_model_config_info", 1, model=flags.model, max_model_len=str(context_of(flags)), dtype="bfloat16")
    page.gauge(
        "trtllm_kv_cache_config_info",
        1,
        free_gpu_memory_fraction=str(flags.memory_fraction),
        tokens_per_block=str(BLOCK),
        cache_dtype=str(flags.told["dtype"]),
    )
    if engine.depth:
        page.gauge(
            "trtllm_speculative_config_info",
            1,
            spec_enabled="true",
            spec_method=flags.method,
            spec_num_tokens=str(engine.depth),
            spec_draft_model=flags.draft_model,
        )
