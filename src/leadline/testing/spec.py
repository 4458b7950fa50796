"""The lab's numbers: how a speculating server of the lab is described, and what follows from that alone. Pure."""

from __future__ import annotations

import itertools
import math
import random
import re

import msgspec

from leadline.testing.faults import Fault

_ID = re.compile(r"[A-Za-z][\w-]*")


class LabWorkload(msgspec.Struct, frozen=True, kw_only=True):
    """How one kind of text speculates and how long its answers are.

    `a1` = chance that the first draft token is accepted, `rho` = its decay for each further position, `draft_share` =
    share of rounds in which the drafter finds anything, `out_tokens` and `out_spread` = median and log-sd of lengths.
    """

    a1: float = 0.75
    rho: float = 0.92
    draft_share: float = 1.0
    out_tokens: float = 96.0
    out_spread: float = 0.2


WORKLOADS = {
    "coding": LabWorkload(a1=0.88, rho=0.94, draft_share=0.95, out_tokens=128.0),
    "chat": LabWorkload(a1=0.6, rho=0.85, draft_share=0.8),
    "summarize": LabWorkload(a1=0.8, rho=0.92, draft_share=0.9),
    "extract": LabWorkload(a1=0.85, rho=0.9, draft_share=0.9, out_tokens=64.0),
    "agent": LabWorkload(a1=0.75, rho=0.92, draft_share=0.9, out_tokens=80.0),
}


class LabSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A lab server and its faults. The defaults have an interior best depth that gets shallower with concurrency.

    `*_ms` are parts of a step (see the module). The first `free_tokens` of a step are verified for nothing, since
    memory is the limit there. `draft_ms` = measured times of what drafting adds at depth 1, 2, ..., in place of
    `jump_ms` and `draft_step_ms`; deeper ones go on from the last with `draft_step_ms` each.

    The KV pool is `kv_tokens` less `kv_lost_per_depth_tokens` for every draft token; with `tokens_per_slot` the pool
    also caps how many requests may run. So does `slots_at`: how many run at depth 1, 2, ..., deeper ones as the last.
    `max_running` holds where the command line does not say.

    `dialect` = the engine that it passes for, `version` = that engine's (empty: the dialect's own). `launch_sd` and
    `point_sd` are log-sds of all step times in one launch and at one load point. Loading takes `load_s` and writes
    `progress_lines`. `launch_counter` is a file in which the lab server counts its launches, for faults that strike
    only some of them. A real server begins a new load point after `point_gap_s` without a request.
    """

    base_step_ms: float = 10.0
    token_ms: float = 0.6
    free_tokens: int = 0
    request_ms: float = 0.3
    jump_ms: float = 1.0
    draft_step_ms: float = 0.5
    draft_ms: tuple[float, ...] = ()
    prefill_token_ms: float = 0.05
    kv_tokens: int = 262144
    kv_lost_per_depth_tokens: int = 4096
    tokens_per_slot: int = 0
    slots_at: tuple[int, ...] = ()
    max_running: int = 4
    workloads: dict[str, LabWorkload] = msgspec.field(default_factory=lambda: dict(WORKLOADS))
    other: LabWorkload = LabWorkload()
    launch_sd: float = 0.01
    point_sd: float = 0.005
    load_s: float = 2.0
    progress_lines: int = 8
    point_gap_s: float = 0.25
    faults: tuple[Fault, ...] = ()
    launch_counter: str = ""
    dialect: str = "llamacpp"
    version: str = ""
    seed: int = 0

    def workload(self, prompt_id: str) -> LabWorkload:
        return self.workloads.get(workload_of(prompt_id), self.other)

    def quiet(self) -> LabSpec:
        """The same without noise and faults."""
        return msgspec.structs.replace(self, launch_sd=0.0, point_sd=0.0, faults=())

    def pool(self, depth: int) -> int:
        """KV tokens at that depth; 0 or less = it does not fit at all."""
        return self.kv_tokens - self.kv_lost_per_depth_tokens * depth

    def slots(self, depth: int, asked: int) -> int:
        """How many requests run at once when `asked` were: fewer when the pool dictates it, 0 = will not start."""
        if self.pool(depth) <= 0:
            return 0
        caps = [self.pool(depth) // self.tokens_per_slot] if self.tokens_per_slot else []
        caps += [self.slots_at[min(depth, len(self.slots_at)) - 1]] if self.slots_at and depth else []
        return min([asked, *caps])

    def step_ms(self, requests: int, tokens: int, drafted: int) -> float:
        """Noise-free time of one step: `requests` decoding, `tokens` verified in all, `drafted` = the longest draft."""
        verified = self.token_ms * max(0, tokens - self.free_tokens)
        return self.base_step_ms + verified + self.request_ms * requests + self._drafting_ms(drafted)

    def _drafting_ms(self, drafted: int) -> float:
        if not drafted:
            return 0.0
        if not self.draft_ms:
            return self.jump_ms + self.draft_step_ms * drafted
        known = min(drafted, len(self.draft_ms))
        return self.draft_ms[known - 1] + self.draft_step_ms * (drafted - known)


def workload_of(prompt_id: str) -> str:
    """`coding:17` -> `coding`."""
    match = _ID.match(prompt_id)
    return match[0] if match else ""


def survival(kind: LabWorkload, depth: int) -> tuple[float, ...]:
    """P(at least i draft tokens are accepted), i = 1..depth, of a round that drafted."""
    steps = (min(1.0, kind.a1 * kind.rho**j) for j in range(depth))
    return tuple(itertools.accumulate(steps, lambda a, b: a * b))


def expected_length(kind: LabWorkload, depth: int) -> float:
    """Tokens a round, bonus token included, far from any end of a request."""
    return 1 + kind.draft_share * math.fsum(survival(kind, depth))


class LabRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the physics needs to know of one request. Its workload is the first word of `prompt_id`."""

    prompt_id: str
    prompt_tokens: int
    max_tokens: int
    ignore_eos: bool = False


def natural_tokens(spec: LabSpec, request: LabRequest) -> int:
    """Length the answer would have without a limit: a function of the prompt id, the same in every setting."""
    if request.ignore_eos:
        return request.max_tokens
    kind = spec.workload(request.prompt_id)
    rng = random.Random(f"length|{request.prompt_id}")
    return max(1, round(kind.out_tokens * math.exp(rng.gauss(0.0, kind.out_spread))))
