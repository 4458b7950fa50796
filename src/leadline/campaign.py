"""The loop of a campaign, and how it goes on after a crash. Sequencing only: what to do next, and what to write first.

Every effect is preceded by its intent in the journal. However an attempt ends, its server is ended and the service
given back before anything else happens.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import msgspec

from leadline.analysis.recommend import recommend
from leadline.answer import Recommendation
from leadline.deploy import Deployer, Running, StartFailed
from leadline.errors import (
    HostError,
    InputError,
    InterruptedRun,
    LeadlineError,
    NoAnswerError,
    NotGivenBackError,
    NothingFeasibleError,
)
from leadline.evidence import Diagnosis, Effective, Failure
from leadline.goal import Cell, Problem
from leadline.journal.events import (
    CampaignStarted,
    Decided,
    DeployFinished,
    Measured,
    MeasureStarted,
    ProblemChanged,
    SessionClosed,
    SessionOpened,
    SettingQueued,
    TrialEnded,
    TrialPlanned,
    Voided,
)
from leadline.journal.file import Journal
from leadline.launch import LaunchSpec
from leadline.measure import Job, Measurer, Spoiled
from leadline.ports import Done, Strategy
from leadline.space import Setting
from leadline.stay import Stay
from leadline.trial import Finding, Measurement, Proposal, TrialState, Void
from leadline.verdict import AGAIN, DIED, NOT_ITS_FAULT, differences


class Conduct(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator allows while the campaign runs. `foreign`: "pause", "skip" or "keep".

    `wait_s(minutes)` = seconds until a trial of that length may begin (0 = now); `drain` runs before the first
    launch and `undrain` after the last; between them also when the window closes and opens again.
    """

    foreign: str = "pause"
    max_restarts: int | None = None
    max_minutes_without_service: float | None = None
    wait_s: Callable[[float], float] = lambda minutes: 0.0
    drain: tuple[str, ...] = ()
    undrain: tuple[str, ...] = ()


