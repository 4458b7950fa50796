"""vLLM's and TensorRT-LLM's memory laws: from logs exact, from config.json with what is not known left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leadline.dialect.modelshape import shape_of
from leadline.engines.trtllm.memory import footprint as trtllm
from leadline.engines.vllm.memory import footprint as vllm
from leadline.evidence import Device, Ground, Model, Seen, Verdict
from leadline.launch import LaunchFile, LaunchSpec

GOLDEN = Path(__file__).parents[1] / "golden"
GIB = 1 << 30
H200 = Device(name="NVIDIA H200", total_bytes=143771 << 20)
LOG = """
(EngineCore pid=4321) INFO 11-30 12:00:00 [gpu_model_runner.py:310] Model loading took 15.27 GiB memory and 4.25 seconds
(EngineCore pid=4321) INFO 11-30 12:00:00 [gpu_worker.py:300] Available KV cache memory: {gib} GiB
(EngineCore pid=4321) INFO 11-30 12:00:00 [kv_cache_utils.py:1147] GPU KV cache size: {tokens} tokens, Maximum \
concurrency for 32,768 tokens per request: 22.22x
(EngineCore pid=4321) INFO 11-30 12:00:00 [gpu_model_runner.py:4000] Graph capturing finished in 17 secs, took 0.63 GiB
"""


def model(name: str) -> Model:
    return Model(name=name, fields=json.loads((GOLDEN / "models" / f"{name}.json").read_text()))


def serve(*more: str, spec: dict[str, Any] | None = None) -> tuple[str, ...]:
    config = ("--speculative-config", json.dumps(spec)) if spec else ()
    return ("vllm", "serve", "m", "--max-model-len", "32768", "--max-num-seqs", "64", *more, *config)


def run(argv: tuple[str, ...], name: str = "qwen3-8b", draft: str | None = None, **ground: Any):
    known = Ground(model=model(name), draft=model(draft) if draft else None, **ground)
    return vllm(LaunchSpec(argv=argv), known, "0.33.0")


def seen(argv: tuple[str, ...], gib: float = 100.0, tokens: str = "728,160") -> tuple[Seen, ...]:
    return (Seen(launch=LaunchSpec(argv=argv), log=LOG.format(gib=gib, tokens=tokens)),)


EAGLE = {"method": "eagle3", "model": "d", "num_speculative_tokens": 3}


def test_vllm_the_same_launch_gives_the_logged_tokens():
    found = run(serve(), seen=seen(serve()))
    assert found.kv_tokens == pytest.approx(728_160, abs=1)
    assert (found.max_running, found.asked_running, found.verdict) == (64, 64, Verdict.FITS)
    assert found.parts["weights"] == pytest.approx(15.27 * GIB, abs=1)
    assert found.parts["graphs"] == pytest.approx(0.63 * GIB, abs=1)
    assert found.basis == "the log of an earlier launch"
    assert found.error_frac is None


def test_vllm_another_utilisation_moves_the_pool_by_the_device():
    base = run(serve(), seen=seen(serve()), device=H200)
    lower = run(serve("--gpu-memory-utilization", "0.82"), seen=seen(serve()), device=H200)
    assert base.parts["KV pool"] - lower.parts["KV pool"] == pytest.approx(0.1 * 139.27 * GIB, rel=0.001)
    assert run(serve("--gpu-memory-utilization", "0.82"), seen=seen(serve())).verdict is Verdict.UNKNOWN


def test_vllm_depth_alone_costs_a_dense_model_no_tokens():
    then = serve(spec=EAGLE)
    deeper = serve(spec={**EAGLE, "num_speculative_tokens": 7})
    draft = "qwen3-8b-vocab49152-eagle3"
    assert run(deeper, draft=draft, seen=seen(then)).kv_tokens == pytest.approx(728_160, abs=1)


def test_vllm_a_draft_costs_its_weights_and_its_own_layers():
    found = run(serve(spec=EAGLE), draft="qwen3-8b-vocab49152-eagle3", seen=seen(serve()))
    draft = shape_of(model("qwen3-8b-vocab49152-eagle3").fields)
    assert draft is not None
    left = 100 * GIB - (draft.weight_bytes(1) or 0)
    assert found.kv_tokens == pytest.approx(left / (147456 + 4096), rel=1e-4)
    assert run(serve(spec=EAGLE), seen=seen(serve())).verdict is Verdict.UNKNOWN  # which draft?


def test_vllm_ngram_costs_nothing():
    spec = {"method": "ngram", "num_speculative_tokens": 5}
    assert run(serve(spec=spec), seen=seen(serve())).kv_tokens == pytest.approx(728_160, abs=1)


def test_vllm_a_hybrid_pays_a_state_for_each_draft_token():
    spec = {"method": "mtp", "num_speculative_tokens": 2}
    one, five = (run(serve(spec={**spec, "num_speculative_tokens": n}), "qwen3.5-4b", device=H200) for n in (1, 5))
    pools = [f.parts["KV pool"] for f in (one, five)]
    each = [p / (f.kv_tokens or 1) for p, f in zip(pools, (one, five), strict=True)]
    assert (each[1] - each[0]) * 32768 == pytest.approx(4 * 51_511_296, rel=0.01)


def test_vllm_from_config_alone_says_that_activations_are_estimated():
    found = run(serve(), device=H200)
    assert found.verdict is Verdict.FITS
    assert "estimated" in found.basis
    assert found.error_frac is None
    assert sum(found.parts.values()) == pytest.approx(H200.total_bytes, rel=0.001)
    assert list(found.parts)[:2] == ["driver", "weights"]


def test_vllm_refuses_what_does_not_hold_one_request_of_its_length():
    found = run(serve(), seen=seen(serve(), gib=4.0, tokens="29,126"))
    assert found.verdict is Verdict.WILL_NOT_START
    assert "32,768" in found.reason
    fits = run((*serve(), "--max-model-len", "auto"), seen=seen(serve(), gib=4.0, tokens="29,126"))
    assert fits.verdict is Verdict.STARVED
    less = run(serve("--gpu-memory-utilization", "0.1"), seen=seen(serve(), gib=4.0, tokens="29,126"), device=H200)
    assert less.verdict is Verdict.WILL_NOT_START
    assert less.kv_tokens == 0
    assert "no memory" in less.reason


def test_vllm_given_bytes_overrule_the_utilisation():
    found = run(serve("--kv-cache-memory-bytes", "10G"), device=H200)
    assert found.kv_tokens == 10 * GIB // 147456
    assert run(serve("--kv-cache-memory-bytes", "10g"), device=H200).kv_tokens == 10**10 // 147456


def test_vllm_speculation_in_every_spelling():
    spelled = [
        serve(spec=EAGLE),
        serve("-sc", json.dumps(EAGLE)),
        serve(
            *("--speculative-config.method", "eagle3", "--speculative-config.model=d"),
            *("--speculative_config.num_speculative_tokens", "3"),
        ),
        serve("--spec-method", "eagle3", "--spec-model", "d", "--spec-tokens", "3"),
    ]
    found = {run(a, draft="qwen3-8b-vocab49152-eagle3", device=H200).kv_tokens for a in spelled}
    assert len(found) == 1
    assert found != {run(serve(), device=H200).kv_tokens}


def test_vllm_guesses_nothing():
    launch = LaunchSpec(argv=serve())
    blank = vllm(launch, Ground(), None)
    assert blank.verdict is Verdict.UNKNOWN
    assert blank.kv_tokens is None
    assert not blank.parts
    assert vllm(launch, Ground(model=model("qwen3-8b")), None).verdict is Verdict.UNKNOWN
    only_log = vllm(launch, Ground(seen=seen(serve())), None)
    assert only_log.verdict is Verdict.UNKNOWN or only_log.kv_tokens == pytest.approx(728_160, abs=1)


# --- TensorRT-LLM

PEAK = (
    "[TRT-LLM] [I] Peak memory during memory usage profiling (torch + non-torch): 91.46 GiB, available KV cache memory "
    "when calculating max tokens: 41.11 GiB, fraction is set 0.85, kv size is {each}. device total memory 139.81 GiB\n"
)


def trt(config: str = "", *more: str) -> LaunchSpec:
    files = (LaunchFile(path="x.yaml", content=config),) if config else ()
    return LaunchSpec(argv=("trtllm-serve", "m", "--config", "x.yaml", *more), files=files)


def trt_seen(each: int) -> tuple[Seen, ...]:
    return (Seen(launch=LaunchSpec(argv=("trtllm-serve", "m", "--config", "x.yaml")), log=PEAK.format(each=each)),)


def test_trtllm_the_fraction_scales_what_was_left():
    ground = Ground(seen=trt_seen(35136))
    same = trtllm(trt("kv_cache_config:\n  free_gpu_memory_fraction: 0.85\n"), ground, None)
    assert same.kv_tokens == int(41.11 * GIB / 35136)
    less = trtllm(trt("", "--kv_cache_free_gpu_memory_fraction", "0.425"), ground, None)
    assert less.kv_tokens == pytest.approx((same.kv_tokens or 0) / 2, abs=1)
    assert same.parts["weights and activations"] == pytest.approx(91.46 * GIB, abs=1)
    assert sum(same.parts.values()) == pytest.approx(139.82 * GIB, rel=0.001)


def test_trtllm_a_draft_that_the_earlier_launch_did_not_have():
    ground = Ground(model=model("qwen3-8b"), draft=model("qwen3-8b-vocab49152-eagle3"), seen=trt_seen(147456))
    config = "max_batch_size: 64\nspeculative_config: {decoding_type: Eagle3, max_draft_len: 3}\n"
    found = trtllm(trt(config, "--free_gpu_memory_fraction", "0.85"), ground, None)
    left = (41.11 / 0.85 * GIB - 1_201_701_376) * 0.85
    assert found.kv_tokens == pytest.approx(left / (147456 + 4096), rel=1e-4)
    assert (found.asked_running, found.max_running) == (64, 64)


def test_trtllm_other_blocks_of_the_file_do_not_count():
    config = (
        "max_batch_size: 64\ncuda_graph_config:\n  max_batch_size: 8\n"
        "kv_cache_config: {dtype: fp8, free_gpu_memory_fraction: 0.85, max_tokens: 1000}\ndtype: bfloat16\n"
    )
    found = trtllm(trt(config), Ground(model=model("qwen3-8b"), device=H200), None)
    assert found.asked_running == 64
    assert (found.kv_tokens, found.parts["KV pool"]) == (1000, 1000 * 147456 // 2)


def test_vllm_reads_its_config_file_and_the_command_line_wins():
    file = LaunchFile(path="v.yaml", content="max-num-seqs: 8\nkv-cache-dtype: fp8\nmax_model_len: 4096\n")
    argv = ("vllm", "serve", "m", "--config", "v.yaml", "--max-num-seqs", "16")
    found = vllm(LaunchSpec(argv=argv, files=(file,)), Ground(model=model("qwen3-8b"), device=H200), None)
    assert found.asked_running == 16
    assert found.parts["KV pool"] / (found.kv_tokens or 1) == pytest.approx(147456 / 2, rel=1e-4)


def test_vllm_the_log_of_another_model_is_not_used():
    other = ("vllm", "serve", "other")
    assert run(serve(), seen=seen(other)).verdict is Verdict.UNKNOWN


def test_trtllm_an_earlier_launch_of_another_kind_is_not_used():
    ground = Ground(model=model("qwen3-8b"), seen=trt_seen(35136))
    assert trtllm(trt(), ground, None).verdict is Verdict.UNKNOWN


def test_trtllm_from_config_and_what_does_not_fit():
    found = trtllm(trt("max_batch_size: 8"), Ground(model=model("qwen3-8b"), device=H200), None)
    assert found.verdict is Verdict.FITS
    assert "not subtracted" in found.basis
    large = trtllm(trt(), Ground(model=model("deepseek-v3"), device=H200), None)
    assert large.verdict is Verdict.WILL_NOT_START
    assert large.kv_tokens == 0
    assert trtllm(trt(), Ground(), None).verdict is Verdict.UNKNOWN


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=200), argv=st.lists(st.text(max_size=12), max_size=10))
def test_any_words_and_logs_are_read(text, argv):
    earlier = (Seen(launch=LaunchSpec(argv=tuple(argv)), log=text),)
    for law in (vllm, trtllm):
        law(LaunchSpec(argv=tuple(argv)), Ground(model=model("qwen3-8b"), device=H200, seen=earlier), None)
