"""What the values of a setting may be, and their canonical form."""

from __future__ import annotations

import re

from leadline.dialect.options import plain as plain_flag
from leadline.engines.vllm import methods
from leadline.engines.vllm.flags import OPTIONS
from leadline.errors import InputError
from leadline.space import Setting, Value

SPECULATIVE = "--speculative-config"
_WHOLE = {"depth": 0, "max_running": 1, "graph_max_batch": 1}
"""The least of each."""
_MOST = 1 << 16
_ABSENT = {
    "topk": "vLLM drafts one chain a round and has no tree: its width is no option",
    "draft_tokens": "vLLM verifies the whole chain: what it verifies is always depth + 1",
}


def canonical(setting: Setting) -> Setting:
    """The setting without what has no meaning in it.

    With depth 0 nothing of speculation is left; a method that drafts from the text has no draft model; an old name of a
    method is the new one; 4.0 is 4, and a memory fraction of 1 is 1.0.
    """
    values = {name: _normal(name, value) for name, value in setting}
    if values.get("depth") == 0:
        values = {name: value for name, value in values.items() if not _speculative(name)}
    elif methods.drafts_from_text(values.get("spec_method")):
        values.pop("draft_model", None)
    return Setting.of(values)


def owner(flag: str) -> str:
    """The canonical name of `flag:--NAME`, and of `flag:--NAME.key`."""
    head, dot, keys = plain_flag(flag.removeprefix("flag:")).partition(".")
    return (OPTIONS[head].name if head in OPTIONS else head) + dot + keys.replace("_", "-")


def _normal(name: str, value: Value) -> Value:
    if name in _WHOLE and isinstance(value, float) and value.is_integer():
        return int(value)
    if name == "memory_fraction" and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if name == "spec_method" and isinstance(value, str):
        return methods.plain(value)
    return value


def _speculative(name: str) -> bool:
    if name.startswith("flag:"):
        return owner(name).startswith((SPECULATIVE, "--spec-", "--per-request-spec-decode-metrics"))
    return name in ("spec_method", "draft_model")


def check(setting: Setting, known: tuple[str, ...]) -> None:
    """Raises InputError for a knob that vLLM does not have, or a value that it cannot have."""
    seen: dict[str, str] = {}
    for name, value in setting:
        if name in _ABSENT:
            raise InputError(f"{name} cannot be set: {_ABSENT[name]}")
        if name.startswith("flag:-"):
            option = owner(name)
            if option in seen:
                raise InputError(f"{seen[option]} and {name} are the same option of vLLM: keep one")
            seen[option] = name
        elif name not in known and not name.startswith("env:"):
            raise InputError(f"vLLM has no knob {name}; it has {', '.join(known)}, and any flag:--NAME or env:NAME")
        else:
            _check_value(name, _normal(name, value))


def _check_value(name: str, value: Value) -> None:
    if name in _WHOLE:
        most = methods.MOST_DEPTH if name == "depth" else _MOST
        if isinstance(value, bool) or not isinstance(value, int) or not _WHOLE[name] <= value <= most:
            raise InputError(f"{name} is a whole number from {_WHOLE[name]} to {most}, not {value!r}")
    elif name == "memory_fraction":
        if not isinstance(value, float) or not 0 < value <= 1:
            raise InputError(
                f"memory_fraction is a share of the device's memory, more than 0 and at most 1, not {value!r}"
            )
    elif name == "kv_dtype":
        if not (isinstance(value, str) and re.fullmatch(r"[A-Za-z]\w*", value)):
            raise InputError(f"kv_dtype is a type like auto or fp8, not {value!r}")
    elif name in ("spec_method", "draft_model") and not (isinstance(value, str) and value):
        raise InputError(f"{name} is a text, not {value!r}")


def whole(flag: str, text: str | None) -> int | None:
    """The number after a flag, `8k` and the like included; None when there is none."""
    if text is None:
        return None
    found = re.fullmatch(r"\s*([+-]?\d{1,12})([kK]?)\s*", text)
    if not found:
        raise InputError(f"{flag} is followed by {text!r}, which is no whole number")
    return int(found[1]) * {"": 1, "k": 1000, "K": 1024}[found[2]]
