"""Measure one cell on a running server: load, prove whose numbers these are, and reduce them.

A number is returned only when the server that answered is still the one that was deployed, runs what was asked, and
served nobody else. Otherwise `Spoiled` says why.
"""

from __future__ import annotations

import hashlib
import random
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from leadline import metrics
from leadline.analysis import audit, stats
from leadline.busy import BusyWatch
from leadline.deploy import Deployer, Running
from leadline.errors import InputError, LeadlineError
from leadline.evidence import Acceptance, Diagnosis, Effective, Evidence, Failure
from leadline.goal import Cell
from leadline.ports import Engine, Loader, LoadPlan, PlannedRequest, Workload
from leadline.space import Setting
from leadline.steps import POLL_S
from leadline.trial import Finding, LoadReport, Measurement, Origin
from leadline.verdict import differences

LAB_MARK = "leadline-lab"
Sessions = tuple[tuple[PlannedRequest, ...], ...]


class Spoiled(LeadlineError):
    """The measurement may not count; `diagnosis` says why."""

    def __init__(self, diagnosis: Diagnosis) -> None:
        self.diagnosis = diagnosis
        super().__init__(str(diagnosis))


class LoadRules(msgspec.Struct, frozen=True, kw_only=True):
    """How much load a point gets: `warmup` sessions per user first, then at least `requests` requests and at least
    `per_user` for each user."""

    warmup: int = 1
    requests: int = 8
    per_user: int = 3
    stall_s: float = 60.0

    def of(self, concurrency: int) -> int:
        return max(self.requests, self.per_user * concurrency)


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where requests go. `headers` may hold a secret: it is never printed or stored."""

    url: str
    headers: dict[str, str] = {}
    ca: str | None = None
    proxy: str | None = None
    model: str | None = None


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One cell to measure in one launch. `cells` = all cells of the launch: those of one workload share no prompt."""

    trial: int
    attempt: int
    round: int
    cell: Cell
    cells: tuple[Cell, ...]
    asked: Setting


