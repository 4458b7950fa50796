"""The built-in workload `coding`: edit and complete real code in ten languages.

The task comes before the code, so that three tasks on one piece of code share no prefix and no cache can help. Most
tasks ask for the whole code back, changed in a few places: answers copy much of their prompt, as an editor's do.
"""

from __future__ import annotations

from leadline.ports import Workload
from leadline.workloads._material import Sources, read
from leadline.workloads._pool import single_turns

FIELDS = {"temperature": 0.2, "max_tokens": 400}


def workload(body: dict[str, object], name: str | None = None) -> Workload:
    """`body` is laid over the fields of every request."""
    material = read("coding.toml", Sources)
    prompts = [f"{task}\n\n```{s.language}\n{s.text}```" for s in material.source for task in s.tasks]
    return single_turns(name=name or "coding", prompts=prompts, fields=FIELDS, body=body)
