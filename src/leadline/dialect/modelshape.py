"""From a model's config.json to layers, heads and bytes: what the memory laws of all engines count with.

Parameters are counted from the published architectures of each family; a family that is not listed here has no shape.
Sources: the `config.json` keys and module definitions of transformers' models (llama, qwen2, qwen3, qwen3_moe, mixtral,
glm4_moe, deepseek_v3, qwen3_next, qwen3_5, nemotron_h) and of EAGLE-3 drafts (arXiv 2503.01840).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from leadline.dialect.answers import list_of, object_of, text_of, whole_of

_DENSE = {"llama", "mistral", "qwen2", "qwen3"}
_MOE = {"qwen2_moe", "qwen3_moe", "mixtral", "glm4_moe"}
_LATENT = {"deepseek_v2", "deepseek_v3", "kimi_k2"}
_DELTA = {"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"}
_MAMBA = {"nemotron_h"}
_DTYPES = {"bfloat16": 2, "float16": 2, "float32": 4}


@dataclass(frozen=True, slots=True)
class Params:
    """Counts of parameters. `matrices` = weight matrices inside the layers, which a quantisation covers; `rest` =
    norms, routers, biases and the like, which it does not."""

    matrices: int = 0
    rest: int = 0

    def plus(self, other: Params) -> Params:
        return Params(self.matrices + other.matrices, self.rest + other.rest)

    def times(self, n: int) -> Params:
        return Params(self.matrices * n, self.rest * n)


@dataclass(frozen=True, slots=True)
class Linear:
    """Layers that keep a state of fixed size per request (Gated DeltaNet, Mamba-2): per head `value` x `key` numbers,
    and the last `kernel` - 1 inputs of a convolution over `channels`."""

    layers: int
    heads: int
    value: int
    key: int
    channels: int
    kernel: int
    key_heads: int

    def state_bytes(self, tp: int, state: int, conv: int) -> int:
        """One request's state on one device, all layers; `state`, `conv` = bytes a number.

        SGLang `configs/mamba_utils.py` -> `mamba_cache_per_req`.
        """
        temporal = self.heads // tp * self.value * self.key * state
        return self.layers * (temporal + self.channels // tp * (self.kernel - 1) * conv)


@dataclass(frozen=True, slots=True)
class Shape:
    """One model. `full_layers` keep keys and values of every token; `latent` = numbers per token and layer of a latent
    cache (MLA), which takes the place of heads. `mtp` = the parameters of the prediction layers that the checkpoint
    carries. `windowed` = some layers keep only a window of tokens: then no sum over `full_layers` is right.
    """

    layers: int
    full_layers: int
    hidden: int
    intermediate: int
    vocab: int
    kv_heads: int
    head_dim: int
    value_dim: int
    body: Params
    embed: int
    head: int
    tied: bool
    latent: int | None = None
    linear: Linear | None = None
    mtp_layers: int = 0
    mtp: Params | None = None
    nextn: int | None = None
    vision: int = 0
    multimodal: bool = False
    context: int | None = None
    number_bytes: int = 2
    state_dtype: str | None = None
    quantised_bytes: float | None = None
    windowed: bool = False

    def cell_bytes(self, tp: int, number: int, layers: int | None = None) -> int | None:
        """Keys and values of one token on one device; heads are repeated when there are fewer than devices."""
        if self.windowed:
            return None
        layers = self.full_layers if layers is None else layers
        if self.latent is not None:
            return self.latent * layers * number
        return max(1, self.kv_heads // tp) * (self.head_dim + self.value_dim) * layers * number

    def weight_bytes(self, tp: int) -> int | None:
        """The target's own weights on one device, prediction layers left out. None when its quantisation is unknown.

        The vision tower counts as a whole: engines differ in whether they split it.
        """
        body = self._bytes(self.body)
        plain = (self.embed + (0 if self.tied else self.head)) * self.number_bytes
        return None if body is None else int((body + plain) / tp) + self.vision * self.number_bytes

    def mtp_bytes(self, tp: int) -> int | None:
        """The prediction layers with their own copies of embedding and output head."""
        body = None if self.mtp is None else self._bytes(self.mtp)
        plain = (self.embed + (0 if self.tied else self.head)) * self.number_bytes
        return None if body is None else int((body + plain) / tp)

    def _bytes(self, params: Params) -> float | None:
        if self.quantised_bytes is None:
            return None
        return params.matrices * self.quantised_bytes + params.rest * self.number_bytes


def shape_of(config: Mapping[str, Any]) -> Shape | None:
    """The shape that a config.json (or the object of one) tells; None when its family or a needed key is missing."""
    text = object_of(config.get("text_config")) or config
    c = _Config({**{k: v for k, v in config.items() if k not in ("text_config", "model_type")}, **text})
    family = text_of(text.get("model_type")) or ""
    built = _built(c, family, _is_eagle3(config))
    if built is None:
        return None
    vision = object_of(config.get("vision_config"))
    return replace(
        built,
        multimodal=bool(vision),
        vision=_vision(_Config(vision)) if vision else 0,
        context=c.whole("max_position_embeddings"),
        number_bytes=_DTYPES.get(c.word("torch_dtype") or c.word("dtype") or "bfloat16", 2),
        state_dtype=c.word("mamba_ssm_dtype"),
        nextn=c.whole("num_nextn_predict_layers"),
        quantised_bytes=_quantised(object_of(config.get("quantization_config")), built, c),
    )


class _Config:
    """Reading keys; a key that is missing and has no default ends the count."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.fields = fields

    def whole(self, *names: str) -> int | None:
        return next((n for name in names if (n := whole_of(self.fields.get(name))) is not None), None)

    def need(self, *names: str) -> int:
        value = self.whole(*names)
        if value is None:
            raise KeyError(names[0])
        return value

    def word(self, name: str) -> str | None:
        return text_of(self.fields.get(name))

    def on(self, name: str) -> bool:
        return self.fields.get(name) is True


