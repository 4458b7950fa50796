"""How vLLM drafts: the values of `spec_method` (`SpeculativeMethod` in vllm/config/speculative.py)."""

from __future__ import annotations

import re
from dataclasses import dataclass

MOST_DEPTH = 1024
SUFFIX_DEPTH = 24
"""What `suffix` drafts at most when nothing is said: its `suffix_decoding_max_tree_depth`."""


@dataclass(frozen=True, slots=True)
class Method:
    """`draft`: "needed" = it will not start without a model to draft with, "own" = the served model has the layers,
    another may be named, "none" = it drafts from the text."""

    name: str
    draft: str


METHODS: dict[str, Method] = {
    m.name: m
    for m in (
        Method("mtp", "own"),
        Method("eagle", "needed"),
        Method("eagle3", "needed"),
        Method("draft_model", "needed"),
        Method("dflash", "needed"),
        Method("dspark", "own"),
        Method("ngram", "none"),
        Method("ngram_gpu", "none"),
        Method("suffix", "none"),
        Method("medusa", "needed"),
        Method("mlp_speculator", "needed"),
        Method("custom_class", "needed"),
    )
}
"""Of later methods nothing is known: they are written as they are given."""


def plain(name: str) -> str:
    """`deepseek_mtp` and the like are old names of `mtp`, `[ngram]` of `ngram`."""
    if re.fullmatch(r"\w+_mtp", name):
        return "mtp"
    return "ngram" if name == "[ngram]" else name


def drafts_from_text(name: object) -> bool:
    return isinstance(name, str) and name in METHODS and METHODS[name].draft == "none"


def needs_draft(name: object) -> bool:
    return isinstance(name, str) and name in METHODS and METHODS[name].draft == "needed"
