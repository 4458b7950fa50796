"""The counters of SGLang's `/metrics`, and what happened between two looks at them.

Source: `observability/metrics_collector.py`, TokenizerMetricsCollector.observe_one_finished_request. Everything of a
request is counted when it ends: its tokens, and in the same call its verify calls, so a window is exact when no request
is in flight at either of its ends. The probe of "/health" is not counted (`log_metrics=False`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from leadline.dialect import prometheus
from leadline.dialect.answers import json_of, list_of, object_of, probe_tokens, whole_of
from leadline.engines.sglang.server import effective
from leadline.evidence import Acceptance, Busy, Effective, Evidence, Reply
from leadline.trial import RequestRecord

_GENERATED = "sglang:generation_tokens_total"
_REQUESTS = "sglang:num_requests_total"
_VERIFIED = "sglang:spec_verify_calls_total"
_RETRACTED = "sglang:num_retracted_requests_total"


class Counters(msgspec.Struct, frozen=True):
    """One scrape. `verified` is None while no verify call was counted: without speculation, in versions before 0.5.13,
    and before the first request ended. `processes` = ids of the scheduler processes, where a gauge tells them."""

    generated: int
    requests: int | None
    verified: int | None
    retracted: int
    processes: frozenset[str]

    @property
    def decoded(self) -> int:
        """Tokens from decode steps, retractions aside: the first token of a request comes from its prompt's pass."""
        return max(0, self.generated - (self.requests or 0))


class Window(msgspec.Struct, frozen=True):
    """What was counted between two scrapes of one process. `verified` None = verify calls are not counted."""

    generated: int
    decoded: int
    verified: int | None


def counters(evidence: Evidence) -> Counters | None:
    """None when there is no scrape of SGLang: it was started without --enable-metrics, or did not answer.

    Right after the start a series is absent, and appears with its first request: absent tokens are none.
    """
    samples = prometheus.parse(evidence.body("metrics"))
    if not any(name.startswith("sglang:") for name in samples.by_name):
        return None
    generated = samples.count(_GENERATED) if samples.has(_GENERATED) else 0
    if generated is None:
        return None
    everyone = (sample for group in samples.by_name.values() for sample in group)
    return Counters(
        generated=generated,
        requests=samples.count(_REQUESTS) if samples.has(_REQUESTS) or not samples.has(_GENERATED) else None,
        verified=samples.count(_VERIFIED),
        retracted=_of_server(samples, _RETRACTED) or 0,
        processes=frozenset(s.labels["pid"] for s in everyone if "pid" in s.labels),
    )


def acceptance(before: Evidence, after: Evidence, records: Sequence[RequestRecord]) -> Acceptance | None:
    """Differences of counters; None without counters, or when they cannot be of one server and of these requests.

    A round is one request in one verify call, and each yields one token besides those that it accepts; so accepted =
    decode tokens - rounds. That leaves out what was accepted behind the end of a request and never sent. When the
    records carry the engine's histograms of every round in the window, accepted and `per_position` come from them and
    hold those tokens too. Decode tokens beyond what the verify calls can have yielded came from plain steps.

    SGLang drafts in every round, also with an n-gram drafter, which fills up its guesses. With `--speculative-adaptive`
    the depth changes: `drafted` is then what the responses say, or else what the deepest drafts would be.
    """
    old, new = counters(before), counters(after)
    if old is None or new is None or restarted(before, after):
        return None
    window = _window(old, new, records, _probes(before, after))
    seen = effective(after)
    if seen.speculating is None:
        seen = effective(before)
    verified = window.verified
    if verified is None and window.decoded and seen.speculating is not False:
        return None
    if not verified:
        return Acceptance(decode_tokens=window.decoded, rounds=window.decoded, drafting_rounds=0, drafted=0, accepted=0)
    positions = _positions(seen, after)
    return None if positions is None else _speculated(window.decoded, verified, positions, seen.depth or 0, records)


def foreign_tokens(before: Evidence, after: Evidence, records: Sequence[RequestRecord]) -> int:
    """Tokens that the server generated and that cannot be ours.

    What a request of ours that failed or was cut got is unknown; it may be all that the context holds, so that much is
    given to each, and nothing is reported when the context is unknown. Ours too: the tokens of a "ready" probe that was
    answered in the window. A foreign request is counted when it ends, so one still running is not seen.
    """
    old, new = counters(before), counters(after)
    if old is None or new is None or restarted(before, after):
        return 0
    excess = new.generated - old.generated - sum(r.output_tokens for r in records) - probe_tokens(before, after)
    cut = sum(1 for r in records if not r.ok or r.output_tokens == 0)
    if cut:
        context = effective(after).context or effective(before).context
        if context is None:
            return 0
        excess -= cut * context
    return max(0, excess)


