"""What the load did, beside the results: who had to wait, and whose text is drafted more easily than whose."""

from __future__ import annotations

import statistics

from leadline.goal import Cell
from leadline.report import words
from leadline.report.model import Report
from leadline.report.table import Column, Table
from leadline.space import Setting
from leadline.trial import Measurement


def waiting(report: Report) -> Table | None:
    """Where a server ran fewer requests at once than there were users; None when none is known to have."""
    rows = []
    for row in report.settings:
        for cell in report.problem.cells():
            seen = [m for m in _measured(report, row.setting, cell) if m.values.get("waiting_requests_max")]
            if seen and _lacks_room(report, row.setting, cell):
                ran, waited = (max(m.values[f"{what}_requests_max"] for m in seen) for what in ("running", "waiting"))
                rows.append((str(row.setting), str(cell), str(cell.concurrency), f"{ran:.0f}", f"{waited:.0f}"))
    if not rows:
        return None
    return Table(
        title="Requests that ran and that waited",
        note="The most of each, as the server said once a second. Waiting is part of the values above.",
        columns=(
            Column("setting", code=True),
            Column("cell", code=True),
            *(Column(t, right=True) for t in ("of", "ran", "waited")),
        ),
        rows=tuple(rows),
        keys=2,
    )


def _lacks_room(report: Report, setting: Setting, cell: Cell) -> bool:
    """A request may be seen waiting for a moment anywhere; here because the server's places do not suffice."""
    told = [t.effective.max_running for t in report.history.of(setting) if t.effective is not None]
    known = [n for n in told if n is not None]
    return not known or min(known) < cell.concurrency


def _measured(report: Report, setting: Setting, cell: Cell) -> list[Measurement]:
    found = (t.measurement(cell) for t in report.history.of(setting))
    return [m for m in found if m is not None]


def by_workload(report: Report) -> Table | None:
    """Acceptance lengths of several workloads side by side, where they met the same setting and as many users; the
    most accepted one first. None where no two can be compared."""
    lengths: dict[tuple[Setting, int], dict[str, float]] = {}
    for row in report.acceptance:
        length = row.counts.acceptance_length if row.counts else None
        if length is not None:
            lengths.setdefault((row.setting, row.cell.concurrency), {})[row.cell.workload] = length
    shared = {place: by_name for place, by_name in lengths.items() if len(by_name) > 1}
    if not shared:
        return None
    names = {name for by_name in shared.values() for name in by_name}
    typical = {n: statistics.fmean(by_name[n] for by_name in shared.values() if n in by_name) for n in names}
    order = sorted(names, key=lambda n: (-typical[n], n))
    return Table(
        title="By workload",
        note="L of each workload at the same setting and with as many users. The ratio is that of the most and the "
        "least accepted one: a depth that wins with the one need not win with the other.",
        columns=(
            Column("setting", code=True),
            *(Column(t, right=True) for t in ("users", *order, "ratio")),
        ),
        rows=tuple(
            (
                str(setting),
                str(users),
                *(words.number(by_name.get(n)) for n in order),
                f"{max(by_name.values()) / min(by_name.values()):.2f}",
            )
            for (setting, users), by_name in shared.items()
        ),
        keys=2,
    )
