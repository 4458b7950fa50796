"""A trial has a deadline, and users who were sent away are called back, also after we were killed."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from support_sim import Sim

from leadline.campaign import Conduct
from leadline.errors import NothingFeasibleError
from leadline.evidence import Failure
from leadline.journal.events import Hooked, TrialPlanned
from leadline.ports import Completed
from leadline.testing.lab import Lab
from leadline.trial import TrialState


def test_a_trial_that_takes_too_long_is_ended_and_said(tmp_path: Path) -> None:
    sim = Sim(Lab(seed=1), tmp_path)
    sim.rules = msgspec.structs.replace(sim.rules, deadline_s=8.0)
    with pytest.raises(NothingFeasibleError):
        sim.run()
    trials = sim.ledger().history().trials
    assert {t.state for t in trials} == {TrialState.INFEASIBLE}
    assert {t.diagnosis.failure for t in trials} == {Failure.DEADLINE}
    assert not sim.lab.listener(8080)


class Killed(BaseException):
    """Stands for SIGKILL: nothing of the campaign runs after it."""


def test_users_come_back_after_a_kill(tmp_path: Path) -> None:
    lab = Lab(seed=1)
    for name in ("drain", "undrain"):
        lab.commands[name] = lambda argv: Completed(argv=tuple(argv), code=0, stdout=b"", stderr=b"")
    sim = Sim(lab, tmp_path, conduct=Conduct(drain=("drain",), undrain=("undrain",)))
    events: list[object] = []

    def watch(event: object) -> None:
        events.append(event)
        if isinstance(event, TrialPlanned) and event.trial == 2:
            raise Killed

    with pytest.raises(Killed):
        sim.run(watch)
    hooks = [argv for argv in lab.ran if argv[0] in ("drain", "undrain")]
    assert hooks[0] == ("drain",)
    _forget_what_a_killed_process_cannot_do(tmp_path)
    assert sim.ledger().drained
    del lab.ran[:]
    sim.run()
    assert [a[0] for a in lab.ran if a[0] in ("drain", "undrain")] == ["undrain"]
    assert not sim.ledger().drained


def _forget_what_a_killed_process_cannot_do(folder: Path) -> None:
    """The exception that stands for the kill ran the way out; its event is taken from the journal again."""
    path = folder / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    while b'"hook":"undrain"' in lines[-1] or b"session_closed" in lines[-1]:
        lines.pop()
    path.write_bytes(b"".join(lines))
    assert any(isinstance(e, Hooked) for e in _events(path))


def _events(path: Path) -> tuple[object, ...]:
    from leadline.journal.file import replay

    return replay(path).entries
