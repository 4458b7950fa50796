"""What vLLM's log says of a launch: each reader returns None, or nothing, for what is not there.

Texts as in the releases 0.9 to 0.33; numbers have thousands separators. The capacity in tokens and the concurrency do
not follow from one another (hybrid and windowed models), so that neither is worked out from the other.
"""

from __future__ import annotations

import re

import msgspec

_ENGINE = re.compile(
    r"Initializing a V[01] LLM engine \((?:v|version )?(?P<version>[^)\s]{1,60})\) with config: (?P<rest>.*)"
)
_SPEC = re.compile(
    r"speculative_config=(?:(?P<off>None)|SpeculativeConfig\((?:method=(?P<method>'[^']*'|None))?(?P<rest>[^)]*)\))"
)
_DEPTH = re.compile(r"num_spec_tokens=(?P<n>\d{1,6})")
_CONTEXT = re.compile(r"max_seq_len=(?P<n>\d{1,10})\b")
_EAGER = re.compile(r"enforce_eager=(?P<is>True|False)")
_MODEL = re.compile(r"\bmodel='(?P<name>[^']{1,400})'")
_GRAPH_MODE = re.compile(r"'?cudagraph_mode'?: ?<?(?:CUDAGraphMode\.)?(?P<mode>[A-Z_]{3,30})")
_GRAPH_SIZE = re.compile(r"'max_cudagraph_capture_size': (?P<n>\d{1,6})|\"max_capture_size\":(?P<old>\d{1,6})")
_KV = re.compile(r"(?:[A-Z]+(?: \+ host)?) KV cache size: (?P<n>[\d,]{1,20}) tokens")
_CONCURRENCY = re.compile(r"Maximum concurrency for (?P<len>[\d,]{1,20}) tokens per request: (?P<x>\d{1,9}\.\d{1,4})x")
_WEIGHTS = re.compile(
    r"Model loading took (?P<gib>\d{1,6}(?:\.\d{1,6})?) GiB(?: memory)? and (?P<s>\d{1,9}\.\d{1,9}) seconds"
)
_CAPTURED = re.compile(r"Graph capturing finished in \d{1,6} secs, took (?P<gib>-?\d{1,6}\.\d{1,6}) GiB")
_MAX_SEQS = re.compile(r"(?:Defaulting max_num_seqs to (?P<n>\d{1,6})|'max_num_seqs': (?P<given>\d{1,6}))")
_UTILIZATION = re.compile(r"'gpu_memory_utilization': (?P<f>[01]?\.\d{1,6}|1\.0)")
_MOE_DEFAULT = re.compile(r"Using default MoE config\. Performance might be sub-optimal")
_MOE_TUNED = re.compile(r"Using configuration from \S.*?\.json for MoE layer")
_STATS = re.compile(
    r"Avg prompt throughput: (?P<prompt>\d+\.\d+) tokens/s, Avg generation throughput: (?P<made>\d+\.\d+) tokens/s, "
    r"Running: (?P<running>\d+) reqs, Waiting: (?P<waiting>\d+) reqs(?P<rest>.*)"
)
_ENGINE_NUMBER = re.compile(r"Engine (?P<n>\d+):")
_USAGE = re.compile(r"KV cache usage: (?P<percent>\d+\.\d+)%")
_SPEC_LINE = "SpecDecoding metrics: "
_PAIR = re.compile(r"(?P<name>[A-Z][A-Za-z -]*?): (?P<value>nan|\d+(?:\.\d+)?)")
_PER_POSITION = re.compile(r"Per-position acceptance rate: (?P<rates>\d\.\d+(?:, \d\.\d+)*)")
_TRACEBACK = "Traceback (most recent call last):"
_WRITER = re.compile(
    r"^(?:\([^()]{1,80}\) ?)?(?:(?P<level>[A-Z]{4,8}) \d\d-\d\d [\d:.]{8,15} (?:\[[^\]]{1,200}\] ?)?)?"
)
"""Process, level, time and place, of which vLLM writes any or none before each line of a traceback."""
_EXCEPTION = re.compile(r"(?:[A-Za-z_][\w.]*\.)?[A-Za-z_]\w*(?:: .*)?")
_OTHER = re.compile(r"^(?:INFO|WARNING|DEBUG|ERROR|CRITICAL):? |\bHTTP/\d")
_BETWEEN = ("During handling of the above", "The above exception was")
GIB = 1 << 30


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """One of the lines that vLLM writes every ten seconds, and the engine that it is of."""

    engine: str
    prompt_tok_s: float
    output_tok_s: float
    running: int
    waiting: int
    kv_usage: float | None = None


class Drafting(msgspec.Struct, frozen=True, kw_only=True):
    """A line of speculation, in counts: its throughputs mean nothing where the interval held idle time."""

    accepted: int
    drafted: int
    mean_length: float | None
    position_rates: tuple[float, ...]

    @property
    def rounds(self) -> int | None:
        """Rounds that drafted, where the width is told and always drafted in full."""
        width = len(self.position_rates)
        return self.drafted // width if width and self.drafted % width == 0 else None


