"""The twelve faults of the lab in virtual time: what a client and a supervisor see of each."""

from __future__ import annotations

import msgspec
import pytest
from support_world import HEALTH, QUIET, READY, URL, always, argv, counters, errors, faulty, moved, plan, start

from leadline.evidence import ExitFacts, Probe
from leadline.launch import LaunchSpec, Start
from leadline.testing.faults import Fault, FaultKind
from leadline.testing.lab import Lab


def test_fault_1_killed_under_load() -> None:
    lab = faulty(Fault(kind=FaultKind.KILLED_UNDER_LOAD, after_tokens=300))
    session = start(lab, 2)
    report = lab.loader.run(plan(2, 8), lambda: session.exit() is None)
    assert session.exit() == ExitFacts(signal=9)
    assert {"connection reset", "connection refused"} == set(errors(report))
    assert any(r.ok for r in report.records)


def test_fault_2_out_of_memory_at_start_of_some_depths() -> None:
    lab = faulty(Fault(kind=FaultKind.OOM_AT_START, depths=(4,)))
    session = start(lab, 4)
    assert session.exit() == ExitFacts(code=1)
    assert "cudaMalloc failed: out of memory" in lab.host.log("a.log")
    assert start(lab, 2, log="b.log").exit() is None


def test_a_pool_without_room_is_out_of_memory_at_start_too() -> None:
    lab = Lab(msgspec.structs.replace(QUIET, kv_tokens=8192, kv_lost_per_depth_tokens=1024))
    assert start(lab, 8).exit() == ExitFacts(code=1)


def test_fault_3_out_of_memory_above_c_16() -> None:
    lab = faulty(Fault(kind=FaultKind.OOM_UNDER_LOAD))
    session = start(lab, 2, slots=32)
    assert errors(lab.loader.run(plan(16, 32), always)) == []
    lab.loader.run(plan(17, 34), lambda: session.exit() is None)
    assert session.exit() == ExitFacts(signal=6)
    assert "cudaMalloc failed: out of memory" in lab.host.log("a.log")
    assert "CUDA error: out of memory" in lab.host.log("a.log")


def test_fault_4_hangs_while_health_answers() -> None:
    lab = faulty(Fault(kind=FaultKind.HANG, after_tokens=300))
    session = start(lab, 2)
    before = lab.clock.now_ns()
    report = lab.loader.run(plan(2, 6, stall_s=10.0), always)
    assert set(errors(report)) == {"no byte for 10 s"}
    assert lab.clock.now_ns() - before > 20e9
    assert session.exit() is None
    assert lab.prober(URL).fetch(HEALTH).status == 200
    assert lab.prober(URL).fetch(READY).error == "no answer within 5 s"
    assert session.end(1.0).code == 0


def test_fault_5_healthy_before_it_generates() -> None:
    lab = faulty(Fault(kind=FaultKind.MUTE, seconds=30.0))
    start(lab, 2)
    assert lab.prober(URL).fetch(HEALTH).status == 200
    assert lab.prober(URL).fetch(READY).error == "no answer within 5 s"
    lab.clock.sleep(30)
    assert lab.prober(URL).fetch(READY).ok
    mute = faulty(Fault(kind=FaultKind.MUTE))
    start(mute, 2, wait_s=9_000)
    assert not mute.prober(URL).fetch(READY).ok


def test_fault_6_restarts_itself_once() -> None:
    lab = faulty(Fault(kind=FaultKind.RESTART, after_tokens=300))
    session = start(lab, 2)
    first = session.process()
    before = counters(lab)
    lab.loader.run(plan(2, 8), lambda: session.exit() is None)
    second = session.process()
    assert first is not None
    assert second is not None
    assert (first.pid, first.start_id) != (second.pid, second.start_id)
    assert lab.prober(URL).fetch(HEALTH).status == 503
    lab.clock.sleep(2.5)
    assert counters(lab)["tokens_predicted_total"] <= before["tokens_predicted_total"]
    assert errors(lab.loader.run(plan(2, 8), always)) == []
    assert lab.host.log("a.log").count("listening on") == 2


