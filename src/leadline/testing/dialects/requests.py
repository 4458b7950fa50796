"""Requests for text in the OpenAI shapes, understood: what every dialect of the lab reads alike."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from typing import Any

from leadline.testing.dialects import Ask
from leadline.testing.physics import LabRequest

CHARS_PER_TOKEN = 4
LIMITS = ("max_tokens", "max_completion_tokens", "n_predict")


def prompt_text(fields: Mapping[str, Any], chat: bool) -> str | None:
    """The text of a request, whatever its shape; None when it has none."""
    if not chat:
        prompt = fields.get("prompt")
        return prompt if isinstance(prompt, str) else None
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        return None
    return "\n".join(str(m.get("content") or "") if isinstance(m, dict) else str(m) for m in messages)


def prompt_tokens(text: str) -> int:
    return max(1, math.ceil(len(text) / CHARS_PER_TOKEN))


def ask_of(fields: Mapping[str, Any], text: str, chat: bool, context: int, *, limit: int = 0) -> Ask:
    """`limit` = tokens of an answer whose request names none; 0 = what the context leaves.

    The request's own `user` says which workload it is of, as "coding:17".
    """
    tokens = prompt_tokens(text)
    asked = next((fields[k] for k in LIMITS if fields.get(k)), limit)
    room = context - tokens
    digest = f"{zlib.crc32(text.encode()):08x}"
    marker = str(fields.get("user") or "")
    prompt_id = marker if ":" in marker else f"{marker or 'other'}:{digest}"
    options = fields.get("stream_options")
    options = options if isinstance(options, dict) else {}
    return Ask(
        request=LabRequest(
            prompt_id=prompt_id,
            prompt_tokens=tokens,
            max_tokens=min(asked, room) if isinstance(asked, int) and asked > 0 else room,
            ignore_eos=bool(fields.get("ignore_eos")),
        ),
        tag=f"chatcmpl-lab-{digest}",
        chat=chat,
        stream=bool(fields.get("stream")),
        include_usage=bool(options.get("include_usage")),
        continuous_usage=bool(options.get("include_usage")) and bool(options.get("continuous_usage_stats")),
    )
