"""Is the benchmark honest? First version: what its own numbers give away.

Each finding names a distortion that changes *which* depth wins. A finding excludes nothing by itself.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

import msgspec

from leadline.analysis import stats
from leadline.analysis.silence import unexplained
from leadline.evidence import Acceptance
from leadline.goal import Cell
from leadline.space import Setting
from leadline.trial import Finding, History, LoadReport, Measurement, Trial

# Acceptance efficiency (L - 1) / depth. Published curves of natural text reach .83 at depth 3, .74 at 5 and .66 at 7;
# looping or forced text reaches .96.
HIGH_EFFICIENCY, HIGH_FROM_DEPTH = 0.80, 5
CEILING_EFFICIENCY, CEILING_FROM_DEPTH = 0.90, 3
MAX_ERROR_FRAC = 0.01
MAX_LAG_MS = 5.0
MAX_LAG_SHARE = 0.05  # of the median TTFT: what a late stamp may add to it unnoticed
MAX_CLIENT_CPU = 0.8
MAX_LENGTH_RATIO = 1.10
MAX_CACHED_GAP = 0.05
MAX_DRIFT = 0.05


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What one measurement shows: the depth in force, the request bodies sent, what came back, and the counts."""

    depth: int
    bodies: tuple[Mapping[str, object], ...]
    report: LoadReport
    values: Mapping[str, float]
    acceptance: Acceptance | None = None


def findings_of(facts: Facts) -> tuple[Finding, ...]:
    """What is doubtful in one measurement."""
    checks: tuple[Callable[[Facts], Finding | None], ...] = (
        _acceptance,
        _nothing_drafted,
        _forced_length,
        _greedy,
        _errors,
        _client,
        _cold,
    )
    return tuple(f for f in (check(facts) for check in checks) if f is not None)


def _acceptance(facts: Facts) -> Finding | None:
    length = facts.acceptance.acceptance_length if facts.acceptance else None
    if length is None or facts.depth < CEILING_FROM_DEPTH:
        return None
    efficiency = (length - 1) / facts.depth
    evidence = f"acceptance length {length:.2f} of at most {facts.depth + 1}"
    remedy = "Look at the generated text for repetition, and measure prompts from your own traffic."
    if efficiency > CEILING_EFFICIENCY:
        return Finding(
            code="acceptance_at_ceiling",
            message="Nearly every draft token is accepted: no natural text does this, so the depth is overrated.",
            evidence=evidence,
            size=f"{efficiency:.0%} of the draft accepted",
            remedy=remedy,
        )
    if efficiency > HIGH_EFFICIENCY and facts.depth >= HIGH_FROM_DEPTH:
        return Finding(
            code="acceptance_high",
            message="More draft tokens are accepted than published natural workloads reach at this depth.",
            evidence=evidence,
            size=f"{efficiency:.0%} of the draft accepted",
            remedy=remedy,
        )
    return None


def _nothing_drafted(facts: Facts) -> Finding | None:
    counts = facts.acceptance
    if facts.depth == 0 or counts is None or counts.rounds == 0 or counts.drafted:
        return None
    return Finding(
        code="nothing_drafted",
        message="Speculation is on, but not one token was drafted.",
        evidence=f"{counts.rounds} decode rounds, 0 drafted",
        remedy="The drafter finds nothing to propose here, or its options exclude each other; read the server's log.",
    )


def _forced_length(facts: Facts) -> Finding | None:
    share = _share(facts.bodies, lambda body: bool(body.get("ignore_eos")))
    if not share:
        return None
    return Finding(
        code="ignore_eos",
        message="ignore_eos forces text past its natural end, where it repeats itself and drafts too well.",
        evidence=f"{share:.0%} of the requests",
        remedy="Let requests end by themselves; bound them with max_tokens.",
    )


def _greedy(facts: Facts) -> Finding | None:
    share = _share(facts.bodies, lambda body: body.get("temperature") == 0)
    if share <= 0.5:
        return None
    return Finding(
        code="temperature_zero",
        message="Greedy text is easier to draft than sampled text.",
        evidence=f"{share:.0%} of the requests have temperature 0",
        size="acceptance length 20-30 % higher for code, 5-10 % for chat",
        remedy="Send the temperature that your traffic has.",
    )


def _share(bodies: Sequence[Mapping[str, object]], holds: Callable[[Mapping[str, object]], bool]) -> float:
    return sum(map(holds, bodies)) / len(bodies) if bodies else 0.0


def _errors(facts: Facts) -> Finding | None:
    measured = [r for r in facts.report.records if not r.warmup]
    failed = [r for r in measured if not r.ok]
    if not measured or len(failed) / len(measured) <= MAX_ERROR_FRAC:
        return None
    kinds = statistics.multimode(r.error for r in failed)
    return Finding(
        code="errors",
        message="Requests failed; the speed of the rest says little.",
        evidence=f"{len(failed)} of {len(measured)} requests, most often: {kinds[0][:120]}",
        size=f"{len(failed) / len(measured):.1%}",
        remedy="Read the server's log for the reason.",
    )


