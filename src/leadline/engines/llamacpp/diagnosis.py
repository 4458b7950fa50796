"""Why a llama-server ended or does not serve: facts of the supervisor first, then the first telling line of its log."""

from __future__ import annotations

import re
from dataclasses import dataclass

from leadline.engines.llamacpp.probes import loading
from leadline.evidence import Diagnosis, Evidence, ExitFacts, Failure

_SIGILL, _SIGKILL = 4, 9
_LOADED = re.compile(r"srv\s+\S+: (?:model loaded|(?:server is )?listening on )")
_MORE_MEMORY = "deeper settings, more slots, a longer context or a larger draft model need at least as much"
_LONGEST = 300


@dataclass(frozen=True, slots=True)
class Sign:
    """A telling line. `reason` may use the pattern's named groups."""

    pattern: re.Pattern[str]
    failure: Failure
    reason: str
    remedy: str
    implies: str = ""


def _sign(pattern: str, failure: Failure, reason: str, remedy: str, implies: str = "") -> Sign:
    return Sign(re.compile(pattern), failure, reason, remedy, implies)


_LESS_MEMORY = "use a smaller -c or -np, -ctk/-ctv q8_0, fewer layers in -ngl, or no draft model"
_OOM = Failure.DEVICE_OOM_START  # becomes DEVICE_OOM_LOAD when the model had been loaded

ENDING = (
    _sign(
        r"allocating (?P<mib>\d+\.\d+) MiB on device (?P<device>\d+): \w+ failed: out of memory",
        _OOM,
        "out of memory on device {device}: {mib} MiB more were asked for",
        _LESS_MEMORY,
        _MORE_MEMORY,
    ),
    _sign(
        r"(?:CUDA|ROCm|MUSA|SYCL) error: out of memory|ErrorOutOf(?:Device|Host)Memory|OutOf(?:Device|Host)MemoryError"
        r"|Device memory allocation of size \d+ failed",
        _OOM,
        "out of memory on the device",
        _LESS_MEMORY,
        _MORE_MEMORY,
    ),
    _sign(
        r"insufficient memory \(attempted to allocate +(?P<mb>[\d.]+) MB\)",
        _OOM,
        "out of memory: {mb} MB more were asked for",
        _LESS_MEMORY,
        _MORE_MEMORY,
    ),
    _sign(
        r"failed to allocate (?:buffer for (?:kv|rs) cache|compute \w+ buffers|compute buffers|\S+ buffer of size \d+)"
        r"|unable to allocate \S+ buffer|std::bad_alloc",
        _OOM,
        "out of memory: a buffer could not be allocated",
        _LESS_MEMORY,
        _MORE_MEMORY,
    ),
    _sign(
        r"couldn't bind HTTP server socket, hostname: (?P<host>[^,]+), port: (?P<port>\d+)",
        Failure.PORT_IN_USE,
        "port {port} of {host} is in use",
        "give --port another number, or end the process that listens there",
    ),
    _sign(
        r"error: invalid argument: (?P<flag>\S+)",
        Failure.BAD_FLAG,
        "this llama-server has no option {flag}",
        "look for it in llama-server --help; the build may be older or newer than the option",
        "every setting that uses it fails",
    ),
    _sign(
        r"error while handling (?:argument|environment variable) \"(?P<flag>[^\"]+)\": (?P<why>.+)",
        Failure.BAD_FLAG,
        "llama-server does not accept {flag}: {why}",
        "correct the option; llama-server --help says what it takes",
        "every setting with this value fails",
    ),
    _sign(
        r"quantized V cache requires flash_attn",
        Failure.BAD_FLAG,
        "a quantized V cache needs flash attention",
        "use -fa on, or -ctv f16",
        "every setting with a quantized V cache fails while -fa is off",
    ),
    _sign(
        r"failed to create MTP context|doesn't contain MTP layers",
        Failure.DRAFT_BAD,
        "the model has no layers for multi-token prediction",
        "use another --spec-type, or a GGUF file that has them",
        "every depth above 0 fails with draft-mtp",
    ),
    _sign(
        r"failed to load draft model,? '(?P<model>[^']*)'",
        Failure.DRAFT_BAD,
        "the draft model {model} cannot be loaded",
        "correct --spec-draft-model; the lines before it say what is wrong with the file",
        "every depth above 0 fails with this draft model",
    ),
    _sign(
        r"failed to load model,? '(?P<model>[^']*)'",
        Failure.MODEL_MISSING,
        "the model {model} cannot be loaded",
        "correct --model; the lines before it say what is wrong with the file",
        "no setting starts",
    ),
    _sign(
        r"failed to create_context with model '(?P<model>[^']*)'|exiting due to model loading error",
        Failure.CRASHED,
        "the model was read, but the server could not be set up with it",
        "the lines before it in the log say why",
    ),
    _sign(
        r"(?:CUDA|ROCm|MUSA|SYCL) error(?::|$)",
        Failure.CRASHED,
        "the accelerator reported an error",
        "look at the log and at the kernel's messages of the device",
    ),
    _sign(
        r"GGML_ASSERT\(", Failure.CRASHED, "the server failed a check of its own", "look at the log around this line"
    ),
)
"""In the order of telling: of lines that match, the first in the log counts, and of patterns the first here."""

