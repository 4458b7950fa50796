"""Report -> the sections below the answer, as sentences and tables."""

from __future__ import annotations

from leadline.answer import GoalAnswer
from leadline.evidence import Acceptance
from leadline.report import words
from leadline.report.method import method
from leadline.report.model import LATENCY, Objective, Point, Report, SettingRow, findings_of
from leadline.report.table import Column, Section, Table
from leadline.report.traffic import by_workload, waiting
from leadline.trial import Finding, Trial, TrialState

SETTING = Column("setting", code=True)
CELL = Column("cell", code=True)
PLACES = 3


def sections(report: Report) -> tuple[Section, ...]:
    """In reading order; those with nothing to say are left out."""
    found = [
        _results(report),
        _rankings(report),
        _acceptance(report),
        _latency(report),
        _trials(report),
        _voids(report),
        _refused(report),
        _findings(report),
        method(report),
    ]
    return tuple(s for s in found if s is not None)


def roles(row: SettingRow) -> list[str]:
    """The parts a setting plays: incumbent, "for GOAL", single."""
    return [
        *(["incumbent"] if row.incumbent else []),
        *(f"for {goal}" for goal in row.recommended_for),
        *(["single"] if row.single else []),
    ]


def extent(text: str) -> str:
    """How far an INFEASIBLE setting runs, as a phrase of its own."""
    return "does not run" if text == "not at all" else text


def _results(report: Report) -> Section:
    values = "Values are medians over launches; intervals and ratios come with the recommendation."
    note = (
        "In each cell: the value with its 95 % bounds; below it the ratio to the incumbent with its interval, above 1 "
        f'= better (turned round where lower is better). {words.LEGEND}. "for GOAL" = recommended for that goal; '
        '"single" = recommended for all goals together.'
    )
    waited = waiting(report)
    return Section(
        anchor="results",
        title="Results",
        intro=(f"Knobs: {words.knobs(report.problem.space)}. {note if report.recommendation else values}",),
        tables=(*(_objective(report, o) for o in report.objectives), *((waited,) if waited else ())),
    )


def _objective(report: Report, objective: Objective) -> Table:
    rows = []
    for row in report.settings:
        points = [objective.at(row.setting, cell) for cell in objective.cells]
        label = "\n".join([str(row.setting), *roles(row)])
        rows.append((label, *(_entry(p, row.incumbent, report.recommendation is not None) for p in points)))
    return Table(
        title=words.metric(objective.metric),
        columns=(SETTING, *(Column(str(c), right=True) for c in objective.cells)),
        rows=tuple(rows),
        spaced=True,
    )


def _entry(point: Point, incumbent: bool, judged: bool) -> str:
    if point.value is None:
        return extent(point.note) if point.note else words.NONE
    if point.result is None:
        return words.number(point.value) + ("\nno interval" if judged else "")
    result = point.result
    value = f"{words.number(result.value)} {words.bounds(result.lo, result.hi, result.value)}"
    return f"{value}\n{'1 (incumbent)' if incumbent else words.ratio(result.ratio)}"


def _rankings(report: Report) -> Section | None:
    rec = report.recommendation
    if rec is None:
        return None
    return Section(
        anchor="ranking",
        title="Ranking",
        intro=(
            "Score = weighted geometric mean over a goal's cells of the ratio to the incumbent. Ties go to the "
            "setting with more room for requests, then to the shallower depth.",
        ),
        tables=tuple(_ranking(report, answer) for answer in rec.goals if answer.ranking),
    )


def _ranking(report: Report, answer: GoalAnswer) -> Table:
    rows = []
    for place, result in enumerate(answer.ranking, 1):
        notes = [result.excluded] if result.excluded else []
        if result.setting == answer.setting:
            notes.insert(0, "recommended")
        elif result.setting in answer.tie_with:
            notes.insert(0, "tie")
        is_incumbent = result.setting == report.problem.incumbent
        score = "1" if is_incumbent else words.ratio(result.score)
        pairs = words.NONE if is_incumbent or result.score is None else str(result.score.pairs)
        verdict = "incumbent" if is_incumbent else words.verdict(result.score)
        rows.append((str(place), str(result.setting), score, pairs, verdict, "; ".join(notes)))
    return Table(
        title=f"Goal {answer.goal}: {words.metric(answer.objective)}",
        columns=(
            Column("rank", right=True),
            SETTING,
            Column("score", right=True),
            Column("pairs", right=True),
            Column("verdict"),
            Column("note", wrap=True),
        ),
        rows=tuple(rows),
        keys=2,
    )


