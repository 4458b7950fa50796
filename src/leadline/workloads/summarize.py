"""The built-in workload `summarize`: an article or report, and a task whose answer quotes it.

The task comes before the text, so that tasks on one text share no prefix and no cache can help.
"""

from __future__ import annotations

from leadline.ports import Workload
from leadline.workloads._material import Sources, read
from leadline.workloads._pool import single_turns

FIELDS = {"temperature": 0.3, "max_tokens": 250}


def workload(body: dict[str, object], name: str | None = None) -> Workload:
    """`body` is laid over the fields of every request."""
    material = read("summarize.toml", Sources)
    prompts = [f"{task}\n\n{source.text}" for source in material.source for task in source.tasks]
    return single_turns(name=name or "summarize", prompts=prompts, fields=FIELDS, body=body)
