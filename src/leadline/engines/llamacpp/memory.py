"""How much memory a launch takes, as far as the model's fields and the server tell."""

from __future__ import annotations

from leadline.engines.llamacpp.dialect import parse
from leadline.engines.llamacpp.probes import effective, weights_bytes
from leadline.engines.llamacpp.values import kv_pair
from leadline.errors import InputError
from leadline.evidence import Device, Evidence, MemoryLaw, Model
from leadline.launch import LaunchSpec

_BYTES_PER_32 = {
    "f32": 128,
    "f16": 64,
    "bf16": 64,
    "q8_0": 34,
    "q5_1": 24,
    "q5_0": 22,
    "q4_1": 20,
    "q4_0": 18,
    "iq4_nl": 18,
}
"""Bytes of a block of 32 values: the quants, and the scale (and minimum) of the block."""

_OTHER_LAYERS = (".ssm.", ".wkv.", ".shortconv.", ".full_attention_interval", ".sliding_window", ".kv_lora_rank")


def memory_law(model: Model, device: Device, evidence: Evidence) -> MemoryLaw:
    """All KV is allocated at start: cells * layers * KV heads * (key length * K bytes + value length * V bytes).

    The fields are GGUF's (`llama.block_count`, ...). `fixed_bytes` = weights + KV, None when either is unknown; compute
    buffers (tens to hundreds of MiB) are not in it, nor is a draft model. `per_depth_bytes` = 0: no buffer of the cache
    grows with depth. Both hold for models whose layers all are plain attention; a recurrent, hybrid, windowed or latent
    one keeps less per cell, or a copy of its state per draft position, and gets None. `device` does not enter: `-fit`
    shrinks the context at start when it must, so the number of cells is the server's own.
    """
    seen = effective(evidence)
    weights = weights_bytes(evidence)
    cells = seen.kv_tokens
    per_cell = _bytes_per_cell(model, _dtypes(evidence.argv))
    kv = None if cells is None or per_cell is None else cells * per_cell
    parts = {name: size for name, size in (("weights", weights), ("kv", kv)) if size is not None}
    return MemoryLaw(
        fixed_bytes=None if weights is None or kv is None else weights + kv,
        per_depth_bytes=None if per_cell is None else 0,
        max_running=seen.max_running,
        parts=parts,
    )


def _dtypes(argv: tuple[str, ...]) -> tuple[str, str] | None:
    if not argv:
        return None
    try:
        return kv_pair(str(parse(LaunchSpec(argv=argv)).get("kv_dtype", "f16")))
    except InputError:
        return None


def _bytes_per_cell(model: Model, dtypes: tuple[str, str] | None) -> int | None:
    arch = model.fields.get("general.architecture")
    if dtypes is None or not isinstance(arch, str) or not _plain_attention(model):
        return None
    layers = _field(model, f"{arch}.block_count")
    heads = _field(model, f"{arch}.attention.head_count")
    kv_heads = _field(model, f"{arch}.attention.head_count_kv") or heads
    width = _field(model, f"{arch}.embedding_length")
    head = width // heads if width and heads else None
    key = _field(model, f"{arch}.attention.key_length") or head
    value = _field(model, f"{arch}.attention.value_length") or head
    k_bytes, v_bytes = (_BYTES_PER_32.get(t) for t in dtypes)
    if not (layers and kv_heads and key and value and k_bytes and v_bytes):
        return None
    return layers * kv_heads * (key * k_bytes + value * v_bytes) // 32


def _field(model: Model, name: str) -> int | None:
    value = model.fields.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _plain_attention(model: Model) -> bool:
    """Whether every layer keeps the keys and values of every cell: no state, no window, no latent."""
    return not any(part in name for name in model.fields for part in _OTHER_LAYERS)
