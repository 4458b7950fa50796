"""The answers of llama-server's control endpoints, for the lab."""

from __future__ import annotations

from typing import Any

from leadline.testing.dialects import Flags, View

BUILD = "leadline-lab"
DEFAULT_CONTEXT = 8192


def slot_context(flags: Flags, slots: int) -> int:
    """Context of one slot, in tokens."""
    return flags.context // max(slots, 1) if flags.context else DEFAULT_CONTEXT


def model_name(flags: Flags) -> str:
    """The model's name; "lab" is in it, whatever the command line says."""
    name = flags.alias or flags.model
    return name if "lab" in name else f"lab:{name}"


def props(view: View) -> dict[str, Any]:
    context = slot_context(view.flags, view.model.engine.max_running)
    return {
        "default_generation_settings": {"params": {"speculative.types": "none"}, "n_ctx": context},
        "total_slots": view.model.engine.max_running,
        "model_alias": model_name(view.flags),
        "model_path": view.flags.model,
        "media_marker": f"<__media_{view.boot_id}__>",
        "endpoint_slots": view.flags.slots,
        "endpoint_metrics": view.flags.metrics,
        "build_info": BUILD,
    }


def models(view: View) -> dict[str, Any]:
    name = model_name(view.flags)
    meta = {"n_ctx": slot_context(view.flags, view.model.engine.max_running), "n_params": 0, "size": 0}
    entry = {"id": name, "aliases": [name], "object": "model", "created": 0, "owned_by": BUILD, "meta": meta}
    return {"object": "list", "data": [entry]}


def slots(view: View) -> list[dict[str, Any]]:
    """`params` appear once a slot has been used; the depth is nowhere to be seen, as on the real server."""
    engine = view.model.engine
    fixed = {"n_ctx": slot_context(view.flags, engine.max_running), "speculative": engine.depth > 0}
    types = f"none,{view.flags.method}" if engine.depth else "none"
    used = {"params": {"speculative.types": types}} if engine.counters.decodes else {}
    return [{"id": i, **fixed, "is_processing": i < engine.running, **used} for i in range(engine.max_running)]


def metrics(view: View) -> bytes:
    """Prometheus text. There is no per-position series before the first draft."""
    engine = view.model.engine
    c = engine.counters
    values = {
        "prompt_tokens_total": c.prompt_tokens,
        "prompt_tokens_cached_total": 0,
        "prompt_seconds_total": c.prompt_s,
        "tokens_predicted_total": c.predicted_tokens,
        "tokens_predicted_seconds_total": c.predicted_s,
        "n_decode_total": c.decodes,
        "n_tokens_max": c.longest,
        "spec_decode_num_draft_tokens_total": c.draft_tokens,
        "spec_decode_num_accepted_tokens_total": c.accepted,
        "spec_decode_num_drafts_total": c.drafts,
        "prompt_tokens_seconds": c.prompt_tokens / c.prompt_s if c.prompt_s else 0,
        "predicted_tokens_seconds": c.predicted_tokens / c.predicted_s if c.predicted_s else 0,
        "requests_processing": engine.running,
        "requests_deferred": engine.queued,
        "n_busy_slots_per_decode": c.busy_slots / c.decodes if c.decodes else 0,
    }
    lines: list[str] = []
    for name, value in values.items():
        kind = "counter" if name.endswith("_total") or name == "n_tokens_max" else "gauge"
        lines += [f"# TYPE llamacpp:{name} {kind}", f"llamacpp:{name} {value:.10g}"]
    if c.drafts:
        name = "spec_decode_num_accepted_tokens_per_pos_total"
        lines.append(f"# TYPE llamacpp:{name} counter")
        lines += [f'llamacpp:{name}{{position="{i}"}} {n}' for i, n in enumerate(c.per_position)]
    return ("\n".join(lines) + "\n").encode()
