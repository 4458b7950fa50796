"""A journal of a small campaign, as a list of events."""

from __future__ import annotations

from leadline.evidence import Acceptance, Effective
from leadline.goal import Cell, Goal, Problem, Weight
from leadline.journal.events import (
    CampaignStarted,
    DeployFinished,
    DeployStarted,
    Measured,
    MeasureStarted,
    Returned,
    Returning,
    SessionOpened,
    TrialEnded,
    TrialPlanned,
)
from leadline.space import Knob, Setting, Space
from leadline.trial import Measurement, Origin, Proposal, Purpose, TrialState

CELLS = (Cell("coding", 1), Cell("coding", 4))
PROBLEM = Problem(
    space=Space(knobs=(Knob(name="depth", values=(0, 2, 4)),)),
    incumbent=Setting.of(depth=2),
    goals=(Goal(name="all", weights=tuple(Weight(c, 1.0) for c in CELLS)),),
)


def opening() -> list:
    return [
        CampaignStarted(
            name="test", problem=PROBLEM, engine="llamacpp", target="command", launch="llama-server", config_digest="d",
            tool_version="0",
        ),
        SessionOpened(pid=1, host="here"),
    ]  # fmt: skip


def trial(number: int, depth: int, *, round_: int = 1) -> list:
    """The events of one complete trial; a `Returned` text with U+2028 and a quote, so that lines are not simple."""
    proposal = Proposal(setting=Setting.of(depth=depth), purpose=Purpose.PROBE, cells=CELLS, round=round_)
    measured = [
        event
        for cell in CELLS
        for event in (
            MeasureStarted(trial=number, attempt=1, cell=cell),
            Measured(measurement=measurement(number, cell, 100.0 + depth)),
        )
    ]
    return [
        TrialPlanned(trial=number, proposal=proposal),
        DeployStarted(trial=number, attempt=1, launch="llama-server"),
        DeployFinished(trial=number, attempt=1, pid=7, start_id="7", load_s=1.0, effective=Effective(depth=depth)),
        *measured,
        Returning(trial=number),
        Returned(trial=number, took_s=0.1, ended='exit code 0 \u2028 "'),
        TrialEnded(trial=number, state=TrialState.COMPLETE),
    ]


def measurement(number: int, cell: Cell, tok_s: float) -> Measurement:
    return Measurement(
        trial=number,
        cell=cell,
        attempt=1,
        origin=Origin.SIMULATED,
        started_at="2026-11-30T12:00:00.000Z",
        window_s=10.0,
        requests=8,
        errors=0,
        prompt_tokens=800,
        output_tokens=1000,
        values={"output_tok_s": tok_s, "error_frac": 0.0},
        acceptance=Acceptance(decode_tokens=100, rounds=50, drafting_rounds=40, drafted=80, accepted=50),
    )
