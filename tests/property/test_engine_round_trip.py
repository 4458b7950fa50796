"""What an engine renders, it reads back: parse(render(base, s)) == canonical(parse(base) + s), or it says why not.

The bases are the launches of tests/golden/shapes/engines and some plain ones; settings and versions are drawn from a
fixed seed, good and bad ones mixed.
"""

from __future__ import annotations

import json
import random
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from leadline.engines import llamacpp, sglang, trtllm, vllm
from leadline.errors import InputError
from leadline.launch import LaunchFile, LaunchSpec
from leadline.ports import Engine
from leadline.space import Setting, Value

SHAPES = Path(__file__).parents[1] / "golden" / "shapes" / "engines"
SCRATCH = "/run/leadline/trial"
ENOUGH = 300
MOST_TRIES = 4000


@dataclass(frozen=True)
class Subject:
    """`likely` = values that the server would take, by knob; now and then one of `ODD` is drawn instead."""

    engine: Engine
    canonical: Callable[[Setting], Setting]
    commands: tuple[str, ...]
    versions: tuple[str | None, ...]
    methods: Mapping[str, bool]
    likely: Mapping[str, tuple[Value, ...]]


ODD: tuple[Value, ...] = (-1, 0, 1.5, 4.0, True, False, "", "x y", "auto", 10**9, "--port", "'", "é")
SUBJECTS = {
    "sglang": Subject(
        sglang.engine,
        sglang.canonical,
        (
            "python3 -m sglang.launch_server --model-path /m",
            "sglang serve /m --speculative-algorithm EAGLE3 --speculative-draft-model-path /d"
            " --speculative-num-steps 5 --speculative-eagle-topk 4 --speculative-num-draft-tokens 8",
            "nice -n 5 python -m sglang.launch_server --model-path /m --speculative-algorithm NGRAM --max-running=16",
        ),
        (None, "0.5.9", "0.5.11", "0.5.16", "0.5.20"),
        {"EAGLE": False, "NEXTN": False, "EAGLE3": True, "STANDALONE": True, "NGRAM": False, "DFLASH": True},
        {
            "depth": (0, 1, 2, 3, 5, 7, 15),
            "topk": (1, 1, 1, 2, 4),
            "draft_tokens": (4, 6, 8, 16),
            "memory_fraction": (0.5, 0.83, 0.9),
            "max_running": (1, 8, 64, 256),
            "graph_max_batch": (8, 64, 256),
            "kv_dtype": ("auto", "fp8_e5m2", "bf16"),
            "flag:--chunked-prefill-size": (2048, 8192),
            "flag:--disable-radix-cache": (True, False),
            "env:SGLANG_X": ("1", "a b"),
        },
    ),
    "vllm": Subject(
        vllm.engine,
        vllm.canonical,
        (
            "vllm serve /m",
            'vllm serve /m --speculative-config \'{ "num_speculative_tokens" :1,"method": "mtp","revision":"a"}\'',
            "vllm serve /m --spec-method eagle3 --spec-model /d --spec-tokens 3 --gpu_memory_utilization=0.85",
            "python3 -m vllm.entrypoints.openai.api_server --model /m -sc.method ngram"
            " -sc.num_speculative_tokens 4 --max-num-seqs 8 --max-num-seqs 16",
        ),
        (None, "0.11.0", "0.16.0", "0.22.1", "0.33.0"),
        {"mtp": False, "deepseek_mtp": False, "eagle": True, "eagle3": True, "ngram": False, "draft_model": True},
        {
            "depth": (0, 1, 2, 3, 5, 7, 15),
            "memory_fraction": (0.5, 0.83, 0.9, 1),
            "max_running": (1, 8, 64, 256),
            "graph_max_batch": (8, 64, 256),
            "kv_dtype": ("auto", "fp8", "fp8_e4m3"),
            "flag:--max-num-batched-tokens": (4096, 8192),
            "flag:--enable-prefix-caching": (True, False),
            "flag:--compilation-config.cudagraph_mode": ("FULL", "PIECEWISE"),
            "env:VLLM_X": ("1", "a b"),
        },
    ),
    "trtllm": Subject(
        trtllm.engine,
        trtllm.canonical,
        (
            "trtllm-serve /m",
            "trtllm-serve serve /m --max_batch_size=64 --free_gpu_memory_fraction 0.7",
            "mpirun -n 8 trtllm-llmapi-launch trtllm-serve /m --backend pytorch --trust_remote_code",
        ),
        (None, "1.1.0", "1.2.0", "1.3.0rc9"),
        {"MTP": False, "NGram": False, "SA": False, "Eagle": True, "Eagle3": True, "Draft_Target": True},
        {
            "depth": (0, 1, 2, 3, 5, 7, 15),
            "topk": (1, 1, 1, 2, 4),
            "draft_tokens": (4, 6, 8, 16),
            "memory_fraction": (0.5, 0.83, 0.9),
            "max_running": (1, 8, 64, 256),
            "graph_max_batch": (0, 8, 64, 256),
            "kv_dtype": ("auto", "fp8"),
            "flag:--max_num_tokens": (4096, 8192),
            "flag:--enable_chunked_prefill": (True, False),
            "env:TRTLLM_X": ("1", "a b"),
        },
    ),
    "llamacpp": Subject(
        llamacpp.engine,
        llamacpp.canonical,
        (
            "llama-server -m m.gguf",
            "llama-server -m m.gguf --spec-type ngram-simple --spec-ngram-simple-size-m 6 -np 2 --port 9000",
            "/opt/llama-server --spec-type draft-simple -md d.gguf -np 4 -m m.gguf -np 8 -ctk q8_0 --no-slots",
            "env LLAMA_ARG_PORT=81 llama-server --host 0.0.0.0 -m m.gguf --spec-default",
        ),
        (None, "version: 9000 (abc)", "version: 10500 (abc)"),
        {"draft-simple": True, "draft-mtp": False, "ngram-simple": False, "ngram-mod": False, "ngram-map-k": False},
        {
            "depth": (0, 1, 2, 3, 5, 7, 15),
            "max_running": (1, 2, 8, 64),
            "kv_dtype": ("f16", "q8_0", "q8_0/f16"),
            "flag:--threads": (2, 8),
            "flag:--mlock": (True, False),
            "env:OMP_NUM_THREADS": ("2",),
        },
    ),
}


