"""How the numbers of a report were made: server, machine, load, rounds, intervals, formulas."""

from __future__ import annotations

from leadline.report import words
from leadline.report.model import Report
from leadline.report.table import Column, Section, Table


def method(report: Report) -> Section:
    return Section(
        anchor="method",
        title="How it was measured",
        intro=(report.meta.interval_method,),
        tables=(
            _pairs("Server and machine", server(report)),
            _pairs("Load", _load(report)),
            _knobs(report),
            _formulas(report),
        ),
    )


def server(report: Report) -> list[tuple[str, str]]:
    """Where the numbers come from; the report's own head shows the same facts."""
    meta = report.meta
    shown = {meta.engine, meta.engine_version, meta.model, _line(meta.machine)}
    facts = [
        ("server", str(meta.server)),
        ("engine", f"{meta.engine} {meta.engine_version}".strip()),
        ("model", meta.model),
        ("target", meta.target),
        *meta.machine.items(),
        *((k, v) for k, v in _identity(report).items() if v not in shown),
        ("started", meta.started),
        ("ended", meta.ended),
        ("restarts", str(meta.restarts)),
        ("minutes without service", _minutes(meta.minutes_without_service)),
        ("journal", meta.journal),
        ("made by", f"Leadline {meta.tool_version}".strip()),
    ]
    return [(k, v) for k, v in facts if v]


def _line(machine: dict[str, str]) -> str:
    """A machine as a measurement's identity names it."""
    return ", ".join(f"{k} {v}" for k, v in sorted(machine.items()))


def _minutes(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _identity(report: Report) -> dict[str, str]:
    """What had to be equal between compared measurements; several values are shown as such."""
    seen: dict[str, dict[str, None]] = {}
    for trial in report.history.trials:
        for m in trial.measurements:
            for key, value in m.identity.items():
                seen.setdefault(key, {})[value] = None
    return {key: ", ".join(values) for key, values in seen.items()}


def _load(report: Report) -> list[tuple[str, str]]:
    problem, meta = report.problem, report.meta
    taken = [m for t in report.history.trials for m in t.measurements]
    workloads = dict.fromkeys(c.workload for c in problem.cells())
    facts = [(f"workload {name}", meta.workloads.get(name, "")) for name in workloads]
    facts += [
        ("load points", ", ".join(str(c) for c in problem.cells()) + " (workload@requests in flight, closed loop)"),
        ("rounds", f"{problem.budget.rounds} launches of each setting"),
        ("requests a measurement", _range([m.requests for m in taken])),
        ("steady window, s", _range([m.window_s for m in taken])),
        ("kept in every launch", str(problem.kept) if problem.kept.values else ""),
        ("seed", str(problem.seed)),
        ("goals", "; ".join(f"{g.name}: {g.objective} over {words.weights(g)}" for g in problem.goals)),
    ]
    return [(k, v or words.NONE) for k, v in facts if v or k.startswith("workload")]


def _range(values: list[int] | list[float]) -> str:
    if not values:
        return ""
    low, high = (words.number(v) if isinstance(v, float) else str(v) for v in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def _pairs(title: str, facts: list[tuple[str, str]]) -> Table:
    return Table(title=title, columns=(Column("fact"), Column("value", wrap=True)), rows=tuple(facts))


def _knobs(report: Report) -> Table:
    problem = report.problem
    rows = tuple(
        (
            k.name,
            k.flag or words.NONE,
            str(problem.incumbent.get(k.name, words.NONE)),
            ", ".join(str(v) for v in k.values),
            k.unit or words.NONE,
            "yes" if k.changes_output else "no",
        )
        for k in problem.space.knobs
    )
    return Table(
        title="Knobs",
        columns=(
            Column("knob", code=True),
            Column("engine's flag", code=True),
            Column("incumbent", right=True),
            Column("values tried", wrap=True),
            Column("unit"),
            Column("may change the output"),
        ),
        rows=rows,
    )


def _formulas(report: Report) -> Table:
    rows = tuple(
        (m.name, m.unit or words.NONE, f"{m.better} is better" if m.better else words.NONE, m.formula)
        for m in report.formulas
    )
    return Table(
        title="Formula of every metric shown",
        note=".mean, .p50, .p90 and .p99 after a name are over the requests of one measurement.",
        columns=(Column("metric", code=True), Column("unit"), Column("direction"), Column("formula", wrap=True)),
        rows=rows,
    )