def _is_eagle3(config: Mapping[str, Any]) -> bool:
    names = " ".join(a for a in list_of(config.get("architectures")) if isinstance(a, str))
    return "eagle3" in names.lower() or "draft_vocab_size" in config


def _built(c: _Config, family: str, eagle3: bool) -> Shape | None:
    build = _eagle3 if eagle3 else _BUILDERS.get(family)
    if build is None:
        return None
    try:
        return build(c)
    except (KeyError, ZeroDivisionError):
        return None


def _attention(c: _Config, inputs: int | None = None) -> Params:
    """Projections of grouped-query attention; `attn_output_gate` doubles the query's."""
    hidden, heads, size = c.need("hidden_size"), c.need("num_attention_heads"), _head_dim(c)
    kv = _kv_heads(c)
    gate = 2 if c.on("attn_output_gate") or c.word("model_type") == "qwen3_next" else 1
    into = (inputs or hidden) * (heads * size * gate + 2 * kv * size)
    return Params(into + heads * size * hidden, 2 * size + 2 * hidden)


def _latent_attention(c: _Config) -> Params:
    hidden, heads, rank, rope = (
        c.need(k) for k in ("hidden_size", "num_attention_heads", "kv_lora_rank", "qk_rope_head_dim")
    )
    nope, value = c.need("qk_nope_head_dim"), c.need("v_head_dim")
    q_rank = c.whole("q_lora_rank")
    wide = heads * (nope + rope)
    query = q_rank * (hidden + wide) if q_rank else hidden * wide
    kept = hidden * (rank + rope) + rank * heads * (nope + value)
    return Params(query + kept + heads * value * hidden, (q_rank or 0) + rank + 2 * hidden)


def _mlp(c: _Config, width: int | None = None) -> Params:
    return Params(3 * c.need("hidden_size") * (width or c.need("intermediate_size")))


def _experts(c: _Config) -> Params:
    hidden = c.need("hidden_size")
    n = c.need("num_experts", "n_routed_experts", "num_local_experts")
    width = c.need("moe_intermediate_size", "intermediate_size")
    shared = c.whole("shared_expert_intermediate_size") or (c.whole("n_shared_experts") or 0) * width
    gate = hidden if c.whole("shared_expert_intermediate_size") else 0
    return Params(3 * hidden * (n * width + shared), n * hidden + gate)


def _feed(c: _Config, layer: int, moe: bool) -> Params:
    """The feed-forward part of a layer: experts, or dense where the configuration says so."""
    dense_first = c.whole("first_k_dense_replace") or 0
    every = c.whole("decoder_sparse_step", "moe_layer_freq") or 1
    sparse = moe and layer >= dense_first and layer not in list_of(c.fields.get("mlp_only_layers"))
    return _experts(c) if sparse and (layer + (1 if "decoder_sparse_step" in c.fields else 0)) % every == 0 else _mlp(c)


