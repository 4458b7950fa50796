"""vLLM's manners as the lab knows them, against patterns that were tested on its source (0.33)."""

from __future__ import annotations

import json
import re

import pytest
from support_lab_engines import FAST, events, flags, generate, parsed, patterns, start_log, view

from leadline.testing.dialects import Answer, Exit, Flags
from leadline.testing.dialects.vllm import Vllm
from leadline.testing.faults import Fault, FaultKind
from leadline.testing.model import Fatal

DIALECT = Vllm()
CONFIG = '{"method":"eagle3","model":"d","num_speculative_tokens":4}'
CHAT: dict[str, object] = {
    "messages": [{"role": "user", "content": "x" * 40}],
    "user": "coding:1",
    "max_tokens": 40,
    "stream_options": {"include_usage": True},
}


@pytest.mark.parametrize(
    ("line", "method", "depth"),
    [
        (["serve", "lab"], "none", 0),
        (["lab", "--speculative-config", CONFIG], "eagle3", 4),
        (["lab", f"-sc={CONFIG}"], "eagle3", 4),
        (["lab", "--speculative_config", CONFIG], "eagle3", 4),
        (["lab", "--speculative-config.method", "ngram", "--speculative-config.num_speculative_tokens=5"], "ngram", 5),
        (["lab", "--spec-method", "mtp", "--spec-tokens", "2"], "mtp", 2),
        (["-m", "vllm.entrypoints.openai.api_server", "--model", "lab"], "none", 0),
    ],
)
def test_what_a_command_line_asks_for(line: list[str], method: str, depth: int) -> None:
    found = parsed("vllm", line)
    assert isinstance(found, Flags), found
    assert (found.method, found.depth, found.model) == (method, depth, "lab")


def test_the_rest_of_a_command_line() -> None:
    found = parsed(
        "vllm", "serve lab --port 7 --max-num-seqs 9 --max-model-len 100 --api-key a b --no-enable-prefix-caching"
    )
    assert isinstance(found, Flags)
    assert (found.port, found.max_running, found.context, found.api_keys) == (7, 9, 100, ("a", "b"))
    assert (found.host, found.told["enable_prefix_caching"]) == ("0.0.0.0", False)


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        (["lab", "--bogus", "1"], 2, "vllm: error: unrecognized arguments: --bogus 1"),
        (["lab", "--port", "x"], 2, "argument --port: invalid int value: 'x'"),
        (
            ["lab", "--spec-method", "mtp", "-sc", CONFIG],
            1,
            "--spec-method and --speculative-config['method'] are mutually",
        ),
        (["lab", "-sc", '{"method":"eagle3","num_speculative_tokens":2}'], 1, "without speculative model"),
        (["lab", "-sc", '{"method":"eagle3","model":"d"}'], 1, "num_speculative_tokens must be provided"),
        (["lab", "-sc", '{"method":"ngram","num_speculative_tokens":0}'], 1, "Input should be greater than 0"),
        (["lab", "--per-request-spec-decode-metrics", "summary"], 1, "requires speculative decoding"),
        (["lab", "--per-request-spec-decode-metrics", "much"], 2, "invalid choice: 'much'"),
    ],
)
def test_what_it_refuses(line: list[str], code: int, said: str) -> None:
    found = parsed("vllm", line)
    assert isinstance(found, Exit)
    assert found.code == code
    assert said in found.lines[-1]


def test_version_says_lab() -> None:
    assert parsed("vllm", "--version") == Exit(("0.33.0+leadline-lab",), 0, stdout=True)
    assert json.loads(DIALECT.get("/version", view("vllm")).body) == {"version": "0.33.0+leadline-lab"}


def test_the_port_is_taken_at_once_and_answers_come_when_ready() -> None:
    boot = DIALECT.boot(FAST, flags("vllm"), {})
    assert (boot.claims_s, boot.listens_s, boot.ready_s) == (0.0, FAST.load_s, FAST.load_s)
    log = start_log("vllm")
    for name in ("vl.kv", "vl.avail", "vl.load", "vl.graph", "vl.ready", "vl.init_s"):
        assert re.search(patterns("vl.")[name], log), name


def test_the_log_says_which_depth_is_in_force() -> None:
    shown = "speculative_config=SpeculativeConfig(method='eagle3', model='lab-draft', num_spec_tokens={})"
    assert shown.format(3) in start_log("vllm", 3)
    assert shown.format(1) in start_log("vllm", 3, Fault(kind=FaultKind.WRONG_DEPTH, depth=1))
    assert "speculative_config=None" in start_log("vllm", 0)


@pytest.mark.parametrize(
    ("kind", "pattern"),
    [
        (FaultKind.OOM_AT_START, "vl.F.noblocks"),
        (FaultKind.OOM_AT_KV, "any.F.torch_oom"),
        (FaultKind.OOM_AT_GRAPHS, "any.F.torch_oom"),
    ],
)
def test_deaths_at_start(kind: FaultKind, pattern: str) -> None:
    log = start_log("vllm", 3, Fault(kind=kind))
    known = {**patterns("vl."), **patterns("any.")}
    assert re.search(known[pattern], log)
    assert re.search(known["vl.F.core"], log)
    assert not re.search(known["vl.ready"], log)
    assert bool(re.search(known["vl.kv"], log)) == (kind is not FaultKind.OOM_AT_START)
    assert DIALECT.boot(FAST, flags("vllm"), {kind: Fault(kind=kind)}).exit_code == 1