def test_fault_7_truncated_streams() -> None:
    lab = faulty(Fault(kind=FaultKind.TRUNCATED, share=0.25))
    start(lab, 2)
    before = counters(lab)
    report = lab.loader.run(plan(1, 19), always)
    cut = [r for r in report.records if r.error]
    assert len(cut) == 5
    assert all("stream cut after" in r.error and r.chunk_ns and not r.output_tokens for r in cut)
    assert moved(before, counters(lab))["spec_decode_num_draft_tokens_total"] == lab.realised[-1].total.drafted


def test_fault_8_one_request_in_ten_is_answered_with_500() -> None:
    lab = faulty(Fault(kind=FaultKind.HTTP_500))
    start(lab, 2)
    for _ in range(12):
        assert lab.prober(URL).fetch(READY).ok
    report = lab.loader.run(plan(2, 18), always)
    assert [(r.status, r.error) for r in report.records if r.error] == [
        (500, "HTTP 500: lab fault: internal error")
    ] * 2


def test_fault_9_a_slow_start_keeps_writing() -> None:
    lab = faulty(Fault(kind=FaultKind.SLOW_START, seconds=300.0))
    start(lab, 2, wait_s=0)
    sizes = []
    for _ in range(29):
        lab.clock.sleep(10)
        sizes.append(len(lab.host.log("a.log")))
    assert len(set(sizes)) == 29
    assert lab.prober(URL).fetch(HEALTH).status == 503
    lab.clock.sleep(11)
    assert lab.prober(URL).fetch(READY).ok


@pytest.mark.parametrize(("refused", "status"), [(False, 503), (True, 0)])
def test_fault_10_a_start_without_progress(refused: bool, status: int) -> None:
    lab = faulty(Fault(kind=FaultKind.SILENT_START, refused=refused))
    session = start(lab, 2)

    def signs() -> tuple[object, ...]:
        return lab.prober(URL).fetch(HEALTH), lab.host.log("a.log"), session.process()

    before = signs()
    assert lab.prober(URL).fetch(HEALTH).status == status
    lab.clock.sleep(3600)
    assert signs() == before
    assert session.exit() is None


def test_fault_11_another_depth_in_force() -> None:
    lab = faulty(Fault(kind=FaultKind.WRONG_DEPTH, depths=(4,), depth=2))
    start(lab, 4)
    lab.loader.run(plan(1, 2), always)
    assert sum("per_pos" in name for name in counters(lab)) == 2


def test_a_drafter_that_can_never_fire_drafts_nothing() -> None:
    lab = Lab(QUIET)
    size = ("--spec-ngram-simple-size-n", "4", "--spec-ngram-simple-size-m", "3")
    words = (*argv(0), "--spec-type", "ngram-simple", *size)
    lab.host.start(Start(launch=LaunchSpec(argv=words), log="a.log"))
    lab.clock.sleep(3)
    lab.loader.run(plan(1, 2), always)
    assert b'"speculative":true' in lab.prober(URL).fetch(Probe(name="slots", path="/slots")).body
    assert counters(lab)["spec_decode_num_drafts_total"] == 0


def test_fault_12_foreign_requests_in_the_window() -> None:
    lab = faulty(Fault(kind=FaultKind.FOREIGN, after_tokens=200, tokens=20))
    start(lab, 2)
    before = counters(lab)
    report = lab.loader.run(plan(2, 8), always)
    lab.clock.sleep(5)
    ours = sum(r.output_tokens for r in report.records)
    foreign = counters(lab)["tokens_predicted_total"] - before["tokens_predicted_total"] - ours
    assert errors(report) == []
    assert foreign == 20 * (ours // 200)


def test_a_fault_of_one_launch_spares_the_next() -> None:
    lab = faulty(Fault(kind=FaultKind.OOM_AT_START, launches=(1,)))
    assert start(lab, 2).exit() == ExitFacts(code=1)
    assert start(lab, 2, log="b.log").exit() is None
