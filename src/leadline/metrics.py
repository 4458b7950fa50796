"""Every metric in one table: name, unit, direction, formula; and the fold from request records to values.

Times are integer nanoseconds until here, and are converted once. Only steady-state tokens count for rates: those that
arrived while every user was busy (`LoadReport.window_*`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

from leadline.trial import LoadReport, RequestRecord

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """`better`: "higher", "lower" or "" (not a goal). `per_request`: has percentiles .p50 .p90 .p99 and .mean."""

    name: str
    unit: str
    better: str
    formula: str
    per_request: bool = False


def _ttft(r: RequestRecord) -> list[float]:
    return [(r.chunk_ns[0] - r.start_ns) / NS_PER_MS] if r.chunk_ns else []


def _e2e(r: RequestRecord) -> list[float]:
    return [(r.end_ns - r.start_ns) / NS_PER_MS]


def _tpot(r: RequestRecord) -> list[float]:
    rest = r.output_tokens - r.chunk_tokens[0] if r.chunk_tokens else 0.0
    return [(r.chunk_ns[-1] - r.chunk_ns[0]) / NS_PER_MS / rest] if rest > 0 else []


def _vllm_tpot(r: RequestRecord) -> list[float]:
    if not r.chunk_ns or r.output_tokens < 2:
        return []
    return [(r.end_ns - r.chunk_ns[0]) / NS_PER_MS / (r.output_tokens - 1)]


def _gaps(r: RequestRecord) -> list[float]:
    return [(b - a) / NS_PER_MS for a, b in zip(r.chunk_ns, r.chunk_ns[1:], strict=False)]


def _itl(r: RequestRecord) -> list[float]:
    """Each token of a chunk is given its share of the gap before the chunk."""
    out: list[float] = []
    for gap, tokens in zip(_gaps(r), r.chunk_tokens[1:], strict=False):
        n = round(tokens)
        out.extend([gap / n] * n)
    return out


def _per_request(r: RequestRecord) -> list[float]:
    took = (r.end_ns - r.start_ns) / NS_PER_S
    return [r.output_tokens / took] if took > 0 else []


SAMPLES: dict[str, Callable[[RequestRecord], list[float]]] = {
    "ttft_ms": _ttft,
    "tpot_ms": _tpot,
    "vllm_tpot_ms": _vllm_tpot,
    "itl_ms": _itl,
    "chunk_gap_ms": _gaps,
    "e2e_ms": _e2e,
    "per_request_tok_s": _per_request,
}

METRICS: dict[str, Metric] = {
    m.name: m
    for m in (
        Metric(
            name="output_tok_s",
            unit="tok/s",
            better="higher",
            formula="tokens that arrived in the steady window / its length",
        ),
        Metric(
            name="requests_s",
            unit="1/s",
            better="higher",
            formula="requests that ended in the steady window / its length",
        ),
        Metric(
            name="per_request_tok_s",
            unit="tok/s",
            better="higher",
            per_request=True,
            formula="output tokens / (end - start)",
        ),
        Metric(
            name="ttft_ms", unit="ms", better="lower", per_request=True, formula="first generated text - actual start"
        ),
        Metric(
            name="tpot_ms",
            unit="ms",
            better="lower",
            per_request=True,
            formula="(t_last - t_first) / (tokens - tokens in the first chunk)",
        ),
        Metric(
            name="vllm_tpot_ms",
            unit="ms",
            better="lower",
            per_request=True,
            formula="(e2e - ttft) / (tokens - 1), as vLLM prints it",
        ),
        Metric(
            name="itl_ms",
            unit="ms",
            better="lower",
            per_request=True,
            formula="gap before a chunk / its tokens, once for each token",
        ),
        Metric(
            name="chunk_gap_ms",
            unit="ms",
            better="lower",
            per_request=True,
            formula="time between two chunks: stalls show here",
        ),
        Metric(name="e2e_ms", unit="ms", better="lower", per_request=True, formula="end - actual start"),
        Metric(name="error_frac", unit="", better="lower", formula="requests with an error or a cut stream / requests"),
        Metric(
            name="acceptance_length",
            unit="tok/round",
            better="",
            formula="decode tokens / rounds, bonus token included",
        ),
        Metric(name="drafted_acceptance_length", unit="tok/round", better="", formula="1 + accepted / drafting rounds"),
        Metric(name="tokens_per_chunk", unit="tok", better="", formula="output tokens / chunks with text"),
        Metric(
            name="cached_frac",
            unit="",
            better="",
            formula="prompt tokens that came from the prompt cache / prompt tokens",
        ),
        *(
            Metric(name=f"{kind}_requests{end}", unit="requests", better="", formula=f"{what} {why}, once a second")
            for kind, why in (("running", "requests being decoded"), ("waiting", "requests that wait for a place"))
            for end, what in (("", "mean of"), ("_max", "most"))
        ),
    )
}
STATS = ("mean", "p50", "p90", "p99")


def names() -> list[str]:
    """Every name a goal or requirement may use."""
    out: list[str] = []
    for m in METRICS.values():
        out.extend([f"{m.name}.{s}" for s in STATS] if m.per_request else [m.name])
    return out


def better(name: str) -> str:
    return METRICS[name.split(".")[0]].better


def unit(name: str) -> str:
    return METRICS[name.split(".")[0]].unit


def percentile(ordered: Sequence[float], q: float) -> float:
    """Linear interpolation between closest ranks of a sorted sample; q in 0..1."""
    at = q * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def window_tokens(records: Sequence[RequestRecord], start_ns: int, end_ns: int) -> float:
    """Tokens that arrived in (start, end]; warm-up requests that run on into the window count."""
    return math.fsum(
        tokens for r in records for t, tokens in zip(r.chunk_ns, r.chunk_tokens, strict=True) if start_ns < t <= end_ns
    )


def reduce(report: LoadReport) -> dict[str, float]:
    """Records -> flat values. Failed requests count in error_frac alone; warm-up requests in no per-request value."""
    measured = [r for r in report.records if not r.warmup]
    good = [r for r in measured if r.ok]
    window_s = (report.window_end_ns - report.window_start_ns) / NS_PER_S
    values: dict[str, float] = {}
    if measured:
        values["error_frac"] = 1 - len(good) / len(measured)
    if good and window_s > 0:
        values["output_tok_s"] = window_tokens(report.records, report.window_start_ns, report.window_end_ns) / window_s
        inside = sum(1 for r in report.records if r.ok and report.window_start_ns < r.end_ns <= report.window_end_ns)
        values["requests_s"] = inside / window_s
    chunks = sum(len(r.chunk_ns) for r in good)
    if chunks:
        values["tokens_per_chunk"] = sum(r.output_tokens for r in good) / chunks
    prompt_tokens = sum(r.prompt_tokens for r in good)
    if prompt_tokens:
        values["cached_frac"] = sum(r.cached_tokens for r in good) / prompt_tokens
    for name, sample in SAMPLES.items():
        data = sorted(x for r in good for x in sample(r))
        if data:
            values[f"{name}.mean"] = math.fsum(data) / len(data)
            values.update({f"{name}.{p}": percentile(data, q) for p, q in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))})
    return values
