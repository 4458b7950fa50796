"""Lab physics: how a speculating server would behave, as arithmetic. Pure: no clock, no I/O.

One step of the engine serves every running request once:

    T(depth, B) = base + token * n + request * B [+ jump + draft_step * depth],   n = B * (depth + 1)

with the bracket when anything was drafted (a spec may have measured times in its place, and tokens that cost nothing),
and the prefill of the requests that were just admitted on top. A request gets 1 + A tokens a step,
P(A >= i) = prod_{j<=i} a1 * rho^(j-1). Draws follow a golden-ratio sequence for each request: over n rounds the counts
are within a few of their expectation, so noise enters only where the spec puts it.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from leadline.evidence import Acceptance
from leadline.testing.spec import (
    WORKLOADS,
    LabRequest,
    LabSpec,
    LabWorkload,
    expected_length,
    natural_tokens,
    survival,
    workload_of,
)

__all__ = [
    "WORKLOADS",
    "Counters",
    "Emission",
    "Finish",
    "LabEngine",
    "LabRequest",
    "LabSpec",
    "LabWorkload",
    "Step",
    "expected_length",
    "natural_tokens",
    "survival",
    "truth",
    "workload_of",
]

_GOLDEN = (math.sqrt(5) - 1) / 2


class Finish(msgspec.Struct, frozen=True, kw_only=True):
    """How a request ended: "stop", "length" or "cancelled", and what it took. The first token is of no round."""

    reason: str
    output_tokens: int
    prompt_tokens: int
    prompt_s: float
    decode_s: float
    acceptance: Acceptance


class Emission(msgspec.Struct, frozen=True):
    """One chunk of one request. `cut` = the stream ends here without a last word."""

    id: int
    tokens: int
    finish: Finish | None = None
    cut: bool = False


class Step(msgspec.Struct, frozen=True):
    duration_s: float
    emissions: tuple[Emission, ...]


@dataclass(slots=True)
class Counters:
    """What a server counts since it started. As in llama.cpp, tokens and drafts of a request count when it ends."""

    prompt_tokens: int = 0
    prompt_s: float = 0.0
    predicted_tokens: int = 0
    predicted_s: float = 0.0
    decodes: int = 0
    busy_slots: int = 0
    longest: int = 0
    admitted: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted: int = 0
    rounds: int = 0
    per_position: list[int] = field(default_factory=list)
    drafted_at: list[int] = field(default_factory=list)
    ended: dict[str, int] = field(default_factory=dict)

    def plus(self, live: _Live) -> Counters:
        """With the tokens and drafts of one more request."""
        return replace(
            self,
            predicted_tokens=self.predicted_tokens + live.emitted,
            predicted_s=self.predicted_s + live.decode_s,
            longest=max(self.longest, live.request.prompt_tokens + live.emitted),
            drafts=self.drafts + live.drafting,
            draft_tokens=self.draft_tokens + live.drafted,
            accepted=self.accepted + live.accepted,
            rounds=self.rounds + live.rounds,
            per_position=[a + b for a, b in zip(self.per_position, live.per_position, strict=True)],
            drafted_at=[a + b for a, b in zip(self.drafted_at, live.drafted_at, strict=True)],
        )


@dataclass(slots=True)
class _Live:
    """A request in the engine. `left` tokens to come, `room` tokens until its own limit."""

    id: int
    request: LabRequest
    kind: LabWorkload
    left: int
    room: int
    u: float
    emitted: int = 0
    rounds: int = 0
    drafting: int = 0
    drafted: int = 0
    accepted: int = 0
    per_position: list[int] = field(default_factory=list)
    drafted_at: list[int] = field(default_factory=list)
    prompt_s: float = 0.0
    decode_s: float = 0.0

    @property
    def need(self) -> int:
        return self.request.prompt_tokens + self.emitted + self.left

    def count(self, drafted: int, accepted: int) -> None:
        self.drafting += 1
        self.drafted += drafted
        self.accepted += accepted
        for position in range(drafted):
            self.drafted_at[position] += 1
            self.per_position[position] += position < accepted

    def finish(self, reason: str) -> Finish:
        acceptance = Acceptance(
            decode_tokens=self.rounds + self.accepted,
            rounds=self.rounds,
            drafting_rounds=self.drafting,
            drafted=self.drafted,
            accepted=self.accepted,
            per_position=tuple(self.per_position) if self.drafting else (),
        )
        return Finish(
            reason=reason,
            output_tokens=self.emitted,
            prompt_tokens=self.request.prompt_tokens,
            prompt_s=self.prompt_s,
            decode_s=self.decode_s,
            acceptance=acceptance,
        )


class LabEngine:
    """A server's scheduler and drafter, one step at a time.

    First come, first served: a request waits until fewer than `max_running` run and the KV pool holds its prompt and
    its whole answer. The same arguments and calls give the same results; `seed` moves the noise only, so a prompt is
    drafted alike in every launch (as a real server does at temperature 0). As llama.cpp does, it never drafts beyond a
    request's token limit; a round that meets the natural end counts what was emitted.
    """

    def __init__(self, spec: LabSpec, *, depth: int, max_running: int, seed: int = 0) -> None:
        self.spec = spec
        self.depth = depth
        self.max_running = spec.slots(depth, max_running)
        self.pool = spec.pool(depth)
        self.counters = Counters(per_position=[0] * depth, drafted_at=[0] * depth)
        self._rng = random.Random(f"launch|{spec.seed}|{seed}")
        self._launch_noise = math.exp(self._rng.gauss(0.0, spec.launch_sd))
        self._survival = {id(k): survival(k, depth) for k in (*spec.workloads.values(), spec.other)}
        self._queue: deque[_Live] = deque()
        self._running: dict[int, _Live] = {}
        self._kv_used = 0
        self._ids = itertools.count()
        self.new_point()

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def queued(self) -> int:
        return len(self._queue)

    @property
    def kv_used(self) -> int:
        """KV tokens reserved by the running requests."""
        return self._kv_used

    def so_far(self) -> Counters:
        """The counters of a server that counts tokens and drafts as they come, not when a request ends."""
        return functools.reduce(Counters.plus, self._running.values(), self.counters)

    def new_point(self) -> None:
        """A new load point: its own noise."""
        self._noise = self._launch_noise * math.exp(self._rng.gauss(0.0, self.spec.point_sd))

    def submit(self, request: LabRequest) -> int:
        """Queues it and returns its number. Raises ValueError when the pool could never hold it."""
        kind = self.spec.workload(request.prompt_id)
        left = min(request.max_tokens, natural_tokens(self.spec, request))
        if request.prompt_tokens + left > self.pool or self.max_running < 1:
            raise ValueError(f"{request.prompt_tokens} + {left} tokens do not fit into a KV pool of {self.pool}")
        u = random.Random(f"draw|{self.spec.seed}|{request.prompt_id}").random()
        live = _Live(id=next(self._ids), request=request, kind=kind, left=left, room=request.max_tokens, u=u)
        live.per_position, live.drafted_at = [0] * self.depth, [0] * self.depth
        self._queue.append(live)
        return live.id

    def cancel(self, number: int) -> Finish | None:
        """Takes a request out; None when it is not (or no longer) here."""
        live = self._running.pop(number, None)
        if live is not None:
            return self._release(live, "cancelled")
        for live in self._queue:
            if live.id == number:
                self._queue.remove(live)
                return live.finish("cancelled")
        return None

    def step(self) -> Step:
        """One step of the batch; an idle engine takes no time and emits nothing."""
        decoding = list(self._running.values())
        fresh = self._admit()
        if not self._running:
            return Step(0.0, ())
        chunks = [self._round(live) for live in decoding]
        ms = self.spec.step_ms(len(decoding), sum(d + 1 for _, d in chunks), max((d for _, d in chunks), default=0))
        prompt_tokens = sum(live.request.prompt_tokens for live in fresh)
        duration_s = (ms + self.spec.prefill_token_ms * prompt_tokens) * self._noise / 1e3
        for live in decoding:
            live.decode_s += duration_s
        for live in fresh:
            live.prompt_s = duration_s
        self.counters.decodes += 1
        self.counters.busy_slots += len(decoding) + len(fresh)
        self.counters.prompt_tokens += prompt_tokens
        self.counters.prompt_s += duration_s if fresh else 0.0
        emitted = [self._emit(live, tokens) for live, (tokens, _) in zip(decoding, chunks, strict=True)]
        return Step(duration_s, (*emitted, *(self._emit(live, 1) for live in fresh)))

    def _admit(self) -> list[_Live]:
        fresh: list[_Live] = []
        while self._queue and self.running < self.max_running and self._kv_used + self._queue[0].need <= self.pool:
            live = self._queue.popleft()
            self._running[live.id] = live
            self._kv_used += live.need
            self.counters.admitted += 1
            fresh.append(live)
        return fresh

    def _round(self, live: _Live) -> tuple[int, int]:
        """One verification of one request: tokens emitted, tokens drafted."""
        live.u = (live.u + _GOLDEN) % 1.0
        drafted = min(self.depth, live.room - 1) if live.u < live.kind.draft_share else 0
        tokens = 1
        if drafted > 0:
            chances, u = self._survival[id(live.kind)], live.u / live.kind.draft_share
            while tokens <= drafted and u < chances[tokens - 1]:
                tokens += 1
            tokens = min(tokens, live.left)
            live.count(drafted, tokens - 1)
        live.rounds += 1
        return tokens, drafted

    def _emit(self, live: _Live, tokens: int) -> Emission:
        live.emitted += tokens
        live.left -= tokens
        live.room -= tokens
        if live.left:
            return Emission(live.id, tokens)
        del self._running[live.id]
        return Emission(live.id, tokens, self._release(live, "stop" if live.room else "length"))

    def _release(self, live: _Live, reason: str) -> Finish:
        self._kv_used -= live.need
        ended = {**self.counters.ended, reason: self.counters.ended.get(reason, 0) + 1}
        self.counters = replace(self.counters.plus(live), ended=ended)
        return live.finish(reason)


def mixed_prompts(mix: Mapping[str, float]) -> Iterator[str]:
    """Endless prompt ids whose workloads follow the weights as evenly as can be."""
    names, weights = list(mix), list(mix.values())
    bounds = list(itertools.accumulate(w / sum(weights) for w in weights))
    for n in itertools.count():
        u = (0.5 + n * _GOLDEN) % 1.0
        yield f"{names[next((i for i, b in enumerate(bounds) if u < b), len(names) - 1)]}:truth-{n}"


def truth(
    spec: LabSpec,
    *,
    depth: int,
    concurrency: int,
    max_running: int | None = None,
    mix: Mapping[str, float] | None = None,
    prompt_tokens: int = 200,
    max_tokens: int = 128,
) -> float:
    """Steady-state `output_tok_s` of a setting: a long closed loop without noise and faults.

    Counts from the end of the first requests to the moment when one user finds no work, as a measurement does. 0.0 when
    the setting would not start.
    """
    quiet = spec.quiet()
    engine = LabEngine(quiet, depth=depth, max_running=max_running or spec.max_running)
    if engine.max_running < 1:
        return 0.0
    prompts = itertools.islice(mixed_prompts(mix or {"coding": 1.0}), 400 + 40 * concurrency)
    shape = [LabRequest(prompt_id=p, prompt_tokens=prompt_tokens, max_tokens=max_tokens) for p in prompts]
    return _closed_loop(engine, shape, concurrency)


def _closed_loop(engine: LabEngine, requests: Sequence[LabRequest], users: int) -> float:
    """Tokens a second between the end of every user's first request and the first idle user."""
    waiting = deque(requests)
    warm = {engine.submit(waiting.popleft()) for _ in range(min(users, len(waiting)))}
    now = start = 0.0
    tokens = 0
    while True:
        step = engine.step()
        now += step.duration_s
        tokens += 0 if warm else sum(e.tokens for e in step.emissions)
        for emission in step.emissions:
            if emission.finish is None:
                continue
            if emission.id in warm:
                warm.discard(emission.id)
                start = now
            if not waiting:
                return tokens / (now - start)
            engine.submit(waiting.popleft())
