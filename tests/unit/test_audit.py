"""What makes a benchmark dishonest is found, and an honest one has no findings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from support_analysis import EIGHT, ONE, campaign, d, flat, history, trial

from leadline import metrics
from leadline.analysis.audit import Facts, drift, findings_across, findings_of
from leadline.analysis.silence import unexplained
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


# --- silences


def answer(i: int, start_s: float, ttft_s: float, pieces: int = 20, gap_s: float = 0.02, **more: Any) -> RequestRecord:
    """A request whose pieces keep a rhythm; `stall` = seconds that nothing came after its tenth piece."""
    stall = more.pop("stall", 0.0)
    times = [start_s + ttft_s + k * gap_s + (stall if k >= 10 else 0.0) for k in range(pieces)]
    chunk_ns = tuple(round(t * NS) for t in times)
    return record(
        i,
        **{
            "start_ns": round(start_s * NS), "end_ns": chunk_ns[-1], "chunk_ns": chunk_ns, "output_tokens": pieces,
            "chunk_tokens": (1.0,) * pieces, **more,
        },
    )  # fmt: skip


def one_user(*ttfts_s: float, tokens: Sequence[int] = (), **more: Any) -> LoadReport:
    """One request after the other; the window is all of it."""
    at_s, out = 0.0, []
    for i, ttft_s in enumerate(ttfts_s):
        out.append(answer(i, at_s, ttft_s, prompt_tokens=tokens[i] if tokens else 100, **more))
        at_s = out[-1].end_ns / NS
    return LoadReport(records=tuple(out), window_start_ns=0, window_end_ns=out[-1].end_ns)


def crowd(users: int, *waves: tuple[float, float], **more: Any) -> LoadReport:
    """All users together, wave by wave: (seconds to the first text, seconds of silence later on)."""
    at_s, out = 0.0, []
    for ttft_s, stall_s in waves:
        out += [answer(i, at_s, ttft_s, stall=stall_s, **more) for i in range(users)]
        at_s = out[-1].end_ns / NS
    return LoadReport(records=tuple(out), window_start_ns=0, window_end_ns=out[-1].end_ns)


COLD = {
    "first text of one user": one_user(0.1, 0.9, 0.1, 0.1, 0.12),
    "first text of a wave": crowd(16, (0.25, 0), (1.9, 0), (0.25, 0)),
    "two waves of three": crowd(64, (2.4, 0), (2.2, 0), (0.25, 0)),
    "one compilation in a hundred requests": crowd(4, *[(0.27, 0.0)] * 12, (5.7, 0), *[(0.27, 0.0)] * 12, pieces=200),
    "in the middle of answers": crowd(4, (0.1, 0), (0.1, 0.8), (0.1, 0)),
    "in the middle of answers to long prompts": crowd(4, (2.0, 0), (2.0, 0.8), (2.0, 0)),
    "a short prompt that took as long as a long one": one_user(0.1, 0.1, 2.0, 0.1, tokens=(500, 500, 500, 500)),
}
CLEAN = {
    "one user": one_user(0.1, 0.11, 0.1, 0.13, 0.1),
    "one user, long prompts": one_user(2.0, 2.1, 1.9, 2.4, 2.0),
    "one user, one long prompt": one_user(0.1, 0.1, 2.0, 0.1, tokens=(500, 500, 10_000, 500)),
    "waves of long prompts": crowd(64, (3.0, 0), (2.8, 0), (3.1, 0)),
    "a first wave that is slower": crowd(4, (0.42, 0), (0.25, 0), (0.25, 0)),
    "prompts from the cache take a time of their own": one_user(*[0.35, 0.8] * 4, tokens=[1, 2000] * 4),
    "slow answers": crowd(1, (0.5, 0), (0.5, 0.9), gap_s=0.2),
    "answers in one piece": one_user(1.0, 1.2, 9.0, 1.1, pieces=1),
    "a short silence": one_user(0.02, 0.29, 0.02, 0.02),
    "a silence that is little of the window": one_user(*[0.1] * 60, 0.7),
    "nothing answered": LoadReport(records=(record(0, error="cut"),), window_start_ns=0, window_end_ns=NS),
}


@pytest.mark.parametrize("what", COLD)
def test_a_silence_that_nothing_explains_is_found(what: str) -> None:
    assert codes(facts(report=COLD[what])) == ["warmup_in_measurement"]


@pytest.mark.parametrize("what", CLEAN)
def test_a_silence_that_the_rhythm_or_the_prompts_explain_is_none(what: str) -> None:
    assert unexplained(CLEAN[what]) == ()


def test_the_finding_says_how_long_where_and_what_the_rate_is_without_it() -> None:
    given = crowd(4, (0.1, 0), (0.1, 0.8), (0.1, 0.4), (0.1, 0))
    (finding,) = findings_of(facts(report=given, values={"output_tok_s": 100.0}))
    assert finding.message.startswith("Nothing arrived for 0.8 s of a 3.1 s window: a kernel was compiled")
    assert finding.evidence == "the longest silence began 0.8 s into the window, 1 more, 1.2 s in all"
    assert finding.size == "40% of the window; without it 166 instead of 100 tok/s"
    assert "load.warmup" in finding.remedy


def test_later_turns_are_no_yardstick_for_first_ones() -> None:
    """A server that says nothing of its prompt cache answers later turns at a pace that no first turn can keep."""
    at_s, out = 0.0, []
    for i, (turn, ttft_s) in enumerate([(0, 0.8), (1, 0.05), (2, 0.05), (3, 0.05)] * 4):
        out.append(answer(i, at_s, ttft_s, turn=turn, prompt_tokens=2000 * (turn + 1)))
        at_s = out[-1].end_ns / NS
    given = LoadReport(records=tuple(out), window_start_ns=0, window_end_ns=out[-1].end_ns)
    assert unexplained(given) == ()


def test_cached_tokens_need_no_reading() -> None:
    given = one_user(0.05, 0.05, 0.8, 0.05, tokens=(2000,) * 4)
    cached = tuple(msgspec.structs.replace(r, cached_tokens=0 if i == 2 else 1900) for i, r in enumerate(given.records))
    assert unexplained(given) != ()
    assert unexplained(msgspec.structs.replace(given, records=cached)) == ()


def test_only_what_is_inside_the_window_and_served_counts() -> None:
    given = one_user(0.1, 0.9, 0.1, 0.1)
    (found,) = unexplained(given)
    assert (round(found.s, 6), found.end_ns) == (0.9, given.records[1].chunk_ns[0])
    assert unexplained(msgspec.structs.replace(given, window_start_ns=found.end_ns)) == ()
    idle = tuple(
        msgspec.structs.replace(
            r,
            start_ns=r.start_ns + (5 * NS if i > 1 else 0),
            end_ns=r.end_ns + (5 * NS if i > 1 else 0),
            chunk_ns=tuple(t + (5 * NS if i > 1 else 0) for t in r.chunk_ns),
        )
        for i, r in enumerate(one_user(0.1, 0.1, 0.1, 0.1).records)
    )
    later = LoadReport(records=idle, window_start_ns=0, window_end_ns=idle[-1].end_ns)
    assert unexplained(later) == (), "nobody waited for anything"


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
