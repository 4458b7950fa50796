"""What really runs against what was asked."""

import pytest

from leadline.evidence import Effective, Failure
from leadline.space import Setting
from leadline.verdict import AGAIN, DIED, NOT_ITS_FAULT, differences

ASKED = Setting.of(depth=3, topk=1, draft_tokens=4, max_running=64)
RUNS = Effective(depth=3, topk=1, draft_tokens=4, max_running=64, speculating=True, graphs=True, moe_tuned=True)


def test_what_was_asked_runs() -> None:
    assert differences(ASKED, RUNS) == (None, ())


def test_unknown_is_no_difference() -> None:
    assert differences(ASKED, Effective()) == (None, ())


@pytest.mark.parametrize(
    ("runs", "failure"),
    [
        (Effective(depth=2), Failure.WRONG_DEPTH),
        (Effective(depth=3, topk=4), Failure.WRONG_DEPTH),
        (Effective(depth=3, draft_tokens=8), Failure.WRONG_DEPTH),
        (Effective(speculating=False), Failure.NO_SPECULATION),
    ],
)
def test_another_tree_is_never_this_setting(runs: Effective, failure: Failure) -> None:
    wrong, _ = differences(ASKED, runs)
    assert wrong is not None
    assert wrong.failure is failure


def test_speculation_that_runs_unasked() -> None:
    wrong, _ = differences(Setting.of(depth=0), Effective(speculating=True))
    assert wrong is not None
    assert wrong.failure is Failure.WRONG_DEPTH


def test_a_cap_that_memory_cuts_is_a_finding() -> None:
    wrong, findings = differences(ASKED, Effective(depth=3, max_running=48))
    assert wrong is None
    assert [(f.code, f.size) for f in findings] == [("max_running_cut", "-16 requests")]
    assert "asked for max_running 64, the server runs 48" in findings[0].message


@pytest.mark.parametrize(
    ("runs", "users", "codes"),
    [
        (Effective(graphs=True, graph_max_batch=256), 264, ["outside_graphs"]),
        (Effective(graphs=True, graph_max_batch=256), 256, []),
        (Effective(graph_max_batch=256, max_running=128), 264, []),  # never more than 128 at once
        (Effective(graphs=False, graph_max_batch=256), 264, ["no_graphs"]),
        (Effective(graphs=True), 264, []),
    ],
)
def test_a_batch_beyond_the_captured_graphs_is_a_finding(runs: Effective, users: int, codes: list[str]) -> None:
    assert [f.code for f in differences(Setting.of(depth=1), runs, users)[1]] == codes


def test_decode_without_graphs_and_untuned_experts_are_findings() -> None:
    _, findings = differences(ASKED, Effective(graphs=False, moe_tuned=False))
    assert [f.code for f in findings] == ["no_graphs", "moe_default_config"]


@pytest.mark.parametrize("failure", Failure)
def test_whose_fault_each_failure_is(failure: Failure) -> None:
    """What others did, or what no setting can help, pauses the campaign; all else counts against the setting."""
    theirs = {
        Failure.DEVICE_BUSY, Failure.TAKEN_BACK, Failure.CHANGED, Failure.NOT_EXECUTED, Failure.START_LIMIT,
        Failure.STOP_TIMEOUT, Failure.LEFTOVERS,
    }  # fmt: skip
    its_own = {Failure.START_TIMEOUT, Failure.RESTART_LOOP, Failure.HOST_OOM, Failure.KILLED, Failure.WATCHDOG}
    assert failure not in theirs or failure in NOT_ITS_FAULT - AGAIN
    assert failure not in its_own or failure not in NOT_ITS_FAULT
    assert failure not in DIED or failure not in NOT_ITS_FAULT
