"""Make a setting that ran a service's permanent one, see whether it holds what its campaign promised, and put the old
one back when it does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from leadline import metrics
from leadline.deploy import Deployer, Running, StartFailed
from leadline.errors import LeadlineError, NotGivenBackError
from leadline.evidence import Diagnosis, Failure
from leadline.goal import Cell, Goal
from leadline.launch import LaunchSpec, Step
from leadline.measure import Job, Measurer, Spoiled
from leadline.ports import Service
from leadline.space import Setting
from leadline.steps import carry_out, observe
from leadline.trial import History
from leadline.verdict import differences

WATCH_S = 1.0
TOKEN_S = 15.0


class NotAsPromised(LeadlineError):
    """What was put in force does not hold; the old setting is back when this is raised."""


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    """What the campaign measured of a setting: the mean of `metric` in one cell."""

    cell: Cell
    metric: str
    value: float


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A promise and what was measured after; `ratio` above 1 = better than promised. None = it could not be measured,
    and `why`."""

    promise: Promise
    measured: float | None = None
    ratio: float | None = None
    why: str = ""

    def __str__(self) -> str:
        p = self.promise
        if self.measured is None:
            return f"{p.cell}: {p.metric} not compared: {self.why}"
        return f"{p.cell}: {p.metric} {self.measured:.4g}, promised {p.value:.4g} (ratio {self.ratio:.3f})"


def promises(history: History, setting: Setting, goals: Sequence[Goal]) -> tuple[Promise, ...]:
    """One for each cell and objective of the goals that the setting was measured in."""
    out: dict[tuple[Cell, str], Promise] = {}
    for goal in goals:
        for cell in (w.cell for w in goal.weights):
            found = [m for t in history.of(setting) if (m := t.measurement(cell)) is not None]
            values = [m.values[goal.objective] for m in found if goal.objective in m.values]
            if values:
                mean = sum(values) / len(values)
                out[cell, goal.objective] = Promise(cell=cell, metric=goal.objective, value=mean)
    return tuple(out.values())


class Promotion(msgspec.Struct, frozen=True, kw_only=True):
    """`worst_frac` = how much worse than promised is still good; `watch_s` = how long it is watched after that.

    `take_back()` gives the Steps that undo it, from wherever it stopped. `say` hears how it goes on.
    """

    deployer: Deployer
    measurer: Measurer
    service: Service
    log: str
    worst_frac: float
    watch_s: float
    take_back: Callable[[], Sequence[Step]]
    say: Callable[[str], None] = lambda text: None

    def carry(
        self, steps: Sequence[Step], launch: LaunchSpec, asked: Setting, promised: Sequence[Promise]
    ) -> tuple[Kept, ...]:
        """Raises NotAsPromised with the old setting back and serving, NotGivenBackError when it is not."""
        try:
            running = self._put(steps, launch)
            self._verify(running, asked)
            cells = tuple(dict.fromkeys(p.cell for p in promised))
            kept = tuple(k for cell in cells for k in self._compare(running, asked, cell, cells, promised))
            self._watch(running)
        except (StartFailed, Spoiled) as failed:
            self._back()
            raise NotAsPromised(f"{failed.diagnosis}. The old setting is back and serves.") from failed
        except BaseException:
            with self.deployer.shield():
                self._back()
            raise
        return kept

    def _put(self, steps: Sequence[Step], launch: LaunchSpec) -> Running:
        began = self.deployer.clock.now_ns()
        before = self.deployer.in_custody().look(self.service)
        self._execute(steps, launch)
        return self.deployer.join(self.service, launch, self.log, before, began)

    def _execute(self, steps: Sequence[Step], launch: LaunchSpec) -> None:
        d = self.deployer
        carry_out(steps, host=d.host, target=d.target, clock=d.clock, launch=launch, shield=d.shield)

    def _verify(self, running: Running, asked: Setting) -> None:
        effective = self.deployer.engine.effective(self.deployer.evidence(running))
        wrong, findings = differences(asked, effective)
        if wrong is not None:
            raise StartFailed(wrong)
        for finding in findings:
            self.say(str(finding))

    def _compare(
        self, running: Running, asked: Setting, cell: Cell, cells: tuple[Cell, ...], promised: Sequence[Promise]
    ) -> tuple[Kept, ...]:
        """One load of a cell for all that is promised there. Raises Spoiled when something is worse than allowed."""
        here = [p for p in promised if p.cell == cell]
        job = Job(trial=0, attempt=1, round=1, cell=cell, cells=cells, asked=asked)
        try:
            values = self.measurer.measure(running, job).values
        except Spoiled as spoiled:
            if spoiled.diagnosis.failure is not Failure.FOREIGN:
                raise
            values = {}
        kept = tuple(_kept(promise, values.get(promise.metric)) for promise in here)
        for one in kept:
            self.say(str(one))
            if one.ratio is not None and one.ratio < 1 - self.worst_frac:
                raise Spoiled(_worse(one, self.worst_frac))
        return kept

    def _watch(self, running: Running) -> None:
        """Live, for the canary's time: it must stay up, and generate."""
        clock = self.deployer.clock
        until, token = clock.now_ns() + self.watch_s * 1e9, clock.now_ns()
        if self.watch_s:
            self.say(f"watching it for {self.watch_s / 60:.3g} min")
        while clock.now_ns() < until:
            ask = clock.now_ns() >= token
            doubt = self.deployer.doubt(running, generate=ask)
            if doubt is not None:
                raise StartFailed(doubt)
            if ask:
                token = clock.now_ns() + int(TOKEN_S * 1e9)
            clock.sleep(WATCH_S)

    def _back(self) -> None:
        """The old setting in force again, and serving."""
        try:
            take_back(self.deployer, self.service, self.take_back(), self.log)
        except NotGivenBackError:
            raise
        except LeadlineError as error:
            raise NotGivenBackError(
                f"the old setting could not be put back: {error}. Look at the service now."
            ) from error


def take_back(deployer: Deployer, service: Service, steps: Sequence[Step], log: str) -> None:
    """Carry out the Steps of an undo and wait until what was there before serves. Nothing happens without Steps."""
    if not steps:
        return
    began, before = deployer.clock.now_ns(), deployer.in_custody().look(service)
    observed = observe(deployer.target, deployer.host)
    carry_out(
        steps,
        host=deployer.host,
        target=deployer.target,
        clock=deployer.clock,
        launch=observed.launch,
        shield=deployer.shield,
    )
    original = observe(deployer.target, deployer.host)
    if not observed.running:
        return
    try:
        deployer.join(service, original.launch, log, before, began)
    except StartFailed as failed:
        raise NotGivenBackError(
            f"the old setting was put back and started, but it does not serve: {failed.diagnosis}. Look at it now."
        ) from failed


def _kept(promise: Promise, measured: float | None) -> Kept:
    if measured is None or not measured or not promise.value:
        return Kept(promise=promise, why="others use the service meanwhile, so a measurement says nothing")
    higher = metrics.better(promise.metric) != "lower"
    ratio = measured / promise.value if higher else promise.value / measured
    return Kept(promise=promise, measured=measured, ratio=ratio)


def _worse(kept: Kept, worst_frac: float) -> Diagnosis:
    return Diagnosis(
        failure=Failure.UNKNOWN,
        reason=f"it is worse than promised by more than canary.worst_frac = {worst_frac:g}: {kept}",
        remedy="measure it again with `leadline run`, or allow more in canary.worst_frac",
    )
