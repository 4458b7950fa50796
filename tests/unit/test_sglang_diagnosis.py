"""Why an SGLang server died or does not serve: real logs of 0.5.16, the texts of other versions, public reports."""

from __future__ import annotations

import json
import re

import pytest
from support_sglang import GOLDEN, PATTERNS, look, text

from leadline.dialect.signs import masked_line
from leadline.engines.sglang.diagnosis import diagnose
from leadline.engines.sglang.stages import Stage, stage_after
from leadline.evidence import Diagnosis, Evidence, ExitFacts, Failure, ProcessFacts, Reply

EXPECTED = {name: said for name, said in json.loads(text("expected.json")).items() if "failure" in said}
SAMPLES = {entry["name"]: entry["sample"] for entry in json.loads(PATTERNS.read_text(encoding="utf-8"))}
STAMP = "[2026-11-30 12:00:00 TP0] "
LOAD = f"{STAMP}Load weight begin. avail mem=79.00 GB\n"
LOADED = f"{STAMP}Load weight end. elapsed=1.00 s, type=Qwen3ForCausalLM, avail mem=60.00 GB, mem usage=19.00 GB.\n"
POOL = f"{STAMP}KV Cache is allocated. dtype: torch.bfloat16, #tokens: 9000, K size: 1.00 GB, V size: 1.00 GB\n"
POOL_END = f"{STAMP}Memory pool end. avail mem=9.00 GB\n"
CAPTURE = f"{STAMP}Capture target verify CUDA graph begin. backend=full, num_tokens_per_req=64, avail mem=9.00 GB\n"
CAPTURED = f"{STAMP}Capture target verify CUDA graph end. elapsed=5.12 s, mem usage=0.84 GB, avail mem=8.00 GB.\n"
CAPACITY = (
    f"{STAMP}max_total_num_tokens=9000, chunked_prefill_size=8192, max_prefill_tokens=16384, "
    "max_running_requests=48, context_len=4096, available_gpu_mem=8.00 GB\n"
)
READY = "[2026-11-30 12:00:00] The server is fired up and ready to roll!\n"
START = LOAD + LOADED + POOL + POOL_END + CAPTURE + CAPTURED + CAPACITY + READY
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB\n"
)
SELF_KILL = (
    "[2026-11-30 12:00:00] Received sigquit from a child process. It usually means the child failed.\n"
    "[2026-11-30 12:00:00] kill_process_tree called: parent_pid=1, include_parent=True, pid=1\n"
)
DECODE = (
    f"{STAMP}Decode batch, #running-req: 3, #token: 10, token usage: 0.01, cuda graph: True, gen throughput (token/s): "
)
PREFILL = f"{STAMP}Prefill batch, #new-seq: 1, #new-token: 8192, #cached-token: 0, #running-req: 2, #queue-req: 0\n"


def raised(exception: str, *frames: str) -> str:
    places = "".join(f'  File "/opt/x/{frame}", line 1, in run\n    run(batch)\n' for frame in frames)
    return f"{STAMP}Scheduler hit an exception: Traceback (most recent call last):\n{places}{exception}\n\n"


def died(log: str, code: int | None = 137, *, argv: tuple[str, ...] = (), **facts: int) -> Diagnosis:
    exit = ExitFacts(signal=9, **facts) if code is None else ExitFacts(code=code, **facts)
    return diagnose(Evidence(log=log, exit=exit, argv=argv))


def alive(log: str, *, health: int = 200, ready: int | None = None, metrics: str = "") -> Diagnosis:
    replies = {"health": Reply(name="health", status=health, error="" if health else "refused")}
    if ready is not None:
        replies["ready"] = Reply(name="ready", status=ready, error="" if ready else "timed out after 120 s")
    if metrics:
        replies["metrics"] = Reply(name="metrics", status=200, body=metrics.encode())
    return diagnose(Evidence(log=log, replies=replies))


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_real_logs(name: str) -> None:
    expected = EXPECTED[name]
    got = died(text(name), expected["exit"])
    assert got.failure == expected["failure"]
    assert expected["says"] in got.reason + got.line
    assert expected.get("remedy", "") in got.remedy
    assert died(text(name), expected["exit"], asked=True).failure is Failure.STOPPED_BY_US


@pytest.mark.parametrize("name", sorted(p.name for p in GOLDEN.glob("qwen3-30b*-steps[1235].log")))
def test_real_logs_of_servers_that_served_say_nothing_wrong(name: str) -> None:
    assert alive(text(name), ready=200).failure is Failure.UNKNOWN


