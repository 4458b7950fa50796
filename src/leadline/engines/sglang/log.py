"""What the log of an SGLang server says of it: capacity, caps, graph captures, decode steps. Of memory: `memory_log`.

Line formats as of 0.5.9 to 0.5.23 (`model_executor/model_runner*.py`, `mem_cache/`, `managers/scheduler*`), and older
ones from public reports. "GB" in these lines is 2^30 bytes (`utils/common.py`, get_available_gpu_memory).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

GIB = 2**30
DECODES = 200
"""Decode lines that are kept: the latest ones."""

_RANK = re.compile(r"^\[[\d-]{10} [\d:.,]+((?: [A-Z]+\d+)*)\]")
_DATA_RANK = re.compile(r"DP(\d+)")
_CAPACITY = re.compile(r"max_total_num_tokens=(\d{1,15}),.* max_running_requests=(\d{1,9}), context_len=(\d{1,12})\b")
_WEIGHTS = re.compile(r"Load weight end\..* mem usage=(\d{1,9}\.\d+) GB")
_CAPTURE = re.compile(r"Capture (?:([\w -]+?) )?(?:cuda|CUDA|npu|NPU|cpu|CPU) graph (begin|end)\.(.*)")
_CAPTURED_BATCHES = re.compile(r"Capture cuda graph bs \[([\d, ]*)\]")
_PREFILL = re.compile(r"Prefill batch(?: \[\d+\])?[.,] (.*)")
_DECODE = re.compile(r"Decode batch(?: \[\d+\])?[.,] (.*)")
_COUNTS = (
    re.compile(r"KV Cache is allocated\..*#tokens: (?P<tokens>\d{1,15}), "),
    re.compile(r"Max running requests is reset to (?P<asked>\d{1,9}) for speculative decoding"),
    re.compile(r"max_running_requests was reduced from the requested (?P<asked>\d{1,9}) to (?P<running>\d{1,9})"),
    re.compile(r"max_running_requests is capped to (?P<running>\d{1,9}) by the mamba state cache"),
    re.compile(r"Adaptive spec params updated: steps \d{1,4} -> (?P<steps>\d{1,4}) "),
)
_RETRACTED = re.compile(r"KV cache pool is full\. Retract requests\. #retracted_reqs: (\d{1,9})")
_ARGUMENT = re.compile(
    r"[( {,']([a-z_]+)'?(?:=|: )('[^']*'|None|True|False|-?\d+(?:\.\d+)?(?:e-?\d+)?)(?=[,)}])",
)
_NUMBER = re.compile(r"-?\d{1,15}(?:\.\d{1,15})?")


class Decode(msgspec.Struct, frozen=True, kw_only=True):
    """One "Decode batch" line: means over `decode_log_interval` steps. `accepted` = tokens per round, bonus included;
    None when the server does not speculate. `graph` = whether the last step ran as a captured graph."""

    running: int | None = None
    waiting: int | None = None
    tokens: int | None = None
    usage: float | None = None
    accepted: float | None = None
    graph: bool | None = None
    tokens_per_s: float | None = None


class Prefill(msgspec.Struct, frozen=True, kw_only=True):
    """One "Prefill batch" line: prompts that are read. `running` = requests that decode meanwhile; `cached` tokens of
    the new prompts came from the prefix cache, `tokens` are computed."""

    new: int | None = None
    tokens: int | None = None
    cached: int | None = None
    running: int | None = None
    waiting: int | None = None
    tokens_per_s: float | None = None


class Capture(msgspec.Struct, frozen=True, kw_only=True):
    """Graphs captured for one purpose ("target verify"). `width` = tokens per request, `gib` = memory they took."""

    what: str
    batches: tuple[int, ...] = ()
    width: int | None = None
    gib: float | None = None


class Log(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of one log; None or empty = not said.

    `kv_tokens`, `max_running`: summed over data-parallel ranks, of which each has a pool and a queue of its own.
    `asked_running` = what the server says was asked for, or set because nothing was. `weights_gib` = models that one
    rank loaded, in order: the target, then the draft. `steps` = the depth that `--speculative-adaptive` went to last.
    `arguments` = the resolved arguments that it prints at its start, as text.
    """

    kv_tokens: int | None = None
    max_running: int | None = None
    asked_running: int | None = None
    context: int | None = None
    weights_gib: tuple[float, ...] = ()
    captures: tuple[Capture, ...] = ()
    moe_tuned: bool | None = None
    steps: int | None = None
    retracted: int = 0
    decodes: tuple[Decode, ...] = ()
    arguments: Mapping[str, str] = {}


def read(log: str) -> Log:
    """Any text."""
    reader = _Reader()
    for line in log.splitlines():
        reader.take(line)
    return reader.log()


def decode_of(line: str) -> Decode | None:
    found = _DECODE.search(line)
    if found is None:
        return None
    pairs = pairs_of(found[1])
    graph = next((v for k, v in pairs.items() if k.endswith("graph") and v in ("True", "False")), None)
    usage = _number(pairs.get("token usage", pairs.get("full token usage")))
    return Decode(
        running=_whole(pairs.get("#running-req")),
        waiting=_whole(pairs.get("#queue-req")),
        tokens=_whole(pairs.get("#token", pairs.get("#full token"))),
        usage=usage,
        accepted=_number(pairs.get("accept len")),
        graph=None if graph is None else graph == "True",
        tokens_per_s=_number(pairs.get("gen throughput (token/s)")),
    )


