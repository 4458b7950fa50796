"""Report -> figures of the page: which charts there are, of what, with their captions."""

from __future__ import annotations

from collections.abc import Iterable

from leadline.answer import GoalAnswer, SettingResult
from leadline.report import scale, svg, words
from leadline.report.markup import Markup, el, join
from leadline.report.model import Objective, Report, SettingRow, total
from leadline.report.sections import extent
from leadline.space import Setting

MOST_ROWS = 14  # of a forest plot; the ranking's table has them all


def depth_figures(report: Report) -> Markup:
    """One small chart per objective, cell and combination of the other knobs; nothing when depth is not a knob."""
    if "depth" not in report.problem.space.names():
        return join()
    figures = []
    for o, objective in enumerate(report.objectives):
        for r, (rest, rows) in enumerate(_by_other_knobs(report.settings)):
            for c, cell in enumerate(objective.cells):
                marks = [_mark(report, objective, row, c) for row in rows]
                if all(m.value is None and not m.blocked for m in marks):
                    continue
                title = f"{objective.metric} at {cell} by depth" + (f", {rest}" if rest.values else "")
                chart = svg.depth_chart(f"depth-{o}-{r}-{c}", title, words.knob(report.problem.space, "depth"), marks)
                aside = f"{words.metric(objective.metric)}{f', {rest}' if rest.values else ''}"
                figures.append(_figure(str(cell), aside, chart))
    return el("div", *figures, class_="figures") if figures else join()


def forest_figures(report: Report) -> Markup:
    """The score of each setting against the incumbent, one chart per goal, all on the same axis."""
    rec = report.recommendation
    if rec is None:
        return join()
    low, high = score_range(report)
    figures = [
        _figure(
            answer.goal,
            words.metric(answer.objective),
            svg.forest(f"forest-{n}", f"Ratio to the incumbent, goal {answer.goal}", _rows(report, answer), low, high),
        )
        for n, answer in enumerate(rec.goals)
        if answer.ranking
    ]
    return el("div", *figures, class_="figures")


def score_range(report: Report) -> tuple[float, float]:
    """One axis for every ratio of the page, so that lengths can be compared."""
    goals = report.recommendation.goals if report.recommendation else ()
    scores = [score for g in goals for score in (g.score, *(r.score for r in g.ranking))]
    return scale.ratio_range([(s.lo, s.hi) for s in scores if s is not None and s.pairs])


def position_figures(report: Report) -> Markup:
    """Acceptance per draft position: a row of small charts per workload, one for each setting."""
    groups = []
    for w, workload in enumerate(dict.fromkeys(r.cell.workload for r in report.acceptance)):
        figures = []
        for s, row in enumerate(report.settings):
            counts = total(
                r.counts for r in report.acceptance if r.setting == row.setting and r.cell.workload == workload
            )
            if counts is None or not counts.per_position:
                continue
            length = f"{words.number(counts.acceptance_length)} tok/round"
            title = f"Acceptance by position, {workload}, {row.setting}"
            figures.append(_figure(str(row.setting), length, svg.position_chart(f"position-{w}-{s}", title, counts)))
        if figures:
            groups += [el("h3", workload), el("div", *figures, class_="figures small")]
    return join(*groups)


def _by_other_knobs(rows: Iterable[SettingRow]) -> list[tuple[Setting, list[SettingRow]]]:
    groups: dict[Setting, list[SettingRow]] = {}
    for row in rows:
        rest = row.setting.only([n for n in row.setting.names() if n != "depth"])
        groups.setdefault(rest, []).append(row)
    return list(groups.items())


def _mark(report: Report, objective: Objective, row: SettingRow, column: int) -> svg.Mark:
    cell = objective.cells[column]
    point = objective.at(row.setting, cell)
    here = {g.name for g in report.problem.goals if g.objective == objective.metric and cell in g.cells()}
    result = point.result
    return svg.Mark(
        label=str(row.setting.depth),
        value=point.value,
        bounds=(result.lo, result.hi) if result else None,
        ratio=words.ratio(result.ratio) if result and result.ratio else "",
        blocked=extent(row.extent) if row.extent else "",
        incumbent=row.incumbent,
        recommended=bool(here & set(row.recommended_for)),
        single=row.single,
    )


def _rows(report: Report, answer: GoalAnswer) -> list[svg.Row]:
    shown = [r for r in answer.ranking if _is_incumbent(report, r) or (r.score is not None and r.score.pairs)]
    kept = [r for n, r in enumerate(shown) if n < MOST_ROWS or _is_incumbent(report, r)]
    return [
        svg.Row(
            label=str(r.setting),
            note=_note(report, answer, r),
            score=None if _is_incumbent(report, r) else r.score,
            incumbent=_is_incumbent(report, r),
        )
        for r in kept
    ]


def _note(report: Report, answer: GoalAnswer, result: SettingResult) -> str:
    notes = ["incumbent"] if _is_incumbent(report, result) else []
    notes += ["recommended"] if result.setting == answer.setting else []
    notes += ["excluded"] if result.excluded else []
    return ", ".join(notes)


def _is_incumbent(report: Report, result: SettingResult) -> bool:
    return result.setting == report.problem.incumbent


def _figure(title: str, aside: str, chart: Markup) -> Markup:
    return el("figure", el("figcaption", el("b", title), el("span", aside)), chart)