def text(word: str | list[str]) -> str:
    return word if isinstance(word, str) else "\n".join(word)


def bases(name: str) -> list[LaunchSpec]:
    rows: list[dict[str, Any]] = json.loads((SHAPES / f"{name}.json").read_text())
    shapes = [
        LaunchSpec(
            argv=tuple(map(text, row["argv"])),
            env=tuple(row.get("env", {}).items()),
            files=tuple(LaunchFile(path, text(content)) for path, content in row.get("files", {}).items()),
            scratch=SCRATCH,
        )
        for row in rows
        if "after" in row
    ]
    plain = [LaunchSpec(argv=tuple(shlex.split(c)), scratch=SCRATCH) for c in SUBJECTS[name].commands]
    return [*plain * 3, *shapes]


def drawn(rng: random.Random, subject: Subject) -> Setting:
    """Half of the settings name a method, with a draft model where it needs one; one value in thirty is odd."""
    names = [n for n in subject.likely if rng.random() < (0.8 if n == "depth" else 0.25)]
    values: dict[str, Value] = {n: rng.choice(subject.likely[n]) for n in names}
    if rng.random() < 0.5:
        method = rng.choice(list(subject.methods))
        values["spec_method"] = method
        if subject.methods[method] or rng.random() < 0.1:
            values["draft_model"] = rng.choice(("/models/draft", "org/head"))
    return Setting.of({n: rng.choice(ODD) if rng.random() < 1 / 30 else v for n, v in values.items()})


@pytest.mark.parametrize("name", SUBJECTS)
def test_what_is_rendered_reads_back(name: str) -> None:
    subject, rng = SUBJECTS[name], random.Random(f"round trip of {name}")
    launches = bases(name)
    rendered, reasons = 0, list[str]()
    for _ in range(MOST_TRIES):
        if rendered == ENOUGH:
            break
        engine = subject.engine.at(rng.choice(subject.versions))
        base, setting = rng.choice(launches), drawn(rng, subject)
        try:
            before = engine.parse(base)
            after = engine.render(base, setting)
        except InputError as why:
            reasons.append(str(why))
            continue
        rendered += 1
        check(subject, engine, before, setting, after)
    assert rendered == ENOUGH
    assert len(reasons) > 20  # the odd ones
    assert all(len(reason.split()) > 4 for reason in reasons)


def check(subject: Subject, engine: Engine, before: Setting, setting: Setting, after: LaunchSpec) -> None:
    knobs = Setting(tuple((n, v) for n, v in setting if ":" not in n))
    found = engine.parse(after)
    assert found == subject.canonical(before.merged(knobs)), (before, setting, after)
    full = subject.canonical(before.merged(setting))
    for name, value in full:
        if ":" in name:
            assert engine.value(after, name) in as_read(name, value), (name, value, after)
    assert engine.render(after, full) == after, (before, setting, after)


def as_read(name: str, value: Value) -> tuple[Value | None, ...]:
    """A variable is text; a bare flag that is off is not there, or is there as its opposite."""
    if name.startswith("env:"):
        return (str(value).lower() if isinstance(value, bool) else str(value),)
    return (value, None) if value is False else (value,)
