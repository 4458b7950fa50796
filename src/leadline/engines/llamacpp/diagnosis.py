"""Why a llama-server ended or does not serve: facts of the supervisor first, then the first telling line of its log."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from leadline.dialect.signs import Sign, by_supervisor, first_of, last_line, masked_line, sign, telling
from leadline.engines.llamacpp.machine import KERNEL, UNIT
from leadline.engines.llamacpp.probes import loading
from leadline.evidence import Diagnosis, Evidence, ExitFacts, Failure

_SIGILL = 4
_LOADED = re.compile(r"srv\s+\S+: (?:model loaded|(?:server is )?listening on )")
_MORE_MEMORY = "deeper settings, more slots, a longer context or a larger draft model need at least as much"
_LESS_MEMORY = "use a smaller -c or -np, -ctk/-ctv q8_0, fewer layers in -ngl, or no draft model"
_MORE_FAILS = ("depth+", "max_running+", "flag:--ctx-size+")
_START, _LOAD = Failure.DEVICE_OOM_START, Failure.DEVICE_OOM_LOAD
_WHEN = {_START: ", at start", Failure.DEVICE_OOM_KV: ", at start", _LOAD: ", under load"}


def _memory(pattern: str, reason: str, early: Failure = _START) -> Sign:
    """Out of memory: at start, or under load once the model was loaded."""
    return sign(pattern, _LOAD, reason, _LESS_MEMORY, _MORE_MEMORY, _MORE_FAILS, early)


ENDING = (
    _memory(
        r"allocating (?P<mib>\d+\.\d+) MiB on device (?P<device>\d+): \w+ failed: out of memory",
        "out of memory on device {device}: {mib} MiB more were asked for",
    ),
    _memory(
        r"(?:CUDA|ROCm|MUSA|SYCL) error: out of memory|ErrorOutOf(?:Device|Host)Memory|OutOf(?:Device|Host)MemoryError"
        r"|Device memory allocation of size \d+ failed",
        "out of memory on the device",
    ),
    sign(
        r"Insufficient Memory \(\d+:kIOGPUCommandBufferCallbackErrorOutOfMemory\)",
        _LOAD,
        "out of memory on the device while it computed a batch: Metal takes that memory when it is needed",
        "use a smaller batch, -b 512 -ub 512; the depth does not matter here",
        "larger batches fail too",
        ("flag:--batch-size+", "flag:--ubatch-size+"),
        _START,
    ),
    _memory(
        r"insufficient memory \(attempted to allocate +(?P<mb>[\d.]+) MB\)",
        "out of memory: {mb} MB more were asked for",
    ),
    _memory(
        r"failed to allocate buffer for (?P<what>kv|rs) cache",
        "out of memory: there is no room for the {what} cache",
        Failure.DEVICE_OOM_KV,
    ),
    _memory(
        r"failed to allocate (?:compute \w+ buffers|compute buffers|\S+ buffer of size \d+)"
        r"|unable to allocate \S+ buffer|std::bad_alloc",
        "out of memory: a buffer could not be allocated",
    ),
    sign(
        r"device (?P<device>\S+) does not support split buffers",
        Failure.BAD_COMBINATION,
        "{device} cannot split a model by rows",
        "use --split-mode layer",
        "every setting with --split-mode row fails",
        ("flag:--split-mode=",),
    ),
    sign(
        r"DeviceLostError|ErrorDeviceLost|GPU is lost|fallen off the bus",
        Failure.DEVICE_LOST,
        "the accelerator is gone",
        "look at the kernel's messages of the device; it may need a reset by hand",
    ),
    sign(
        r"couldn't bind HTTP server socket, hostname: (?P<host>[^,]+), port: (?P<port>\d+)",
        Failure.PORT_IN_USE,
        "port {port} of {host} is in use",
        "give --port another number, or end the process that listens there",
    ),
    sign(
        r"error: invalid argument: (?P<flag>\S+)",
        Failure.BAD_FLAG,
        "this llama-server has no option {flag}",
        "look for it in llama-server --help; the build may be older or newer than the option",
        "every setting that uses it fails",
    ),
    sign(
        r"error while handling (?:argument|environment variable) \"(?P<flag>[^\"]+)\": (?P<why>.+)",
        Failure.BAD_FLAG,
        "llama-server does not accept {flag}: {why}",
        "correct the option; llama-server --help says what it takes",
        "every setting with this value fails",
    ),
    sign(
        r"quantized V cache requires flash_attn",
        Failure.BAD_FLAG,
        "a quantized V cache needs flash attention",
        "use -fa on, or -ctv f16",
        "every setting with a quantized V cache fails while -fa is off",
        ("kv_dtype=",),
    ),
    sign(
        r"failed to create MTP context|doesn't contain MTP layers",
        Failure.DRAFT_BAD,
        "the model has no layers for multi-token prediction",
        "use another --spec-type, or a GGUF file that has them",
        "every depth above 0 fails with draft-mtp",
        ("spec_method=",),
    ),
    sign(
        r"failed to load draft model,? '(?P<model>[^']*)'",
        Failure.DRAFT_BAD,
        "the draft model {model} cannot be loaded",
        "correct --spec-draft-model; the lines before it say what is wrong with the file",
        "every depth above 0 fails with this draft model",
        ("draft_model=",),
    ),
    sign(
        r"failed to load model,? '(?P<model>[^']*)'",
        Failure.MODEL_MISSING,
        "the model {model} cannot be loaded",
        "correct --model; the lines before it say what is wrong with the file",
        "no setting starts",
    ),
    sign(
        r"failed to create_context with model '(?P<model>[^']*)'|exiting due to model loading error",
        Failure.CRASHED,
        "the model was read, but the server could not be set up with it",
        "the lines before it in the log say why",
    ),
    sign(
        r"(?:CUDA|ROCm|MUSA|SYCL) error(?::|$)",
        Failure.CRASHED,
        "the accelerator reported an error",
        "look at the log and at the kernel's messages of the device",
    ),
    sign(r"GGML_ASSERT\(", Failure.CRASHED, "the server failed a check of its own", "look at the log around this line"),
)
"""In the order of telling: of lines that match, the first in the log counts, and of patterns the first here."""

LIVING = (
    sign(
        r"failed to initialize speculative decoding context: (?P<why>.+)",
        Failure.NO_SPECULATION,
        "the server runs without speculation: {why}",
        "correct --spec-type or --spec-draft-model",
        "every depth above 0 of this method runs as depth 0",
        ("spec_method=",),
    ),
    sign(
        r"speculative decoding (?:is )?not supported by this context",
        Failure.NO_SPECULATION,
        "the server runs without speculation: this model's context does not support it",
        "use depth 0, or another --spec-type",
        "every depth above 0 of this method runs as depth 0",
        ("spec_method=",),
    ),
    sign(
        r"exceeds the trained block size (?P<block>\d+)(?: -- clamping to (?P<depth>\d+))?",
        Failure.WRONG_DEPTH,
        "the draft was trained for blocks of {block}: the server drafts {depth} tokens, and not what was asked for",
        "use depth {depth} or less; the states of the asked depth are allocated all the same",
        "every deeper setting runs as depth {depth}",
        ("depth+",),
    ),
    sign(
        r"Context size has been exceeded|failed to find free space in the KV cache",
        Failure.KV_STARVED,
        "the KV cache is full: the requests in flight need more tokens than -c holds",
        "use a larger -c or a smaller -np",
        "more requests at once fail too",
        ("max_running+",),
    ),
    sign(
        r"context size reduced from (?P<was>\d+) to (?P<now>\d+)",
        Failure.KV_STARVED,
        "-fit has shrunk the context from {was} to {now} tokens to fit the device",
        "say the context that is needed with -c: the server then fails at start rather than serve less",
        "deeper settings get no more context",
        ("depth+",),
    ),
)
"""The server goes on after these, so they do not say why it ended."""


HINTS = (
    sign(
        r"failed to fit params to free device memory: (?P<why>.+)",
        _START,
        "it may not fit the device, and -fit could do nothing about it: {why}",
        _LESS_MEMORY,
        _MORE_MEMORY,
        _MORE_FAILS,
    ),
)
"""What a server most often survives: they count when nothing else says why it ended."""


def diagnose(evidence: Evidence) -> Diagnosis:
    said = _diagnose(evidence)
    return msgspec.structs.replace(said, reason=masked_line(said.reason), remedy=masked_line(said.remedy))


def _diagnose(evidence: Evidence) -> Diagnosis:
    fatal = _fatal(evidence.log)
    if evidence.exit is not None:
        return _by_kernel(evidence.exit) or fatal or _first(evidence.log, UNIT) or _by_exit(evidence.exit, evidence.log)
    if fatal is not None:
        return _while_it_lives(fatal, evidence)
    said = first_of(evidence.log, LIVING, _came_up) or _first(evidence.log, UNIT)
    return said or _by_replies(evidence)


def _first(log: str, signs: Sequence[Sign]) -> Diagnosis | None:
    return next((said for line in log.splitlines() if (said := telling(line, signs, started=True))), None)


def _fatal(log: str) -> Diagnosis | None:
    """What the server survived until it had loaded, and tried again with less, is none."""
    said = _first(log, KERNEL) or first_of(log, ENDING, _came_up, forgives_start=True)
    when = _WHEN.get(said.failure) if said is not None else None
    return said if said is None or when is None else msgspec.structs.replace(said, reason=said.reason + when)


def _came_up(line: str) -> bool:
    return _LOADED.search(line) is not None


def _by_kernel(exit: ExitFacts) -> Diagnosis | None:
    remedy = "use a smaller -c, -np or --cache-ram, or a smaller model or draft model"
    said = by_supervisor(exit, _MORE_MEMORY, remedy)
    if said is None or said.failure is not Failure.HOST_OOM:
        return said
    return msgspec.structs.replace(said, fails_too=_MORE_FAILS)


def _while_it_lives(fatal: Diagnosis, evidence: Evidence) -> Diagnosis:
    """After an out-of-memory error in a request a server may stay up for ever without an answer (llama.cpp #13085)."""
    ready = evidence.replies.get("ready")
    if ready is None or ready.ok:
        return fatal
    return msgspec.structs.replace(fatal, reason=f"{fatal.reason}; it stays up and generates nothing")


def _by_exit(exit: ExitFacts, log: str) -> Diagnosis:
    last = last_line(log)
    if exit.signal == _SIGILL:
        return Diagnosis(
            failure=Failure.CRASHED,
            reason="it used an instruction that this processor does not have",
            line=last,
            remedy="use a build of llama-server for this processor; some builds fail so with one -ctk type only",
        )
    return first_of(log, HINTS, _came_up) or Diagnosis(
        failure=Failure.CRASHED,
        reason=f"it ended by itself ({exit}), and no line of its log says why",
        line=last,
        remedy="read the end of its log, or start it by hand with -lv 4",
    )


def _by_replies(evidence: Evidence) -> Diagnosis:
    health = evidence.replies.get("health")
    ready = evidence.replies.get("ready")
    if health is not None and loading(health):
        return Diagnosis(
            failure=Failure.NO_PROGRESS,
            reason="it answers, and is still loading the model",
            remedy="look at disk and download speed; raise start_stall_s if it is only slow",
        )
    if health is not None and health.ok and ready is not None and not ready.ok:
        what = f"HTTP {ready.status}" if ready.status else ready.error or "no answer"
        return Diagnosis(
            failure=Failure.NOT_GENERATING,
            reason=f"/health says ok, but a completion of two tokens does not come back ({what})",
            remedy="look at its log; a request may hang in the device",
        )
    return Diagnosis(
        failure=Failure.UNKNOWN,
        reason="it runs, and nothing in its log or its answers says what is wrong",
        remedy="read its log, or start it by hand with -lv 4",
    )
