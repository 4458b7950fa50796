"""History + Problem + Recommendation -> Report: everything that every format needs, as values.

Pure. Ratios, intervals and verdicts are the recommendation's own; what no recommendation covers yet (a campaign that
still runs, a setting that runs only in part) is shown as the median over launches, without an interval.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum

import msgspec

from leadline import metrics
from leadline.answer import CellResult, Recommendation
from leadline.evidence import Acceptance
from leadline.goal import Cell, Problem
from leadline.space import Setting
from leadline.trial import Finding, History, Measurement, Origin, Trial, TrialState, Void

LATENCY = ("ttft_ms.p50", "ttft_ms.p99", "tpot_ms.p50", "itl_ms.p99", "tokens_per_chunk")
INTERVAL_METHOD = (
    "A value is the median over the launches of a setting. A ratio is the geometric mean over launch pairs: two "
    "launches of the same round, close in time, with the same prompts. Its interval is Student's t over the pairs' "
    "logarithms, with the noise of a launch pooled over the whole campaign."
)


class ServerKind(StrEnum):
    REAL = "real engine"
    LAB = "simulated (lab server)"


class Meta(msgspec.Struct, frozen=True, kw_only=True):
    """What a report says about the campaign itself. Times of day are UTC texts; "" = not (yet) known.

    `machine` is what makes measurements comparable (processor, accelerators, driver). `state` is one line:
    "complete", or "running: 7 of 12 launches, about 4 min left". `workloads` describes each workload in a line.
    """

    campaign: str
    engine: str
    engine_version: str = ""
    model: str = ""
    target: str = ""
    server: ServerKind
    machine: dict[str, str] = {}
    workloads: dict[str, str] = {}
    tool_version: str = ""
    started: str = ""
    ended: str = ""
    journal: str = ""
    minutes_without_service: float | None = None
    restarts: int = 0
    state: str = "complete"
    interval_method: str = INTERVAL_METHOD


class SettingRow(msgspec.Struct, frozen=True, kw_only=True):
    """A setting that was launched (or is the incumbent), and its roles. `extent` is set when it will not run."""

    setting: Setting
    incumbent: bool = False
    recommended_for: tuple[str, ...] = ()
    single: bool = False
    complete: bool = False
    extent: str = ""


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A setting in a cell. `result` None = no interval: `value` is then the median over `launches`.

    `value` None = nothing measured there; `note` then says why, when it is known.
    """

    setting: Setting
    cell: Cell
    value: float | None = None
    launches: int = 0
    result: CellResult | None = None
    note: str = ""


class Objective(msgspec.Struct, frozen=True, kw_only=True):
    """The points of one objective: settings x the cells of the goals that use it."""

    metric: str
    cells: tuple[Cell, ...]
    points: tuple[Point, ...]

    def at(self, setting: Setting, cell: Cell) -> Point:
        return next(p for p in self.points if p.setting == setting and p.cell == cell)