FAILURES = {
    "sg.F.init_child": Failure.KILLED,
    "sg.F.run_child": Failure.KILLED,
    "sg.F.sigquit": Failure.CRASHED,
    "sg.F.sched_exc": Failure.CRASHED,
    "sg.F.no_kv": Failure.NO_KV_ROOM,
    "sg.F.not_enough": Failure.NO_KV_ROOM,
    "sg.F.mamba": Failure.NO_KV_ROOM,
    "sg.F.mamba_rt": Failure.DEVICE_OOM_LOAD,
    "sg.F.graph": Failure.DEVICE_OOM_GRAPH,
    "sg.F.kv_runtime": Failure.DEVICE_OOM_LOAD,
    "sg.F.warmup": Failure.CRASHED,
    "sg.F.watchdog": Failure.WATCHDOG,
    "sg.F.port": Failure.PORT_IN_USE,
    "any.F.eaddr": Failure.PORT_IN_USE,
    "any.F.torch_oom": Failure.DEVICE_OOM_START,
    "any.F.argparse": Failure.BAD_FLAG,
    "os.unit": Failure.HOST_OOM,
    "os.unit_oom": Failure.HOST_OOM,
    "os.exit": Failure.KILLED,
    "os.kernel": Failure.HOST_OOM,
    "os.kernel2": Failure.HOST_OOM,
    "os.xid": Failure.DEVICE_LOST,
}


def test_every_failure_pattern_has_a_class() -> None:
    assert {n for n in SAMPLES if n.startswith(("sg.F.", "any.", "os."))} == set(FAILURES)


@pytest.mark.parametrize("name", sorted(FAILURES))
def test_failure_patterns(name: str) -> None:
    got = died(SAMPLES[name], 1)
    assert got.failure is FAILURES[name]
    assert got.reason
    assert got.remedy
    assert got.line
    assert "{" not in got.reason + got.remedy + got.implies
    assert "?" not in got.reason


@pytest.mark.parametrize(
    ("log", "failure", "remedy", "fails_too"),
    [
        (LOAD, Failure.DEVICE_OOM_START, "--tp-size", "depth+"),
        (LOAD + LOADED + LOAD, Failure.DEVICE_OOM_START, "smaller draft model", "draft_model="),
        (LOAD + LOADED, Failure.DEVICE_OOM_KV, "lower --mem-fraction-static", "memory_fraction+"),
        (LOAD + LOADED + POOL, Failure.DEVICE_OOM_KV, "lower --mem-fraction-static", "memory_fraction+"),
        (
            LOAD + LOADED + POOL + POOL_END + CAPTURE,
            Failure.DEVICE_OOM_GRAPH,
            "--cuda-graph-max-bs",
            "graph_max_batch+",
        ),
        (START.replace(READY, ""), Failure.DEVICE_OOM_LOAD, "--chunked-prefill-size", "memory_fraction+"),
        (START, Failure.DEVICE_OOM_LOAD, "--max-running-requests", "max_running+"),
    ],
)
def test_the_same_line_means_what_was_being_done(log: str, failure: Failure, remedy: str, fails_too: str) -> None:
    got = died(log + raised(OOM.strip(), "model_runner.py") + SELF_KILL)
    assert got.failure is failure
    assert remedy in got.remedy
    assert fails_too in got.fails_too
    assert "memory_fraction-" not in got.fails_too
    assert "2.00 GiB" in got.reason
    assert got.line == OOM.strip()


def test_a_graph_that_fails_for_another_reason_is_no_lack_of_memory() -> None:
    failed = "Exception: Capture cuda graph failed: CUDA error: an illegal memory access was encountered"
    got = died(LOAD + LOADED + POOL + CAPTURE + raised(failed, "decode_cuda_graph_runner.py") + SELF_KILL)
    assert got.failure is Failure.CRASHED
    assert got.line == failed


def test_opposite_remedies() -> None:
    none = died(raised("ValueError: " + SAMPLES["sg.F.no_kv"].partition(": ")[2], "kv_cache_configurator.py"))
    assert none.remedy.startswith("raise --mem-fraction-static above 0.614")
    assert "memory_fraction-" in none.fails_too
    capture = died(LOAD + LOADED + POOL + CAPTURE + SAMPLES["sg.F.graph"])
    assert "memory_fraction+" in capture.fails_too
    assert re.search(r"lower .*--mem-fraction-static", capture.remedy)


