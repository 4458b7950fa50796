"""Who ran and who waited, and acceptance of several workloads side by side."""

from __future__ import annotations

import msgspec
from support_analysis import campaign, d, goal, history, problem
from support_analysis import trial as trial_of

from leadline.evidence import Acceptance, Effective
from leadline.goal import Cell, Problem
from leadline.report import html, model, text
from leadline.report.model import Meta, Report, ServerKind
from leadline.report.traffic import by_workload, waiting
from leadline.trial import History, Trial

GREEDY, CODING, CROWD = Cell("greedy", 4), Cell("coding", 4), Cell("greedy", 64)


def asked(*cells: Cell) -> Problem:
    return problem(goal(weights=dict.fromkeys(cells, 1.0)))


def report(of: Problem, seen: History) -> Report:
    return model.build(of, seen, None, Meta(campaign="c", engine="sglang", server=ServerKind.REAL))


def accepted(rounds: int, tokens: int) -> Acceptance:
    return Acceptance(
        decode_tokens=tokens, rounds=rounds, drafting_rounds=rounds, drafted=4 * rounds, accepted=tokens - rounds
    )


def launch(cells: dict[Cell, dict[str, object]], *, room: int | None = None, depth: int = 4, round_: int = 1) -> Trial:
    """One launch with its own changes in each cell."""
    made = trial_of(0, d(depth), dict.fromkeys(cells, 100.0), round=round_, effective=Effective(max_running=room))
    singles = (trial_of(0, d(depth), {c: 100.0}, changes=changes).measurements[0] for c, changes in cells.items())
    return msgspec.structs.replace(made, measurements=tuple(singles))


def busy(running: float, waiting_: float) -> dict[str, object]:
    return {"values": {"running_requests_max": running, "waiting_requests_max": waiting_}}


def test_who_ran_and_waited_is_the_most_over_all_launches() -> None:
    of = asked(CROWD)
    rows = waiting(
        report(of, history(launch({CROWD: busy(11, 52)}, room=12), launch({CROWD: busy(12, 50)}, room=12, round_=2)))
    )
    assert rows is not None
    assert rows.rows == (("depth=4", "greedy@64", "64", "12", "52"),)


def test_a_moment_of_waiting_is_not_shown_where_there_is_room_for_all() -> None:
    of = asked(GREEDY)
    assert waiting(report(of, history(launch({GREEDY: busy(2, 2)}, room=12)))) is None
    assert waiting(report(of, history(launch({GREEDY: busy(2, 2)}, room=2)))) is not None
    assert waiting(report(of, history(launch({GREEDY: busy(2, 2)})))) is not None


def test_nobody_waits_where_nobody_asked() -> None:
    assert waiting(report(problem(), campaign({d(4): {Cell("chat", 1): 1.0}}))) is None


def test_workloads_stand_side_by_side_with_their_ratio_the_most_accepted_first() -> None:
    of = asked(GREEDY, CODING)
    seen = history(
        launch({GREEDY: {"acceptance": accepted(100, 480)}, CODING: {"acceptance": accepted(100, 400)}}),
        launch({GREEDY: {"acceptance": accepted(100, 300)}, CODING: {"acceptance": accepted(100, 240)}}, depth=2),
    )
    shown = report(of, seen)
    table = by_workload(shown)
    assert table is not None
    assert [c.title for c in table.columns] == ["setting", "users", "greedy", "coding", "ratio"]
    assert table.rows == (("depth=2", "4", "3.00", "2.40", "1.25"), ("depth=4", "4", "4.80", "4.00", "1.20"))
    for page in (text.render(shown, brief=True), html.render(shown)):
        assert "By workload" in page
        assert "1.25" in page


def test_workloads_that_never_met_are_not_compared() -> None:
    of = asked(CODING, CROWD)
    seen = history(
        launch({CODING: {"acceptance": accepted(100, 400)}, CROWD: {"acceptance": accepted(100, 480)}}),
    )
    assert by_workload(report(of, seen)) is None


def test_a_workload_without_counts_leaves_a_dash_or_no_row() -> None:
    third = Cell("chat", 4)
    of = asked(GREEDY, CODING, third)
    seen = history(
        launch({GREEDY: {"acceptance": accepted(10, 48)}, CODING: {"acceptance": accepted(10, 40)}, third: {}}),
        launch({GREEDY: {"acceptance": accepted(10, 30)}, CODING: {}, third: {}}, depth=2),
    )
    table = by_workload(report(of, seen))
    assert table is not None
    assert table.rows == (("depth=4", "4", "4.80", "4.00", "1.20"),)
