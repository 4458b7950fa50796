"""Samples and paired ratios, for samples as small as two.

Opinionated. A sample has a median or a mean with a bootstrap interval. Two settings are compared by *launch pairs*
(both launched in one round, close in time, with the same prompts): the log ratio of each pair, and Student's t over
pairs. What could mislead comes back as Findings, to be shown.

The spread of two or three pairs is next to unknown, so the launch noise is shrunk, in two steps:

1. Over the campaign: all its launches are fitted by a setting effect plus a round effect; the residuals have `df`
   degrees of freedom and the sum of squares SS. With s0 = 1.5 % for the launch and as much again for the point measured
   in it, s2 = max((4 s0^2 + SS) / (4 + df), SS / df): the prior may widen an interval, never narrow one.
2. Over the pairs at hand: n = 4 + df // 3, and v = (2 n s2 + sum (d - mean)^2) / (n + pairs - 1). The interval is
   mean +- t(n + pairs - 1) sqrt(v / pairs), and so never of zero width. n grows slowly with the campaign, since one
   setting may be noisier than the others.

Not here, on purpose: a hierarchical bootstrap over launches and requests. Two launches have three distinct resamples,
so it would promise more than it knows; and the noise of requests is in the launch's number already. Nor is an outlier
ever dropped: that needs a logged cause.
"""

from __future__ import annotations

import functools
import math
import random
import statistics
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

import msgspec

from leadline import metrics
from leadline.answer import Ratio
from leadline.errors import InputError
from leadline.trial import Finding, LoadReport

Block = TypeVar("Block", bound=Hashable)
CONFIDENCE = 0.95
PRIOR_SD = 0.015
PRIOR_DF = 4
FEW = 4
RESAMPLES = 1000
BOOTSTRAPPED = ("ttft_ms.p50", "e2e_ms.p50", "tpot_ms.p50", "per_request_tok_s.mean")


# --- Student's t


def t_probability(t: float, df: int) -> float:
    """P(|T| <= t) for a whole number of degrees of freedom.

    Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 (odd) and 26.7.4 (even): finite series in the
    angle whose tangent is t / sqrt(df).
    """
    angle = math.atan(t / math.sqrt(df))
    sin, cos = math.sin(angle), math.cos(angle)
    if df == 1:
        return 2 * angle / math.pi
    odd = df % 2
    term = total = cos if odd else 1.0
    for k in range(2 + odd, df - 1, 2):
        term *= cos * cos * (k - 1) / k
        total += term
    return 2 / math.pi * (angle + sin * total) if odd else sin * total


@functools.cache
def t_quantile(confidence: float, df: int) -> float:
    """The t with P(|T| <= t) = confidence, by bisection; 12.706 for 0.95 and 1."""
    if df < 1 or not 0 < confidence < 1:
        raise ValueError(f"no Student t for confidence {confidence} and {df} degrees of freedom")
    low, high = 0.0, 1.0
    while t_probability(high, df) < confidence:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if t_probability(middle, df) < confidence else (low, middle)
    return high


# --- one sample


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The centre of a sample, and its interval. One value alone has lo = hi = center, and a warning."""

    center: float
    lo: float
    hi: float
    n: int
    confidence: float = CONFIDENCE
    warnings: tuple[Finding, ...] = ()


def summarize(
    values: Sequence[float],
    rng: random.Random,
    *,
    statistic: Callable[[Sequence[float]], float] = statistics.median,
    confidence: float = CONFIDENCE,
) -> Summary:
    """Centre and percentile bootstrap interval (Efron and Tibshirani 1993, chapter 13).

    The values must be independent: launches, or requests of one launch; then it says nothing about other launches.
    """
    if not values:
        raise ValueError("an empty sample has no centre")
    center = statistic(values)
    lo, hi = bootstrap(values, rng, statistic=statistic, confidence=confidence)
    n = len(values)
    return Summary(
        center=center, lo=min(lo, center), hi=max(hi, center), n=n, confidence=confidence, warnings=_small(n)
    )


def bootstrap(
    values: Sequence[float],
    rng: random.Random,
    *,
    statistic: Callable[[Sequence[float]], float],
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
) -> tuple[float, float]:
    """Percentile bootstrap bounds of a statistic."""
    again = sorted(statistic(rng.choices(values, k=len(values))) for _ in range(resamples))
    tail = (1 - confidence) / 2
    return metrics.percentile(again, tail), metrics.percentile(again, 1 - tail)


def _small(n: int) -> tuple[Finding, ...]:
    """The sample's whole range holds the true median with probability 1 - 2^(1-n) (order statistics)."""
    reach = 1 - 2 ** (1 - n)
    if reach >= CONFIDENCE:
        return ()
    return (
        Finding(
            code="few_values",
            message=f"An interval from {n} value{'s' * (n > 1)} is too narrow: their whole range holds the true median "
            f"with a probability of {reach:.0%}.",
            evidence=f"{n} values",
            remedy="Six or more are needed for 95 %.",
        ),
    )


