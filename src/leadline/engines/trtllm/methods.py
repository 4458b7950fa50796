"""How TensorRT-LLM drafts: the values of `decoding_type`, and which keys of `speculative_config` go with each.

From the subclasses of `DecodingBaseConfig` in `llmapi/llm_args.py` (1.2 to 1.3rc). They forbid keys that they do not
know, so that what belongs to another method must go when the method changes.
"""

from __future__ import annotations

from dataclasses import dataclass

TORCH, AUTODEPLOY = "pytorch", "_autodeploy"

EVERYWHERE = frozenset(
    {"decoding_type", "max_draft_len", "max_total_draft_tokens", "load_format", "use_rejection_sampling"}
    | {"allow_advanced_sampling", "max_concurrency", "draft_len_schedule"}
    | {"acceptance_window", "acceptance_length_threshold"}
    | {"acceptance_rate_window_size", "acceptance_rate_threshold"}
)
"""Keys of every method, but for the draft model's."""


@dataclass(frozen=True, slots=True)
class Method:
    """`keys` are its own; `tree` = it can draft a tree; `backends` are those that run it."""

    name: str
    needs_draft: bool
    keys: frozenset[str] = frozenset()
    tree: bool = False
    backends: tuple[str, ...] = (TORCH,)


TREE = ("use_dynamic_tree", "dynamic_tree_max_topK")
_EAGLE = frozenset(
    {*TREE, "eagle_choices", "greedy_sampling", "posterior_threshold", "num_eagle_layers", "max_non_leaves_per_layer"}
    | {"eagle3_one_model", "eagle3_layers_to_capture", "eagle3_model_arch"}
)
_MTP = frozenset(
    {"num_nextn_predict_layers", "use_relaxed_acceptance_for_thinking", "relaxed_topk", "relaxed_delta"}
    | {"use_mtp_vanilla", "mtp_eagle_one_model", "begin_thinking_phase_token", "end_thinking_phase_token", "sa_config"}
)
_NGRAM = frozenset({"max_matching_ngram_size", "is_keep_all", "is_use_oldest", "is_public_pool"})

METHODS: dict[str, Method] = {
    m.name: m
    for m in (
        Method("Eagle", True, _EAGLE, tree=True, backends=(TORCH, AUTODEPLOY)),
        Method("Eagle3", True, _EAGLE | {"sa_config"}, tree=True, backends=(TORCH, AUTODEPLOY)),
        Method("MTP", False, _MTP, backends=(TORCH, AUTODEPLOY)),
        Method("NGram", False, _NGRAM),
        Method("SA", False, frozenset({"max_matching_ngram_size", "enable_global_pool", "global_pool_size"})),
        Method("Draft_Target", True, backends=(TORCH, AUTODEPLOY)),
        Method("PARD", True, frozenset({"mask_token_id", "sa_config"})),
        Method("DFlash", True, frozenset({"mask_token_id", "target_layer_ids"})),
    )
}

NO_DEPTH = {
    "AUTO": "the server chooses method and depth itself, and ignores max_draft_len",
    "User_Provided": "it needs objects of a Python program, which trtllm-serve cannot be given",
    "SaveState": "it writes hidden states to disk and drafts nothing",
    "Medusa": "the PyTorch backend does not run it",
    "Lookahead": "the PyTorch backend does not run it",
}

GATES = {
    "draft_len_schedule": "makes the depth depend on the batch",
    "max_concurrency": "switches speculation off above a batch size",
    "acceptance_window": "switches speculation off for good when few tokens are accepted",
    "acceptance_rate_window_size": "switches speculation off for good when few tokens are accepted",
}
"""Keys that change the depth while the server runs."""

MOST_DEPTH = 1024
