"""Why a vLLM server ended or does not serve: facts of the machine first, then the first telling line of its log.

vLLM's first process ends with exit code 0 after its engine has died (`launcher.serve_http` returns), or lives on
without it (VLLM_KEEP_ALIVE_ON_ENGINE_DEATH): neither is a good end.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from leadline.dialect.signs import SIGKILL, Sign, by_supervisor, last_line, masked_line, telling
from leadline.engines.vllm import dialect, signs
from leadline.engines.vllm.loglines import Stats, raised, stats
from leadline.errors import InputError
from leadline.evidence import Diagnosis, Evidence, ExitFacts, Failure
from leadline.launch import LaunchSpec, masked

HANGS = 3
"""Statistics lines in a row, ten seconds apart, in which requests run and not one token comes."""

_SERVING = re.compile(r"Application startup complete\.")
_PHASES = (
    (re.compile(r"Available KV cache memory: "), Failure.DEVICE_OOM_KV, "when allocating the KV cache"),
    (re.compile(r"Capturing [\w -]*CUDA graphs"), Failure.DEVICE_OOM_GRAPH, "when capturing graphs"),
    (
        re.compile(r"Graph capturing finished|init engine \(profile, create kv cache, warmup model\) took"),
        Failure.DEVICE_OOM_START,
        "when warming up",
    ),
)
"""What goes on from such a line on, and the class of a lack of memory in it."""
_SIGINT, _SIGTERM = 2, 15
_ORDERLY = {0, 128 + _SIGINT, 128 + _SIGTERM}
_MAYBE_KILLED = "exit code 137 is 128+9: most likely SIGKILL, seen through a shell or a container"
_WARM_UP = re.compile(r"CUDA out of memory occurred when warming up")
_LESS_HOST_MEMORY = "give it more memory, or take less of --cpu-offload-gb, --swap-space or the model"
_GRAPHS = "lower --max-cudagraph-capture-size or --gpu-memory-utilization, or take less depth"


def diagnose(evidence: Evidence) -> Diagnosis:
    secrets = _secrets(evidence.argv)
    said = _diagnose(evidence)
    return msgspec.structs.replace(
        said,
        reason=_hidden(said.reason, secrets),
        line=_hidden(said.line, secrets),
        remedy=_hidden(said.remedy, secrets),
    )


def _diagnose(evidence: Evidence) -> Diagnosis:
    exit = evidence.exit
    if exit is not None and (said := by_supervisor(exit, signs.MORE_MEMORY, _LESS_HOST_MEMORY)):
        return said
    said = _first(evidence.log, signs.SUPERVISOR) or _root_cause(evidence) or _refused(evidence.log)
    said = said or _first(evidence.log, signs.DEAD)
    if said is not None:
        return said if exit is None else _with_exit(said, exit)
    last = _stopped(evidence) or _first(evidence.log, signs.RESTARTS)
    if exit is not None:
        return last or _raised(evidence) or _by_exit(exit, evidence.log)
    said = hang(evidence.log) or last or _raised(evidence) or _by_replies(evidence)
    return said or _first(evidence.log, signs.LIVING) or _nothing()


def _stopped(evidence: Evidence) -> Diagnosis | None:
    """That it was told to stop, when it ended as one does that was."""
    exit = evidence.exit
    orderly = exit is None or exit.code in _ORDERLY or exit.signal in (_SIGINT, _SIGTERM)
    return _first(evidence.log, signs.STOPPED) if orderly else None


def _raised(evidence: Evidence) -> Diagnosis | None:
    """The exception that the log ends with. A server that is there has survived it; so may one that runs."""
    exit, health = evidence.exit, evidence.replies.get("health")
    there = evidence.process is not None or (health is not None and health.status)
    text = raised(evidence.log)
    if text is None or (exit is None and there):
        return None
    return Diagnosis(
        failure=Failure.CRASHED,
        reason=f"its log ends with an exception: {masked_line(text)}" + (f" ({exit})" if exit is not None else ""),
        line=masked_line(text),
        remedy="read the traceback in its log, and look for the message among vLLM's issues",
    )


def hang(log: str) -> Diagnosis | None:
    """The last lines of an engine's statistics, when requests run in them and nothing comes.

    Releases that write idle lines at DEBUG only show one such line: there the "ready" probe has to tell.
    """
    lines: dict[str, list[tuple[str, Stats]]] = {}
    for line in log.splitlines():
        if (found := stats(line)) is not None:
            lines.setdefault(found.engine, []).append((line, found))
    for engine, seen in lines.items():
        last = seen[-HANGS:]
        if len(last) == HANGS and all(s.running and not s.output_tok_s and not s.prompt_tok_s for _, s in last):
            return Diagnosis(
                failure=Failure.NOT_GENERATING,
                reason=f"{last[-1][1].running} requests run and no token comes, in {HANGS} reports in a row"
                + (f" (engine {engine})" if engine else ""),
                line=masked_line(last[-1][0]),
                remedy="look at the device and its driver; a depth of 0 tells whether speculation is the cause",
            )
    return None


def _refused(log: str) -> Diagnosis | None:
    """A check of vLLM's own that failed before it served: the same setting fails again."""
    return None if _SERVING.search(log) else _first(log, signs.REFUSED)


