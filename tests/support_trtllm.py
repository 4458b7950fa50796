"""Launches, settings and windows of trtllm-serve, for its unit tests and for the laws of engines.

The windows are in the format of `metrics/collector.py` behind a MultiProcessCollector: counters summed, gauges by
process. They were not recorded on a GPU.
"""

from __future__ import annotations

import json
import shlex

from leadline.engines.trtllm import canonical
from leadline.errors import InputError
from leadline.evidence import Acceptance, Busy, Evidence, Reply, Seen
from leadline.launch import LaunchFile, LaunchSpec
from leadline.ports import Engine
from leadline.space import Setting
from leadline.testing.engine_suite import Case, Window
from leadline.trial import RequestRecord

SCRATCH = "/run/leadline/trial"
FILE = "/srv/llm.yaml"

MTP_YAML = """\
# written by the launch script
print_iter_log: true
cuda_graph_config:
    enable_padding: true
    batch_sizes: [1, 2, 4, 8, 16, 32, 64]
kv_cache_config:
    dtype: fp8   # halves the cache
    free_gpu_memory_fraction: 0.75
    enable_block_reuse: false
moe_config:
    backend: TRTLLM
speculative_config:
    decoding_type: MTP
    num_nextn_predict_layers: 3
"""
EVERYTHING_YAML = """\
max_batch_size: 64
return_perf_metrics: true
enable_iter_perf_stats: true
kv_cache_config: {free_gpu_memory_fraction: 0.8, dtype: auto}
cuda_graph_config:
  max_batch_size: 64
speculative_config:
  decoding_type: Eagle3
  # the drafter that was trained for it
  speculative_model: /models/eagle3
  max_draft_len: 4
  use_dynamic_tree: true
  dynamic_tree_max_topK: 4
  max_total_draft_tokens: 12
  eagle3_layers_to_capture: [1, 15, 28]
"""
NGRAM_YAML = """\
speculative_config: {decoding_type: NGram, max_draft_len: 5, max_matching_ngram_size: 3}
cuda_graph_config: null
"""


def command(text: str, yaml: str | None = None, path: str = FILE, **env: str) -> LaunchSpec:
    files = () if yaml is None else (LaunchFile(path, yaml),)
    return LaunchSpec(argv=tuple(shlex.split(text)), env=tuple(env.items()), files=files, scratch=SCRATCH)


BASES = (
    command("trtllm-serve Qwen/Qwen3-8B"),
    command(f"trtllm-serve serve /models/dsr1 --port 8123 --tp_size=8 --extra_llm_api_options {FILE}", MTP_YAML),
    command(
        f"env HF_HUB_OFFLINE=1 /opt/trt/bin/trtllm-serve /models/q --config={FILE} --max_batch_size=64 --host 0.0.0.0",
        EVERYTHING_YAML,
    ),
    command(f"python3 -m tensorrt_llm.commands.serve serve m --config {FILE} --max_batch_size 16", NGRAM_YAML),
    command(
        "mpirun -n 8 --allow-run-as-root trtllm-llmapi-launch trtllm-serve m --backend pytorch "
        "--free_gpu_memory_fraction 0.7 --trust_remote_code",
        TLLM_LOG_LEVEL="INFO",
    ),
    command(
        f"trtllm-serve m --extra_llm_api_options {FILE} --kv_cache_free_gpu_memory_fraction 0.6", "# nothing yet\n"
    ),
)
SETTINGS = (
    Setting.of(depth=0),
    Setting.of(depth=3, spec_method="MTP"),
    Setting.of(depth=2, spec_method="NGram", max_running=32),
    Setting.of(depth=6, spec_method="Eagle3", draft_model="/models/other", memory_fraction=0.55, kv_dtype="fp8"),
    Setting.of(depth=3, spec_method="Eagle", draft_model="d", topk=2, draft_tokens=5, graph_max_batch=24),
    Setting.of(depth=4, spec_method="Draft_Target", draft_model="small", graph_max_batch=0),
    Setting.of({"depth": 1, "spec_method": "MTP", "flag:--max_num_tokens": 4096, "env:TRTLLM_ENABLE_PDL": "1"}),
    Setting.of({"depth": 0, "flag:--enable_chunked_prefill": True, "max_running": 7}),
)
FOREIGN = ("--num_postprocess_workers", "4", "--unheard_of=2", "--reasoning_parser", "deepseek-r1")
REFUSED = (
    (BASES[0], Setting.of(depth=3)),
    (BASES[0], Setting.of(depth=3, spec_method="Eagle3")),
    (BASES[0], Setting.of(depth=3, spec_method="mtp")),
    (BASES[0], Setting.of(depth=3, spec_method="AUTO")),
    (BASES[1], Setting.of(topk=4)),
    (BASES[1], Setting.of(draft_tokens=7)),
    (BASES[2], Setting.of(draft_tokens=3)),
    (BASES[2], Setting.of(draft_tokens=17)),
    (BASES[1], Setting.of(memory_fraction=1.5)),
    (BASES[1], Setting.of({"flag:--max_batch_size": 3})),
    (BASES[1], Setting.of({"flag:--port": 3})),
    (BASES[1], Setting.of({"env:TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS": "2.5"})),
)

