"""Reading what a server answers: any bytes are accepted, what cannot be read is None or empty."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from leadline.evidence import Evidence

MOST = 2**53
"""Counts beyond are no counts: a float holds no more."""


def json_of(evidence: Evidence, name: str) -> Any:
    """The JSON that a probe was answered with; None when there is none that can be read."""
    body = evidence.body(name)
    if body is None:
        return None
    try:
        return msgspec.json.decode(body)
    except (ValueError, msgspec.MsgspecError, RecursionError):
        return None


def object_of(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def list_of(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def whole_of(value: Any) -> int | None:
    """A count: a whole number from 0 to 2^53."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST else None


def number_of(value: Any) -> float | None:
    """A finite number that is no truth value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) <= MOST else None


def text_of(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def probe_tokens(before: Evidence, after: Evidence) -> int:
    """Tokens of a "ready" probe that the second evidence has and the first has not: ours, and in no record."""
    if after.replies.get("ready") == before.replies.get("ready"):
        return 0
    return whole_of(object_of(object_of(json_of(after, "ready")).get("usage")).get("completion_tokens")) or 0