def _client(facts: Facts) -> Finding | None:
    lag, cpu = facts.report.lag_p99_ms, facts.report.cpu_share
    tolerable_ms = max(MAX_LAG_MS, MAX_LAG_SHARE * facts.values.get("ttft_ms.p50", 0.0))
    if lag <= tolerable_ms and cpu <= MAX_CLIENT_CPU:
        return None
    return Finding(
        code="client_limited",
        message="The load worker could hardly keep up: times are too long and rates too low by an unknown part.",
        evidence=f"event loop late by {lag:.1f} ms (p99), {cpu:.0%} of a processor",
        remedy="Give the load worker a free processor, or another machine than the server's.",
    )


def _cold(facts: Facts) -> Finding | None:
    found = unexplained(facts.report)
    if not found:
        return None
    window_s = (facts.report.window_end_ns - facts.report.window_start_ns) / 1e9
    silent_s = math.fsum(s.s for s in found)
    at_s = (found[0].start_ns - facts.report.window_start_ns) / 1e9
    others = f", {len(found) - 1} more, {silent_s:.1f} s in all" if len(found) > 1 else ""
    rate, without = facts.values.get("output_tok_s", 0.0), silent_s / window_s
    rates = f"; without it {rate / (1 - without):,.0f} instead of {rate:,.0f} tok/s" if rate and without < 1 else ""
    return Finding(
        code="warmup_in_measurement",
        message=f"Nothing arrived for {found[0].s:.1f} s of a {window_s:.1f} s window: a kernel was compiled, or the "
        "server stalled, inside the measurement.",
        evidence=f"the longest silence began {at_s:.1f} s into the window{others}",
        size=f"{without:.0%} of the window{rates}",
        remedy="Warm up with more sessions (load.warmup), measure again (budget.rounds), and keep the caches of "
        "compiled kernels between launches.",
    )


# --- across settings


def findings_across(history: History) -> tuple[Finding, ...]:
    """What makes settings hard to compare in a cell, over complete trials."""
    trials = history.complete()
    found: list[Finding] = []
    for cell in dict.fromkeys(m.cell for t in trials for m in t.measurements):
        groups: dict[Setting, list[Measurement]] = {}
        for trial in trials:
            measured = trial.measurement(cell)
            if measured is not None:
                groups.setdefault(trial.setting, []).append(measured)
        found.extend(f for f in (_lengths(cell, groups), _cached(cell, groups)) if f is not None)
    return tuple(found)


def _lengths(cell: Cell, groups: Mapping[Setting, Sequence[Measurement]]) -> Finding | None:
    means = {}
    for setting, group in groups.items():
        answered = sum(m.requests - m.errors for m in group)
        tokens = sum(m.output_tokens for m in group)
        if answered > 0 and tokens > 0:
            means[setting] = tokens / answered
    if len(means) < 2:
        return None
    short, long = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
    ratio = means[long] / means[short]
    if ratio <= MAX_LENGTH_RATIO:
        return None
    return Finding(
        code="output_length_differs",
        message=f"Answers at {cell} are not equally long in all settings: they did not do the same work.",
        evidence=f"{means[short]:.0f} tokens a request at {short}, {means[long]:.0f} at {long}",
        size=f"{ratio - 1:.0%} longer",
        remedy="Compare rates rather than whole answers, and check whether a setting changes the output.",
    )


def _cached(cell: Cell, groups: Mapping[Setting, Sequence[Measurement]]) -> Finding | None:
    shares = {}
    for setting, group in groups.items():
        known = [m.values["cached_frac"] for m in group if "cached_frac" in m.values]
        if known:
            shares[setting] = statistics.fmean(known)
    if len(shares) < 2:
        return None
    low, high = min(shares, key=shares.__getitem__), max(shares, key=shares.__getitem__)
    if shares[high] - shares[low] <= MAX_CACHED_GAP:
        return None
    return Finding(
        code="cached_share_differs",
        message=f"The prompt cache helped some settings more than others at {cell}.",
        evidence=f"{shares[low]:.0%} of prompt tokens from the cache at {low}, {shares[high]:.0%} at {high}",
        size=f"{100 * (shares[high] - shares[low]):.0f} points",
        remedy="Use prompts that no launch has seen before, or let every launch warm the cache alike.",
    )


def drift(trials: Sequence[Trial], metric: str = "output_tok_s") -> tuple[Finding, ...]:
    """How far the launches of one setting lie apart, as the mean over the cells that all of them have."""
    cells = [c for c in _cells(trials) if all(_positive(t.measurement(c), metric) for t in trials)]
    if len(trials) < 2 or not cells:
        return ()
    logs = {
        t.id: statistics.fmean(math.log(m.values[metric]) for m in t.measurements if m.cell in cells) for t in trials
    }
    slow, fast = min(logs, key=logs.__getitem__), max(logs, key=logs.__getitem__)
    apart = stats.exp(logs[fast] - logs[slow]) - 1
    if apart <= MAX_DRIFT:
        return ()
    return (
        Finding(
            code="drift",
            message=f"The machine's speed changed during the campaign, seen on {trials[0].setting} alone.",
            evidence=f"trial {fast} was faster than trial {slow}",
            size=f"{apart:.0%} in {metric}",
            remedy="Ratios pair launches of one round, so this cancels between rounds; within a round it widens them.",
        ),
    )


def _cells(trials: Sequence[Trial]) -> list[Cell]:
    return list(dict.fromkeys(m.cell for t in trials for m in t.measurements))


def _positive(measured: Measurement | None, metric: str) -> bool:
    return measured is not None and measured.values.get(metric, 0.0) > 0
