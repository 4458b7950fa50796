"""A stop signal at each line of the code that holds a server, in virtual time: nothing that was started outlives it.

A signal may come between any two steps of our code, so it is sent there: before every line of the watched modules, for
every way in which that line is reached.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import FrameType

import msgspec
import pytest
from support_sim import Sim, goal

from leadline import campaign, deploy, interrupts, measure, stay
from leadline.campaign import Conduct, begin
from leadline.errors import InterruptedRun
from leadline.interrupts import Interrupts
from leadline.journal import file as journal_file
from leadline.journal.events import CampaignStarted, SessionOpened
from leadline.journal.file import Journal
from leadline.ports import Completed
from leadline.testing.faults import Fault, FaultKind
from leadline.testing.lab import Lab
from leadline.testing.spec import LabSpec
from leadline.trial import TrialState

WATCHED = {m.__file__ for m in (campaign, deploy, stay, measure, interrupts, journal_file, contextlib)}
EVERY_WAY = 4  # a line and three of its callers; 1 = each line once
Place = tuple[str, ...]


class Watch:
    """Counts the lines that run in the watched modules, and sends SIGTERM before line number `strike`.

    `first`: the number at which each place was reached for the first time.
    """

    def __init__(self, *, strike: int = 0, callers: int = 0) -> None:
        self.strike, self.callers = strike, callers
        self.count = 0
        self.first: dict[Place, int] = {}

    def __enter__(self) -> Watch:
        sys.settrace(self._enter)
        return self

    def __exit__(self, *exc: object) -> None:
        sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, arg: object):
        watched = frame.f_code.co_filename in WATCHED and frame.f_code.co_name not in ("_on", "_stop")
        return self._line if watched else None

    def _line(self, frame: FrameType, event: str, arg: object):
        if event == "line":
            self.count += 1
            if self.callers:
                self.first.setdefault(place(frame, self.callers), self.count)
            if self.count == self.strike:
                sys.settrace(None)
                signal.raise_signal(signal.SIGTERM)
        return self._line


def place(frame: FrameType | None, callers: int) -> Place:
    """The line, and the lines that called it."""
    lines: list[str] = []
    while frame is not None and len(lines) < callers:
        if frame.f_code.co_filename in WATCHED:
            lines.append(f"{Path(frame.f_code.co_filename).stem}:{frame.f_lineno}")
        frame = frame.f_back
    return tuple(lines)


class World:
    """A small campaign: one setting is well at its second launch, one never gets ready, and users are led away."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        faults = (Fault(kind=FaultKind.SILENT_START, depths=(0,)), Fault(kind=FaultKind.FOREIGN, launches=(1,)))
        self.lab = Lab(LabSpec(load_s=0.2, faults=faults), seed=5)
        self.calls: list[str] = []
        for name in ("drain", "undrain"):
            self.lab.commands[name] = self._called
        self.sim = Sim(
            self.lab, folder, depths=(0, 2), goals=(goal("one", "coding@1"),), rounds=1, requests=2, start_stall_s=0.5,
            conduct=Conduct(drain=("drain",), undrain=("undrain",)),
        )  # fmt: skip

    def _called(self, argv: Sequence[str]) -> Completed:
        self.calls.append(argv[0])
        return Completed(argv=tuple(argv), code=0, stdout=b"", stderr=b"")

    def sail(self, watch: AbstractContextManager[object]) -> None:
        """What `leadline run` wires, over the lab; `watch` holds for the campaign's loop."""
        sim, clock = self.sim, self.lab.clock
        start = CampaignStarted(
            name="sim", problem=sim.problem, engine="llamacpp", target="command", launch="", config_digest="",
            tool_version="0",
        )  # fmt: skip
        with Interrupts().installed() as stops:
            path = sim.folder / "journal.jsonl"
            with Journal(path, reason="test", utc=clock.utc, shield=stops.shield) as journal:
                begin(journal, start, SessionOpened(pid=1, host="lab", repaired=journal.repaired))
                it = sim.campaign(journal)
                it.shield = stops.shield
                it.deployer = msgspec.structs.replace(it.deployer, shield=stops.shield)
                it.measurer = msgspec.structs.replace(it.measurer, deployer=it.deployer)
                it.stay = msgspec.structs.replace(it.stay, deployer=it.deployer, shield=stops.shield)
                with watch:
                    it.run()

    def wrong(self) -> list[str]:
        """What is not as it must be when a session has ended."""
        ledger = self.sim.ledger()
        checks = {
            "a server runs": any(p.exit() is None for p in self.lab.processes),
            "a trial is live": bool(ledger.live_trials()),
            "a launch is in force": ledger.in_force is not None,
            "the session is not closed": ledger.closed is None,
            "users are led away": self.calls[-1:] == ["drain"],
        }
        return [what for what, is_so in checks.items() if is_so]

    def outcome(self) -> list[str]:
        """How each setting ended, trials that were stopped left out."""
        trials = self.sim.ledger().history().trials
        assert [t.id for t in trials] == list(range(1, len(trials) + 1))
        return sorted(f"{t.setting} {t.state}" for t in trials if t.state is not TrialState.INTERRUPTED)


def struck(folder: Path, strike: int) -> list[str]:
    """What is wrong when the signal comes before line number `strike`, and when the campaign has gone on after that."""
    world = World(folder)
    try:
        world.sail(Watch(strike=strike))
        return ["the signal was lost"]
    except InterruptedRun:
        wrong = world.wrong()
    world.sail(nullcontext())
    return [*wrong, *world.wrong(), *(() if world.outcome() == OUTCOME else ("it did not finish",))]


OUTCOME = ["depth=0 infeasible", "depth=2 complete"]


@pytest.mark.parametrize("callers", [1, pytest.param(EVERY_WAY, marks=pytest.mark.torture)])
def test_a_stop_signal_at_each_line(tmp_path: Path, callers: int) -> None:
    whole = World(tmp_path / "whole")
    watch = Watch(callers=callers)
    whole.sail(watch)
    assert (whole.wrong(), whole.outcome()) == ([], OUTCOME)
    # The very first line is the one before `run` takes care: nothing has been done there.
    places = {p: n for p, n in watch.first.items() if n > 1}
    assert len(places) > 300
    bad = {p: wrong for p, n in places.items() if (wrong := struck(tmp_path / str(n), n))}
    assert bad == {}
