"""The table of faults and what each must make of a trial: one place for the virtual and the real lab server."""

from __future__ import annotations

from typing import NamedTuple

from leadline.evidence import Failure
from leadline.testing.faults import Fault, FaultKind
from leadline.trial import TrialState

SICK = 4  # the depth at which a fault strikes; it would be the best one


class Expected(NamedTuple):
    number: int
    fault: Fault
    state: TrialState
    failure: Failure | None = None
    voids: int = 0
    finding: str | None = None
    recommendable: bool = False


def _at(kind: FaultKind, **options) -> Fault:
    return Fault(kind=kind, depths=(SICK,), **options)


EXPECTED = (
    Expected(1, _at(FaultKind.KILLED_UNDER_LOAD), TrialState.INFEASIBLE, Failure.KILLED, voids=1),
    Expected(2, _at(FaultKind.OOM_AT_START), TrialState.INFEASIBLE, Failure.DEVICE_OOM_START, voids=1),
    Expected(
        3, _at(FaultKind.OOM_UNDER_LOAD, above_running=2), TrialState.INFEASIBLE, Failure.DEVICE_OOM_LOAD, voids=1
    ),
    Expected(4, _at(FaultKind.HANG), TrialState.INFEASIBLE, Failure.NOT_GENERATING, voids=2),
    Expected(5, _at(FaultKind.MUTE), TrialState.INFEASIBLE, Failure.NOT_GENERATING, voids=2),
    Expected(6, _at(FaultKind.RESTART), TrialState.FAILED, Failure.RESTARTED, voids=2),
    Expected(7, _at(FaultKind.TRUNCATED, share=0.2), TrialState.COMPLETE, finding="errors"),
    Expected(8, _at(FaultKind.HTTP_500), TrialState.COMPLETE, finding="errors"),
    Expected(9, _at(FaultKind.SLOW_START, seconds=30.0), TrialState.COMPLETE, recommendable=True),
    Expected(10, _at(FaultKind.SILENT_START), TrialState.INFEASIBLE, Failure.NO_PROGRESS, voids=1),
    Expected(11, _at(FaultKind.WRONG_DEPTH), TrialState.INFEASIBLE, Failure.WRONG_DEPTH, voids=1),
    Expected(12, _at(FaultKind.FOREIGN), TrialState.FAILED, Failure.FOREIGN, voids=2),
)
