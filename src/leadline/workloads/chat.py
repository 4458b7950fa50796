"""The built-in workload `chat`: what people ask an assistant, from recipes to letters. Answers copy little."""

from __future__ import annotations

import msgspec

from leadline.ports import Workload
from leadline.workloads._material import read
from leadline.workloads._pool import single_turns

FIELDS = {"temperature": 0.7, "max_tokens": 300}


class Questions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    questions: tuple[str, ...]


def workload(body: dict[str, object], name: str | None = None) -> Workload:
    """`body` is laid over the fields of every request."""
    material = read("chat.toml", Questions)
    return single_turns(name=name or "chat", prompts=material.questions, fields=FIELDS, body=body)
