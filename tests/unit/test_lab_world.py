"""The lab in virtual time: start-up, and loads whose counts are known."""

from __future__ import annotations

import hashlib
import itertools

import msgspec
import pytest
from support_world import HEALTH, QUIET, READY, URL, always, counters, errors, moved, plan, start

from leadline import metrics
from leadline.evidence import ExitFacts, Probe, ProcessFacts
from leadline.launch import LaunchSpec, Start
from leadline.ports import Completed, LoadPlan, PlannedRequest
from leadline.testing.lab import Lab
from leadline.testing.physics import LabSpec, truth
from leadline.trial import LoadReport

# --- a healthy server


def test_a_start_loads_with_signs_of_progress_and_then_generates() -> None:
    lab = Lab(QUIET)
    session = start(lab, 2, wait_s=0.5)
    prober = lab.prober(URL)
    loading = prober.fetch(HEALTH)
    assert (loading.status, b"Loading model" in loading.body) == (503, True)
    assert prober.fetch(READY).status == 503
    before = (len(lab.host.log("a.log")), session.process())
    lab.clock.sleep(1.0)
    after = (len(lab.host.log("a.log")), session.process())
    assert after[0] > before[0]
    assert before[1] is not None
    assert after[1] is not None
    assert after[1].read_bytes > before[1].read_bytes
    lab.clock.sleep(0.6)
    assert prober.fetch(HEALTH).status == 200
    assert b'"completion_tokens":1' in prober.fetch(READY).body
    assert "listening on http://127.0.0.1:9000" in lab.host.log("a.log")


def test_a_lab_can_never_pass_for_a_real_engine() -> None:
    lab = Lab(QUIET)
    start(lab, 0)
    assert b'"build_info":"leadline-lab"' in lab.prober(URL).fetch(Probe(name="props", path="/props")).body
    assert b'"id":"lab:m.gguf"' in lab.prober(URL).fetch(Probe(name="models", path="/v1/models")).body


@pytest.mark.parametrize(("depth", "concurrency"), [(0, 1), (4, 1), (2, 4), (8, 4), (2, 16)])
def test_a_load_without_noise_measures_the_truth(depth: int, concurrency: int) -> None:
    lab = Lab(QUIET)
    start(lab, depth)
    report = lab.loader.run(plan(concurrency, 40 + 6 * concurrency), always)
    expected = truth(QUIET, depth=depth, concurrency=concurrency, max_running=16)
    assert metrics.reduce(report)["output_tok_s"] == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("depth", [0, 1, 5])
def test_realised_counts_are_the_servers_counters(depth: int) -> None:
    lab = Lab(LabSpec())
    start(lab, depth)
    lab.prober(URL).fetch(READY)
    before = counters(lab)
    report = lab.loader.run(plan(4, 12), always)
    after = counters(lab)
    total = lab.realised[-1].total
    assert moved(before, after) == {
        "spec_decode_num_drafts_total": total.drafting_rounds,
        "spec_decode_num_draft_tokens_total": total.drafted,
        "spec_decode_num_accepted_tokens_total": total.accepted,
        **{
            f'spec_decode_num_accepted_tokens_per_pos_total{{position="{i}"}}': n
            for i, n in enumerate(total.per_position)
        },
    }
    assert total.decode_tokens == sum(r.output_tokens - 1 for r in report.records)
    assert after["tokens_predicted_total"] - before["tokens_predicted_total"] == sum(
        r.output_tokens for r in report.records
    )
    for warmup, counts in ((True, lab.realised[-1].warmup), (False, lab.realised[-1].measured)):
        assert counts.drafted == sum(r.drafted for r in report.records if r.warmup is warmup)
        assert counts.accepted == sum(r.accepted for r in report.records if r.warmup is warmup)


