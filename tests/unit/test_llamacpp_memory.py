"""The memory of a llama-server before its start: real logs of build 10434, and public tables put in its words.

Tables: github.com/sudoingX/qwen38-mtp, `sweeps/rtx-5060-ti.md` and `rtx-5090.md`: MiB in use at each depth.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leadline.engines.llamacpp import engine, logs
from leadline.evidence import Device, Footprint, Ground, Model, Seen, Verdict
from leadline.launch import LaunchSpec

GOLDEN = Path(__file__).parents[1] / "golden" / "llamacpp"
MIB = 1 << 20
LOGS = {depth: (GOLDEN / f"buffers-depth{depth}.log").read_text() for depth in (0, 2, 4)}
BASE = "llama-server -m m.gguf -c 2048 -np 2"
DRAFT = " --spec-type draft-simple -md m.gguf --spec-draft-n-max "
HOST = Device(name="host", total_bytes=24 << 30)
SMOLLM = Model(
    name="SmolLM2-135M",
    fields={
        "general.architecture": "llama",
        "llama.block_count": 30,
        "llama.embedding_length": 576,
        "llama.context_length": 8192,
        "llama.attention.head_count": 9,
        "llama.attention.head_count_kv": 3,
    },
)


def launch(text: str, **env: str) -> LaunchSpec:
    return LaunchSpec(argv=tuple(shlex.split(text)), env=tuple(env.items()))


def seen(text: str, log: str) -> Seen:
    return Seen(launch=LaunchSpec(argv=tuple(shlex.split(text))), log=log)


def real(depth: int) -> Seen:
    return seen(f"{BASE} -lv 4 --port 1" + (f"{DRAFT}{depth}" if depth else ""), LOGS[depth])


def foresee(text: str, *earlier: Seen, **ground: Any) -> Footprint:
    return engine.memory(launch(text), Ground(seen=earlier, **{"device": HOST, **ground}))


# --- real logs


def test_a_launch_that_ran_takes_what_it_took() -> None:
    foreseen = foresee(BASE, real(0))
    assert foreseen.verdict is Verdict.FITS
    # AMX keeps a copy of the weights beside the mapped file; 0.38 MiB of output rows count as compute.
    assert {n: round(b / MIB, 2) for n, b in foreseen.parts.items()} == {
        "weights": 513.13,
        "compute": 14.89,
        "kv": 45.0,
    }
    assert (foreseen.kv_tokens, foreseen.max_running, foreseen.asked_running) == (2048, 2, 2)


def test_a_draft_of_its_own_comes_on_top() -> None:
    ran = foresee(f"{BASE}{DRAFT}4", real(0), real(4))
    assert sum(ran.parts.values()) == 2 * sum(foresee(BASE, real(0)).parts.values())
    deeper = foresee(f"{BASE}{DRAFT}9", real(0), real(2), real(4))
    assert deeper.parts == ran.parts, "no state is kept per draft token by this model"
    assert deeper.error_frac is not None


def test_before_the_first_launch_with_a_draft_its_context_is_unknown() -> None:
    foreseen = foresee(f"{BASE}{DRAFT}4", real(0))
    assert foreseen.verdict is Verdict.UNKNOWN
    assert (foreseen.kv_tokens, foreseen.max_running, foreseen.error_frac) == (None, None, None)
    assert "one launch with it" in foreseen.reason
    assert foreseen.parts == foresee(BASE, real(0)).parts, "at least so much"


def test_ngram_drafts_take_nothing() -> None:
    foreseen = foresee(f"{BASE} --spec-type ngram-simple --spec-ngram-simple-size-m 8", real(0))
    assert foreseen.verdict is Verdict.FITS
    assert foreseen.parts == foresee(BASE, real(0)).parts


@pytest.mark.parametrize(
    ("words", "kv_mib", "tokens"),
    [
        ("-c 8192 -np 2", 180, 8192),
        ("-c 2048 -np 8", 45, 2048),
        ("-c 2000 -np 2", 45, 2048),  # each slot's share is rounded up to 256
        ("-c 2048 -np 2 -ctk q8_0 -ctv q8_0", 45 * 34 / 64, 2048),
    ],
)
def test_the_cache_grows_with_cells_and_type(words: str, kv_mib: float, tokens: int) -> None:
    foreseen = foresee(f"llama-server -m m.gguf {words}", real(0))
    assert foreseen.parts["kv"] == round(kv_mib * MIB)
    assert foreseen.kv_tokens == tokens
    assert foreseen.parts["weights"] == foresee(BASE, real(0)).parts["weights"]


@pytest.mark.parametrize(
    "other",
    [
        "llama-server -m other.gguf -c 2048 -np 2",
        f"{BASE} -ub 256",
        f"{BASE} -ngl 10",
        f"{BASE} --no-kv-offload",
    ],
)
def test_another_model_or_batch_is_another_ground(other: str) -> None:
    assert foresee(other, real(0)).parts == {}
    assert foresee(other, real(0)).verdict is Verdict.UNKNOWN


def test_a_log_without_buffers_or_of_a_failed_start_says_nothing() -> None:
    without = "\n".join(line for line in LOGS[0].splitlines() if "buffer size" not in line)
    failed = "\n".join(line for line in LOGS[0].splitlines() if "initializing" not in line)
    for log in (without, failed, ""):
        assert foresee(BASE, seen(BASE, log)).verdict is Verdict.UNKNOWN


def test_the_cache_alone_follows_from_the_fields() -> None:
    foreseen = foresee(BASE, model=SMOLLM)
    assert foreseen.parts == {"kv": 45 * MIB}
    assert foreseen.verdict is Verdict.UNKNOWN
    small = Device(name="card", total_bytes=1 << 30)
    too_long = foresee("llama-server -m m.gguf -c 1000000 -np 1 -fit off", model=SMOLLM, device=small)
    assert too_long.verdict is Verdict.WILL_NOT_START


@pytest.mark.parametrize("words", ["-ctk q8_0 -ctv q8_0", "-ctv f32"])
def test_the_cache_of_another_type_by_the_fields(words: str) -> None:
    share = {"-ctk q8_0 -ctv q8_0": 34 / 64, "-ctv f32": 1.5}[words]
    assert foresee(f"{BASE} {words}", model=SMOLLM).parts == {"kv": 45 * share * MIB}


@pytest.mark.parametrize(
    "fields",
    [
        {"llama.ssm.state_size": 128},
        {"llama.attention.sliding_window": 512},
        {"llama.attention.kv_lora_rank": 512},
        {"general.architecture": "other"},
        {"llama.block_count": "30"},
        {"llama.block_count": 1e300},
    ],
)
def test_a_model_that_the_formula_does_not_cover_is_unknown(fields: dict[str, Any]) -> None:
    model = Model(name="m", fields={**SMOLLM.fields, **fields})
    assert foresee(BASE, model=model) == Footprint(
        reason="the model's fields do not tell the size of its cache", asked_running=2
    )


# --- public tables


def card(total_mib: int, depth: int, states_mib: float, free_mib: int, more: str = "", kv_mib: int = 2000) -> str:
    """A log of one accelerator whose buffers add up to `total_mib`, `states_mib` of them states."""
    rest = total_mib - states_mib - kv_mib
    return f"""llama_model_load_from_file_impl: using device CUDA0 (NVIDIA RTX (a)) (0000:01:00.0) - {free_mib} MiB free
