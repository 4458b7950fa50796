"""Lab physics: conservation of tokens, the KV pool, and that noise is where the spec puts it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leadline import codec
from leadline.testing.clock import VirtualClock
from leadline.testing.faults import Fault, FaultKind, active, hits
from leadline.testing.physics import (
    Finish,
    LabEngine,
    LabRequest,
    LabSpec,
    LabWorkload,
    expected_length,
    natural_tokens,
    survival,
    truth,
    workload_of,
)

KIND = LabWorkload(a1=0.8, rho=0.9, draft_share=0.9)
EXACT = LabSpec(workloads={"coding": KIND}, launch_sd=0.0, point_sd=0.0)


def request(prompt_id: str, *, prompt_tokens: int = 10, max_tokens: int = 64, ignore_eos: bool = False) -> LabRequest:
    return LabRequest(prompt_id=prompt_id, prompt_tokens=prompt_tokens, max_tokens=max_tokens, ignore_eos=ignore_eos)


def finish_all(engine: LabEngine) -> tuple[float, list[Finish], list[int]]:
    """Seconds, how requests ended, and the tokens of every chunk."""
    seconds, ends, chunks = 0.0, [], []
    while engine.running + engine.queued:
        assert engine.kv_used <= engine.pool
        assert engine.running <= engine.max_running
        step = engine.step()
        assert step.duration_s > 0
        seconds += step.duration_s
        ends += [e.finish for e in step.emissions if e.finish]
        chunks += [e.tokens for e in step.emissions]
    return seconds, ends, chunks


@settings(max_examples=40, deadline=None)
@given(
    depth=st.integers(0, 9),
    max_running=st.integers(1, 5),
    limits=st.lists(st.integers(1, 90), min_size=1, max_size=9),
    pool=st.integers(400, 1200),
)
def test_every_token_is_of_the_prefill_a_round_or_the_draft(
    depth: int, max_running: int, limits: list[int], pool: int
) -> None:
    spec = msgspec.structs.replace(EXACT, kv_tokens=pool, kv_lost_per_depth_tokens=20)
    engine = LabEngine(spec, depth=depth, max_running=max_running)
    for i, limit in enumerate(limits):
        engine.submit(request(f"coding:{i}", max_tokens=limit))
    _, ends, chunks = finish_all(engine)
    assert len(ends) == len(limits)
    assert max(chunks) <= depth + 1
    for end in ends:
        seen = end.acceptance
        assert end.output_tokens - 1 == seen.decode_tokens == seen.rounds + seen.accepted
        assert seen.accepted <= seen.drafted <= depth * seen.drafting_rounds
        assert seen.drafting_rounds <= seen.rounds
        assert sum(seen.per_position) == seen.accepted
        assert list(seen.per_position) == sorted(seen.per_position, reverse=True)
    counted = engine.counters
    assert counted.predicted_tokens == sum(chunks) == sum(e.output_tokens for e in ends)
    assert counted.prompt_tokens == 10 * len(limits)
    assert counted.accepted == sum(e.acceptance.accepted for e in ends) == sum(counted.per_position)
    assert counted.draft_tokens == sum(e.acceptance.drafted for e in ends)
    assert counted.drafts == sum(e.acceptance.drafting_rounds for e in ends)
    assert len(counted.per_position) == depth
    assert engine.kv_used == 0


def test_acceptance_length_is_that_of_the_law() -> None:
    engine = LabEngine(EXACT, depth=5, max_running=1)
    engine.submit(request("coding:1", max_tokens=20_000, ignore_eos=True))
    (end,) = finish_all(engine)[1]
    assert end.acceptance.acceptance_length == pytest.approx(expected_length(KIND, 5), rel=2e-3)
    assert end.acceptance.drafting_rounds / end.acceptance.rounds == pytest.approx(0.9, rel=2e-3)
    drafting = end.acceptance.drafting_rounds
    for count, chance in zip(end.acceptance.per_position, survival(KIND, 5), strict=True):
        assert count / drafting == pytest.approx(chance, abs=4e-3)


def test_a_short_run_is_near_its_expectation_already() -> None:
    engine = LabEngine(EXACT, depth=4, max_running=1)
    engine.submit(request("coding:1", max_tokens=200, ignore_eos=True))
    (end,) = finish_all(engine)[1]
    assert end.acceptance.acceptance_length == pytest.approx(expected_length(KIND, 4), rel=0.04)


def test_nothing_is_drafted_beyond_the_limit_of_a_request() -> None:
    engine = LabEngine(EXACT, depth=8, max_running=1)
    engine.submit(request("coding:1", max_tokens=3, ignore_eos=True))
    (end,) = finish_all(engine)[1]
    assert end.output_tokens == 3
    assert end.acceptance.drafted <= 1


def test_a_step_takes_what_the_formula_says() -> None:
    spec = msgspec.structs.replace(EXACT, workloads={"coding": LabWorkload(draft_share=1.0)})
    engine = LabEngine(spec, depth=3, max_running=2)
    for i in range(2):
        engine.submit(request(f"coding:{i}", prompt_tokens=100, max_tokens=50, ignore_eos=True))
    assert engine.step().duration_s == pytest.approx((10.0 + 0.05 * 200) / 1e3)  # both prefilled, nobody decodes yet
    assert engine.step().duration_s == pytest.approx((10.0 + 0.6 * 2 * 4 + 0.3 * 2 + 1.0 + 0.5 * 3) / 1e3)


def test_requests_beyond_max_running_wait_in_order() -> None:
    engine = LabEngine(EXACT, depth=0, max_running=2)
    ids = [engine.submit(request(f"coding:{i}", max_tokens=5, ignore_eos=True)) for i in range(4)]
    assert {e.id for e in engine.step().emissions} == set(ids[:2])
    assert (engine.running, engine.queued) == (2, 2)
    for _ in range(4):
        engine.step()
    assert {e.id for e in engine.step().emissions} == set(ids[2:])


def test_the_kv_pool_shrinks_with_depth_and_makes_requests_wait() -> None:
    spec = msgspec.structs.replace(EXACT, kv_tokens=400, kv_lost_per_depth_tokens=50)
    for depth, fit in ((0, 4), (2, 3), (4, 2), (6, 1)):
        engine = LabEngine(spec, depth=depth, max_running=9)
        for i in range(5):
            engine.submit(request(f"coding:{i}", prompt_tokens=90, max_tokens=10, ignore_eos=True))
        engine.step()
        assert engine.running == fit


def test_a_request_that_can_never_fit_is_refused() -> None:
    engine = LabEngine(msgspec.structs.replace(EXACT, kv_tokens=100), depth=0, max_running=1)
    with pytest.raises(ValueError, match="do not fit into a KV pool of 100"):
        engine.submit(request("coding:1", prompt_tokens=95, ignore_eos=True))


def test_the_pool_may_cap_how_many_run() -> None:
    spec = msgspec.structs.replace(EXACT, kv_tokens=1000, kv_lost_per_depth_tokens=100, tokens_per_slot=100)
    assert [spec.slots(depth, 16) for depth in (0, 3, 9, 10)] == [10, 7, 1, 0]
    assert spec.slots(0, 4) == 4


def test_a_cancelled_request_frees_its_memory_and_counts_what_it_emitted() -> None:
    engine = LabEngine(EXACT, depth=2, max_running=1)
    running = engine.submit(request("coding:1", max_tokens=500, ignore_eos=True))
    waiting = engine.submit(request("coding:2"))
    emitted = sum(e.tokens for _ in range(5) for e in engine.step().emissions)
    end = engine.cancel(running)
    assert end is not None
    assert end.output_tokens == emitted == engine.counters.predicted_tokens
    assert end.acceptance.drafted == engine.counters.draft_tokens > 0
    left = engine.cancel(waiting)
    assert left is not None
    assert left.output_tokens == 0
    assert (engine.running, engine.queued, engine.kv_used) == (0, 0, 0)
    assert engine.cancel(running) is None
    assert engine.step().emissions == ()


def test_the_same_prompt_has_the_same_length_in_every_setting_and_launch() -> None:
    lengths = set()
    for depth, seed in ((0, 1), (3, 1), (6, 2)):
        engine = LabEngine(LabSpec(), depth=depth, max_running=1, seed=seed)
        engine.submit(request("chat:5", max_tokens=4000))
        lengths.add(finish_all(engine)[1][0].output_tokens)
    assert lengths == {natural_tokens(LabSpec(), request("chat:5"))}
    assert len({natural_tokens(LabSpec(), request(f"chat:{i}")) for i in range(30)}) > 10


def test_the_same_seed_gives_the_same_run_and_another_seed_other_times() -> None:
    def run(seed: int) -> tuple[float, list[Finish], list[int]]:
        engine = LabEngine(LabSpec(), depth=3, max_running=2, seed=seed)
        for i in range(6):
            engine.submit(request(f"coding:{i}"))
        return finish_all(engine)

    assert run(1) == run(1)
    one, other = run(1), run(2)
    assert one[0] != other[0]
    assert one[0] == pytest.approx(other[0], rel=0.1)
    assert [e.acceptance for e in one[1]] == [e.acceptance for e in other[1]]


def test_a_load_point_has_noise_of_its_own() -> None:
    def seconds(engine: LabEngine) -> float:
        engine.submit(request("coding:1"))
        return finish_all(engine)[0]

    noisy = LabEngine(msgspec.structs.replace(EXACT, point_sd=0.05), depth=2, max_running=1)
    first = seconds(noisy)
    assert seconds(noisy) == first
    noisy.new_point()
    assert seconds(noisy) != first


def test_the_default_truth_has_an_interior_best_depth_that_gets_shallower_under_load() -> None:
    def best(concurrency: int) -> int:
        rates = {d: truth(LabSpec(), depth=d, concurrency=concurrency, max_running=16) for d in (0, 2, 4, 8)}
        return max(rates, key=lambda d: rates[d])

    assert (best(1), best(16)) == (4, 2)


def test_truth_is_free_of_noise_and_faults() -> None:
    noisy = LabSpec(launch_sd=0.5, point_sd=0.5, faults=(Fault(kind=FaultKind.OOM_AT_START),))
    assert truth(noisy, depth=2, concurrency=2) == truth(LabSpec(launch_sd=0.0, point_sd=0.0), depth=2, concurrency=2)


def test_truth_of_a_setting_that_does_not_start_is_zero() -> None:
    assert truth(LabSpec(kv_tokens=1000, kv_lost_per_depth_tokens=100), depth=10, concurrency=1) == 0.0


def test_truth_follows_the_mix() -> None:
    mixed, coding, chat = (
        truth(LabSpec(), depth=4, concurrency=1, mix=m) for m in ({"coding": 1, "chat": 1}, {"coding": 1}, {"chat": 1})
    )
    assert chat < mixed < coding


def test_queueing_above_max_running_makes_concurrency_worthless() -> None:
    four, sixteen = (truth(LabSpec(), depth=2, concurrency=c, max_running=4) for c in (4, 16))
    assert sixteen == pytest.approx(four, rel=0.02)


def test_a_spec_survives_json_and_unknown_workloads_have_a_law_too() -> None:
    spec = LabSpec(faults=(Fault(kind=FaultKind.MUTE, depths=(4,), launches=(2, 3), seconds=1.5),))
    assert codec.from_json(codec.to_json(spec), LabSpec) == spec
    assert spec.workload("prose:1") == spec.other
    assert [workload_of(t) for t in ("coding:17", "coding/17", "my-own_1:2", "17", "")] == [
        "coding",
        "coding",
        "my-own_1",
        "",
        "",
    ]


def test_faults_strike_where_they_are_told_to() -> None:
    fault = Fault(kind=FaultKind.HANG, depths=(4,), launches=(2,))
    assert [active((fault,), d, n) != {} for d, n in ((4, 2), (4, 1), (2, 2))] == [True, False, False]
    assert active((Fault(kind=FaultKind.HANG),), 7, 9) != {}


def test_a_share_of_requests_is_hit_evenly() -> None:
    assert [n for n in range(1, 41) if hits(0.1, n)] == [10, 20, 30, 40]
    assert sum(hits(0.03, n) for n in range(1, 1001)) == 30
    assert all(hits(1.0, n) for n in range(1, 9))


def test_the_virtual_clock_moves_only_when_asked_and_never_back() -> None:
    clock = VirtualClock()
    clock.sleep(90.5)
    assert clock.now_ns() == 90_500_000_000
    assert clock.utc() == "2026-01-05T22:01:30Z"
    with pytest.raises(ValueError, match="cannot be set back"):
        clock.sleep(-1)
