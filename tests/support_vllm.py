"""Launches, settings and windows of vLLM, for its unit tests and for the laws of engines.

Pages of metrics and lines of logs are in the formats of vllm/v1/metrics/loggers.py and of the releases' sources. They
were not recorded on a GPU.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from leadline.engines.vllm import canonical
from leadline.evidence import Acceptance, Evidence, Reply
from leadline.launch import LaunchFile, LaunchSpec
from leadline.ports import Engine
from leadline.space import Setting
from leadline.testing.engine_suite import Case, Window
from leadline.trial import RequestRecord

SCRATCH = "/run/leadline/trial"
FILE = "/etc/vllm/serve.yaml"
GOLDEN = Path(__file__).parent / "golden" / "vllm"

YAML = """\
# the night shift's setting
model: org/model
tensor-parallel-size: 8
max_num_seqs: 64          # see the ticket
speculative-config:
  method: mtp
  num_speculative_tokens: 3   # measured in June
  enforce_eager: true
port: 8100
enable-prefix-caching: true
served-model-name: [chat, chat-large]
"""
YAML_SHORT = """\
spec-method: ngram
spec-tokens: 4
gpu-memory-utilization: 0.85
"""
HEAVY = '{"num_speculative_tokens": 1,"method": "mtp","enforce_eager": true}'
"""From vllm-project/vllm-ascend#14440, as it stood in the command."""


def command(text: str, *files: LaunchFile, scratch: str = SCRATCH, **env: str) -> LaunchSpec:
    return LaunchSpec(argv=tuple(shlex.split(text)), env=tuple(env.items()), files=files, scratch=scratch)


def configured(text: str = f"vllm serve --config {FILE}", content: str = YAML, scratch: str = SCRATCH) -> LaunchSpec:
    return command(text, LaunchFile(FILE, content), scratch=scratch)


BASES = (
    command("vllm serve org/model"),
    command(f"vllm serve org/model -tp 8 --max-num-seqs 264 --speculative-config '{HEAVY}' --disable-log-stats"),
    command(
        "python3 -u -m vllm.entrypoints.openai.api_server --model org/model --gpu_memory_utilization=0.85 --port 80"
        " --speculative-config.method ngram --speculative_config.num_speculative_tokens 4 -O3"
        " --speculative-config.prompt_lookup_max=4"
    ),
    command(
        "env VLLM_USE_V2_MODEL_RUNNER=0 /opt/venv/bin/vllm serve org/model --spec-method eagle3 --spec-model org/head"
        " --spec-tokens 3 --max-cudagraph-capture-size 256 --enable-prefix-caching --kv-cache-dtype fp8"
    ),
    configured(),
    configured(f"nice -n 5 vllm serve org/other --config {FILE} --port=9000 --spec-tok 2", YAML_SHORT),
    command(
        'vllm serve --enforce-eager org/model -sc \'{"model":"org/eagle3-head","num_speculative_tokens":2}\''
        " --cudagraph-capture-sizes 1 2 4 8 16 33 --max-num-seqs 8 --max-num-seqs 16 --no-enable-prefix-caching"
        ' -cc \'{"cudagraph_mode":"PIECEWISE"}\''
    ),
)
SETTINGS = (
    Setting(),
    Setting.of(depth=0),
    Setting.of(depth=0, spec_method="mtp", max_running=32, memory_fraction=0.8),
    Setting.of(depth=1, spec_method="mtp"),
    Setting.of(depth=7, spec_method="deepseek_mtp", max_running=128, kv_dtype="fp8_e4m3"),
    Setting.of(depth=3, spec_method="eagle3", draft_model="/models/head", memory_fraction=0.92),
    Setting.of(depth=5, spec_method="ngram"),
    Setting.of(
        {
            "flag:--max-num-batched-tokens": 8192,
            "flag:--enable-prefix-caching": False,
            "flag:--async-scheduling": True,
            "flag:--compilation-config.cudagraph_mode": "FULL",
            "flag:--attention-backend": "FLASH_ATTN",
            "env:VLLM_LOG_STATS_INTERVAL": "5",
        }
    ),
)
REFUSED = (
    (command("vllm serve org/model"), Setting.of(depth=4)),
    (command("vllm serve org/model"), Setting.of(depth=4, topk=2)),
    (command("vllm serve org/model"), Setting.of(depth=4, spec_method="eagle3")),
    (command("vllm serve org/model --nnodes 2"), Setting()),
    (command("bash /opt/start.sh"), Setting()),
    (command("vllm bench serve --model m"), Setting()),
    (command(f"vllm serve org/model --config {FILE}"), Setting()),
    (configured(scratch=""), Setting.of(depth=5)),
)


def case(engine: Engine) -> Case:
    return Case(
        engine=engine,
        canonical=canonical,
        bases=BASES,
        settings=SETTINGS,
        foreign=("--chat-template", "--max-num-seqs", "--brand-new", "--lora-modules", "a=/lora/a", "b=/lora/b"),
        refused=REFUSED,
        windows=windows(),
    )


