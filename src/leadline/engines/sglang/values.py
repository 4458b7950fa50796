"""What the values of a setting may be, and their canonical form."""

from __future__ import annotations

import re

from leadline.engines.sglang.methods import (
    METHODS,
    MOST_DEPTH,
    canonical_name,
    draft_tokens_of,
    most_draft_tokens,
)
from leadline.errors import InputError
from leadline.space import Setting, Value

_WHOLE = {
    "depth": (0, MOST_DEPTH),
    "topk": (1, 64),
    "draft_tokens": (2, 1024),
    "max_running": (1, 1 << 16),
    "graph_max_batch": (1, 1 << 16),
}
_TEXTS = ("spec_method", "draft_model", "kv_dtype")
_DRAFTING = ("spec_method", "draft_model", "topk", "draft_tokens")
_EXAMPLE = "SGLang itself takes 8 with 5 steps and topk 4; with topk 1 the figure has no effect"
_DRAFTING_FLAGS = ("--enable-multi-layer-eagle", "--uno-lora-path")


def canonical(setting: Setting) -> Setting:
    """The setting without what has no meaning in it, and with what follows from it.

    At depth 0 nothing of speculation is left. NEXTN is EAGLE. Of a method with steps `topk` is 1 when not given, and
    `draft_tokens` is depth + 1 with topk 1 whatever was given, else as given but no more than the tree holds, 8 when
    not given. Of the other methods both follow from the depth and are left out; so is a draft model that they lack.
    """
    values = {name: _normal(name, value) for name, value in setting}
    depth, name = values.get("depth"), values.get("spec_method")
    if depth == 0:
        return Setting.of({n: v for n, v in values.items() if not drafting(n)})
    method = METHODS.get(str(name))
    if method is None:
        return Setting.of(values)
    if method.draft is False:
        values.pop("draft_model", None)
    if not method.steps:
        values.pop("topk", None)
        values.pop("draft_tokens", None)
    elif _is_whole(depth):
        topk, asked = values.setdefault("topk", 1), values.get("draft_tokens")
        if _is_whole(topk) and (asked is None or _is_whole(asked)):
            values["draft_tokens"] = draft_tokens_of(_int(depth), _int(topk), None if asked is None else _int(asked))
    return Setting.of(values)


def drafting(name: str) -> bool:
    """Whether a knob, or the flag of a `flag:` name, belongs to speculation."""
    flag = name.removeprefix("flag:").replace("_", "-")
    return name in _DRAFTING or flag.startswith("--speculative-") or flag in _DRAFTING_FLAGS


def check(setting: Setting, known: tuple[str, ...]) -> None:
    """Raises InputError for a knob that SGLang does not have, or a value that it cannot have."""
    for name, value in setting:
        if name.startswith(("env:", "flag:-")):
            continue
        if name not in known:
            raise InputError(f"SGLang has no knob {name}; it has {', '.join(known)}, and any flag:--NAME or env:NAME")
        if name in _WHOLE:
            least, most = _WHOLE[name]
            number = _normal(name, value)
            if not _is_whole(number) or not least <= _int(number) <= most:
                raise InputError(f"{name} is a whole number from {least} to {most}, not {value!r}")
        elif name in _TEXTS and not (isinstance(value, str) and re.fullmatch(r"\S(.*\S)?", value)):
            raise InputError(f"{name} is a text, not {value!r}")
        elif name == "memory_fraction" and not (type(value) is float and 0 < value < 1):
            raise InputError(f"memory_fraction is a number between 0 and 1, like 0.85, not {value!r}")


def check_tokens(asked: Setting, now: Setting, full: Setting) -> None:
    """Raises InputError for a tree that SGLang cannot make, or whose size nobody gave.

    With topk 1, and with methods that have no topk, `draft_tokens` follows from the depth, as SGLang has it too.
    """
    depth, topk, wanted = full.depth, full.integer("topk") or 1, asked.integer("draft_tokens")
    if depth == 0 or topk == 1:
        return
    if wanted is None and now.get("topk") == 1:
        raise InputError(
            f"topk={topk} makes a tree of what was a chain of {now.get('draft_tokens')} tokens: say under [keep] or "
            f"[knobs] how many draft_tokens it verifies ({_EXAMPLE})"
        )
    most = most_draft_tokens(depth, topk)
    if wanted is not None and wanted > most:
        raise InputError(f"draft_tokens={wanted} with depth={depth} topk={topk}: the tree has {most} tokens in all")


def _normal(name: str, value: Value) -> Value:
    if name in _WHOLE and isinstance(value, float) and value.is_integer():
        return int(value)
    if name == "spec_method" and isinstance(value, str):
        return canonical_name(value)
    return value


def _is_whole(value: Value | None) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _int(value: Value | None) -> int:
    return value if isinstance(value, int) else 0


def fraction(flag: str, text: str | None) -> float | None:
    """The number after a flag; None when there is none."""
    if text is None:
        return None
    if not re.fullmatch(r"\d{0,9}\.?\d{0,18}", text.strip()) or not re.search(r"\d", text):
        raise InputError(f"{flag} is followed by {text!r}, which is no number")
    return float(text)
