"""Why a trtllm-serve ended or does not serve. Texts from public reports and from its source."""

from __future__ import annotations

import pytest

from leadline.engines.trtllm import engine
from leadline.engines.trtllm.shortage import shortage
from leadline.evidence import Diagnosis, Evidence, ExitFacts, Failure, Reply

GIB = 1 << 30
TABLE = """\
[01/11/2026-10:00:00] [TRT-LLM] [E] Traceback (most recent call last):
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 95.00 GiB of \
which 16.95 GiB is free.

RuntimeError: Executor creation failed due to insufficient GPU memory.

The following component could not be created: Additional executor resources
Total GPU memory (GiB): 95.00
Free GPU memory before component creation attempt (GiB): 16.95

Previously created components and free GPU memory before/after creation (GiB):
Model: 94.30 / 47.83
Sampler: 47.83 / 47.83
Initial KV cache (temporary for KV cache size estimation): 47.83 / 45.67
Drafter: 45.67 / 45.67

Please refer to the TensorRT LLM documentation for information on how to control the memory usage
"""
"""TensorRT-LLM issue 5950."""


def ended(log: str, **how: int) -> Diagnosis:
    return engine.diagnose(Evidence(exit=ExitFacts(**(how or {"code": 1})), log=log))


def test_the_table_of_components() -> None:
    found = shortage(TABLE.splitlines())
    assert found is not None
    assert found.component == "Additional executor resources"
    assert found.total_bytes == 95 * GIB
    assert found.free_bytes == round(16.95 * GIB)
    assert round(found.parts["Model"] / GIB, 2) == 46.47
    assert found.parts["Drafter"] == 0
    assert list(found.parts) == [
        "Model",
        "Sampler",
        "Initial KV cache (temporary for KV cache size estimation)",
        "Drafter",
    ]


def test_a_start_without_memory_asks_for_a_smaller_cache() -> None:
    said = ended(TABLE)
    assert said.failure is Failure.DEVICE_OOM_START
    assert "LOWER --kv_cache_free_gpu_memory_fraction" in said.remedy
    assert "Model 46.47 GiB" in said.reason
    assert "Drafter 0.00 GiB" in said.reason
    assert "memory_fraction+" in said.fails_too
    assert "CUDA out of memory" in said.line


def test_the_cache_itself_and_the_model_itself() -> None:
    """Issue 5872; and a model that does not fit, where a smaller cache would not help."""
    cache = TABLE.replace("created: Additional executor resources", "created: KV cache")
    assert ended(cache).failure is Failure.DEVICE_OOM_KV
    model = TABLE.replace("created: Additional executor resources", "created: Model")
    assert ended(model).failure is Failure.DEVICE_OOM_START
    assert "LOWER" not in ended(model).remedy
    assert "--tp_size" in ended(model).remedy
    without = "\n".join(line for line in TABLE.splitlines() if "OutOfMemory" not in line)
    assert ended(without).failure is Failure.DEVICE_OOM_START
    assert shortage(["nothing"]) is None


OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB \
of which 1.19 GiB is free."
CACHE = "[TRT-LLM] [I] Estimated max memory in KV cache : 9.06 GiB"
GRAPHS = "[TRT-LLM] [I] Creating CUDA graph instances for 34 batch sizes."
UP = "INFO:     Application startup complete."


@pytest.mark.parametrize(
    ("before", "failure"),
    [
        ((), Failure.DEVICE_OOM_START),
        ((CACHE,), Failure.DEVICE_OOM_KV),
        ((CACHE, GRAPHS), Failure.DEVICE_OOM_GRAPH),
        ((CACHE, GRAPHS, UP), Failure.DEVICE_OOM_LOAD),
    ],
)
def test_out_of_memory_by_how_far_it_had_come(before: tuple[str, ...], failure: Failure) -> None:
    said = ended("\n".join((*before, OOM)))
    assert said.failure is failure
    assert said.reason.startswith("out of GPU memory: 2.00 GiB more were asked for, and 1.19 GiB were free")
    assert ("graph_max_batch+" in said.fails_too) == (failure is Failure.DEVICE_OOM_GRAPH)


