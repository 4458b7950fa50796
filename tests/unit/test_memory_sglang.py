"""SGLang's memory law against public launches: a GH200 and 3090s from repositories, an H200 from its logs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leadline.dialect.footprint import words_of
from leadline.dialect.modelshape import Shape, shape_of
from leadline.engines.sglang.memory import footprint
from leadline.engines.sglang.memory_log import read
from leadline.engines.sglang.memory_pools import ask_of, default_fraction, pools, rest_for, version_of
from leadline.evidence import Device, Footprint, Ground, Model, Seen, Verdict
from leadline.launch import LaunchSpec

GOLDEN = Path(__file__).parents[1] / "golden"
GIB = 1 << 30
H200 = Device(name="NVIDIA H200", total_bytes=143771 << 20)
GH200 = Device(name="NVIDIA GH200 480GB", total_bytes=97871 << 20)
DENSE, SPARSE = "qwen3-8b-vocab49152", "qwen3-30b-a3b-vocab49152"


def model(name: str) -> Model:
    return Model(name=name, fields=json.loads((GOLDEN / "models" / f"{name}.json").read_text()))


def log_of(name: str) -> str:
    return (GOLDEN / "memory" / f"sglang-0.5.16-{name}.log").read_text()


def shape_named(name: str) -> Shape:
    found = shape_of(model(name).fields)
    assert found is not None
    return found


# --- an H200, from its logs: Qwen3-8B and Qwen3-30B-A3B (dummy weights, vocabulary 49,152), EAGLE-3, SGLang 0.5.16

LOGS = {
    (SPARSE, 0): ("qwen3-30b-a3b-eagle3-steps0", 526_130),
    (SPARSE, 1): ("qwen3-30b-a3b-eagle3-steps1", 509_729),
    (SPARSE, 2): ("qwen3-30b-a3b-eagle3-steps2", 509_729),
    (SPARSE, 3): ("qwen3-30b-a3b-eagle3-steps3", 509_729),
    (SPARSE, 5): ("qwen3-30b-a3b-eagle3-steps5", 509_729),
    (DENSE, 0): ("qwen3-8b-plain", 507_595),
    (DENSE, 3): ("qwen3-8b-eagle3-steps3-cap48", 483_954),
}
MORE = {
    SPARSE: ("--mem-fraction-static=0.75", "--cuda-graph-max-bs-decode", "64", "--max-running-requests", "128"),
    DENSE: ("--mem-fraction-static", "0.6", "--cuda-graph-max-bs", "8"),
}


def h200_argv(name: str, depth: int) -> tuple[str, ...]:
    spec = (
        *("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", f"{name}-eagle3"),
        *("--speculative-num-steps", str(depth), "--speculative-eagle-topk", "1"),
        *("--speculative-num-draft-tokens", str(depth + 1)),
    )
    return ("python3", "-m", "sglang.launch_server", "--model-path", name, *MORE[name], *(spec if depth else ()))


def h200(name: str, depth: int, *seen: int) -> Footprint:
    earlier = tuple(Seen(launch=LaunchSpec(argv=h200_argv(name, d)), log=log_of(LOGS[name, d][0])) for d in seen)
    ground = Ground(model=model(name), draft=model(f"{name}-eagle3"), device=H200, seen=earlier)
    return footprint(LaunchSpec(argv=h200_argv(name, depth)), ground, "0.5.16")


def off(found: Footprint, tokens: int) -> float:
    return (found.kv_tokens or 0) / tokens - 1


@pytest.mark.parametrize(("name", "depth"), LOGS)
def test_h200_tokens_from_config_and_device_alone(name, depth):
    tokens = LOGS[name, depth][1]
    found = h200(name, depth)
    error = off(found, tokens)
    assert abs(error) <= 0.01, f"{name} depth {depth}: {found.kv_tokens} against {tokens}: {error:+.3%}"
    assert found.error_frac is not None
    assert abs(error) <= found.error_frac


@pytest.mark.parametrize(
    ("name", "seen", "depth", "most"),
    [
        (SPARSE, 0, 3, 0.002),  # the plain launch foretells the speculative one
        (SPARSE, 3, 0, 0.001),  # and the reverse
        (DENSE, 0, 3, 0.005),  # 0.41 %: 0.5.16 still holds a second copy of the draft's MLP
        (DENSE, 3, 0, 0.001),
        (SPARSE, 1, 5, 0.0),
        (SPARSE, 5, 2, 0.0),
        (DENSE, 3, 3, 0.0),
    ],
)
def test_h200_tokens_from_one_earlier_launch(name, seen, depth, most):
    tokens = LOGS[name, depth][1]
    found = h200(name, depth, seen)
    error = off(found, tokens)
    assert abs(error) <= most, f"{name} from depth {seen} to {depth}: {found.kv_tokens}, {tokens}: {error:+.4%}"
    assert found.verdict is Verdict.FITS
    assert found.error_frac is not None
    assert abs(error) <= found.error_frac


def test_h200_graphs_grow_with_tokens_a_request():
    logged = {1: 0.29, 2: 0.48, 3: 0.60, 5: 0.91}
    by_line = {d: h200(SPARSE, d, 1, 5).parts["graphs"] / GIB for d in logged}
    by_one = {d: h200(SPARSE, d, 3).parts["graphs"] / GIB for d in logged}
    assert by_line == pytest.approx(logged, abs=0.04), f"{by_line} against {logged}"
    assert by_one == pytest.approx(logged, abs=0.04), f"{by_one} against {logged}"


def test_prefill_graphs_do_not_grow_with_depth():
    """8B: target and draft prefill took 1.94 + 1.46 GiB, the rest 0.21 at 4 tokens a request."""
    parts = {d: h200(DENSE, d, 3).parts["graphs"] / GIB for d in (3, 7)}
    assert parts == pytest.approx({3: 3.61, 7: 3.82}, abs=0.01)


def test_h200_parts_add_up_to_the_device():
    for found in (h200(SPARSE, 3), h200(SPARSE, 3, 3), h200(DENSE, 3, 3)):
        assert sum(found.parts.values()) / H200.total_bytes == pytest.approx(1, abs=0.002)
    assert list(h200(SPARSE, 3, 3).parts) == [
        *("driver and context", "weights", "draft weights", "KV pool", "draft KV pool", "graphs", "reserve left")
    ]
    assert h200(SPARSE, 3, 3).parts["draft KV pool"] / GIB == pytest.approx(0.97, abs=0.02)  # K 0.49 + V 0.49


def test_h200_requests():
    assert (h200(DENSE, 3).asked_running, h200(DENSE, 3).max_running) == (48, 48)  # reset to 48
    assert (h200(DENSE, 0, 0).asked_running, h200(DENSE, 0, 0).max_running) == (None, 4096)
    assert h200(SPARSE, 3).max_running == 128


def test_a_draft_that_only_the_log_knows():
    seen = Seen(launch=LaunchSpec(argv=h200_argv(SPARSE, 3)), log=log_of(LOGS[SPARSE, 3][0]))
    ground = Ground(model=model(SPARSE), device=H200, seen=(seen,))
    found = footprint(LaunchSpec(argv=h200_argv(SPARSE, 5)), ground, "0.5.16")
    assert found.kv_tokens == pytest.approx(509_729, rel=0.001)
    blind = Ground(model=model(SPARSE), device=H200)
    assert footprint(LaunchSpec(argv=h200_argv(SPARSE, 5)), blind, "0.5.16").verdict is Verdict.UNKNOWN


def test_too_low_a_fraction_will_not_start_and_names_one_that_would():
    argv = ("python3", "-m", "sglang.launch_server", "--model-path", DENSE, "--mem-fraction-static", "0.05")
    found = footprint(LaunchSpec(argv=argv), Ground(model=model(DENSE), device=H200), "0.5.16")
    assert found.verdict is Verdict.WILL_NOT_START
    assert "above 0.099" in found.reason
    seen = Seen(launch=LaunchSpec(argv=h200_argv(DENSE, 0)), log=log_of(LOGS[DENSE, 0][0]))
    found = footprint(LaunchSpec(argv=argv), Ground(model=model(DENSE), device=H200, seen=(seen,)), "0.5.16")
    assert found.verdict is Verdict.WILL_NOT_START
    assert found.kv_tokens == 0


def test_a_launch_that_failed_still_tells_its_weights():
    argv = h200_argv(DENSE, 0)
    failed = Seen(launch=LaunchSpec(argv=argv), log="\n".join(log_of(LOGS[DENSE, 0][0]).splitlines()[:3]))
    found = footprint(LaunchSpec(argv=argv), Ground(model=model(DENSE), seen=(failed,)), "0.5.16")
    assert off(found, 507_595) == pytest.approx(0, abs=0.001)


def test_just_short_is_not_called_certain():
    """`error_frac` of a pool near nothing is large, and the verdict says so."""
    weights = shape_named(DENSE).weight_bytes(1) or 0
    least = 1 - (138.57 - weights / GIB) / 138.57
    argv = (*h200_argv(DENSE, 0)[:5], "--mem-fraction-static", f"{least - 0.002:.4f}")
    found = footprint(LaunchSpec(argv=argv), Ground(model=model(DENSE), device=H200), None)
    assert found.verdict is Verdict.UNKNOWN
    assert "only just" in found.reason


def test_graphs_beyond_the_reserve_will_not_start():
    argv = tuple("--mem-fraction-static=0.996" if w.startswith("--mem") else w for w in h200_argv(SPARSE, 5))
    seen = Seen(launch=LaunchSpec(argv=h200_argv(SPARSE, 3)), log=log_of(LOGS[SPARSE, 3][0]))
    ground = Ground(model=model(SPARSE), draft=model(f"{SPARSE}-eagle3"), device=H200, seen=(seen,))
    found = footprint(LaunchSpec(argv=argv), ground, "0.5.16")
    assert found.verdict is Verdict.WILL_NOT_START, found.reason
    assert "graphs" in found.reason


# --- one GH200 (github.com/SamMausberg/verified-progress, evidence/bench/tuning/launches.csv): Qwen3.5-4B, NEXTN
#     without a draft path, SGLang 0.5.21.dev861, fraction 0.85, 128 requests


def gh200_argv(depth: int, *more: str, slots: int | None = 640, running: int | None = 128) -> tuple[str, ...]:
    argv = ["python", "-m", "sglang.launch_server", "--model-path", "Qwen/Qwen3.5-4B", "--mem-fraction-static", "0.85"]
    argv += ["--max-running-requests", str(running)] if running else []
    argv += ["--max-mamba-cache-size", str(slots)] if slots else []
    if depth:
        argv += ["--speculative-algorithm", "NEXTN", "--speculative-num-steps", str(depth)]
        argv += ["--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", str(depth + 1)]
    return (*argv, *more)


RADIX_OFF, REPLAY = ("--disable-radix-cache",), ("--enable-linear-replayssm-spec",)
LAUNCHES = [
    (gh200_argv(0), 1_317_073),
    (gh200_argv(0, *RADIX_OFF, slots=128), 2_121_910),
    (gh200_argv(2), 662_552),
    (gh200_argv(3), 459_771),
    (gh200_argv(4), 256_942),
    (gh200_argv(5), 54_077),
    (gh200_argv(3, *RADIX_OFF, slots=128), 1_264_634),
    (gh200_argv(5, *RADIX_OFF, slots=128), 858_971),
    (gh200_argv(7, *RADIX_OFF, slots=128), 453_476),
    (gh200_argv(3, *REPLAY), 1_233_587),
    (gh200_argv(5, *REPLAY), 1_233_565),
    (gh200_argv(3, *REPLAY, *RADIX_OFF, slots=128), 2_038_250),
]


def capacity(tokens: int) -> str:
    return f"max_total_num_tokens={tokens}, chunked_prefill_size=8192, max_prefill_tokens=16384"


def gh200(argv: tuple[str, ...], *seen: int, device: Device | None = None) -> Footprint:
    earlier = tuple(Seen(launch=LaunchSpec(argv=LAUNCHES[i][0]), log=capacity(LAUNCHES[i][1])) for i in seen)
    ground = Ground(model=model("qwen3.5-4b"), device=device, seen=earlier)
    return footprint(LaunchSpec(argv=argv), ground, "0.5.21.dev861+gbd66ce343")


@pytest.mark.parametrize("seen", range(len(LAUNCHES)))
def test_gh200_every_launch_foretells_every_other(seen):
    """In bytes, since the pools that are left differ by a factor of 40."""
    errors = {i: ((gh200(a, seen).kv_tokens or 0) - t) * 32768 / GIB for i, (a, t) in enumerate(LAUNCHES)}
    assert max(map(abs, errors.values())) <= 0.0065, f"GiB off, from launch {seen}: {errors}"


def test_gh200_slope_and_the_step_that_will_not_start():
    series = {d: gh200(gh200_argv(d), 2) for d in (2, 3, 4, 5)}
    steps = [(series[d].kv_tokens or 0) - (series[d + 1].kv_tokens or 0) for d in (2, 3, 4)]
    assert steps == pytest.approx([202_788] * 3, rel=0.001), steps
    assert [s.kv_tokens for s in series.values()] == pytest.approx([662_552, 459_771, 256_942, 54_077], rel=0.0025)
    assert [s.verdict for s in series.values()] == [Verdict.FITS] * 3 + [Verdict.STARVED]
    assert "423 KV tokens for each of 128 requests" in series[5].reason
    sixth = gh200(gh200_argv(6), 2)
    assert sixth.verdict is Verdict.WILL_NOT_START
    assert "4.53 GiB short" in sixth.reason
    assert sixth.kv_tokens == 0
    assert sixth.parts["intermediate states"] == 129 * 7 * 51_511_296


def test_gh200_from_config_and_device_alone():
    errors = {i: ((gh200(a, device=GH200).kv_tokens or 0) - t) * 32768 / GIB for i, (a, t) in enumerate(LAUNCHES)}
    assert max(map(abs, errors.values())) <= 0.51, f"GiB off: {errors}"
    assert off(gh200(LAUNCHES[0][0], device=GH200), LAUNCHES[0][1]) <= 0.013
    assert gh200(gh200_argv(6), device=GH200).verdict is Verdict.WILL_NOT_START


def test_a_vision_tower_keeps_100_mib_back():
    """`mm_runtime_reservation_gb`; a server of text alone does not."""
    both = [gh200((*gh200_argv(3), *flag), device=GH200) for flag in ((), ("--language-only",))]
    assert ((both[1].kv_tokens or 0) - (both[0].kv_tokens or 0)) * 32768 == pytest.approx(100 << 20, abs=32768)


def test_gh200_draft_weights_are_the_prediction_layer_with_its_copy_of_the_embedding():
    """Tied: one copy. The plain launch left 1,513 MB more to divide than those with a draft."""
    state = 51_511_296
    plain, drafted = 1_317_073 * 32768 + 641 * state, 662_552 * 32768 + 641 * state + 129 * 3 * state
    assert shape_named("qwen3.5-4b").mtp_bytes(1) == pytest.approx(plain - drafted, rel=0.001)


def test_gh200_at_the_default_split_three_steps_hold_72_requests():
    """bench/arms.toml of that repository: "MTP with three steps is capped at 72 requests" at the automatic 0.815."""
    argv = tuple("0.815" if w == "0.85" else w for w in gh200_argv(3, slots=None))
    found = gh200(argv, 3, device=GH200)
    assert (found.asked_running, found.max_running, found.verdict) == (128, 72, Verdict.STARVED)
    ask = ask_of(words_of(LaunchSpec(argv=("sglang", "serve", "--model-path", "m"))), shape_named("qwen3.5-4b"), None)
    assert default_fraction(ask, shape_named("qwen3.5-4b"), GH200) == pytest.approx(0.815, abs=0.0006)


def test_gh200_block_drafts_are_priced_by_their_own_heads():
    """DFlash, 6 layers of 8 heads: its blocks of 4, 8 and 16 left 721,155, 257,632 and 307,934 (64 requests) tokens."""
    draft = {**model("qwen3-8b").fields, "num_hidden_layers": 6, "num_key_value_heads": 8, "head_dim": 128}
    measured = {4: (128, 721_155), 8: (128, 257_632), 16: (64, 307_934)}

    def argv(block: int) -> tuple[str, ...]:
        base = gh200_argv(0, *RADIX_OFF, slots=measured[block][0], running=measured[block][0])
        more = ("--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", "d")
        return (*base, *more, "--speculative-dflash-block-size", str(block))

    seen = (Seen(launch=LaunchSpec(argv=argv(4)), log=capacity(measured[4][1])),)
    ground = Ground(model=model("qwen3.5-4b"), draft=Model(name="d", fields=draft), seen=seen)
    found = {b: footprint(LaunchSpec(argv=argv(b)), ground, None).kv_tokens for b in measured}
    assert found == pytest.approx({b: t for b, (_, t) in measured.items()}, rel=0.002)


# --- 2 x RTX 3090 (club-3090 #1323, #1331; sglang #36889): Qwen3.8-27B, TP 2, fp8 cache, bf16 states


def rtx3090(slots: int, *, running: int, width: int = 5, seen: tuple[Seen, ...] = ()) -> Footprint:
    return footprint(
        LaunchSpec(argv=rtx3090_argv(slots, running, width)), Ground(model=model("qwen3.8-27b"), seen=seen), None
    )


def rtx3090_argv(slots: int, running: int, width: int = 5) -> tuple[str, ...]:
    return (
        *("sglang", "serve", "--model-path", "qwen", "--tp", "2", "--kv-cache-dtype", "fp8_e4m3"),
        *("--mamba-ssm-dtype", "bfloat16", "--max-mamba-cache-size", str(slots), "--mem-fraction-static", "0.92"),
        *("--max-running-requests", str(running), "--speculative-algorithm", "EAGLE"),
        *("--speculative-draft-model-path", "qwen", "--speculative-num-steps", str(width - 1)),
        *("--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", str(width)),
    )


def test_eleven_fewer_slots_are_24785_more_tokens():
    seen = (Seen(launch=LaunchSpec(argv=rtx3090_argv(21, 1)), log=capacity(158_116)),)
    assert rtx3090(21, running=1, seen=seen).kv_tokens == 158_116
    assert rtx3090(10, running=1, seen=seen).kv_tokens == 182_901


@pytest.mark.parametrize(("slots", "held"), [(55, 8), (40, 8), (33, 6), (21, 4), (10, 2), (8, 1)])
def test_requests_are_capped_by_slots(slots, held):
    seen = (Seen(launch=LaunchSpec(argv=rtx3090_argv(21, 1)), log=capacity(158_116)),)
    found = rtx3090(slots, running=8, seen=seen)
    assert (found.asked_running, found.max_running) == (8, held)
    if held < 8:
        assert found.verdict is Verdict.STARVED
        assert f"room for {held} of the 8" in found.reason


def test_four_slots_hold_no_request():
    seen = (Seen(launch=LaunchSpec(argv=rtx3090_argv(21, 1)), log=capacity(158_116)),)
    assert rtx3090(4, running=8, seen=seen).verdict is Verdict.WILL_NOT_START


@pytest.mark.parametrize(
    ("flags", "version", "slots"),
    [
        ((), "0.5.23", 5),
        ((), "0.5.13.post1", 3),
        (("--disable-radix-cache",), "0.5.23", 1),
        (("--disable-overlap-schedule",), "0.5.23", 3),
        (("--mamba-radix-cache-strategy", "extra_buffer", "--disable-overlap-schedule"), "0.5.23", 4),
        (("--mamba-radix-cache-strategy", "extra_buffer_lazy"), "0.5.23", 4),
        (("--mamba-radix-cache-strategy", "no_buffer"), "0.5.23", 3),
    ],
)
def test_slots_of_a_request(flags, version, slots):
    words = words_of(LaunchSpec(argv=("sglang", "serve", *flags)))
    assert ask_of(words, shape_named("qwen3.5-4b"), version_of(version)).slots_each == slots


def test_skipping_the_lock_saves_a_slot():
    env = (("SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK", "1"),)
    words = words_of(LaunchSpec(argv=("sglang", "serve"), env=env))
    assert ask_of(words, shape_named("qwen3.5-4b"), None).slots_each == 4


def test_an_adaptive_schedule_pays_for_its_deepest_candidate():
    words = words_of(LaunchSpec(argv=("sglang", "--speculative-algorithm", "EAGLE", "--speculative-adaptive")))
    assert ask_of(words, shape_named("qwen3-8b"), None).width == 8


# --- other architectures


def test_a_latent_cache_under_tensor_parallelism():
    """DeepSeek-V3 in fp8 on 8 x H200, its own prediction layer priced: 62 layers of 576 numbers, the same on each."""
    argv = ("sglang", "serve", "--model-path", "deepseek", "--tp", "8", "--mem-fraction-static", "0.9")
    spec = ("--speculative-algorithm", "NEXTN", "--speculative-num-steps", "3", "--speculative-eagle-topk", "1")
    ground = Ground(model=model("deepseek-v3"), device=H200)
    plain, drafted = (footprint(LaunchSpec(argv=a), ground, None) for a in (argv, (*argv, *spec)))
    assert plain.parts["KV pool"] == (plain.kv_tokens or 0) * 61 * 576 * 2
    assert drafted.parts["draft KV pool"] == (drafted.kv_tokens or 0) * 576 * 2
    assert drafted.parts["draft weights"] == shape_named("deepseek-v3").mtp_bytes(8)
    assert plain.parts["weights"] / GIB == pytest.approx(626.9 / 8, abs=0.1)


def test_qwen3_next_loses_requests_with_depth():
    """80 GB of weights on each device and 77 MB a state: each draft token is paid by every request."""
    argv = ("sglang", "serve", "--model-path", "next", "--tp", "2", "--mem-fraction-static", "0.85")

    def running(depth: int) -> int:
        more = (
            "--speculative-algorithm",
            "NEXTN",
            "--speculative-num-steps",
            str(depth),
            "--max-running-requests",
            "256",
        )
        ground = Ground(model=model("qwen3-next-80b-a3b"), device=H200)
        return footprint(LaunchSpec(argv=(*argv, *more)), ground, None).max_running or 0

    held = [running(d) for d in (1, 2, 3, 5, 7)]
    assert held == sorted(set(held), reverse=True), held
    assert held[-1] > 0


def test_a_standalone_draft_is_priced_by_all_its_layers_as_layers_of_the_target():
    argv = (*h200_argv(SPARSE, 0), "--speculative-algorithm", "STANDALONE", "--speculative-draft-model-path", "small")
    ground = Ground(model=model(SPARSE), draft=model(DENSE), device=H200)
    found = footprint(LaunchSpec(argv=argv), ground, None)
    assert found.parts["draft weights"] == shape_named(DENSE).weight_bytes(1)
    assert found.parts["draft KV pool"] == (found.kv_tokens or 0) * 147456  # its own heads are more than were priced
    spare = H200.total_bytes - sum(size for name, size in found.parts.items() if name != "reserve left")
    assert found.parts.get("reserve left", 0) == pytest.approx(spare, abs=98304 * 7 // 4)  # a token that did not fit


# --- laws


def test_nothing_is_guessed():
    launch = LaunchSpec(argv=h200_argv(DENSE, 0))
    blank = footprint(launch, Ground(), None)
    assert blank == Footprint(reason=blank.reason)
    assert blank.verdict is Verdict.UNKNOWN
    martian = Ground(model=Model(name="m", fields={"model_type": "martian"}), device=H200)
    assert footprint(launch, martian, None).verdict is Verdict.UNKNOWN
    assert footprint(launch, Ground(model=model(DENSE)), None).verdict is Verdict.UNKNOWN
    other = LaunchSpec(argv=(*launch.argv, "--speculative-algorithm", "UNO"))
    assert footprint(other, Ground(model=model(DENSE), device=H200), None).verdict is Verdict.UNKNOWN
    packed = LaunchSpec(argv=(*launch.argv, "--kv-cache-dtype", "fp4_e2m1"))
    assert footprint(packed, Ground(model=model(DENSE), device=H200), None).kv_tokens is None


def test_the_log_of_another_model_or_another_number_of_devices_is_not_used():
    seen = Seen(launch=LaunchSpec(argv=h200_argv(SPARSE, 0)), log=log_of(LOGS[SPARSE, 0][0]))
    ground = Ground(model=model(DENSE), seen=(seen,))
    assert footprint(LaunchSpec(argv=h200_argv(DENSE, 0)), ground, None).verdict is Verdict.UNKNOWN
    seen = Seen(launch=LaunchSpec(argv=h200_argv(DENSE, 0)), log=log_of(LOGS[DENSE, 0][0]))
    ground = Ground(model=model(DENSE), seen=(seen,))
    assert footprint(LaunchSpec(argv=(*h200_argv(DENSE, 0), "--tp", "2")), ground, None).verdict is Verdict.UNKNOWN


@settings(max_examples=300, deadline=None)
@given(
    rest=st.integers(8 * GIB, 120 * GIB),
    depth=st.integers(0, 7),
    running=st.integers(1, 64),
    slots=st.one_of(st.none(), st.integers(1, 400)),
    flags=st.lists(st.sampled_from(["--disable-radix-cache", "--disable-overlap-schedule"]), unique=True),
    version=st.sampled_from([None, "0.5.16"]),
    name=st.sampled_from(["qwen3.5-4b", "qwen3-next-80b-a3b", "nemotron-h-8b", "qwen3-8b", "deepseek-v3"]),
)
def test_what_was_divided_is_found_again(rest, depth, running, slots, flags, version, name):
    """From the tokens (and the slots that the log tells) back to the bytes, and to the same tokens."""
    shape = shape_named(name)
    argv = gh200_argv(depth, *flags, slots=slots, running=running)
    ask = ask_of(words_of(LaunchSpec(argv=argv)), shape, version_of(version))
    cell = shape.cell_bytes(1, 2) or 0
    one = pools(rest, ask, shape, cell, None)
    if one.refusal:
        return
    back = rest_for(one.tokens, one.slots, ask, shape, cell)
    assert back == pytest.approx(rest, abs=cell)
    again = pools(back, ask, shape, cell, None)
    if ask.slots is not None or (not ask.radix) or shape.linear is None:
        assert again == one
    used = one.tokens * cell + one.state + one.intermediate + one.ring
    assert used <= rest


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=300), argv=st.lists(st.text(max_size=12), max_size=12))
def test_any_log_and_any_words_are_read(text, argv):
    read(text)
    seen = (Seen(launch=LaunchSpec(argv=tuple(argv)), log=text),)
    footprint(LaunchSpec(argv=tuple(argv)), Ground(model=model(DENSE), device=H200, seen=seen), None)


def test_only_the_first_rank_is_read():
    rows = [capacity(100).replace("max", f"[2026-11-30 12:00:00 TP{r}] max", 1) for r in (0, 1)]
    assert read("\n".join([rows[0], rows[1].replace("100", "90")])).tokens == 100
