"""How SGLang ends, for the lab: in the words of 0.5.16 to 0.5.23, and by a SIGKILL of its own whatever the cause."""

from __future__ import annotations

from leadline.testing.dialects import End, Flags
from leadline.testing.model import Fatal

PID, CHILD = 520, 684
LIBRARY = "/opt/venv/lib/python3.12/site-packages"


def stamp(at_s: float) -> str:
    """The lab has no calendar: its day is always the same."""
    whole = 12 * 3600 + int(at_s)
    return f"[2026-11-30 {whole // 3600 % 24:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}]"


def port_in_use(flags: Flags) -> tuple[str, ...]:
    """uvicorn's words: the model is loaded, and then the port is taken."""
    head = stamp(0.0)
    return (
        f"{head} ERROR:    [Errno 98] error while attempting to bind on address ('{flags.host}', {flags.port}): "
        "address already in use",
        f"{head} INFO:     Waiting for application shutdown.",
        f"{head} INFO:     Application shutdown complete.",
    )


def died(how: Fatal, at_s: float) -> End:
    """The scheduler or one of its checks fails; the parent then kills its whole process tree, itself last."""
    head = stamp(at_s)
    failed = ("", f"{head} Received sigquit from a child process. It usually means the child failed.")
    sigquit = f"{head} SIGQUIT received. signum=None, frame=None. It usually means one child failed."
    match how:
        case Fatal.OUT_OF_MEMORY:
            trace = torch_oom("1.53 GiB", "layers/logits_processor.py", "_get_logits")
        case Fatal.CRASH:
            trace = (
                "Traceback (most recent call last):",
                f'  File "{LIBRARY}/sglang/srt/managers/scheduler.py", line 4630, in run_scheduler_process',
                "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
            )
        case Fatal.WATCHDOG:
            timeout = f"{head} Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)"
            return End((timeout, "", sigquit, f"{head} {tree()}"), -9)
        case _:
            crashed = f"{head} Subprocess scheduler_0 (pid={CHILD}) crashed with exit code -9. "
            cleanup = f"{crashed}Triggering SIGQUIT for cleanup..."
            return End((cleanup, sigquit, f"{head} {tree()}"), -9)
    return End((f"{head} Scheduler hit an exception: {trace[0]}", *trace[1:], *failed, f"{head} {tree()}"), -9)


def stopped(at_s: float) -> End:
    """SIGTERM ends it by its own SIGKILL too, and its words are those of a crash."""
    head = stamp(at_s)
    return End(
        (
            f"{head} SIGTERM received. signum=None frame=None. Draining requests and shutting down...",
            f"{head} Subprocess scheduler_0 (pid={CHILD}) crashed with exit code -15. "
            "Triggering SIGQUIT for cleanup...",
            f"{head} SIGQUIT received. signum=None, frame=None. It usually means one child failed.",
            f"{head} {tree()}",
        ),
        -9,
    )


def torch_oom(size: str, file: str, function: str) -> tuple[str, ...]:
    return (
        "Traceback (most recent call last):",
        f'  File "{LIBRARY}/sglang/srt/{file}", line 1855, in {function}',
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {size}. GPU 0 has a total capacity of 139.81 "
        "GiB of which 512.00 MiB is free. Process 1 has 139.31 GiB memory in use. Of the allocated memory 138.02 GiB "
        "is allocated by PyTorch, and 96.11 MiB is reserved by PyTorch but unallocated.",
    )


def no_room(fraction: float) -> tuple[str, ...]:
    least = fraction + 0.05
    return (
        "Traceback (most recent call last):",
        f'  File "{LIBRARY}/sglang/srt/mem_cache/kv_cache_configurator.py", line 1560, in _profile_available_bytes',
        "    raise ValueError(",
        f"ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static={fraction:g}. "
        f"Raise --mem-fraction-static above {least:.3f} (minimum viable = 1 - available/pre = {least:.4f}). If using "
        "speculative decoding, draft weights are now counted.",
    )


def graphs_failed() -> tuple[str, ...]:
    oom = torch_oom("1.02 GiB", "model_executor/runner/decode_cuda_graph_runner.py", "capture")
    return (
        *oom,
        "",
        "During handling of the above exception, another exception occurred:",
        "",
        "Traceback (most recent call last):",
        f"Exception: Capture cuda graph failed: {oom[-1].removeprefix('torch.OutOfMemoryError: ')}",
        "Possible solutions:",
        "1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)",
        "2. set --cuda-graph-max-bs-decode to a smaller value (e.g., 16)",
    )


def tree() -> str:
    return f"kill_process_tree called: parent_pid={PID}, include_parent=True, pid={PID}"
