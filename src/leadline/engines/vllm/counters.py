"""vLLM's counters: what `/metrics` says, and what happened between two looks at it.

Series and labels as in vllm/v1/metrics/loggers.py and vllm/v1/spec_decode/metrics.py. Several engines (data parallel)
have a series each, with the label `engine`; they are added up. The series of speculation are there, as zeros, from the
start of a server that speculates, and not there at all in one that does not.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from leadline.dialect.answers import probe_tokens
from leadline.dialect.prometheus import Samples, parse
from leadline.evidence import Acceptance, Busy, Evidence, Reply
from leadline.trial import RequestRecord

GENERATED = "vllm:generation_tokens_total"
DRAFTS = "vllm:spec_decode_num_drafts_total"
DRAFTED = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
CACHE = "vllm:cache_config_info"
_MOST_POSITIONS = 1 << 12


class Counters(msgspec.Struct, frozen=True):
    """`/metrics` at one moment. In a server that does not speculate `drafts`, `drafted` and `accepted` are None, and
    `positions` is empty."""

    generated: int
    drafts: int | None
    drafted: int | None
    accepted: int | None
    positions: tuple[int, ...]


def of(samples: Samples) -> Counters | None:
    """None when the server counts no tokens (it was started with --disable-log-stats)."""
    generated = samples.count(GENERATED)
    if generated is None:
        return None
    return Counters(
        generated,
        samples.count(DRAFTS),
        samples.count(DRAFTED),
        samples.count(ACCEPTED),
        _positions(samples),
    )


def counters(evidence: Evidence) -> Counters | None:
    return of(parse(evidence.body("metrics")))


def busy(reply: Reply) -> Busy | None:
    """Requests over all engines; the usage of the fullest KV cache."""
    samples = parse(reply.body if reply.ok else None)
    running = samples.count("vllm:num_requests_running")
    if running is None:
        return None
    usage = samples.most("vllm:kv_cache_usage_perc")
    if usage is None:
        usage = samples.most("vllm:gpu_cache_usage_perc")  # until 0.10
    return Busy(
        running=running,
        waiting=samples.count("vllm:num_requests_waiting"),
        kv_usage=usage if usage is not None and 0 <= usage <= 1 else None,
    )


def acceptance(before: Evidence, after: Evidence, records: Sequence[RequestRecord]) -> Acceptance | None:
    """Differences of counters; None without counters, or when they cannot be of one server and of these requests.

    `records` must hold every request of the window, warm-up and failed ones too. The first token of a request comes
    from its prompt's pass and is no round; each round yields one token besides those that it accepts, so rounds =
    decode tokens - accepted, and never fewer than the rounds that drafted. Tokens accepted behind a request's end are
    counted by vLLM and never sent, so a request may show up to `depth` rounds too few.
    """
    old, new = counters(before), counters(after)
    if old is None or new is None or _went_back(old, new):
        return None
    drafted, accepted, drafting = (
        _minus(new.drafted, old.drafted),
        _minus(new.accepted, old.accepted),
        _minus(new.drafts, old.drafts),
    )
    if sum(r.drafted for r in records) > drafted or sum(r.accepted for r in records) > accepted:
        return None
    started = sum(1 for r in records if r.output_tokens or r.chunk_ns)
    first_tokens = started + (1 if probe_tokens(before, after) else 0)
    decode_tokens = max(0, new.generated - old.generated - first_tokens)
    earlier = (*old.positions, *(0,) * len(new.positions))
    return Acceptance(
        decode_tokens=decode_tokens,
        rounds=max(decode_tokens - accepted, drafting),
        drafting_rounds=drafting,
        drafted=drafted,
        accepted=accepted,
        per_position=tuple(n - o for n, o in zip(new.positions, earlier, strict=False)),
    )


def foreign_tokens(before: Evidence, after: Evidence, records: Sequence[RequestRecord], context: int | None) -> int:
    """Tokens that the server generated and that cannot be ours.

    What a request of ours that failed or was cut got is unknown; it may be all that its context holds, so that much is
    given to each, and nothing is reported when the context is unknown. Ours too: the tokens of a "ready" probe that was
    answered in the window.
    """
    old, new = counters(before), counters(after)
    if old is None or new is None or _went_back(old, new):
        return 0
    excess = new.generated - old.generated - sum(r.output_tokens for r in records) - probe_tokens(before, after)
    cut = sum(1 for r in records if not r.ok or r.output_tokens == 0)
    if cut and context is None:
        return 0
    return max(0, excess - cut * (context or 0))


def restarted(before: Evidence, after: Evidence) -> bool:
    """Whether a counter shrank or went away; without counters, no."""
    old, new = counters(before), counters(after)
    return old is not None and new is not None and _went_back(old, new)


def _went_back(old: Counters, new: Counters) -> bool:
    pairs = ((old.drafts, new.drafts), (old.drafted, new.drafted), (old.accepted, new.accepted))
    gone = len(new.positions) < len(old.positions) or any(o is not None and n is None for o, n in pairs)
    shrunk = any(n < o for o, n in zip(old.positions, new.positions, strict=False))
    return gone or shrunk or new.generated < old.generated or any(_minus(n, o) < 0 for o, n in pairs)


def _minus(new: int | None, old: int | None) -> int:
    return (new or 0) - (old or 0)


def _positions(samples: Samples) -> tuple[int, ...]:
    """Counts from position 0 on; positions are told from a label, so that any text may stand there."""
    counted = samples.by_label(PER_POSITION, "position")
    numbers = {int(p): int(v) for p, v in counted.items() if p.isdecimal() and p.isascii() and len(p) < 6 and v >= 0}
    if not numbers or max(numbers) >= _MOST_POSITIONS:
        return ()
    return tuple(numbers.get(i, 0) for i in range(max(numbers) + 1))
