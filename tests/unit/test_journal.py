"""The journal: durable, repaired, refused; never an earlier event lost."""

import os
from pathlib import Path

import pytest
from support_journal import PROBLEM, opening, trial

from leadline.errors import JournalError
from leadline.journal.events import DeployFinished, TrialEnded
from leadline.journal.file import Journal, owner_of, replay
from leadline.trial import TrialState


def write(path: Path, events: list) -> bytes:
    with Journal(path, reason="test", utc=lambda: "2026-11-30T12:00:00.000Z") as journal:
        for event in events:
            journal.append(event)
    return path.read_bytes()


def reopen(path: Path) -> Journal:
    return Journal(path, reason="test", utc=lambda: "2026-11-30T13:00:00.000Z")


def test_replay_gives_what_was_written(tmp_path: Path) -> None:
    write(tmp_path / "j.jsonl", [*opening(), *trial(1, 2), *trial(2, 4)])
    ledger = replay(tmp_path / "j.jsonl").ledger
    assert ledger.problem == PROBLEM
    assert [(t.setting.depth, t.state) for t in ledger.history().trials] == [
        (2, TrialState.COMPLETE),
        (4, TrialState.COMPLETE),
    ]
    assert ledger.in_force is None


def test_cut_at_every_byte_of_the_last_three_events(tmp_path: Path) -> None:
    """Opens and repairs, keeps every event that was complete, and takes new ones that read back."""
    path = tmp_path / "j.jsonl"
    whole = write(path, [*opening(), *trial(1, 2), *trial(2, 4)[:-1]])
    lines = whole.splitlines(keepends=True)
    start = len(whole) - sum(len(line) for line in lines[-3:])
    for cut in range(start, len(whole) + 1):
        path.write_bytes(whole[:cut])
        complete = whole[:cut].count(b"\n")
        with reopen(path) as journal:
            assert journal.ledger.events == complete
            torn = cut - whole[:cut].rfind(b"\n") - 1
            assert (f"cut {torn} bytes" in journal.repaired) == (torn > 0)
            journal.append(opening()[1])
        after = path.read_bytes()
        assert after.startswith(b"".join(lines[:complete]))
        assert replay(path).ledger.events == complete + 1


def test_reading_does_not_repair(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    whole = write(path, opening())
    path.write_bytes(whole + b'{"event":"tri')
    assert replay(path).torn == b'{"event":"tri'
    assert path.read_bytes() == whole + b'{"event":"tri'


@pytest.mark.parametrize(
    "bad",
    [b"not json\n", b'{"event":"nonsense","seq":2}\n', b"\n", b'{"event":"session_opened","seq":2}\n', b"\0\0\0\n"],
)
def test_a_bad_line_in_the_middle_is_refused_with_its_number(tmp_path: Path, bad: bytes) -> None:
    path = tmp_path / "j.jsonl"
    lines = write(path, [*opening(), *trial(1, 2)]).splitlines(keepends=True)
    path.write_bytes(lines[0] + bad + b"".join(lines[2:]))
    before = path.read_bytes()
    with pytest.raises(JournalError, match="line 2 cannot be trusted"):
        reopen(path)
    assert path.read_bytes() == before


def test_a_lost_line_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    lines = write(path, [*opening(), *trial(1, 2)]).splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:4] + lines[5:]))
    with pytest.raises(JournalError, match=r"line 5 .* event number 6 where 5 was due"):
        replay(path)


def test_a_second_writer_is_refused_and_told_who_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    with reopen(path):
        with pytest.raises(JournalError, match=f"test, pid {os.getpid()}"):
            reopen(path)
        assert owner_of(path).pid == os.getpid()
    assert owner_of(path) is None
    reopen(path).close()


def test_an_illegal_event_is_refused_and_not_written(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    write(path, [*opening(), *trial(1, 2)])
    before = path.read_bytes()
    with reopen(path) as journal:
        for event in (
            TrialEnded(trial=1, state=TrialState.FAILED),
            TrialEnded(trial=9, state=TrialState.FAILED),
            trial(1, 2)[0],
            next(e for e in trial(1, 2) if isinstance(e, DeployFinished)),
            opening()[0],
        ):
            with pytest.raises(JournalError):
                journal.append(event)
    assert path.read_bytes() == before


def test_the_watcher_sees_an_event_only_after_it_is_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    seen = []
    with reopen(path) as journal:
        journal.watch = lambda event: seen.append((event.seq, path.read_bytes().count(b"\n")))
        for event in opening():
            journal.append(event)
    assert seen == [(1, 1), (2, 2)]


def test_a_full_disk_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "j.jsonl"
    before = write(path, opening())
    real = os.write
    with reopen(path) as journal:
        monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:10]))
        with pytest.raises(JournalError, match="free some space"):
            journal.append(trial(1, 2)[0])
    assert path.read_bytes() == before


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    path.write_bytes(write(path, opening()[:1]).replace(b'"format":1', b'"format":2'))
    with pytest.raises(JournalError, match="journal format 2"):
        replay(path)
