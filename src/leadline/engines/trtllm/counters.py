"""What trtllm-serve counts, over exactly the window between two looks.

The counters of `metrics/collector.py` that a request adds to when it ends: `trtllm_generation_tokens_total` (all its
tokens), `trtllm_request_success_total` (1), and for each draft position, from 0, how often it was drafted and accepted.
`trtllm_spec_decode_num_*_total` are not used: they come from iteration statistics, of which some are lost.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from leadline.dialect.answers import probe_tokens
from leadline.dialect.prometheus import Samples, parse
from leadline.evidence import Acceptance, Evidence
from leadline.trial import RequestRecord

GENERATED = "trtllm_generation_tokens_total"
ENDED = "trtllm_request_success_total"
DRAFTED = "trtllm_spec_decode_drafted_tokens_total"
ACCEPTED = "trtllm_spec_decode_accepted_tokens_total"
MODEL_INFO = "trtllm_model_config_info"
SPEC_INFO = "trtllm_speculative_config_info"
KV_INFO = "trtllm_kv_cache_config_info"

_POSITION = re.compile(r"\d{1,4}")


class Counters(msgspec.Struct, frozen=True):
    """One look. `drafted` and `accepted` by position; None = the server has not said a word about drafts."""

    generated: int
    ended: int
    drafted: tuple[int, ...] | None
    accepted: tuple[int, ...]


def samples(evidence: Evidence) -> Samples:
    return parse(evidence.body("metrics"))


def counters(evidence: Evidence) -> Counters | None:
    """None before the first request has ended: a series that is not there yet is not 0.

    A server that was started without speculation says so in its configuration, and has then drafted nothing.
    """
    seen = samples(evidence)
    generated, ended = seen.count(GENERATED), seen.count(ENDED)
    if generated is None or ended is None:
        return None
    drafted = _by_position(seen, DRAFTED)
    off = seen.has(MODEL_INFO) and not seen.has(SPEC_INFO)
    return Counters(generated, ended, drafted if drafted or off else None, _by_position(seen, ACCEPTED))


def acceptance(before: Evidence, after: Evidence, records: Sequence[RequestRecord]) -> Acceptance | None:
    """Differences of counters; None without them, or when they cannot be of one server.

    The first token of a request comes from the prompt's pass and is no round; each round yields one token besides those
    that it accepts, so rounds = decode tokens - accepted. Tokens accepted behind a stop are counted and never sent, so
    that a request may show a few rounds too few; never fewer than the rounds that drafted. A request counts in the
    window in which it ends, so none may be under way at either look.
    """
    old, new = counters(before), counters(after)
    if old is None or new is None or new.drafted is None or _went_back(old, new):
        return None
    drafted = _difference(new.drafted, old.drafted or ())
    accepted = _difference(new.accepted, old.accepted)[: len(drafted)]
    decode_tokens = max(0, (new.generated - old.generated) - (new.ended - old.ended))
    drafting = max(drafted, default=0)
    return Acceptance(
        decode_tokens=decode_tokens,
        rounds=max(decode_tokens - sum(accepted), drafting),
        drafting_rounds=drafting,
        drafted=sum(drafted),
        accepted=sum(accepted),
        per_position=accepted + (0,) * (len(drafted) - len(accepted)),
    )


def foreign_tokens(before: Evidence, after: Evidence, records: Sequence[RequestRecord]) -> int:
    """Tokens that the server generated and that cannot be ours, the "ready" probe's included.

    What a request of ours that failed or was cut got is unknown; it may be all that a context holds, so that much is
    given to each, and nothing is reported when the context is unknown.
    """
    old, new = counters(before), counters(after)
    if old is None or new is None or _went_back(old, new):
        return 0
    ours = sum(r.output_tokens for r in records) + probe_tokens(before, after)
    excess = new.generated - old.generated - ours
    cut = sum(1 for r in records if not r.ok or r.output_tokens == 0)
    if cut:
        room = context(after) or context(before)
        if room is None:
            return 0
        excess -= cut * room
    return max(0, excess)


def restarted(before: Evidence, after: Evidence) -> bool:
    """Whether a counter shrank, or is gone from a server that answers; without counters, no."""
    old, new = counters(before), counters(after)
    if old is None:
        return False
    return _went_back(old, new) if new is not None else samples(after).has(MODEL_INFO)


def context(evidence: Evidence) -> int | None:
    """Tokens of one request at most, from the configuration that the server shows, or else its log."""
    for sample in samples(evidence).by_name.get(MODEL_INFO, ()):
        if re.fullmatch(r"\d{1,9}", sample.labels.get("max_model_len", "")):
            return int(sample.labels["max_model_len"])
    found = LIMITS.findall(evidence.log)
    return int(found[-1][0]) if found else None


LIMITS = re.compile(r"max_seq_len=(\d{1,9}), max_num_requests=(\d{1,9}), max_num_tokens=\d+, max_batch_size=\d+")


def _by_position(seen: Samples, name: str) -> tuple[int, ...]:
    """One entry for each position up to the last; one that is missing in between was never counted."""
    counts = {int(p): n for p, n in seen.by_label(name, "token_position").items() if _POSITION.fullmatch(p) and n >= 0}
    return tuple(int(counts.get(p, 0)) for p in range(max(counts, default=-1) + 1))


def _difference(new: tuple[int, ...], old: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n - o for n, o in zip(new, (*old, *(0,) * len(new)), strict=False))


def _went_back(old: Counters, new: Counters) -> bool:
    drafted = (old.drafted or (), new.drafted or ())
    shrunk = any(
        len(now) < len(then) or any(n < t for n, t in zip(now, then, strict=False))
        for then, now in (drafted, (old.accepted, new.accepted))
    )
    return shrunk or new.generated < old.generated or new.ended < old.ended