def intervals(report: LoadReport, rng: random.Random) -> dict[str, tuple[float, float]]:
    """95 % bounds of the metrics with one value per request, over the requests of one measurement.

    They say how well this launch was measured, not what the next launch will do.
    """
    good = [r for r in report.records if r.ok and not r.warmup]
    out: dict[str, tuple[float, float]] = {}
    for name in BOOTSTRAPPED:
        metric, _, stat = name.partition(".")
        sample = metrics.SAMPLES[metric]
        values = [x for r in good for x in sample(r)]
        if len(values) > 1:
            out[name] = bootstrap(values, rng, statistic=statistics.fmean if stat == "mean" else statistics.median)
    return out


# --- launches


class Noise(msgspec.Struct, frozen=True, kw_only=True):
    """The sd of the logarithm of one launch's number, and the degrees of freedom of the launches that it rests on."""

    sd: float
    df: int = 0


def prior_noise(weights: Sequence[float] = (1.0,)) -> Noise:
    """What is assumed before any launch, for a weighted mean over points of one launch: the noise of the launch is
    common to its points, that of the points averages out. 2.1 % for one point."""
    spread = math.fsum(w * w for w in weights) / math.fsum(weights) ** 2
    return Noise(sd=PRIOR_SD * math.sqrt(1 + spread))


def pooled_noise(rows: Sequence[Mapping[Block, float]], prior: Noise) -> Noise:
    """Launch noise of a campaign: step 1 of this module's docstring.

    A row is a setting: the logarithm of its number in each round. Only rounds in which the first row (the reference)
    has a number are used, so that all are connected through it.
    """
    kept = [{b: x for b, x in row.items() if b in rows[0]} for row in rows] if rows else []
    kept = [row for row in kept if len(row) > 1]
    blocks = {b for row in kept for b in row}
    df = sum(map(len, kept)) - len(kept) - len(blocks) + 1
    if not kept or df < 1:
        return prior
    ss = math.fsum(x * x for row in _residuals(kept, blocks) for x in row.values())
    mixed = (PRIOR_DF * prior.sd**2 + ss) / (PRIOR_DF + df)
    return Noise(sd=math.sqrt(max(mixed, ss / df)), df=df)


def _residuals(rows: Sequence[Mapping[Block, float]], blocks: set[Block]) -> list[dict[Block, float]]:
    """What a setting effect plus a round effect leave over: least squares by turns. Balanced data need one turn."""
    left = [dict(row) for row in rows]
    for _ in range(100):
        moved = 0.0
        for row in left:
            mean = statistics.fmean(row.values())
            moved = max(moved, abs(mean))
            row.update({b: x - mean for b, x in row.items()})
        for block in blocks:
            column = [row for row in left if block in row]
            mean = statistics.fmean(row[block] for row in column)
            moved = max(moved, abs(mean))
            for row in column:
                row[block] -= mean
        if moved < 1e-12:
            break
    return left


