"""Kill or signal Leadline as a user, a terminal or the kernel would, and see what it leaves behind."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import psutil
from support_lab import LabCampaign

from leadline.codec import to_json
from leadline.hosts import _machine
from leadline.hosts.local import LocalHost
from leadline.journal.events import AnyEvent, DeployFinished, tag
from leadline.journal.file import replay
from leadline.journal.ledger import Ledger
from leadline.load.records import read_records
from leadline.testing.spec import LabSpec
from leadline.trial import Trial, TrialState

GRACE_S = 2.0  # safety.grace_s of the campaigns here
GONE_S = GRACE_S + 2  # the law: nothing of the server is left so long after the end of Leadline
PATIENCE_S = 120.0  # for what only a very busy machine makes slow
TAG = "LEADLINE_CRASH_TEST"
SUPERVISOR, WORKER = "supervisor.py", "leadline.load.worker"
T = TypeVar("T")


def wait_until(look: Callable[[], T], what: str, limit_s: float = PATIENCE_S) -> T:
    """What `look` says as soon as it is true."""
    until = time.monotonic() + limit_s
    while True:
        seen = look()
        if seen:
            return seen
        assert time.monotonic() < until, f"{what}: not within {limit_s:g} s"
        time.sleep(0.02)


def default_signals() -> None:
    """In a new process: what the tests themselves were told to ignore (nohup) is not ignored there."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


class Voyage:
    """One process of Leadline and all that came from it, which is told by a variable that every child inherits."""

    def __init__(
        self, argv: Sequence[str], out: Path, setup: Callable[[], None] = default_signals, stdio: int | None = None
    ) -> None:
        """`stdio`: a terminal instead of the file `out`."""
        self.mark = uuid4().hex
        self.out = out
        with out.open("wb") as file:
            self.process = subprocess.Popen(
                argv,
                env={**os.environ, TAG: self.mark},
                stdin=subprocess.DEVNULL if stdio is None else stdio,
                stdout=file if stdio is None else stdio,
                stderr=subprocess.STDOUT,
                preexec_fn=setup,
            )

    def crew(self, words: str = "") -> list[psutil.Process]:
        """Living processes of this voyage, the first one left out, whose command line has those words."""
        found = []
        for process in psutil.process_iter():
            try:
                ours = process.pid != self.process.pid and process.environ().get(TAG) == self.mark
                if ours and process.status() != psutil.STATUS_ZOMBIE and words in " ".join(process.cmdline()):
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    def find(self, words: str) -> psutil.Process:
        """The one that has those words, as soon as it runs."""
        return wait_until(lambda: self.crew(words), f"a process with {words!r}")[0]

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self) -> int:
        """The exit code, as a shell has it."""
        code = self.process.wait(PATIENCE_S)
        return 128 - code if code < 0 else code

    def said(self) -> str:
        return self.out.read_text(encoding="utf-8", errors="replace")

    def end(self) -> None:
        """For tests that fail: nothing is left running."""
        for process in (self.process, *self.crew()):
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self.process.wait(PATIENCE_S)


class Crash:
    """A campaign's folder, the voyages on it, and what must hold after each."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.journal = folder / "journal.jsonl"
        self.port = port
        self.voyages: list[Voyage] = []

    @classmethod
    def over(cls, campaign: LabCampaign) -> Crash:
        return cls(campaign.folder, campaign.port)

    def sail(self, **how) -> Voyage:
        """`leadline run --yes`."""
        return self.start([sys.executable, "-m", "leadline", "run", str(self.folder), "--yes"], **how)

    def start(self, argv: Sequence[str], **how) -> Voyage:
        voyage = Voyage(argv, self.folder / f"voyage-{len(self.voyages)}.out", **how)
        self.voyages.append(voyage)
        return voyage

    def end(self) -> None:
        for voyage in self.voyages:
            voyage.end()

    def entries(self) -> tuple[AnyEvent, ...]:
        """Whole events so far; one that is being written is left out."""
        return replay(self.journal).entries

    def ledger(self) -> Ledger:
        return replay(self.journal).ledger

    def await_event(self, kind: str, number: int = 1) -> AnyEvent:
        """The event of that kind, the `number`-th one, as soon as it is in the journal."""

        def look() -> list[AnyEvent]:
            for voyage in self.voyages[-1:]:
                assert voyage.process.poll() is None, f"ended before {kind}: {voyage.said()}"
            return [e for e in self.entries() if tag(e) == kind][number - 1 :]

        return wait_until(look, f"event {kind}")[0]

    def left(self, voyage: Voyage) -> list[str]:
        """What there still is of a voyage: processes, the server of the journal's last launch, a listener."""
        found = [f"{p.pid} {p.name()}" for p in voyage.crew()]
        deployed = [e for e in self.entries() if isinstance(e, DeployFinished)]
        found += [f"the server, pid {e.pid}" for e in deployed[-1:] if _machine.start_id(e.pid) == e.start_id]
        listener = LocalHost().listener("127.0.0.1", self.port)  # asked from the kernel: no connection is made
        return found + ([f"a listener: {listener}"] if listener else [])

    def assert_all_gone(self, voyage: Voyage) -> None:
        """Within the grace and 2 s, without anybody's help."""
        wait_until(lambda: not self.left(voyage), "the end of all processes", GONE_S)

    def finish(self) -> None:
        """`leadline run` again ends well, and leaves nothing."""
        voyage = self.sail()
        assert voyage.ended() == 0, voyage.said()
        assert not self.left(voyage)


