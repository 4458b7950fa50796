"""What a running vLLM says: its counters, its configuration, its log; where it says nothing, nothing is made up."""

from __future__ import annotations

import random

import msgspec
import pytest
from support_vllm import MODELS, log, look, page, record, windows

from leadline.engines.vllm import engine
from leadline.engines.vllm.loglines import concurrency, drafting, engine_line, kv_tokens, stats
from leadline.evidence import Acceptance, Busy, Effective, Evidence, Reply
from leadline.testing.engine_case import SHAPES, spoilt
from leadline.testing.engine_suite import Window


def metrics(text: str, status: int = 200) -> Reply:
    return Reply(name="metrics", status=status, body=text.encode())


# --- what runs


def test_reads_a_speculating_server_from_its_log_and_pages() -> None:
    cache = 'block_size="16",num_gpu_blocks="30000",gpu_memory_utilization="0.9",kv_cache_size_tokens="406240"'
    seen = look(page(2, (0, 0, 0), cache=cache), log=log("mtp-3"), models=MODELS, version={"version": "0.33.0"})
    assert engine.effective(seen) == Effective(
        depth=3,
        speculating=True,
        max_running=64,
        context=32768,
        kv_tokens=406_240,
        memory_fraction=0.9,
        graphs=True,
        graph_max_batch=128,
        moe_tuned=False,
        weights_bytes=round(15.08 * 2**30),
        model="org/model",
        version="0.33.0",
    )


def test_reads_an_old_server_without_speculation() -> None:
    assert engine.effective(look(log=log("plain"))) == Effective(
        depth=0,
        speculating=False,
        context=32768,
        kv_tokens=106_240,
        graphs=False,
        weights_bytes=round(15.2718 * 2**30),
        model="org/model",
        version="0.11.0",
    )


def test_the_open_configuration_comes_first() -> None:
    """/server_info is there in development mode only."""
    info = {
        "vllm_config": {
            "speculative_config": {"method": "mtp", "num_speculative_tokens": 2},
            "scheduler_config": {"max_num_seqs": 48},
            "cache_config": {"gpu_memory_utilization": 0.8},
            "compilation_config": {"max_cudagraph_capture_size": 192},
        }
    }
    seen = engine.effective(look(page(0), server_info=info, log=log("mtp-3")))
    assert (seen.depth, seen.max_running, seen.memory_fraction, seen.graph_max_batch) == (2, 48, 0.8, 64)
    off = {"vllm_config": {"speculative_config": None}}
    assert engine.effective(look(page(0, (0, 0)), server_info=off)).depth == 0


def test_the_launch_tells_what_was_asked_for() -> None:
    seen = engine.effective(
        look(argv=("vllm", "serve", "m", "--max-num-seqs", "12", "--gpu-memory-utilization", "0.7"))
    )
    assert (seen.max_running, seen.memory_fraction) == (12, 0.7)
    assert engine.effective(look(argv=("vllm", "serve", "m", "--config", "gone.yaml"))) == Effective()


@pytest.mark.parametrize(
    ("text", "depth"),
    [
        (page(0, (0, 0, 0, 0)), 4),  # right after the start: all positions are there, as zeros
        (page(9), 0),  # it has generated, and counts no drafts
        (page(0), None),  # nothing generated yet: an absent series says nothing
        ("", None),
        ("vllm:generation_tokens_total nan", None),
    ],
)
def test_the_depth_from_the_counters(text: str, depth: int | None) -> None:
    assert engine.effective(look(text)).depth == depth


def test_capacity_from_blocks_where_nothing_better_is_said() -> None:
    cache = 'block_size="16",num_gpu_blocks="1000",kv_cache_size_tokens="None"'
    assert engine.effective(look(page(0, cache=cache))).kv_tokens == 16_000
    assert engine.effective(look(page(0, cache=cache), log=log("plain"))).kv_tokens == 106_240
    two = page(0, cache='kv_cache_size_tokens="500"') + page(0, cache='kv_cache_size_tokens="400"', engine="1")
    assert engine.effective(look(two)).kv_tokens == 900
    # Series that differ in another label are of one engine, and repeat it.
    again = page(0, cache='kv_cache_size_tokens="450",rank="1"') + two
    assert engine.effective(look(again)).kv_tokens == 900
    blocks = page(0, cache=cache) + page(0, cache=f'{cache},rank="1"') + page(0, cache=cache, engine="1")
    assert engine.effective(look(blocks)).kv_tokens == 32_000


def test_capacity_and_concurrency_are_two_figures() -> None:
    """noonghunna/club-3090#613: 106,240 tokens, and 24.20 requests of 16,384. Neither follows from the other."""
    assert kv_tokens(log("plain")) == 106_240
    assert concurrency(log("plain")) == 24.20
    one_line = "GPU KV cache size: 2,558,976 tokens, Maximum concurrency for 1,048,576 tokens per request: 2.44x"
    assert (kv_tokens(one_line), concurrency(one_line)) == (2_558_976, 2.44)
    assert (kv_tokens("no such line"), concurrency("")) == (None, None)