def page(
    generated: float,
    accepted: Sequence[int] | None = None,
    *,
    drafts: int = 0,
    drafted: int = 0,
    engine: str = "0",
    running: int = 0,
    waiting: int = 0,
    usage: float = 0.0,
    cache: str = "",
) -> str:
    """One engine's part of /metrics; `accepted` = how often each position was, None = the server does not speculate."""
    label = f'{{engine="{engine}",model_name="org/model"}}'
    lines = [
        "# HELP vllm:num_requests_running Number of requests in model execution batches.",
        "# TYPE vllm:num_requests_running gauge",
        f"vllm:num_requests_running{label} {float(running)}",
        f"vllm:num_requests_waiting{label} {float(waiting)}",
        f'vllm:num_requests_waiting_by_reason{{engine="{engine}",model_name="org/model",reason="capacity"}} 7.0',
        f"vllm:kv_cache_usage_perc{label} {usage}",
        "# TYPE vllm:generation_tokens_total counter",
        f"vllm:generation_tokens_total{label} {float(generated)}",
        f"vllm:generation_tokens_created{label} 1.7645e+09",
    ]
    if accepted is not None:
        lines += [
            f"vllm:spec_decode_num_drafts_total{label} {float(drafts)}",
            f"vllm:spec_decode_num_draft_tokens_total{label} {float(drafted)}",
            f"vllm:spec_decode_num_accepted_tokens_total{label} {float(sum(accepted))}",
            *(
                f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="{engine}",model_name="org/model",'
                f'position="{i}"}} {float(n)}'
                for i, n in enumerate(accepted)
            ),
        ]
    if cache:
        lines.append(f'vllm:cache_config_info{{{cache},engine="{engine}"}} 1.0')
    return "\n".join(lines) + "\n"


def look(metrics: str = "", *, log: str = "", argv: tuple[str, ...] = (), **bodies: object) -> Evidence:
    """Answers with 200, by the probe's name; what is no text is sent as JSON."""
    texts = {"metrics": metrics, **{n: b if isinstance(b, str) else json.dumps(b) for n, b in bodies.items()}}
    replies = {n: Reply(name=n, status=200, body=text.encode()) for n, text in texts.items() if text}
    return Evidence(replies=replies, log=log, argv=argv)


def record(tokens: int, n: int = 0, *, histogram: tuple[int, ...] = (), error: str = "") -> RequestRecord:
    rounds = sum(histogram)
    return RequestRecord(
        prompt_id=f"p{n}",
        user=0,
        intended_ns=0,
        start_ns=0,
        end_ns=10**9,
        output_tokens=tokens,
        rounds=rounds,
        histogram=histogram,
        accepted=sum(i * k for i, k in enumerate(histogram)),
        drafted=rounds * max(0, len(histogram) - 1),
        error=error,
    )


def log(name: str) -> str:
    return (GOLDEN / f"{name}.log").read_text(encoding="utf-8")


MODELS = {"object": "list", "data": [{"id": "chat", "root": "org/model", "max_model_len": 32768}]}


def windows() -> tuple[Window, ...]:
    """One request with its histogram, two engines that drafted before already, and no speculation."""
    return (_one_request(), _two_engines(), _plain())


def _one_request() -> Window:
    """The histogram of a real answer: 39 rounds accepted none of 3 tokens, 1 one, 3 all three."""
    return Window(
        before=look(page(2, (0, 0, 0)), models=MODELS),
        after=look(page(56, (4, 3, 3), drafts=43, drafted=129), models=MODELS, log=log("mtp-3")),
        records=(record(54, histogram=(39, 1, 0, 3)),),
        acceptance=Acceptance(
            decode_tokens=53, rounds=43, drafting_rounds=43, drafted=129, accepted=10, per_position=(4, 3, 3)
        ),
    )


def _two_engines() -> Window:
    before = page(1000, (300, 200), drafts=400, drafted=800) + page(10, (1, 0), drafts=8, drafted=16, engine="1")
    after = page(1500, (420, 280), drafts=600, drafted=1200) + page(112, (31, 20), drafts=58, drafted=116, engine="1")
    return Window(
        before=look(before, models=MODELS),
        after=look(after, models=MODELS),
        records=(record(500), record(102, 1)),
        acceptance=Acceptance(
            decode_tokens=600, rounds=350, drafting_rounds=250, drafted=500, accepted=250, per_position=(150, 100)
        ),
    )


def _plain() -> Window:
    return Window(
        before=look(page(2), models=MODELS),
        after=look(page(102), models=MODELS, log=log("plain")),
        records=(record(60), record(40, 1)),
        acceptance=Acceptance(decode_tokens=98, rounds=98, drafting_rounds=0, drafted=0, accepted=0),
    )
