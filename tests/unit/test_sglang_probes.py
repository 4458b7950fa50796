"""What a live SGLang says, read from real files of version 0.5.16 and from the formats of others."""

from __future__ import annotations

import json
import random
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import msgspec
import pytest
from support_sglang import GOLDEN, PATTERNS, look, plain_info, record, scrape, server_info, spoil, text, windows

from leadline.dialect.prometheus import parse
from leadline.engines.sglang import counters, log, memory_log, probes, server
from leadline.engines.sglang.diagnosis import diagnose
from leadline.evidence import Acceptance, Busy, Effective, Evidence, Reply
from leadline.testing import engine_suite

if TYPE_CHECKING:
    from leadline.ports import Engine

EXPECTED: dict[str, dict[str, object]] = json.loads(text("expected.json"))
LOGS = sorted(p.name for p in GOLDEN.glob("*.log"))
SAMPLES = {entry["name"]: entry["sample"] for entry in json.loads(PATTERNS.read_text(encoding="utf-8"))}


READER = SimpleNamespace(
    name="sglang",
    probes=lambda: probes.PROBES,
    loading=probes.loading,
    effective=server.effective,
    diagnose=diagnose,
    acceptance=counters.acceptance,
    foreign_tokens=counters.foreign_tokens,
    restarted=counters.restarted,
)
"""As much of an engine as reads a live server: for the laws of the contract suite about that."""


def test_every_log_has_an_expectation() -> None:
    assert sorted(EXPECTED) == LOGS
    assert sum(p.stat().st_size for p in GOLDEN.iterdir()) < 700_000


@pytest.mark.parametrize("name", LOGS)
def test_real_logs_tell_what_ran(name: str) -> None:
    """From the log alone, without any endpoint."""
    expected = EXPECTED[name]
    found = server.effective(Evidence(log=text(name)))
    fields = {field.name for field in msgspec.structs.fields(Effective)}
    wanted = {key: value for key, value in expected.items() if key in fields}
    assert {key: getattr(found, key) for key in wanted} == wanted
    seen = log.read(text(name))
    assert list(seen.weights_gib) == expected.get("weights_gib", [])
    assert seen.asked_running == expected.get("asked_running")
    if "decodes" in expected:
        assert len(seen.decodes) == expected["decodes"]
        assert (seen.decodes[-1].accepted if seen.decodes else None) == expected["last_accepted"]
    total = sum(seen.weights_gib)
    assert found.weights_bytes == (round(total * 2**30) if total else None)


def test_log_alone_gives_no_depth_of_a_tree_or_chain() -> None:
    """4 tokens are verified per request; that they are a chain of 3 is not said."""
    found = server.effective(Evidence(log=text("qwen3-30b-a3b-eagle3-steps3.log")))
    assert (found.speculating, found.draft_tokens, found.depth, found.topk) == (True, 4, None, None)


def test_server_info_and_metrics_of_the_same_run() -> None:
    evidence = look(
        server_info=server_info(),
        metrics=text("metrics-steps3.prom"),
        log=text("qwen3-30b-a3b-eagle3-steps3.log"),
    )
    assert server.effective(evidence) == Effective(
        depth=3,
        speculating=True,
        topk=1,
        draft_tokens=4,
        max_running=128,
        context=40960,
        kv_tokens=509729,
        memory_fraction=0.75,
        graphs=True,
        graph_max_batch=64,
        moe_tuned=True,
        weights_bytes=round(56.64 * 2**30),
        model="/models/qwen3-30b-a3b",
        version="0.5.16",
    )


def test_admitted_requests_are_not_what_was_asked_for() -> None:
    """Issue 36889: the argument keeps what was asked for. Ranks add up."""
    info = json.loads(server_info(max_running_requests=64))
    state = info["internal_states"][0]
    state["effective_max_running_requests_per_dp"] = 6
    assert server.effective(look(server_info=json.dumps(info))).max_running == 6
    info["internal_states"] = [state] * 8
    found = server.effective(look(server_info=json.dumps(info)))
    assert (found.max_running, found.kv_tokens) == (48, 8 * 509729)


