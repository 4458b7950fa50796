"""What a start of SGLang tells of its memory: free before and after loading, pool sizes, graphs.

Its "GB" are GiB. Line texts: `model_executor/model_runner.py`, `mem_cache/memory_pool.py`, `managers/scheduler.py` and
`model_executor/runner/*cuda_graph_runner.py` of SGLang 0.5.9 to 0.5.23.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from leadline.dialect.footprint import GIB, finite, gib

_OTHER_RANKS = re.compile(r"\b(?:TP|DP|PP)[1-9]\d*\b")
_BEGIN = re.compile(r"Load weight begin\. avail mem=([\d.]+) GB")
_END = re.compile(r"Load weight end\..*?avail mem=([\d.]+) GB, mem usage=(-?[\d.]+) GB")
_POOL_END = re.compile(r"Memory pool end\. avail mem=([\d.]+) GB")
_POOL = re.compile(
    r"KV Cache is allocated\..*?#tokens: (\d+), (?:K size: ([\d.]+) GB, V size: ([\d.]+) GB|KV size: ([\d.]+) GB)"
)
_CAPACITY = re.compile(r"max_total_num_tokens=(\d+), .*?max_running_requests=(\d+)")
_TOKENS = re.compile(r"max_total_num_tokens=(\d+)")
_SLOTS = re.compile(r"max_mamba_cache_size: (\d+)")
_CAPPED = re.compile(r"max_mamba_cache_size=(\d+), (\d+) state slots per request")
_FRACTION = re.compile(r"mem_fraction_static['\"]?[=:] ?([\d.]+)")
_CONTEXT = re.compile(r"context_len=(\d+)")
_GRAPH_BEGIN = re.compile(
    r"Capture (.+?) graph begin\.(?:.*?num_tokens_per_req=(\d+))?(?:.*? bs=\[([\d, ]*)\])?", re.IGNORECASE
)
_GRAPH_END = re.compile(r"Capture (.+?) graph end\..*?mem usage=(-?[\d.]+) GB", re.IGNORECASE)


@dataclass(slots=True)
class Graph:
    """One capture: `tokens` = batch size times tokens a request of its largest graph, None for prefill graphs."""

    tokens: int | None = None
    bytes: float | None = None


@dataclass(slots=True)
class MemoryLog:
    """Bytes and counts of one start, of its first rank; None = not told. `loaded`, `free_after`, `pools` (tokens,
    bytes) and `free_beside` (left beside the pools) hold the target first, then the draft."""

    free_before: float | None = None
    free_after: list[float] = field(default_factory=list)
    loaded: list[float] = field(default_factory=list)
    pools: list[tuple[int, float]] = field(default_factory=list)
    free_beside: list[float] = field(default_factory=list)
    tokens: int | None = None
    running: int | None = None
    slots: int | None = None
    slots_each: int | None = None
    fraction: float | None = None
    context: int | None = None
    graphs: dict[str, Graph] = field(default_factory=dict)

    @property
    def decode_graphs(self) -> tuple[int, float] | None:
        """Tokens of the largest decode or verification graph, and the bytes of all captures of that kind."""
        sized = [(g.tokens, g.bytes) for g in self.graphs.values() if g.tokens and g.bytes is not None]
        return (max(t for t, _ in sized), sum(b for _, b in sized)) if sized else None

    @property
    def prefill_graph_bytes(self) -> float:
        """Captures that do not grow with the depth."""
        return sum(g.bytes or 0.0 for g in self.graphs.values() if g.tokens is None)


def read(text: str) -> MemoryLog:
    """Any text."""
    log = MemoryLog()
    for row in text.splitlines():
        if _OTHER_RANKS.search(row[:80]) is None:
            _loading(log, row)
            _sizes(log, row)
            _graphs(log, row)
    if log.tokens is None and log.pools:
        log.tokens = log.pools[0][0]
    return log


def _loading(log: MemoryLog, row: str) -> None:
    if (m := _BEGIN.search(row)) and log.free_before is None:
        log.free_before = gib(m[1])
    if m := _END.search(row):
        log.free_after.append(float(m[1]) * GIB)
        log.loaded.append(float(m[2]) * GIB)
    if (m := _FRACTION.search(row)) and log.fraction is None:
        log.fraction = finite(m[1])


def _sizes(log: MemoryLog, row: str) -> None:
    if (m := _POOL_END.search(row)) and (left := gib(m[1])) is not None:
        log.free_beside.append(left)
    if m := _POOL.search(row):
        log.pools.append((int(m[1]), GIB * sum(float(g) for g in m.groups()[1:] if g)))
    if m := _TOKENS.search(row):
        log.tokens = int(m[1])
    if m := _CAPACITY.search(row):
        log.running = int(m[2])
    if m := _CONTEXT.search(row):
        log.context = int(m[1])
    if m := _SLOTS.search(row):
        log.slots = int(m[1])
    if m := _CAPPED.search(row):
        log.slots, log.slots_each = int(m[1]), int(m[2])


def _graphs(log: MemoryLog, row: str) -> None:
    if m := _GRAPH_BEGIN.search(row):
        sizes = [int(n) for n in (m[3] or "").split(",") if n.strip()]
        log.graphs[m[1]] = Graph(tokens=max(sizes) * int(m[2]) if sizes and m[2] else None)
    if m := _GRAPH_END.search(row):
        log.graphs.setdefault(m[1], Graph()).bytes = float(m[2]) * GIB
