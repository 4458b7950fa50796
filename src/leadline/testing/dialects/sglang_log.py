"""What SGLang logs, for the lab: its start, in the words of 0.5.16 to 0.5.23."""

from __future__ import annotations

import math
from collections.abc import Mapping

from leadline.testing.dialects import Boot, Flags
from leadline.testing.dialects.openai import context_of
from leadline.testing.dialects.sglang_deaths import PID, graphs_failed, no_room, stamp, torch_oom, tree
from leadline.testing.faults import Fault, FaultKind, cap, depth_in_force
from leadline.testing.physics import LabSpec

GIB_PER_TOKEN = 96 / 1024**2  # 96 KiB
TOTAL_GB, WEIGHTS_GB, DRAFT_GB, GRAPH_GB = 139.07, 56.11, 0.53, 0.25
_BIND_S = 0.001


class _Script:
    """Lines of a start with their times, as shares of the load."""

    def __init__(self, load_s: float) -> None:
        self.load_s, self.lines = load_s, list[tuple[float, str]]()

    def say(self, share: float, *texts: str) -> None:
        self.lines += [(share * self.load_s, f"{stamp(share * self.load_s)} {text}") for text in texts]

    def raw(self, share: float, *texts: str) -> None:
        self.lines += [(share * self.load_s, text) for text in texts]

    def died(self, share: float, *trace: str) -> Boot:
        """The scheduler dies, and its parent kills itself."""
        self.say(share, f"Scheduler hit an exception: {trace[0]}")
        self.raw(share, *trace[1:], "")
        self.say(share, "Received sigquit from a child process. It usually means the child failed.", tree())
        return Boot(lines=tuple(self.lines), exit_s=share * self.load_s, exit_code=-9, claims_s=None, listens_s=None)


def boot(spec: LabSpec, flags: Flags, faults: Mapping[FaultKind, Fault], args: Mapping[str, object]) -> Boot:
    slow, silent = faults.get(FaultKind.SLOW_START), faults.get(FaultKind.SILENT_START)
    load_s, count = spec.load_s, spec.progress_lines
    if slow:
        load_s = 60.0 if slow.seconds is None else slow.seconds
        count = max(count, math.ceil(load_s))
    depth, asked = depth_in_force(flags.depth, faults), flags.max_running or spec.max_running
    running = spec.slots(depth, cap(asked, faults))
    script = _Script(load_s)
    script.say(0.0, *flags.warnings)
    script.say(0.0, f"server_args=ServerArgs({', '.join(f'{k}={v!r}' for k, v in args.items())})")
    script.say(0.02, "Init torch distributed begin.", "Init torch distributed ends. elapsed=0.18 s, mem usage=0.09 GB")
    script.say(0.05, f"Load weight begin. avail mem={TOTAL_GB:.2f} GB")
    if silent:
        return Boot(lines=tuple(script.lines), claims_s=None, listens_s=None, progress=False)
    for i in range(1, count):
        done = f"Loading safetensors checkpoint shards: {100 * i // count:3d}% Completed | {i}/{count}"
        script.raw(0.05 + 0.5 * i / count, done)
    free = _weights(script, depth > 0 and flags.draft_model != "")
    if FaultKind.OOM_AT_START in faults or running < 1:
        return script.died(0.6, *no_room(flags.memory_fraction))
    if FaultKind.OOM_AT_KV in faults:
        return script.died(0.62, *torch_oom("24.00 GiB", "mem_cache/memory_pool.py", "_create_buffers"))
    free = _pools(script, spec.pool(depth), depth, free)
    if FaultKind.OOM_AT_GRAPHS in faults:
        script.say(0.7, f"Capture {_target(depth)} CUDA graph begin. {_batches(flags, depth + 1, free)}")
        return script.died(0.75, *graphs_failed())
    free = _graphs(script, flags, depth, free)
    return _up(script, flags, spec.pool(depth), asked, running, free)


def _weights(script: _Script, draft: bool) -> float:
    free = TOTAL_GB - WEIGHTS_GB
    script.say(0.56, f"Load weight end. elapsed=0.20 s, type=LabForCausalLM, {_memory(free, WEIGHTS_GB)}.")
    if draft:
        script.say(0.57, f"Load weight begin. avail mem={free:.2f} GB")
        free -= DRAFT_GB
        script.say(0.58, f"Load weight end. elapsed=0.01 s, type=LabForCausalLMEagle3, {_memory(free, DRAFT_GB)}.")
    return free


def _pools(script: _Script, tokens: int, depth: int, free: float) -> float:
    for share in (1.0, 0.02) if depth else (1.0,):
        half = tokens * GIB_PER_TOKEN * share / 2
        free -= 2 * half
        sizes = f"#tokens: {tokens}, K size: {half:.2f} GB, V size: {half:.2f} GB"
        script.say(0.65, f"KV Cache is allocated. dtype: torch.bfloat16, {sizes}")
        script.say(0.65, f"Memory pool end. avail mem={free:.2f} GB")
    return free


def _graphs(script: _Script, flags: Flags, depth: int, free: float) -> float:
    if flags.told["disable_cuda_graph"]:
        return free
    kinds = [(_target(depth), depth + 1)]
    if depth:
        kinds += [("draft decode", 1), ("draft extend", depth + 1)]
    for i, (what, width) in enumerate(kinds):
        at = 0.7 + 0.08 * i
        script.say(at, f"Capture {what} CUDA graph begin. {_batches(flags, width, free)}")
        free -= GRAPH_GB
        took = f"elapsed={0.05 * script.load_s:.2f} s, mem usage={GRAPH_GB:.2f} GB, avail mem={free:.2f} GB."
        script.say(at + 0.05, f"Capture {what} CUDA graph end. {took}")
    return free


def _up(script: _Script, flags: Flags, pool: int, asked: int, running: int, free: float) -> Boot:
    if flags.max_running and running < asked:
        script.say(
            0.95,
            f"max_running_requests was reduced from the requested {asked} to {running} (per dp worker) due to the "
            "available KV cache capacity.",
        )
    script.say(
        0.96,
        f"max_total_num_tokens={pool}, chunked_prefill_size={flags.told['chunked_prefill_size']}, "
        f"max_prefill_tokens=16384, max_running_requests={running}, context_len={context_of(flags)}, "
        f"available_gpu_mem={free:.2f} GB",
        f"INFO:     Started server process [{PID}]",
        "INFO:     Waiting for application startup.",
        "INFO:     Application startup complete.",
    )
    bound = script.load_s + _BIND_S
    ready = bound + 0.05 * script.load_s
    where = f"INFO:     Uvicorn running on http://{flags.host}:{flags.port} (Press CTRL+C to quit)"
    script.lines += [
        (bound, f"{stamp(bound)} {where}"),
        (ready, f"{stamp(ready)} The server is fired up and ready to roll!"),
    ]
    return Boot(lines=tuple(script.lines), ready_s=ready, claims_s=bound, listens_s=bound)


def _memory(free: float, used: float) -> str:
    return f"avail mem={free:.2f} GB, mem usage={used:.2f} GB"


def _target(depth: int) -> str:
    return "target verify" if depth else "target decode"


def batch_sizes(flags: Flags) -> list[int]:
    """Batch sizes of the decode graphs."""
    most = int(flags.told["cuda_graph_max_bs_decode"] or 1)
    sizes = [*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8)]
    return [n for n in sizes if n <= most]


def _batches(flags: Flags, width: int, free: float) -> str:
    return f"backend=full, num_tokens_per_req={width}, bs={batch_sizes(flags)}, avail mem={free:.2f} GB"
