"""What a failure means for a trial, and what really runs against what was asked."""

from __future__ import annotations

from leadline.evidence import Diagnosis, Effective, Failure
from leadline.space import Setting
from leadline.trial import Finding

AGAIN = frozenset({Failure.NOT_GENERATING, Failure.RESTARTED, Failure.FOREIGN})
"""Launched once more before it counts."""

DIED = frozenset(
    {Failure.HOST_OOM, Failure.DEVICE_OOM_LOAD, Failure.KILLED, Failure.CRASHED, Failure.ENGINE_DEAD, Failure.WATCHDOG}
)
"""Of more load than it had borne before."""

GONE = DIED | {Failure.RESTARTED, Failure.TAKEN_BACK, Failure.NOT_GENERATING, Failure.RESTART_LOOP}
"""Nobody is served from then on."""

NOT_ITS_FAULT = frozenset(
    {
        Failure.RESTARTED,
        Failure.FOREIGN,
        Failure.PORT_IN_USE,
        Failure.STOPPED_BY_US,
        Failure.ENVIRONMENT,
        Failure.DEVICE_LOST,
        Failure.DEVICE_BUSY,
        Failure.NOT_EXECUTED,
        Failure.START_LIMIT,
        Failure.STOP_TIMEOUT,
        Failure.LEFTOVERS,
        Failure.TAKEN_BACK,
        Failure.CHANGED,
    }
)
"""Not of the setting: somebody must look."""


def differences(
    asked: Setting, found: Effective, concurrency: int | None = None
) -> tuple[Diagnosis | None, tuple[Finding, ...]]:
    """A reason to call the trial INFEASIBLE, and findings. `concurrency` = the users of one measurement, if it is one.

    Another depth or draft tree is never this setting. A smaller max_running is a result of memory, and is reported
    beside the number; so are decode steps without graphs, and MoE kernels without a tuned configuration.
    """
    seen = (_cap(asked, found), _graphs(found), _outside_graphs(found, concurrency), _moe(found))
    return _wrong(asked, found), tuple(f for f in seen if f is not None)


def _wrong(asked: Setting, found: Effective) -> Diagnosis | None:
    depth = asked.integer("depth")
    if depth is not None and found.depth is not None and found.depth != depth:
        return _wrong_depth(f"asked for depth {depth}, the server runs depth {found.depth}")
    if depth and found.speculating is False:
        reason = f"asked for depth {depth}, but speculation did not start and the server runs without it"
        return Diagnosis(
            failure=Failure.NO_SPECULATION,
            reason=reason,
            remedy="look for the reason in its log",
            implies="every depth above 0 of this method runs as depth 0",
            fails_too=("depth+", "spec_method="),
        )
    if depth == 0 and found.speculating:
        return _wrong_depth("asked for no speculation, but the server speculates")
    for name, runs in (("topk", found.topk), ("draft_tokens", found.draft_tokens)):
        wanted = asked.integer(name)
        if depth and wanted is not None and runs is not None and runs != wanted:
            return _wrong_depth(f"asked for {name} {wanted}, the server runs {name} {runs}")
    return None


def _wrong_depth(reason: str) -> Diagnosis:
    return Diagnosis(
        failure=Failure.WRONG_DEPTH,
        reason=reason,
        remedy="look for an environment variable or a configuration file that overrides the flag",
    )


def _cap(asked: Setting, found: Effective) -> Finding | None:
    cap = asked.integer("max_running")
    if cap is None or found.max_running is None or found.max_running == cap:
        return None
    return Finding(
        code="max_running_cut",
        message=f"asked for max_running {cap}, the server runs {found.max_running}.",
        size=f"{found.max_running - cap:+d} requests",
        remedy="Read the throughput at high concurrency with this cap in mind.",
    )


def _graphs(found: Effective) -> Finding | None:
    if found.graphs is not False:
        return None
    return Finding(
        code="no_graphs",
        message="decode steps ran without captured graphs.",
        size="often a factor of 2 at low concurrency",
        remedy="Look for a flag that disables them, and for batches above graph_max_batch.",
    )


def _outside_graphs(found: Effective, concurrency: int | None) -> Finding | None:
    """Decode falls off a cliff when the batch outgrows the captured graphs (vLLM issue 49390: 7559 -> 1127 tok/s)."""
    largest, users = found.graph_max_batch, concurrency
    if found.graphs is False or largest is None or users is None:
        return None
    batch = min(users, found.max_running or users)
    if batch <= largest:
        return None
    return Finding(
        code="outside_graphs",
        message=f"{batch} requests are decoded at once, and graphs are captured for up to {largest}.",
        size=f"{batch - largest:+d} requests beyond the largest graph",
        remedy="Raise graph_max_batch, or do not read this point as an effect of the depth.",
    )


def _moe(found: Effective) -> Finding | None:
    if found.moe_tuned is not False:
        return None
    return Finding(
        code="moe_default_config",
        message="the fused-MoE kernels found no tuned configuration for this device and use their default.",
        remedy="At small batches the experts are bound by memory, where tuning gains little: measure before and after.",
    )