def prefill_of(line: str) -> Prefill | None:
    found = _PREFILL.search(line)
    if found is None:
        return None
    pairs = pairs_of(found[1])
    return Prefill(
        new=_whole(pairs.get("#new-seq")),
        tokens=_whole(pairs.get("#new-token")),
        cached=_whole(pairs.get("#cached-token")),
        running=_whole(pairs.get("#running-req")),
        waiting=_whole(pairs.get("#queue-req")),
        tokens_per_s=_number(pairs.get("input throughput (token/s)")),
    )


def pairs_of(text: str) -> dict[str, str]:
    """`#running-req: 8, #token: 8123` as keys and values: pieces come and go with versions and options."""
    pieces = (piece.partition(": ") for piece in text.split(","))
    return {key.strip(): value.strip() for key, colon, value in pieces if colon}


class _Reader:
    """Collects facts line by line. Of several ranks, the first that says a thing of one device counts."""

    def __init__(self) -> None:
        self._capacity: dict[str, tuple[int, int, int]] = {}
        self._weights: dict[str, list[float]] = {}
        self._captures: dict[str, dict[str, Capture]] = {}
        self._decodes: list[Decode] = []
        self._said: dict[str, int] = {}
        self._moe: bool | None = None
        self._retracted = 0
        self._arguments: dict[str, str] = {}

    def take(self, line: str) -> None:
        rank = _RANK.match(line)
        tag = rank[1] if rank else ""
        if decode := decode_of(line):
            self._decodes.append(decode)
            del self._decodes[:-DECODES]
        elif "apture " in line:
            self._capture(line, tag)
        elif "MoE kernel config" in line:
            self._expert_kernels(line)
        elif "server_args=" in line and not self._arguments:
            self._arguments = {m[1]: m[2].strip("'") for m in _ARGUMENT.finditer(line.partition("server_args=")[2])}
        else:
            self._sizes(line, tag)

    def _expert_kernels(self, line: str) -> None:
        """One shape without a tuned configuration is enough: its kernels run untuned."""
        if "Using default MoE kernel config" in line:
            self._moe = False
        elif "Using MoE kernel config from" in line and self._moe is None:
            self._moe = True

    def _capture(self, line: str, tag: str) -> None:
        found = _CAPTURE.search(line)
        if found:
            captures = self._captures.setdefault(tag, {})
            what = found[1] or "target decode"
            known = captures.get(what, Capture(what=what))
            captures[what] = msgspec.structs.replace(
                known,
                batches=_list(found[3], " bs=") or known.batches,
                width=_after(found[3], "num_tokens_per_req=") or known.width,
                gib=_decimal_after(found[3], "mem usage=") if found[2] == "end" else known.gib,
            )
        elif old := _CAPTURED_BATCHES.search(line):
            batches = tuple(int(n) for n in re.findall(r"\d{1,6}", old[1]))
            self._captures.setdefault(tag, {})["target decode"] = Capture(what="target decode", batches=batches)
        if "MoE kernel config" in line:  # a progress bar has no end of line
            self._expert_kernels(line)

    def _sizes(self, line: str, tag: str) -> None:
        if m := _CAPACITY.search(line):
            data = _DATA_RANK.search(tag)
            self._capacity.setdefault(data[1] if data else "", (int(m[1]), int(m[2]), int(m[3])))
        elif m := _WEIGHTS.search(line):
            self._weights.setdefault(tag, []).append(float(m[1]))
        elif m := _RETRACTED.search(line):
            self._retracted += int(m[1])
        else:
            for pattern in _COUNTS:
                if m := pattern.search(line):
                    self._said.update({name: int(count) for name, count in m.groupdict().items()})

    def log(self) -> Log:
        capacity = list(self._capacity.values())
        return Log(
            kv_tokens=sum(c[0] for c in capacity) if capacity else self._said.get("tokens"),
            max_running=sum(c[1] for c in capacity) if capacity else self._said.get("running"),
            asked_running=self._said.get("asked"),
            context=capacity[0][2] if capacity else None,
            weights_gib=tuple(next(iter(self._weights.values()), [])),
            captures=tuple(next(iter(self._captures.values()), {}).values()),
            moe_tuned=self._moe,
            steps=self._said.get("steps"),
            retracted=self._retracted,
            decodes=tuple(self._decodes),
            arguments=self._arguments,
        )


def _list(text: str, name: str) -> tuple[int, ...]:
    inside = text.partition(f"{name}[")[2].partition("]")[0]
    return tuple(int(n) for n in re.findall(r"\d{1,6}", inside)) if name in text else ()


def _after(text: str, name: str) -> int | None:
    found = re.match(r"\d{1,9}", text.partition(name)[2])
    return int(found[0]) if found else None


def _decimal_after(text: str, name: str) -> float | None:
    found = _NUMBER.match(text.partition(name)[2])
    return float(found[0]) if found else None


def _number(text: str | None) -> float | None:
    return float(text) if text is not None and _NUMBER.fullmatch(text) else None


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) <= 15 else None
