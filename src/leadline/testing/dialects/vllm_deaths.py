"""How vLLM ends, for the lab, in the words of 0.33: a dead engine takes the API server with it, with exit code 0."""

from __future__ import annotations

from leadline.testing.dialects import End, Flags
from leadline.testing.model import Fatal

_PACKAGES = "/opt/venv/lib/python3.12/site-packages"


def _time(at_s: float) -> str:
    """The lab has no calendar: its day is always the same."""
    whole = 12 * 3600 + int(at_s)
    return f"11-30 {whole // 3600 % 24:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def api(at_s: float, where: str, text: str, level: str = "INFO") -> str:
    return f"(APIServer pid=1) {level} {_time(at_s)} [{where}] {text}"


def core(at_s: float, where: str, text: str, level: str = "INFO") -> str:
    return f"(EngineCore pid=4321) {level} {_time(at_s)} [{where}] {text}"


def torch_oom(size: str, file: str, function: str) -> tuple[str, ...]:
    return (
        f'  File "{_PACKAGES}/{file}", line 6592, in {function}',
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {size}. GPU 0 has a total capacity of 79.11 "
        "GiB of which 512.00 MiB is free. Including non-PyTorch memory, this process has 78.61 GiB memory in use.",
    )


def failed_start(at_s: float, why: tuple[str, ...]) -> list[str]:
    """The engine's process fails, and the API server says so."""
    trace = ("EngineCore failed to start.", "Traceback (most recent call last):", *why)
    return [
        *(core(at_s, "core.py:1160", line, "ERROR") for line in trace),
        "(APIServer pid=1) Traceback (most recent call last):",
        "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): "
        "{'EngineCore': 1}",
    ]


def port_in_use(flags: Flags) -> tuple[str, ...]:
    return (
        "(APIServer pid=1) Traceback (most recent call last):",
        f'(APIServer pid=1)   File "{_PACKAGES}/vllm/entrypoints/launchers/launcher.py", line 370, in serve',
        "(APIServer pid=1)     sock.bind(addr)",
        "(APIServer pid=1) OSError: [Errno 98] Address already in use",
    )


def died(how: Fatal, at_s: float) -> End:
    """Where vLLM has no watchdog of its own, its executor gives the workers up after a time."""
    why = {
        Fatal.OUT_OF_MEMORY: torch_oom("1.53 GiB", "vllm/v1/worker/gpu_model_runner.py", "_dummy_sampler_run"),
        Fatal.CRASH: ("torch.AcceleratorError: CUDA error: an illegal memory access was encountered",),
        Fatal.WATCHDOG: ("TimeoutError: RPC call to sample_tokens timed out.",),
    }.get(how)
    if why is None:
        gone = "Engine core proc EngineCore died unexpectedly, shutting down client."
        lines = [api(at_s, "core_client.py:690", gone, "ERROR")]
    else:
        trace = ("EngineCore encountered a fatal error.", "Traceback (most recent call last):", *why)
        lines = [core(at_s, "core.py:1586", line, "ERROR") for line in trace]
    issue = (
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the "
        "root cause."
    )
    lines += [api(at_s, "async_llm.py:943", text, "ERROR") for text in ("AsyncLLM output_handler failed.", issue)]
    return End((*lines, *_shutdown()), 0)


def stopped(at_s: float) -> End:
    asked = "[shutdown] API server: shutdown triggered"
    return End((api(at_s, "launcher.py:257", asked), *_shutdown()), 0)


def _shutdown() -> tuple[str, ...]:
    said = ("Shutting down", "Waiting for application shutdown.", "Application shutdown complete.")
    return (
        *(f"(APIServer pid=1) INFO:     {text}" for text in said),
        "(APIServer pid=1) INFO:     Finished server process [1]",
    )
