"""Histories with a known truth, for the tests of analysis."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from leadline.goal import Budget, Cell, Goal, Problem, Weight
from leadline.space import Knob, Setting, Space
from leadline.trial import History, Measurement, Origin, Proposal, Purpose, Trial, TrialState

ONE, EIGHT = Cell("chat", 1), Cell("chat", 8)
DEPTHS = (0, 2, 4, 6, 8)
IDENTITY = {"engine": "llama.cpp", "engine_version": "b1", "model": "m", "machine": "box", "workload": "w1"}


def d(depth: int, **more: int) -> Setting:
    return Setting.of(depth=depth, **more)


def problem(*goals: Goal, incumbent: int = 2, rounds: int = 2) -> Problem:
    return Problem(
        space=Space(knobs=(Knob(name="depth", values=DEPTHS),)),
        incumbent=d(incumbent),
        goals=goals or (goal(),),
        budget=Budget(rounds=rounds),
    )


def goal(name: str = "alone", weights: Mapping[Cell, float] | None = None, **more: Any) -> Goal:
    weights = weights or {ONE: 1.0}
    return Goal(name=name, weights=tuple(Weight(c, w) for c, w in weights.items()), **more)


def measured(trial: int, cell: Cell, tok_s: float, **changes: Any) -> Measurement:
    """40 requests of 100 tokens, none failed. `values` are laid over the one value."""
    values = {"output_tok_s": tok_s, **changes.pop("values", {})}
    fields: dict[str, Any] = {
        "attempt": 1, "origin": Origin.MEASURED, "started_at": "", "window_s": 10.0, "requests": 40, "errors": 0,
        "prompt_tokens": 4000, "output_tokens": 4000, "identity": IDENTITY,
    }  # fmt: skip
    return Measurement(trial=trial, cell=cell, values=values, **{**fields, **changes})


def trial(
    number: int,
    setting: Setting,
    tok_s: Mapping[Cell, float],
    *,
    round: int = 1,
    state: TrialState = TrialState.COMPLETE,
    changes: Mapping[str, Any] | None = None,
    **more: Any,
) -> Trial:
    """`changes` go into each of its measurements."""
    proposal = Proposal(setting=setting, purpose=Purpose.PROBE, cells=tuple(tok_s), round=round)
    found = tuple(measured(number, cell, x, **dict(changes or {})) for cell, x in tok_s.items())
    return Trial(id=number, proposal=proposal, state=state, measurements=found, **more)


def history(*trials: Trial) -> History:
    """Numbered anew, in the order given."""
    return History(trials=tuple(msgspec.structs.replace(t, id=i) for i, t in enumerate(trials, 1)))


def campaign(
    truth: Mapping[Setting, Mapping[Cell, float]],
    *,
    rounds: int = 2,
    launch_sd: float = 0.0,
    point_sd: float = 0.0,
    round_sd: float = 0.0,
    seed: int = 0,
) -> History:
    """Every setting once a round; noise of the launch (in all its cells alike), of each point, and of the round."""
    rng = random.Random(seed)
    trials = []
    for number in range(1, rounds + 1):
        drift = rng.gauss(0, round_sd)
        for setting, cells in truth.items():
            launch = drift + rng.gauss(0, launch_sd)
            tok_s = {c: x * math.exp(launch + rng.gauss(0, point_sd)) for c, x in cells.items()}
            trials.append(trial(0, setting, tok_s, round=number))
    return history(*trials)


def flat(values: Sequence[float], cell: Cell = ONE) -> dict[Setting, dict[Cell, float]]:
    """A truth in one cell: one number for each of DEPTHS."""
    return {d(depth): {cell: x} for depth, x in zip(DEPTHS, values, strict=False)}