def test_data_parallel_ranks_add_up_in_the_log() -> None:
    line = "[2026-11-30 12:00:00 DP{} TP{}] max_total_num_tokens=1000, chunked_prefill_size=8, max_prefill_tokens=16, "
    line += "max_running_requests=6, context_len=4096, available_gpu_mem=7.93 GB"
    both = "\n".join((line.format(0, 0), line.format(0, 1), line.format(1, 2)))
    found = server.effective(Evidence(log=both))
    assert (found.max_running, found.kv_tokens, found.context) == (12, 2000, 4096)


def test_weights_are_of_one_rank() -> None:
    load = "[2026-11-30 12:00:00 TP{}] Load weight end. elapsed=1.0 s, type=T, avail mem=9.00 GB, mem usage={} GB."
    both = "\n".join((load.format(0, "10.00"), load.format(1, "10.00"), load.format(1, "0.50"), load.format(0, "0.50")))
    assert server.effective(Evidence(log=both)).weights_bytes == round(10.5 * 2**30)


def test_asked_for_a_depth_and_none_runs() -> None:
    argv = (
        "python3",
        "-m",
        "sglang.launch_server",
        "--speculative-algorithm",
        "EAGLE3",
        "--speculative-num-steps",
        "3",
    )
    found = server.effective(look(server_info=plain_info(), argv=argv))
    assert (found.depth, found.speculating, found.topk, found.draft_tokens) == (0, False, None, None)
    plain = "\n".join([SAMPLES["sg.decode.nospec"]] * 3)
    assert server.effective(look(server_info=server_info(), log=plain)).speculating is False
    assert server.effective(look(server_info=server_info(), log=plain)).depth == 0


@pytest.mark.parametrize(
    ("lines", "speculating"),
    [
        ("", True),
        ("-", None),
        ("--", None),
        ("---", False),
        ("+-", None),
        ("+---", None),
        ("+" + "-" * 19, None),
        ("+" + "-" * 20, False),
        ("---+", True),
        ("--i", None),
        ("+iii", True),
    ],
)
def test_one_decode_line_without_an_acceptance_length_is_no_end_of_speculation(
    lines: str, speculating: bool | None
) -> None:
    """Of the latest lines that ran a batch: `+` with a length, `-` without, `i` with no request."""
    plain = SAMPLES["sg.decode.nospec"]
    texts = {"+": SAMPLES["sg.decode"], "-": plain, "i": plain.replace("#running-req: 1,", "#running-req: 0,")}
    found = server.effective(look(server_info=server_info(), log="\n".join(texts[c] for c in lines)))
    assert found.speculating is speculating
    assert found.depth == {True: 3, False: 0, None: None}[speculating]
    assert server.effective(look(server_info=plain_info(), log=plain)).speculating is False


@pytest.mark.parametrize(
    ("changed", "depth", "draft_tokens", "topk"),
    [
        ({"speculative_num_steps": 5, "speculative_eagle_topk": 8, "speculative_num_draft_tokens": 64}, 5, 64, 8),
        ({"speculative_algorithm": "EAGLE", "speculative_num_steps": 1, "speculative_num_draft_tokens": 2}, 1, 2, 1),
        (
            {"speculative_algorithm": "DFLASH", "speculative_num_draft_tokens": 8},
            7,
            8,
            None,
        ),
        (
            {
                "speculative_algorithm": "NGRAM",
                "speculative_num_steps": 1,
                "speculative_eagle_topk": 10,
                "speculative_num_draft_tokens": 12,
            },
            11,
            12,
            None,
        ),
        ({"speculative_adaptive": True}, None, None, 1),
    ],
)
def test_depth_by_method(changed: dict[str, object], depth: int | None, draft_tokens: int | None, topk: int) -> None:
    found = server.effective(look(server_info=server_info(**changed)))
    assert (found.depth, found.draft_tokens, found.topk) == (depth, draft_tokens, topk)