class Measurer(msgspec.Struct, frozen=True, kw_only=True):
    deployer: Deployer
    loader: Loader
    workloads: Mapping[str, Workload]
    rules: LoadRules
    endpoint: Endpoint
    records: Path
    seed: int
    keep_foreign: bool = False

    def measure(self, running: Running, job: Job) -> Measurement:
        """Raises Spoiled; HostError when the load worker itself fails."""
        plan = self.plan(job)
        started_at = self.deployer.clock.utc()
        before = self.deployer.evidence(running)
        busy = BusyWatch(self.deployer.engine, self.deployer.prober, self.deployer.clock)

        def alive() -> bool:
            busy.look()
            return running.session.exit() is None and self.deployer.in_time(running)

        report = self.loader.run(plan, alive)
        if not self.deployer.in_time(running):
            raise Spoiled(_too_late(self.deployer.rules.deadline_s))
        after = self._settled(running)
        findings = self._prove(running, job, report, before, after)
        return self._measurement(job, report, before, after, started_at, findings, busy.values())

    def _settled(self, running: Running) -> Evidence:
        """The evidence after the load. A server that is alive but answers no more may be starting again: we wait for
        it as long as for a start, since only its counters tell a restart from a hang."""
        rules, clock = self.deployer.rules, self.deployer.clock
        until = clock.now_ns() + rules.start_stall_s * 1e9
        while True:
            evidence = self.deployer.evidence(running)
            health = evidence.replies.get("health")
            if health is None or health.ok or evidence.exit is not None or clock.now_ns() > until:
                return evidence
            clock.sleep(POLL_S)

    def plan(self, job: Job) -> LoadPlan:
        """The same prompts for every setting of a round, others in the next round."""
        workload = self.workloads[job.cell.workload]
        seed = zlib.crc32(f"{self.seed}/{job.round}/{workload.name}".encode())
        warmup, sessions = cut(workload, job.cell, job.cells, self.rules, seed)
        name = f"trial-{job.trial:03d}-{job.cell}-{job.attempt}.jsonl"
        return LoadPlan(
            url=self.endpoint.url,
            headers=self.endpoint.headers,
            ca=self.endpoint.ca,
            proxy=self.endpoint.proxy,
            concurrency=job.cell.concurrency,
            warmup=self._with_fields(warmup),
            sessions=self._with_fields(sessions),
            stall_s=self.rules.stall_s,
            records=str(self.records / name),
        )

    def _with_fields(self, sessions: Sessions) -> Sessions:
        """With the model's name and what makes the engine tell its speculation; the request's own fields win."""
        model = self.endpoint.model
        fields = {**({} if model is None else {"model": model}), **self.deployer.engine.body_fields()}
        if not fields:
            return sessions
        return tuple(
            tuple(msgspec.structs.replace(r, body={**fields, **r.body}) for r in session) for session in sessions
        )

    def _prove(
        self, running: Running, job: Job, report: LoadReport, before: Evidence, after: Evidence
    ) -> tuple[Finding, ...]:
        engine = self.deployer.engine
        failed = any(not r.ok for r in report.records)
        doubt = self.deployer.doubt(running)
        if doubt is None and engine.restarted(before, after):
            reason = "the server's counters ran backwards during the measurement: it restarted by itself"
            doubt = Diagnosis(failure=Failure.RESTARTED, reason=reason, remedy="find what restarts it")
        if doubt is None and failed:
            doubt = self.deployer.doubt(running, generate=True)
        if doubt is None and sum(not r.warmup for r in report.records) < sum(map(len, self.plan(job).sessions)):
            reason = f"the server fell silent for {self.rules.stall_s:g} s, so the load was ended early"
            doubt = Diagnosis(failure=Failure.NOT_GENERATING, reason=reason, remedy="read its log for what it did then")
        if doubt is not None:
            raise Spoiled(doubt)
        foreign = engine.foreign_tokens(before, after, report.records)
        if foreign and not self.keep_foreign:
            raise Spoiled(_foreign(foreign))
        wrong, findings = differences(job.asked, engine.effective(after), job.cell.concurrency)
        if wrong is not None:
            raise Spoiled(wrong)
        findings += starved(engine, before, after)
        if foreign:
            findings += (Finding(code="foreign_requests", message=_foreign(foreign).reason, size=f"{foreign} tokens"),)
        return findings

    def _measurement(
        self,
        job: Job,
        report: LoadReport,
        before: Evidence,
        after: Evidence,
        started_at: str,
        findings: tuple[Finding, ...],
        busy: dict[str, float],
    ) -> Measurement:
        engine = self.deployer.engine
        acceptance = engine.acceptance(before, after, report.records)
        values = {**values_of(report, acceptance), **busy}
        measured = [r for r in report.records if not r.warmup]
        plan = self.plan(job)
        facts = audit.Facts(
            depth=job.asked.depth, bodies=tuple(r.body for s in plan.sessions for r in s), report=report, values=values,
            acceptance=acceptance,
        )  # fmt: skip
        return Measurement(
            trial=job.trial,
            cell=job.cell,
            attempt=job.attempt,
            origin=origin(engine.effective(after), engine.effective(before)),
            started_at=started_at,
            window_s=(report.window_end_ns - report.window_start_ns) / 1e9,
            requests=len(measured),
            errors=sum(1 for r in measured if not r.ok),
            prompt_tokens=sum(r.prompt_tokens for r in measured),
            output_tokens=sum(r.output_tokens for r in measured),
            values=values,
            intervals=stats.intervals(report, random.Random(self.seed)),
            acceptance=acceptance,
            findings=(*findings, *audit.findings_of(facts)),
            identity=self._identity(job.cell, engine.effective(after)),
            records=Path(plan.records).name,
            records_sha256=_digest(Path(plan.records)),
        )

    def _identity(self, cell: Cell, effective: Effective) -> dict[str, str]:
        machine = ", ".join(f"{k} {v}" for k, v in sorted(self.deployer.host.identity().items()))
        return {
            "engine": self.deployer.engine.name,
            "engine_version": effective.version or "unknown",
            "model": effective.model or "unknown",
            "machine": machine,
            "workload": self.workloads[cell.workload].digest,
        }


