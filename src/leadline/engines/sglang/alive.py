"""Why an SGLang server that is alive does not serve: still starting, busy, or hung."""

from __future__ import annotations

from leadline.dialect.signs import last_line, masked_line
from leadline.engines.sglang import counters, log
from leadline.engines.sglang.stages import Stage, stage_after
from leadline.evidence import Diagnosis, Evidence, Failure

_SILENT = 3
"""So many latest decode lines without a token, while requests run, are a hang (they come every 40 steps)."""


def silent(evidence: Evidence) -> Diagnosis | None:
    """By what it answers; None when nothing says that it does not serve."""
    seen = log.read(evidence.log)
    stage = Stage.BEGUN
    for line in evidence.log.splitlines():
        stage = stage_after(line, stage)
    health, ready = evidence.replies.get("health"), evidence.replies.get("ready")
    if health is not None and not health.ok:
        if stage is not Stage.SERVING:
            return _starting(stage)
        return _busy_or_hung(evidence, seen)
    idle = [d for d in seen.decodes[-_SILENT:] if d.running and d.tokens_per_s == 0]
    if len(idle) == _SILENT:
        return _hung(f"its last {_SILENT} reports say that requests run and no token comes", last_line(evidence.log))
    if health is not None and health.ok and ready is not None and not ready.ok:
        what = f"HTTP {ready.status}" if ready.status else ready.error or "no answer"
        return _hung(f"/health says ok, but a completion of two tokens does not come back ({what})", "")
    return None


def _starting(stage: Stage) -> Diagnosis:
    where = "" if stage is Stage.BEGUN else f" ({stage.value})"
    return Diagnosis(
        failure=Failure.NO_PROGRESS,
        reason=f"it is alive, and still starting{where}",
        remedy="look at disk and download speed, and whether kernels are compiled anew: a lost compile cache made "
        "captures three times as long; raise start_stall_s if it is only slow",
    )


def _busy_or_hung(evidence: Evidence, seen: log.Log) -> Diagnosis:
    """`/health` answers 503 when a long prefill keeps the scheduler for more than 20 s (issue 22511)."""
    reply = evidence.replies.get("metrics")
    busy = counters.busy(reply) if reply is not None else None
    batches = [line for line in evidence.log.splitlines() if "Prefill batch" in line or "Decode batch" in line]
    prefill = log.prefill_of(batches[-1]) if batches else None
    running = (busy is not None and busy.running > 0) or any(d.running for d in seen.decodes[-1:])
    if not running and prefill is None:
        return _hung("/health does not say ok, and no request is running", last_line(evidence.log))
    return Diagnosis(
        failure=Failure.UNKNOWN,
        reason="it is busy, not dead: /health does not answer in time while requests are being computed"
        + (f" ({prefill.tokens} prompt tokens at once)" if prefill is not None and prefill.tokens else ""),
        line=masked_line(batches[-1]) if batches else "",
        remedy="wait, and watch whether its log goes on; a higher SGLANG_HEALTH_CHECK_TIMEOUT or a smaller "
        "--chunked-prefill-size helps the health check",
    )


def _hung(reason: str, line: str) -> Diagnosis:
    return Diagnosis(
        failure=Failure.NOT_GENERATING,
        reason=reason,
        line=line,
        remedy="look at its log, and at what the scheduler does (py-spy dump); then start it again",
    )
