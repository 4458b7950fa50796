"""`leadline bench`."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from pathlib import Path

import click
import msgspec

from leadline.analysis import stats
from leadline.build import found, names, plugin, resolve
from leadline.cli.common import emit, json_option
from leadline.config import Secret
from leadline.errors import InputError
from leadline.evidence import Acceptance, Evidence
from leadline.goal import Cell
from leadline.load.loader import ProcessLoader
from leadline.load.prober import HttpProber
from leadline.measure import Endpoint, LoadRules, cut, origin, values_of
from leadline.ports import Engine, LoadPlan, Prober, Workload
from leadline.trial import LoadReport, Origin

SEED = 1


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One workload at one concurrency on a running server. `origin` says whether a lab server answered; `records` =
    the record file, "" when it was not kept."""

    cell: str
    origin: str
    requests: int
    errors: int
    output_tokens: int
    values: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    acceptance: dict[str, float] | None
    records: str


@click.command("bench", epilog="Example: leadline bench http://127.0.0.1:8080 --workload coding --concurrency 1,4")
@click.argument("url")
@click.option("--workload", default="chat", help="Built-in workload. Default: chat.")
@click.option("--concurrency", default="1,4", help="Requests in flight, one point each. Default: 1,4.")
@click.option("--requests", default=8, type=click.IntRange(1), help="Least requests a point. Default: 8.")
@click.option("--max-tokens", type=click.IntRange(1), help="Most tokens of an answer.")
@click.option("--engine", help="Whose counters to read; found by asking when left out.")
@click.option("--api-key-env", help="Environment variable that holds the API key.")
@click.option("--out", type=click.Path(file_okay=False), help="Keep the record files in this folder.")
@json_option
def command(
    url: str,
    workload: str,
    concurrency: str,
    requests: int,
    max_tokens: int | None,
    engine: str | None,
    api_key_env: str | None,
    out: str | None,
    as_json: bool,
) -> None:
    """Measure one running server as it is: no campaign, nothing started or stopped."""
    headers = {"Authorization": f"Bearer {resolve(Secret('env', api_key_env))}"} if api_key_env else {}
    endpoint = Endpoint(url=url.rstrip("/"), headers=headers)
    prober = HttpProber(endpoint.url, headers)
    body: dict[str, object] = {} if max_tokens is None else {"max_tokens": max_tokens}
    with tempfile.TemporaryDirectory() as scratch:
        bench = _Bench(
            endpoint=endpoint,
            prober=prober,
            engine=plugin("engines", engine, "engine") if engine else _ask(prober),
            workload=_built_in(workload, body),
            cells=tuple(Cell(workload, c) for c in _numbers(concurrency)),
            requests=requests,
            folder=Path(out or scratch),
            kept=out is not None,
        )
        bench.folder.mkdir(parents=True, exist_ok=True)
        points = [bench.point(cell) for cell in bench.cells]
    if as_json:
        emit(points)
    else:
        click.echo("\n".join(_table(points)))


def _built_in(name: str, body: dict[str, object]) -> Workload:
    built_in = names().workloads
    if name not in built_in:
        raise InputError(f"no built-in workload named {name!r}; there are {', '.join(built_in)}")
    workload: Workload = plugin("workloads", name, "workload")(body, name)
    return workload


def _numbers(text: str) -> list[int]:
    try:
        numbers = [int(word) for word in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise InputError(f"--concurrency takes whole numbers from 1, like 1,4,16; not {text!r}")
    return numbers


def _ask(prober: Prober) -> Engine | None:
    """The engine whose probes this server answers; None when none does."""
    for name in found("engines"):
        engine: Engine = plugin("engines", name, "engine")
        replies = {p.name: prober.fetch(p) for p in engine.probes() if p.name != "ready"}
        if engine.effective(Evidence(replies=replies)).version:
            return engine
    return None


class _Bench(msgspec.Struct, frozen=True, kw_only=True):
    """A running server and what it is asked."""

    endpoint: Endpoint
    prober: Prober
    engine: Engine | None
    workload: Workload
    cells: tuple[Cell, ...]
    requests: int
    folder: Path
    kept: bool

    def evidence(self) -> Evidence:
        probes = self.engine.probes() if self.engine else ()
        return Evidence(replies={p.name: self.prober.fetch(p) for p in probes if p.name != "ready"})

    def point(self, cell: Cell) -> Point:
        warmup, sessions = cut(self.workload, cell, self.cells, LoadRules(requests=self.requests), SEED)
        path = self.folder / f"{cell}.jsonl"
        plan = LoadPlan(
            url=self.endpoint.url,
            headers=self.endpoint.headers,
            concurrency=cell.concurrency,
            warmup=warmup,
            sessions=sessions,
            records=str(path),
        )
        before = self.evidence()
        report = ProcessLoader().run(plan, lambda: True)
        _refuse_silence(cell, report)
        after = self.evidence()
        counts = self.engine.acceptance(before, after, report.records) if self.engine else None
        measured = [r for r in report.records if not r.warmup]
        return Point(
            cell=str(cell),
            origin=origin(self.engine.effective(after)) if self.engine else Origin.MEASURED,
            requests=len(measured),
            errors=sum(1 for r in measured if not r.ok),
            output_tokens=sum(r.output_tokens for r in measured),
            values=values_of(report, counts),
            intervals=stats.intervals(report, random.Random(SEED)),
            acceptance=_acceptance(counts),
            records=str(path) if self.kept else "",
        )


def _refuse_silence(cell: Cell, report: LoadReport) -> None:
    """Raises InputError when no request got an answer: there is nothing to show then."""
    errors = Counter(r.error for r in report.records)
    if all(errors):
        why = ", ".join(f"{n} x {error}" for error, n in errors.most_common(3)) or "nothing was sent"
        raise InputError(f"{cell}: no request was answered ({why}). Is the server up, and the URL its root?")


def _acceptance(counts: Acceptance | None) -> dict[str, float] | None:
    if counts is None:
        return None
    return {
        "rounds": counts.rounds,
        "drafting_rounds": counts.drafting_rounds,
        "drafted": counts.drafted,
        "accepted": counts.accepted,
        "acceptance_length": counts.acceptance_length or 0.0,
    }


def _table(points: list[Point]) -> list[str]:
    lines = [f"{'cell':<16}{'tok/s':>9}{'ttft p50':>10}{'ttft p99':>10}{'tpot p50':>10}{'failed':>8}{'accepted':>12}"]
    for p in points:
        counts = p.acceptance
        accepted = f"{counts['accepted']:.0f}/{counts['drafted']:.0f}" if counts and counts["drafted"] else "-"
        figures = [p.values.get(k, float("nan")) for k in ("output_tok_s", "ttft_ms.p50", "ttft_ms.p99", "tpot_ms.p50")]
        shown = "".join(f"{x:>{w}.1f}" for x, w in zip(figures, (9, 10, 10, 10), strict=True))
        lines.append(f"{p.cell:<16}{shown}{p.errors:>8}{accepted:>12}")
    if any(p.origin == "simulated" for p in points):
        lines.insert(0, "SIMULATED: a lab server answered, not a real engine")
    return lines
