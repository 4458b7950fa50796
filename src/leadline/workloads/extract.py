"""The built-in workload `extract`: a short text in, one JSON object with named keys out.

It only asks for JSON. To have the server enforce it, lay `response_format` over the requests.
"""

from __future__ import annotations

from leadline.ports import Workload
from leadline.workloads._material import Sources, read
from leadline.workloads._pool import single_turns

FIELDS = {"temperature": 0.0, "max_tokens": 300}


def workload(body: dict[str, object], name: str | None = None) -> Workload:
    """`body` is laid over the fields of every request."""
    material = read("extract.toml", Sources)
    prompts = [f"{task}\n\nText:\n{source.text}" for source in material.source for task in source.tasks]
    return single_turns(name=name or "extract", prompts=prompts, fields=FIELDS, body=body)