class AcceptanceRow(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of one setting in one cell, added over its launches; None = the engine did not count."""

    setting: Setting
    cell: Cell
    counts: Acceptance | None


class LatencyRow(msgspec.Struct, frozen=True, kw_only=True):
    """Medians over launches of the metrics in LATENCY; a metric that was never measured is absent."""

    setting: Setting
    cell: Cell
    values: dict[str, float]


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """One finding and every place where it was made."""

    finding: Finding
    places: tuple[str, ...]


class VoidRow(msgspec.Struct, frozen=True, kw_only=True):
    trial: int
    setting: Setting
    void: Void


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the formats show. `banner` is "" only when every number was measured on a real engine."""

    meta: Meta
    problem: Problem
    history: History
    recommendation: Recommendation | None
    banner: str
    settings: tuple[SettingRow, ...]
    objectives: tuple[Objective, ...]
    acceptance: tuple[AcceptanceRow, ...]
    latency: tuple[LatencyRow, ...]
    voids: tuple[VoidRow, ...]
    findings: tuple[Found, ...]
    formulas: tuple[metrics.Metric, ...]


def build(problem: Problem, history: History, recommendation: Recommendation | None, meta: Meta) -> Report:
    """`recommendation` None while a campaign runs, or when it ended without an answer."""
    rows = _settings(problem, history, recommendation)
    objectives = _objectives(problem, history, recommendation, [r.setting for r in rows])
    cells = problem.cells()
    pairs = [(r.setting, c) for r in rows for c in cells if _usable(history, r.setting, c)]
    return Report(
        meta=meta,
        problem=problem,
        history=history,
        recommendation=recommendation,
        banner=banner(meta, history, recommendation),
        settings=rows,
        objectives=objectives,
        acceptance=tuple(
            AcceptanceRow(setting=s, cell=c, counts=total(m.acceptance for m in _usable(history, s, c)))
            for s, c in pairs
            if s.depth > 0
        ),
        latency=tuple(LatencyRow(setting=s, cell=c, values=_latency(_usable(history, s, c))) for s, c in pairs),
        voids=tuple(VoidRow(trial=t.id, setting=t.setting, void=v) for t in history.trials for v in t.voids),
        findings=_gather(_all_findings(history, recommendation)),
        formulas=_formulas(problem),
    )


def banner(meta: Meta, history: History, recommendation: Recommendation | None) -> str:
    """The first line of every format when a number in it is not a measurement of a real engine."""
    origins = {m.origin for t in history.trials for m in t.measurements}
    if recommendation is not None:
        origins.add(recommendation.origin)
    lines = []
    if meta.server is ServerKind.LAB or Origin.SIMULATED in origins:
        lines.append("SIMULATED: lab server, not a real engine")
    if Origin.IMPORTED in origins:
        lines.append("IMPORTED: numbers that Leadline did not measure itself")
    if lines and Origin.MEASURED in origins:
        lines.append("some trials were measured on a real engine; see the origin of each")
    return "; ".join(lines)


def _settings(problem: Problem, history: History, rec: Recommendation | None) -> tuple[SettingRow, ...]:
    best: dict[Setting, list[str]] = {}
    for answer in rec.goals if rec else ():
        if answer.setting is not None:
            best.setdefault(answer.setting, []).append(answer.goal)
    infeasible = history.infeasible()
    complete = {t.setting for t in history.complete()}
    known = dict.fromkeys((problem.incumbent, *history.settings(), *best))
    return tuple(
        SettingRow(
            setting=s,
            incumbent=s == problem.incumbent,
            recommended_for=tuple(best.get(s, ())),
            single=rec is not None and s == rec.single,
            complete=s in complete,
            extent=(infeasible[s].extent or "not at all") if s in infeasible else "",
        )
        for s in sorted(known, key=lambda s: _order(problem, s))
    )


def _order(problem: Problem, setting: Setting) -> tuple[list[int], int, str]:
    """Other knobs in the order of their domain, then depth by number; values given by hand come last."""
    places = []
    for knob in problem.space.knobs:
        value = setting.get(knob.name)
        if knob.name != "depth":
            places.append(knob.values.index(value) if value in knob.values else len(knob.values))
    return places, setting.depth, str(setting)


def _objectives(
    problem: Problem, history: History, rec: Recommendation | None, settings: Sequence[Setting]
) -> tuple[Objective, ...]:
    judged = {
        (cell.metric, result.setting, cell.cell): cell
        for answer in (rec.goals if rec else ())
        for result in answer.ranking
        for cell in result.cells
    }
    out = []
    for metric in dict.fromkeys(g.objective for g in problem.goals):
        wanted = {c for g in problem.goals if g.objective == metric for c in g.cells()}
        cells = tuple(c for c in problem.cells() if c in wanted)
        points = tuple(_point(history, metric, s, c, judged.get((metric, s, c))) for s in settings for c in cells)
        out.append(Objective(metric=metric, cells=cells, points=points))
    return tuple(out)


def _point(history: History, metric: str, setting: Setting, cell: Cell, result: CellResult | None) -> Point:
    if result is not None:
        return Point(setting=setting, cell=cell, value=result.value, launches=result.launches, result=result)
    values = [m.values[metric] for m in _usable(history, setting, cell) if metric in m.values]
    trials = history.of(setting)
    note = ""
    if setting in history.infeasible():
        note = history.infeasible()[setting].extent or "not at all"
    elif trials and not values:
        note = "not measured" if trials[-1].state is TrialState.COMPLETE else str(trials[-1].state)
    return Point(
        setting=setting,
        cell=cell,
        value=statistics.median(values) if values else None,
        launches=len(values),
        note=note,
    )


def _usable(history: History, setting: Setting, cell: Cell) -> list[Measurement]:
    """Measurements that may be shown: of trials that ended well, still run, or ran as far as the setting goes."""
    hidden = {TrialState.FAILED, TrialState.INTERRUPTED}
    found = (t.measurement(cell) for t in history.of(setting) if t.state not in hidden)
    return [m for m in found if m is not None]


def total(counts: Iterable[Acceptance | None]) -> Acceptance | None:
    """The sum of the counts that there are; None when there is none."""
    known = [c for c in counts if c is not None]
    return functools.reduce(Acceptance.plus, known) if known else None


def _latency(measurements: Sequence[Measurement]) -> dict[str, float]:
    samples = {name: [m.values[name] for m in measurements if name in m.values] for name in LATENCY}
    return {name: statistics.median(values) for name, values in samples.items() if values}


def _all_findings(history: History, rec: Recommendation | None) -> Iterator[tuple[str, Finding]]:
    for finding in rec.findings if rec else ():
        yield "recommendation", finding
    for answer in rec.goals if rec else ():
        for finding in answer.findings:
            yield f"goal {answer.goal}", finding
        for result in answer.ranking:
            for ratio, where in ((result.score, ""), *((c.ratio, f" at {c.cell}") for c in result.cells)):
                for finding in ratio.warnings if ratio else ():
                    yield f"{result.setting}{where}", finding
    for trial in history.trials:
        for m in trial.measurements:
            for finding in m.findings:
                yield f"trial {trial.id} at {m.cell}", finding


def _gather(found: Iterable[tuple[str, Finding]]) -> tuple[Found, ...]:
    """Equal findings once, with all their places: a warning that is repeated is not read."""
    groups: dict[tuple[str, str, str], list[tuple[str, Finding]]] = {}
    for place, finding in found:
        groups.setdefault((finding.code, finding.message, finding.remedy), []).append((place, finding))
    return tuple(_found(group) for group in groups.values())


def _found(group: list[tuple[str, Finding]]) -> Found:
    """Where the sizes differ from place to place, each place says its own."""
    first = group[0][1]
    if len({(f.size, f.evidence) for _, f in group}) == 1:
        return Found(finding=first, places=tuple(dict.fromkeys(place for place, _ in group)))
    said = ((place, ", ".join(x for x in (f.size, f.evidence) if x)) for place, f in group)
    places = dict.fromkeys(f"{place} ({size})" if size else place for place, size in said)
    return Found(finding=msgspec.structs.replace(first, size="", evidence=""), places=tuple(places))


def _formulas(problem: Problem) -> tuple[metrics.Metric, ...]:
    """The metrics that the report shows, in the order of the one table of metrics."""
    shown = {name.split(".")[0] for name in LATENCY}
    shown |= {"acceptance_length", "drafted_acceptance_length", "error_frac"}
    for goal in problem.goals:
        shown |= {goal.objective.split(".")[0], *(r.metric.split(".")[0] for r in goal.requirements)}
    return tuple(m for name, m in metrics.METRICS.items() if name in shown)


def findings_of(trial: Trial) -> int:
    """How many findings its measurements carry."""
    return sum(len(m.findings) for m in trial.measurements)