def _head_dim(c: _Config) -> int:
    return c.whole("head_dim", "attention_head_dim") or c.need("hidden_size") // c.need("num_attention_heads")


def _kv_heads(c: _Config) -> int:
    return c.whole("num_key_value_heads") or c.need("num_attention_heads")


def _plain(c: _Config, body: Params, **more: Any) -> Shape:
    hidden, vocab, layers = c.need("hidden_size"), c.need("vocab_size"), c.need("num_hidden_layers")
    base: dict[str, Any] = {
        "layers": layers,
        "full_layers": layers,
        "hidden": hidden,
        "intermediate": c.whole("intermediate_size") or c.need("moe_intermediate_size"),
        "vocab": vocab,
        "kv_heads": _kv_heads(c),
        "head_dim": _head_dim(c),
        "value_dim": c.whole("v_head_dim") or _head_dim(c),
        "body": body.plus(Params(0, hidden)),
        "embed": vocab * hidden,
        "head": vocab * hidden,
        "tied": c.on("tie_word_embeddings"),
        "windowed": _windowed(c),
    }
    return Shape(**{**base, **more})


def _windowed(c: _Config) -> bool:
    kinds = list_of(c.fields.get("layer_types"))
    return "sliding_attention" in kinds or (c.on("use_sliding_window") and bool(c.whole("sliding_window")))


def _decoder(c: _Config) -> Shape:
    moe = c.word("model_type") in _MOE
    layers = c.need("num_hidden_layers")
    bias = _qkv_bias(c)
    body = _sum(_attention(c).plus(_feed(c, i, moe)).plus(bias) for i in range(layers))
    nextn = c.whole("num_nextn_predict_layers") or 0
    mtp = _nextn(c, _attention(c).plus(_feed(c, layers, moe))).times(nextn) if nextn else None
    return _plain(c, body, mtp_layers=nextn, mtp=mtp)


def _qkv_bias(c: _Config) -> Params:
    has = c.on("attention_bias") or (c.word("model_type") or "").startswith("qwen2")
    return Params(0, (c.need("num_attention_heads") + 2 * _kv_heads(c)) * _head_dim(c)) if has else Params()


def _mla(c: _Config) -> Shape:
    layers = c.need("num_hidden_layers")
    body = _sum(_latent_attention(c).plus(_feed(c, i, moe=True)) for i in range(layers))
    nextn = c.whole("num_nextn_predict_layers") or 0
    mtp = _nextn(c, _latent_attention(c).plus(_feed(c, layers, moe=True))).times(nextn) if nextn else None
    latent = c.need("kv_lora_rank") + c.need("qk_rope_head_dim")
    return _plain(c, body, latent=latent, mtp_layers=nextn, mtp=mtp, head_dim=c.need("qk_nope_head_dim"))


def _nextn(c: _Config, layer: Params) -> Params:
    """A prediction layer: a decoder layer, and the projection that joins hidden state and embedding."""
    return layer.plus(Params(2 * c.need("hidden_size") ** 2, 3 * c.need("hidden_size")))


def _delta(c: _Config) -> Shape:
    """Qwen3-Next and Qwen3.5: Gated DeltaNet layers, and full attention in every fourth."""
    layers, hidden = c.need("num_hidden_layers"), c.need("hidden_size")
    kinds = list_of(c.fields.get("layer_types"))
    every = c.whole("full_attention_interval") or 4
    full = kinds.count("full_attention") if kinds else layers // every
    k_heads, v_heads = c.need("linear_num_key_heads"), c.need("linear_num_value_heads")
    key, value, kernel = (c.need(f"linear_{n}") for n in ("key_head_dim", "value_head_dim", "conv_kernel_dim"))
    channels = 2 * k_heads * key + v_heads * value
    into = hidden * (channels + v_heads * value + 2 * v_heads)
    mixer = Params(into + v_heads * value * hidden, channels * kernel + 2 * v_heads + value + 2 * hidden)
    moe = c.whole("num_experts") is not None
    attention = _attention(c)
    feeds = _sum(_feed(c, i, moe) for i in range(layers))
    body = feeds.plus(mixer.times(layers - full)).plus(attention.times(full))
    mtp_layers = c.whole("mtp_num_hidden_layers") or (1 if c.word("model_type") == "qwen3_next" else 0)
    mtp = _nextn(c, attention.plus(_feed(c, layers - 1, moe))).times(mtp_layers) if mtp_layers else None
    return _plain(
        c,
        body,
        full_layers=full,
        linear=Linear(layers - full, v_heads, value, key, channels, kernel, k_heads),
        mtp_layers=mtp_layers,
        mtp=mtp,
    )