_LABELS = 'engine_type="undefined",model_name="m"'


def scrape(
    generated: int,
    ended: int,
    drafted: tuple[int, ...] = (),
    accepted: tuple[int, ...] = (),
    *,
    method: str | None = "MTP",
    info: bool = True,
) -> str:
    """`/prometheus/metrics`, with the series that a server has by then: one that was never counted is not there."""
    lines = ["# HELP trtllm_generation_tokens_total Cumulative number of generation (output) tokens produced."]
    if generated:
        lines += [
            f"trtllm_generation_tokens_total{{{_LABELS}}} {generated}.0",
            f'trtllm_request_success_total{{{_LABELS},finished_reason="length"}} {ended - 1}.0',
            f'trtllm_request_success_total{{{_LABELS},finished_reason="stop"}} 1.0',
        ]
    for name, counts in (("drafted", drafted), ("accepted", accepted)):
        lines.append(f"# TYPE trtllm_spec_decode_{name}_tokens_total counter")
        lines += [
            f'trtllm_spec_decode_{name}_tokens_total{{{_LABELS},token_position="{i}"}} {n}.0'
            for i, n in enumerate(counts)
            if n
        ]
    if info:
        lines.append(f'trtllm_model_config_info{{{_LABELS},max_model_len="4096",model="m",pid="77"}} 1.0')
        lines.append(f'trtllm_kv_cache_config_info{{{_LABELS},free_gpu_memory_fraction="0.75",pid="77"}} 1.0')
        if method:
            labels = f'{_LABELS},spec_enabled="true",spec_method="{method}",spec_num_tokens="3",pid="77"'
            lines.append(f"trtllm_speculative_config_info{{{labels}}} 1.0")
    return "\n".join(lines) + "\n"


def look(metrics: str, log: str = "") -> Evidence:
    bodies = {
        "health": "",
        "version": json.dumps({"version": "1.3.0rc9"}),
        "models": json.dumps({"object": "list", "data": [{"id": "m", "object": "model"}]}),
        "metrics": metrics,
    }
    replies = {name: Reply(name=name, status=200, body=body.encode()) for name, body in bodies.items()}
    return Evidence(replies=replies, log=log, argv=("trtllm-serve", "m"))


def record(output_tokens: int, error: str = "") -> RequestRecord:
    return RequestRecord(
        prompt_id="p", user=0, intended_ns=0, start_ns=0, end_ns=1, output_tokens=output_tokens, error=error
    )


