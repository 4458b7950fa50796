"""What llama-server's log says in numbers: slots, buffers, and how each request went.

Lines of build 11434, and of older ones where they differ. Sizes of buffers are printed from `-lv 4` on; older builds
print them always. 1 MiB is 1,048,576 bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

_SLOTS = re.compile(r"initializing, n_slots = (\d{1,6}), n_ctx_slot = (\d{1,9}), kv_unified = '(true|false)'")
_CELLS = re.compile(
    r"llama_kv_cache(?:_unified)?: size = *(?P<mib>\d{1,9}\.\d+) MiB \( *(?P<cells>\d{1,10}) cells, *"
    r"(?P<layers>\d{1,5}) layers, *\d{1,5}(?:/ *(?P<streams>\d{1,5}))? seqs\), "
    r"K \((?P<k>\w+)\):[^,]*, V \((?P<v>\w+)\):"
)
_STATES = re.compile(
    r"llama_memory_recurrent: size = *(?P<mib>\d{1,9}\.\d+) MiB \( *(?P<cells>\d{1,10}) cells, *(?P<layers>\d{1,5}) "
    r"layers, *(?P<seqs>\d{1,5}) seqs *(?:(?P<rs>\d{1,5}) rs_seq)?\)"
)
_BUFFER = re.compile(
    r"(?<!\S)(?P<device>\S{1,64}) +(?P<kind>model|KV|RS|compute|output) buffer size = *(?P<mib>\d{1,9}\.\d+) MiB"
)
_FREE = re.compile(r"using device (?P<device>\S+) \(.*\) - (?P<mib>\d{1,9}) MiB free")
_PROMPT = re.compile(r"prompt eval time = *(?P<ms>\d{1,12}\.\d+) ms / *(?P<n>\d{1,9}) tokens")
_DECODE = re.compile(r"(?<!prompt )\beval time = *(?P<ms>\d{1,12}\.\d+) ms / *(?P<n>\d{1,9}) (?:tokens|runs)")
_DRAFT = re.compile(
    r"draft acceptance(?: rate)? = *\d\.\d+ \( *(?P<accepted>\d{1,12}) accepted / *(?P<drafted>\d{1,12}) generated\)"
    r"(?:, mean (?:len|acceptance length) = *(?P<length>\d{1,6}\.\d+))?"
)
_POSITIONS = re.compile(r"(?:acc per pos|acceptance rate per position) = \((?P<rates>[\d., ]*)\)")
_STATISTICS = re.compile(
    r"statistics +(?P<method>\S+): .*#gen drafts = *(?P<drafts>\d{1,15}), .*#gen tokens = *(?P<drafted>\d{1,15}), "
    r"#acc tokens = *(?P<accepted>\d{1,15})"
)
_CLAMP = re.compile(r"exceeds the trained block size \d{1,6} -- clamping to (\d{1,6})")
_PART = re.compile(r"_(?:Mapped|Private|Split|REPACK)$")
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Slots:
    """`context` tokens for each slot; `unified` = all of them share that many cells."""

    count: int
    context: int
    unified: bool

    @property
    def cells(self) -> int:
        return self.context * (1 if self.unified else self.count)


@dataclass(frozen=True, slots=True)
class Cache:
    """A KV cache: its own line of the log. A windowed model has two, a draft one of its own. `cells` of all slots."""

    size: int
    cells: int
    layers: int
    dtypes: tuple[str, str]


@dataclass(frozen=True, slots=True)
class States:
    """Recurrent states: `rows` are kept, `sequences * (1 + per_depth)` of them (`rs_seq`; None when it is not told)."""

    size: int
    rows: int
    sequences: int
    per_depth: int | None


@dataclass(frozen=True, slots=True)
class Buffer:
    """One buffer; `kind` is model, KV, RS (recurrent states), compute or output. MTL0_Mapped is of the device MTL0."""

    device: str
    kind: str
    size: int

    @property
    def on_host(self) -> bool:
        """CPU, AMX, CUDA_Host: memory of the machine, not of an accelerator."""
        return self.device.startswith(("CPU", "AMX", "BLAS")) or self.device.endswith("_Host")


@dataclass(frozen=True, slots=True)
class Finished:
    """One request as its slot reports it. `length` = acceptance length, bonus token included; None = not told."""

    prompt_tokens: int = 0
    prompt_ms: float = 0.0
    tokens: int = 0
    decode_ms: float = 0.0
    drafted: int = 0
    accepted: int = 0
    length: float | None = None
    per_position: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Drafting:
    """Totals since the start, over all methods."""

    drafts: int = 0
    drafted: int = 0
    accepted: int = 0

    @property
    def length(self) -> float | None:
        """1 + accepted / drafts; None without a draft."""
        return 1 + self.accepted / self.drafts if self.drafts else None


def slots(log: str) -> Slots | None:
    found = _SLOTS.search(log)
    return Slots(int(found[1]), int(found[2]), found[3] == "true") if found else None


def caches(log: str) -> list[Cache]:
    return [
        Cache(_bytes(m["mib"]), int(m["cells"]) * int(m["streams"] or 1), int(m["layers"]), (m["k"], m["v"]))
        for m in _CELLS.finditer(log)
    ]


def states(log: str) -> list[States]:
    return [
        States(_bytes(m["mib"]), int(m["cells"]), int(m["seqs"]), int(m["rs"]) if m["rs"] else None)
        for m in _STATES.finditer(log)
    ]


def clamped_depth(log: str) -> int | None:
    """What the server drafts at most, when the draft was trained for fewer tokens than were asked for."""
    found = _CLAMP.search(log)
    return int(found[1]) if found else None


def buffers(log: str) -> list[Buffer]:
    return [Buffer(_PART.sub("", m["device"]), m["kind"], _bytes(m["mib"])) for m in _BUFFER.finditer(log)]


def free_bytes(log: str) -> Mapping[str, int]:
    """What each accelerator had free when the server began to load."""
    return {m["device"]: int(m["mib"]) * _MIB for m in _FREE.finditer(log)}


def finished(log: str) -> Sequence[Finished]:
    """Requests in the order of their end. The lines of one follow each other, that of its prompt first."""
    found: list[Finished] = []
    for line in log.splitlines():
        if m := _PROMPT.search(line):
            found.append(Finished(prompt_tokens=int(m["n"]), prompt_ms=float(m["ms"])))
            continue
        now = found[-1] if found else Finished()
        if m := _DECODE.search(line):
            now = replace(now, tokens=int(m["n"]), decode_ms=float(m["ms"]))
        if m := _DRAFT.search(line):
            length = float(m["length"]) if m["length"] else None
            now = replace(now, drafted=int(m["drafted"]), accepted=int(m["accepted"]), length=length)
        if m := _POSITIONS.search(line):
            now = replace(now, per_position=_rates(m["rates"]))
        if now != (found[-1] if found else Finished()):
            found[-1:] = [now]
    return found


def drafting(log: str) -> Drafting | None:
    """By the last line of statistics of each method; None when there is none."""
    last = {m["method"]: m for m in _STATISTICS.finditer(log)}
    if not last:
        return None
    return Drafting(*(sum(int(m[name]) for m in last.values()) for name in ("drafts", "drafted", "accepted")))


def _bytes(mib: str) -> int:
    return round(float(mib) * _MIB)


def _rates(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        return ()
