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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import msgspec
import psutil
from support_lab import FAST, LabCampaign

from leadline.codec import from_json, to_json
from leadline.hosts import _machine
from leadline.hosts.local import LocalHost
from leadline.journal.events import AnyEvent, DeployFinished, tag
from leadline.journal.file import replay
from leadline.journal.ledger import Ledger
from leadline.load.records import read_records
from leadline.testing.faults import Fault, FaultKind
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


def nohup() -> None:
    """In a new process: what nohup(1) does."""
    default_signals()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def default_signals() -> None:
    """In a new process: what the tests themselves were told to ignore (nohup) is not ignored there."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


class Terminal:
    """A terminal window. Whoever waits for a voyage in it reads what it shows, so that it never fills up."""

    def __init__(self) -> None:
        self._master, self.slave = os.openpty()
        os.set_blocking(self._master, False)
        self._open = True

    def enter(self) -> None:
        """In a new process: it becomes the leader of a session in this terminal, as a shell's job would be."""
        default_signals()
        os.login_tty(self.slave)

    def read(self) -> bytes:
        shown = b""
        while self._open:
            try:
                shown += os.read(self._master, 65536)
            except OSError:  # nothing now, or nobody is left on the other side
                break
        return shown

    def close(self) -> None:
        """The kernel sends SIGHUP to whoever is in it; reading and writing fail from now on."""
        self._open = False
        os.close(self._master)


class Voyage:
    """One process of Leadline and all that came from it, which is told by a variable that every child inherits."""

    def __init__(
        self,
        argv: Sequence[str],
        out: Path,
        *,
        terminal: Terminal | None = None,
        setup: Callable[[], None] = default_signals,
        stderr: int = subprocess.STDOUT,
    ) -> None:
        """What it says goes to the file `out`. `setup` runs in the new process before the program."""
        self.mark = uuid4().hex
        self.out = out
        self._terminal = terminal
        with out.open("wb") as file:
            self.process = subprocess.Popen(
                argv,
                env={**os.environ, TAG: self.mark, "TERM": "xterm"},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=stderr,
                preexec_fn=terminal.enter if terminal else setup,
            )
        if terminal:
            os.close(terminal.slave)

    def hear(self) -> None:
        """Take in what a terminal shows."""
        if self._terminal:
            with self.out.open("ab") as file:
                file.write(self._terminal.read())

    def crew(self, words: str = "") -> list[psutil.Process]:
        """Living processes of this voyage, the first one left out, whose command line has those words."""
        self.hear()
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
    def lab(cls, folder: Path, **options) -> Crash:
        campaign = LabCampaign(folder, requests=8, **options)
        return cls(folder, campaign.port)

    def set_lab(self, **changes: object) -> None:
        """How the server behaves from its next start on; the command line stays the same, as a campaign demands."""
        path = self.folder / "lab.json"
        known = from_json(path.read_bytes(), LabSpec)
        spec = msgspec.structs.replace(FAST, launch_counter=known.launch_counter, **changes)
        path.write_bytes(to_json(spec))

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
                voyage.hear()
                assert voyage.process.poll() is None, f"ended before {kind}: {voyage.said()}"
            return [e for e in self.entries() if tag(e) == kind][number - 1 :]

        return wait_until(look, f"event {kind}")[0]

    def left(self, voyage: Voyage) -> list[str]:
        """What there still is of a voyage: processes, the server of the journal's last launch, a listener."""
        found = [str(p) for p in voyage.crew() if p.is_running()]  # str never fails for one that ends meanwhile
        deployed = [e for e in self.entries() if isinstance(e, DeployFinished)]
        found += [f"the server, pid {e.pid}" for e in deployed[-1:] if alive(e)]
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


def starting(it: Crash, terminal: Terminal | None = None) -> Voyage:
    """A voyage in the middle of its first load, which would take minutes."""
    it.set_lab(load_s=600.0)
    voyage = it.sail(terminal=terminal)
    it.await_event("deploy_started")
    voyage.find("labserver")
    return voyage


def alive(server: DeployFinished) -> bool:
    """That very process, and not as a dead one that its parent has not looked at."""
    try:
        status = psutil.Process(server.pid).status()
    except psutil.NoSuchProcess:
        return False
    return status != psutil.STATUS_ZOMBIE and _machine.start_id(server.pid) == server.start_id


def measuring(it: Crash, terminal: Terminal | None = None) -> Voyage:
    """A voyage in the middle of its first measurement, which would take minutes."""
    it.set_lab(base_step_ms=500.0)
    voyage = it.sail(terminal=terminal)
    it.await_event("measure_started")
    voyage.find(WORKER)
    return voyage


def mute(it: Crash) -> Voyage:
    """A voyage that waits for the first token of a server that says it is healthy."""
    it.set_lab(faults=(Fault(kind=FaultKind.MUTE),))
    voyage = it.sail()
    it.await_event("deploy_started")
    server = voyage.find("labserver")
    wait_until(lambda: _talks(server), "a request for a token")
    return voyage


def _talks(server: psutil.Process) -> bool:
    """Whether somebody is connected to it; a completion that is not answered is the only lasting connection."""
    return [c.status for c in server.net_connections() if c.status == psutil.CONN_ESTABLISHED] != []


def states(ledger: Ledger) -> list[str]:
    return [str(t.state) for t in ledger.history().trials]


def slots(trials: Sequence[Trial]) -> Counter[tuple[int, str]]:
    """How often a setting is COMPLETE in a round."""
    done = (t for t in trials if t.state is TrialState.COMPLETE)
    return Counter((t.proposal.round, str(t.setting)) for t in done)


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
        assert sorted(str(r.setting) for r in goal.ranking) == sorted(settings)
        assert {str(r.setting): r.excluded for r in goal.ranking if r.excluded} == {}


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


def freeze(process: psutil.Process) -> None:
    """It cannot hear a signal any more, but for SIGKILL."""
    process.suspend()
    wait_until(lambda: process.status() == psutil.STATUS_STOPPED, "a process that stands still")


def told(pid: int, number: signal.Signals) -> bool:
    """Whether that signal waits for a process: one that is frozen has been asked to end."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    waiting = (int(line.split()[1], 16) for line in lines if line.startswith(("SigPnd:", "ShdPnd:")))
    return any(mask >> (number - 1) & 1 for mask in waiting)
