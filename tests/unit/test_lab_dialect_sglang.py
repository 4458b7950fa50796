"""SGLang's manners as the lab knows them, against what the real 0.5.16 wrote and answered (tests/golden/sglang)."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support_lab_engines import FAST, events, flags, generate, parsed, patterns, start_log, view

from leadline.testing.dialects import Answer, Exit, Flags
from leadline.testing.dialects.sglang import SgLang
from leadline.testing.faults import Fault, FaultKind
from leadline.testing.model import Fatal

REAL = Path(__file__).parent.parent / "golden" / "sglang"
DIALECT = SgLang()
CHAT: dict[str, object] = {
    "messages": [{"role": "user", "content": "x" * 40}],
    "user": "coding:1",
    "max_tokens": 40,
    "stream_options": {"include_usage": True},
}
EAGLE = "--model-path lab --speculative-algorithm EAGLE3 --speculative-draft-model-path d"


def lines(*names: str) -> str:
    return "\n".join((REAL / name).read_text(encoding="utf-8", errors="replace") for name in names)


def shape(line: str) -> str:
    """A log line without its numbers, names and lists."""
    line = re.sub(r"\[[\d ,.:-]*\]|\[pid\]", "[]", line)
    line = re.sub(r"type=\w+", "type=T", line)
    return re.sub(r"-?\d+(\.\d+)?", "0", line)


@pytest.mark.parametrize(
    ("line", "method", "depth", "width", "running"),
    [
        ("--model-path lab", "none", 0, 0, None),
        (EAGLE, "EAGLE3", 3, 4, 48),
        (f"{EAGLE} --speculative-num-steps 5 --speculative-eagle-topk 1", "EAGLE3", 5, 6, 48),
        (
            f"{EAGLE} --speculative-num-steps 5 --speculative-eagle-topk 4 --speculative-num-draft-tokens 8",
            "EAGLE3",
            5,
            8,
            48,
        ),
        (f"{EAGLE} --max-running-requests 64", "EAGLE3", 3, 4, 64),
        ("--model lab --speculative-algorithm nextn", "EAGLE", 3, 4, 48),
        ("--model-path lab --speculative-algorithm NGRAM", "NGRAM", 11, 12, 48),
        (f"{EAGLE} --max-running 9", "EAGLE3", 3, 4, 9),
    ],
)
def test_what_a_command_line_asks_for(line: str, method: str, depth: int, width: int, running: int | None) -> None:
    found = parsed("sglang", line)
    assert isinstance(found, Flags), found
    assert (found.method, found.depth, found.draft_tokens, found.max_running) == (method, depth, width, running)


@pytest.mark.parametrize("start", ["", "serve ", "-m sglang.launch_server "])
def test_every_way_to_start_it(start: str) -> None:
    found = parsed("sglang", f"{start}--model-path lab --port 7 --host 0.0.0.0 --mem-fraction-static=0.8")
    assert isinstance(found, Flags)
    assert (found.model, found.port, found.host, found.memory_fraction) == ("lab", 7, "0.0.0.0", 0.8)


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("--model-path lab --speculativ-foo 2", 2, "sglang serve: error: unrecognized arguments: --speculativ-foo 2"),
        ("--model-path lab --port many", 2, "argument --port: invalid int value: 'many'"),
        ("--model-path lab --port", 2, "argument --port: expected one argument"),
        ("--port 1", 2, "the following arguments are required: --model-path/--model"),
        ("--model-path lab --cuda-graph-max-bs 8", 2, "ambiguous option: --cuda-graph-max-bs could match"),
        (
            f"{EAGLE} --speculative-num-steps 3",
            1,
            "TypeError: '>' not supported between instances of 'NoneType' and 'int'",
        ),
        (f"{EAGLE} --speculative-eagle-topk 1", 1, "AssertionError"),
    ],
)
def test_what_it_refuses(line: str, code: int, said: str) -> None:
    found = parsed("sglang", line)
    assert isinstance(found, Exit)
    assert found.code == code
    assert said in found.lines[-1]


def test_refusals_are_those_of_the_real_one() -> None:
    for line, log in (
        (f"{EAGLE} --speculativ-foo 2", "fail-badflag.log"),
        (f"{EAGLE} --speculative-num-steps 3", "fail-badcombo.log"),
    ):
        found = parsed("sglang", line)
        assert isinstance(found, Exit)
        assert found.lines[-1] in lines(log)


def test_an_older_version_has_the_older_flag_and_the_mark_is_in_every_version() -> None:
    old = parsed("sglang", "--model-path lab --cuda-graph-max-bs 8", version="0.5.16")
    assert isinstance(old, Flags)
    assert old.told["cuda_graph_max_bs_decode"] == 8
    told = parsed("sglang", "version")
    assert isinstance(told, Exit)
    assert (told.code, told.lines[0]) == (0, "sglang version: 0.5.23+leadline-lab")


@pytest.mark.parametrize("depth", [0, 3])
def test_a_start_reads_like_the_real_one(depth: int) -> None:
    real = {
        shape(line) for line in lines("qwen3-30b-a3b-eagle3-steps0.log", "qwen3-30b-a3b-eagle3-steps3.log").splitlines()
    }
    said = [
        line for line in start_log("sglang", depth).splitlines() if "server_args" not in line and "shards" not in line
    ]
    assert len(said) > 10
    assert not [line for line in said if shape(line) not in real]


def test_nothing_listens_before_the_model_is_loaded_and_ready_comes_after() -> None:
    boot = DIALECT.boot(FAST, flags("sglang"), {})
    assert boot.claims_s == boot.listens_s
    assert boot.claims_s is not None
    assert FAST.load_s < boot.claims_s < (boot.ready_s or 0)
    log = start_log("sglang")
    for name in ("sg.capacity", "sg.kvpool", "sg.weights", "sg.mempool_end", "sg.graph", "sg.graph.end", "sg.ready"):
        assert re.search(patterns("sg.")[name], log), name


@pytest.mark.parametrize(
    ("kind", "pattern", "absent"),
    [
        (FaultKind.OOM_AT_START, "sg.F.no_kv", "sg.kvpool"),
        (FaultKind.OOM_AT_KV, "any.F.torch_oom", "sg.kvpool"),
        (FaultKind.OOM_AT_GRAPHS, "sg.F.graph", "sg.ready"),
    ],
)
def test_deaths_at_start(kind: FaultKind, pattern: str, absent: str) -> None:
    fault = Fault(kind=kind)
    log = start_log("sglang", 3, fault)
    known = {**patterns("sg."), **patterns("any.")}
    assert re.search(known[pattern], log)
    assert not re.search(known[absent], log)
    for name in ("sg.F.sched_exc", "sg.F.sigquit"):
        assert re.search(known[name], log)
    boot = DIALECT.boot(FAST, flags("sglang"), {kind: fault})
    assert (boot.exit_code, boot.listens_s, boot.ready_s) == (-9, None, None)


@pytest.mark.parametrize(
    ("how", "pattern"),
    [
        (Fatal.OUT_OF_MEMORY, "any.F.torch_oom"),
        (Fatal.CRASH, "sg.F.sched_exc"),
        (Fatal.WATCHDOG, "sg.F.watchdog"),
        (Fatal.CHILD_KILLED, "sg.F.run_child"),
    ],
)
def test_deaths_under_load(how: Fatal, pattern: str) -> None:
    end = DIALECT.died(how, 5.0)
    assert end.code == -9
    assert re.search({**patterns("sg."), **patterns("any.")}[pattern], "\n".join(end.lines))


def test_a_killed_child_and_a_stop_read_like_the_real_ones() -> None:
    for end, log in (
        (DIALECT.died(Fatal.CHILD_KILLED, 1.0), "fail-scheduler-sigkilled.log"),
        (DIALECT.stopped(1.0), "qwen3-8b-plain.log"),
    ):
        real = {shape(line) for line in lines(log).splitlines()}
        assert not [line for line in end.lines if shape(line) not in real]


def test_a_taken_port_shows_after_the_load_only() -> None:
    refused = DIALECT.port_in_use(flags("sglang"))
    assert refused.code == 1
    assert re.search(patterns("any.")["any.F.eaddr"], "\n".join(refused.lines))


def test_server_info_has_the_real_keys_and_what_is_in_force() -> None:
    real = json.loads(lines("server_info-steps3.json"))
    cut = view("sglang", 3, Fault(kind=FaultKind.CUT_RUNNING, above_running=48), running=64)
    told = json.loads(DIALECT.get("/server_info", cut).body)
    assert told.keys() <= real.keys()
    (state,) = told["internal_states"]
    assert state.keys() <= real["internal_states"][0].keys()
    assert (told["max_running_requests"], state["effective_max_running_requests_per_dp"]) == (64, 48)
    assert (told["speculative_num_steps"], told["speculative_num_draft_tokens"]) == (3, 4)
    assert told["version"] == "0.5.23+leadline-lab"
    assert DIALECT.get("/get_server_info", cut) == DIALECT.get("/server_info", cut)
    wrong = view("sglang", 3, Fault(kind=FaultKind.WRONG_DEPTH, depth=1))
    assert json.loads(DIALECT.get("/server_info", wrong).body)["speculative_num_steps"] == 1
    off = view("sglang", 3, Fault(kind=FaultKind.WRONG_DEPTH, depth=0))
    assert json.loads(DIALECT.get("/server_info", off).body)["speculative_algorithm"] is None


def test_metrics_have_the_real_names_and_labels() -> None:
    def series(text: str) -> set[tuple[str, tuple[str, ...]]]:
        found = re.findall(r"^(sglang:\w+)\{(.*)\} ", text, re.MULTILINE)
        return {(name, tuple(sorted(set(re.findall(r'(\w+)="', labels)) - {"pid"}))) for name, labels in found}

    on = view("sglang")
    fresh = DIALECT.get("/metrics", on).body.decode()
    assert "generation_tokens_total" not in fresh
    assert "spec_verify_calls_total" not in fresh
    generate(DIALECT, on, CHAT)
    used = DIALECT.get("/metrics", on).body.decode()
    assert not series(used) - series(lines("metrics-steps3.prom"))
    assert "sglang:generation_tokens_total" in used
    assert "sglang:spec_verify_calls_total" in used
    off = parsed("sglang", "--model-path lab")
    assert isinstance(off, Flags)
    assert not off.metrics


def test_counts_agree_with_each_other() -> None:
    on = view("sglang")
    told = events(generate(DIALECT, on, {**CHAT, "return_spec_tokens_details": True}))
    usage = told[-1]["usage"]
    details = told[-2]["sglext"]["spec_tokens_details"]
    histogram = details["spec_correct_drafts_histogram"]
    assert sum(histogram) == details["spec_verify_ct"]
    assert sum(i * n for i, n in enumerate(histogram)) == details["spec_num_correct_drafts"]
    assert usage["completion_tokens"] == 40 == 1 + details["spec_verify_ct"] + details["spec_num_correct_drafts"]
    real = json.loads(lines("generate-response.json"))["meta_info"]
    assert {k for k in details if "cap" not in k and "block" not in k} <= real.keys()
    text = DIALECT.get("/metrics", on).body.decode()
    assert f"}} {float(details['spec_verify_ct'])}\n" in text.split("spec_verify_calls_total")[-1]


def test_speculation_figures_come_only_when_asked_for_and_known() -> None:
    asked = {**CHAT, "return_spec_tokens_details": True}
    assert not any("sglext" in e for e in events(generate(DIALECT, view("sglang"), CHAT)))
    assert not any("sglext" in e for e in events(generate(SgLang("0.5.18"), view("sglang"), asked)))
    assert not any("sglext" in e for e in events(generate(DIALECT, view("sglang", 0), asked)))
    assert any("sglext" in e for e in events(generate(SgLang("0.5.19"), view("sglang"), asked)))


def test_decode_lines_every_so_many_steps_in_the_real_shape() -> None:
    for depth, name in ((3, "sg.decode"), (0, "sg.decode.nospec")):
        on, scribe = view("sglang", depth), DIALECT.scribe()
        asked = DIALECT.ask(
            "/v1/chat/completions", json.dumps({**CHAT, "max_tokens": 400, "ignore_eos": True}).encode(), on
        )
        assert not isinstance(asked, Answer)
        on.model.admit(asked.request)
        said: list[str] = []
        for step in range(90):
            on.model.step()
            said += scribe.stepped(step * 0.01, on)
        decodes = [line for line in said if "Decode batch" in line]
        assert len(decodes) == 2
        found = re.search(patterns("sg.")[name], decodes[1])
        assert found is not None
        assert (found["accept_len"] is None) == (depth == 0)
        assert re.search(patterns("sg.")["sg.prefill"], said[0])


def test_retractions_are_logged_and_counted() -> None:
    on, scribe = view("sglang", 3, Fault(kind=FaultKind.RETRACTIONS, after_tokens=10)), DIALECT.scribe()
    plain = view("sglang")
    took = {}
    for name, one in (("hurt", on), ("plain", plain)):
        asked = DIALECT.ask("/v1/chat/completions", json.dumps(CHAT).encode(), one)
        assert not isinstance(asked, Answer)
        one.model.admit(asked.request)
        steps = [one.model.step().duration_s for _ in range(20)]
        took[name] = sum(steps)
    assert took["hurt"] > 1.2 * took["plain"]
    assert re.search(patterns("sg.")["sg.retract"], "\n".join(scribe.stepped(1.0, on)))
    assert "num_retracted_requests_total" in DIALECT.get("/metrics", on).body.decode()


def test_health_says_503_while_it_warms_up_and_keys_guard_the_rest() -> None:
    assert DIALECT.get("/health", view("sglang", loading=True)).status == 503
    assert DIALECT.get("/health", view("sglang")).status == 200
    assert [DIALECT.guards(p) for p in ("/health", "/metrics", "/server_info", "/v1/models")] == [
        False,
        False,
        True,
        True,
    ]


@pytest.mark.parametrize(
    ("body", "path", "status"),
    [({}, "/v1/chat/completions", 400), ({"prompt": "x"}, "/v1/embeddings", 404), ([1], "/v1/completions", 400)],
)
def test_requests_that_it_refuses(body: object, path: str, status: int) -> None:
    found = DIALECT.ask(path, json.dumps(body).encode(), view("sglang"))
    assert isinstance(found, Answer)
    assert found.status == status
