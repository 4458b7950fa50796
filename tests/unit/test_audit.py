"""What makes a benchmark dishonest is found, and an honest one has no findings."""

from __future__ import annotations

from typing import Any

import pytest
from support_analysis import EIGHT, ONE, campaign, d, flat, history, trial

from leadline import metrics
from leadline.analysis.audit import Facts, drift, findings_across, findings_of
from leadline.evidence import Acceptance
from leadline.trial import LoadReport, RequestRecord, TrialState

NS = 1_000_000_000


def record(i: int, **more: Any) -> RequestRecord:
    fields: dict[str, Any] = {
        "prompt_id": str(i), "user": 0, "intended_ns": 0, "start_ns": 0, "end_ns": NS, "prompt_tokens": 100,
        "output_tokens": 10, "chunk_ns": (NS // 2, NS), "chunk_tokens": (1.0, 9.0),
    }  # fmt: skip
    return RequestRecord(**{**fields, **more})


def report(*records: RequestRecord, **more: Any) -> LoadReport:
    return LoadReport(records=records or tuple(map(record, range(40))), window_start_ns=0, window_end_ns=NS, **more)


def counts(length: float, rounds: int = 1000, drafted: int = 5000) -> Acceptance:
    tokens = round(length * rounds)
    return Acceptance(
        decode_tokens=tokens, rounds=rounds, drafting_rounds=rounds, drafted=drafted, accepted=tokens - rounds
    )


def facts(**changes: Any) -> Facts:
    fields: dict[str, Any] = {
        "depth": 5, "bodies": ({"temperature": 0.7, "max_tokens": 100},), "report": report(), "values": {},
        "acceptance": counts(4.2),
    }  # fmt: skip
    return Facts(**{**fields, **changes})


def codes(given: Facts) -> list[str]:
    return [f.code for f in findings_of(given)]


def test_honest_measurement_has_no_findings() -> None:
    assert findings_of(facts()) == ()
    assert findings_of(facts(depth=0, acceptance=None)) == ()
    assert findings_of(facts(bodies=(), acceptance=None)) == ()


@pytest.mark.parametrize(
    ("depth", "length", "found"),
    [
        (5, 5.0, []),  # 0.80 exactly
        (5, 5.05, ["acceptance_high"]),
        (5, 5.5, ["acceptance_high"]),  # 0.90 exactly
        (5, 5.8, ["acceptance_at_ceiling"]),  # 0.96, as text that repeats itself has
        (8, 7.6, ["acceptance_high"]),
        (4, 4.4, []),  # 0.85: natural code may come near it at shallow depths
        (4, 4.7, ["acceptance_at_ceiling"]),
        (2, 2.95, []),
        (1, 1.97, []),
    ],
)
def test_acceptance_near_its_ceiling(depth: int, length: float, found: list[str]) -> None:
    assert codes(facts(depth=depth, acceptance=counts(length))) == found


def test_acceptance_finding_shows_its_numbers() -> None:
    (finding,) = findings_of(facts(acceptance=counts(5.8)))
    assert "5.80 of at most 6" in finding.evidence
    assert finding.size == "96% of the draft accepted"


def test_speculation_that_drafts_nothing() -> None:
    assert codes(facts(acceptance=counts(1.0, drafted=0))) == ["nothing_drafted"]
    assert codes(facts(depth=0, acceptance=counts(1.0, drafted=0))) == []
    assert codes(facts(acceptance=counts(0, rounds=0, drafted=0))) == [], "nothing decoded, nothing known"


def test_forced_length() -> None:
    (finding,) = findings_of(facts(bodies=({"ignore_eos": True}, {"ignore_eos": False}, {}, {})))
    assert (finding.code, finding.evidence) == ("ignore_eos", "25% of the requests")


@pytest.mark.parametrize(
    ("temperatures", "found"), [((0, 0, 1), ["temperature_zero"]), ((0.0, 1), []), ((None, None), []), ((0.1,), [])]
)
def test_greedy_sampling_of_most_requests(temperatures: tuple[float | None, ...], found: list[str]) -> None:
    """Not sent means the engine's default, which is not zero."""
    bodies = tuple({} if t is None else {"temperature": t} for t in temperatures)
    assert codes(facts(bodies=bodies)) == found


def test_errors_above_one_percent() -> None:
    good = [record(i) for i in range(99)]
    assert codes(facts(report=report(*good, record(99, error="cut")))) == [], "1 % exactly"
    bad = [record(i, error=e) for i, e in enumerate(("HTTP 500", "cut", "HTTP 500"))]
    (finding,) = findings_of(facts(report=report(*good, *bad, record(0, warmup=True, error="cold"))))
    assert finding.evidence == "3 of 102 requests, most often: HTTP 500"


@pytest.mark.parametrize(
    ("lag_p99_ms", "cpu_share", "found"),
    [(5.0, 0.8, []), (5.1, 0.1, ["client_limited"]), (0.2, 0.81, ["client_limited"])],
)
def test_load_worker_that_cannot_keep_up(lag_p99_ms: float, cpu_share: float, found: list[str]) -> None:
    assert codes(facts(report=report(lag_p99_ms=lag_p99_ms, cpu_share=cpu_share))) == found


def test_a_late_stamp_is_judged_by_the_time_that_it_adds_to() -> None:
    slow = {"ttft_ms.p50": 400.0}
    assert codes(facts(report=report(lag_p99_ms=19.0), values=slow)) == []
    assert codes(facts(report=report(lag_p99_ms=21.0), values=slow)) == ["client_limited"]


# --- across settings


def test_equal_settings_have_no_findings() -> None:
    assert findings_across(campaign(flat((80, 100, 112, 107, 101)))) == ()
    assert findings_across(history()) == ()


def test_answers_of_unequal_length() -> None:
    """Per answered request, summed over launches; 10 % exactly is let pass."""
    same = trial(0, d(2), {ONE: 1.0}, changes={"requests": 50, "errors": 10, "output_tokens": 4000})
    longer = trial(0, d(4), {ONE: 1.0}, changes={"output_tokens": 4400})
    assert findings_across(history(same, longer)) == ()
    (finding,) = findings_across(history(same, trial(0, d(6), {ONE: 1.0}, changes={"output_tokens": 4800}), longer))
    assert finding.code == "output_length_differs"
    assert finding.evidence == "100 tokens a request at depth=2, 120 at depth=6"


def test_cells_are_not_compared_with_each_other() -> None:
    other = trial(0, d(4), {EIGHT: 1.0}, changes={"output_tokens": 9000})
    assert findings_across(history(trial(0, d(2), {ONE: 1.0}), other)) == ()


def test_prompt_cache_that_helps_one_setting() -> None:
    one, other = ({"values": {"cached_frac": share}} for share in (0.10, 0.16))
    h = history(trial(0, d(2), {ONE: 1.0}, changes=one), trial(0, d(4), {ONE: 1.0}, changes=other))
    (finding,) = findings_across(h)
    assert (finding.code, finding.size) == ("cached_share_differs", "6 points")
    near = {"values": {"cached_frac": 0.14}}
    h = history(trial(0, d(2), {ONE: 1.0}, changes=one), trial(0, d(4), {ONE: 1.0}, changes=near))
    assert findings_across(h) == ()


def test_only_complete_trials_are_looked_at() -> None:
    odd = trial(0, d(4), {ONE: 1.0}, changes={"output_tokens": 9000}, state=TrialState.INFEASIBLE)
    assert findings_across(history(trial(0, d(2), {ONE: 1.0}), odd)) == ()


def test_drift_of_one_setting() -> None:
    calm = [trial(i, d(2), {ONE: x, EIGHT: 4 * x}) for i, x in enumerate((100.0, 104.0), 1)]
    assert drift(calm) == ()
    (finding,) = drift([*calm, trial(3, d(2), {ONE: 80.0, EIGHT: 320.0})])
    assert finding.size == "30% in output_tok_s"
    assert finding.evidence == "trial 2 was faster than trial 3"
    assert drift([]) == drift(calm[:1]) == ()


def test_drift_looks_at_cells_that_all_launches_have() -> None:
    some = [trial(1, d(2), {ONE: 100.0, EIGHT: 400.0}), trial(2, d(2), {ONE: 100.0})]
    assert drift(some) == ()
    assert drift([trial(1, d(2), {EIGHT: 400.0}), trial(2, d(2), {ONE: 100.0})]) == ()


def test_cached_share_is_counted_over_good_requests() -> None:
    records = (
        record(0, cached_tokens=50),
        record(1, cached_tokens=10),
        record(2, cached_tokens=100, error="cut"),
        record(3, cached_tokens=100, warmup=True),
    )
    assert metrics.reduce(report(*records))["cached_frac"] == 0.3
    assert "cached_frac" not in metrics.reduce(report(record(0, prompt_tokens=0)))
