"""trtllm-serve's manners as the lab knows them: its YAML file, its log and its counters."""

from __future__ import annotations

import json
import re

import pytest
from support_lab_engines import FAST, SPEC_YAML, YAML, events, flags, generate, parsed, patterns, start_log, view

from leadline.testing.dialects import Answer, Exit, Flags
from leadline.testing.dialects.trtllm import TrtLlm
from leadline.testing.faults import Fault, FaultKind
from leadline.testing.model import Fatal

DIALECT = TrtLlm()
CHAT: dict[str, object] = {
    "messages": [{"role": "user", "content": "x" * 40}],
    "user": "coding:1",
    "max_tokens": 40,
    "stream_options": {"include_usage": True},
}


@pytest.mark.parametrize(
    ("yaml", "method", "depth"),
    [
        ("", "none", 0),
        (SPEC_YAML.format(depth=4), "Eagle3", 4),
        ("speculative_config: {decoding_type: MTP, num_nextn_predict_layers: 2}", "MTP", 2),
        ("speculative_config: {decoding_type: NGram, max_draft_len: 5}", "NGram", 5),
    ],
)
def test_the_yaml_file_says_whether_it_speculates(yaml: str, method: str, depth: int) -> None:
    for option in ("--config", "--extra_llm_api_options"):
        found = parsed("trtllm", f"serve lab {option} c.yaml", files={"c.yaml": yaml})
        assert isinstance(found, Flags), found
        assert (found.method, found.depth, found.metrics) == (method, depth, False)


def test_the_rest_of_a_command_line() -> None:
    found = parsed(
        "trtllm",
        "lab --host 0.0.0.0 --port=7 --max_batch_size 9 --kv_cache_free_gpu_memory_fraction 0.5 --config c",
        files={"c": YAML},
    )
    assert isinstance(found, Flags)
    assert (found.host, found.port, found.max_running, found.memory_fraction, found.metrics) == (
        "0.0.0.0",
        7,
        9,
        0.5,
        True,
    )


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("lab --bogus 1", 2, "Error: No such option: --bogus"),
        ("lab --max-batch-size 1", 2, "Error: No such option: --max-batch-size"),
        ("lab --port x", 2, "Error: Invalid value for '--port': 'x' is not a valid integer."),
        ("lab --port", 2, "Error: Option '--port' requires an argument."),
        ("--port 1", 2, "Error: Missing argument 'MODEL'."),
        ("lab more", 2, "Error: Got unexpected extra argument (more)"),
        ("lab --config none", 1, "No such file or directory: 'none'"),
        ("lab --config zero", 1, "ValueError: max_draft_len must be > 0 for NGram"),
        ("lab --config draftless", 1, "ValueError: Draft model must be provided for EAGLE3"),
        ("lab --config broken", 1, "yaml"),
    ],
)
def test_what_it_refuses(line: str, code: int, said: str) -> None:
    files = {
        "zero": "speculative_config: {decoding_type: NGram, max_draft_len: 0}",
        "draftless": "speculative_config: {decoding_type: Eagle3, max_draft_len: 3}",
        "broken": "a: [",
    }
    found = parsed("trtllm", line, files=files)
    assert isinstance(found, Exit)
    assert found.code == code
    assert said in "\n".join(found.lines)


def test_the_port_is_taken_at_once_and_answers_come_when_ready() -> None:
    boot = DIALECT.boot(FAST, flags("trtllm"), {})
    assert (boot.claims_s, boot.listens_s, boot.ready_s) == (0.0, FAST.load_s, FAST.load_s)
    log = start_log("trtllm")
    for name in ("tr.peak", "tr.est", "tr.alloc", "tr.limits"):
        assert re.search(patterns("tr.")[name], log), name
    refused = DIALECT.port_in_use(flags("trtllm"))
    assert refused.code == 1
    assert re.search(patterns("tr.")["tr.F.port"], "\n".join(refused.lines))


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (FaultKind.OOM_AT_START, "Executor creation failed due to insufficient GPU memory"),
        (FaultKind.OOM_AT_KV, "The following component could not be created: KV cache"),
        (FaultKind.OOM_AT_GRAPHS, "torch.OutOfMemoryError: CUDA out of memory"),
    ],
)
def test_deaths_at_start(kind: FaultKind, said: str) -> None:
    log = start_log("trtllm", 3, Fault(kind=kind))
    assert said in log
    assert "startup complete" not in log
    assert ("in paged KV cache" in log) == (kind is FaultKind.OOM_AT_GRAPHS)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (Fatal.OUT_OF_MEMORY, "CUDA out of memory"),
        (Fatal.CRASH, "illegal memory access"),
        (Fatal.WATCHDOG, "Hang detected"),
        (Fatal.CHILD_KILLED, "Executor loop crashed"),
    ],
)
def test_deaths_under_load(how: Fatal, said: str) -> None:
    end = DIALECT.died(how, 5.0)
    assert end.code == 1
    assert said in "\n".join(end.lines)


def test_metrics_only_where_the_file_asks_for_them() -> None:
    bare = parsed("trtllm", "lab")
    assert isinstance(bare, Flags)
    on = view("trtllm")
    assert DIALECT.get("/prometheus/metrics", on).status == 200
    without = on.__class__(flags=bare, model=on.model, loading=False, boot_id="1")
    assert DIALECT.get("/prometheus/metrics", without).status == 404
    assert json.loads(DIALECT.get("/metrics", on).body) == []


def test_counters_move_when_a_request_ends_and_are_absent_before() -> None:
    on = view("trtllm")
    fresh = DIALECT.get("/prometheus/metrics", on).body.decode()
    assert "generation_tokens_total" not in fresh
    assert 'spec_num_tokens="3"' in fresh
    told = events(generate(DIALECT, on, CHAT))
    assert told[-1]["usage"]["completion_tokens"] == 40
    text = DIALECT.get("/prometheus/metrics", on).body.decode()
    assert re.search(r"^trtllm_generation_tokens_total\{.*\} 40.0$", text, re.MULTILINE)
    drafted, accepted = (
        [float(n) for n in re.findall(rf"^trtllm_spec_decode_{what}_tokens_total\{{.*\}} (\S+)$", text, re.MULTILINE)]
        for what in ("drafted", "accepted")
    )
    assert len(drafted) == len(accepted) == 3
    assert all(a <= d for a, d in zip(accepted, drafted, strict=True))
    assert sum(accepted) == on.model.engine.counters.accepted
    assert sum(drafted) == on.model.engine.counters.draft_tokens
    assert "speculative" not in DIALECT.get("/prometheus/metrics", view("trtllm", 0)).body.decode()


def test_a_line_for_every_iteration_when_the_file_asks_for_it() -> None:
    assert DIALECT.scribe().stepped(1.0, view("trtllm")) == ()
    asked = parsed("trtllm", "lab --config c", files={"c": "print_iter_log: true"})
    assert isinstance(asked, Flags)
    on = view("trtllm")
    (line,) = DIALECT.scribe().stepped(1.0, on.__class__(flags=asked, model=on.model, loading=False, boot_id="1"))
    assert re.search(patterns("tr.")["tr.iter"], line)


def test_requests_and_paths_that_it_does_not_know() -> None:
    found = DIALECT.ask("/v1/completions", b"{}", view("trtllm"))
    assert isinstance(found, Answer)
    assert (found.status, json.loads(found.body)["object"]) == (400, "error")
    assert DIALECT.get("/nope", view("trtllm")).status == 404
    assert json.loads(DIALECT.get("/version", view("trtllm")).body) == {"version": "1.3.0rc1+leadline-lab"}
