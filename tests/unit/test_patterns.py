"""What Leadline reads from each of 99 lines that servers, the kernel and systemd write, and what it is used for.

`log_lines.json` holds the lines, `expected.json` what the engines' own code makes of them: facts by `effective`, by the
readers of logs or by the memory law; a failure with its remedy; or a stage of the start, told by what a lack of memory
right after the line would mean. A line that no code reads says why.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from leadline.build import plugin
from leadline.engines.llamacpp import logs as llamacpp_logs
from leadline.engines.sglang import log as sglang_log
from leadline.engines.sglang import memory_log as sglang_memory
from leadline.engines.vllm import loglines as vllm_lines
from leadline.evidence import Effective, Evidence, ExitFacts, Ground, Model, Reply, Seen
from leadline.launch import LaunchSpec

FOLDER = Path(__file__).parents[1] / "golden" / "patterns"
SAMPLES: dict[str, str] = {row["name"]: row["sample"] for row in json.loads((FOLDER / "log_lines.json").read_text())}
EXPECTED: dict[str, dict[str, Any]] = json.loads((FOLDER / "expected.json").read_text())
ENGINES = {"sg": "sglang", "vl": "vllm", "lc": "llamacpp", "tr": "trtllm"}
LAUNCHES = {
    "vllm": LaunchSpec(argv=("vllm", "serve", "m")),
    "trtllm": LaunchSpec(argv=("trtllm-serve", "m")),
}
OOM = {
    "llamacpp": "CUDA error: out of memory",
    "": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
}
UNREAD = {"sg.topk1_adjust", "sg.reset48"}
"""Lines that no decision hangs on. A line that joins them needs a reason in the table."""


def plain(value: Any) -> Any:
    """As JSON would hold it, without what is not told."""
    if isinstance(value, msgspec.Struct):
        value = msgspec.structs.asdict(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        shown = {str(k): plain(v) for k, v in value.items()}
        return {k: v for k, v in shown.items() if v is not None and v != [] and v != {} and v != ""}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return round(value, 4) if isinstance(value, float) else value


def effective(engine: str, log: str) -> Any:
    found: Effective = plugin("engines", engine, "engine").effective(Evidence(log=log))
    return plain(found)


def footprint(engine: str, log: str) -> Any:
    """Of the same launch, foreseen from the log alone."""
    launch = LAUNCHES[engine]
    found = plugin("engines", engine, "engine").memory(launch, Ground(seen=(Seen(launch=launch, log=log),)))
    return {"parts": plain(found.parts), "kv_tokens": found.kv_tokens, "basis": found.basis}


def lines(read: Callable[[str], Any]) -> Callable[[str, str], Any]:
    return lambda engine, log: [plain(found) for line in log.splitlines() if (found := read(line)) is not None]


READERS: dict[str, Callable[[str, str], Any]] = {
    "effective": effective,
    "footprint": footprint,
    "sglang.log": lambda engine, log: {k: v for k, v in plain(sglang_log.read(log)).items() if v},
    "sglang.prefill": lines(sglang_log.prefill_of),
    "sglang.pairs": lambda engine, log: sglang_log.pairs_of(log),
    "sglang.memory": lambda engine, log: plain(sglang_memory.read(log)),
    "vllm.stats": lines(vllm_lines.stats),
    "vllm.drafting": lines(vllm_lines.drafting),
    "llamacpp.finished": lambda engine, log: [
        {k: v for k, v in plain(one).items() if v} for one in llamacpp_logs.finished(log)
    ],
    "llamacpp.drafting": lambda engine, log: plain(llamacpp_logs.drafting(log)),
    "llamacpp.caches": lambda engine, log: plain(llamacpp_logs.caches(log)),
    "llamacpp.states": lambda engine, log: plain(llamacpp_logs.states(log)),
}


def engine_of(name: str, row: Mapping[str, Any]) -> list[str]:
    """A line of the kernel, of systemd or of PyTorch is for every engine that may write it."""
    return list(row.get("engines", [ENGINES.get(name.partition(".")[0], "")]))


def log_of(name: str, row: Mapping[str, Any]) -> str:
    """`in` = the line around the sample, where that is only a piece of one."""
    line = row.get("in", "{}").replace("{}", SAMPLES[name])
    return "\n".join([*row.get("before", []), line])


def said(engine: str, log: str, row: Mapping[str, Any]) -> Any:
    if row.get("alive"):
        replies = {"health": Reply(name="health", status=200)}
        return plugin("engines", engine, "engine").diagnose(Evidence(log=log, replies=replies))
    if row.get("answer"):
        replies = {"health": Reply(name="health", status=row["answer"], body=log.encode())}
        return plugin("engines", engine, "engine").diagnose(Evidence(replies=replies))
    return plugin("engines", engine, "engine").diagnose(Evidence(log=log, exit=ExitFacts(code=1)))


def test_the_table_holds_every_line() -> None:
    assert len(SAMPLES) == 99
    assert list(EXPECTED) == list(SAMPLES)
    told = {"reads", "failure", "oom_after"}
    for name, row in EXPECTED.items():
        assert row["used_for"], name
        assert row["used_for"].startswith("nothing: ") == (name in UNREAD) == (not told & set(row)), name


@pytest.mark.parametrize("name", [n for n, row in EXPECTED.items() if "reads" in row])
def test_facts(name: str) -> None:
    row = EXPECTED[name]
    for engine in engine_of(name, row):
        for reader, facts in row["reads"].items():
            assert READERS[reader](engine, log_of(name, row)) == facts, reader


@pytest.mark.parametrize("name", [n for n, row in EXPECTED.items() if "failure" in row])
def test_failures(name: str) -> None:
    row = EXPECTED[name]
    for engine in engine_of(name, row):
        found = said(engine, log_of(name, row), row)
        assert found.failure == row["failure"], engine
        for words in row["remedy"] if isinstance(row["remedy"], list) else row["remedy"][engine]:
            assert words in found.remedy, engine
        assert "?" not in found.reason, engine
        if "answer" not in row:
            assert found.line.strip()[:60] in log_of(name, row), engine


@pytest.mark.parametrize("name", [n for n, row in EXPECTED.items() if "oom_after" in row])
def test_stages(name: str) -> None:
    row = EXPECTED[name]
    for engine in engine_of(name, row):
        oom = OOM.get(engine, OOM[""])
        found = said(engine, f"{log_of(name, row)}\n{oom}", {})
        assert found.failure == row["oom_after"], engine
        assert said(engine, oom, {}).failure == "device_oom_start", "the line makes the difference"


def test_what_is_free_beside_the_pools_tells_what_was_divided() -> None:
    """Without a line that tells tokens, the memory law takes the memory after loading less that at the pools' end."""
    launch = LaunchSpec(argv=("sglang", "serve", "--model-path", "m", "--mem-fraction-static", "0.8"))
    fields = json.loads((FOLDER.parent / "models" / "qwen3-8b.json").read_text())
    end = SAMPLES["sg.mempool_end"]

    def tokens(*rows: str) -> int:
        log = "\n".join(("Load weight begin. avail mem=79.00 GB", SAMPLES["sg.weights"], *rows))
        ground = Ground(model=Model(name="m", fields=fields), seen=(Seen(launch=launch, log=log),))
        return plugin("engines", "sglang", "engine").at("0.5.16").memory(launch, ground).kv_tokens or 0

    each = 2 * 36 * 8 * 128 * 2
    assert tokens(end) == pytest.approx((61.20 - 7.10) * 2**30 / each, abs=1)
    assert tokens() == pytest.approx((61.20 - 79.00 * 0.2) * 2**30 / each, abs=1), "by the fraction"


def test_a_depth_that_moves_is_not_told_as_one() -> None:
    gauge = {"metrics": Reply(name="metrics", status=200, body=b'sglang:spec_num_steps{tp_rank="0"} 3.0\n')}
    decode = SAMPLES["sg.decode"]
    sglang = plugin("engines", "sglang", "engine")
    assert sglang.effective(Evidence(log=decode, replies=gauge)).depth == 3
    assert sglang.effective(Evidence(log=f"{SAMPLES['sg.adaptive']}\n{decode}", replies=gauge)).depth is None
