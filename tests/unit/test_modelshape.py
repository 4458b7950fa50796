"""Models counted from their config.json: parameters, cells and states, against published and logged figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leadline.dialect.footprint import (
    GIB,
    Words,
    free_bytes,
    judged,
    line,
    number_bytes,
    words_of,
)
from leadline.dialect.modelshape import Shape, shape_of
from leadline.evidence import Device, Verdict
from leadline.launch import LaunchSpec

MODELS = Path(__file__).parents[1] / "golden" / "models"


def config(name: str) -> dict[str, Any]:
    return json.loads((MODELS / f"{name}.json").read_text())


def shape(name: str) -> Shape:
    found = shape_of(config(name))
    assert found is not None
    return found


def parameters(one: Shape) -> int:
    return one.body.matrices + one.body.rest + one.embed + (0 if one.tied else one.head)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("qwen3-8b", 8.1907),  # model card: 8.2B; safetensors index: 8,190,735,360
        ("qwen3-30b-a3b", 30.5321),  # model card: 30.5B; safetensors index: 30,532,122,624
        ("deepseek-v3", 671.026),  # model card: 671B without the prediction layer
        ("qwen3-next-80b-a3b", 79.67),  # model card: 80B
        ("nemotron-h-8b", 8.10),  # model card: 8B
        ("qwen3.5-4b", 4.206),
        ("qwen3.8-27b", 26.90),
    ],
)
def test_parameters_are_those_that_were_published(name, billions):
    assert parameters(shape(name)) / 1e9 == pytest.approx(billions, rel=1e-3)


def test_two_models_to_the_parameter():
    assert parameters(shape("qwen3-8b")) == 8_190_735_360
    assert parameters(shape("qwen3-30b-a3b")) == 30_532_122_624


@pytest.mark.parametrize(
    ("name", "gib"),
    [
        ("qwen3-8b-vocab49152", 13.71),  # SGLang 0.5.16 on an H200: "Load weight end ... mem usage=13.71 GB"
        ("qwen3-30b-a3b-vocab49152", 56.11),
        ("qwen3.5-4b", 8.621),  # weights_gb of the GH200 launches; with its vision tower
    ],
)
def test_weights_are_those_that_were_logged(name, gib):
    counted = (shape(name).weight_bytes(1) or 0) / GIB
    assert counted == pytest.approx(gib, rel=0.02), f"counted {counted:.3f} GiB, logged {gib} GiB"


def test_an_eagle3_draft_has_its_own_vocabulary_and_reads_two_vectors():
    draft = shape("qwen3-8b-vocab49152-eagle3")
    assert draft.layers == 1
    assert draft.head == 32000 * 4096
    # q, k, v from 2 x 4096; o; three MLP matrices; three hidden states joined
    attention = 8192 * (32 + 2 * 8) * 128 + 32 * 128 * 4096
    assert draft.body.matrices == attention + 3 * 4096 * 12288 + 3 * 4096 * 4096


@pytest.mark.parametrize(
    ("name", "tp", "number", "cell"),
    [
        ("qwen3-8b", 1, 2, 147456),  # 36 layers, 8 heads, 128: K size 34.85 GB at 507,595 tokens, twice
        ("qwen3-30b-a3b", 1, 2, 98304),
        ("qwen3-30b-a3b", 8, 2, 98304 // 4),  # 4 heads on 8 devices: repeated, not halved
        ("qwen3.5-4b", 1, 2, 32768),
        ("qwen3.8-27b", 2, 1, 16384),
        ("deepseek-v3", 8, 2, 61 * 576 * 2),  # a latent cache is the same on every device
        ("qwen3-next-80b-a3b", 1, 2, 12 * 2 * 512 * 2),
        ("nemotron-h-8b", 1, 2, 4 * 8 * 256 * 2),
    ],
)
def test_bytes_of_a_token(name, tp, number, cell):
    assert shape(name).cell_bytes(tp, number) == cell


def test_states_of_linear_layers():
    small, large = shape("qwen3.5-4b").linear, shape("qwen3.8-27b").linear
    assert small is not None
    assert large is not None
    assert small.state_bytes(1, 4, 2) == 24 * (32 * 128 * 128 * 4 + 24 * 8192 * 3 * 2 // 24)
    assert small.state_bytes(1, 4, 2) == 51_511_296
    # sglang #37066: intermediate_ssm of 1.69 (GiB) at 12 draft tokens and one request: two slots of them
    assert large.state_bytes(1, 2, 0) * 2 * 12 / GIB == 1.6875
    assert large.state_bytes(2, 2, 2) / 17408 == pytest.approx(2253.18, abs=0.01)


def test_quantised_weights():
    plain = config("qwen3-8b")
    whole = shape("qwen3-8b").weight_bytes(1) or 0
    fp8 = shape_of({**plain, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}})
    awq = shape_of({**plain, "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}})
    odd = shape_of({**plain, "quantization_config": {"quant_method": "not known"}})
    assert fp8 is not None
    assert awq is not None
    assert odd is not None
    assert (fp8.weight_bytes(1) or 0) / GIB == pytest.approx(8.79, abs=0.05)  # Qwen3-8B-FP8 on the hub: 9.4 GB
    assert (awq.weight_bytes(1) or 0) / GIB == pytest.approx(5.66, abs=0.05)  # Qwen3-8B-AWQ on the hub: 6.1 GB
    assert whole > (fp8.weight_bytes(1) or 0) > (awq.weight_bytes(1) or 0)
    assert odd.weight_bytes(1) is None


def test_a_window_has_no_cell():
    gemma = {**config("qwen3-8b"), "layer_types": ["sliding_attention", "full_attention"]}
    found = shape_of(gemma)
    assert found is not None
    assert found.cell_bytes(1, 2) is None


@pytest.mark.parametrize("broken", [{}, {"model_type": "martian"}, {"model_type": "qwen3", "hidden_size": 1}])
def test_what_is_not_known_has_no_shape(broken):
    assert shape_of(broken) is None


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(sorted(p.stem for p in MODELS.glob("*.json"))),
    st.data(),
    st.one_of(st.none(), st.text(max_size=3), st.integers(-2, 2), st.lists(st.integers(), max_size=2), st.booleans()),
)
def test_a_damaged_config_never_raises(name, data, value):
    fields = config(name)
    inner = fields.get("text_config", fields)
    inner[data.draw(st.sampled_from(sorted(inner)))] = value
    found = shape_of(fields)
    if found is not None:
        found.weight_bytes(2)
        found.cell_bytes(2, 2)
        found.mtp_bytes(2)


def test_words_of_a_launch():
    argv = (
        "env",
        "A=b",
        "vllm",
        "serve",
        "org/model",
        "--max_num-seqs",
        "4",
        "--max-num-seqs=8",
        "-tp",
        "2",
        "--eager",
    )
    words = words_of(LaunchSpec(argv=argv, env=(("C", "d"),)))
    assert (words.first, words.env) == ("org/model", {"A": "b", "C": "d"})
    assert words.whole("--max-num-seqs") == 8
    assert words.whole("-tp") == 2
    assert words.on("--eager")
    assert words.text("--eager") is None
    assert words.number("--nothing") is None
    assert words_of(LaunchSpec(argv=("x", "--bias", "-1.5"))).number("--bias") == -1.5


def test_of_two_spellings_the_later_wins():
    assert words_of(LaunchSpec(argv=("x", "--tp", "2", "--tp-size", "4", "--tp", "8"))).whole("--tp-size", "--tp") == 8
    assert isinstance(words_of(LaunchSpec(argv=())), Words)


def test_a_line_through_earlier_launches():
    card = [(1, 21068), (2, 21218), (3, 21368), (4, 21518), (5, 21666), (6, 21816)]  # RTX 5090, MiB by n-max
    off = 19926
    assert card[0][1] - off == 1142
    step = (line(card, 7) or 0) - (line(card, 6) or 0)
    assert step == pytest.approx(149.6, abs=0.1)
    errors = {n: (line(card[:2], n) or 0) - mib for n, mib in card[2:]}
    assert max(map(abs, errors.values())) <= 2, f"MiB off by depth, from the first two: {errors}"


def test_the_refusal_of_a_16_gib_card_is_foreseen():
    seen, total = [(2, 15404), (3, 15554)], 15840  # RTX 5060 Ti; n-max 6: cudaMalloc failed
    assert line(seen, 4) == 15704
    assert line(seen, 5) == 15854
    assert line(seen, 5) > total
    assert line(seen, 6) == 16004
    assert line(seen, 6) > total


def test_no_line_without_two_depths():
    assert line([], 3) is None
    assert line([(3, 10.0)], 4) is None
    assert line([(3, 10.0), (3, 12.0)], 3) == 11.0


def test_starved_is_defined():
    assert judged(1000, 8, 10, None)[0] is Verdict.STARVED
    assert judged(8 * 1023, 8, 8, None)[0] is Verdict.STARVED
    assert judged(8 * 1024, 8, 8, None)[0] is Verdict.FITS
    assert judged(8 * 1024, 8, 8, 8193)[0] is Verdict.STARVED
    assert judged(8, 4096, None, None)[0] is Verdict.FITS  # nobody asked for a number of requests


def test_free_memory_before_loading_is_within_its_promise():
    h200 = free_bytes(Device(name="NVIDIA H200", total_bytes=143771 << 20)) / GIB
    assert abs(h200 - 139.09) < 0.6, f"{h200:.2f} GiB against 139.09 that SGLang logged"


def test_bytes_of_a_number():
    one = shape("qwen3-8b")
    told = [number_bytes(d, one) for d in (None, "auto", "bfloat16", "fp8_e4m3", "fp8", "fp4_e2m1", "nvfp4")]
    assert told == [2, 2, 2, 1, 1, None, None]
