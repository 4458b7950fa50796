"""The speculation of a launch: what is in force, and how to put another depth in force.

Sources: `EngineArgs.create_speculative_config` in vllm/engine/arg_utils.py, `SpeculativeConfig` in
vllm/config/speculative.py. A model whose own files hold a speculators configuration speculates without a word of it in
the launch: that shows in the running server alone.
"""

from __future__ import annotations

from typing import Any

from leadline.engines.vllm import methods, nested
from leadline.engines.vllm.reading import Options
from leadline.engines.vllm.values import SPECULATIVE
from leadline.engines.vllm.versions import Release, without_method
from leadline.errors import InputError
from leadline.space import Setting

TOKENS, METHOD, MODEL = "num_speculative_tokens", "method", "model"
SCHEDULE = "num_speculative_tokens_per_batch_size"
SHORTCUTS = {METHOD: "--spec-method", MODEL: "--spec-model", TOKENS: "--spec-tokens"}
REQUEST_METRICS = "--per-request-spec-decode-metrics"


def config(options: Options) -> dict[str, Any] | None:
    """The speculative configuration as vLLM puts it together; None when there is none."""
    whole = nested.given(options, SPECULATIVE)
    for key, flag in SHORTCUTS.items():
        text = options.text(flag)
        if text is None or text in ("", "None"):
            continue
        if whole is not None and key in whole:
            raise InputError(f"{flag} and {SPECULATIVE}['{key}'] are mutually exclusive: vLLM would not start")
        whole = {**(whole or {}), key: int(text) if key == TOKENS and text.strip().isdecimal() else text}
    return whole


def in_force(options: Options) -> tuple[int, str | None, str | None]:
    """Depth, method and draft model; (0, None, None) when speculation is off.

    Raises InputError when the depth is not one number, or when vLLM would not start.
    """
    now = config(options)
    if now is None:
        return 0, None, None
    if now.get(SCHEDULE) is not None:
        raise InputError(
            f"{SCHEDULE} chooses the depth by the number of requests, so that no one depth is in force. Take it out of "
            f"{SPECULATIVE}, or set flag:{SPECULATIVE}.{SCHEDULE}=false"
        )
    method, draft = _method(now), now.get(MODEL)
    if methods.drafts_from_text(method) or not isinstance(draft, str):
        draft = None
    return _depth(now, method), method, draft


def without_schedule(options: Options) -> Options:
    return nested.drop(options, SPECULATIVE, SCHEDULE)


def put_in_force(options: Options, now: Setting, full: Setting, release: Release | None) -> Options:
    """The depth, method and draft model of `full`; no word is touched when they are in force `now`."""
    if full.depth == 0:
        return _off(options)
    if all(now.get(n) == full.get(n) for n in ("depth", "spec_method", "draft_model")):
        return options
    method, draft = full.get("spec_method"), full.get("draft_model")
    if method is None and draft is None:
        raise InputError(
            f"depth={full.depth} needs a method or a draft model: set spec_method under [keep] or [knobs], to one of "
            f"{', '.join(methods.METHODS)}"
        )
    if methods.needs_draft(method) and draft is None:
        raise InputError(
            f"{method} needs a draft model, and vLLM does not start without one: set draft_model under [keep] or "
            "[knobs]"
        )
    if method != now.get("spec_method") and (why := without_method(release, str(method))):
        raise InputError(why)
    if method != now.get("spec_method"):
        if methods.drafts_from_text(method):
            options = _without_model(options)
        options = _put(options, METHOD, str(method))
    if draft is not None and draft != now.get("draft_model"):
        options = _put(options, MODEL, str(draft))
    return _put(options, TOKENS, full.depth)


def _off(options: Options) -> Options:
    """No word of speculation is left, nor of its metrics: vLLM does not start with those alone."""
    unwanted = {*SHORTCUTS.values(), REQUEST_METRICS}
    return nested.drop_all(options.drop(lambda name: name in unwanted), SPECULATIVE)


def _without_model(options: Options) -> Options:
    return nested.drop(options.drop(lambda name: name == SHORTCUTS[MODEL]), SPECULATIVE, MODEL)


def _put(options: Options, key: str, value: str | int) -> Options:
    """Where the key stands now; else in the configuration, or among the shortcuts, when one of them is used already."""
    whole = nested.given(options, SPECULATIVE)
    used = [flag for flag in SHORTCUTS.values() if options.has(flag)]
    if SHORTCUTS[key] in used or (whole is None and used):
        return options.set(SHORTCUTS[key], value)
    return nested.put(options, SPECULATIVE, key, value)


def _method(now: dict[str, Any]) -> str | None:
    method = now.get(METHOD)
    if method is None:
        return "ngram" if now.get(MODEL) in ("ngram", "[ngram]") else None
    if not isinstance(method, str):
        raise InputError(f"the speculative method is a name, not {method!r}: vLLM would not start")
    return methods.plain(method)


def _depth(now: dict[str, Any], method: str | None) -> int:
    depth = now.get(TOKENS)
    if depth is None and method == "suffix":
        depth = now.get("suffix_decoding_max_tree_depth", methods.SUFFIX_DEPTH)
    if depth is None:
        raise InputError(
            f"{TOKENS} is not given, so that the depth is whatever the draft model's own configuration says: give it"
        )
    if isinstance(depth, bool) or not isinstance(depth, int) or depth < 1:
        raise InputError(f"{TOKENS} is a whole number of at least 1, not {depth!r}: vLLM would not start")
    return depth
