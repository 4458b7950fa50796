"""The table in which TensorRT-LLM explains that a part of it did not get the memory that it wanted.

Printed by `_ExecutorMemoryMonitor` in `_torch/pyexecutor/py_executor_creator.py`; in the field in issues 5950 and 5872.
"""

from __future__ import annotations

import re

import msgspec

from leadline.dialect.signs import masked_line
from leadline.evidence import Diagnosis, Failure

_GIB = 1 << 30
_FAILED = re.compile(r"Executor creation failed due to insufficient GPU memory")
_COMPONENT = re.compile(r"The following component could not be created: (?P<what>.+)")
_TOTAL = re.compile(r"Total GPU memory \(GiB\): (?P<gib>\d{1,7}\.?\d*)")
_FREE = re.compile(r"Free GPU memory before component creation attempt \(GiB\): (?P<gib>\d{1,7}\.?\d*)")
_PART = re.compile(
    r"^(?:\[[^\]]*\] ?)*(?P<what>[A-Za-z_][^:]*?): (?P<before>\d{1,7}\.\d+) / (?P<after>\d{1,7}\.\d+)\s*$"
)
_LONGEST = 40
"""Lines after the first that still belong to the table."""

_MODEL, _DRAFT = "Model", "Draft model for speculative decoding"


class Shortage(msgspec.Struct, frozen=True, kw_only=True):
    """`component` is what could not be made; `parts` are the bytes that each part took before, in their order."""

    component: str = "?"
    total_bytes: int | None = None
    free_bytes: int | None = None
    parts: dict[str, int] = {}
    line: str = ""

    def diagnosis(self) -> Diagnosis:
        """The KV cache gets a share of the memory that is FREE, so that less of it leaves more for everything else."""
        taken = "; ".join(f"{name} {size / _GIB:.2f} GiB" for name, size in self.parts.items())
        free = "" if self.free_bytes is None else f" with {self.free_bytes / _GIB:.2f} GiB free"
        before_cache = self.component in (_MODEL, _DRAFT)
        return Diagnosis(
            failure=Failure.DEVICE_OOM_KV if self.component == "KV cache" else Failure.DEVICE_OOM_START,
            reason=f"out of GPU memory at start: {self.component} could not be created{free}"
            + (f" ({taken})" if taken else ""),
            line=self.line,
            remedy="spread the model over more GPUs (--tp_size), or lower --max_num_tokens: it does not fit by itself"
            if before_cache
            else "LOWER --kv_cache_free_gpu_memory_fraction, the cache's share of free memory; or use a smaller "
            "--max_batch_size or depth",
            implies="a higher memory fraction, more requests at once or a greater depth need at least as much",
            fails_too=("memory_fraction+", "max_running+", "depth+"),
        )


def shortage(lines: list[str]) -> Shortage | None:
    """The first table of a log; None when there is none. Several ranks may print the same one."""
    at = next((i for i, line in enumerate(lines) if _FAILED.search(line)), None)
    if at is None:
        return None
    found = Shortage(line=masked_line(lines[at]))
    for line in lines[at + 1 : at + 1 + _LONGEST]:
        if _FAILED.search(line):
            break
        found = _with(found, line)
    return found


def _with(found: Shortage, line: str) -> Shortage:
    if match := _COMPONENT.search(line):
        return msgspec.structs.replace(found, component=match["what"].strip()[:100])
    if match := _TOTAL.search(line):
        return msgspec.structs.replace(found, total_bytes=_bytes(match["gib"]))
    if match := _FREE.search(line):
        return msgspec.structs.replace(found, free_bytes=_bytes(match["gib"]))
    if match := _PART.match(line.strip()):
        taken = _bytes(match["before"]) - _bytes(match["after"])
        return msgspec.structs.replace(found, parts={**found.parts, match["what"]: taken})
    return found


def _bytes(gib: str) -> int:
    return round(float(gib) * _GIB)