def test_the_exception_is_the_evidence_and_not_the_line_that_announces_it() -> None:
    chained = (
        raised("KeyError: 'layers.3'", "loader.py").rstrip()
        + "\n\nDuring handling of the above exception, another exception occurred:\n\n"
        + 'Traceback (most recent call last):\n  File "/opt/x/scheduler.py", line 46, in run\n    raise RuntimeError(\n'
        + "RuntimeError: cannot load it\n\n"
    )
    got = died(START + chained + SELF_KILL)
    assert (got.failure, got.line) == (Failure.CRASHED, "RuntimeError: cannot load it")
    assert "cannot load it" in got.reason


def test_source_quoted_by_a_traceback_is_no_message() -> None:
    frame = f'{STAMP}Scheduler hit an exception: Traceback (most recent call last):\n  File "/x.py", line 1, in f\n'
    frame += (
        '    raise RuntimeError("Not enough memory. Please try to increase --mem-fraction-static.")\nIndexError: 3\n'
    )
    assert died(frame).failure is Failure.CRASHED


def test_the_first_telling_line_counts() -> None:
    got = died(START + raised("RuntimeError: boom", "scheduler.py") + STAMP + SAMPLES["sg.F.watchdog"] + SELF_KILL)
    assert got.line == "RuntimeError: boom"
    got = died(START + SAMPLES["sg.F.watchdog"] + "\n" + raised("RuntimeError: boom", "scheduler.py"))
    assert got.failure is Failure.WATCHDOG


@pytest.mark.parametrize("code", [137, None])
def test_self_kill_is_not_a_kill(code: int | None) -> None:
    """SGLang ends itself with SIGKILL whatever the cause was."""
    log = START + raised(OOM.strip(), "scheduler.py") + SELF_KILL
    assert died(log, code).failure is Failure.DEVICE_OOM_LOAD
    assert died(log, code, host_oom_kills=1).failure is Failure.HOST_OOM
    assert died(START, None).failure is Failure.KILLED
    assert died("", 137).failure is Failure.CRASHED


@pytest.mark.parametrize(("name", "code"), [("sg.F.init_child", 1), ("sg.F.run_child", 137)])
def test_a_child_that_was_killed(name: str, code: int) -> None:
    log = LOAD + SAMPLES[name] + "\n" + SELF_KILL
    assert died(log, code, host_oom_kills=1).failure is Failure.HOST_OOM
    got = died(log, code)
    assert got.failure is Failure.KILLED
    assert "dmesg" in got.remedy
    assert died(log.replace("code -9", "code -11").replace("code: -9", "code: -11"), code).failure is Failure.CRASHED


def test_told_to_stop_is_neither_a_crash_nor_out_of_memory() -> None:
    got = died(text("stopped-during-start.log"))
    assert got.failure is Failure.KILLED
    assert "SIGTERM" in got.reason
    assert got.fails_too == ()


@pytest.mark.parametrize(
    ("line", "failure"),
    [
        ("sglang serve: error: unrecognized arguments: --speculativ-foo 2", Failure.BAD_FLAG),
        ("launch_server.py: error: argument --tp-size/--tp: invalid int value: 'x'", Failure.BAD_FLAG),
        ("sglang serve: error: the following arguments are required: --model-path", Failure.BAD_FLAG),
        ("nothing that we know", Failure.BAD_FLAG),
    ],
)
def test_exit_code_2(line: str, failure: Failure) -> None:
    got = died(line, 2)
    assert got.failure is failure
    assert got.line == line


@pytest.mark.parametrize(
    "message",
    [
        "OSError: /models/x is not a local folder and is not a valid model identifier listed on 'https://huggingface.co'",
        "OSError: /models/x does not appear to have a file named config.json. Checkout 'https://huggingface.co/x'",
        "OSError: Can't load the configuration of '/models/x'. If you were trying to load it from the hub, make sure",
        "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or 'a/b': '/models/x'. Use",
        "RuntimeError: Cannot find any model weights with `/models/x`",
        "ValueError: Unrecognized model in /models/x. Should have a `model_type` key in its config.json",
    ],
)
def test_a_missing_model_and_a_missing_draft(message: str) -> None:
    target = ("sglang", "serve", "--model-path", "/models/x")
    log = f'Traceback (most recent call last):\n  File "/o/server_args.py", line 1, in check\n    get()\n{message}\n'
    assert died(log, 1, argv=target).failure is Failure.MODEL_MISSING
    for draft in (("--speculative-draft-model-path", "/models/x"), ("--speculative-draft-model-path=/models/x",)):
        got = died(log, 1, argv=("sglang", "serve", "--model-path", "/models/y", *draft))
        assert got.failure is Failure.DRAFT_BAD
        assert got.fails_too == ("depth+", "draft_model=")