def test_the_last_start_in_a_log_counts() -> None:
    both = log("plain") + log("mtp-3")
    assert engine_line(both).depth == 3
    assert engine_line(log("mtp-3") + log("plain")).depth == 0
    assert engine_line(both).graph_mode == "FULL_AND_PIECEWISE"


def test_a_tuned_moe_is_told_from_none() -> None:
    tuned = "INFO Using configuration from /x/E=128,N=768,device_name=NVIDIA_H200.json for MoE layer."
    assert engine.effective(look(log=tuned)).moe_tuned is True
    assert engine.effective(look(log="nothing")).moe_tuned is None


# --- lines of the log


def test_statistics_in_all_their_forms() -> None:
    line = (
        "Engine 002: Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 2.0 tokens/s, Running:"
        " 1 reqs, Waiting: 4 reqs, Deferred: 2 reqs, KV fetch: 1 waiting to start, 2 in progress, 3"
        " completed waiting, GPU KV cache usage:"
        " 9.9%"
    )
    seen = stats(line)
    assert seen is not None
    assert (seen.engine, seen.prompt_tok_s, seen.output_tok_s, seen.running, seen.waiting) == ("002", 1.0, 2.0, 1, 4)
    assert seen.kv_usage == pytest.approx(0.099)
    old = stats(log("plain").splitlines()[-1])
    assert old is not None
    assert (old.running, old.kv_usage) == (610, pytest.approx(0.176))
    assert stats("Avg prompt throughput: fast") is None


def test_six_positions() -> None:
    seen = drafting(
        "SpecDecoding metrics: Mean acceptance length: 4.74, Accepted throughput: 6.84 tokens/s, Drafted"
        " throughput: 9.9 tokens/s, Accepted: 987 tokens, Drafted: 1584 tokens, Per-position acceptance"
        " rate: 0.917, 0.837, 0.648, 0.538,"
        " 0.451, 0.348, Avg Draft acceptance rate: 62.3%"
    )
    assert seen is not None
    assert (seen.accepted, seen.drafted, seen.rounds) == (987, 1584, 264)
    assert 1 + sum(seen.position_rates) == pytest.approx(seen.mean_length, abs=0.005)
    assert 1 + seen.accepted / 264 == pytest.approx(seen.mean_length, abs=0.005)


def test_the_old_order_of_the_line() -> None:
    """vllm-project/vllm#19254: the rate first, and no "Avg"."""
    seen = drafting(
        "INFO 06-06 14:20:34 [metrics.py:86] SpecDecoding metrics: Draft acceptance rate: 38.8%, Mean acceptance"
        " length: 2.16, Accepted: 150 tokens, Drafted: 387 tokens, Per-position acceptance rate: 0.543, 0.357, 0.264"
    )
    assert seen is not None
    assert (seen.accepted, seen.drafted, seen.rounds, seen.mean_length) == (150, 387, 129, 2.16)
    assert seen.accepted / seen.drafted == pytest.approx(0.388, abs=0.0005)


def test_a_line_without_drafts_or_positions() -> None:
    nothing = (
        "SpecDecoding metrics: Mean acceptance length: nan, Accepted throughput: 0.00 tokens/s, Drafted"
        " throughput: 0.00 tokens/s, Accepted: 0 tokens, Drafted: 0 tokens, Per-position acceptance"
        " rate: , Avg Draft acceptance rate: nan%"
    )
    seen = drafting(nothing)
    assert seen is not None
    assert (seen.drafted, seen.mean_length, seen.rounds, seen.position_rates) == (0, None, None, ())
    assert drafting("SpecDecoding metrics: Accepted: 1 tokens") is None
    assert drafting("Accepted: 1 tokens, Drafted: 2 tokens") is None


# --- counts


@pytest.mark.parametrize("window", windows(), ids=["one request", "two engines", "plain"])
def test_counts_a_window(window: Window) -> None:
    assert engine.acceptance(window.before, window.after, window.records) == window.acceptance
    assert engine.foreign_tokens(window.before, window.after, window.records) == 0


def test_a_requests_own_histogram_agrees_with_the_counters() -> None:
    """The answer of a request: histogram 39, 1, 0, 3 = 43 steps, 10 of 129 draft tokens accepted."""
    one = windows()[0]
    (ours,) = one.records
    got = engine.acceptance(one.before, one.after, one.records)
    assert got is not None
    assert (ours.rounds, ours.accepted, ours.drafted) == (43, 10, 129)
    assert (got.rounds, got.accepted, got.drafted) == (43, 10, 129)
    assert got.acceptance_length == pytest.approx(1.2325581395348837)