def test_a_load_sends_every_session_once_in_order_and_marks_the_warm_up() -> None:
    lab = Lab(QUIET)
    start(lab, 2)
    work = plan(3, 10, turns=2)
    report = lab.loader.run(work, always)
    assert [(r.prompt_id, r.warmup) for r in sorted(report.records, key=lambda r: r.prompt_id)] == sorted(
        [(r.prompt_id, True) for s in work.warmup for r in s] + [(r.prompt_id, False) for s in work.sessions for r in s]
    )
    assert errors(report) == []
    for user in range(3):
        own = [r for r in report.records if r.user == user]
        assert all(a.end_ns == b.start_ns for a, b in itertools.pairwise(own))
        assert [r.turn for r in own] == [0, 1] * (len(own) // 2)
    assert report.window_start_ns == max(r.end_ns for r in report.records if r.warmup)
    assert report.window_end_ns == min(max(r.end_ns for r in report.records if r.user == u) for u in range(3))


def test_records_hold_several_tokens_a_chunk_and_sum_up() -> None:
    lab = Lab(QUIET)
    start(lab, 4)
    report = lab.loader.run(plan(1, 4), always)
    for record in report.records:
        assert sum(record.chunk_tokens) == pytest.approx(record.output_tokens)
        assert len(record.chunk_ns) < record.output_tokens
        assert list(record.chunk_ns) == sorted(set(record.chunk_ns))
        assert record.start_ns < record.chunk_ns[0]
        assert record.chunk_ns[-1] == record.end_ns


def test_the_same_seed_gives_the_same_records_and_another_seed_others() -> None:
    def run(seed: int) -> LoadReport:
        lab = Lab(LabSpec(), seed=seed)
        start(lab, 3)
        return lab.loader.run(plan(4, 8), always)

    assert run(7) == run(7)
    assert run(7).records != run(8).records


def test_launches_and_load_points_differ_by_their_noise_only() -> None:
    lab = Lab(LabSpec(launch_sd=0.02, point_sd=0.0))
    rates = []
    for _ in range(2):
        session = start(lab, 3)
        rates += [metrics.reduce(lab.loader.run(plan(1, 6), always))["output_tok_s"] for _ in range(2)]
        session.end(1.0)
    assert rates[0] == pytest.approx(rates[1], rel=1e-6)
    assert rates[2] == pytest.approx(rates[3], rel=1e-6)
    assert abs(rates[0] / rates[2] - 1) > 1e-3
    assert lab.realised[0] == lab.realised[2]


def test_requests_beyond_the_slots_queue_and_one_that_is_too_long_is_refused() -> None:
    lab = Lab(msgspec.structs.replace(QUIET, kv_tokens=700))
    start(lab, 0, slots=2)
    report = lab.loader.run(plan(4, 8), always)
    assert errors(report) == []
    assert metrics.reduce(report)["ttft_ms.p99"] > 1000
    huge = PlannedRequest(prompt_id="coding:1", body={"prompt": "x" * 4000, "max_tokens": 8})
    refused = lab.loader.run(LoadPlan(url=URL, concurrency=1, sessions=((huge,),)), always)
    assert [(r.status, "do not fit" in r.error) for r in refused.records] == [(400, True)]


def test_a_load_ends_early_when_nobody_wants_it_any_more() -> None:
    lab = Lab(QUIET)
    start(lab, 2)
    answers = iter([True, True])
    before = counters(lab)
    report = lab.loader.run(plan(2, 40), lambda: next(answers, False))
    assert set(errors(report)) == {"stopped"}
    assert len(report.records) < 42
    idle = counters(lab)
    assert moved(before, idle)["spec_decode_num_draft_tokens_total"] == lab.realised[-1].total.drafted
    assert (idle["requests_processing"], idle["requests_deferred"]) == (0, 0)


# --- the machine


def test_a_port_in_use_and_a_bad_flag_end_the_server_in_its_own_words() -> None:
    lab = Lab(QUIET)
    start(lab, 0, log="first")
    second = start(lab, 0, log="second")
    assert second.exit() == ExitFacts(code=1)
    assert "couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 9000" in lab.host.log("second")
    bad = lab.host.start(Start(launch=LaunchSpec(argv=("llama-server", "--bogus")), log="third"))
    assert bad.exit() == ExitFacts(code=1)
    assert lab.host.log("third") == "error: invalid argument: --bogus\n"


def test_a_squatter_is_seen_on_its_port() -> None:
    lab = Lab(QUIET)
    lab.squatters[9000] = ProcessFacts(pid=77, start_id="x", argv=("other",), name="other")
    assert start(lab, 0).exit() == ExitFacts(code=1)
    assert lab.host.listener("127.0.0.1", 9000) == lab.squatters[9000]


def test_a_session_owns_its_server_until_it_ends() -> None:
    lab = Lab(QUIET)
    session = start(lab, 0)
    process, listener = session.process(), lab.host.listener("127.0.0.1", 9000)
    assert process == listener
    assert process is not None
    assert session.owns(process.pid)
    assert not session.owns(process.pid + 1)
    assert session.end(1.0) == ExitFacts(code=0, asked=True) == session.end(1.0)
    assert session.process() is None
    assert lab.host.listener("127.0.0.1", 9000) is None
    assert lab.prober(URL).fetch(HEALTH).status == 0
    assert "cleaning up before exit" in lab.host.log("a.log")


def test_our_death_ends_every_server() -> None:
    lab = Lab(QUIET)
    session = start(lab, 0)
    lab.disconnect()
    assert session.exit() is not None
    assert lab.host.listener("127.0.0.1", 9000) is None


def test_files_and_commands_of_the_machine() -> None:
    lab = Lab(QUIET)
    lab.host.write("/etc/x", b"one", 0o640)
    assert (lab.host.read("/etc/x"), lab.files["/etc/x"].mode) == (b"one", 0o640)
    lab.host.remove("/etc/x")
    lab.host.remove("/etc/x")
    assert lab.host.read("/etc/x") is None
    assert lab.host.run(["drain", "now"]).code == 127
    lab.commands["drain"] = lambda words: Completed(argv=tuple(words), code=0, stdout=b"ok", stderr=b"")
    assert lab.host.run(["drain", "now"]).stdout == b"ok"
    assert lab.ran == [("drain", "now"), ("drain", "now")]


def test_the_machine_knows_the_digest_of_its_files() -> None:
    lab = Lab(QUIET)
    lab.host.write("/a", b"one", 0o600)
    digest = hashlib.sha256(b"one").hexdigest()
    assert lab.host.run(["sha256sum", "--", "/a"]).stdout.split() == [digest.encode(), b"/a"]
    assert [lab.host.run(["test", "-e", path]).code for path in ("/a", "/b")] == [0, 1]
    assert lab.host.run(["sha256sum", "--", "/b"]).code == 1
