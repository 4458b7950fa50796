"""What the values of a setting may be, and their canonical form."""

from __future__ import annotations

import re

from leadline.dialect.options import plain
from leadline.engines.llamacpp.flags import OPTIONS, speculative
from leadline.engines.llamacpp.methods import METHODS, MOST_DEPTH
from leadline.errors import InputError
from leadline.space import Setting, Value

_WHOLE = ("depth", "max_running")
_DTYPE = re.compile(r"\w+(/\w+)?")


def canonical(setting: Setting) -> Setting:
    """The setting without what has no meaning in it.

    With depth 0 nothing of speculation is left; without a draft-* method there is no draft model; `q8_0/q8_0` is
    `q8_0`; 4.0 is 4.
    """
    values = {name: _normal(name, value) for name, value in setting}
    method = values.get("spec_method")
    if values.get("depth") == 0:
        values = {name: value for name, value in values.items() if not _speculative(name)}
    elif isinstance(method, str) and not uses_draft_model(method):
        values.pop("draft_model", None)
    return Setting.of(values)


def uses_draft_model(method: str) -> bool:
    return any(part in METHODS and METHODS[part].draft_model for part in method.split(","))


def kv_pair(dtype: str) -> tuple[str, str]:
    k, _, v = dtype.partition("/")
    return k, v or k


def _normal(name: str, value: Value) -> Value:
    if name in _WHOLE and isinstance(value, float) and value.is_integer():
        return int(value)
    if name == "kv_dtype" and isinstance(value, str):
        k, v = kv_pair(value)
        return k if k == v else value
    return value


def _speculative(name: str) -> bool:
    if name.startswith("flag:"):
        spelling = plain(name.removeprefix("flag:"))
        option = OPTIONS.get(spelling)
        return speculative(option.name if option else spelling)
    return name in ("spec_method", "draft_model") or name.startswith("env:LLAMA_ARG_SPEC_")


def check(setting: Setting, known: tuple[str, ...]) -> None:
    """Raises InputError for a knob that llama-server does not have, or a value that it cannot have."""
    seen: dict[str, str] = {}
    for name, value in setting:
        if name.startswith("flag:-"):
            spelling = plain(name.removeprefix("flag:"))
            option = OPTIONS[spelling].name if spelling in OPTIONS else spelling
            if option in seen:
                raise InputError(f"{seen[option]} and {name} are the same option of llama-server: keep one")
            seen[option] = name
        elif name not in known and not name.startswith("env:"):
            raise InputError(
                f"llama-server has no knob {name}; it has {', '.join(known)}, and any flag:--NAME or env:NAME"
            )
        else:
            _check_value(name, value)


def _check_value(name: str, value: Value) -> None:
    if name in _WHOLE:
        least, most = (0, MOST_DEPTH) if name == "depth" else (1, 1 << 16)
        number = _normal(name, value)
        if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
            raise InputError(f"{name} is a whole number from {least} to {most}, not {value!r}")
    elif name == "kv_dtype" and not (isinstance(value, str) and _DTYPE.fullmatch(value)):
        raise InputError(f"kv_dtype is a type like q8_0, or one for K and one for V like q8_0/f16, not {value!r}")
    elif name in ("spec_method", "draft_model") and not (isinstance(value, str) and value):
        raise InputError(f"{name} is a text, not {value!r}")
