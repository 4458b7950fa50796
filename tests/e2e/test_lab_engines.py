"""Each engine's package against a lab server that passes for the engine: real processes, real HTTP, every fault.

What the packages read was written by somebody else than what they read it from: the lab's words are those of the real
servers, and its figures are known.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from support_lab import free_port
from support_lab_process import LabRun

from leadline.evidence import Busy, Failure
from leadline.testing.faults import Fault, FaultKind

ENGINES = ("sglang", "vllm", "trtllm")
Start = Callable[..., LabRun]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts lab servers and waits until each is up or gone; whatever happens, none is left."""
    runs: list[LabRun] = []

    def begin(name: str, *faults: Fault, **options) -> LabRun:
        options.setdefault("port", free_port())
        runs.append(LabRun(tmp_path, name, *faults, **options))
        return runs[-1].until_up()

    yield begin
    for run in runs:
        run.close()


@pytest.mark.parametrize("name", ENGINES)
def test_a_healthy_server_is_read_as_it_is(start: Start, name: str) -> None:
    run = start(name)
    before = run.evidence()
    effective = run.engine.effective(before)
    assert (effective.depth, effective.max_running, effective.kv_tokens) == (3, 4, 262144 - 3 * 4096)
    assert effective.model == "lab"
    assert effective.version is not None
    assert "leadline-lab" in effective.version
    assert run.engine.busy(before.replies["metrics"]) in (
        Busy(running=0, waiting=0, kv_usage=0.0),
        Busy(running=0, waiting=0),
    )
    records = run.load(4, 12)
    assert [r.error for r in records] == [""] * 12
    after = run.evidence(ready=False)
    counted = run.engine.acceptance(before, after, records)
    assert counted is not None
    assert counted.decode_tokens == counted.rounds + counted.accepted == sum(r.output_tokens - 1 for r in records)
    assert sum(counted.per_position) == counted.accepted
    assert len(counted.per_position) == 3
    assert run.engine.foreign_tokens(before, after, records) == 0
    assert not run.engine.restarted(before, after)
    assert run.engine.foreign_tokens(before, after, records[:6]) == sum(r.output_tokens for r in records[6:])


@pytest.mark.parametrize("name", ENGINES)
def test_without_speculation_it_says_so(start: Start, name: str) -> None:
    run = start(name, depth=0)
    before = run.evidence()
    assert (run.engine.effective(before).depth, run.engine.effective(before).speculating) == (0, False)
    records = run.load(2, 4)
    counted = run.engine.acceptance(before, run.evidence(ready=False), records)
    assert counted is not None
    assert (counted.acceptance_length, counted.drafted) == (1.0, 0)


def test_sglang_tells_each_requests_speculation(start: Start) -> None:
    run = start("sglang")
    for record in run.load(2, 4):
        assert record.rounds + record.accepted + 1 == record.output_tokens == 40
        assert record.drafted == 3 * record.rounds
        assert sum(i * n for i, n in enumerate(record.histogram)) == record.accepted


class Death(NamedTuple):
    """A fault that ends the server, and what each engine makes of it; `loaded` = under load."""

    kind: FaultKind
    sglang: Failure
    vllm: Failure
    trtllm: Failure
    loaded: bool = True