class EngineLine(msgspec.Struct, frozen=True, kw_only=True):
    """The line in which the engine says its configuration. `depth` 0 = no speculation; None = it does not tell."""

    version: str | None = None
    model: str | None = None
    method: str | None = None
    depth: int | None = None
    context: int | None = None
    eager: bool | None = None
    graph_mode: str | None = None
    graph_tokens: int | None = None


def engine_line(log: str) -> EngineLine:
    """Of the last start in the log."""
    starts = list(_ENGINE.finditer(log))
    if not starts:
        return EngineLine()
    found = starts[-1]
    rest = found["rest"]
    spec = _SPEC.search(rest)
    depth = _DEPTH.search(spec["rest"]) if spec and spec["rest"] else None
    model, context, eager = _MODEL.search(rest), _CONTEXT.search(rest), _EAGER.search(rest)
    mode, size = _GRAPH_MODE.search(rest), _GRAPH_SIZE.search(rest)
    return EngineLine(
        version=found["version"].removeprefix("v"),
        model=model["name"] if model else None,
        method=spec["method"].strip("'") if spec and spec["method"] else None,
        depth=int(depth["n"]) if depth else (0 if spec and spec["off"] else None),
        context=int(context["n"]) if context else None,
        eager=eager["is"] == "True" if eager else None,
        graph_mode=mode["mode"] if mode else None,
        graph_tokens=int(size["n"] or size["old"]) if size else None,
    )


def kv_tokens(log: str) -> int | None:
    return _last_number(_KV, log)


def concurrency(log: str) -> float | None:
    """How many requests of full length fit, as vLLM says."""
    found = _CONCURRENCY.findall(log)
    return float(found[-1][1]) if found else None


def weights_bytes(log: str) -> int | None:
    """Of one device, the draft model's included."""
    found = _WEIGHTS.findall(log)
    return round(float(found[-1][0]) * GIB) if found else None


def captured(log: str) -> bool:
    return _CAPTURED.search(log) is not None


def max_running(log: str) -> int | None:
    found = _MAX_SEQS.findall(log)
    return int(found[-1][0] or found[-1][1]) if found else None


def memory_fraction(log: str) -> float | None:
    found = _UTILIZATION.findall(log)
    return float(found[-1]) if found else None


def moe_tuned(log: str) -> bool | None:
    """False when any layer found no tuned file; None when no layer looked for one."""
    if _MOE_DEFAULT.search(log):
        return False
    return True if _MOE_TUNED.search(log) else None


def stats(line: str) -> Stats | None:
    found = _STATS.search(line)
    if found is None:
        return None
    engine, usage = _ENGINE_NUMBER.search(line), _USAGE.search(found["rest"])
    return Stats(
        engine=engine["n"] if engine else "",
        prompt_tok_s=float(found["prompt"]),
        output_tok_s=float(found["made"]),
        running=int(found["running"][:9]),
        waiting=int(found["waiting"][:9]),
        kv_usage=float(usage["percent"]) / 100 if usage else None,
    )


def drafting(line: str) -> Drafting | None:
    """In any order of its parts: until 0.10 the acceptance rate came first."""
    _, mark, rest = line.partition(_SPEC_LINE)
    values = {m["name"]: m["value"] for m in _PAIR.finditer(rest)} if mark else {}
    if not {"Accepted", "Drafted"} <= set(values) or "nan" in (values["Accepted"], values["Drafted"]):
        return None
    rates = _PER_POSITION.search(rest)
    mean = values.get("Mean acceptance length", "nan")
    return Drafting(
        accepted=int(float(values["Accepted"])),
        drafted=int(float(values["Drafted"])),
        mean_length=None if mean == "nan" else float(mean),
        position_rates=tuple(map(float, rates["rates"].split(", "))) if rates else (),
    )


def raised(log: str) -> str | None:
    """The exception of the traceback that the log ends with, when nothing but that traceback follows its first line.

    What the exception itself says in further lines still belongs to it; a line of the log's own does not.
    """
    found: str | None = None
    inside = frames = False
    for line in log.splitlines():
        writer = _WRITER.match(line)
        rest = line[writer.end() :] if writer else line
        if _TRACEBACK in rest:
            # Of a chain, the last one counts.
            found, inside, frames = None, True, True
        elif inside and rest.startswith((" ", "\t")):
            frames = True
        elif inside and frames and _EXCEPTION.fullmatch(rest):
            found, frames = rest, False
        elif rest.strip() and not rest.startswith(_BETWEEN) and (frames or _speaks(rest, writer)):
            found, inside = None, False
    return found


def _speaks(rest: str, writer: re.Match[str] | None) -> bool:
    """Whether a line is the log's own, and none of an exception's further lines."""
    return bool(_OTHER.search(rest)) or (writer is not None and writer["level"] not in (None, "ERROR"))


def _last_number(pattern: re.Pattern[str], log: str) -> int | None:
    found = pattern.findall(log)
    return int(found[-1].replace(",", "") or 0) if found else None
