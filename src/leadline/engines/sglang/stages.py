"""How far a start of SGLang has come, and what memory that runs out at each stage means."""

from __future__ import annotations

import re
from enum import Enum

from leadline.dialect.signs import masked_line
from leadline.engines.sglang.signs import GRAPHS
from leadline.evidence import Diagnosis, Failure

READY = "The server is fired up and ready to roll!"

_OOM = re.compile(
    r"(?:CUDA|HIP) out of memory\. Tried to allocate|CUDA error: out of memory"
    r"|OutOfMemoryError\b|CUDNN_STATUS_ALLOC_FAILED|CUBLAS_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation"
)
_SIZE = re.compile(r"Tried to allocate ([\d.]+ [KMGT]iB)")
_CAPTURE_FAILED = re.compile(r"Capture [\w -]*(?:cuda|CUDA) graph failed: ")
_CAPTURES_LEFT = re.compile(r"AssertionError.*num_active_captures_|num_active_captures_.*(?:ASSERT|Error)")


class Stage(Enum):
    """How far a start has come, by the last line that marks a step."""

    BEGUN = "before the weights were loaded"
    WEIGHTS = "while weights were loaded"
    DRAFT = "while the draft model was loaded"
    POOL = "while memory was set aside for the KV cache"
    GRAPHS = "while graphs were captured"
    WARM_UP = "at its first requests, before it said that it was ready"
    SERVING = "under load"


def stage_after(line: str, stage: Stage) -> Stage:
    """The stage that a line marks the beginning of; the present one when it marks none."""
    if "Load weight begin" in line:
        return Stage.WEIGHTS if stage in (Stage.BEGUN, Stage.WEIGHTS) else Stage.DRAFT
    if "Load weight end" in line or "KV Cache is allocated" in line or "Memory pool end" in line:
        return Stage.POOL
    if "apture " in line and " graph begin" in line:
        return Stage.GRAPHS
    if "max_total_num_tokens=" in line and "max_running_requests=" in line and "server_args" not in line:
        return Stage.WARM_UP
    return Stage.SERVING if READY in line else stage


def out_of_memory(line: str, stage: Stage) -> Diagnosis | None:
    """What a line that tells of a lack of GPU memory means at that stage; None when it tells of none."""
    if _OOM.search(line):
        size = _SIZE.search(line)
        more = f": {size[1]} more were asked for" if size else ""
        return _memory(line, Stage.GRAPHS if _CAPTURE_FAILED.search(line) else stage, more)
    return _memory(line, stage, "") if stage is Stage.GRAPHS and _CAPTURES_LEFT.search(line) else None


def _memory(line: str, stage: Stage, more: str) -> Diagnosis:
    """What was being done when memory ran out decides the remedy: room for weights, for the cache, or beside it."""
    failure, remedy, implies, fails_too = _MEMORY[stage]
    return Diagnosis(
        failure=failure,
        reason=f"out of memory on the GPU {stage.value}{more}",
        line=masked_line(line),
        remedy=remedy,
        implies=implies,
        fails_too=fails_too,
    )


_SMALLER = "use more GPUs (--tp-size), a smaller or quantized model, or end what else uses the GPU"
_BESIDE = ("memory_fraction+", "max_running+", "depth+", "draft_tokens+")
_LESS_BESIDE = "lower --mem-fraction-static: it leaves too little beside weights and KV cache"
_MEMORY: dict[Stage, tuple[Failure, str, str, tuple[str, ...]]] = {
    Stage.BEGUN: (Failure.DEVICE_OOM_START, _SMALLER, "no setting starts", ("depth+",)),
    Stage.WEIGHTS: (Failure.DEVICE_OOM_START, _SMALLER, "no setting starts", ("depth+",)),
    Stage.DRAFT: (
        Failure.DEVICE_OOM_START,
        "use a smaller draft model, more GPUs (--tp-size), or depth 0",
        "every depth above 0 fails with this draft model",
        ("depth+", "draft_model="),
    ),
    Stage.POOL: (
        Failure.DEVICE_OOM_KV,
        "lower --mem-fraction-static, or end what else uses the GPU",
        "a larger fraction fails too, and so does a deeper draft",
        ("memory_fraction+", "depth+"),
    ),
    Stage.GRAPHS: (
        Failure.DEVICE_OOM_GRAPH,
        f"lower {GRAPHS}, then --mem-fraction-static; a shallower draft captures less too",
        "larger captured batches, a deeper draft or a larger fraction fails too: a graph holds batch x draft tokens",
        ("graph_max_batch+", "depth+", "draft_tokens+", "topk+", "memory_fraction+"),
    ),
    Stage.WARM_UP: (
        Failure.DEVICE_OOM_LOAD,
        f"{_LESS_BESIDE}; or lower --chunked-prefill-size",
        "a larger fraction fails too, and so does a deeper draft",
        _BESIDE,
    ),
    Stage.SERVING: (
        Failure.DEVICE_OOM_LOAD,
        f"{_LESS_BESIDE}; or lower --max-running-requests or --chunked-prefill-size",
        "more requests at once, a deeper draft or a larger fraction fails too; that /health answered proves no memory",
        _BESIDE,
    ),
}
