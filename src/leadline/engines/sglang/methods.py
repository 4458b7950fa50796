"""How SGLang drafts: the values of `spec_method`, and which options make the depth of each.

The EAGLE family drafts `num-steps` steps of `topk` branches and verifies `num-draft-tokens` tokens, the last one that
is certain included (`arg_groups/speculative_hook.py`, `_handle_eagle_family`). All others draft a block of
`num-draft-tokens` - 1 tokens, and their steps and topk are set by SGLang itself (`_handle_dflash`, `_handle_dspark`,
`_handle_ngram`, `_handle_uno`). So the depth is `num-steps` with the EAGLE family and `num-draft-tokens` - 1 with the
others. NGRAM's block is a tree unless `--speculative-ngram-max-bfs-breadth` is 1: its depth is the most tokens drafted
a round, not the longest chain.
"""

from __future__ import annotations

from dataclasses import dataclass

from leadline.engines.sglang.versions import said, within
from leadline.errors import InputError

ALGORITHM, DRAFT_MODEL = "--speculative-algorithm", "--speculative-draft-model-path"
STEPS, TOPK, DRAFT_TOKENS = "--speculative-num-steps", "--speculative-eagle-topk", "--speculative-num-draft-tokens"
DFLASH_BLOCK, DSPARK_BLOCK = "--speculative-dflash-block-size", "--speculative-dspark-block-size"
DRAFT_REVISION = "--speculative-draft-model-revision"

SILENT_CAP = 48
"""`--max-running-requests` under speculation when it is not given, and only then."""

MOST_DEPTH = 512
_TREE = 8
"""Tokens verified of a tree when nothing says how many: as SGLang chooses for trees (5 steps, topk 4)."""


@dataclass(frozen=True, slots=True)
class Method:
    """`steps`: the depth is `--speculative-num-steps`, and there is a topk. `draft`: whether it has a draft model
    (None = it must). `default` = its block when the command does not say, None = the draft model's own. `block` = its
    own name for the block, `block_is` = that option's value less the depth. `caps`: running requests are capped at 48
    when nothing is said. `since` = first 0.5.x that has it."""

    name: str
    steps: bool = False
    draft: bool | None = True
    default: int | None = None
    block: str | None = None
    block_is: int = 1
    caps: bool = True
    since: int = 0


METHODS = {
    m.name: m
    for m in (
        Method("EAGLE", steps=True),
        Method("EAGLE3", steps=True),
        Method("STANDALONE", steps=True, draft=None),
        Method("NGRAM", draft=False, default=12),
        Method("DFLASH", draft=None, block=DFLASH_BLOCK, since=11),
        Method("DSPARK", block=DSPARK_BLOCK, block_is=0, since=16),
        Method("UNO", draft=False, caps=False, since=20),
    )
}
ALIASES = {"NEXTN": "EAGLE"}


def canonical_name(text: str) -> str:
    """NEXTN is EAGLE; capitals, as SGLang makes them from 0.5.12 on."""
    return ALIASES.get(text.upper(), text.upper())


def method_of(text: str, patch: int | None = None) -> Method:
    """Raises InputError for one that is unknown, or that this version does not have."""
    method = METHODS.get(canonical_name(text))
    if method is None or not within(patch, method.since, None):
        known = ", ".join(m.name for m in METHODS.values() if within(patch, m.since, None))
        raise InputError(f"spec_method of {said(patch)} is one of {known} (NEXTN is EAGLE), not {text!r}")
    return method


def most_draft_tokens(depth: int, topk: int) -> int:
    """The tokens of the whole tree, the root included: `topk` at the first step and topk^2 at each further one.

    `speculative/eagle_utils.py`, `organize_draft_results`, takes the best of so many and fails when there are fewer.
    """
    return 1 + topk + (depth - 1) * topk * topk


def draft_tokens_of(depth: int, topk: int, asked: int | None) -> int:
    """Tokens verified a round: a chain's length and one; of a tree what is asked, or 8, as far as the tree goes."""
    if topk == 1:
        return depth + 1
    return min(max(2, asked) if asked is not None else max(depth + 1, _TREE), most_draft_tokens(depth, topk))
