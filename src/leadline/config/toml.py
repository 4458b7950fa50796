"""Values as TOML text: what tomllib reads back unchanged."""

from __future__ import annotations

import json
import re

from leadline.errors import InputError

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def toml_text(value: object) -> str:
    """Text, number, true, false, or a list of those. Raises InputError for a text that no file can hold."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml_text(item) for item in value)}]"
    return repr(value)


def toml_key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _quoted(name)


def _quoted(text: str) -> str:
    """JSON's escapes are TOML's too, but for DEL, and a lone surrogate (an argument that is not UTF-8) has none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"{text!r} is not UTF-8 text, so it cannot stand in campaign.toml: rename it first") from None
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