def test_a_warning_of_the_generation_config_is_no_missing_model() -> None:
    line = "Failed to load generation config for /m: /m does not appear to have a file named generation_config.json."
    assert died(line, 1).failure is Failure.CRASHED


def test_shapes_count_as_the_drafts_only_in_the_draft() -> None:
    shapes = "RuntimeError: mat1 and mat2 shapes cannot be multiplied (6x4096 and 6144x2048)"
    assert died(raised(shapes, "models/llama_eagle3.py")).failure is Failure.DRAFT_BAD
    assert died(raised(shapes, "models/qwen3.py")).failure is Failure.CRASHED
    vocabulary = "ValueError: rejection sampling needs one vocab, but the draft vocab (32000) != target vocab (151936)."
    assert died(raised(vocabulary, "speculative/eagle_worker_v2.py")).failure is Failure.DRAFT_BAD


def test_flags_that_do_not_go_together() -> None:
    message = "ValueError: trtllm_mha backend only supports topk = 1 for speculative decoding."
    log = (
        f'Traceback (most recent call last):\n  File "/o/arg_groups/speculative_hook.py", line 9, in check\n{message}\n'
    )
    got = died(log, 1)
    assert (got.failure, got.line) == (Failure.BAD_COMBINATION, message)
    assert "topk = 1" in got.reason


def test_a_log_that_ends_with_a_traceback() -> None:
    """Nobody knows whether it ended; what came last tells, and by the same rules."""
    real = text("fail-badcombo.log")
    assert diagnose(Evidence(log=real)).failure is Failure.BAD_COMBINATION
    assert diagnose(Evidence(log=real)) == died(real, 1)
    loose = 'Traceback (most recent call last):\n  File "/o/x.py", line 1, in run\n    go()\nKeyError: 3\nmore of it\n'
    got = diagnose(Evidence(log=START + loose))
    assert (got.failure, got.line) == (Failure.CRASHED, "KeyError: 3")
    assert alive(START + loose, health=0).failure is Failure.CRASHED


@pytest.mark.parametrize(
    "after",
    [
        '[2026-11-30 12:00:01] INFO:     127.0.0.1:4 - "POST /generate HTTP/1.1" 200 OK\n',
        'INFO:     127.0.0.1:4 - "POST /generate HTTP/1.1" 200 OK\n',
        DECODE + "90.00, #queue-req: 0\n",
    ],
)
def test_a_traceback_that_it_survived(after: str) -> None:
    loose = 'Traceback (most recent call last):\n  File "/o/x.py", line 1, in run\n    go()\nKeyError: 3\n'
    assert diagnose(Evidence(log=START + loose + after)).failure is Failure.UNKNOWN
    assert alive(START + loose, ready=200).failure is Failure.UNKNOWN
    assert diagnose(Evidence(log=START + loose.replace("KeyError: 3\n", ""))).failure is Failure.UNKNOWN
    running = ProcessFacts(pid=1, start_id="1", argv=("sglang",))
    assert diagnose(Evidence(log=START + loose, process=running)).failure is Failure.UNKNOWN


def test_secrets_stay_out_of_the_evidence() -> None:
    """Of flags, of arguments as printed, of addresses."""
    for said in (
        "error: unrecognized arguments: --api-key hunter2hunter2 --x",
        "error: unrecognized arguments: --api-key=hunter2hunter2",
        "error: unrecognized arguments: --admin-api-key hunter2hunter2",
        "error: unrecognized arguments: --hf-token hunter2hunter2",
        "error: unrecognized arguments: --proxy http://me:hunter2hunter2@proxy:80",
    ):
        got = died(f"sglang serve: {said}", 2)
        assert got.failure is Failure.BAD_FLAG
        assert "hunter2" not in got.line + got.reason
    assert "hunter2" not in masked_line("server_args=ServerArgs(api_key='hunter2hunter2', port=1)")
    for kept in ("--max-total-tokens 100", "--speculative-token-map map.pt", "--speculative-num-draft-tokens 4"):
        assert kept in masked_line(f"error: unrecognized arguments: {kept}")


