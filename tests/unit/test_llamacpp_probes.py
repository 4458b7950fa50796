"""What llama-server's answers say, from two recorded windows of build 10434 and from answers made of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leadline.engines.llamacpp import engine
from leadline.evidence import Acceptance, Busy, Effective, Evidence, Reply
from leadline.trial import RequestRecord

WINDOWS = json.loads((Path(__file__).parents[1] / "golden" / "llamacpp" / "windows.json").read_text())
OFF, DEEP = WINDOWS


def evidence(window: dict[str, Any], side: str, **other: Any) -> Evidence:
    replies = {name: Reply(name=name, status=200, body=body.encode()) for name, body in window[side].items()}
    return Evidence(replies=replies, log="\n".join(window["log"]), argv=tuple(window["argv"]), **other)


def records(window: dict[str, Any]) -> list[RequestRecord]:
    return [record(**counts) for counts in window["records"]]


def record(**fields: Any) -> RequestRecord:
    return RequestRecord(prompt_id="p", user=0, intended_ns=0, start_ns=0, end_ns=9, **fields)


def without(look: Evidence, *names: str) -> Evidence:
    return msgspec.structs.replace(look, replies={n: r for n, r in look.replies.items() if n not in names})


def answering(name: str, body: str, status: int = 200) -> Evidence:
    return Evidence(replies={name: Reply(name=name, status=status, body=body.encode())})


def metrics(predicted: int, drafted: int = 0, accepted: int = 0, drafts: int = 0, *positions: int) -> Evidence:
    lines = [
        "# TYPE llamacpp:tokens_predicted_total counter",
        f"llamacpp:tokens_predicted_total {predicted}",
        f"llamacpp:spec_decode_num_draft_tokens_total {drafted}",
        f"llamacpp:spec_decode_num_accepted_tokens_total {accepted}",
        f"llamacpp:spec_decode_num_drafts_total {drafts}",
        *(
            f'llamacpp:spec_decode_num_accepted_tokens_per_pos_total{{position="{i}"}} {n}'
            for i, n in enumerate(positions)
        ),
    ]
    return answering("metrics", "\n".join(lines))


@pytest.mark.parametrize("window", WINDOWS, ids=lambda w: w["name"])
def test_counts_a_recorded_window(window: dict[str, Any]) -> None:
    counted = engine.acceptance(evidence(window, "before"), evidence(window, "after"), records(window))
    expected = window["acceptance"]
    assert counted == Acceptance(**{**expected, "per_position": tuple(expected["per_position"])})


def test_what_ran() -> None:
    common: dict[str, Any] = dict(max_running=2, context=2048, kv_tokens=4096, model="model.gguf", version="b1-7e4c0a9")
    assert engine.effective(evidence(OFF, "after")) == Effective(depth=0, speculating=False, **common)
    assert engine.effective(evidence(DEEP, "after")) == Effective(depth=4, speculating=True, **common)


def test_the_depth_is_unknown_before_the_first_draft() -> None:
    seen = engine.effective(evidence(DEEP, "before"))
    assert (seen.depth, seen.speculating) == (None, True)


def test_positions_without_an_accepted_token_count_for_the_depth() -> None:
    assert engine.effective(metrics(10, 12, 0, 2, 0, 0, 0, 0, 0, 0)).depth == 6


def test_without_slots_a_draft_proves_that_it_speculates() -> None:
    assert engine.effective(without(evidence(DEEP, "after"), "slots")).speculating is True
    assert engine.effective(without(evidence(OFF, "after"), "slots")).speculating is None


def test_without_metrics_nothing_is_counted() -> None:
    before, after = (without(evidence(DEEP, side), "metrics") for side in ("before", "after"))
    assert engine.acceptance(before, after, records(DEEP)) is None
    assert engine.foreign_tokens(before, after, []) == 0
    off = answering("metrics", '{"error":{"code":501,"message":"This server does not support metrics endpoint."}}', 501)
    assert engine.acceptance(off, off, []) is None


def test_the_model_comes_from_the_list_when_props_do_not_tell() -> None:
    assert engine.effective(without(evidence(DEEP, "after"), "props")).model == "model.gguf"


@pytest.mark.parametrize(("unified", "tokens"), [("true", 1024), ("false", 4096)])
def test_kv_tokens_from_the_log(unified: str, tokens: int) -> None:
    line = f"0.1 I srv    load_model: initializing, n_slots = 4, n_ctx_slot = 1024, kv_unified = '{unified}'"
    assert engine.effective(Evidence(log=f"one\n{line}\nthree")).kv_tokens == tokens


def test_the_first_token_of_each_request_is_no_round() -> None:
    one = record(output_tokens=15, drafted=12, accepted=12)
    counted = engine.acceptance(metrics(100), metrics(115, 12, 12, 2, 2, 2, 2, 2, 2, 2), [one])
    assert counted == Acceptance(
        decode_tokens=14, rounds=2, drafting_rounds=2, drafted=12, accepted=12, per_position=(2,) * 6
    )
    assert counted.acceptance_length == counted.drafted_acceptance_length == 7.0


def test_a_cut_request_that_showed_tokens_had_a_first_token() -> None:
    cut = record(chunk_ns=(1, 2), error="connection reset")
    counted = engine.acceptance(metrics(0), metrics(12), [cut])
    assert counted is not None
    assert counted.decode_tokens == 11
    refused = record(error="HTTP 500", status=500)
    counted = engine.acceptance(metrics(0), metrics(12), [refused])
    assert counted is not None
    assert counted.decode_tokens == 12


def test_tokens_accepted_behind_a_stop_leave_the_rounds_that_drafted() -> None:
    stopped = record(output_tokens=5, drafted=6, accepted=6, finish_reason="stop")
    counted = engine.acceptance(metrics(0), metrics(5, 6, 6, 1, 1, 1, 1, 1, 1, 1), [stopped])
    assert counted is not None
    assert counted.rounds == 1


def test_only_the_window_counts() -> None:
    counted = engine.acceptance(metrics(10, 4, 3, 2, 2, 1), metrics(31, 10, 6, 5, 4, 2), [record(output_tokens=21)])
    assert counted == Acceptance(
        decode_tokens=20, rounds=17, drafting_rounds=3, drafted=6, accepted=3, per_position=(2, 1)
    )


def test_counters_that_went_back_are_of_another_process() -> None:
    assert engine.acceptance(metrics(100, 8, 4, 2, 2, 2), metrics(150, 4, 2, 1, 1, 1), []) is None
    assert engine.acceptance(metrics(100, 8, 4, 2, 2, 2), metrics(150, 8, 4, 2), []) is None
    assert engine.acceptance(metrics(100, 8, 6, 2, 4, 2), metrics(150, 18, 9, 9, 3, 6), []) is None
    assert engine.foreign_tokens(metrics(100), metrics(50), []) == 0


def test_a_restart_shows_in_the_counters() -> None:
    assert engine.restarted(metrics(100), metrics(50))
    assert not engine.restarted(metrics(100), metrics(100))
    assert not engine.restarted(metrics(100), Evidence())


def test_requests_that_accepted_more_than_the_counters_saw_went_elsewhere() -> None:
    ours = [record(output_tokens=50, drafted=40, accepted=20)]
    assert engine.acceptance(metrics(0), metrics(50, 39, 20, 10, 20), ours) is None
    assert engine.acceptance(metrics(0), metrics(50, 40, 19, 10, 19), ours) is None
    assert engine.acceptance(metrics(0), metrics(50, 40, 20, 10, 20), ours) is not None


@pytest.mark.parametrize("window", WINDOWS, ids=lambda w: w["name"])
def test_foreign_tokens_of_a_recorded_window(window: dict[str, Any]) -> None:
    before, after = evidence(window, "before"), evidence(window, "after")
    ours = records(window)
    assert engine.foreign_tokens(before, after, ours) == 0
    assert engine.foreign_tokens(before, after, ours[1:]) == ours[0].output_tokens


def test_a_ready_probe_in_the_window_is_ours() -> None:
    ready = Reply(name="ready", status=200, body=b'{"id":"2","usage":{"completion_tokens":2}}')
    before, after = metrics(10), metrics(32)
    after = msgspec.structs.replace(after, replies={**after.replies, "ready": ready})
    assert engine.foreign_tokens(before, after, [record(output_tokens=20)]) == 0
    counted = engine.acceptance(before, after, [record(output_tokens=20)])
    assert counted is not None
    assert counted.decode_tokens == 20
    # The same answer in both was given before the window.
    before = msgspec.structs.replace(before, replies={**before.replies, "ready": ready})
    assert engine.foreign_tokens(before, after, [record(output_tokens=20)]) == 2


def test_what_a_cut_request_may_have_got_is_not_foreign() -> None:
    cut = record(chunk_ns=(1,), error="cut")
    props = Reply(name="props", status=200, body=b'{"default_generation_settings":{"n_ctx":1000}}')
    before = metrics(0)
    for predicted, foreign in ((900, 0), (1000, 0), (1500, 500)):
        after = metrics(predicted)
        known = msgspec.structs.replace(after, replies={**after.replies, "props": props})
        assert engine.foreign_tokens(before, known, [cut]) == foreign
        assert engine.foreign_tokens(before, after, [cut]) == 0, "the context is unknown: anything may be ours"


def test_loading() -> None:
    body = b'{"error":{"message":"Loading model","type":"unavailable_error","code":503}}'
    assert engine.loading(Reply(name="health", status=503, body=body))
    assert not engine.loading(Reply(name="health", status=503, body=b"no backend"))
    assert not engine.loading(Reply(name="health", status=200, body=b'{"status":"ok"}'))


def test_ready_asks_for_more_than_the_prompts_own_token() -> None:
    ready = {p.name: p for p in engine.probes()}["ready"]
    body = json.loads(ready.body)
    assert body["max_tokens"] == 2
    assert body["cache_prompt"] is False
    assert engine.probes()[-1].name == "metrics", "counters that open a window come after the probes' own tokens"


@pytest.mark.parametrize("window", WINDOWS, ids=lambda w: w["name"])
def test_busy_by_the_gauges(window: dict[str, Any]) -> None:
    assert engine.busy(evidence(window, "after").replies["metrics"]) == Busy(running=0, waiting=0)
    body = b"llamacpp:requests_processing 2\nllamacpp:requests_deferred 7\n"
    assert engine.busy(Reply(name="metrics", status=200, body=body)) == Busy(running=2, waiting=7)


def test_gauges_that_are_not_there_are_not_0() -> None:
    only_running = Reply(name="metrics", status=200, body=b"llamacpp:requests_processing 1")
    assert engine.busy(only_running) == Busy(running=1, waiting=None)
    for nothing in (b"", b"\xff\x00", b"llamacpp:requests_processing NaN", b"llamacpp:requests_processing -1"):
        assert engine.busy(Reply(name="metrics", status=200, body=nothing)) is None
    assert engine.busy(Reply(name="metrics", status=503, body=b"llamacpp:requests_processing 1")) is None


STATISTICS = (
    "spec common_specu: statistics     draft-simple: #calls(b,g,a) =    1      5      5, #gen drafts = {}, "
    "#acc drafts =     5, #gen tokens = {}, #acc tokens = {}, #mean acc len = 4.60"
)


def test_drafts_that_metrics_do_not_count_are_read_from_the_log() -> None:
    def look(predicted: int, *lines: str) -> Evidence:
        body = f"llamacpp:tokens_predicted_total {predicted}".encode()
        return Evidence(replies={"metrics": Reply(name="metrics", status=200, body=body)}, log="\n".join(lines))

    one = [STATISTICS.format(5, 18, 18), STATISTICS.replace("draft-simple", "ngram-mod").format(1, 4, 0)]
    two = [*one, STATISTICS.format(15, 58, 38)]
    ours = [record(output_tokens=31, drafted=40, accepted=20)]
    counted = engine.acceptance(look(10, *one), look(41, *two), ours)
    assert counted == Acceptance(decode_tokens=30, rounds=10, drafting_rounds=10, drafted=40, accepted=20)
    assert engine.acceptance(look(10), look(41), []) is None, "nobody says whether anything was drafted"


def test_the_depth_from_the_log_when_metrics_do_not_tell() -> None:
    for said, depth in (
        ("slot print_timing: id  0 | task 17 |      acc per pos = (0.900, 0.700, 0.400)", 3),
        ("W spec: requested draft size (n_max=9, n_min=0) exceeds the trained block size 8 -- clamping to 7", 7),
        ("nothing of the kind", None),
    ):
        assert engine.effective(Evidence(log=said)).depth == depth


def test_a_context_that_was_shrunk_is_seen() -> None:
    """`-c 65536` was asked for; the log of build 11434 tells what there is before the server answers."""
    line = "srv    load_model: initializing, n_slots = 2, n_ctx_slot = 4096, kv_unified = 'false'"
    seen = engine.effective(Evidence(argv=("llama-server", "-c", "65536"), log=line))
    assert (seen.context, seen.max_running, seen.kv_tokens) == (4096, 2, 8192)


def test_the_weights_of_one_device() -> None:
    log = """load_tensors:   CPU_Mapped model buffer size =   256.00 MiB
