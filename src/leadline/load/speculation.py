"""The speculation figures that an engine tells with an answer, whatever it calls them.

llama.cpp: `timings.draft_n`, `draft_n_accepted`. SGLang from 0.5.19, when asked with `return_spec_tokens_details`:
`sglext.spec_tokens_details` (entrypoints/openai/protocol.py, SpecTokensDetails). vLLM from 0.32, launched with
`--per-request-spec-decode-metrics`: `metrics.speculative_decoding` (v1/metrics/stats.py).
"""

from __future__ import annotations

from typing import Any

import msgspec


class Timings(msgspec.Struct):
    predicted_ms: float = 0.0
    draft_n: int = 0
    draft_n_accepted: int = 0


class Figures(msgspec.Struct, frozen=True):
    """Counts of one answer. `histogram[i]` = rounds that accepted i draft tokens; empty when it is not told."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    histogram: tuple[int, ...] = ()


def figures(timings: Timings | None, sglext: Any, metrics: Any) -> Figures | None:
    """What one event tells; None when it tells nothing. Values of another shape than expected tell nothing."""
    if timings is not None:
        return Figures(drafted=timings.draft_n, accepted=timings.draft_n_accepted)
    details = _field(sglext, "spec_tokens_details")
    if isinstance(details, dict):
        return Figures(
            rounds=_count(details.get("spec_verify_ct")),
            drafted=_count(details.get("spec_num_proposed_drafts")),
            accepted=_count(details.get("spec_num_correct_drafts")),
            histogram=_counts(details.get("spec_correct_drafts_histogram")),
        )
    told = _field(metrics, "speculative_decoding")
    if isinstance(told, dict):
        return Figures(
            rounds=_count(told.get("num_spec_steps")),
            drafted=_count(told.get("num_draft_tokens")),
            accepted=_count(told.get("num_accepted_draft_tokens")),
            histogram=_counts(told.get("acceptance_histogram")),
        )
    return None


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0


def _counts(value: Any) -> tuple[int, ...]:
    return tuple(map(_count, value)) if isinstance(value, list) else ()
