"""The report for programs: JSON with stable keys, and CSV with one row per (trial, cell).

JSON keys (`"format": "leadline.report/1"`; keys may be added, never renamed or removed, within version 1):

  server          "real engine" or "simulated (lab server)"; always the first key
  banner          "" or the line that says that numbers are simulated or imported
  meta            campaign, engine, engine_version, model, target, server, machine, workloads, tool_version, started,
                  ended, journal, minutes_without_service, restarts, state, interval_method
  problem         space (knobs with the engine's flags), incumbent, goals, kept, limits, budget, seed
  recommendation  null while there is none; else goals (with ranking, ratios and intervals), single, losses, origin
  answer          the same in words, as every format shows it: action, verdict, gain and interval per goal
  single          the one setting for all goals and what each loses, in words; null without a recommendation
  settings        each setting launched: its roles, whether it ran, and the extent of one that will not
  objectives      per objective and setting x cell: value, bounds, launches, ratio
  acceptance      counts per setting with depth > 0 and cell, over all launches
  latency         medians per setting and cell
  findings        each finding with its places
  formulas        name, unit, direction and formula of the metrics
  trials          every trial with its measurements (each with its origin), voids and diagnosis
  queued          settings queued by hand

Settings and cells are words: "depth=4 max_running=64", "coding@4". Units are in the names.
"""

from __future__ import annotations

import csv
import io

import msgspec

from leadline import codec, metrics
from leadline.answer import Recommendation
from leadline.goal import Cell, Problem
from leadline.report import answers
from leadline.report.answers import GoalView, SingleView
from leadline.report.model import AcceptanceRow, Found, LatencyRow, Meta, Objective, Report, ServerKind, SettingRow
from leadline.space import Setting
from leadline.trial import Measurement, Trial

FORMAT = "leadline.report/1"
FIXED = ("source", "trial", "round", "setting")
AFTER_KNOBS = ("purpose", "state", "extent", "cell", "workload", "concurrency", "origin", "attempt", "started_at")
COUNTS = ("window_s", "requests", "errors", "prompt_tokens", "output_tokens")
ACCEPTANCE = ("decode_tokens", "rounds", "drafting_rounds", "drafted", "accepted", "accepted_per_position")


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """What the JSON holds; the module's text documents the keys."""

    server: ServerKind
    banner: str
    format: str = FORMAT
    meta: Meta
    problem: Problem
    recommendation: Recommendation | None
    answer: tuple[GoalView, ...]
    single: SingleView | None
    settings: tuple[SettingRow, ...]
    objectives: tuple[Objective, ...]
    acceptance: tuple[AcceptanceRow, ...]
    latency: tuple[LatencyRow, ...]
    findings: tuple[Found, ...]
    formulas: tuple[metrics.Metric, ...]
    trials: tuple[Trial, ...]
    queued: tuple[Setting, ...]


def document(report: Report) -> Document:
    return Document(
        server=report.meta.server,
        banner=report.banner,
        meta=report.meta,
        problem=report.problem,
        recommendation=report.recommendation,
        answer=answers.goals(report),
        single=answers.single(report),
        settings=report.settings,
        objectives=report.objectives,
        acceptance=report.acceptance,
        latency=report.latency,
        findings=report.findings,
        formulas=report.formulas,
        trials=report.history.trials,
        queued=report.history.queued,
    )


def to_json(report: Report) -> str:
    """Indented JSON; ends with a newline."""
    return codec.to_pretty(document(report)) + "\n"


def to_csv(report: Report) -> str:
    """One row per (trial, cell), with a cell that was asked for and not measured left blank after `origin`.

    Columns: source (the banner, or the kind of server), trial, round, setting, one for each knob, state and cell, the
    metrics, and the counts. `accepted_per_position` is counts separated by blanks. A text that a spreadsheet would take
    for a formula gets a leading apostrophe.
    """
    knobs = report.problem.space.names()
    names = _metrics(report)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow((*FIXED, *knobs, *AFTER_KNOBS, *names, *COUNTS, *ACCEPTANCE))
    source = report.banner or str(report.meta.server)
    for trial in report.history.trials:
        cells = dict.fromkeys((*trial.proposal.cells, *(m.cell for m in trial.measurements)))
        for cell in cells:
            m = trial.measurement(cell)
            row: list[object] = [source, trial.id, trial.proposal.round, str(trial.setting)]
            row += [
                *(trial.setting.get(k) for k in knobs),
                *_where(trial, cell, m),
                *(m.values.get(n) if m else None for n in names),
                *_counts(m),
            ]
            writer.writerow([_plain(value) for value in row])
    return out.getvalue()


def _metrics(report: Report) -> list[str]:
    """Every metric that some measurement has, known ones first and in their usual order."""
    seen = {name for t in report.history.trials for m in t.measurements for name in m.values}
    known = [name for name in metrics.names() if name in seen]
    return [*known, *sorted(seen - set(known))]


def _where(trial: Trial, cell: Cell, m: Measurement | None) -> list[object]:
    named = [str(trial.proposal.purpose), str(trial.state), trial.extent, str(cell), cell.workload, cell.concurrency]
    return [*named, str(m.origin), m.attempt, m.started_at] if m else [*named, None, None, None]


def _counts(m: Measurement | None) -> list[object]:
    if m is None:
        return [None] * (len(COUNTS) + len(ACCEPTANCE))
    load = [m.window_s, m.requests, m.errors, m.prompt_tokens, m.output_tokens]
    a = m.acceptance
    if a is None:
        return [*load, *[None] * len(ACCEPTANCE)]
    counts = [a.decode_tokens, a.rounds, a.drafting_rounds, a.drafted, a.accepted]
    return [*load, *counts, " ".join(str(n) for n in a.per_position)]


def _plain(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value