load_tensors:        CUDA0 model buffer size =  4096.00 MiB
load_tensors:        CUDA1 model buffer size =  4000.50 MiB
load_tensors:        CUDA0 model buffer size =   512.00 MiB"""
    assert engine.effective(Evidence(log=log)).weights_bytes == 4608 << 20
    assert engine.effective(Evidence(log=log.splitlines()[0])).weights_bytes == 256 << 20


@pytest.mark.parametrize(
    ("version", "build"),
    [
        ("b10434-7e4c0a9", 10434),
        ("10434 (7e4c0a9)", 10434),
        ("version: 11434 (abc)\nbuilt with MSVC 19.43.34809.0 for x64", 11434),
        ("version: 0.1.0-dev (build 10434, commit 7e4c0a9)\nbuilt with GNU 11.4.0 for Linux x86_64", 10434),
        ("b1-7e4c0a9", None),
        ("version: 0.1.0-dev (build 1, commit 7e4c0a9)", None),
        ("built with MSVC 19.43.34809.0 for x64", None),
        ("0.5.16", None),
        ("", None),
        (None, None),
    ],
)
def test_the_build_of_a_version(version: str | None, build: int | None) -> None:
    assert engine.at(version).build == build


KEYS = st.sampled_from(
    (
        *("data", "meta", "size", "id", "usage", "completion_tokens", "total_slots", "n_ctx"),
        *("default_generation_settings", "speculative", "model_path", "build_info"),
    )
)
ODD_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=8,
)
BODIES = st.binary(max_size=60) | ODD_JSON.map(lambda v: json.dumps(v).encode())
SAMPLES = st.sampled_from(
    [
        "tokens_predicted_total",
        "spec_decode_num_draft_tokens_total",
        'spec_decode_num_drafts_total{a="b"}',
        *(f'spec_decode_num_accepted_tokens_per_pos_total{{position="{i}"}}' for i in (0, 1, 7, 9999, "9" * 5000)),
    ]
)
NUMBERS = st.sampled_from(["nan", "inf", "-1", "1e300", "9" * 5000, "x", ""]) | st.integers(0, 99).map(str)
LINES = st.tuples(SAMPLES, NUMBERS).map(lambda t: f"llamacpp:{t[0]} {t[1]}")
METRICS = st.lists(LINES, max_size=6).map(lambda lines: "\n".join(lines).encode()) | BODIES


@st.composite
def any_evidence(draw: st.DrawFn) -> Evidence:
    replies = {
        name: Reply(name=name, status=draw(st.sampled_from([0, 200, 503])), body=draw(bodies))
        for name, bodies in (
            ("props", BODIES),
            ("slots", BODIES),
            ("models", BODIES),
            ("ready", BODIES),
            ("metrics", METRICS),
        )
    }
    return Evidence(replies=replies, log=draw(st.text(max_size=40)), argv=draw(st.sampled_from([(), ("bash", "x")])))


@given(any_evidence(), any_evidence())
@settings(max_examples=150, deadline=None)
def test_no_answer_raises_and_counts_stay_counts(before: Evidence, after: Evidence) -> None:
    seen = engine.effective(after)
    assert seen.depth is None or seen.depth >= 0
    counted = engine.acceptance(before, after, [record(output_tokens=3)])
    if counted is not None:
        assert min(msgspec.structs.astuple(counted)[:5]) >= 0
        assert counted.rounds >= counted.drafting_rounds
        assert msgspec.json.encode(counted)
    assert engine.foreign_tokens(before, after, []) >= 0
    engine.busy(after.replies["metrics"])
    assert engine.diagnose(after).reason
