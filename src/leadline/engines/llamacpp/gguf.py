"""The KV cache of a model by the fields of its GGUF file (`llama.block_count`, ...)."""

from __future__ import annotations

from leadline.evidence import Model

BYTES_PER_32 = {
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


def cell_bytes(model: Model, dtypes: tuple[str, str]) -> int | None:
    """Bytes of one token in the cache: layers * KV heads * (key length * K bytes + value length * V bytes).

    None for a model with other layers than plain attention: a recurrent, hybrid, windowed or latent one keeps less.
    """
    arch = model.fields.get("general.architecture")
    if not isinstance(arch, str) or any(part in name for name in model.fields for part in _OTHER_LAYERS):
        return None
    layers = _field(model, f"{arch}.block_count")
    heads = _field(model, f"{arch}.attention.head_count")
    kv_heads = _field(model, f"{arch}.attention.head_count_kv") or heads
    width = _field(model, f"{arch}.embedding_length")
    head = width // heads if width and heads else None
    key = _field(model, f"{arch}.attention.key_length") or head
    value = _field(model, f"{arch}.attention.value_length") or head
    k_bytes, v_bytes = (BYTES_PER_32.get(t) for t in dtypes)
    if not (layers and kv_heads and key and value and k_bytes and v_bytes):
        return None
    return layers * kv_heads * (key * k_bytes + value * v_bytes) // 32


def context_length(model: Model) -> int | None:
    """Tokens that the model was trained for."""
    return _field(model, f"{model.fields.get('general.architecture')}.context_length")


def _field(model: Model, name: str) -> int | None:
    value = model.fields.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= 1 << 40 else None