WINDOWS = (
    Window(  # two requests of 41 and 61 tokens: 100 decode tokens in 40 rounds, of which all drafted
        before=look(scrape(2, 1, (1, 1, 1), (1,))),
        after=look(scrape(104, 3, (41, 41, 41), (33, 20, 10))),
        records=(record(41), record(61)),
        acceptance=Acceptance(
            decode_tokens=100, rounds=40, drafting_rounds=40, drafted=120, accepted=62, per_position=(32, 20, 10)
        ),
    ),
    Window(
        before=look(scrape(2, 1, method=None)),
        after=look(scrape(23, 2, method=None)),
        records=(record(21),),
        acceptance=Acceptance(decode_tokens=20, rounds=20, drafting_rounds=0, drafted=0, accepted=0),
    ),
)


MEMORY_LOG = """\
[TRT-LLM] [I] max_seq_len=86720, max_num_requests=64, max_num_tokens=8192, max_batch_size=64
[TRT-LLM] [I] [MemUsageChange] Allocated 0.50 GiB for max tokens in paged KV cache (8224).
[TRT-LLM] [I] Memory used after loading model weights (inside torch) in memory usage profiling: 63.52 GiB
[TRT-LLM] [I] Peak memory during memory usage profiling (torch + non-torch): 113.65 GiB, available KV cache memory \
when calculating max tokens: 5.95 GiB, fraction is set 0.8999999761581421, kv size is 73728. device total memory \
119.70 GiB, , tmp kv_mem 0.56 GiB
[TRT-LLM] [I] Estimated max memory in KV cache : 5.95 GiB
[TRT-LLM] [I] [MemUsageChange] Allocated 5.95 GiB for max tokens in paged KV cache (86711).
[TRT-LLM] [I] Creating CUDA graph instances for 11 batch sizes.
[TRT-LLM] [I] Run generation only CUDA graph warmup for batch size=64, draft_len=0
[TRT-LLM] [I] Run generation only CUDA graph warmup for batch size=56, draft_len=0
"""
"""Of a public report on one machine with 119.7 GiB, shortened."""

TELLING = (
    "RuntimeError: Executor creation failed due to insufficient GPU memory.",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB",
    "RuntimeError: Failed to bind socket to localhost:8000: [Errno 98] Address already in use",
    "Error: No such option: --spec",
    "Error: Invalid value for '--port': 'x' is not a valid integer.",
    "pydantic_core._pydantic_core.ValidationError: 1 validation error for TorchLlmArgs",
    "Speculative decoding disabled: rolling acceptance avg 1.203 < threshold 1.500",
)

_GAUGE = '{engine_type="undefined",model_name="m",pid="7"}'
_WORKING = (
    f"trtllm_num_requests_running{_GAUGE} 3.0\ntrtllm_num_requests_waiting{_GAUGE} 2.0\n"
    f"trtllm_kv_cache_utilization{_GAUGE} 0.25\n"
)
BUSY = (
    (Reply(name="metrics", status=200, body=_WORKING.encode()), Busy(running=3, waiting=2, kv_usage=0.25)),
    (
        Reply(name="metrics", status=200, body=_WORKING.replace(" 3.0", " 0.0").encode()),
        Busy(running=0, waiting=2, kv_usage=0.25),
    ),
)


def case(engine: Engine) -> Case:
    """For the laws; it does not listen while it loads."""
    return Case(
        engine=engine,
        canonical=canonical,
        bases=BASES,
        settings=SETTINGS,
        foreign=FOREIGN,
        refused=REFUSED,
        windows=WINDOWS,
        telling=TELLING,
        versions=("1.2.1", "1.3.0rc9", "1.4.0"),
        named=((BASES[1], (FILE,)), (BASES[2], (FILE,)), (BASES[3], (FILE,)), (BASES[5], (FILE,))),
        busy=BUSY,
        seen=(Seen(launch=LaunchSpec(argv=BASES[0].argv), log=MEMORY_LOG),),
    )


def reason(engine: Engine, launch: LaunchSpec, **values: object) -> str:
    """Why a setting is refused; fails when it is not."""
    try:
        rendered = engine.render(launch, Setting.of(values))  # type-checked by the caller's values
    except InputError as error:
        return str(error)
    raise AssertionError(f"not refused: {rendered}")