def test_rounds_without_a_draft_are_rounds() -> None:
    """An n-gram drafter finds nothing in most rounds: 100 decode tokens, 30 of them accepted in 15 drafts."""
    got = engine.acceptance(look(page(0, (0, 0))), look(page(101, (15, 15), drafts=15, drafted=30)), [record(101)])
    assert got == Acceptance(
        decode_tokens=100, rounds=70, drafting_rounds=15, drafted=30, accepted=30, per_position=(15, 15)
    )


def test_absent_is_absent() -> None:
    assert engine.acceptance(look(), look(page(5)), ()) is None
    assert engine.acceptance(look(page(5)), look("other_metric 1"), ()) is None
    plain = engine.acceptance(look(page(5)), look(page(15)), [record(10)])
    assert plain is not None
    assert (plain.drafted, plain.per_position) == (0, ())


def test_the_ready_probe_between_two_looks_is_ours() -> None:
    answer = {"usage": {"completion_tokens": 2}}
    before, after = look(page(10)), look(page(112), ready=answer)
    assert engine.foreign_tokens(before, after, [record(100)]) == 0
    got = engine.acceptance(before, after, [record(100)])
    assert got is not None
    assert got.decode_tokens == 100


def test_foreign_tokens() -> None:
    before, after = look(page(10), models=MODELS), look(page(200_010), models=MODELS)
    assert engine.foreign_tokens(before, after, [record(100)]) == 199_900
    # a request of ours that failed may have got a whole context
    assert engine.foreign_tokens(before, after, [record(0, error="reset")]) == 200_000 - 32_768
    assert engine.foreign_tokens(look(page(10)), look(page(200_010)), [record(0, error="reset")]) == 0


@pytest.mark.parametrize(
    ("old", "new", "restarted"),
    [
        (page(10), page(9), True),
        (page(10, (5, 1), drafts=9), page(20, (4, 1), drafts=9), True),
        (page(10, (5, 1), drafts=9), page(20, (5, 1), drafts=8), True),
        (page(10, (5, 1)), page(20, (5,)), True),
        (page(10, (5, 1)), page(20), True),
        (page(10), page(20, (0, 0)), False),  # series that were not there yet
        (page(10), page(10), False),
        ("", page(10), False),
    ],
)
def test_counters_that_go_back_are_a_restart(old: str, new: str, restarted: bool) -> None:
    assert engine.restarted(look(old), look(new)) is restarted
    if restarted:
        assert engine.acceptance(look(old), look(new), ()) is None
        assert engine.foreign_tokens(look(old), look(new), ()) == 0


def test_records_of_another_server_are_noticed() -> None:
    before, after = look(page(0, (0,))), look(page(60, (4,), drafts=40, drafted=40))
    assert engine.acceptance(before, after, [record(60, histogram=(10, 30))]) is None


# --- how busy


def test_how_busy() -> None:
    text = page(0, running=3, waiting=1, usage=0.25) + page(0, running=2, engine="1", usage=0.5)
    assert engine.busy(metrics(text)) == Busy(running=5, waiting=1, kv_usage=0.5)
    assert engine.busy(metrics(text, status=500)) is None
    assert engine.busy(metrics("nothing")) is None
    old = 'vllm:num_requests_running{model_name="m"} 1.0\nvllm:gpu_cache_usage_perc{model_name="m"} 0.1'
    assert engine.busy(metrics(old)) == Busy(running=1, waiting=None, kv_usage=0.1)


# --- any bytes


def test_bears_any_answer() -> None:
    rng = random.Random(20261130)
    for _ in range(300):
        seen = spoilt(rng, rng.choice(windows()))
        told = engine.effective(seen)
        assert told.depth is None or told.depth >= 0
        got = engine.acceptance(rng.choice(windows()).before, seen, ())
        assert got is None or min(got.decode_tokens, got.rounds, got.drafted, got.accepted) >= 0
        assert engine.diagnose(seen).reason


@pytest.mark.parametrize("body", SHAPES)
def test_answers_that_are_no_answer(body: bytes) -> None:
    names = [p.name for p in engine.probes()]
    seen = Evidence(replies={name: Reply(name=name, status=200, body=body) for name in names})
    told = {k: v for k, v in msgspec.structs.asdict(engine.effective(seen)).items() if v is not None}
    assert not told


def test_no_line_of_a_log_takes_long() -> None:
    """Patterns that look again and again would stand still here."""
    for piece in (
        "x" * 200_000,
        "speculative_config=SpeculativeConfig(" * 5000,
        "'max_num_seqs': " * 20_000,
        "1," * 90_000,
    ):
        engine.effective(look(log=f"Initializing a V1 LLM engine (v1) with config: {piece}"))
        engine.diagnose(look(log=f"ValueError: {piece}"))
        engine.diagnose(look(log=piece))
