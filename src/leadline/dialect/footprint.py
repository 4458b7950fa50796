"""Sums that the memory laws of several engines share: reading numbers off a launch, device memory, the verdict."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leadline.dialect.commandline import Item
from leadline.dialect.modelshape import Shape
from leadline.dialect.options import plain
from leadline.evidence import Device, Footprint, Verdict
from leadline.launch import LaunchFile, LaunchSpec

GIB = 1 << 30

LEAST_TOKENS = 1024
"""KV tokens for each running request below which a launch counts as starved: a short prompt and a short answer. A
convention, for want of the workload: Qwen3.5-4B on a GH200 with 422 a request waited 1.0 s (p50) for first tokens that
came within 0.1 s at 2,007 a request (github.com/SamMausberg/verified-progress, tuning points)."""

DRIVER_FRAC, CONTEXT_BYTES = 0.008, 7 * GIB // 10
"""What a device does not give: the driver's own (nvidia-smi `memory.reserved`), and a process's CUDA context with
cuBLAS handles. H200: 616 of 143,771 MiB (0.43 %) and 0.70 GiB, both measured. GH200 96 GB: 1.2 % and 0.7 GiB, solved
from public SGLang pool sizes. 0.8 % lies between; with it, either is met within 0.6 GiB. Not for shared devices."""

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_NUMBER_BYTES = {"bfloat16": 2, "bf16": 2, "float16": 2, "fp16": 2, "half": 2, "float32": 4, "float": 4, "int8": 1}


@dataclass(frozen=True, slots=True)
class Words:
    """The flags of a launch by their spelling (`_` read as `-`), in the order in which they win, and its environment.
    `first` = the first word that belongs to no flag: the model, for most servers."""

    flags: Mapping[str, str]
    env: Mapping[str, str]
    first: str = ""
    files: tuple[LaunchFile, ...] = ()

    def text(self, *names: str) -> str | None:
        given = [value for name, value in self.flags.items() if name in names and value]
        return given[-1] if given else None

    def whole(self, *names: str) -> int | None:
        number = self.number(*names)
        return None if number is None else int(number)

    def number(self, *names: str) -> float | None:
        return finite(self.text(*names))

    def on(self, *names: str) -> bool:
        return any(n in self.flags for n in names)

    @staticmethod
    def of(items: Iterable[Item], env: Mapping[str, str], files: tuple[LaunchFile, ...]) -> Words:
        """From a command line that an engine's own dialect has read: options under their canonical spelling."""
        flags: dict[str, str] = {}
        first = ""
        for item in items:
            if item.name is None:
                first = first or item.words[0]
            else:
                flags.pop(item.name, None)
                flags[item.name] = item.value or ""
        return Words(flags, env, first, files)


def words_of(launch: LaunchSpec) -> Words:
    """Any argv is read; a word that follows a flag and is none itself is its value."""
    flags: dict[str, str] = {}
    env = dict(launch.env)
    name, first = "", ""
    for word in launch.argv:
        if word.startswith("-") and finite(word) is None:
            name, _, value = plain(word).partition("=")
            flags.pop(name, None)
            flags[name] = value
        elif name and not flags[name]:
            flags[name] = word
        elif not name and (found := _ASSIGNMENT.fullmatch(word)):
            env[found[1]] = found[2]
        elif not name and word not in ("serve", "-m"):
            first = word
    return Words(flags, env, first, launch.files)


def finite(text: str | None) -> float | None:
    try:
        value = float(text) if text else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def gib(text: str | None) -> float | None:
    """Bytes of a log's figure in GiB (most servers write "GB" for it)."""
    value = finite(text)
    return None if value is None else value * GIB


def number_bytes(dtype: str | None, shape: Shape) -> int | None:
    """Bytes of one number of a cache; None for a packed type, whose scales each engine stores in its own way."""
    if dtype in (None, "auto"):
        return shape.number_bytes
    return 1 if dtype.startswith("fp8") else _NUMBER_BYTES.get(dtype)


def allocatable_bytes(device: Device) -> float:
    """What programs together may take of a device, its own CUDA contexts included (torch's `total_memory`)."""
    return device.total_bytes * (1 - DRIVER_FRAC)


def free_bytes(device: Device) -> float:
    """What is free in a process that has its CUDA context and has loaded nothing yet, alone on the device."""
    return allocatable_bytes(device) - CONTEXT_BYTES


def line(seen: Sequence[tuple[int, float]], at: int) -> float | None:
    """The least-squares line through (depth, amount) of earlier launches, read at another depth.

    None with fewer than two different depths, unless `at` is one of them. llama.cpp grows so: one recurrent state per
    sequence and draft token (`llama_context`, `n_rs_seq`).
    """
    if not seen:
        return None
    depths = {x for x, _ in seen}
    mean_x, mean_y = sum(x for x, _ in seen) / len(seen), sum(y for _, y in seen) / len(seen)
    if len(depths) < 2:
        return mean_y if at in depths else None
    slope = sum((x - mean_x) * (y - mean_y) for x, y in seen) / sum((x - mean_x) ** 2 for x, _ in seen)
    return mean_y + slope * (at - mean_x)


def judged(tokens: int, running: int | None, asked: int | None, context: int | None) -> tuple[Verdict, str]:
    """Starved = fewer requests at once than asked for, fewer than `LEAST_TOKENS` KV tokens for each, or fewer than the
    context length that the launch itself asks for (`context`, None when it asks for none)."""
    if running is not None and asked is not None and running < asked:
        return Verdict.STARVED, f"room for {running} of the {asked} requests at once that it asks for"
    if asked and running and tokens < LEAST_TOKENS * running:
        return Verdict.STARVED, f"{tokens // running:,} KV tokens for each of {running} requests"
    if context is not None and tokens < context:
        return Verdict.STARVED, f"{tokens:,} KV tokens, and one request may ask for {context:,}"
    share = f", {tokens // running:,} for each of {running} requests" if asked and running else ""
    return Verdict.FITS, f"{tokens:,} KV tokens{share}"


def unknown(reason: str, **known: Any) -> Footprint:
    return Footprint(verdict=Verdict.UNKNOWN, reason=reason, **known)


def whole_parts(parts: Iterable[tuple[str, float | None]]) -> dict[str, int]:
    """The parts that are known and not empty, in whole bytes."""
    return {name: round(size) for name, size in parts if size is not None and round(size) > 0}
