"""The answer in words: one view per goal, and one for the single setting that serves them all."""

from __future__ import annotations

import msgspec

from leadline.answer import GoalAnswer, Loss, Ratio, Verdict
from leadline.goal import Goal
from leadline.report import words
from leadline.report.model import Report
from leadline.space import Setting

UNCHANGED = "today's setting"


class GoalView(msgspec.Struct, frozen=True, kw_only=True):
    """What to run for one goal. `verdict` is better, worse, "no difference shown", "today's setting" or "" (no score).

    `gain` is a percentage only when the verdict is better or worse. `score` is for the drawing.
    """

    goal: str
    about: str
    setting: Setting | None
    action: str
    verdict: str
    gain: str
    interval: str
    score: Ratio | None
    reason: str
    ties: str
    notes: tuple[str, ...]


class LossView(msgspec.Struct, frozen=True, kw_only=True):
    goal: str
    ratio: str
    loses: str


class SingleView(msgspec.Struct, frozen=True, kw_only=True):
    """The one setting for all goals, and what each goal loses by it."""

    setting: Setting | None
    action: str
    reason: str
    losses: tuple[LossView, ...]


def pending(report: Report) -> str:
    """What stands in the answer's place when there is none."""
    return f"No recommendation{' yet' if report.meta.state.startswith('running') else ''}. State: {report.meta.state}."


def goals(report: Report) -> tuple[GoalView, ...]:
    rec = report.recommendation
    asked = {g.name: g for g in report.problem.goals}
    return tuple(_goal(report, a, asked.get(a.goal)) for a in rec.goals) if rec else ()


def single(report: Report) -> SingleView | None:
    rec = report.recommendation
    if rec is None:
        return None
    own = {a.goal: a.setting for a in rec.goals}
    return SingleView(
        setting=rec.single,
        action=_action(report, rec.single),
        reason=rec.single_reason,
        losses=tuple(_loss(loss, own.get(loss.goal) == rec.single) for loss in rec.losses),
    )


def _goal(report: Report, answer: GoalAnswer, goal: Goal | None) -> GoalView:
    score = answer.score if answer.score is not None and answer.score.pairs else None
    verdict = str(score.verdict) if score else ""
    if answer.setting is not None and answer.setting == report.problem.incumbent:
        verdict = UNCHANGED
    ties = [str(s) for s in answer.tie_with]
    return GoalView(
        goal=answer.goal,
        about=_about(answer, goal),
        setting=answer.setting,
        action=_action(report, answer.setting),
        verdict=verdict,
        gain=words.gain(score) if score and verdict != UNCHANGED else "",
        interval=words.interval(score) if score and verdict != UNCHANGED else "",
        score=score,
        reason=answer.reason,
        ties=f"Not shown to be worse: {', '.join(ties)}" if ties else "",
        notes=tuple(str(f) for f in answer.findings),
    )


def _about(answer: GoalAnswer, goal: Goal | None) -> str:
    text = words.metric(answer.objective)
    if goal is not None:
        text += f" over {words.weights(goal)}"
        if goal.requirements:
            text += f"; requires {words.listed([str(r) for r in goal.requirements])}"
    return text


def _action(report: Report, setting: Setting | None) -> str:
    if setting is None:
        return "no recommendation"
    verb = "keep" if setting == report.problem.incumbent else "run"
    return f"{verb} {words.setting(setting, report.problem.space)}"


def _loss(loss: Loss, is_own_best: bool) -> LossView:
    if is_own_best:
        return LossView(goal=loss.goal, ratio="1", loses="nothing: it is this goal's own best")
    text = words.ratio(loss.ratio)
    if loss.ratio.pairs == 0:
        return LossView(goal=loss.goal, ratio=text, loses="not comparable")
    if loss.ratio.verdict is Verdict.WORSE:
        return LossView(goal=loss.goal, ratio=text, loses=f"{100 * (1 - loss.ratio.ratio):.1f} %")
    return LossView(
        goal=loss.goal, ratio=text, loses="nothing" if loss.ratio.verdict is Verdict.BETTER else words.NO_DIFFERENCE
    )
