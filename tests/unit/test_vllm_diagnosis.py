"""Why a vLLM server ended or does not serve, from the lines that it writes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support_vllm import log, look

from leadline.engines.vllm import engine, signs
from leadline.engines.vllm.diagnosis import HANGS
from leadline.evidence import Diagnosis, Evidence, ExitFacts, Failure, ProcessFacts, Reply

PATTERNS = Path(__file__).parents[1] / "golden" / "patterns" / "log_lines.json"
SAMPLES = {p["name"]: p["sample"] for p in json.loads(PATTERNS.read_text(encoding="utf-8"))}
KNOBS = {k.name for k in engine.knobs()}
SERVING = "(APIServer pid=1) INFO:     Application startup complete."
OOM = SAMPLES["any.F.torch_oom"]
STATS = (
    "Engine {engine}: Avg prompt throughput: {prompt} tokens/s, Avg generation throughput: {made} tokens/s, Running: "
    "{running} reqs, Waiting: 0 reqs, GPU KV cache usage: 1.0%, Prefix cache hit rate: 0.0%"
)


def stats(running: int = 1, made: float = 0.0, prompt: float = 0.0, number: str = "000") -> str:
    return STATS.format(engine=number, prompt=prompt, made=made, running=running)


def ended(
    *lines: str, code: int | None = 1, signal: int | None = None, kills: int = 0, argv: tuple[str, ...] = ()
) -> Diagnosis:
    exit = ExitFacts(code=code, signal=signal, host_oom_kills=kills)
    return engine.diagnose(Evidence(log="\n".join(lines), exit=exit, argv=argv))


def alive(*lines: str, **replies: int) -> Diagnosis:
    answers = {n: Reply(name=n, status=status, error="" if status else "timed out") for n, status in replies.items()}
    return engine.diagnose(Evidence(log="\n".join(lines), replies=answers))


@pytest.mark.parametrize(
    ("name", "failure", "says", "fails_too"),
    [
        ("vl.F.util", Failure.DEVICE_OOM_START, "10.11 of 79.11 GiB are free", ("memory_fraction+",)),
        (
            "vl.F.noblocks",
            Failure.NO_KV_ROOM,
            "no memory for the KV cache",
            ("memory_fraction-", "depth+", "max_running+"),
        ),
        ("vl.F.maxlen", Failure.KV_STARVED, "needs 16.00 GiB", ("memory_fraction-", "depth+", "max_running+")),
        (
            "vl.F.mambablocks",
            Failure.KV_STARVED,
            "state blocks for 311",
            ("memory_fraction-", "depth+", "max_running+"),
        ),
        ("vl.F.warm", Failure.DEVICE_OOM_START, "sampler with 1024", ("max_running+", "memory_fraction+")),
        ("any.F.torch_oom", Failure.DEVICE_OOM_START, "2.00 GiB more", ("memory_fraction+", "depth+", "max_running+")),
        ("vl.F.port", Failure.PORT_IN_USE, "port is in use", ()),
        ("any.F.eaddr", Failure.PORT_IN_USE, "port is in use", ()),
        ("any.F.argparse", Failure.BAD_FLAG, "ambiguous option", ()),
        ("vl.F.core", Failure.KILLED, "signal 9", ()),
        ("vl.F.worker", Failure.KILLED, "signal 9", ()),
        ("vl.F.dead", Failure.ENGINE_DEAD, "engine has died", ()),
        ("os.unit", Failure.HOST_OOM, "host memory", ()),
        ("os.unit_oom", Failure.HOST_OOM, "host memory", ()),
        ("os.exit", Failure.KILLED, "signal 9", ()),
        ("os.kernel", Failure.HOST_OOM, "host memory", ()),
        ("os.kernel2", Failure.HOST_OOM, "host memory", ()),
        ("os.xid", Failure.DEVICE_LOST, "Xid 79", ()),
    ],
)
def test_tells_by_its_line(name: str, failure: Failure, says: str, fails_too: tuple[str, ...]) -> None:
    said = ended(*SAMPLES[name].splitlines())
    assert (said.failure, said.fails_too) == (failure, fails_too)
    assert says in said.reason
    assert said.line
    assert said.remedy


def test_every_sample_of_a_failure_is_told() -> None:
    """None of those that vLLM, PyTorch, argparse, the kernel or systemd write is left to the exit code."""
    for name, sample in SAMPLES.items():
        if re.match(r"(?:vl|any)\.F\.|os\.", name):
            assert "no line of its log says why" not in ended(*sample.splitlines()).reason, name


def test_samples_of_a_healthy_server_are_no_failure() -> None:
    """Requests that were put back are a fact of that line of statistics, and no health."""
    healthy = [s for n, s in SAMPLES.items() if n.startswith("vl.") and ".F." not in n]
    assert sum("Preemptions: 3, " in s for s in healthy) == 1
    healthy = [s.replace("Preemptions: 3, ", "Preemptions: 0, ") for s in healthy]
    assert alive(*healthy, health=200, ready=200).failure is Failure.UNKNOWN
    served = log("mtp-3")
    assert alive(*served.splitlines(), health=200, ready=200).failure is Failure.KV_STARVED
    quiet = re.sub(r" Preemptions: \d+,", "", served)
    assert alive(*quiet.splitlines(), health=200, ready=200).failure is Failure.UNKNOWN


@pytest.mark.parametrize("model", ["model", "models"])
@pytest.mark.parametrize("unit", ["GiB", "GB"])
@pytest.mark.parametrize("fits", ["", ". Based on the available memory, the estimated maximum model length is 33168."])
def test_one_request_does_not_fit(model: str, unit: str, fits: str) -> None:
    line = (
        f"ValueError: To serve at least one request with the {model}'s max seq len (131072), (16.00 {unit} KV cache is "
        f"needed, which is larger than the available KV cache memory (4.05 {unit})"
    )
    said = ended("Available KV cache memory: 4.05 GiB", line + fits, "EngineCore failed to start.")
    assert said.failure is Failure.KV_STARVED
    assert said.fails_too == ("memory_fraction-", "depth+", "max_running+")
    assert said.remedy.startswith("lower --max-model-len, or raise --gpu-memory-utilization")
    assert "needs 16.00 GiB of KV cache, and there are 4.05 GiB" in said.reason
    assert ("fits: 33168 tokens" in said.reason) == bool(fits)
    assert "?" not in said.reason


def test_one_request_does_not_fit_in_the_older_words() -> None:
    said = ended(
        "ValueError: The model's max seq len (131072) is larger than the maximum number of tokens that can be stored "
        "in KV cache (26064). Try increasing `gpu_memory_utilization` or decreasing `max_model_len`"
    )
    assert (said.failure, said.fails_too) == (Failure.KV_STARVED, ("memory_fraction-", "depth+", "max_running+"))
    assert "131072 tokens, and the KV cache holds 26064" in said.reason


@pytest.mark.parametrize("device", ["device", "device cuda:0"])
def test_somebody_else_holds_the_device(device: str) -> None:
    said = ended(
        f"ValueError: Free memory on {device} (20.3/79.1 GiB) on startup is less than desired GPU memory utilization "
        "(0.9, 71.2 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
    )
    assert (said.failure, said.fails_too) == (Failure.DEVICE_OOM_START, ("memory_fraction+",))
    assert said.remedy == "end what else uses the GPU, or lower --gpu-memory-utilization"
    assert f"71.2 GiB of {device} were asked for (share 0.9), and 20.3 of 79.1 GiB are free" in said.reason


def test_a_neighbour_that_goes_while_memory_is_measured_says_nothing_of_the_flags() -> None:
    said = ended(
        "(EngineCore_DP0 pid=7) AssertionError: Error in memory profiling. Initial free memory 20.31 GiB, current free "
        "memory 71.90 GiB. This happens when other processes sharing the same container release GPU memory while vLLM "
        "is profiling during initialization."
    )
    assert (said.failure, said.fails_too) == (Failure.ENVIRONMENT, ())
    assert "try again" in said.remedy


def test_requests_that_were_put_back_starve() -> None:
    """While it lives, and only then: an end has another reason."""
    put_back = stats(made=900.0).replace("Waiting: 0 reqs,", "Waiting: 4 reqs, Preemptions: 3,")
    said = alive(SERVING, put_back, health=200, ready=200)
    assert (said.failure, said.line) == (Failure.KV_STARVED, put_back)
    assert "(3 between two reports)" in said.reason
    assert said.fails_too == ("max_running+", "depth+", "memory_fraction-")
    none = put_back.replace("Preemptions: 3", "Preemptions: 0")
    assert alive(SERVING, none, health=200, ready=200).failure is Failure.UNKNOWN
    assert ended(SERVING, put_back).failure is Failure.CRASHED
    assert alive(SERVING, put_back, health=200, ready=0).failure is Failure.NOT_GENERATING


TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "/opt/x/core.py", line 7, in run',
    "    step()",
    "torch._C.SomeError: a thing that nobody knows",
    "its second line",
)
PREFIXES = ("", "(EngineCore_DP0 pid=12) ", "(EngineCore_DP0 pid=12) ERROR 11-30 12:00:00 [core.py:700] ")


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_log_that_ends_with_a_traceback(prefix: str) -> None:
    """Nobody knows whether it ended; what came last tells."""
    lines = [prefix + line for line in TRACEBACK]
    said = alive(SERVING, *lines)
    assert (said.failure, said.line) == (Failure.CRASHED, TRACEBACK[3])
    assert "a thing that nobody knows" in said.reason
    assert alive(SERVING, *lines, "", "").failure is Failure.CRASHED
    assert alive(SERVING, *lines, health=0).failure is Failure.CRASHED
    chained = (*lines, "", prefix + "During handling of the above exception, another exception occurred:", "")
    again = [prefix + line for line in TRACEBACK[:3]]
    assert alive(SERVING, *chained, *again, prefix + "KeyError: 'last'").line == "KeyError: 'last'"
    assert "a thing that nobody knows" in ended(SERVING, *lines).reason


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize(
    "after",
    [
        '(APIServer pid=1) INFO:     127.0.0.1:4 - "POST /v1/completions HTTP/1.1" 200 OK',
        'INFO:     127.0.0.1:4 - "POST /v1/completions HTTP/1.1" 200 OK',
        "(APIServer pid=1) INFO 11-30 12:00:10 [loggers.py:331] Engine 000: something",
        "WARNING 11-30 12:00:10 [x.py:1] something",
    ],
)
def test_a_traceback_that_it_survived(prefix: str, after: str) -> None:
    lines = [prefix + line for line in TRACEBACK]
    assert alive(SERVING, *lines, after).failure is Failure.UNKNOWN
    assert alive(SERVING, *lines, health=200, ready=200).failure is Failure.UNKNOWN
    assert alive(SERVING, *lines[:3]).failure is Failure.UNKNOWN, "the exception is not in the log yet"
    running = ProcessFacts(pid=1, start_id="1", argv=("vllm",))
    assert engine.diagnose(Evidence(log="\n".join(lines), process=running)).failure is Failure.UNKNOWN


def test_what_to_do_points_the_right_way() -> None:
    """Too large a share at the start, and too small a one for the KV cache, want the opposite."""
    assert "lower --gpu-memory-utilization" in ended(SAMPLES["vl.F.util"]).remedy
    assert "raise --gpu-memory-utilization" in ended(SAMPLES["vl.F.noblocks"]).remedy
    starved = ended(SAMPLES["vl.F.maxlen"])
    assert "--max-model-len" in starved.remedy
    assert "75424" in starved.reason
    assert "at most 311" in ended(SAMPLES["vl.F.mambablocks"]).remedy


@pytest.mark.parametrize(
    ("before", "failure", "when"),
    [
        ([], Failure.DEVICE_OOM_START, "at start"),
        (["Model loading took 15.08 GiB memory and 4.2 seconds"], Failure.DEVICE_OOM_START, "at start"),
        (["Available KV cache memory: 12.34 GiB"], Failure.DEVICE_OOM_KV, "allocating the KV cache"),
        (
            ["Available KV cache memory: 1 GiB", "Capturing CUDA graphs (decode, FULL):  12%|##"],
            Failure.DEVICE_OOM_GRAPH,
            "graphs",
        ),
        (["Capturing decode CUDA graphs: 3"], Failure.DEVICE_OOM_GRAPH, "graphs"),
        (
            ["Capturing CUDA graphs", "Graph capturing finished in 3 secs, took 0.1 GiB"],
            Failure.DEVICE_OOM_START,
            "warming up",
        ),
        (["Capturing CUDA graphs", SERVING], Failure.DEVICE_OOM_LOAD, "under load"),
    ],
)
def test_when_the_memory_was_short(before: list[str], failure: Failure, when: str) -> None:
    said = ended(*before, OOM, "EngineCore failed to start.", SAMPLES["vl.F.dead"])
    assert said.failure is failure
    assert when in said.reason
    assert {"depth+", "memory_fraction+"} <= set(said.fails_too)
    assert ("graph_max_batch+" in said.fails_too) == (failure is Failure.DEVICE_OOM_GRAPH)


def test_health_alone_never_confirms_memory() -> None:
    """vllm-project/vllm#21410: /health was fine at 0.98, and the load brought the lack of memory."""
    said = alive(*log("mtp-3").splitlines(), OOM, SAMPLES["vl.F.dead"], health=200, ready=200)
    assert said.failure is Failure.DEVICE_OOM_LOAD
    assert "memory_fraction+" in said.fails_too