def test_arguments_in_the_log_of_either_form() -> None:
    """0.5.16 prints an object, 0.5.23 a dictionary."""
    for line in (
        "server_args=ServerArgs(model_path='/m', mem_fraction_static=0.8, speculative_algorithm='EAGLE', "
        "speculative_num_steps=4, speculative_eagle_topk=1, speculative_num_draft_tokens=5, context_length=None)",
        "server_args={'model_path': '/m', 'mem_fraction_static': 0.8, 'speculative_algorithm': 'EAGLE', "
        "'speculative_num_steps': 4, 'speculative_eagle_topk': 1, 'speculative_num_draft_tokens': 5, 'x': None}",
    ):
        found = server.effective(Evidence(log=f"[2026-11-30 12:00:00] {line}"))
        assert (found.depth, found.topk, found.draft_tokens) == (4, 1, 5)
        assert (found.model, found.memory_fraction, found.speculating) == ("/m", 0.8, True)


def test_graphs_by_most_of_the_latest_lines() -> None:
    """`cuda graph: False` of a batch above the captured ones must not be averaged away, nor outlive its load."""
    line = SAMPLES["sg.decode"]
    without = line.replace("graph: True", "graph: False")
    assert server.effective(Evidence(log="\n".join([line] * 9 + [without] * 11))).graphs is False
    assert server.effective(Evidence(log="\n".join([without] * 30 + [line] * 20))).graphs is True
    assert server.effective(Evidence(log=line.replace("cuda graph", "npu graph"))).graphs is True
    off = look(server_info=server_info(disable_cuda_graph=True))
    assert (server.effective(off).graphs, server.effective(off).graph_max_batch) == (False, None)
    passes = 'sglang:cuda_graph_passes_total{mode="decode_%s"} 9.0'
    assert server.effective(look(metrics=passes % "none")).graphs is False
    assert server.effective(look(metrics=passes % "cuda_graph")).graphs is True


def test_moe_kernels() -> None:
    default, tuned = SAMPLES["sg.moe_default"], "Using MoE kernel config from /x/" + SAMPLES["sg.moe_file"]
    assert server.effective(Evidence(log=default)).moe_tuned is False
    assert server.effective(Evidence(log=tuned)).moe_tuned is True
    assert server.effective(Evidence(log=f"{tuned}\n{default}\n{tuned}")).moe_tuned is False
    assert server.effective(Evidence(log="a model without experts")).moe_tuned is None


FACTS: dict[str, dict[str, object]] = {
    "sg.capacity": {"kv_tokens": 422048, "max_running": 48, "context": 131072},
    "sg.kvpool": {"kv_tokens": 422048},
    "sg.kvpool.mla": {"kv_tokens": 1048576},
    "sg.weights": {"weights_gib": (17.80,)},
    "sg.graph": {"captures": (log.Capture(what="target verify", width=4),)},
    "sg.graph.end": {"captures": (log.Capture(what="target verify", batches=(1, 2, 4, 8), gib=0.84),)},
    "sg.graph.draft": {"captures": (log.Capture(what="draft decode", batches=(1, 2), width=1),)},
    "sg.graph.draftend": {"captures": (log.Capture(what="draft extend", gib=0.10),)},
    "sg.graph.prefill": {"captures": (log.Capture(what="target prefill"),)},
    "sg.retract": {"retracted": 2},
    "sg.adaptive": {"steps": 5},
    "sg.reset48": {"asked_running": 48},
    "sg.mamba_cap": {"max_running": 31},
    "sg.mrr_reduced": {"asked_running": 64, "max_running": 48},
    "sg.moe_default": {"moe_tuned": False},
}
DECODES = {
    "sg.decode": log.Decode(
        running=8, waiting=0, tokens=8123, usage=0.02, accepted=3.22, graph=True, tokens_per_s=812.35
    ),
    "sg.decode.nospec": log.Decode(running=1, waiting=12, tokens=123, usage=0.0, graph=False, tokens_per_s=51.2),
    "sg.decode.hybrid": log.Decode(
        running=30, waiting=3, tokens=90123, usage=0.31, accepted=2.1, graph=True, tokens_per_s=2222.1
    ),
    "sg.decode.swa": log.Decode(
        running=3, waiting=0, tokens=10, usage=0.01, accepted=1.0, graph=True, tokens_per_s=9.0
    ),
    "sg.decode.pd": log.Decode(running=3, waiting=1, tokens=10, usage=0.01, accepted=2.0, graph=True, tokens_per_s=9.0),
}
MEMORY = {
    "sg.mamba": ("slots", 155),
    "sg.kvpool": ("pools", [(422048, 51.52 * 2**30)]),
    "sg.kvpool.mla": ("pools", [(1048576, 68.62 * 2**30)]),
}
BY_OTHERS = {"sg.decode.pairs", "sg.graph.kv", "sg.moe_file", "sg.prefill"}
SAY_NOTHING = {"sg.ready", "sg.topk1_adjust", "sg.mempool_end"}