def restarted(before: Evidence, after: Evidence) -> bool:
    """Whether a counter shrank, or the process is another one by its scheduler's id, its seed or its start-up times."""
    old, new = counters(before), counters(after)
    if old is not None and new is not None:
        if new.generated < old.generated or (new.requests or 0) < (old.requests or 0):
            return True
        if (new.verified or 0) < (old.verified or 0):
            return True
        if old.processes and new.processes and not old.processes & new.processes:
            return True
    one, other = _birth(before), _birth(after)
    return any(one[key] != other[key] for key in one.keys() & other.keys())


def busy(reply: Reply) -> Busy | None:
    """From `sglang:num_running_reqs`, `sglang:num_queue_reqs` and `sglang:token_usage` (the fullest rank).

    They are as of the scheduler's last report, so a server that just fell silent may look busy for a moment.
    """
    samples = prometheus.parse(reply.body if reply.ok else None)
    running = _of_server(samples, "sglang:num_running_reqs")
    if running is None:
        return None
    return Busy(
        running=running,
        waiting=_of_server(samples, "sglang:num_queue_reqs"),
        kv_usage=samples.most("sglang:token_usage"),
    )


def _window(old: Counters, new: Counters, records: Sequence[RequestRecord], probes: int) -> Window:
    """Without a counter of requests, ours and our probes are all that there were.

    A verify counter that was absent before counts from 0 when no token had been decoded until then: both are counted in
    the same call. Otherwise what it held is unknown, and so is the window.
    """
    generated = new.generated - old.generated
    if new.requests is not None:
        first = new.requests - (old.requests or 0)
    else:
        first = sum(1 for r in records if r.output_tokens) + probes
    began = old.verified if old.verified is not None else (0 if old.decoded == 0 else None)
    return Window(
        generated=generated,
        decoded=max(0, generated - first - max(0, new.retracted - old.retracted)),
        verified=None if new.verified is None or began is None else new.verified - began,
    )


def _speculated(
    decoded: int, verified: int, positions: int, depth: int, records: Sequence[RequestRecord]
) -> Acceptance:
    """A chain of n drafts yields at most n + 1 tokens per verify call, a tree of n nodes no more."""
    plain = max(0, decoded - verified * (positions + 1))
    rounds = verified + plain
    accepted = max(0, decoded - rounds)
    histogram = _histogram(records)
    per_position: tuple[int, ...] = ()
    if histogram and sum(histogram) == verified:
        reached = [sum(histogram[i + 1 :]) for i in range(max(len(histogram) - 1, depth))]
        per_position = tuple(reached)
        accepted = sum(reached)
    return Acceptance(
        decode_tokens=decoded,
        rounds=rounds,
        drafting_rounds=verified,
        drafted=_drafted(verified, positions, records),
        accepted=accepted,
        per_position=per_position,
    )


def _histogram(records: Sequence[RequestRecord]) -> list[int]:
    width = max((len(r.histogram) for r in records), default=0)
    return [sum(r.histogram[i] for r in records if i < len(r.histogram)) for i in range(width)]


def _drafted(verified: int, positions: int, records: Sequence[RequestRecord]) -> int:
    """The responses' own figure when it covers all rounds: it knows of a depth that changed."""
    told = sum(r.drafted for r in records)
    return told if told and sum(r.rounds for r in records) == verified else verified * positions


def _positions(seen: Effective, after: Evidence) -> int | None:
    """Draft tokens of one round: the steps of a chain, else the nodes of the tree without its root."""
    if seen.depth is not None and seen.topk in (None, 1):
        return seen.depth
    if seen.draft_tokens is not None:
        return max(0, seen.draft_tokens - 1)
    states = list_of(object_of(json_of(after, "server_info")).get("internal_states"))
    most = whole_of(object_of(states[0]).get("max_speculative_num_draft_tokens")) if states else None
    return max(0, most - 1) if most is not None else None


def _of_server(samples: prometheus.Samples, name: str) -> int | None:
    """Summed over data-parallel ranks. Tensor-parallel ranks repeat the figure, and so do series for each priority."""
    by_rank: dict[str, float] = {}
    for sample in samples.by_name.get(name, ()):
        if not sample.labels.get("priority"):
            rank = sample.labels.get("dp_rank", "")
            by_rank[rank] = max(by_rank.get(rank, 0.0), sample.value)
    return whole_of(int(sum(by_rank.values()))) if by_rank else None


def _birth(evidence: Evidence) -> dict[str, object]:
    """What differs from one start to the next: the seed that it drew, the times that its start took (0.5.20 on)."""
    info = object_of(json_of(evidence, "server_info"))
    return {key: info[key] for key in ("random_seed", "startup_time") if info.get(key) is not None}


def _probes(before: Evidence, after: Evidence) -> int:
    return 1 if probe_tokens(before, after) else 0