@pytest.mark.parametrize("how", [Fatal.OUT_OF_MEMORY, Fatal.CRASH, Fatal.WATCHDOG, Fatal.CHILD_KILLED])
def test_a_dead_engine_ends_the_server_with_exit_code_0(how: Fatal) -> None:
    end = DIALECT.died(how, 5.0)
    assert end.code == 0
    assert re.search(patterns("vl.")["vl.F.dead"], "\n".join(end.lines))
    oom = re.search(patterns("any.")["any.F.torch_oom"], "\n".join(end.lines))
    assert bool(oom) == (how is Fatal.OUT_OF_MEMORY)


def test_a_taken_port_shows_at_once() -> None:
    refused = DIALECT.port_in_use(flags("vllm"))
    assert refused.code == 1
    assert re.search(patterns("vl.")["vl.F.port"], "\n".join(refused.lines))


def counters(text: str) -> dict[str, float]:
    return {name: float(value) for name, value in re.findall(r"^vllm:(\w+_total)\{[^}]*\} (\S+)$", text, re.MULTILINE)}


def test_counters_are_there_from_the_start_and_move_with_every_step() -> None:
    on = view("vllm")
    fresh = counters(DIALECT.get("/metrics", on).body.decode())
    assert fresh["generation_tokens_total"] == fresh["spec_decode_num_drafts_total"] == 0.0
    assert not any("spec_decode" in name for name in counters(DIALECT.get("/metrics", view("vllm", 0)).body.decode()))
    asked = DIALECT.ask("/v1/chat/completions", json.dumps(CHAT).encode(), on)
    assert not isinstance(asked, Answer)
    on.model.admit(asked.request)
    emitted = sum(e.tokens for _ in range(5) for e in on.model.step().emissions)
    text = DIALECT.get("/metrics", on).body.decode()
    now = counters(text)
    assert now["generation_tokens_total"] == emitted
    assert now["spec_decode_num_drafts_total"] == 4
    assert now["spec_decode_num_draft_tokens_total"] == 12
    positions = [float(n) for n in re.findall(r'per_pos_total\{.*position="\d".*\} (\S+)', text)]
    assert sum(positions) == now["spec_decode_num_accepted_tokens_total"] > 0
    assert re.search(r'^vllm:cache_config_info\{.*kv_cache_size_tokens="\d+".*\} 1.0$', text, re.MULTILINE)


def test_usage_in_every_chunk_when_asked_for() -> None:
    on = view("vllm")
    told = events(
        generate(DIALECT, on, {**CHAT, "stream_options": {"include_usage": True, "continuous_usage_stats": True}})
    )
    counts = [e["usage"]["completion_tokens"] for e in told]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, 40)
    assert ["usage" in e for e in events(generate(DIALECT, on, CHAT))] == [False] * (len(told) - 1) + [True]


def test_speculation_figures_come_when_the_launch_asks_for_them() -> None:
    on = view("vllm")
    assert "metrics" not in events(generate(DIALECT, on, CHAT))[-1]
    asking = parsed("vllm", ["lab", "-sc", CONFIG, "--per-request-spec-decode-metrics", "summary"])
    assert isinstance(asking, Flags)
    told = events(
        generate(
            DIALECT,
            view("vllm", 4).__class__(flags=asking, model=view("vllm", 4).model, loading=False, boot_id="1"),
            CHAT,
        )
    )[-1]
    spec = told["metrics"]["speculative_decoding"]
    assert sum(spec["acceptance_histogram"]) == spec["num_spec_steps"]
    assert sum(i * n for i, n in enumerate(spec["acceptance_histogram"])) == spec["num_accepted_draft_tokens"]
    assert spec["mean_acceptance_length"] == 1 + spec["num_accepted_draft_tokens"] / spec["num_spec_steps"]
    assert len(spec["acceptance_histogram"]) == spec["num_spec_tokens"] + 1 == 5


def test_statistics_about_every_ten_seconds() -> None:
    on, scribe = view("vllm", 3, Fault(kind=FaultKind.RETRACTIONS, after_tokens=20)), DIALECT.scribe()
    asked = DIALECT.ask("/v1/chat/completions", json.dumps(CHAT).encode(), on)
    assert not isinstance(asked, Answer)
    on.model.admit(asked.request)
    said: list[list[str]] = []
    for step in range(11):
        on.model.step()
        said.append(list(scribe.stepped(step * 1.0, on)))
    assert [bool(s) for s in said] == [False] * 10 + [True]
    stats = re.search(patterns("vl.")["vl.stats"], said[-1][0])
    assert stats is not None
    assert int(stats["preempt"]) >= 1
    assert re.search(patterns("vl.")["vl.spec"], said[-1][1])


def test_keys_guard_the_api_only() -> None:
    assert [DIALECT.guards(p) for p in ("/health", "/metrics", "/version", "/v1/models")] == [False, False, False, True]


def test_server_info_is_for_developers() -> None:
    assert DIALECT.get("/server_info", view("vllm")).status == 404