@contextmanager
def crash(campaign: LabCampaign) -> Iterator[Crash]:
    it = Crash.over(campaign)
    try:
        yield it
    finally:
        it.end()


def set_lab(campaign: LabCampaign, spec: LabSpec) -> None:
    """What the next start of the server reads: the command line stays the same, as a campaign demands."""
    (campaign.folder / "lab.json").write_bytes(to_json(spec))


def slots(history_trials: Sequence[Trial]) -> Counter[tuple[int, str]]:
    """How often a setting is COMPLETE in a round."""
    done = (t for t in history_trials if t.state is TrialState.COMPLETE)
    return Counter((t.proposal.round, str(t.setting)) for t in done)


def assert_nothing_lost(before: bytes, after: bytes) -> None:
    """Whatever was in the journal, but for an unfinished last line, is there still."""
    assert after.startswith(before[: before.rfind(b"\n") + 1])


def assert_whole(crash: Crash, settings: Sequence[str], rounds: int = 1) -> Ledger:
    """A finished campaign: every setting once complete in every round, numbered without a gap, with all its numbers."""
    read = replay(crash.journal)
    trials = read.ledger.history().trials
    assert slots(trials) == {(r, s): 1 for r in range(1, rounds + 1) for s in settings}
    assert [t.id for t in trials] == list(range(1, len(trials) + 1))
    assert not [t for t in trials if t.live]
    for trial in trials:
        cells = [m.cell for m in trial.measurements]
        assert len(cells) == len(set(cells))
        if trial.state is TrialState.COMPLETE:
            assert set(cells) == set(trial.proposal.cells)
    for measurement in (m for t in trials for m in t.measurements):
        records = crash.folder / "records" / measurement.records
        assert hashlib.sha256(records.read_bytes()).hexdigest() == measurement.records_sha256
        measured = [r for r in read_records(str(records)).records if not r.warmup]
        assert (len(measured), measurement.errors) == (measurement.requests, 0)
    assert read.ledger.closed is not None
    assert read.ledger.closed.finished
    _assert_answered(read.ledger, settings)
    _assert_reported(crash, settings)
    return read.ledger


def _assert_answered(ledger: Ledger, settings: Sequence[str]) -> None:
    assert ledger.decided is not None
    recommendation = ledger.decided.recommendation
    assert str(recommendation.single) in settings
    for goal in recommendation.goals:
        assert str(goal.setting) in settings
        assert sorted(str(r.setting) for r in goal.ranking if not r.excluded) == sorted(settings)


def _assert_reported(crash: Crash, settings: Sequence[str]) -> None:
    """report.html is written, and the report has a number for every setting in every cell."""
    assert (crash.folder / "report.html").exists()
    argv = [sys.executable, "-m", "leadline", "report", str(crash.folder), "--format", "json"]
    report = json.loads(subprocess.run(argv, capture_output=True, check=True, timeout=PATIENCE_S).stdout)
    assert {s["setting"] for s in report["settings"]} == set(settings)
    assert all(s["complete"] for s in report["settings"])
    for objective in report["objectives"]:
        assert {p["setting"] for p in objective["points"]} == set(settings)
        assert all(p["value"] > 0 for p in objective["points"])


def told(pid: int, number: signal.Signals) -> bool:
    """Whether that signal waits for a process: one that is stopped has been asked to end, and cannot hear it."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    waiting = (int(line.split()[1], 16) for line in lines if line.startswith(("SigPnd:", "ShdPnd:")))
    return any(mask >> (number - 1) & 1 for mask in waiting)