def test_a_warm_up_tells_more_than_its_cause() -> None:
    said = ended(
        "Available KV cache memory: 1 GiB", OOM, "The above exception was the direct cause", SAMPLES["vl.F.warm"]
    )
    assert said.failure is Failure.DEVICE_OOM_START
    assert "sampler" in said.reason


def test_exit_code_0_after_the_engine_died_is_no_success() -> None:
    said = ended(SERVING, SAMPLES["vl.F.dead"], code=0)
    assert said.failure is Failure.ENGINE_DEAD
    assert "exit code is 0" in said.reason
    assert ended(SERVING, OOM, SAMPLES["vl.F.dead"], code=0).failure is Failure.DEVICE_OOM_LOAD
    assert ended(SERVING, code=0).failure is Failure.CRASHED


def test_the_engine_is_dead_and_the_process_lives() -> None:
    """VLLM_KEEP_ALIVE_ON_ENGINE_DEATH=1."""
    assert alive(SERVING, SAMPLES["vl.F.dead"], health=503).failure is Failure.ENGINE_DEAD
    assert alive(SERVING, health=503).failure is Failure.ENGINE_DEAD


def test_a_child_that_the_kernel_killed() -> None:
    assert ended(SAMPLES["vl.F.core"], kills=1).failure is Failure.HOST_OOM
    assert ended(SAMPLES["vl.F.worker"], code=0, kills=1).failure is Failure.HOST_OOM
    assert ended(SAMPLES["vl.F.core"].replace("-9", "1")).failure is Failure.CRASHED