@pytest.mark.parametrize(
    "line",
    [
        "[TRT-LLM] [E] Failed to initialize executor on rank 0: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0",
        "[TRT-LLM] [E] Failed to initialize executor on rank 0: CUDA out of memory",
        "RuntimeError: Failed to initialize executor: CUDA out of memory.",
        "[TRT-LLM] [E] Failed to initialize executor on rank 0:\nCUDA out of memory.",
    ],
)
def test_an_executor_that_finds_no_memory(line: str) -> None:
    said = ended(line)
    assert said.failure is Failure.DEVICE_OOM_START
    assert "memory_fraction+" in said.fails_too
    assert "LOWER" in said.remedy
    assert "?" not in said.reason


@pytest.mark.parametrize(
    ("line", "failure", "words"),
    [
        (
            "RuntimeError: Failed to bind socket to localhost:8000: [Errno 98] Address already in use",
            Failure.PORT_IN_USE,
            "port 8000 of localhost",
        ),
        (
            "[Errno 98] error while attempting to bind on address ('::', 1): address already in use",
            "port_in_use",
            "port",
        ),
        ("Error: No such option: --max-batch-size", Failure.BAD_FLAG, "no option --max-batch-size"),
        ("Error: Invalid value for '--port': 'x' is not a valid integer.", Failure.BAD_FLAG, "Invalid value"),
        ("Error: Missing argument 'MODEL'.", Failure.BAD_FLAG, "Missing argument"),
        ("ValueError: Draft model must be provided for EAGLE", Failure.BAD_COMBINATION, "must be provided for EAGLE"),
        ("ValueError: max_draft_len must be > 0 for Eagle", Failure.BAD_COMBINATION, "must be > 0"),
        (
            "ValueError: Speculation type NGRAM does not support backend _autodeploy",
            Failure.BAD_COMBINATION,
            "does not support backend",
        ),
        ("RuntimeError: Quota not set. Check kv_cache_config.max_tokens or x", Failure.BAD_COMBINATION, "hybrid"),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "device_oom_start", "cuBLAS"),
        ("torch.AcceleratorError: CUDA error: out of memory", Failure.DEVICE_OOM_START, "out of GPU memory"),
        ("ValueError: Unknown architecture for AutoModelForCausalLM: X", Failure.ENVIRONMENT, "architecture X"),
        ("OSError: q is not a local folder and is not a valid model identifier", Failure.MODEL_MISSING, "model"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'a.yaml'", Failure.ENVIRONMENT, "a.yaml is missing"),
        ("ValueError: No GPU devices found on the node", Failure.ENVIRONMENT, "no GPU"),
        ("Hang detected after 300 seconds.", Failure.WATCHDOG, "watchdog"),
        (
            "[TRT-LLM] [E] [_torch][RANK 7] Executor loop crashed on this rank; hard-killing all 8 ranks in 9.99947s",
            Failure.CRASHED,
            "one rank crashed",
        ),
        ("RuntimeError: Executor worker returned error", Failure.CRASHED, "a worker"),
        ("kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.", Failure.DEVICE_LOST, "Xid 79"),
        (
            "kernel: Memory cgroup out of memory: Killed process 4242 (trtllm-serve) total-vm:99kB, anon-rss:88kB",
            Failure.HOST_OOM,
            "host memory",
        ),
        ("x.service: A process of this unit has been killed by the OOM killer.", Failure.HOST_OOM, "host memory"),
        ("x.service: Failed with result 'oom-kill'.", Failure.HOST_OOM, "host memory"),
        ("x.service: Main process exited, code=killed, status=9/KILL", Failure.KILLED, "signal 9"),
    ],
)
def test_telling_lines(line: str, failure: str, words: str) -> None:
    said = ended(f"[TRT-LLM] [I] starting\n{line}\nRuntimeError: Executor worker returned error\n")
    assert said.failure == failure
    assert words in said.reason
    assert said.remedy