DEATHS = (
    Death(FaultKind.OOM_AT_START, Failure.NO_KV_ROOM, Failure.NO_KV_ROOM, Failure.DEVICE_OOM_START, loaded=False),
    Death(FaultKind.OOM_AT_KV, *[Failure.DEVICE_OOM_KV] * 3, loaded=False),
    Death(FaultKind.OOM_AT_GRAPHS, *[Failure.DEVICE_OOM_GRAPH] * 3, loaded=False),
    Death(FaultKind.OOM_UNDER_LOAD, *[Failure.DEVICE_OOM_LOAD] * 3),
    Death(FaultKind.KILLED_UNDER_LOAD, *[Failure.KILLED] * 3),
    Death(FaultKind.CRASH, *[Failure.CRASHED] * 3),
    Death(FaultKind.WATCHDOG, *[Failure.WATCHDOG] * 3),
    Death(FaultKind.CHILD_KILLED, Failure.KILLED, Failure.ENGINE_DEAD, Failure.CRASHED),
)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("death", DEATHS, ids=lambda d: str(d.kind))
def test_why_it_ended(start: Start, name: str, death: Death) -> None:
    run = start(name, Fault(kind=death.kind, above_running=2))
    if death.loaded:
        assert run.evidence().exit is None
        records = run.load(4, 8)
        assert any(r.error for r in records)
    exit = run.ended()
    by_hand = {"sglang": (None, 9), "vllm": (0 if death.loaded else 1, None), "trtllm": (1, None)}[name]
    assert (exit.code, exit.signal) == ((None, 9) if death.kind is FaultKind.KILLED_UNDER_LOAD else by_hand)
    diagnosis = run.engine.diagnose(run.evidence())
    assert diagnosis.failure is getattr(death, name)
    assert diagnosis.reason
    assert diagnosis.remedy


@pytest.mark.parametrize("name", ENGINES)
def test_a_server_that_hangs_is_healthy_and_does_not_generate(start: Start, name: str) -> None:
    run = start(name, Fault(kind=FaultKind.HANG, after_tokens=0))
    evidence = run.evidence(timeout_s=0.3)
    assert evidence.replies["health"].ok
    assert run.engine.diagnose(evidence).failure is Failure.NOT_GENERATING


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("depth", [0, 1])
def test_another_depth_than_asked_is_seen(start: Start, name: str, depth: int) -> None:
    run = start(name, Fault(kind=FaultKind.WRONG_DEPTH, depth=depth))
    assert run.engine.effective(run.evidence()).depth == depth


@pytest.mark.parametrize("name", ["sglang", "vllm"])
def test_a_drafter_that_never_finds_anything(start: Start, name: str) -> None:
    run = start(name, Fault(kind=FaultKind.NO_DRAFTS))
    before = run.evidence()
    records = run.load(2, 4)
    counted = run.engine.acceptance(before, run.evidence(ready=False), records)
    assert counted is not None
    assert (counted.acceptance_length, counted.accepted) == (1.0, 0)


def test_sglang_runs_fewer_requests_than_asked_and_says_why(start: Start) -> None:
    run = start("sglang", Fault(kind=FaultKind.CUT_RUNNING, above_running=48), running=64)
    evidence = run.evidence()
    assert run.engine.effective(evidence).max_running == 48
    assert run.engine.diagnose(evidence).failure is Failure.KV_STARVED


def test_sglang_retracts_requests_and_lives(start: Start) -> None:
    run = start("sglang", Fault(kind=FaultKind.RETRACTIONS))
    assert [r.error for r in run.load(4, 8)] == [""] * 8
    evidence = run.evidence()
    assert evidence.exit is None
    assert run.engine.diagnose(evidence).failure is Failure.KV_STARVED


@pytest.mark.parametrize("name", ENGINES)
def test_a_taken_port(start: Start, name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        run = start(name, port=other.getsockname()[1])
        assert run.ended().code == 1
    loaded = {"sglang": "max_total_num_tokens", "vllm": "KV cache size", "trtllm": "paged KV cache"}[name]
    assert (loaded in run.log) == (name == "sglang")
    assert run.engine.diagnose(run.evidence()).failure is Failure.PORT_IN_USE


@pytest.mark.parametrize("name", ENGINES)
def test_a_flag_that_it_does_not_know(start: Start, name: str) -> None:
    run = start(name, more=("--bogus", "1"))
    assert run.ended().code == 2
    assert run.engine.diagnose(run.evidence()).failure is Failure.BAD_FLAG


@pytest.mark.parametrize("name", ENGINES)
def test_a_restart_is_seen(start: Start, name: str) -> None:
    run = start(name, Fault(kind=FaultKind.RESTART, after_tokens=60))
    before = run.evidence()
    run.load(1, 1)
    middle = run.evidence(ready=False)
    run.load(1, 2)
    run.until_up_again()
    assert not run.engine.restarted(before, middle)
    assert run.engine.restarted(middle, run.evidence(ready=False))
