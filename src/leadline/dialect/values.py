"""Values of flags and variables: text on a command line, numbers and truth values in a setting."""

from __future__ import annotations

import re

from leadline.errors import InputError
from leadline.space import Value


def number_or_text(text: str) -> Value:
    """A number as a number, also as Python writes a small one (1e-05); anything else as the text that it is."""
    if re.fullmatch(r"[+-]?\d{1,18}", text):
        return int(text)
    if re.fullmatch(r"[+-]?(\d{1,18}\.\d{0,18}|\.\d{1,18}|\d(\.\d{1,18})?e[+-]\d\d)", text):
        return float(text)
    return text


def whole(flag: str, text: str | None) -> int | None:
    """The number after a flag; None when there is none. Raises InputError for what is no whole number."""
    if text is None:
        return None
    if not re.fullmatch(r"[+-]?\d{1,9}", text.strip()):
        raise InputError(f"{flag} is followed by {text!r}, which is no whole number")
    return int(text)


def variable(name: str, value: Value) -> tuple[str, str]:
    """The environment variable that a knob `env:NAME` stands for, and its text. Raises InputError for no name."""
    variable = name.removeprefix("env:")
    if not re.fullmatch(r"[A-Za-z_]\w*", variable):
        raise InputError(f"{name}: an environment variable is named with letters, digits and _")
    return variable, str(value).lower() if isinstance(value, bool) else str(value)