def test_a_configuration_that_pydantic_refuses() -> None:
    log = (
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for TorchLlmArgs\n"
        "speculative_config.MTP.max_matching_ngram_size\n"
        "  Extra inputs are not permitted [type=extra_forbidden, input_value=3, input_type=int]\n"
    )
    said = ended(log)
    assert said.failure is Failure.BAD_FLAG
    assert "speculative_config.MTP.max_matching_ngram_size: Extra inputs are not permitted" in said.reason
    assert "input_value" not in said.reason
    rule = log.replace("Extra inputs are not permitted", "Value error, max_draft_len must be > 0 for NGram")
    assert ended(rule).failure is Failure.BAD_COMBINATION


def test_no_meaning_is_given_to_exit_codes() -> None:
    for code in (0, 1, 2, 134, 137, 255):
        said = ended("nothing telling", code=code)
        assert said.failure is Failure.UNKNOWN
        assert f"exit code {code}" in said.reason
        assert said.line == "nothing telling"
        assert ("137 is 128+9: most likely SIGKILL" in said.reason) == (code == 137)
        assert ("dmesg for the out-of-memory killer" in said.remedy) == (code == 137)
    assert ended("nothing", signal=11).failure is Failure.CRASHED
    assert ended(TABLE, signal=9).failure is Failure.KILLED


def health(status: int, body: bytes = b"", error: str = "") -> dict[str, Reply]:
    return {"health": Reply(name="health", status=status, body=body, error=error)}


DEAD = health(503, b"LLM is unavailable. Please check the server logs for more details.")


def test_a_503_is_a_dead_engine_and_no_loading() -> None:
    """TensorRT-LLM issue 18663: it answers 503 for good."""
    said = engine.diagnose(Evidence(replies=DEAD, log=f"{UP}\n{OOM}\n"))
    assert said.failure is Failure.ENGINE_DEAD
    assert "2.00 GiB more were asked for" in said.reason
    assert "memory_fraction+" in said.fails_too
    assert engine.diagnose(Evidence(replies=DEAD)).failure is Failure.ENGINE_DEAD


def test_alive_but_without_speculation() -> None:
    gate = (
        "[TRT-LLM] [I] [SpeculationGate] Speculative decoding disabled: rolling acceptance avg 1.203 < threshold 1.500 "
        "over last 20 requests"
    )
    said = engine.diagnose(Evidence(replies=health(200), log=f"{UP}\n{gate}\n"))
    assert said.failure is Failure.NO_SPECULATION
    assert "1.203" in said.reason
    # It went on after that, so that it is no reason for an end.
    assert ended(f"{UP}\n{gate}\n").failure is Failure.UNKNOWN


def test_alive_and_not_serving() -> None:
    hung = {**health(200), "ready": Reply(name="ready", status=0, error="timed out")}
    assert engine.diagnose(Evidence(replies=hung)).failure is Failure.NOT_GENERATING
    assert engine.diagnose(Evidence(replies=health(0, error="refused"))).failure is Failure.NO_PROGRESS
    starved = "RequestError: KV_CACHE_MANAGER requires 67 KV cache blocks, which exceeds its GPU capacity of 7 blocks"
    assert engine.diagnose(Evidence(replies=health(200), log=starved)).failure is Failure.KV_STARVED


def test_a_secret_in_a_line_is_not_shown() -> None:
    key = "hf_" + "abcdefghijklmnop"
    said = ended(f"FileNotFoundError: [Errno 2] No such file or directory: 'x' HF_TOKEN={key}")
    assert key not in str(said)
    assert key not in str(ended(f"Error: Invalid value for '--revision': {key}"))
    bad = "1 validation error for TorchLlmArgs\nhf_token\n  Extra inputs are not permitted token=" + key
    assert key not in str(ended(bad))
