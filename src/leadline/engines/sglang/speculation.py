"""The speculation group of a command line: what is in force, and how to put another setting in force."""

from __future__ import annotations

from leadline.dialect.values import whole
from leadline.engines.sglang.methods import (
    ALGORITHM,
    DFLASH_BLOCK,
    DRAFT_MODEL,
    DRAFT_REVISION,
    DRAFT_TOKENS,
    DSPARK_BLOCK,
    METHODS,
    SILENT_CAP,
    STEPS,
    TOPK,
    Method,
    canonical_name,
    draft_tokens_of,
    method_of,
)
from leadline.engines.sglang.values import drafting
from leadline.engines.sglang.words import Words
from leadline.errors import InputError
from leadline.space import Setting, Value

ADAPTIVE = "--speculative-adaptive"
GROUP = (ALGORITHM, DRAFT_MODEL, STEPS, TOPK, DRAFT_TOKENS, DFLASH_BLOCK, DSPARK_BLOCK)
"""What we write: each is left once."""

_SHOWN = "the running server shows them in /server_info"


def in_force(words: Words) -> dict[str, Value]:
    """The knobs of speculation, defaults included; depth 0 alone when it is off.

    Raises InputError when the depth cannot be told: chosen from the model's architecture, or changed while it runs.
    """
    text = words.value(ALGORITHM)
    if text is None:
        return {"depth": 0}
    if words.has(ADAPTIVE):
        raise InputError(f"{ADAPTIVE} changes the depth while the server runs: remove it to tune the depth")
    method = method_of(text, words.patch)
    found: dict[str, Value] = {"spec_method": method.name}
    if draft := words.value(DRAFT_MODEL):
        found["draft_model"] = draft
    if not method.steps:
        return {**found, "depth": _block_depth(words, method)}
    depth, topk, tokens = (whole(flag, words.value(flag)) for flag in (STEPS, TOPK, DRAFT_TOKENS))
    if depth is None:
        if topk is not None or tokens is not None:
            raise InputError(f"SGLang does not start with {TOPK} or {DRAFT_TOKENS} and without {STEPS}")
        raise InputError(
            f"without {STEPS} the depth depends on the model's architecture: give {STEPS}, {TOPK} and {DRAFT_TOKENS} "
            f"in the command ({_SHOWN})"
        )
    if depth <= 0:
        return {"depth": 0}
    topk = topk or 1
    return {**found, "depth": depth, "topk": topk, "draft_tokens": draft_tokens_of(depth, topk, tokens)}


def silent_cap(words: Words) -> int | None:
    """What SGLang caps running requests at by itself when nobody says how many; None when it does not."""
    text = words.value(ALGORITHM)
    return SILENT_CAP if text is not None and method_of(text, words.patch).caps else None


def put_in_force(words: Words, now: Setting, full: Setting) -> Words:
    """The group of `full`, all of its flags or none. Words that say the same already stay as they are."""
    if full.depth == 0:
        return words.drop(drafting)
    name = full.get("spec_method")
    if not isinstance(name, str):
        raise InputError(
            f"depth={full.depth} needs a method: set spec_method to one of {', '.join(METHODS)}, and draft_model "
            "where it has one, under [keep] or [knobs]"
        )
    method = method_of(name, words.patch)
    if now.get("spec_method") not in (None, method.name):
        words = words.drop(lambda flag: flag in (STEPS, TOPK, DRAFT_TOKENS, DFLASH_BLOCK, DSPARK_BLOCK))
    if canonical_name(words.value(ALGORITHM) or "") != method.name:
        words = words.put(ALGORITHM, ALGORITHM, method.name)
    words = _draft_model(words, method, now, full)
    return _with_steps(words, full) if method.steps else _with_block(words, method, full.depth)


def _with_steps(words: Words, full: Setting) -> Words:
    for flag, knob in ((STEPS, "depth"), (TOPK, "topk"), (DRAFT_TOKENS, "draft_tokens")):
        words = words.set(flag, str(full[knob]))
    return words


def _with_block(words: Words, method: Method, depth: int) -> Words:
    """DSPARK takes its block from the draft model unless `--speculative-dspark-block-size` says another."""
    if method.block is not None and (words.has(method.block) or method.block_is == 0):
        words = words.set(method.block, str(depth + method.block_is))
        return words.set(DRAFT_TOKENS, str(depth + 1)) if words.has(DRAFT_TOKENS) else words
    return words.set(DRAFT_TOKENS, str(depth + 1))


def _block_depth(words: Words, method: Method) -> int:
    block = whole(method.block, words.value(method.block)) if method.block else None
    if block is not None:
        return max(0, block - method.block_is)
    tokens = whole(DRAFT_TOKENS, words.value(DRAFT_TOKENS))
    tokens = method.default if tokens is None else tokens
    if tokens is None:
        raise InputError(
            f"the depth of {method.name} is the draft model's own unless {DRAFT_TOKENS} is given: add it ({_SHOWN})"
        )
    return max(0, tokens - 1)


def _draft_model(words: Words, method: Method, now: Setting, full: Setting) -> Words:
    model = full.get("draft_model")
    if method.draft is False:
        return words.drop(lambda flag: flag in (DRAFT_MODEL, DRAFT_REVISION))
    if not isinstance(model, str):
        if method.draft is None:
            raise InputError(f"{method.name} needs a draft model: set draft_model under [keep] or [knobs]")
        return words
    if "draft_model" in now and now.get("draft_model") != model:
        words = words.drop(lambda flag: flag == DRAFT_REVISION)
    return words.set(DRAFT_MODEL, model)
