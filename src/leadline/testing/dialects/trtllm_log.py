"""What trtllm-serve logs, for the lab: its start, its steps and its ends, in the words of its source and public logs.

How its process ends after a death under load was never seen; the lab takes exit code 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from leadline.testing.dialects import Boot, End, Flags, View
from leadline.testing.dialects.openai import context_of
from leadline.testing.faults import Fault, FaultKind, cap, depth_in_force
from leadline.testing.model import Fatal
from leadline.testing.physics import LabSpec

GIB_PER_TOKEN = 96 / 1024**2  # 96 KiB
TOTAL_GIB, WEIGHTS_GIB = 139.81, 56.11
BLOCK = 32
_GRAPHS = (1, 2, 4, 8, 16, 32, 64)
_NO_ROOM = "Executor creation failed due to insufficient GPU memory."
Line = tuple[float, str]


def note(at_s: float, text: str, level: str = "I") -> str:
    """The lab has no calendar: its day is always the same."""
    whole = 12 * 3600 + int(at_s)
    clock = f"{whole // 3600 % 24:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"
    return f"[11/30/2026-{clock}] [TRT-LLM] [{level}] {text}"


def boot(spec: LabSpec, flags: Flags, faults: Mapping[FaultKind, Fault], version: str) -> Boot:
    """The port is taken at once; nobody listens there before the model is loaded."""
    slow, silent = faults.get(FaultKind.SLOW_START), faults.get(FaultKind.SILENT_START)
    load_s, count = spec.load_s, spec.progress_lines
    if slow:
        load_s = 60.0 if slow.seconds is None else slow.seconds
        count = max(count, math.ceil(load_s))
    depth = depth_in_force(flags.depth, faults)
    running = spec.slots(depth, cap(flags.max_running or spec.max_running, faults))
    lines: list[Line] = [
        (0.0, f"[TensorRT-LLM] TensorRT-LLM version: {version}"),
        (0.0, note(0.0, f"Using LLM with {flags.told['backend']} backend")),
    ]
    if silent:
        return Boot(lines=tuple(lines), listens_s=None, progress=False)
    for i in range(1, count):
        at = load_s * 0.6 * i / count
        lines.append((at, f"Loading weights: {100 * i // count:3d}%|{'█' * i}| {i}/{count}"))
    at = load_s * 0.65
    lines.append((at, note(at, _weights())))
    failed = _failed(at, spec.pool(depth), faults, running)
    if failed:
        return Boot(lines=(*lines, *failed), exit_s=at, listens_s=None)
    lines += _cache(at, spec.pool(depth), flags, running)
    lines += _graphs(load_s, flags, running)
    if FaultKind.OOM_AT_GRAPHS in faults:
        at = load_s * 0.8
        lines = [line for line in lines if line[0] <= at]
        lines += [(at, text) for text in torch_oom("1.02 GiB")]
        return Boot(lines=tuple(lines), exit_s=at, listens_s=None)
    up = ("Started server process [1]", "Waiting for application startup.", "Application startup complete.")
    lines += [(load_s, f"INFO:     {text}") for text in up]
    where = f"http://{flags.host}:{flags.port}"
    lines.append((load_s, f"INFO:     Uvicorn running on {where} (Press CTRL+C to quit)"))
    return Boot(lines=tuple(lines), ready_s=load_s, listens_s=load_s)


def _weights() -> str:
    return f"Memory used after loading model weights (inside torch) in memory usage profiling: {WEIGHTS_GIB:.2f} GiB"


def _failed(at_s: float, pool: int, faults: Mapping[FaultKind, Fault], running: int) -> list[Line]:
    """The executor's table of what did not fit; each part with the free memory before and after it."""
    if running >= 1 and FaultKind.OOM_AT_START not in faults and FaultKind.OOM_AT_KV not in faults:
        return []
    what = "KV cache" if FaultKind.OOM_AT_KV in faults else "Initial KV cache (temporary for KV cache size estimation)"
    texts = [
        note(
            at_s,
            "Failed to initialize executor on rank 0: Executor creation failed due to insufficient GPU memory.",
            "E",
        ),
        "",
        f"The following component could not be created: {what}",
        f"Total GPU memory (GiB): {TOTAL_GIB:.2f}",
        "Free GPU memory before component creation attempt (GiB): 2.10",
        "",
        "Previously created components and free GPU memory before/after creation (GiB):",
        f"Model: {TOTAL_GIB - 0.7:.2f} / 2.10",
    ]
    return [(at_s, text) for text in texts]


