"""The state of a campaign: the fold of its events."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from leadline.errors import JournalError
from leadline.goal import Problem
from leadline.journal.events import (
    FORMAT,
    AnyEvent,
    CampaignStarted,
    Decided,
    DeployFinished,
    DeployStarted,
    Hooked,
    Measured,
    MeasureStarted,
    ProblemChanged,
    Returned,
    Returning,
    SessionClosed,
    SessionOpened,
    SettingQueued,
    TrialEnded,
    TrialPlanned,
    Voided,
    tag,
)
from leadline.space import Setting
from leadline.trial import History, Origin, Trial, TrialState, may_follow
from leadline.verdict import GONE


class Ledger:
    """The state of a campaign: the fold of its events. Refuses an event that cannot follow."""

    def __init__(self) -> None:
        self.started: CampaignStarted | None = None
        self.problem: Problem | None = None
        self.queued: list[Setting] = []
        self.decided: Decided | None = None
        self.closed: SessionClosed | None = None
        self.sessions: list[SessionOpened] = []
        self.in_force: DeployStarted | None = None  # a server of ours may be up: deployed, and not said to be returned
        self.returns: list[Returned] = []
        self.drained = False  # users were sent away and not called back
        self.launches = 0
        self.trial_seconds: list[float] = []  # of launches that were given back
        self.events = 0
        self.last_at = ""
        self._in_force_from = ""  # since when, in this session
        self._down_from = ""  # users have had no service since then
        self._down_s = 0.0
        self._session_s = 0.0
        self._session_from = ""
        self._trials: dict[int, dict[str, Any]] = {}

    def history(self) -> History:
        return History(trials=tuple(Trial(**t) for t in self._trials.values()), queued=tuple(self.queued))

    def next_trial(self) -> int:
        return len(self._trials) + 1

    def trial(self, number: int) -> Trial:
        return Trial(**self._trials[number])

    def live_trials(self) -> list[Trial]:
        return [t for t in (Trial(**f) for f in self._trials.values()) if t.live]

    def origin(self) -> Origin | None:
        found = (m.origin for f in self._trials.values() for m in f["measurements"])
        return next(found, None)

    def spent_s(self) -> float:
        """Seconds that processes have worked on this campaign, from their first event to their last."""
        return self._session_s + seconds_between(self._session_from, self.last_at)

    def without_service_s(self) -> float:
        """Seconds in which users had no service: while a launch of ours was in force or, where users reach it too,
        while it was not up. One whose process died counts until that wrote its last."""
        return self._down_s + seconds_between(self._down_from, self.last_at)

    def _down(self, at: str) -> None:
        self._down_from = self._down_from or at

    def _up(self, at: str) -> None:
        self._down_s += seconds_between(self._down_from, at)
        self._down_from = ""

    def longest_load_s(self) -> float:
        """Of the launches that became ready; 0 when none has."""
        return max((f["load_s"] for f in self._trials.values() if f.get("load_s")), default=0.0)

    def apply(self, event: AnyEvent) -> None:
        """Raises JournalError when the event cannot follow what came before."""
        if event.seq != self.events + 1:
            raise JournalError(f"event number {event.seq} where {self.events + 1} was due")
        if self.started is None and not isinstance(event, CampaignStarted):
            raise JournalError(f"{tag(event)} before campaign_started")
        _APPLY[type(event)](self, event)
        self.events, self.last_at = event.seq, event.at

    def _campaign_started(self, e: CampaignStarted) -> None:
        if self.started is not None:
            raise JournalError("a second campaign_started")
        if e.format != FORMAT:
            raise JournalError(f"journal format {e.format}; this version reads {FORMAT}")
        self.started, self.problem = e, e.problem

    def _problem_changed(self, e: ProblemChanged) -> None:
        self.problem = e.problem

    def _session_opened(self, e: SessionOpened) -> None:
        self._session_s, self._session_from = self.spent_s(), e.at
        self._up(self.last_at)
        self._in_force_from = ""
        self.sessions.append(e)
        self.closed = None

    def _setting_queued(self, e: SettingQueued) -> None:
        if e.setting not in self.queued:
            self.queued.append(e.setting)

    def _hooked(self, e: Hooked) -> None:
        self.drained = e.hook == "drain"

    def _trial_planned(self, e: TrialPlanned) -> None:
        if e.trial != self.next_trial():
            raise JournalError(f"trial {e.trial} planned where {self.next_trial()} was due")
        empty = {"measurements": (), "voids": (), "state": TrialState.PLANNED}
        self._trials[e.trial] = {"id": e.trial, "proposal": e.proposal, **empty}
        self.decided = None

    def _deploy_started(self, e: DeployStarted) -> None:
        self._move(e.trial, TrialState.DEPLOYING, attempt=e.attempt)
        self._timed(e.at)
        self._down(e.at)
        self.in_force, self._in_force_from = e, e.at
        self.launches += 1

    def _deploy_finished(self, e: DeployFinished) -> None:
        self._move(e.trial, TrialState.MEASURING, effective=e.effective, load_s=e.load_s)
        if self.in_force is not None and self.in_force.public:
            self._up(e.at)

    def _measure_started(self, e: MeasureStarted) -> None:
        self._known(e.trial)

    def _measured(self, e: Measured) -> None:
        fields = self._known(e.measurement.trial)
        if any(m.cell == e.measurement.cell for m in fields["measurements"]):
            raise JournalError(f"trial {e.measurement.trial} has measured {e.measurement.cell} twice")
        fields["measurements"] = (*fields["measurements"], e.measurement)

    def _voided(self, e: Voided) -> None:
        fields = self._known(e.trial)
        fields["voids"] = (*fields["voids"], e.void)
        if e.void.diagnosis.failure in GONE:
            self._down(e.at)

    def _returning(self, e: Returning) -> None:
        self._known(e.trial)
        self._down(e.at)

    def _returned(self, e: Returned) -> None:
        self.returns.append(e)
        self._timed(e.at)
        self._up(e.at)
        self.in_force = None

    def _timed(self, at: str) -> None:
        """A launch is over, as another begins or the service is back."""
        if self._in_force_from:
            self.trial_seconds.append(seconds_between(self._in_force_from, at))
        self._in_force_from = ""

    def _trial_ended(self, e: TrialEnded) -> None:
        self._move(e.trial, e.state, diagnosis=e.diagnosis, extent=e.extent)

    def _decided(self, e: Decided) -> None:
        self.decided = e

    def _session_closed(self, e: SessionClosed) -> None:
        self.closed = e

    def _known(self, trial: int) -> dict[str, Any]:
        if trial not in self._trials:
            raise JournalError(f"trial {trial} was never planned")
        return self._trials[trial]

    def _move(self, trial: int, state: TrialState, **changes: object) -> None:
        fields = self._known(trial)
        if not may_follow(fields["state"], state):
            raise JournalError(f"trial {trial} cannot go from {fields['state']} to {state}")
        fields.update(changes, state=state)


def seconds_between(earlier: str, later: str) -> float:
    """Seconds between two UTC texts of events; 0 when one is missing or the clock was set back."""
    if not earlier or not later:
        return 0.0
    return max(0.0, (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds())


_APPLY: dict[type, Callable[[Ledger, Any], None]] = {
    CampaignStarted: Ledger._campaign_started,
    ProblemChanged: Ledger._problem_changed,
    SessionOpened: Ledger._session_opened,
    SettingQueued: Ledger._setting_queued,
    Hooked: Ledger._hooked,
    TrialPlanned: Ledger._trial_planned,
    DeployStarted: Ledger._deploy_started,
    DeployFinished: Ledger._deploy_finished,
    MeasureStarted: Ledger._measure_started,
    Measured: Ledger._measured,
    Voided: Ledger._voided,
    Returning: Ledger._returning,
    Returned: Ledger._returned,
    TrialEnded: Ledger._trial_ended,
    Decided: Ledger._decided,
    SessionClosed: Ledger._session_closed,
}