def test_every_pattern_is_read_somewhere() -> None:
    told = {name for name in SAMPLES if name.startswith("sg.") and not name.startswith("sg.F.")}
    assert told == set(FACTS) | set(DECODES) | set(MEMORY) | BY_OTHERS | SAY_NOTHING


@pytest.mark.parametrize("name", sorted(FACTS))
def test_facts_of_the_patterns(name: str) -> None:
    found = msgspec.structs.asdict(log.read(SAMPLES[name]))
    nothing = msgspec.structs.asdict(log.Log())
    assert {key: value for key, value in found.items() if value != nothing[key]} == FACTS[name]


@pytest.mark.parametrize("name", sorted(DECODES))
def test_decode_lines_of_the_patterns(name: str) -> None:
    assert log.read(SAMPLES[name]).decodes == (DECODES[name],)


@pytest.mark.parametrize("name", sorted(MEMORY))
def test_memory_of_the_patterns(name: str) -> None:
    field, value = MEMORY[name]
    assert getattr(memory_log.read(SAMPLES[name]), field) == value


def test_other_lines_of_the_patterns() -> None:
    assert log.pairs_of(SAMPLES["sg.decode.pairs"]) == {"#running-req": "8", "#token": "8123"}
    assert log.read(SAMPLES["sg.prefill"]) == log.Log(), "a prefill's graph is not a decode step's"
    end = "Capture draft extend CUDA graph end. " + SAMPLES["sg.graph.kv"]
    assert log.read(end).captures[0].gib == 0.10
    for name in SAY_NOTHING:
        assert log.read(SAMPLES[name]) == log.Log()


def test_older_decode_lines() -> None:
    """sgl-project/sglang issue 4759: a point after the word, and a comma at the end."""
    old = (
        "Decode batch. #running-req: 32, #token: 7352, token usage: 0.01, accept len: 2.54, gen throughput (token/s): "
    )
    old += "39.33, largest-len: 0, #queue-req: 68,"
    assert log.decode_of(old) == log.Decode(
        running=32, waiting=68, tokens=7352, usage=0.01, accepted=2.54, tokens_per_s=39.33
    )
    capture = "Capture draft cuda graph end. Time elapsed: 62.67 s. mem usage=0.21 GB. avail mem=15.31 GB."
    assert log.read(capture).captures == (log.Capture(what="draft", gib=0.21),)
    batches = "Capture cuda graph begin. This can take up to several minutes.\nCapture cuda graph bs [1, 2, 160]"
    assert server.effective(Evidence(log=batches)).graph_max_batch == 160


@pytest.mark.parametrize(
    "law",
    [
        "can_be_probed",
        "knows_loading",
        "counts_exactly",
        "notices_a_restart",
        "reads_what_runs",
        "believes_the_supervisor",
    ],
)
def test_laws_of_the_contract_suite(law: str) -> None:
    engine_suite.LAWS[law](_case())


def _case() -> engine_suite.Case:
    return engine_suite.Case(
        engine=cast("Engine", READER),
        canonical=lambda setting: setting,
        bases=(),
        settings=(),
        foreign=(),
        refused=(),
        windows=windows(),
        loading=Reply(name="health", status=503),
    )