def _acceptance(report: Report) -> Section | None:
    if not report.acceptance:
        return None
    compared = by_workload(report)
    return Section(
        anchor="acceptance",
        title="Acceptance",
        intro=(
            "Counts over the measured windows, added over launches. L = decode tokens / rounds, bonus token included; "
            "L drafted = 1 + accepted / drafting rounds.",
        ),
        tables=(
            Table(
                columns=(
                    SETTING,
                    CELL,
                    *(Column(t, right=True) for t in ("rounds", "drafting", "drafted", "accepted", "L", "L drafted")),
                    Column("accepted at position 1, 2, ...", wrap=True),
                ),
                rows=tuple((str(r.setting), str(r.cell), *_counts(r.counts)) for r in report.acceptance),
                keys=2,
            ),
            *((compared,) if compared else ()),
        ),
    )


def _counts(counts: Acceptance | None) -> tuple[str, ...]:
    if counts is None:
        return (*[words.NONE] * 6, "the engine gave no counts")
    whole = (counts.rounds, counts.drafting_rounds, counts.drafted, counts.accepted)
    lengths = (counts.acceptance_length, counts.drafted_acceptance_length)
    positions = "  ".join(str(n) for n in counts.per_position) or "not told by the engine"
    return (*(words.count(n) for n in whole), *(words.number(x) for x in lengths), positions)


def _latency(report: Report) -> Section | None:
    if not report.latency:
        return None
    return Section(
        anchor="latency",
        title="Latency",
        intro=("Medians over the launches of a setting.",),
        tables=(
            Table(
                columns=(SETTING, CELL, *(Column(name, right=True) for name in LATENCY)),
                rows=tuple(
                    (str(r.setting), str(r.cell), *(words.number(r.values.get(name)) for name in LATENCY))
                    for r in report.latency
                ),
                keys=2,
            ),
        ),
    )


def _trials(report: Report) -> Section:
    numbers = ("load s", "findings")
    queued = [words.setting(s, report.problem.space) for s in report.history.queued]
    return Section(
        anchor="trials",
        title="Trials",
        intro=(f"Queued by hand: {', '.join(queued)}.",) if queued else (),
        tables=(
            Table(
                columns=(
                    Column("id", right=True),
                    Column("round", right=True),
                    SETTING,
                    Column("purpose"),
                    Column("state"),
                    *(Column(n, right=True) for n in numbers),
                    Column("reason", wrap=True),
                ),
                rows=tuple(_trial(t) for t in report.history.trials),
            ),
        ),
    )


def _trial(trial: Trial) -> tuple[str, ...]:
    said = [trial.proposal.reason] if trial.proposal.reason else []
    if trial.state is TrialState.INFEASIBLE:
        said.append(extent(trial.extent or "not at all"))
    if trial.diagnosis is not None:
        said.append(str(trial.diagnosis))
        said.extend([trial.diagnosis.remedy] if trial.diagnosis.remedy else [])
    return (
        str(trial.id),
        str(trial.proposal.round),
        str(trial.setting),
        str(trial.proposal.purpose),
        trial.state.name if trial.state is TrialState.INFEASIBLE else str(trial.state),
        words.number(trial.load_s),
        str(findings_of(trial) or words.NONE),
        words.prose(said),
    )


def _refused(report: Report) -> Section | None:
    refused = report.problem.refused
    if not refused:
        return None
    return Section(
        anchor="refused",
        title="Never launched",
        intro=("Settings that the engine would not start with, or that are the same launch as another one.",),
        tables=(
            Table(
                columns=(SETTING, Column("why", wrap=True)),
                rows=tuple((str(r.setting), r.reason) for r in refused),
            ),
        ),
    )


def _voids(report: Report) -> Section | None:
    if not report.voids:
        return None
    return Section(
        anchor="voids",
        title="Void measurements",
        intro=("Taken, and not counted: no number above rests on them.",),
        tables=(
            Table(
                columns=(
                    Column("trial", right=True),
                    SETTING,
                    CELL,
                    Column("attempt", right=True),
                    Column("why", wrap=True),
                    Column("what to do", wrap=True),
                ),
                rows=tuple(
                    (
                        str(v.trial),
                        str(v.setting),
                        str(v.void.cell) if v.void.cell else "the launch",
                        str(v.void.attempt),
                        str(v.void.diagnosis),
                        v.void.diagnosis.remedy or words.NONE,
                    )
                    for v in report.voids
                ),
            ),
        ),
    )


def _what(finding: Finding) -> str:
    facts = "; ".join(x for x in (finding.size, finding.evidence) if x)
    return f"{finding.message} ({facts})" if facts else finding.message


def _places(places: tuple[str, ...]) -> str:
    more = len(places) - PLACES
    return ", ".join(places[:PLACES]) + (f" and {more} more" if more > 0 else "")


def _findings(report: Report) -> Section | None:
    if not report.findings:
        return None
    return Section(
        anchor="findings",
        title="Findings",
        tables=(
            Table(
                columns=(
                    Column("finding", code=True),
                    Column("what", wrap=True),
                    Column("what to do", wrap=True),
                    Column("where", wrap=True),
                ),
                rows=tuple(
                    (
                        f.finding.code,
                        _what(f.finding),
                        f.finding.remedy or words.NONE,
                        _places(f.places),
                    )
                    for f in report.findings
                ),
            ),
        ),
    )
