"""The canonical knobs of trtllm-serve, with its own flag or YAML key beside each name."""

from __future__ import annotations

from leadline.engines.trtllm.methods import METHODS
from leadline.space import Knob

KNOBS = (
    Knob(
        name="depth",
        values=(),
        flag="speculative_config.max_draft_len",
        unit="tok",
        doc="tokens drafted in a chain a round; MTP's older key is num_nextn_predict_layers; 0 = no speculative_config",
    ),
    Knob(
        name="spec_method",
        values=(),
        flag="speculative_config.decoding_type",
        doc=f"one of {', '.join(METHODS)}, in this spelling",
    ),
    Knob(
        name="draft_model",
        values=(),
        flag="speculative_config.speculative_model",
        doc="a folder or an identifier of a hub, for Eagle, Eagle3, Draft_Target, PARD and DFlash",
    ),
    Knob(
        name="topk",
        values=(),
        flag="speculative_config.dynamic_tree_max_topK",
        doc="branches of each draft step, with use_dynamic_tree; 1 = a chain; Eagle and Eagle3 only",
    ),
    Knob(
        name="draft_tokens",
        values=(),
        flag="speculative_config.max_total_draft_tokens",
        unit="tok",
        doc="nodes of the draft tree, without the token that the model adds: depth to topk * depth, the default",
    ),
    Knob(
        name="memory_fraction",
        values=(),
        flag="--kv_cache_free_gpu_memory_fraction",
        doc="share for the KV cache of the memory that is FREE once weights and buffers are in place: lower it "
        "when the server runs out of memory (SGLang's and vLLM's fractions are of the whole, weights included)",
    ),
    Knob(
        name="max_running",
        values=(),
        flag="--max_batch_size",
        unit="requests",
        doc="requests decoded at once; buffers grow with it, and a hybrid model's states with it times 1 + depth",
    ),
    Knob(
        name="graph_max_batch",
        values=(),
        flag="cuda_graph_config.max_batch_size",
        unit="requests",
        doc="largest batch that runs as a captured graph; 0 = none (cuda_graph_config: null)",
    ),
    Knob(
        name="kv_dtype",
        values=(),
        flag="kv_cache_config.dtype",
        changes_output=True,
        doc="type of the KV cache: auto, fp8, nvfp4, ...",
    ),
)
