"""Why a trtllm-serve ended or does not serve: facts of the supervisor first, then the first telling line of its log.

What it prints and exits with when one of its worker processes is killed was not seen, so no meaning is given to exit
codes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from leadline.dialect.signs import SIGKILL, Sign, by_supervisor, last_line, masked_line, telling
from leadline.engines.trtllm.shortage import shortage
from leadline.engines.trtllm.signs import ENDING, LIVING, MACHINE, UNIT
from leadline.evidence import Diagnosis, Evidence, ExitFacts, Failure, Reply

_UP = re.compile(r"Application startup complete|Uvicorn running on ")
_GRAPHS = re.compile(r"Creating CUDA graph instances for|CUDA graph warmup")
_CACHE = re.compile(r"Estimated max memory in KV cache")
_INVALID = re.compile(r"\b\d+ validation errors? for (?P<what>\w+)")
_MAYBE_KILLED = "exit code 137 is 128+9: most likely SIGKILL, seen through a shell or a container"
_UNAVAILABLE = b"LLM is unavailable"


def diagnose(evidence: Evidence) -> Diagnosis:
    """Whatever of a log line gets into the reason is masked like the line itself."""
    said = _diagnosed(evidence)
    return msgspec.structs.replace(said, reason=masked_line(said.reason))


def _diagnosed(evidence: Evidence) -> Diagnosis:
    exit = evidence.exit
    if exit is not None:
        known = by_supervisor(
            exit,
            "a larger model and more cache in host memory need at least as much",
            "give the service more host memory, or keep less cache there (kv_cache_config.host_cache_size)",
        )
        return known or _fatal(evidence.log) or _first(evidence.log, UNIT) or _by_exit(exit, evidence.log)
    said = _dead(evidence) or _fatal(evidence.log) or _first(evidence.log, (*LIVING, *UNIT))
    return said or _by_replies(evidence)


def _fatal(log: str) -> Diagnosis | None:
    """By the kernel, else by the first telling line, and by how far the start had come when it was written."""
    if killed := _first(log, MACHINE):
        return killed
    lines = log.splitlines()
    up = False
    early = Failure.DEVICE_OOM_START
    for at, line in enumerate(lines):
        if _UP.search(line):
            up = True
        elif _GRAPHS.search(line):
            early = Failure.DEVICE_OOM_GRAPH
        elif _CACHE.search(line):
            early = Failure.DEVICE_OOM_KV
        if found := _INVALID.search(line):
            return _invalid(line, found["what"], lines[at + 1 : at + 3])
        said = telling(line, ENDING, started=up)
        if said is not None:
            return _explained(said, lines, early)
    # The table may come without the error that it explains.
    table = shortage(lines)
    return None if table is None else table.diagnosis()


def _explained(said: Diagnosis, lines: list[str], early: Failure) -> Diagnosis:
    """Out of memory at start: the server's own table says more; without it, the phase of the start."""
    if said.failure is not Failure.DEVICE_OOM_START:
        return said
    table = shortage(lines)
    if table is not None:
        return msgspec.structs.replace(table.diagnosis(), line=said.line)
    if early is Failure.DEVICE_OOM_GRAPH:
        said = msgspec.structs.replace(
            said,
            reason=f"{said.reason}, while CUDA graphs were captured",
            fails_too=(*said.fails_too, "graph_max_batch+"),
        )
    return msgspec.structs.replace(said, failure=early)


def _invalid(line: str, what: str, after: list[str]) -> Diagnosis:
    """pydantic names the key in the line below, and what is wrong with it in the next; then comes the value."""
    detail = ": ".join(masked_line(part.partition(" [type=")[0]) for part in after)
    unknown = "Extra inputs are not permitted" in detail
    return Diagnosis(
        failure=Failure.BAD_FLAG if unknown else Failure.BAD_COMBINATION,
        reason=f"trtllm-serve refuses its configuration ({what}): {detail or 'see the log'}",
        line=masked_line(line),
        remedy="correct the YAML file; releases differ in the keys that they know, and forbid all others",
        implies="every setting with this key or value fails",
    )


def _dead(evidence: Evidence) -> Diagnosis | None:
    """It listens only once the model is loaded, so a 503 is no loading: the engine behind the HTTP server is gone.

    Some releases then go on to answer 503 for good (TensorRT-LLM issue 18663).
    """
    health = evidence.replies.get("health")
    if health is None or not _unavailable(health):
        return None
    why = _fatal(evidence.log)
    return Diagnosis(
        failure=Failure.ENGINE_DEAD,
        reason="the HTTP server answers, and the engine behind it is dead" + (f": {why.reason}" if why else ""),
        line=why.line if why else last_line(evidence.log),
        remedy=why.remedy if why else "restart it, and read its log from the end up",
        implies=why.implies if why else "",
        fails_too=why.fails_too if why else (),
    )


def _unavailable(health: Reply) -> bool:
    return health.status == 503 and _UNAVAILABLE in health.body


def _first(log: str, signs: Sequence[Sign]) -> Diagnosis | None:
    return next((said for line in log.splitlines() if (said := telling(line, signs, started=True))), None)


def _by_exit(exit: ExitFacts, log: str) -> Diagnosis:
    killed = exit.code == 128 + SIGKILL
    return Diagnosis(
        failure=Failure.CRASHED if exit.signal is not None else Failure.UNKNOWN,
        reason=f"it ended by itself ({exit}), and no line of its log says why" + f"; {_MAYBE_KILLED}" * killed,
        line=last_line(log),
        remedy="read the end of its log, or start it by hand with --log_level debug"
        + "; look in dmesg for the out-of-memory killer" * killed,
    )


def _by_replies(evidence: Evidence) -> Diagnosis:
    health = evidence.replies.get("health")
    ready = evidence.replies.get("ready")
    if health is not None and health.ok and ready is not None and not ready.ok:
        what = f"HTTP {ready.status}" if ready.status else ready.error or "no answer"
        return Diagnosis(
            failure=Failure.NOT_GENERATING,
            reason=f"/health says ok, but a completion of two tokens does not come back ({what})",
            remedy="look at its log; /health does not make the engine generate",
        )
    if health is not None and not health.status:
        return Diagnosis(
            failure=Failure.NO_PROGRESS,
            reason="it does not listen yet: it does so once the model is loaded",
            remedy="look at disk and download speed; raise start_stall_s if it is only slow",
        )
    return Diagnosis(
        failure=Failure.UNKNOWN,
        reason="it runs, and nothing in its log or its answers says what is wrong",
        remedy="read its log, or start it by hand with --log_level debug",
    )