def test_nothing_is_made_up_and_nothing_raises() -> None:
    nothing = Evidence()
    assert server.effective(nothing) == Effective()
    assert counters.acceptance(nothing, nothing, ()) is None
    assert counters.foreign_tokens(nothing, nothing, ()) == 0
    assert not counters.restarted(nothing, nothing)
    assert log.read("") == log.Log()
    rng, looks = random.Random(516), windows()
    for _ in range(100):
        spoilt = [spoil(rng, rng.choice(looks).after) for _ in range(2)]
        server.effective(spoilt[1])
        assert diagnose(spoilt[1]).reason
        got = counters.acceptance(*spoilt, windows()[1].records)
        assert got is None or min(got.decode_tokens, got.rounds, got.drafted, got.accepted, *got.per_position, 0) == 0
        assert counters.foreign_tokens(*spoilt, windows()[1].records) >= 0
        counters.restarted(*spoilt)
        for reply in spoilt[1].replies.values():
            counters.busy(reply)


def test_whole_load_is_not_the_cumulative_average() -> None:
    """server_info says 2.843 since its start, tokens behind the end of requests included; the gauge says 2.825."""
    window = windows()[0]
    got = counters.acceptance(window.before, window.after, window.records)
    assert got is not None
    assert got.acceptance_length == pytest.approx(90_486 / 31_971)


@pytest.mark.parametrize(
    ("before", "verified"),
    [
        (scrape(), 20),  # nothing has ended yet: all series are absent
        (scrape(1, 1), 20),  # one token, from its prompt: nothing was decoded
        (scrape(0, 0, 0), 20),
        (scrape(50, 1), None),  # 49 tokens were decoded without a verify call: of another server
        ("", None),
        ("# no metrics", None),
    ],
)
def test_a_counter_that_was_absent(before: str, verified: int | None) -> None:
    info = server_info()
    got = counters.acceptance(
        look(metrics=before, server_info=info), look(metrics=scrape(61, 2, 20), server_info=info), ()
    )
    assert (got.rounds if got else None) == verified


def test_a_version_without_verify_counters_is_not_counted() -> None:
    """0.5.9 counts tokens, and no verify calls: what a round is stays unknown."""
    info = server_info(version="0.5.9")
    before, after = look(metrics=scrape(8, 1), server_info=info), look(metrics=scrape(108, 2), server_info=info)
    assert counters.acceptance(before, after, (record(100),)) is None


def test_series_of_several_ranks_add_up_and_new_labels_too() -> None:
    """0.5.20 on splits tokens by is_streaming; the series of answers that stream appears with the first of them."""
    page = scrape(8, 1, 3, labels=',is_streaming="false"')
    more = page + "\n" + scrape(40, 1, 14, labels=',is_streaming="true"')
    info = server_info()
    got = counters.acceptance(look(metrics=page, server_info=info), look(metrics=more, server_info=info), ())
    assert got == Acceptance(decode_tokens=39, rounds=14, drafting_rounds=14, drafted=42, accepted=25)


def test_positions_of_a_tree_and_of_an_adaptive_depth() -> None:
    tree = server_info(speculative_eagle_topk=8, speculative_num_draft_tokens=64, speculative_num_steps=5)
    adaptive = server_info(speculative_adaptive=True)
    for info, records, drafted in (
        (tree, (), 10 * 63),
        (adaptive, (), 10 * 3),
        (adaptive, (record(21, histogram=(4, 2, 4), drafted=17),), 17),
    ):
        got = counters.acceptance(
            look(metrics=scrape(1, 1, 0), server_info=info), look(metrics=scrape(22, 2, 10), server_info=info), records
        )
        assert got is not None
        assert (got.drafted, got.rounds, got.decode_tokens) == (drafted, 10, 20)


def test_tokens_beyond_what_rounds_yield_are_plain_steps() -> None:
    info = server_info()
    got = counters.acceptance(
        look(metrics=scrape(1, 1, 0), server_info=info), look(metrics=scrape(102, 2, 10), server_info=info), ()
    )
    assert got == Acceptance(decode_tokens=100, rounds=70, drafting_rounds=10, drafted=30, accepted=30)