def test_stages_follow_a_real_start() -> None:
    seen, stage = [Stage.BEGUN], Stage.BEGUN
    for line in text("qwen3-30b-a3b-eagle3-steps3.log").splitlines():
        if (stage := stage_after(line, stage)) is not seen[-1]:
            seen.append(stage)
    assert [s.name for s in seen] == ["BEGUN", "WEIGHTS", "POOL", "DRAFT", "POOL", "GRAPHS", "WARM_UP", "SERVING"]


def test_report_4330_two_opposite_errors_at_adjacent_fractions() -> None:
    """0.85 runs out of memory, 0.84 leaves no room: together they say that no fraction will do."""
    above = died(LOAD + LOADED + POOL + CAPTURE + raised(OOM.strip(), "x.py"))
    below = died(raised("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", "x.py"))
    assert (above.failure, below.failure) == (Failure.DEVICE_OOM_GRAPH, Failure.NO_KV_ROOM)
    assert {"memory_fraction+", "memory_fraction-"} <= {*above.fails_too, *below.fails_too}
    assert "depth+" in above.fails_too
    assert "depth+" in below.fails_too


def test_report_2863_out_of_memory_at_graph_capture() -> None:
    """5 steps, topk 8, 64 draft tokens: 160 x 64 rows a graph. Smaller graphs first; never without any."""
    message = "Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 9.78 GiB. GPU 0 has a total"
    got = died(LOAD + LOADED + POOL + POOL_END + CAPTURE + raised(message, "cuda_graph_runner.py") + SELF_KILL)
    assert got.failure is Failure.DEVICE_OOM_GRAPH
    assert got.remedy.index("--cuda-graph-max-bs") < got.remedy.index("--mem-fraction-static")
    assert "disable" not in got.remedy
    assert {"graph_max_batch+", "draft_tokens+"} <= set(got.fails_too)


def test_report_of_hybrid_models_whose_pool_a_draft_eats() -> None:
    """Qwen3.5-4B: 1,317,073 tokens without, 54,077 with 5 steps, and requests were put back at 128."""
    got = alive(START + SAMPLES["sg.retract"] + "\n" + DECODE + "9.00, #queue-req: 5\n", ready=200)
    assert got.failure is Failure.KV_STARVED
    assert {"depth+", "max_running+"} <= set(got.fails_too)
    assert "--max-running-requests" in got.remedy
    assert died(START + SAMPLES["sg.retract"], 1).failure is not Failure.KV_STARVED
    for name, number in (("sg.mrr_reduced", "48"), ("sg.mamba_cap", "31")):
        capped = alive(START + SAMPLES[name], ready=200)
        assert capped.failure is Failure.KV_STARVED
        assert number in capped.reason


def test_report_21410_health_proves_no_memory() -> None:
    got = died(START + DECODE + "9.00, #queue-req: 5\n" + raised(OOM.strip(), "x.py") + SELF_KILL)
    assert got.failure is Failure.DEVICE_OOM_LOAD
    assert "/health" in got.implies
    assert "max_running+" in got.fails_too


def test_report_13085_and_6624_dead_behind_a_healthy_endpoint() -> None:
    """/health_generate returned 200 for more than an hour after the scheduler had crashed."""
    for exception in (OOM.strip(), "RuntimeError: CUDA error: an illegal memory access was encountered"):
        log = START + raised(exception, "scheduler.py")
        for ready in (None, 0, 500):
            got = alive(log, ready=ready)
            assert got.failure is Failure.ENGINE_DEAD
            assert got.line == exception
            assert got.remedy
    sigquit = alive(START + "[2026-11-30 12:00:00] Received sigquit from a child process.\n", ready=0)
    assert sigquit.failure is Failure.ENGINE_DEAD
    silent = alive(START, ready=0)
    assert silent.failure is Failure.NOT_GENERATING
    assert "timed out" in silent.reason


def test_report_22511_busy_is_not_dead() -> None:
    """/health says 503 while a long prefill keeps the scheduler."""
    busy = 'sglang:num_running_reqs{tp_rank="0"} 3.0'
    for got in (
        alive(START + PREFILL, health=503),
        alive(START + DECODE + "90.00, #queue-req: 0\n", health=503),
        alive(START, health=503, metrics=busy),
    ):
        assert got.failure is Failure.UNKNOWN
        assert "busy, not dead" in got.reason
    idle = alive(START, health=503, metrics=busy.replace("3.0", "0.0"))
    assert idle.failure is Failure.NOT_GENERATING


