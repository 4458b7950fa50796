"""One Setting, deployed and measured: the trial, its legal transitions, and everything measured in it."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from leadline.evidence import Acceptance, Diagnosis, Effective
from leadline.goal import Cell
from leadline.space import Setting


class TrialState(StrEnum):
    PLANNED = "planned"
    DEPLOYING = "deploying"
    MEASURING = "measuring"
    COMPLETE = "complete"
    INFEASIBLE = "infeasible"  # the setting will not run; says how far it does
    FAILED = "failed"  # our side, or somebody else's hand; says nothing about the setting
    INTERRUPTED = "interrupted"  # we were stopped; the strategy may ask for it again


_NEXT = {
    TrialState.PLANNED: {TrialState.DEPLOYING, TrialState.FAILED, TrialState.INTERRUPTED},
    TrialState.DEPLOYING: {
        TrialState.DEPLOYING,
        TrialState.MEASURING,
        TrialState.INFEASIBLE,
        TrialState.FAILED,
        TrialState.INTERRUPTED,
    },
    TrialState.MEASURING: {
        TrialState.DEPLOYING,  # once more, after a void measurement
        TrialState.COMPLETE,
        TrialState.INFEASIBLE,
        TrialState.FAILED,
        TrialState.INTERRUPTED,
    },
}
LIVE = frozenset(_NEXT)


def may_follow(before: TrialState, after: TrialState) -> bool:
    return after in _NEXT.get(before, set())


class Purpose(StrEnum):
    INCUMBENT = "incumbent"
    BASELINE = "baseline"
    PROBE = "probe"
    CONFIRM = "confirm"
    MANUAL = "manual"
    DRIFT = "drift"


class Origin(StrEnum):
    """Where numbers come from. Never mixed silently, and shown with every number that is not measured."""

    MEASURED = "measured"
    SIMULATED = "simulated"
    IMPORTED = "imported"


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """A setting to launch next: why, how thoroughly, and what is expected.

    `round` groups launches into pairs: two settings of one round were measured close in time.
    """

    setting: Setting
    purpose: Purpose
    cells: tuple[Cell, ...]
    round: int = 1
    full: bool = True
    reason: str = ""
    prediction: str = ""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A warning as data. `size` is how large the effect is, in words with its unit."""

    code: str
    message: str
    evidence: str = ""
    size: str = ""
    remedy: str = ""

    def __str__(self) -> str:
        return self.message + (f" {self.remedy}" if self.remedy else "")


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request as the load worker saw it: integer nanoseconds of one monotonic clock, counts, and no text.

    `chunk_ns[i]` is the arrival of the i-th piece of generated text and `chunk_tokens[i]` its tokens; the sum is
    `output_tokens`, which comes from `usage`. `token_source`: "engine" when the server counts tokens per chunk, else
    "even": the total spread evenly over the chunks. `warmup` requests are kept, and never counted as requests.
    `drafted`, `accepted`, `rounds` (verifications) and `histogram` (`histogram[i]` = rounds that accepted i draft
    tokens) are the engine's own figures for this request, where it gives them.
    """

    prompt_id: str
    user: int
    turn: int = 0
    warmup: bool = False
    intended_ns: int
    start_ns: int
    chunk_ns: tuple[int, ...] = ()
    chunk_tokens: tuple[float, ...] = ()
    end_ns: int
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    token_source: str = "even"
    drafted: int = 0
    accepted: int = 0
    rounds: int = 0
    histogram: tuple[int, ...] = ()
    engine_decode_ms: float = 0.0
    finish_reason: str = ""
    status: int = 0
    error: str = ""

    @property
    def ok(self) -> bool:
        return not self.error


class LoadReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a load worker hands back: the records, and the window in which all users were busy.

    The window opens when the last user has done its warm-up and closes when the first user finds no work left.
    `clock` names the clock of the nanoseconds; `lag_p99_ms` = lateness of the worker's own event loop.
    """

    records: tuple[RequestRecord, ...]
    window_start_ns: int
    window_end_ns: int
    clock: str = "monotonic"
    lag_p99_ms: float = 0.0
    cpu_share: float = 0.0


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One cell in one launch. `values` holds flat metric names (`ttft_ms.p99`), `intervals` 95 % bootstrap bounds for
    some of them. `identity` is what must be equal before two measurements are compared."""

    trial: int
    cell: Cell
    attempt: int
    origin: Origin
    started_at: str
    window_s: float
    requests: int
    errors: int
    prompt_tokens: int
    output_tokens: int
    values: dict[str, float]
    intervals: dict[str, tuple[float, float]] = {}
    acceptance: Acceptance | None = None
    findings: tuple[Finding, ...] = ()
    identity: dict[str, str] = {}
    records: str = ""
    records_sha256: str = ""


class Void(msgspec.Struct, frozen=True, kw_only=True):
    """A measurement that may not count, and why."""

    cell: Cell | None
    attempt: int
    diagnosis: Diagnosis


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One launch of one setting. `extent` of an INFEASIBLE trial: "not at all" or "fits up to C=16"."""

    id: int
    proposal: Proposal
    state: TrialState = TrialState.PLANNED
    attempt: int = 0
    effective: Effective | None = None
    load_s: float | None = None
    measurements: tuple[Measurement, ...] = ()
    voids: tuple[Void, ...] = ()
    diagnosis: Diagnosis | None = None
    extent: str = ""

    @property
    def setting(self) -> Setting:
        return self.proposal.setting

    @property
    def live(self) -> bool:
        return self.state in LIVE

    def measurement(self, cell: Cell) -> Measurement | None:
        return next((m for m in self.measurements if m.cell == cell), None)


class History(msgspec.Struct, frozen=True, kw_only=True):
    """All trials of a campaign, in order, live ones included, and settings queued by hand."""

    trials: tuple[Trial, ...] = ()
    queued: tuple[Setting, ...] = ()

    def complete(self) -> tuple[Trial, ...]:
        return tuple(t for t in self.trials if t.state is TrialState.COMPLETE)

    def infeasible(self) -> dict[Setting, Trial]:
        return {t.setting: t for t in self.trials if t.state is TrialState.INFEASIBLE}

    def settings(self) -> tuple[Setting, ...]:
        """Distinct settings in order of first trial."""
        return tuple(dict.fromkeys(t.setting for t in self.trials))

    def of(self, setting: Setting) -> tuple[Trial, ...]:
        return tuple(t for t in self.trials if t.setting == setting)
