"""One launch of a lab server without its clock: engine, faults and request numbers. The virtual world and the real
process both drive this, so the same spec fails in the same way in both."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from leadline.testing.faults import Fault, FaultKind, active, cap, depth_in_force, hits
from leadline.testing.physics import Emission, Finish, LabEngine, LabRequest, LabSpec, Step, natural_tokens


class Fatal(StrEnum):
    """What a step may do to the whole process."""

    KILL = "kill"  # SIGKILL
    OUT_OF_MEMORY = "out_of_memory"  # the engine's own abort
    CRASH = "crash"  # an error of the engine's own
    CHILD_KILLED = "child_killed"  # SIGKILL of one of its processes
    WATCHDOG = "watchdog"  # it ends itself, since nothing moves any more
    RESTART = "restart"  # the same server begins again


_DEATHS = {
    FaultKind.CRASH: Fatal.CRASH,
    FaultKind.CHILD_KILLED: Fatal.CHILD_KILLED,
    FaultKind.WATCHDOG: Fatal.WATCHDOG,
}
_RETRACTION_STEPS = 4.0  # what a retraction costs, in base steps


class Admission(msgspec.Struct, frozen=True):
    """`id` is None when the request was refused with HTTP `status`."""

    id: int | None
    status: int = 200
    error: str = ""


class LabModel:
    """`depth` is what was asked, `engine.depth` what is in force. `boot` = how often this launch started itself again.
    `asked_running` = requests at once as asked, `engine.max_running` as they run. `retractions` = requests taken back.

    `drafts` False = speculation is on, but its drafter never finds anything. Requests of one token are taken for
    readiness probes: they are not numbered, so faults that hit a share of the requests never hit them.
    """

    def __init__(
        self, spec: LabSpec, *, depth: int, max_running: int, launch: int, boot: int = 0, drafts: bool = True
    ) -> None:
        self.faults = active(spec.faults, depth, launch)
        self.spec = spec if drafts and FaultKind.NO_DRAFTS not in self.faults else _never_drafting(spec)
        self.asked_running = max_running
        in_force, max_running = depth_in_force(depth, self.faults), cap(max_running, self.faults)
        self.engine = LabEngine(self.spec, depth=in_force, max_running=max_running, seed=launch * 1000 + boot)
        self.fatal: Fatal | None = None
        self._boot = boot
        self.retractions = 0
        self._tokens = 0
        self._numbered = 0
        self._cuts: dict[int, int] = {}
        self._foreign: set[int] = set()

    def admit(self, request: LabRequest) -> Admission:
        if request.max_tokens > 1:
            self._numbered += 1
            if self._hit(FaultKind.HTTP_500):
                return Admission(None, 500, "lab fault: internal error")
        try:
            number = self.engine.submit(request)
        except ValueError as exc:
            return Admission(None, 400, str(exc))
        if request.max_tokens > 1 and self._hit(FaultKind.TRUNCATED):
            whole = min(request.max_tokens, natural_tokens(self.spec, request))
            self._cuts[number] = max(1, whole // 2)
        return Admission(number)

    def stuck(self, ready_for_s: float) -> bool:
        """Whether it generates nothing although it has work: hung, or not yet able to."""
        hang, mute = self.faults.get(FaultKind.HANG), self.faults.get(FaultKind.MUTE)
        if hang and self._tokens >= hang.after_tokens:
            return True
        return mute is not None and (mute.seconds is None or ready_for_s < mute.seconds)

    def step(self) -> Step:
        """One step of the engine as its own clients see it; look at `fatal` when it returns."""
        step = self.engine.step()
        before = self._tokens
        ours = tuple(self._cut(e) for e in step.emissions if e.id not in self._foreign)
        self._foreign.difference_update(e.id for e in step.emissions if e.finish)
        self._tokens += sum(e.tokens for e in ours)
        self._intrude(before)
        self.fatal = self._doom(len(step.emissions))
        return Step(step.duration_s + self._retract(before), ours)

    def cancel(self, number: int) -> Finish | None:
        """The client has gone."""
        self._cuts.pop(number, None)
        return self.engine.cancel(number)

    def _hit(self, kind: FaultKind) -> bool:
        fault = self.faults.get(kind)
        return fault is not None and hits(fault.share, self._numbered)

    def _cut(self, emission: Emission) -> Emission:
        """Ends a stream that is to be truncated when half of it is out."""
        if emission.id not in self._cuts:
            return emission
        self._cuts[emission.id] -= emission.tokens
        if self._cuts[emission.id] > 0 and emission.finish is None:
            return emission
        del self._cuts[emission.id]
        finish = emission.finish or self.engine.cancel(emission.id)
        return Emission(emission.id, emission.tokens, finish, cut=True)

    def _intrude(self, before: int) -> None:
        """Requests by somebody else, one for every so many tokens of ours."""
        fault = self.faults.get(FaultKind.FOREIGN)
        if fault is None:
            return
        for n in range(before // fault.after_tokens, self._tokens // fault.after_tokens):
            self._foreign.add(self.engine.submit(_intruder(fault, n)))

    def _retract(self, before: int) -> float:
        """Seconds lost to requests that gave their KV tokens back and had to be computed again."""
        fault = self.faults.get(FaultKind.RETRACTIONS)
        if fault is None:
            return 0.0
        times = self._tokens // fault.after_tokens - before // fault.after_tokens
        self.retractions += times
        return times * self.spec.base_step_ms * _RETRACTION_STEPS / 1e3

    def _doom(self, served: int) -> Fatal | None:
        kill, oom = self.faults.get(FaultKind.KILLED_UNDER_LOAD), self.faults.get(FaultKind.OOM_UNDER_LOAD)
        again = self.faults.get(FaultKind.RESTART)
        if kill and self._tokens >= kill.after_tokens:
            return Fatal.KILL
        if oom and served > oom.above_running:
            return Fatal.OUT_OF_MEMORY
        if again and self._boot == 0 and self._tokens >= again.after_tokens:
            return Fatal.RESTART
        deaths = (self.faults.get(kind) for kind in _DEATHS)
        return next((_DEATHS[f.kind] for f in deaths if f and self._tokens >= f.after_tokens), None)


def _never_drafting(spec: LabSpec) -> LabSpec:
    def mute(kind: msgspec.Struct) -> msgspec.Struct:
        return msgspec.structs.replace(kind, draft_share=0.0)

    return msgspec.structs.replace(
        spec, workloads={name: mute(kind) for name, kind in spec.workloads.items()}, other=mute(spec.other)
    )


def _intruder(fault: Fault, n: int) -> LabRequest:
    return LabRequest(prompt_id=f"foreign:{n}", prompt_tokens=16, max_tokens=fault.tokens, ignore_eos=True)