LIVING = (
    _sign(
        r"failed to initialize speculative decoding context: (?P<why>.+)",
        Failure.NO_SPECULATION,
        "the server runs without speculation: {why}",
        "correct --spec-type or --spec-draft-model",
        "every depth above 0 of this method runs as depth 0",
    ),
    _sign(
        r"speculative decoding (?:is )?not supported by this context",
        Failure.NO_SPECULATION,
        "the server runs without speculation: this model's context does not support it",
        "use depth 0, or another --spec-type",
        "every depth above 0 of this method runs as depth 0",
    ),
    _sign(
        r"Context size has been exceeded",
        Failure.DEVICE_OOM_LOAD,
        "the KV cache is full: the requests in flight need more tokens than -c holds",
        "use a larger -c or a smaller -np",
        "more requests at once fail too",
    ),
)
"""The server goes on after these, so they do not say why it ended."""


def diagnose(evidence: Evidence) -> Diagnosis:
    if evidence.exit is not None:
        return _by_kernel(evidence.exit) or _fatal(evidence.log) or _by_exit(evidence.exit, evidence.log)
    return _fatal(evidence.log) or _alive(evidence.log) or _by_replies(evidence)


def _by_kernel(exit: ExitFacts) -> Diagnosis | None:
    """Exit code 137 without a reported kill is no signal 9: a wrapper may have made it, or the program itself."""
    if exit.asked:
        return Diagnosis(failure=Failure.STOPPED_BY_US, reason="we told it to stop")
    if exit.host_oom_kills and (exit.signal == _SIGKILL or exit.code == 128 + _SIGKILL):
        return Diagnosis(
            failure=Failure.HOST_OOM,
            reason=f"the kernel killed it for want of memory ({exit})",
            remedy="use a smaller -c, -np or --cache-ram, or a smaller model or draft model",
            implies=_MORE_MEMORY,
        )
    if exit.signal == _SIGKILL:
        return Diagnosis(
            failure=Failure.KILLED,
            reason="somebody killed it (signal 9), and the kernel reported no lack of memory",
            remedy="look for a supervisor, a time limit or a person that killed it",
        )
    return None


def _fatal(log: str) -> Diagnosis | None:
    """By the first telling line; what the server survived until it had loaded (and tried again with less) is none."""
    first: Diagnosis | None = None
    loaded = False
    for line in log.splitlines():
        if not loaded and _LOADED.search(line):
            first, loaded = None, True
        elif first is None:
            first = _telling(line, ENDING, loaded)
    return first


def _alive(log: str) -> Diagnosis | None:
    return next((said for line in log.splitlines() if (said := _telling(line, LIVING, True))), None)


def _telling(line: str, signs: tuple[Sign, ...], loaded: bool) -> Diagnosis | None:
    for sign in signs:
        if found := sign.pattern.search(line):
            failure, when = sign.failure, ""
            if failure is _OOM:
                failure, when = (Failure.DEVICE_OOM_LOAD, ", under load") if loaded else (failure, ", at start")
            words = {name: (text or "").strip()[:_LONGEST] for name, text in found.groupdict().items()}
            return Diagnosis(
                failure=failure,
                reason=sign.reason.format(**words) + when,
                line=line.strip()[:_LONGEST],
                remedy=sign.remedy,
                implies=sign.implies,
            )
    return None


def _by_exit(exit: ExitFacts, log: str) -> Diagnosis:
    last = next((line.strip()[:_LONGEST] for line in reversed(log.splitlines()) if line.strip()), "")
    if exit.signal == _SIGILL:
        return Diagnosis(
            failure=Failure.CRASHED,
            reason="it used an instruction that this processor does not have",
            line=last,
            remedy="use a build of llama-server for this processor; some builds fail so with one -ctk type only",
        )
    return Diagnosis(
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
