"""History -> Recommendation: what to run for each goal, and the best single setting for all of them.

Rests on COMPLETE trials alone; only settings that ran are recommended. The single setting loses least in the goal where
it loses most, relative to each goal's own choice (least greatest regret).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from leadline.analysis import audit
from leadline.analysis.contest import TIE_LOSS, Contest
from leadline.analysis.pairing import mixed_identities, origin
from leadline.answer import GoalAnswer, Loss, Recommendation
from leadline.goal import Problem
from leadline.space import Setting
from leadline.trial import History


def recommend(problem: Problem, history: History) -> Recommendation:
    """Raises InputError when the history mixes origins, or an objective has no direction."""
    found_origin = origin(history.trials)
    contests = [Contest(problem, history, goal) for goal in problem.goals]
    answers = [c.answer() for c in contests]
    single, reason, losses = _single(contests, answers)
    complete = history.complete()
    return Recommendation(
        goals=tuple(answers),
        single=single,
        single_reason=reason,
        losses=losses,
        incumbent=problem.incumbent,
        origin=found_origin,
        findings=(
            *mixed_identities(complete),
            *audit.drift([t for t in complete if t.setting == problem.incumbent]),
            *audit.findings_across(history),
        ),
    )


def _single(contests: Sequence[Contest], answers: Sequence[GoalAnswer]) -> tuple[Setting | None, str, tuple[Loss, ...]]:
    answered = [(c, a.setting) for c, a in zip(contests, answers, strict=True) if a.setting is not None]
    silent = [a.goal for a in answers if a.setting is None]
    if not answered:
        return None, "Nothing can be recommended for any goal.", ()
    shared = [s for s in answered[0][0].feasible if all(s in c.feasible for c, _ in answered)]
    if not shared:
        return None, "No setting may be recommended for all goals: " + _apart(answered), ()
    worst = {s: min(min(c.ratio(s, own).ratio, 1.0) for c, own in answered) for s in shared}
    incumbent = contests[0].incumbent
    chosen = _least_regret(worst, incumbent, {own for _, own in answered})
    if incumbent in shared and not any(c.beats_incumbent(chosen) for c, _ in answered):
        chosen = incumbent  # as for a goal: no change for a difference that is not shown
    losses = tuple(Loss(goal=c.goal.name, ratio=c.ratio(chosen, own)) for c, own in answered)
    reason = _single_reason(chosen, worst[chosen], losses, len(answered))
    if silent:
        reason += f" It says nothing of {', '.join(silent)}, for which nothing can be recommended."
    return chosen, reason, losses


def _least_regret(worst: dict[Setting, float], incumbent: Setting, own: set[Setting]) -> Setting:
    """A setting that every goal chose wins; else the least greatest loss, and ties (0.5 %) by depth as in a goal."""
    if len(own) == 1 and (only := next(iter(own))) in worst:
        return only
    top = max(worst.values())
    near = [s for s, ratio in worst.items() if math.log(top / ratio) < TIE_LOSS]
    return min(near, key=lambda s: (s.depth, s != incumbent, -worst[s]))


def _single_reason(chosen: Setting, worst: float, losses: Sequence[Loss], goals: int) -> str:
    if goals == 1:
        return f"The choice of {losses[0].goal}."
    if worst >= 1:
        return "No goal loses by it."
    most = min(losses, key=lambda loss: loss.ratio.ratio)
    return f"{most.goal} loses most by it: {most.ratio} of its own best. Every other setting costs some goal more."


def _apart(answered: Sequence[tuple[Contest, Setting]]) -> str:
    """Who is in the way: for each goal, what it refuses of the other goals' choices."""
    return "; ".join(
        f"{c.goal.name} refuses {own}: {c.excluded[own]}"
        for c, _ in answered
        for own in dict.fromkeys(s for _, s in answered)
        if c.excluded[own]
    )