def test_the_supervisor_comes_first() -> None:
    assert ended(OOM, code=None, signal=9, kills=1).failure is Failure.HOST_OOM
    assert ended(OOM, code=None, signal=9).failure is Failure.KILLED
    assert ended(OOM, SAMPLES["os.unit_oom"]).failure is Failure.HOST_OOM
    assert ended(code=137).failure is Failure.CRASHED
    assert "137 is 128+9: most likely SIGKILL" in ended(code=137).reason
    assert "dmesg for the out-of-memory killer" in ended(code=137).remedy
    assert "SIGKILL" not in ended(code=1).reason
    assert "dmesg" not in ended(code=1).remedy
    assert ended("bad words", code=2).failure is Failure.BAD_FLAG


@pytest.mark.parametrize("code", [0, 1])
def test_a_supervisor_that_starts_it_again(code: int) -> None:
    line = "svc.service: Scheduled restart job, restart counter is at 8."
    assert ended(line, code=code).failure is Failure.RESTARTED
    assert ended(OOM, line, code=code).failure is Failure.DEVICE_OOM_START


@pytest.mark.parametrize(
    ("line", "failure", "says"),
    [
        (
            "ValueError: Selected backend AttentionBackendEnum.TRITON_MLA is not valid for this configuration. Reason:"
            " ['sparse not supported']",
            Failure.BAD_COMBINATION,
            "sparse not supported",
        ),
        (
            "ValueError: num_speculative_tokens:5 must be divisible by n_predict=2",
            Failure.BAD_COMBINATION,
            "no multiple",
        ),
        (
            "ValueError: num_speculative_tokens was provided but without speculative model.",
            Failure.BAD_COMBINATION,
            "without",
        ),
        (
            "ValueError: 'tensor_parallel_size' is not a valid argument in the speculative_config. Please pass ...",
            Failure.BAD_COMBINATION,
            "tensor_parallel_size",
        ),
        (
            "ValueError: Target and draft model should have the same vocabulary size. Target model vocab_size=151936."
            " Draft model vocab_size=32000. Using models",
            Failure.DRAFT_BAD,
            "(32000) than the model (151936)",
        ),
        (
            "ValueError: Consider increasing max_num_batched_tokens or decreasing num_speculative_tokens",
            Failure.BAD_COMBINATION,
            "LoRA",
        ),
        (
            "ValueError: No valid cudagraph sizes after rounding to multiple of 8 (num_speculative_tokens + 1) please",
            Failure.BAD_COMBINATION,
            "8 tokens (depth + 1)",
        ),
        (
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
            Failure.BAD_COMBINATION,
            "ModelConfig",
        ),
        (
            "(APIServer pid=1) ValueError: something new does not go with something else",
            Failure.BAD_COMBINATION,
            "something new",
        ),
        (
            "OSError: org/modle is not a local folder and is not a valid model identifier listed on",
            Failure.MODEL_MISSING,
            "org/modle",
        ),
        (
            "Repository Not Found for url: https://huggingface.co/org/x/resolve/main/config.json.",
            Failure.MODEL_MISSING,
            "org/x",
        ),
        ("ValueError: Model architectures ['NewModel'] are not supported for now.", Failure.MODEL_MISSING, "NewModel"),
        ("RuntimeError: No CUDA GPUs are available", Failure.ENVIRONMENT, "no device"),
        (
            "ImportError: Arctic Inference is required for suffix decoding. Install",
            Failure.ENVIRONMENT,
            "arctic-inference",
        ),
        ("TimeoutError: RPC call to sample_tokens timed out.", Failure.WATCHDOG, "sample_tokens"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", Failure.CRASHED, "illegal memory"),
        ("vllm serve: error: argument --kv-cache-dtype: invalid choice: 'fp7'", Failure.BAD_FLAG, "fp7"),
    ],
)
def test_configurations_that_cannot_be(line: str, failure: Failure, says: str) -> None:
    said = ended("INFO before", line, "INFO after", "EngineCore failed to start.", code=1)
    assert said.failure is failure
    assert says in said.reason
    assert said.line.startswith(line[:40].strip()) or line.startswith(said.line[:40])


def test_the_draft_model_is_told_from_the_model() -> None:
    line = "OSError: org/head is not a local folder and is not a valid model identifier listed on"
    argv = ("vllm", "serve", "org/model", "--spec-method", "eagle3", "--spec-model", "org/head", "--spec-tokens", "3")
    said = ended(line, argv=argv)
    assert (said.failure, said.fails_too) == (Failure.DRAFT_BAD, ("draft_model=",))
    assert ended(line, argv=("vllm", "serve", "org/head")).failure is Failure.MODEL_MISSING


def test_what_it_survived_at_the_start_is_forgotten() -> None:
    said = alive(
        "WARNING OSError: x does not appear to have a file named generation_config.json", SERVING, health=200, ready=200
    )
    assert said.failure is Failure.UNKNOWN


def test_reports_in_a_row_without_a_token_are_a_hang() -> None:
    """vllm-project/vllm#17972: /health 200, `Avg generation throughput: 0.0 tokens/s, Running: 1 reqs`."""
    still = [stats()] * HANGS
    said = alive(SERVING, stats(made=50.0), *still, health=200)
    assert said.failure is Failure.NOT_GENERATING
    assert "1 requests run" in said.reason
    assert said.line == stats()


@pytest.mark.parametrize(
    "lines",
    [
        [stats()] * (HANGS - 1),
        [stats()] * HANGS + [stats(made=1.0)],  # it came back
        [stats(running=0)] * HANGS,
        [stats(prompt=900.0)] * HANGS,  # long prompts are work
        [stats(), stats(made=2.0)] * HANGS,
        [stats(number="000", made=9.0), stats(number="001", running=0)] * HANGS,
    ],
)
def test_what_is_no_hang(lines: list[str]) -> None:
    assert alive(SERVING, *lines, health=200, ready=200).failure is Failure.UNKNOWN


def test_one_of_two_engines_hangs() -> None:
    lines = [stats(number="000", made=9.0), stats(number="001")] * HANGS
    assert "engine 001" in alive(SERVING, *lines, health=200).reason


def test_by_the_answers_alone() -> None:
    assert alive(SERVING, health=200, ready=0).failure is Failure.NOT_GENERATING
    assert alive("INFO loading", health=0).failure is Failure.NO_PROGRESS
    assert alive().failure is Failure.UNKNOWN
    assert engine.diagnose(look()).failure is Failure.UNKNOWN


@pytest.mark.parametrize(
    "line",
    [
        "vllm serve: error: unrecognized arguments: --api-keyy tok-7aW9pq",
        "ValueError: cannot use the token tok-7aW9pq here",
        "RuntimeError: last words with tok-7aW9pq",
    ],
)
def test_secrets_of_the_command_are_hidden(line: str) -> None:
    for argv in (("vllm", "serve", "m", "--api-key", "tok-7aW9pq"), ("vllm", "serve", "m", "--hf-token=tok-7aW9pq")):
        said = ended(line, argv=argv)
        assert "tok-7" not in f"{said.reason}{said.line}{said.remedy}"


def test_every_sign_says_knobs_and_a_direction() -> None:
    for sign in (*signs.TELLING, *signs.SUPERVISOR, *signs.RESTARTS, *signs.REFUSED, *signs.DEAD, *signs.LIVING):
        assert sign.reason
        assert sign.remedy
        for entry in sign.fails_too:
            assert entry[:-1] in KNOBS
            assert entry[-1] in "+-="
        if sign.fails_too:
            assert sign.implies