def _first(log: str, among: Sequence[Sign]) -> Diagnosis | None:
    return next((said for line in log.splitlines() if (said := telling(line, among, started=True))), None)


def _root_cause(evidence: Evidence) -> Diagnosis | None:
    """The first telling line; of a lack of memory, what went on at that moment makes the class.

    What was said before it served is forgotten: it served all the same.
    """
    first: Diagnosis | None = None
    early, when, serving = Failure.DEVICE_OOM_START, "at start", False
    for line in evidence.log.splitlines():
        if not serving and _SERVING.search(line):
            serving, first = True, None
        for begins, failure, what in _PHASES:
            if begins.search(line):
                early, when = failure, what
        if first is None or (first.failure in _OOM_AT_START and not serving and _WARM_UP.search(line)):
            said = telling(line, signs.TELLING, started=serving)
            first = first if said is None else _placed(said, early, when, serving)
    return first if first is None else _of_draft(first, evidence.argv)


_OOM_AT_START = frozenset({Failure.DEVICE_OOM_START, Failure.DEVICE_OOM_KV, Failure.DEVICE_OOM_GRAPH})


def _placed(said: Diagnosis, early: Failure, when: str, serving: bool) -> Diagnosis:
    if not said.reason.startswith("out of memory on the device"):
        return said
    if serving:
        return msgspec.structs.replace(said, reason=f"{said.reason}, under load")
    graph = early is Failure.DEVICE_OOM_GRAPH
    return msgspec.structs.replace(
        said,
        failure=early,
        reason=f"{said.reason}, {when}",
        remedy=_GRAPHS if graph else said.remedy,
        fails_too=(*said.fails_too, "graph_max_batch+") if graph else said.fails_too,
    )


def _of_draft(said: Diagnosis, argv: tuple[str, ...]) -> Diagnosis:
    """A model that is missing may be the draft model."""
    if said.failure is not Failure.MODEL_MISSING or not argv:
        return said
    try:
        draft = dialect.parse(LaunchSpec(argv=argv)).get("draft_model")
    except InputError:
        return said
    if not isinstance(draft, str) or draft not in said.line:
        return said
    return msgspec.structs.replace(
        said,
        failure=Failure.DRAFT_BAD,
        reason=f"the draft model {draft} cannot be found or read",
        implies="every depth above 0 fails with this draft model",
        fails_too=("draft_model=",),
    )


def _with_exit(said: Diagnosis, exit: ExitFacts) -> Diagnosis:
    if said.failure is Failure.KILLED and exit.host_oom_kills:
        return msgspec.structs.replace(
            said,
            failure=Failure.HOST_OOM,
            reason="the kernel killed one of its processes for want of host memory",
            remedy=_LESS_HOST_MEMORY,
        )
    if exit.code == 0:
        return msgspec.structs.replace(said, reason=f"{said.reason}; its exit code is 0 all the same")
    return said


def _by_exit(exit: ExitFacts, log: str) -> Diagnosis:
    if exit.code == 2:  # argparse
        return Diagnosis(
            failure=Failure.BAD_FLAG,
            reason="it did not accept its command line (exit code 2)",
            line=last_line(log),
            remedy="start it by hand to see why",
        )
    killed = exit.code == 128 + SIGKILL
    return Diagnosis(
        failure=Failure.CRASHED,
        reason=f"it ended by itself ({exit}), and no line of its log says why" + f"; {_MAYBE_KILLED}" * killed,
        line=last_line(log),
        remedy="read the end of its log" + "; look in dmesg for the out-of-memory killer" * killed,
    )


def _by_replies(evidence: Evidence) -> Diagnosis | None:
    health, ready = evidence.replies.get("health"), evidence.replies.get("ready")
    if health is not None and health.status == 503:
        return Diagnosis(
            failure=Failure.ENGINE_DEAD,
            reason="/health says 503: its engine has died, and the process lives on",
            remedy="read its log; it has to be started again",
        )
    if health is not None and health.ok and ready is not None and not ready.ok:
        what = f"HTTP {ready.status}" if ready.status else ready.error or "no answer"
        return Diagnosis(
            failure=Failure.NOT_GENERATING,
            reason=f"/health says ok, but a completion of two tokens does not come back ({what})",
            remedy="look at its log; a request may hang in the device",
        )
    if health is not None and not health.status and not _SERVING.search(evidence.log):
        return Diagnosis(
            failure=Failure.NO_PROGRESS,
            reason="it runs and does not listen yet: it is still loading",
            line=last_line(evidence.log),
            remedy="look at disk and download speed; raise start_stall_s if it is only slow",
        )
    return None


def _nothing() -> Diagnosis:
    return Diagnosis(
        failure=Failure.UNKNOWN,
        reason="it runs, and nothing in its log or its answers says what is wrong",
        remedy="read its log",
    )


def _secrets(argv: tuple[str, ...]) -> list[str]:
    """Words of the command line that no text may show."""
    shown = masked(LaunchSpec(argv=argv)).argv
    words = [w.partition("=")[2] or w for w, s in zip(argv, shown, strict=False) if w != s]
    return sorted((w for w in words if len(w) > 2), key=len, reverse=True)


def _hidden(text: str, secrets: list[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, "<secret>")
    return masked_line(text)