def _cache(at_s: float, tokens: int, flags: Flags, running: int) -> list[Line]:
    gib = tokens * GIB_PER_TOKEN
    texts = (
        f"Peak memory during memory usage profiling (torch + non-torch): {WEIGHTS_GIB + 2:.2f} GiB, available KV "
        f"cache memory when calculating max tokens: {gib:.2f} GiB, fraction is set {flags.memory_fraction}, kv size is "
        f"98304. device total memory {TOTAL_GIB:.2f} GiB, , tmp kv_mem 0.50 GiB",
        f"Estimated max memory in KV cache : {gib:.2f} GiB",
        f"[MemUsageChange] Allocated {gib:.2f} GiB for max tokens in paged KV cache ({tokens}).",
        f"max_seq_len={context_of(flags)}, max_num_requests={running}, max_num_tokens={flags.told['max_num_tokens']}, "
        f"max_batch_size={running}",
    )
    return [(at_s, note(at_s, text)) for text in texts]


def _graphs(load_s: float, flags: Flags, running: int) -> list[Line]:
    if not flags.told["cuda_graphs"]:
        return []
    sizes = [n for n in _GRAPHS if n <= max(1, running)]
    times = [load_s * (0.75 + 0.2 * i / len(sizes)) for i in range(len(sizes))]
    return [
        (at, note(at, f"Run generation-only CUDA graph warmup for batch size={n}, draft_len={flags.depth}"))
        for at, n in zip(times, reversed(sizes), strict=True)
    ]


def torch_oom(size: str) -> tuple[str, ...]:
    return (
        "Traceback (most recent call last):",
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {size}. GPU 0 has a total capacity of "
        f"{TOTAL_GIB} GiB of which 512.00 MiB is free.",
    )


def port_in_use(flags: Flags) -> tuple[str, ...]:
    return (
        "Traceback (most recent call last):",
        f"RuntimeError: Failed to bind socket to {flags.host}:{flags.port}: [Errno 98] Address already in use",
    )


def died(how: Fatal, at_s: float) -> End:
    match how:
        case Fatal.OUT_OF_MEMORY:
            why: tuple[str, ...] = (
                note(at_s, "Error in event loop: CUDA out of memory.", "E"),
                *torch_oom("1.53 GiB"),
            )
        case Fatal.CRASH:
            why = (note(at_s, "Error in event loop: CUDA error: an illegal memory access was encountered", "E"),)
        case Fatal.WATCHDOG:
            why = (note(at_s, "Hang detected after 300 seconds.", "E"),)
        case _:
            why = (note(at_s, "MPI worker process of rank 0 has ended", "E"),)
    crashed = note(at_s, "Executor loop crashed on this rank; all other ranks are ended.", "E")
    return End((*why, crashed, *_shutdown()), 1)


def stopped(at_s: float) -> End:
    return End(_shutdown(), 0)


def _shutdown() -> tuple[str, ...]:
    said = ("Shutting down", "Waiting for application shutdown.", "Application shutdown complete.")
    return (*(f"INFO:     {text}" for text in said), "INFO:     Finished server process [1]")


class TrtLlmScribe:
    """`Scribe`: a line for every iteration, with `print_iter_log: true` only."""

    def stepped(self, at_s: float, view: View) -> Sequence[str]:
        if not view.flags.told["print_iter_log"]:
            return ()
        engine = view.model.engine
        states = {
            "num_ctx_requests": 0,
            "num_ctx_tokens": 0,
            "num_generation_tokens": engine.running * (engine.depth + 1),
        }
        return [
            note(
                at_s,
                f"iter = {engine.counters.decodes}, global_rank = 0, rank = 0, currank_total_requests = "
                f"{engine.running}/{engine.running}, host_step_time = 15.2ms, prev_device_step_time = 14.1ms, "
                f"timestamp = 2026-11-30 12:00:00, num_scheduled_requests: {engine.running}, states = {states}",
            )
        ]
