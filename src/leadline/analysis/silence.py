"""Silences: times inside the steady window in which requests were being served and nothing arrived for anybody.

A server that compiles a kernel, or stalls, says nothing to any of its users. A campaign that measures that measures its
own cold start. But to read prompts is a silence by nature too: of one user always, of many whenever they start
together. So a silence counts only when neither of the two explains it:

- the rhythm of the answers: `RHYTHM` times the gap that nine in ten pieces of a stream keep;
- the reading of the prompts that were waited for during it: `PATIENCE` times what such prompts take in this same
  measurement. A prompt's time is taken as proportional to its tokens that came from no cache, at the pace of the
  quickest quarter of the requests (the rest may have waited for the same compiler), and as no less than the time of
  that quarter. First turns and later turns are kept apart, since not every server says what it had in its cache.

On request records of SGLang 0.5.16 and vLLM 0.22.1 with cold kernels (H200; 1, 4, 16 and 64 users, 2 to 10 s windows)
all 19 silences above 0.6 s were 3.1 to 18 times what prompts take there, and the last launch of each campaign had none;
all others lasted at most 0.5 s and 2.5 times. A run in which *every* request waited for the compiler has nothing to
compare with, and is not found.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import msgspec

from leadline import metrics
from leadline.trial import LoadReport, RequestRecord

MIN_S = 0.3
MIN_SHARE = 0.03  # of the window
RHYTHM = 10.0
PATIENCE = 3.0
QUICK = 0.25
STREAMED = 3
"""Pieces that the median answer must have: an answer that comes in one piece is silent until it is done."""
_NS = 1_000_000_000


class Silence(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch without an arrival, and `usual_s`: what the reading of the prompts waited for takes by itself."""

    start_ns: int
    end_ns: int
    usual_s: float = 0.0

    @property
    def s(self) -> float:
        return (self.end_ns - self.start_ns) / _NS


def unexplained(report: LoadReport) -> tuple[Silence, ...]:
    """Silences that neither the rhythm of the answers nor the reading of prompts explains, the longest first."""
    window_s = (report.window_end_ns - report.window_start_ns) / _NS
    good = [r for r in report.records if r.ok and r.chunk_ns]
    if not good or metrics.percentile(sorted(len(r.chunk_ns) for r in good), 0.5) < STREAMED:
        return ()
    least = max(MIN_S, MIN_SHARE * window_s, RHYTHM * _rhythm(good))
    found = [s for s in silences(report, least) if s.s > max(least, PATIENCE * s.usual_s)]
    return tuple(sorted(found, key=lambda s: -s.s))


def silences(report: LoadReport, least_s: float) -> list[Silence]:
    """All silences longer than `least_s` while a request that ended well was being served, in order of time."""
    good = [r for r in report.records if r.ok and r.chunk_ns]
    first, last = report.window_start_ns, report.window_end_ns
    arrivals = sorted(t for r in report.records for t in r.chunk_ns if first < t < last)
    counted = [r for r in good if not r.warmup]
    usual_s = {later: _usual_s([r for r in counted if (r.turn > 0) == later]) for later in (False, True)}
    out: list[Silence] = []
    for before, end in itertools.pairwise((first, *arrivals, last)):
        if end - before <= least_s * _NS:
            continue
        served = [r for r in good if r.start_ns < end <= r.end_ns]
        start = max(before, min((r.start_ns for r in served), default=end))
        if end - start > least_s * _NS:
            usual = [usual_s[r.turn > 0](r) for r in served if r.chunk_ns[0] >= end]
            out.append(Silence(start_ns=start, end_ns=end, usual_s=max(usual, default=0.0)))
    return out


def _rhythm(good: Sequence[RequestRecord]) -> float:
    """Seconds between two pieces of one answer, that nine in ten keep."""
    gaps = sorted(b - a for r in good for a, b in itertools.pairwise(r.chunk_ns))
    return metrics.percentile(gaps, 0.9) / _NS if gaps else 0.0


def _usual_s(requests: Sequence[RequestRecord]) -> Callable[[RequestRecord], float]:
    """Seconds to the first text that a request takes, by what the quickest quarter of these take."""
    if not requests:
        return lambda request: 0.0
    waits = [((r.chunk_ns[0] - r.start_ns) / _NS, _tokens(r)) for r in requests]
    least_s = metrics.percentile(sorted(s for s, _ in waits), QUICK)
    token_s = metrics.percentile(sorted(s / tokens for s, tokens in waits), QUICK)
    return lambda request: max(least_s, token_s * _tokens(request))


def _tokens(request: RequestRecord) -> int:
    return max(1, request.prompt_tokens - request.cached_tokens)