LOST = Diagnosis(
    failure=Failure.ENVIRONMENT,
    reason="the connection to the service's host was lost during the measurement",
    remedy="see to the network; a measurement needs a few minutes without a break",
)
MEASURED_AGAIN = 3


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a trial ended; `pause` = the campaign must not go on by itself."""

    state: TrialState
    diagnosis: Diagnosis | None = None
    extent: str = ""
    pause: bool = False


class Campaign(msgspec.Struct, kw_only=True):
    journal: Journal
    problem: Problem
    strategy: Strategy
    deployer: Deployer
    measurer: Measurer
    stay: Stay
    render: Callable[[Setting], LaunchSpec]
    inbox: Callable[[], list[Setting]]
    conduct: Conduct = Conduct()
    shield: Callable[[], AbstractContextManager[object]] = nullcontext
    on_wait: Callable[[float], None] = lambda seconds: None

    def run(self, opening: Callable[[], None] = lambda: None) -> Recommendation:
        """Go on until the strategy is done, the budget is spent or something must be looked at.

        `opening` writes that a session is open: from there on no stop signal leaves it open.

        Raises NoAnswerError (paused, or spent before an answer), NothingFeasibleError, InterruptedRun; in every case
        the service has been given back.
        """
        try:
            with self.shield():
                opening()
            return self._sail()
        except InterruptedRun as stop:
            self._let_go(str(stop))
            raise

    def _let_go(self, reason: str) -> None:
        """Whatever the stop signal cut short is made good: it may come anywhere, in a give-back too, but only once."""
        try:
            self.stay.leave()
        finally:
            self._interrupt_live(reason)
            self.journal.append(SessionClosed(reason=reason, finished=False))

    def _sail(self) -> Recommendation:
        clock, ledger = self.deployer.clock, self.journal.ledger
        began, spent_before = clock.now_ns(), ledger.spent_s()
        try:
            self.stay.pick_up(self.render(self.problem.incumbent))
            self._interrupt_live("Leadline was stopped during this trial")
            while True:
                self._drain_inbox()
                proposal = self._next()
                if isinstance(proposal, Done):
                    return self._decide(proposal.reason, finished=True)
                spent = self._spent(spent_before + (clock.now_ns() - began) / 1e9)
                if spent:
                    return self._decide(spent, finished=False)
                self._wait_for_window()
                self.stay.send_away()
                ended = self._trial(proposal)
                if ended.pause:
                    raise self._paused(proposal, ended)
        except (InputError, HostError, NotGivenBackError) as stop:
            self._close(str(stop))
            raise
        finally:
            with self.shield():
                self.stay.leave()

    def _close(self, reason: str) -> None:
        """The service first: a session is not said to be closed while something of ours is in force."""
        try:
            with self.shield():
                self.stay.leave()
        finally:
            self.journal.append(SessionClosed(reason=reason, finished=False))

    # --- what next

    def _interrupt_live(self, reason: str) -> None:
        diagnosis = Diagnosis(failure=Failure.STOPPED_BY_US, reason=reason)
        for trial in self.journal.ledger.live_trials():
            self.journal.append(TrialEnded(trial=trial.id, state=TrialState.INTERRUPTED, diagnosis=diagnosis))

    def _drain_inbox(self) -> None:
        for setting in self.inbox():
            if setting not in self.journal.ledger.queued:
                self.journal.append(SettingQueued(setting=setting))

    def _next(self) -> Proposal | Done:
        history = self.journal.ledger.history()
        answer = self.strategy.propose(self.problem, history, 1, random.Random(self.problem.seed))
        return answer if isinstance(answer, Done) else answer[0]

    def _spent(self, elapsed_s: float) -> str:
        """Which limit forbids another launch; "" when none does."""
        budget, conduct, ledger = self.problem.budget, self.conduct, self.journal.ledger
        spent = self._launches_spent()
        if spent:
            return spent
        if budget.max_minutes is not None and elapsed_s + self._trial_s() > budget.max_minutes * 60:
            return f"another launch does not fit into budget.max_minutes = {budget.max_minutes:g}"
        without = conduct.max_minutes_without_service
        if without is not None and ledger.without_service_s() + self._trial_s() > without * 60:
            return f"another launch does not fit into window.max_minutes_without_service = {without:g}"
        return ""

    def _launches_spent(self) -> str:
        for name, most in (
            ("budget.max_launches", self.problem.budget.max_launches),
            ("window.max_restarts", self.conduct.max_restarts),
        ):
            if most is not None and self.journal.ledger.launches >= most:
                return f"{name} = {most} is spent"
        return ""

    def _trial_s(self) -> float:
        """The longest launch so far: what the next may take."""
        return max(self.journal.ledger.trial_seconds, default=0.0)

    def _wait_for_window(self) -> None:
        """Users are served meanwhile."""
        while (wait := self.conduct.wait_s(self._trial_s() / 60)) > 0:
            with self.shield():
                self.stay.leave()
            self.on_wait(wait)
            self.deployer.clock.sleep(min(wait, 30.0))

    # --- one trial

    def _trial(self, proposal: Proposal) -> Ended:
        number = self.journal.ledger.next_trial()
        launch = self.render(proposal.setting)
        if not self.deployer.stays:
            self.deployer.refuse_if_taken(launch)
        self.deployer.refuse_if_short_of_memory()
        self.journal.append(TrialPlanned(trial=number, proposal=proposal))
        try:
            ended = self._attempts(number, proposal, launch)
        except (HostError, OSError) as error:
            ended = Ended(
                state=TrialState.FAILED,
                diagnosis=Diagnosis(failure=Failure.UNKNOWN, reason=f"our side failed: {error}"),
                pause=True,
            )
        self.journal.append(TrialEnded(trial=number, state=ended.state, diagnosis=ended.diagnosis, extent=ended.extent))
        return ended

    def _attempts(self, number: int, proposal: Proposal, launch: LaunchSpec) -> Ended:
        diagnosis = self._attempt(number, 1, proposal, launch)
        if diagnosis is not None and diagnosis.failure in AGAIN and not self._launches_spent():
            diagnosis = self._attempt(number, 2, proposal, launch)
        if diagnosis is None:
            return Ended(state=TrialState.COMPLETE)
        if diagnosis.failure in NOT_ITS_FAULT:
            pause = not (diagnosis.failure is Failure.FOREIGN and self.conduct.foreign == "skip")
            return Ended(state=TrialState.FAILED, diagnosis=diagnosis, pause=pause)
        measured = self.journal.ledger.trial(number).measurements
        died = diagnosis.failure in DIED
        extent = f"fits up to C={max(m.cell.concurrency for m in measured)}" if measured and died else "not at all"
        return Ended(state=TrialState.INFEASIBLE, diagnosis=diagnosis, extent=extent)

    def _attempt(self, number: int, attempt: int, proposal: Proposal, launch: LaunchSpec) -> Diagnosis | None:
        """Launch once and measure the cells that are missing. None = all of them; else why not."""
        cell: Cell | None = None
        try:
            running = self.stay.launch(number, attempt, launch)
            effective = self.deployer.engine.effective(self.deployer.evidence(running))
            self.journal.append(_finished(number, attempt, running, effective))
            wrong, findings = differences(self._asked(proposal.setting), effective)
            if wrong is not None:
                return wrong
            for cell in proposal.cells:
                if self.journal.ledger.trial(number).measurement(cell) is None:
                    self._measure(running, self._job(number, attempt, proposal, cell), findings)
        except (StartFailed, Spoiled) as failed:
            void = Void(cell=cell, attempt=attempt, diagnosis=failed.diagnosis)
            self.journal.append(Voided(trial=number, void=void))
            return failed.diagnosis
        finally:
            with self.shield():
                self.stay.between(number)
        return None

    def _measure(self, running: Running, job: Job, findings: tuple[Finding, ...]) -> None:
        """Once more on the same server, no restart spent, when the connection to its host was lost meanwhile."""
        for _ in range(MEASURED_AGAIN):
            blips = running.session.blips()
            self.journal.append(MeasureStarted(trial=job.trial, attempt=job.attempt, cell=job.cell))
            try:
                measurement: Measurement = self.measurer.measure(running, job)
            except Spoiled:
                if running.session.blips() == blips or self.deployer.doubt(running, generate=True) is not None:
                    raise
            if running.session.blips() == blips:
                known = {f.code for f in measurement.findings}
                extra = tuple(f for f in findings if f.code not in known)
                found = (*measurement.findings, *extra)
                self.journal.append(Measured(measurement=msgspec.structs.replace(measurement, findings=found)))
                return
            void = Void(cell=job.cell, attempt=job.attempt, diagnosis=LOST)
            self.journal.append(Voided(trial=job.trial, void=void))
        raise Spoiled(LOST)

    def _job(self, number: int, attempt: int, proposal: Proposal, cell: Cell) -> Job:
        return Job(
            trial=number,
            attempt=attempt,
            round=proposal.round,
            cell=cell,
            cells=proposal.cells,
            asked=self._asked(proposal.setting),
        )

    def _asked(self, setting: Setting) -> Setting:
        return self.problem.kept.merged(setting)

    # --- the answer

    def _decide(self, reason: str, *, finished: bool) -> Recommendation:
        """The service first; what is known then is not lost when it does not come back."""
        try:
            with self.shield():
                self.stay.leave()
        finally:
            recommendation, missing = self._answer()
            self.journal.append(SessionClosed(reason=reason, finished=finished))
        if recommendation is None or missing:
            raise (NothingFeasibleError if finished else NoAnswerError)(f"{reason}; {missing}")
        return recommendation

    def _answer(self) -> tuple[Recommendation | None, str]:
        """The recommendation, as far as there is one, and what it lacks."""
        history = self.journal.ledger.history()
        if not history.complete():
            return None, "no setting has been measured completely. `leadline report` shows what happened to each."
        recommendation = recommend(self.problem, history)
        known = self.journal.ledger.decided
        if known is None or known.recommendation != recommendation:
            self.journal.append(Decided(recommendation=recommendation))
        goals = recommendation.goals
        missing = "; ".join(f"{g.goal}: {g.reason}" for g in goals) if all(g.setting is None for g in goals) else ""
        return recommendation, missing

    def _paused(self, proposal: Proposal, ended: Ended) -> LeadlineError:
        why = ended.diagnosis.reason.rstrip(".") if ended.diagnosis else "unknown"
        what = (
            f" What to do: {ended.diagnosis.remedy.rstrip('.')}." if ended.diagnosis and ended.diagnosis.remedy else ""
        )
        self._close(f"paused: {why}")
        return NoAnswerError(
            f"paused at {proposal.setting}: {why}.{what} The service has been given back; `leadline run` goes on."
        )


def begin(journal: Journal, start: CampaignStarted, session: SessionOpened) -> None:
    """Take a journal up: a new campaign, or one that goes on. Raises InputError when it was another service's.

    Weights, values and budget may have changed meanwhile; today's setting, engine and target may not, and no cell may
    be new once something was measured: what ran before has no number there.
    """
    known, problem = journal.ledger.started, journal.ledger.problem
    if known is None or problem is None:
        journal.append(start)
    else:
        for what, then, now in (
            ("engine", known.engine, start.engine),
            ("target", known.target, start.target),
            ("today's launch", known.launch, start.launch),
            ("kept knobs", str(problem.kept), str(start.problem.kept)),
            ("the knobs' names", problem.space.names(), start.problem.space.names()),
        ):
            if then != now:
                raise InputError(
                    f"this folder holds a campaign with another {what}: then {then}, now {now}. Its numbers cannot be "
                    f"compared with new ones: use a new folder, or put campaign.toml back."
                )
        new = [str(c) for c in start.problem.cells() if c not in problem.cells()]
        if new and journal.ledger.history().complete():
            raise InputError(
                f"the goals of this campaign now ask for {', '.join(new)}, where nothing was measured so far. Weigh "
                f"only {', '.join(map(str, problem.cells()))}, or use a new folder."
            )
        if problem != start.problem:
            journal.append(ProblemChanged(problem=start.problem, config_digest=start.config_digest))
    journal.append(session)


def _finished(number: int, attempt: int, running: Running, effective: Effective) -> DeployFinished:
    return DeployFinished(
        trial=number,
        attempt=attempt,
        pid=running.pid,
        start_id=running.start_id,
        load_s=running.load_s,
        effective=effective,
    )
