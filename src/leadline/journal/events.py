"""The events of a journal, as they are written.

Format history: 1 = 2026-11, first.
"""

from __future__ import annotations

import msgspec

from leadline.answer import Recommendation
from leadline.evidence import Diagnosis, Effective
from leadline.goal import Cell, Problem
from leadline.space import Setting
from leadline.trial import Measurement, Proposal, TrialState, Void

FORMAT = 1


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag=str.lower):
    """`seq` counts from 1 without a gap; `at` is UTC. Both are set by `Journal.append`."""

    seq: int = 0
    at: str = ""


class CampaignStarted(Event, tag="campaign_started", frozen=True, kw_only=True):
    name: str
    problem: Problem
    engine: str
    target: str
    launch: str
    config_digest: str
    tool_version: str
    format: int = FORMAT


class ProblemChanged(Event, tag="problem_changed", frozen=True, kw_only=True):
    problem: Problem
    config_digest: str


class SessionOpened(Event, tag="session_opened", frozen=True, kw_only=True):
    """A process took the journal up. `repaired` says what was cut from a torn tail."""

    pid: int
    host: str
    repaired: str = ""


class SettingQueued(Event, tag="setting_queued", frozen=True, kw_only=True):
    setting: Setting


class Hooked(Event, tag="hooked", frozen=True, kw_only=True):
    """Intent: the operator's `hook`, "drain" or "undrain", is about to run."""

    hook: str


class TrialPlanned(Event, tag="trial_planned", frozen=True, kw_only=True):
    trial: int
    proposal: Proposal


class DeployStarted(Event, tag="deploy_started", frozen=True, kw_only=True):
    """Intent: `launch` (secrets masked) is about to be put in force; `undo` = the steps back, `files` = pre-images.

    `public` = users reach the server of this launch once it is up.
    """

    trial: int
    attempt: int
    launch: str
    undo: tuple[str, ...] = ()
    files: dict[str, str] = {}
    public: bool = False


class DeployFinished(Event, tag="deploy_finished", frozen=True, kw_only=True):
    trial: int
    attempt: int
    pid: int
    start_id: str
    load_s: float
    effective: Effective


class MeasureStarted(Event, tag="measure_started", frozen=True, kw_only=True):
    trial: int
    attempt: int
    cell: Cell


class Measured(Event, tag="measured", frozen=True, kw_only=True):
    measurement: Measurement


class Voided(Event, tag="voided", frozen=True, kw_only=True):
    trial: int
    void: Void


class Returning(Event, tag="returning", frozen=True, kw_only=True):
    """Intent: the server of this trial is about to be ended and the service given back."""

    trial: int


class Returned(Event, tag="returned", frozen=True, kw_only=True):
    trial: int
    took_s: float
    ended: str = ""


class TrialEnded(Event, tag="trial_ended", frozen=True, kw_only=True):
    trial: int
    state: TrialState
    diagnosis: Diagnosis | None = None
    extent: str = ""


class Decided(Event, tag="decided", frozen=True, kw_only=True):
    recommendation: Recommendation


class SessionClosed(Event, tag="session_closed", frozen=True, kw_only=True):
    """A process let go in order. `finished` = the strategy had nothing more to ask for."""

    reason: str
    finished: bool
    resumable: bool = True


AnyEvent = (
    CampaignStarted | ProblemChanged | SessionOpened | SettingQueued | Hooked | TrialPlanned | DeployStarted
    | DeployFinished | MeasureStarted | Measured | Voided | Returning | Returned | TrialEnded | Decided | SessionClosed
)  # fmt: skip


def tag(event: AnyEvent) -> str:
    """The event's name, as it stands in the journal."""
    return str(type(event).__struct_config__.tag)