def starved(engine: Engine, before: Evidence, after: Evidence) -> tuple[Finding, ...]:
    """Whether the server said, between two looks at it, that it ran out of room for tokens and went on."""
    since = msgspec.structs.replace(after, log=after.log[len(before.log) :], exit=None)
    said = engine.diagnose(since)
    if said.failure is not Failure.KV_STARVED:
        return ()
    return (Finding(code="kv_starved", message=f"{said.reason}.", evidence=said.line, remedy=said.remedy),)


def cut(
    workload: Workload, cell: Cell, cells: Sequence[Cell], rules: LoadRules, seed: int
) -> tuple[Sessions, Sessions]:
    """Warm-up and measured sessions of a cell: a slice of one shuffle of the workload.

    Cells of one launch share no prompt while there are enough of them; within a cell no prompt ever repeats.
    """
    deck = [tuple(session) for session in workload.sessions(workload.available, seed)]
    at = 0
    for other in cells:
        if other.workload != cell.workload:
            continue
        turned = deck[at % len(deck) :] + deck[: at % len(deck)]
        warmup = tuple(turned[: rules.warmup * other.concurrency])
        sessions = _enough(turned[len(warmup) :], rules.of(other.concurrency))
        if other == cell:
            if sum(map(len, sessions)) < rules.of(cell.concurrency):
                raise InputError(
                    f"workload {workload.name} has {workload.available} sessions, too few for {cell}: it needs "
                    f"{rules.warmup * cell.concurrency} to warm up and {rules.of(cell.concurrency)} requests to "
                    f"measure. Lower load.requests, load.per_user or load.warmup, or give a file with more."
                )
            return warmup, sessions
        at += len(warmup) + len(sessions)
    raise ValueError(f"{cell} is not one of the launch's cells")


def values_of(report: LoadReport, acceptance: Acceptance | None) -> dict[str, float]:
    """All metrics of a load, acceptance included where the engine counts it."""
    values = metrics.reduce(report)
    if acceptance is not None and acceptance.acceptance_length is not None:
        values["acceptance_length"] = acceptance.acceptance_length
        if acceptance.drafted_acceptance_length is not None:
            values["drafted_acceptance_length"] = acceptance.drafted_acceptance_length
    return values


def origin(*effective: Effective) -> Origin:
    """The lab server says what it is in its version, once at least in what was seen of it."""
    return Origin.SIMULATED if any(LAB_MARK in (e.version or "") for e in effective) else Origin.MEASURED


def _enough(sessions: list[tuple[PlannedRequest, ...]], requests: int) -> Sessions:
    """The first sessions that hold at least so many requests; all of them when there are fewer."""
    taken: list[tuple[PlannedRequest, ...]] = []
    while sessions[len(taken) :] and sum(map(len, taken)) < requests:
        taken.append(sessions[len(taken)])
    return tuple(taken)


def _too_late(deadline_s: float) -> Diagnosis:
    return Diagnosis(
        failure=Failure.DEADLINE,
        reason=f"the trial took longer than safety.deadline_s = {deadline_s:g} and was ended",
        remedy="raise it, or lower load.requests and load.per_user",
    )


def _foreign(tokens: int) -> Diagnosis:
    return Diagnosis(
        failure=Failure.FOREIGN,
        reason=f"the server generated {tokens} tokens in the window that we did not ask for: somebody else is using it",
        remedy="drain it (traffic.drain), use traffic.private_port, or say traffic.foreign = 'keep'",
    )


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""
