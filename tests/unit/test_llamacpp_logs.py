"""Numbers out of llama-server's log: lines of build 11434, and older shapes that people have posted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leadline.engines.llamacpp import engine, logs
from leadline.evidence import Evidence

SAMPLES = {
    row["name"]: row["sample"]
    for row in json.loads((Path(__file__).parents[1] / "golden" / "patterns" / "log_lines.json").read_text())
    if row["name"].startswith("lc.")
}
MIB = 1 << 20


def test_a_request_line_by_line() -> None:
    told = [SAMPLES[f"lc.{name}"] for name in ("prompt", "eval", "accept", "accpos")]
    assert list(logs.finished("\n".join(told))) == [
        logs.Finished(
            prompt_tokens=512,
            prompt_ms=123.4,
            tokens=256,
            decode_ms=5123.4,
            drafted=297,
            accepted=171,
            length=2.34,
            per_position=(0.9, 0.7, 0.4),
        )
    ]


def test_two_requests_are_two() -> None:
    one = [SAMPLES["lc.prompt"], SAMPLES["lc.eval"]]
    assert [r.drafted for r in logs.finished("\n".join([*one, SAMPLES["lc.accept"], "something else", *one]))] == [
        297,
        0,
    ]
    assert [r.tokens for r in logs.finished(SAMPLES["lc.eval"])] == [256], "the log may begin within a request"


@pytest.mark.parametrize(
    ("line", "accepted", "drafted", "length", "positions"),
    [
        (
            "draft acceptance = 0.64479 (  167 accepted /   259 generated), mean acceptance length =  2.92, "
            "acceptance rate per position = (0.805, 0.632, 0.483)",
            167,
            259,
            2.92,
            (0.805, 0.632, 0.483),
        ),
        ("draft acceptance rate = 0.69811 (  111 accepted /   159 generated)", 111, 159, None, ()),
    ],
)
def test_older_shapes(
    line: str, accepted: int, drafted: int, length: float | None, positions: tuple[float, ...]
) -> None:
    (one,) = logs.finished(line)
    assert (one.accepted, one.drafted, one.length, one.per_position) == (accepted, drafted, length, positions)


def test_statistics() -> None:
    assert logs.drafting(SAMPLES["lc.stats"]) == logs.Drafting(drafts=100, drafted=300, accepted=171)
    posted = (
        "statistics draft-eagle3: #calls(b,g,a) = 1 87 87, #gen drafts = 87, #acc drafts = 70, #gen tokens = 259, "
        "#acc tokens = 167, #mean acc len = 2.92"
    )
    told = logs.drafting(posted)
    assert told is not None
    assert told.length == pytest.approx(2.92, abs=0.005)
    both = logs.drafting(f"{posted}\n{SAMPLES['lc.stats']}\n{posted.replace('167', '200')}")
    assert both == logs.Drafting(drafts=187, drafted=559, accepted=371), "the last line of each method, added up"
    assert logs.drafting("no statistics") is None


def test_slots_and_buffers() -> None:
    assert logs.slots(SAMPLES["lc.init"]) == logs.Slots(4, 32768, unified=True)
    assert engine.effective(Evidence(log=SAMPLES["lc.init"])).kv_tokens == 32768
    assert logs.caches(SAMPLES["lc.kv"]) == [logs.Cache(512 * MIB, 4096, 32, ("f16", "f16"))]
    assert logs.states(SAMPLES["lc.rs"]) == [logs.States(round(1020.5 * MIB), 16, 4, 3)]
    assert logs.buffers("load_tensors:  MTL0_Mapped model buffer size =  4096.50 MiB") == [
        logs.Buffer("MTL0", "model", round(4096.5 * MIB))
    ]


@pytest.mark.parametrize(
    ("device", "on_host"),
    [("CPU_Mapped", True), ("CPU", True), ("AMX", True), ("CUDA_Host", True), ("CUDA0", False), ("Vulkan1", False)],
)
def test_whose_memory_a_buffer_is(device: str, on_host: bool) -> None:
    (one,) = logs.buffers(f"x: {device} compute buffer size = 1.00 MiB")
    assert one.on_host is on_host


def test_the_lines_that_say_it_is_up() -> None:
    for name in ("lc.ready", "lc.loaded"):
        oom = "CUDA error: out of memory"
        early = engine.diagnose(Evidence(log=f"{oom}\n{SAMPLES[name]}"))
        late = engine.diagnose(Evidence(log=f"{SAMPLES[name]}\n{oom}"))
        assert (early.failure, late.failure) == ("unknown", "device_oom_under_load")


def test_what_was_free() -> None:
    line = "using device Vulkan0 (NVIDIA GeForce GTX 1660 SUPER (NVK TU116)) (0000:29:00.0) - 5755 MiB free"
    assert logs.free_bytes(line) == {"Vulkan0": 5755 * MIB}


@given(st.lists(st.sampled_from(sorted(SAMPLES.values())) | st.text(max_size=40), max_size=12), st.integers(0, 9))
@settings(max_examples=200, deadline=None)
def test_any_text_is_read(lines: list[str], cut: int) -> None:
    log = "\n".join(line[cut:] for line in lines)
    for one in logs.finished(log):
        assert min(one.tokens, one.drafted, one.accepted) >= 0
    assert all(b.size >= 0 for b in logs.buffers(log))
    (
        logs.slots(log),
        logs.caches(log),
        logs.states(log),
        logs.free_bytes(log),
        logs.drafting(log),
        logs.clamped_depth(log),
    )