load_tensors:   CPU_Mapped model buffer size =   682.03 MiB
load_tensors:        CUDA0 model buffer size = {rest - 300:.2f} MiB
llama_kv_cache:      CUDA0 KV buffer size = {kv_mib:.2f} MiB
llama_kv_cache: size = {kv_mib:.2f} MiB ( 32768 cells,  16 layers,  1/1 seqs), K (f16): 1.00 MiB, V (f16): 1.00 MiB
llama_memory_recurrent:      CUDA0 RS buffer size = {states_mib:.2f} MiB
{more}
sched_reserve:      CUDA0 compute buffer size = 300.00 MiB
sched_reserve:  CUDA_Host compute buffer size =    97.30 MiB
srv    load_model: initializing, n_slots = 1, n_ctx_slot = 32768, kv_unified = 'false'"""


def states(depth: int, size: float, slots: int = 1) -> str:
    return (
        f"llama_memory_recurrent: size = {size:.2f} MiB ( {slots * (1 + depth)} cells,  48 layers,  {slots} seqs  "
        f"{depth} rs_seq), R (f32):   20.50 MiB, S (f32): 1000.00 MiB, P (f32):    0.00 MiB"
    )


MTP = "llama-server -m q.gguf -ngl 99 -c 32768 -np 1 --spec-type draft-mtp --spec-draft-n-max "
SMALL_CARD = {2: 15404, 3: 15554, 4: 15704}
BIG_CARD = {1: 21068, 2: 21218, 3: 21368, 4: 21518, 5: 21666, 6: 21816}


def mtp(table: dict[int, int], *depths: int, free: int) -> list[Seen]:
    return [seen(f"{MTP}{d}", card(table[d], d, 150 * (1 + d), free)) for d in depths]


@pytest.mark.parametrize(("depth", "fits"), [(4, True), (5, False), (6, False)])
def test_a_card_that_is_full_is_told_without_a_launch(depth: int, fits: bool) -> None:
    """Depth 4 took 15,704 of 15,840 MiB, and depth 6 did not load."""
    foreseen = foresee(f"{MTP}{depth}", *mtp(SMALL_CARD, 2, 3, free=15840), device=None)
    assert foreseen.verdict is (Verdict.FITS if fits else Verdict.WILL_NOT_START), foreseen
    if depth == 5:
        assert "15854 MiB are needed on the device, and 15840 MiB are free" in foreseen.reason


def test_a_line_through_two_depths_meets_the_others() -> None:
    earlier = mtp(BIG_CARD, 1, 2, free=32000)
    for depth, measured in BIG_CARD.items():
        foreseen = foresee(f"{MTP}{depth}", *earlier, device=None)
        need = sum(foreseen.parts.values()) / MIB
        assert foreseen.error_frac is not None
        assert abs(need - measured) / measured <= foreseen.error_frac


def test_one_launch_is_enough_when_it_tells_the_rows_of_its_states() -> None:
    told = card(21218, 2, 450, 32000, states(2, 450))
    foreseen = foresee(f"{MTP}6", seen(f"{MTP}2", told), device=None)
    assert foreseen.parts["states"] == 150 * 7 * MIB
    assert foreseen.error_frac is None, "no public table was checked against it"
    four = foresee(f"{MTP.replace('-np 1', '-np 4')}2", seen(f"{MTP}2", told), device=None)
    assert four.parts["states"] == 150 * 3 * 4 * MIB
    mute = foresee(f"{MTP}6", seen(f"{MTP}2", card(21218, 2, 450, 32000)), device=None)
    assert "states" not in mute.parts
    assert mute.verdict is Verdict.UNKNOWN
    assert "states" in mute.reason


def test_even_without_the_draft_it_may_be_too_much() -> None:
    off = "llama-server -m q.gguf -ngl 99 -c 32768 -np 1"
    told = foresee(MTP.replace("32768", "262144") + "2", seen(off, card(14830, 0, 150, 15840)), device=None)
    assert told.verdict is Verdict.WILL_NOT_START
    assert "even without the draft" in told.reason


@pytest.mark.parametrize(
    ("words", "verdict", "tokens", "says"),
    [
        ("", Verdict.STARVED, (15840 - 1024 - 13830) * 32768 // 2000, "shrinks to about"),
        ("-fit off", Verdict.WILL_NOT_START, None, "MiB are needed"),
        ("-c 65536", Verdict.STARVED, None, "layers move to the host"),
        ("-c 65536 -ngl 99", Verdict.WILL_NOT_START, None, "MiB are needed"),
    ],
)
def test_what_fit_still_can_do(words: str, verdict: Verdict, tokens: int | None, says: str) -> None:
    """15,830 MiB as it ran once on an emptier card; 15,840 MiB are free, of which -fit leaves 1,024."""
    total = 15830 if words in ("", "-fit off") else 15000
    base = f"llama-server -m q.gguf -np 1{' -ngl 99' if '-ngl' in words else ''}"
    free = 15840 if words != "-fit off" else 15800
    foreseen = foresee(f"{base} {words.replace('-ngl 99', '')}", seen(base, card(total, 0, 0, free)), device=None)
    assert foreseen.verdict is verdict, foreseen
    assert foreseen.kv_tokens == tokens
    assert says in foreseen.reason


def test_a_context_below_the_least_is_no_way_out() -> None:
    """`-fit` shrinks to 4,096 tokens and no further (`-fitc`): then only layers are left to move, if they may."""
    base = "llama-server -m q.gguf -np 1"
    log = card(15830, 0, 0, 15000, kv_mib=2000)
    layers = foresee(base, seen(base, log), device=None)
    assert layers.verdict is Verdict.STARVED
    assert "layers move" in layers.reason
    assert layers.kv_tokens is None
    fixed = foresee(f"{base} -ngl 99", seen(f"{base} -ngl 99", log), device=None)
    assert fixed.verdict is Verdict.WILL_NOT_START
    shorter = foresee(f"{base} -fitc 2048", seen(base, log), device=None)
    assert shorter.kv_tokens == (15000 - 1024 - 13830) * 32768 // 2000 == 2392


def test_the_least_that_was_ever_free_counts() -> None:
    earlier = [*mtp(SMALL_CARD, 2, free=15840), *mtp(SMALL_CARD, 3, free=15500)]
    for order in (earlier, earlier[::-1]):
        assert foresee(f"{MTP}4", *order, device=None).verdict is Verdict.WILL_NOT_START


def test_the_type_of_a_drafts_own_cache_is_not_the_models() -> None:
    mixed = foresee(f"{BASE}{DRAFT}4 -ctk q8_0 -ctv q8_0", real(4))
    assert mixed.verdict is Verdict.UNKNOWN
    assert "kv" not in mixed.parts
    assert "kv" in mixed.reason


def test_one_device_is_looked_at() -> None:
    """Buffers of the second card, which is fuller there, are no point of the first one's line."""
    second = card(21000, 5, 900, 32000).replace("CUDA0", "CUDA1")
    alone = foresee(f"{MTP}3", *mtp(BIG_CARD, 1, 2, free=32000), device=None)
    for extra in (second, second.replace("15", "14")):
        both = foresee(f"{MTP}3", *mtp(BIG_CARD, 1, 2, free=32000), seen(f"{MTP}5", extra), device=None)
        assert both == alone