def _shrunk(values: Sequence[float], variance: float, df: int) -> tuple[float, int]:
    """Standard error of a mean, and its degrees of freedom: step 2 of this module's docstring."""
    strength = PRIOR_DF + df // 3
    mean = statistics.fmean(values)
    own = math.fsum((x - mean) ** 2 for x in values)
    total = strength + len(values) - 1
    return math.sqrt((strength * variance + own) / total / len(values)), total


def level(values: Sequence[float], noise: Noise, confidence: float = CONFIDENCE) -> Summary:
    """The median of one setting's launches; its bounds are those of a paired ratio, for a number that stands alone.

    Unlike in a ratio, the machine's drift between rounds is part of it. The values must be positive.
    """
    center = statistics.median(values)
    se, df = _shrunk([math.log(v) for v in values], noise.sd**2, noise.df)
    factor = exp(t_quantile(confidence, df) * se)
    return Summary(center=center, lo=center / factor, hi=center * factor, n=len(values), confidence=confidence)


def detectable(noise: Noise, pairs: int, confidence: float = CONFIDENCE) -> float:
    """About the smallest difference that so many pairs can show: the usual half width, as a fraction."""
    df = PRIOR_DF + noise.df // 3 + pairs - 1
    return exp(t_quantile(confidence, df) * noise.sd * math.sqrt(2 / pairs)) - 1


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The mean of paired log ratios, above 0 = better, its standard error and degrees of freedom."""

    mean: float
    se: float
    df: int
    pairs: int

    @classmethod
    def of(cls, logs: Sequence[float], noise: Noise) -> Difference:
        """Step 2 of this module's docstring; at least one pair."""
        se, df = _shrunk(logs, 2 * noise.sd**2, noise.df)
        return cls(mean=statistics.fmean(logs), se=se, df=df, pairs=len(logs))

    def minus(self, other: Difference) -> Difference:
        """Two settings that share no round, through the reference that both were paired with."""
        return Difference(
            mean=self.mean - other.mean,
            se=math.hypot(self.se, other.se),
            df=min(self.df, other.df),
            pairs=min(self.pairs, other.pairs),
        )

    def ratio(self, confidence: float = CONFIDENCE) -> Ratio:
        half = t_quantile(confidence, self.df) * self.se
        return Ratio(
            ratio=exp(self.mean),
            lo=exp(self.mean - half),
            hi=exp(self.mean + half),
            pairs=self.pairs,
            confidence=confidence,
            warnings=_doubts(self.mean, half, self.pairs),
        )


def paired_ratio(
    pairs: Sequence[tuple[float, float]],
    *,
    noise: Noise | None = None,
    better: str = "higher",
    confidence: float = CONFIDENCE,
) -> Ratio:
    """First over second, turned so that above 1 is better. At least one pair.

    Without the noise of a campaign the prior alone stands in for it: too narrow on a machine that is noisier.
    """
    logs = [log(a, better) - log(b, better) for a, b in pairs]
    return Difference.of(logs, noise or prior_noise()).ratio(confidence)


def exp(value: float) -> float:
    """e to that power, kept finite and above 0: one absurd number must not cost a campaign its answer."""
    return math.exp(max(-300.0, min(300.0, value)))


def log(value: float, better: str) -> float:
    """The logarithm of a metric, turned so that more is better."""
    if better not in ("higher", "lower"):
        raise InputError(f"a metric of which neither more nor less is better cannot be compared ({better!r})")
    if not value > 0 or math.isinf(value):
        raise InputError(f"a ratio needs a positive number, not {value}")
    return math.log(value) if better == "higher" else -math.log(value)


def _doubts(mean: float, half: float, pairs: int) -> tuple[Finding, ...]:
    found = []
    if pairs < FEW:
        message = "Fewer than 4 launch pairs: the interval rests more on the noise of the whole campaign than on them."
        found.append(Finding(code="few_pairs", message=message, evidence=f"{pairs} launch pair{'s' * (pairs != 1)}"))
    if half > abs(mean):
        found.append(
            Finding(
                code="wide_interval",
                message="The interval is wider than the effect: more rounds may show a difference, or none.",
                size=f"{100 * mean:+.1f} % +- {100 * half:.1f} %",
            )
        )
    return tuple(found)
