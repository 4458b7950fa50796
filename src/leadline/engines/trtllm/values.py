"""What the values of a setting may be, and their canonical form."""

from __future__ import annotations

import re
from typing import Any

from leadline.dialect.options import plain
from leadline.engines.trtllm.methods import METHODS, MOST_DEPTH
from leadline.engines.trtllm.options import OPTIONS, SERVER
from leadline.errors import InputError
from leadline.space import Setting, Value

SPECULATION = ("depth", "spec_method", "draft_model", "topk", "draft_tokens")
KNOBS = (*SPECULATION, "memory_fraction", "max_running", "graph_max_batch", "kv_dtype")
_WHOLE = {
    "depth": (0, MOST_DEPTH),
    "topk": (1, MOST_DEPTH),
    "draft_tokens": (1, 1 << 16),
    "max_running": (1, 1 << 16),
    "graph_max_batch": (0, 1 << 16),
}


def canonical(setting: Setting) -> Setting:
    """The setting without what has no meaning in it.

    With depth 0 nothing of speculation is left; a method without a draft model has none; a chain (`topk=1`, or a method
    that drafts no trees) has neither topk nor draft_tokens; of a tree, `draft_tokens` = topk * depth is the default.
    """
    values = {name: _normal(name, value) for name, value in setting}
    method = METHODS.get(str(values.get("spec_method")))
    if values.get("depth") == 0:
        for name in SPECULATION[1:]:
            values.pop(name, None)
    if method is not None and not method.needs_draft:
        values.pop("draft_model", None)
    topk = values.get("topk")
    if topk is None or topk == 1 or (method is not None and not method.tree):
        values.pop("topk", None)
        values.pop("draft_tokens", None)
    elif values.get("draft_tokens") == _product(topk, values.get("depth")):
        values.pop("draft_tokens", None)
    return Setting.of(values)


def _product(topk: Value, depth: Value | None) -> int | None:
    return topk * depth if isinstance(topk, int) and isinstance(depth, int) else None


def _normal(name: str, value: Value) -> Value:
    if name in _WHOLE and isinstance(value, float) and value.is_integer():
        return int(value)
    if name == "memory_fraction" and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return value


def check(setting: Setting) -> None:
    """Raises InputError for a knob that trtllm-serve does not have, or a value that it cannot have."""
    seen: dict[str, str] = {}
    for name, value in setting:
        if name.startswith("flag:-"):
            spelling = plain(name.removeprefix("flag:"))
            option = OPTIONS[spelling].name if spelling in OPTIONS else spelling
            if option in seen:
                raise InputError(f"{seen[option]} and {name} are the same option of {SERVER}: keep one")
            seen[option] = name
        elif name not in KNOBS and not name.startswith("env:"):
            raise InputError(f"{SERVER} has no knob {name}; it has {', '.join(KNOBS)}, and any flag:--NAME or env:NAME")
        else:
            _check_value(name, value)


def _check_value(name: str, value: Value) -> None:
    value = _normal(name, value)
    if name in _WHOLE:
        least, most = _WHOLE[name]
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise InputError(f"{name} is a whole number from {least} to {most}, not {value!r}")
    elif name == "memory_fraction":
        if not isinstance(value, float) or not 0 < value <= 1:
            raise InputError(f"memory_fraction is more than 0 and at most 1, not {value!r}")
    elif name in KNOBS and not (isinstance(value, str) and re.fullmatch(r"\S+", value)):
        raise InputError(f"{name} is a text without blanks, not {value!r}")


def whole(where: str, value: Any) -> int:
    """A whole number, also when it is written as text. Raises InputError that names `where` it stands."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d{1,9}\s*", value):
        return int(value)
    raise InputError(f"{where} is {value!r}, which is no whole number{_template(value)}")


def fraction(where: str, value: Any) -> float:
    if isinstance(value, str) and re.fullmatch(r"\s*[+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*", value):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{where} is {value!r}, which is no number{_template(value)}")
    if not 0 < value <= 1:
        raise InputError(f"{where} is {value}: the server wants more than 0 and at most 1")
    return float(value)


def text(where: str, value: Any) -> str:
    if isinstance(value, str) and value:
        return value
    raise InputError(f"{where} is {value!r}, which is no text")


def truth(value: Any) -> bool:
    """As pydantic reads a switch."""
    return value is True or value == 1 or (isinstance(value, str) and value.lower() in ("true", "yes", "on", "1"))


def _template(value: Any) -> str:
    """For a file that a script fills in when it starts the server."""
    return ": give the file as the server reads it, with its variables filled in" if "$" in str(value) else ""