def test_room_by_the_device_when_no_log_tells_what_is_free() -> None:
    log = "\n".join(line for line in card(14830, 0, 150, 0).splitlines() if "MiB free" not in line)
    off = "llama-server -m q.gguf -ngl 99 -c 32768 -np 1"
    for gib, verdict in ((16, Verdict.FITS), (15, Verdict.WILL_NOT_START)):
        device = Device(name="card", total_bytes=gib << 30)
        assert foresee(off, seen(off, log), device=device).verdict is verdict
    assert foresee(off, seen(off, log), device=None).verdict is Verdict.UNKNOWN


def test_a_command_that_cannot_be_read_has_no_footprint() -> None:
    foreseen = engine.memory(launch("llama-server --draft-max 4"), Ground(seen=(real(0),)))
    assert foreseen.verdict is Verdict.UNKNOWN
    assert "has removed" in foreseen.reason


PIECES = st.sampled_from(
    [line for log in (*LOGS.values(), card(9, 1, 1, 1, states(1, 2))) for line in log.splitlines()]
)
SPOILT = st.lists(PIECES | st.text(max_size=40) | PIECES.map(lambda s: s.translate({48: "9", 50: "0"})), max_size=30)


@given(SPOILT, st.sampled_from([BASE, f"{BASE}{DRAFT}3", "llama-server", "llama-server -c x"]), st.integers(0, 1 << 40))
@settings(max_examples=200, deadline=None)
def test_any_log_is_borne(lines: list[str], command: str, size: int) -> None:
    ground = Ground(
        seen=(seen(BASE, "\n".join(lines)), real(2)), device=Device(name="d", total_bytes=size), model=SMOLLM
    )
    foreseen = engine.memory(launch(command), ground)
    assert all(part >= 0 for part in foreseen.parts.values())
    assert foreseen.verdict is Verdict.FITS or foreseen.reason


def test_what_the_logs_hold() -> None:
    assert logs.slots(LOGS[4]) == logs.Slots(2, 1024, unified=False)
    assert [c.cells for c in logs.caches(LOGS[4])] == [2048, 2048]
    assert logs.drafting(LOGS[4]) == logs.Drafting(drafts=5, drafted=18, accepted=18)
    (one,) = logs.finished(LOGS[2])
    assert (one.prompt_tokens, one.tokens, one.drafted, one.accepted, one.length) == (35, 24, 15, 15, 2.88)
    assert one.per_position == (1.0, 0.875)