def _nemotron(c: _Config) -> Shape:
    """Each layer is one of: `M` Mamba-2, `*` attention, `-` two-matrix MLP; other letters are not known here."""
    hidden, pattern = c.need("hidden_size"), c.word("hybrid_override_pattern") or ""
    if not pattern or set(pattern) - set("M*-"):
        raise KeyError("hybrid_override_pattern")
    heads, size, groups, state = (
        c.need(k) for k in ("mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size")
    )
    kernel, inner = c.need("conv_kernel"), heads * size
    channels = inner + 2 * groups * state
    mamba = Params(hidden * (inner + channels + heads) + inner * hidden, channels * (kernel + 1) + 3 * heads + inner)
    mlp = Params(2 * hidden * c.need("intermediate_size"), 0)
    kinds = {"M": mamba, "*": _attention(c), "-": mlp}
    body = _sum(kinds[k].plus(Params(0, hidden)) for k in pattern)
    linear = Linear(pattern.count("M"), heads, size, state, channels, kernel, groups)
    return _plain(c, body, full_layers=pattern.count("*"), linear=linear)


def _eagle3(c: _Config) -> Shape:
    """An EAGLE-3 draft: the first layer reads embedding and hidden state side by side, and three hidden states of the
    target are joined by one matrix; its output head has `draft_vocab_size` rows."""
    hidden, layers = c.need("hidden_size"), c.whole("num_hidden_layers") or 1
    first = _attention(c, 2 * hidden).plus(_mlp(c))
    later = _attention(c).plus(_mlp(c)).times(layers - 1)
    joined = Params(3 * (c.whole("target_hidden_size") or hidden) * hidden, hidden)
    head = (c.whole("draft_vocab_size") or c.need("vocab_size")) * hidden
    return _plain(c, first.plus(later).plus(joined), head=head)


def _vision(c: _Config) -> int:
    """A ViT as in the Qwen-VL family; 0 when it cannot be counted."""
    depth, hidden, width = c.whole("depth", "num_hidden_layers"), c.whole("hidden_size"), c.whole("intermediate_size")
    if not depth or not hidden or not width:
        return 0
    merged = hidden * (c.whole("spatial_merge_size") or 2) ** 2
    merger = merged * (merged + (c.whole("out_hidden_size") or hidden))
    patch = hidden * 3 * (c.whole("temporal_patch_size") or 2) * (c.whole("patch_size") or 16) ** 2
    places = (c.whole("num_position_embeddings") or 0) * hidden
    return depth * (4 * hidden**2 + 2 * hidden * width) + merger + patch + places


def _quantised(quantisation: Mapping[str, Any], shape: Shape, c: _Config) -> float | None:
    """Bytes per number of the quantised matrices, scales included; None for a method that is not known here."""
    plain = float(_DTYPES.get(c.word("torch_dtype") or c.word("dtype") or "bfloat16", 2))
    if not quantisation:
        return plain
    method = (text_of(quantisation.get("quant_method")) or "").lower()
    if method == "fp8":
        block = [n for n in list_of(quantisation.get("weight_block_size")) if isinstance(n, int) and n > 0]
        return 1.0 + (4 / (block[0] * block[1]) if len(block) == 2 else 0.0)
    bits, group = whole_of(quantisation.get("bits")), whole_of(quantisation.get("group_size"))
    if method in ("gptq", "awq") and bits and group:
        return (bits + (16 + bits) / group) / 8
    return None


def _sum(parts: Any) -> Params:
    total = Params()
    for part in parts:
        total = total.plus(part)
    return total


_BUILDERS = {
    **dict.fromkeys(_DENSE | _MOE, _decoder),
    **dict.fromkeys(_LATENT, _mla),
    **dict.fromkeys(_DELTA, _delta),
    **dict.fromkeys(_MAMBA, _nemotron),
}