def test_a_retracted_request_gets_one_more_token_from_a_prompt_pass() -> None:
    info = plain_info()
    put_back = '\nsglang:num_retracted_requests_total{tp_rank="0"} 5.0'
    before, after = (
        look(metrics=scrape(0, 0), server_info=info),
        look(metrics=scrape(100, 2) + put_back, server_info=info),
    )
    got = counters.acceptance(before, after, ())
    assert got is not None
    assert got.decode_tokens == 93


def test_a_histogram_that_misses_rounds_is_not_used() -> None:
    window = windows()[1]
    short = (record(40, histogram=(0, 1, 12)),)
    got = counters.acceptance(window.before, window.after, short)
    assert got is not None
    assert (got.accepted, got.per_position) == (25, ())


def test_our_own_probe_and_failed_requests_are_no_strangers() -> None:
    info = server_info()
    before = look(metrics=scrape(8, 1, 3), server_info=info)
    after = look(metrics=scrape(50, 3, 18), server_info=info, ready='{"usage":{"completion_tokens":2}}')
    assert counters.foreign_tokens(before, after, (record(40),)) == 0
    assert counters.foreign_tokens(before, after, (record(30),)) == 10
    assert counters.foreign_tokens(before, after, (record(30), record(0, error="reset"))) == 0


def test_another_process_by_its_seed_or_pid() -> None:
    one = look(metrics=scrape(8, 1, 3), server_info=server_info(random_seed=1))
    other = look(metrics=scrape(48, 2, 17), server_info=server_info(random_seed=2))
    assert counters.restarted(one, other)
    assert counters.acceptance(one, other, ()) is None
    pid = '\nsglang:num_paused_reqs{pid="%d"} 0.0'
    seen = [look(metrics=scrape(n, 1) + pid % n) for n in (8, 9)]
    assert counters.restarted(*seen)
    assert not counters.restarted(seen[0], seen[0])


def test_busy() -> None:
    assert counters.busy(Reply(name="metrics", status=200, body=text("metrics-steps3.prom").encode())) == Busy(
        running=0, waiting=0, kv_usage=0.0
    )
    gauge = "sglang:num_running_reqs{%s} %d.0"
    page = "\n".join(
        (
            gauge % ('dp_rank="0",tp_rank="0",priority=""', 5),
            gauge % ('dp_rank="0",tp_rank="0",priority="3"', 9),
            gauge % ('dp_rank="0",tp_rank="1"', 5),
            gauge % ('dp_rank="1",tp_rank="0"', 7),
            'sglang:token_usage{dp_rank="1"} 0.25',
        )
    )
    assert counters.busy(Reply(name="metrics", status=200, body=page.encode())) == Busy(running=12, kv_usage=0.25)
    assert counters.busy(Reply(name="metrics", status=503, body=page.encode())) is None
    assert counters.busy(Reply(name="metrics", status=200, body=b"llamacpp:x 1")) is None


def test_probes() -> None:
    assert [p.name for p in probes.PROBES][-1] == "metrics"
    body = json.loads(next(p for p in probes.PROBES if p.name == "ready").body)
    assert body["max_tokens"] == 2
    assert body["messages"]


@pytest.mark.parametrize(
    ("version", "there"),
    [
        ("0.5.16", False),
        ("0.5.18", False),
        ("0.5.19", True),
        ("0.5.23.post1", True),
        ("0.4.10", False),
        ("1.0.0", True),
        (None, False),
        ("main", False),
    ],
)
def test_details_only_where_they_are_known(version: str | None, there: bool) -> None:
    assert probes.body_fields(version) == ({"return_spec_tokens_details": True} if there else {})


def test_right_after_the_start_nothing_of_speculation_is_there() -> None:
    """A public scrape just after ready: 8 tokens of the server's own warm-up, and no speculative series at all."""
    page = (
        'sglang:generation_tokens_total{engine_type="unified",is_streaming="false",model_name="m"} 8.0\n'
        'sglang:num_running_reqs{engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",tp_rank="0"} 0.0\n'
    )
    found = counters.counters(look(metrics=page))
    assert found is not None
    assert (found.generated, found.verified, found.requests) == (8, None, None)
    assert server.effective(look(metrics=page)).speculating is None
    assert parse(page.encode()).count("sglang:spec_verify_calls_total") is None
