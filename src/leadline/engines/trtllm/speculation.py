"""`speculative_config` of the YAML file: what is in force, and how to put another depth in force.

Rules and defaults are those of `DecodingBaseConfig` and its subclasses in `llmapi/llm_args.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leadline.engines.trtllm.methods import EVERYWHERE, GATES, METHODS, NO_DEPTH, TREE, Method
from leadline.engines.trtllm.site import SPEC, Site
from leadline.engines.trtllm.values import SPECULATION, text, truth, whole
from leadline.errors import InputError
from leadline.space import Setting, Value

DEPTH, NEXTN, TOTAL, TYPE = "max_draft_len", "num_nextn_predict_layers", "max_total_draft_tokens", "decoding_type"
MODEL, MODEL_DIR = "speculative_model", "speculative_model_dir"


def in_force(site: Site) -> dict[str, Value]:
    """The knobs of speculation; depth 0 alone when it is off. Raises InputError when the depth is not fixed."""
    spec = _block(site)
    if not spec:
        return {"depth": 0}
    method = text(f"{site.name}: {SPEC}.{TYPE}", spec.get(TYPE))
    _refuse_unfixed(site, spec, method)
    depth = _depth(site, spec, method)
    values: dict[str, Value] = {"depth": depth, "spec_method": method}
    model = _model(site, spec)
    if model is not None:
        values["draft_model"] = model
    topk = _topk(site, spec)
    if topk is not None:
        values["topk"] = topk
        if spec.get(TOTAL) is not None:
            values["draft_tokens"] = whole(f"{site.name}: {SPEC}.{TOTAL}", spec[TOTAL])
    return values


def put_in_force(site: Site, now: Setting, full: Setting) -> Site:
    """The knobs of `full`; nothing is touched when they are in force `now`. `allowed` has been asked before."""
    if all(now.get(n) == full.get(n) for n in SPECULATION):
        return site
    if full.depth == 0:
        return site.dropping((SPEC,))
    method = METHODS[str(full["spec_method"])]
    spec = _block(site)
    if now.get("spec_method") != method.name:
        site, spec = _other_method(site, spec, method)
    site = site.putting((SPEC, TYPE), method.name)
    for key in _depth_keys(site, spec, method):
        site = site.putting((SPEC, key), full.depth)
    if method.needs_draft:
        site = site.putting((SPEC, _model_key(site, spec)), full["draft_model"])
    return _tree(site, spec, full)


def allowed(site: Site, wanted: Setting, full: Setting) -> None:
    """Raises InputError for what the server would refuse at its start, in its own terms."""
    if full.depth == 0:
        return
    name = full.get("spec_method")
    if not isinstance(name, str):
        raise InputError(
            f"depth={full.depth} needs a method: set spec_method under [keep] or [knobs], to one of "
            f"{', '.join(METHODS)}"
        )
    if name in NO_DEPTH:
        raise InputError(f"{TYPE} {name} cannot be tuned: {NO_DEPTH[name]}")
    if name not in METHODS:
        raise InputError(f"spec_method is one of {', '.join(METHODS)}, not {name!r} (upper and lower case count)")
    method = METHODS[name]
    if site.backend not in method.backends:
        raise InputError(f"{name} does not support the backend {site.backend}")
    if method.needs_draft and not full.get("draft_model"):
        raise InputError(f"{name} needs a draft model: set draft_model under [keep] or [knobs] ({SPEC}.{MODEL})")
    _tree_allowed(method, wanted, full)


def _tree_allowed(method: Method, wanted: Setting, full: Setting) -> None:
    topk, total = full.integer("topk") or 1, full.integer("draft_tokens")
    if (wanted.integer("topk") or 1) > 1 and not method.tree:
        raise InputError(f"{method.name} drafts a chain: topk={wanted['topk']} needs Eagle or Eagle3")
    if topk == 1 and wanted.get("draft_tokens") not in (None, full.depth):
        raise InputError(
            f"a chain drafts exactly as many tokens as it is deep: draft_tokens={wanted['draft_tokens']} needs topk "
            f"above 1, or depth={wanted['draft_tokens']}"
        )
    if total is not None and not full.depth <= total <= topk * full.depth:
        raise InputError(
            f"draft_tokens={total}: a tree holds at least depth={full.depth} and at most topk * depth = "
            f"{topk * full.depth} tokens ({TOTAL})"
        )


def _block(site: Site) -> Mapping[str, Any]:
    block = site.at((SPEC,))
    if block is not None and not isinstance(block, Mapping):
        raise InputError(f"{site.name}: {SPEC} must hold options by name")
    return block or {}


def _refuse_unfixed(site: Site, spec: Mapping[str, Any], method: str) -> None:
    if spec.get("max_concurrency") is not None and spec.get("draft_len_schedule") is not None:
        raise InputError(f"{site.name}: max_concurrency and draft_len_schedule are mutually exclusive")
    for key, does in GATES.items():
        if spec.get(key) not in (None, 0):
            raise InputError(
                f"{site.name}: {SPEC}.{key} {does}, so that no one depth is in force: remove it to tune the depth"
            )
    if method in NO_DEPTH:
        raise InputError(f"{site.name}: {TYPE} {method} cannot be tuned: {NO_DEPTH[method]}")
    if spec.get("eagle_choices") is not None:
        raise InputError(f"{site.name}: {SPEC}.eagle_choices fixes the depth, and is deprecated: remove it")


def _depth(site: Site, spec: Mapping[str, Any], method: str) -> int:
    """MTP: up to 1.2 `num_nextn_predict_layers` counts and the other key is ignored; later it is the other way."""
    given = {k: whole(f"{site.name}: {SPEC}.{k}", spec[k]) for k in (DEPTH, NEXTN) if spec.get(k) is not None}
    if method == "MTP" and site.before((1, 3)):
        if NEXTN not in given and DEPTH in given:
            raise InputError(f"{site.name}: TensorRT-LLM 1.2 reads MTP's depth from {NEXTN} and ignores {DEPTH}")
        given = {k: v for k, v in given.items() if k == NEXTN}
    if len(set(given.values())) > 1:
        raise InputError(f"{site.name}: {DEPTH} and {NEXTN} disagree, and versions take one or the other: keep one")
    if not given and method == "MTP":
        raise InputError(f"{site.name}: MTP without {DEPTH} takes its depth from the model: write it into {SPEC}")
    depth = next(iter(given.values()), 0)
    if depth <= 0:
        raise InputError(f"{site.name}: {DEPTH} must be > 0 for {method}; remove {SPEC} to run without speculation")
    return depth


def _depth_keys(site: Site, spec: Mapping[str, Any], method: Method) -> tuple[str, ...]:
    if method.name != "MTP":
        return (DEPTH,)
    if present := tuple(k for k in (DEPTH, NEXTN) if spec.get(k) is not None):
        return present
    # Both keys say the same to every release that still knows the older one.
    return (DEPTH,) if site.since((1, 4)) else (DEPTH, NEXTN)


def _model(site: Site, spec: Mapping[str, Any]) -> str | None:
    given = [k for k in (MODEL, MODEL_DIR) if spec.get(k) is not None]
    if len(given) > 1:
        raise InputError(f"{site.name}: {MODEL} and {MODEL_DIR} are the same option: keep one")
    return text(f"{site.name}: {SPEC}.{given[0]}", spec[given[0]]) if given else None


def _model_key(site: Site, spec: Mapping[str, Any]) -> str:
    """The older name is read by every release known; the newer one since 1.2."""
    given = [k for k in (MODEL, MODEL_DIR) if k in spec]
    return given[0] if given else (MODEL if site.since((1, 2)) else MODEL_DIR)


def _topk(site: Site, spec: Mapping[str, Any]) -> int | None:
    use, most = (spec.get(k) for k in TREE)
    if most is None:
        if truth(use):
            raise InputError(f"{site.name}: {TREE[1]} should be provided with {TREE[0]}")
        return None
    topk = whole(f"{site.name}: {SPEC}.{TREE[1]}", most)
    if topk < 1:
        raise InputError(f"{site.name}: {TREE[1]} must be > 0")
    return topk


def _other_method(site: Site, spec: Mapping[str, Any], method: Method) -> tuple[Site, Mapping[str, Any]]:
    """Without the keys that the new method does not know; what stays may be the new method's as well."""
    old = METHODS.get(str(spec.get(TYPE)))
    mine = EVERYWHERE | method.keys | ({MODEL, MODEL_DIR} if method.needs_draft else frozenset())
    theirs = {MODEL, MODEL_DIR} | (old.keys if old else frozenset())
    kept: dict[str, Any] = {}
    for key, value in spec.items():
        if key in mine:
            kept[key] = value
        elif key in theirs:
            site = site.dropping((SPEC, key))
        else:
            raise InputError(f"{site.name}: whether {SPEC}.{key} goes with {method.name} is not known: remove it first")
    # The depth's key of one method may mean nothing to another.
    return site, {k: v for k, v in kept.items() if k not in (DEPTH, NEXTN)}


def _tree(site: Site, spec: Mapping[str, Any], full: Setting) -> Site:
    topk, total = full.integer("topk"), full.integer("draft_tokens")
    if topk is not None:
        site = site.putting((SPEC, TREE[0]), True).putting((SPEC, TREE[1]), topk)
    elif spec.get(TREE[1]) not in (None, 1):
        site = site.dropping((SPEC, TREE[0])).dropping((SPEC, TREE[1]))
    if total is not None or spec.get(TOTAL) is not None:
        site = site.putting((SPEC, TOTAL), total or (topk or 1) * full.depth)
    return site
