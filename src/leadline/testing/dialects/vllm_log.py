"""What vLLM logs while it starts and generates, for the lab, in the words of 0.33."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from leadline.testing.dialects import Boot, Flags, View
from leadline.testing.dialects.openai import context_of, model_name
from leadline.testing.dialects.vllm_deaths import api, core, failed_start, torch_oom
from leadline.testing.faults import Fault, FaultKind, cap, depth_in_force
from leadline.testing.physics import Counters, LabSpec

GIB_PER_TOKEN = 96 / 1024**2  # 96 KiB
WEIGHTS_GIB = 15.08
_STATS_S = 10.0  # VLLM_LOG_STATS_INTERVAL
_RUNNER = "vllm/v1/worker/gpu_model_runner.py"
_NO_ROOM = (
    "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing "
    "the engine. See https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details.",
)
Line = tuple[float, str]


def boot(spec: LabSpec, flags: Flags, faults: Mapping[FaultKind, Fault], version: str) -> Boot:
    """The port is taken at once; nobody listens there before the engine is up."""
    slow, silent = faults.get(FaultKind.SLOW_START), faults.get(FaultKind.SILENT_START)
    load_s, count = spec.load_s, spec.progress_lines
    if slow:
        load_s = 60.0 if slow.seconds is None else slow.seconds
        count = max(count, math.ceil(load_s))
    depth = depth_in_force(flags.depth, faults)
    running = spec.slots(depth, cap(flags.max_running or spec.max_running, faults))
    lines = _beginning(flags, depth, version)
    if silent:
        return Boot(lines=tuple(lines), listens_s=None, progress=False)
    for i in range(1, count):
        done = f"Loading safetensors checkpoint shards: {100 * i // count:3d}% Completed | {i}/{count}"
        lines.append((load_s * 0.6 * i / count, f"(EngineCore pid=4321) {done}"))
    at = load_s * 0.65
    lines.append(
        (at, core(at, "gpu_model_runner.py:5120", f"Model loading took {WEIGHTS_GIB} GiB memory and 4.250000 seconds"))
    )
    if FaultKind.OOM_AT_START in faults or running < 1:
        return _fails(lines, at, _NO_ROOM)
    at = load_s * 0.75
    lines += _cache(at, spec.pool(depth), flags)
    if FaultKind.OOM_AT_KV in faults:
        return _fails(lines, at, torch_oom("24.00 GiB", _RUNNER, "_allocate_kv_cache_tensors"))
    if FaultKind.OOM_AT_GRAPHS in faults:
        at = load_s * 0.8
        lines.append((at, "(EngineCore pid=4321) Capturing CUDA graphs (decode, FULL):   0%|          | 0/35"))
        return _fails(lines, at, torch_oom("1.02 GiB", _RUNNER, "capture_model"))
    return Boot(lines=(*lines, *_up(load_s, flags)), ready_s=load_s, listens_s=load_s)


def speculation_shown(flags: Flags, depth: int) -> str:
    """`SpeculativeConfig.__repr__`."""
    if not depth:
        return "None"
    model = f"'{flags.draft_model}'" if flags.draft_model else "None"
    return f"SpeculativeConfig(method='{flags.method}', model={model}, num_spec_tokens={depth})"


def _beginning(flags: Flags, depth: int, version: str) -> list[Line]:
    config = (
        f"model='{flags.model}', speculative_config={speculation_shown(flags, depth)}, tokenizer='{flags.model}', "
        f"skip_tokenizer_init=False, dtype=torch.bfloat16, max_seq_len={context_of(flags)}, load_format=auto, "
        f"tensor_parallel_size={flags.told['tensor_parallel_size']}, pipeline_parallel_size=1, "
        f"enforce_eager={flags.told['enforce_eager']}, kv_cache_dtype={flags.told['cache_dtype']}, device_config=cuda, "
        f"served_model_name={model_name(flags)}, enable_prefix_caching={flags.told['enable_prefix_caching']}"
    )
    return [
        (0.0, api(0.0, "startup.py:18", f"vLLM server version {version}, serving model {flags.model}")),
        (0.0, core(0.0, "core.py:140", f"Initializing a V1 LLM engine (v{version}) with config: {config}")),
        (0.0, core(0.0, "gpu_model_runner.py:5080", f"Starting to load model {flags.model}...")),
    ]


def _fails(lines: list[Line], at_s: float, why: tuple[str, ...]) -> Boot:
    return Boot(lines=(*lines, *((at_s, line) for line in failed_start(at_s, why))), exit_s=at_s, listens_s=None)


def _cache(at_s: float, tokens: int, flags: Flags) -> list[Line]:
    context = context_of(flags)
    room = (
        f"GPU KV cache size: {tokens:,} tokens, Maximum concurrency for {context:,} tokens per request: "
        f"{tokens / context:.2f}x"
    )
    free = f"Available KV cache memory: {tokens * GIB_PER_TOKEN:.2f} GiB"
    return [(at_s, core(at_s, "gpu_worker.py:772", free)), (at_s, core(at_s, "kv_cache_utils.py:1147", room))]


def _up(load_s: float, flags: Flags) -> list[Line]:
    graphs = 0.9 * load_s
    lines: list[Line] = []
    if not flags.told["enforce_eager"]:
        lines.append(
            (graphs, core(graphs, "gpu_model_runner.py:6610", "Graph capturing finished in 17 secs, took 0.63 GiB"))
        )
    took = f"init engine (profile, create kv cache, warmup model) took {load_s:.2f} s (compilation: 0.00 s)"
    return [
        *lines,
        (graphs, core(graphs, "core.py:320", took)),
        (load_s, api(load_s, "entry.py:139", f"Starting vLLM server on http://{flags.host}:{flags.port}")),
        (load_s, "(APIServer pid=1) INFO:     Started server process [1]"),
        (load_s, "(APIServer pid=1) INFO:     Waiting for application startup."),
        (load_s, "(APIServer pid=1) INFO:     Application startup complete."),
    ]


class VllmScribe:
    """`Scribe`: about every ten seconds a line of statistics, and one of speculation when anything was drafted."""

    def __init__(self) -> None:
        self._at_s, self._window, self._preempted = 0.0, Counters(), 0

    def stepped(self, at_s: float, view: View) -> Sequence[str]:
        if at_s - self._at_s < _STATS_S or view.flags.told["disable_log_stats"]:
            return ()
        engine, now, old = view.model.engine, view.model.engine.so_far(), self._window
        took_s, preempted = at_s - self._at_s, view.model.retractions - self._preempted
        said = (
            f"Engine 000: Avg prompt throughput: {(now.prompt_tokens - old.prompt_tokens) / took_s:.1f} tokens/s, "
            f"Avg generation throughput: {(now.predicted_tokens - old.predicted_tokens) / took_s:.1f} tokens/s, "
            f"Running: {engine.running} reqs, Waiting: {engine.queued} reqs, "
            f"{f'Preemptions: {preempted}, ' * (preempted > 0)}"
            f"GPU KV cache usage: {100 * engine.kv_used / max(1, engine.pool):.1f}%, Prefix cache hit rate: 0.0%"
        )
        lines = [api(at_s, "loggers.py:331", said)]
        if now.drafts > old.drafts:
            lines.append(api(at_s, "metrics.py:120", _drafts(now, old, took_s)))
        self._at_s, self._window, self._preempted = at_s, now, view.model.retractions
        return lines


def _drafts(now: Counters, old: Counters, took_s: float) -> str:
    drafts, accepted = now.drafts - old.drafts, now.accepted - old.accepted
    drafted = now.draft_tokens - old.draft_tokens
    before = old.per_position or [0] * len(now.per_position)
    rates = ", ".join(f"{(a - b) / drafts:.3f}" for a, b in zip(now.per_position, before, strict=True))
    return (
        f"SpecDecoding metrics: Mean acceptance length: {1 + accepted / drafts:.2f}, Accepted throughput: "
        f"{accepted / took_s:.2f} tokens/s, Drafted throughput: {drafted / took_s:.2f} tokens/s, Accepted: {accepted} "
        f"tokens, Drafted: {drafted} tokens, Per-position acceptance rate: {rates}, Avg Draft acceptance rate: "
        f"{100 * accepted / drafted:.1f}%"
    )