def test_report_17972_requests_run_and_no_token_comes() -> None:
    hung = START + 3 * (DECODE + "0.00, #queue-req: 0\n")
    assert alive(hung).failure is Failure.NOT_GENERATING
    assert alive(hung + DECODE + "12.00, #queue-req: 0\n").failure is Failure.UNKNOWN


@pytest.mark.parametrize(
    ("log", "failure", "says"),
    [
        ("svc.service: Main process exited, code=exited, status=104/n/a", Failure.CRASHED, "104"),
        ("svc.service: Main process exited, code=killed, status=9/KILL", Failure.KILLED, "dmesg"),
        (
            "svc.service: Main process exited, code=killed, status=9/KILL\nsvc.service: Failed with result 'oom-kill'.",
            Failure.HOST_OOM,
            "host memory",
        ),
        ("svc.service: Start request repeated too quickly.", Failure.START_LIMIT, "reset-failed"),
    ],
)
def test_report_of_systemd_lines(log: str, failure: Failure, says: str) -> None:
    """None of them outranks what the server itself said."""
    got = died(log, 1)
    assert got.failure is failure
    assert says in got.reason + got.remedy
    both = died(START + raised("RuntimeError: boom", "x.py") + log, 1)
    assert both.failure is (failure if failure is Failure.HOST_OOM else Failure.CRASHED)


def test_report_of_a_slow_start_follows_progress() -> None:
    """Graph capture took three times as long after a compile cache became invalid: not a matter of the depth."""
    got = alive(LOAD + LOADED + POOL + POOL_END + CAPTURE, health=0)
    assert got.failure is Failure.NO_PROGRESS
    assert "while graphs were captured" in got.reason
    assert "cache" in got.remedy
    assert got.fails_too == ()
    assert alive("", health=0).failure is Failure.NO_PROGRESS
    assert alive(START.replace(READY, ""), health=503).failure is Failure.NO_PROGRESS


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: Could not find nvcc and default cuda_home='/usr/local/cuda' doesn't exist",
        "FileNotFoundError: [Errno 2] No such file or directory: 'ninja'",
        "FileNotFoundError: [Errno 2] No such file or directory: '/usr/local/cuda/bin/nvcc'",
        "/bin/sh: 1: /usr/bin/nvcc: not found",
        "OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install root.",
        "RuntimeError: Ninja is required to load C++ extensions (pip install ninja to get it)",
        "RuntimeError: Failed to find C compiler. Please specify via CC environment variable.",
    ],
)
def test_report_of_a_unit_without_compilers(line: str) -> None:
    """It works by hand, and not under systemd: no CUDA_HOME, no PATH. That counts for no depth."""
    message = line if "Error: " in line else f"RuntimeError: Ninja build failed. Ninja output:\n{line}"
    got = died(LOAD + LOADED + raised(message, "flashinfer/jit/cpp_ext.py") + SELF_KILL)
    assert got.failure is Failure.ENVIRONMENT
    assert got.line == line
    assert "CUDA_HOME" in got.remedy
    assert "PATH" in got.remedy
    assert got.fails_too == ()


def test_journal_lines_are_read_through_their_prefix() -> None:
    prefix = "Nov 30 12:00:00 gpu1 sglang[4242]: "
    log = "".join(prefix + line + "\n" for line in (START + raised("RuntimeError: boom", "x.py")).splitlines())
    assert died(log).line == "RuntimeError: boom"


def test_xid_of_the_program_is_no_lost_device() -> None:
    assert died("NVRM: Xid (PCI:0000:3b:00): 31, pid=1, MMU Fault", 1).failure is Failure.CRASHED
    assert died(START + "NVRM: Xid (PCI:0000:3b:00): 119, pid=1, Timeout", 1).failure is Failure.DEVICE_LOST


def test_a_soft_watchdog_ends_nothing() -> None:
    soft = SAMPLES["sg.F.watchdog"].replace("self.soft=False", "self.soft=True")
    assert alive(START + soft, ready=200).failure is Failure.UNKNOWN
    assert died("Watchdog timeout (self.watchdog_timeout=300)").failure is Failure.WATCHDOG


def test_nothing_known() -> None:
    assert diagnose(Evidence()).failure is Failure.UNKNOWN
    assert diagnose(look(health="")).failure is Failure.UNKNOWN
