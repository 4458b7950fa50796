"""What no key can tell alone: sections that contradict each other, names that refer to nothing."""

from __future__ import annotations

from typing import Any

from leadline.config.knobs import check_name
from leadline.config.review import Review, dotted, found, listed, meant
from leadline.config.spec import LoadSpec, WeightSpec
from leadline.config.target_rules import check_target
from leadline.goal import Cell, Goal, Requirement, Weight

Good = dict[str, dict[str, Any]]


def cross_check(review: Review, document: dict[str, Any], good: Good) -> None:
    """`document` tells what was given; `good` holds what could be read, and the rest of it was reported already."""
    check_target(review, _table(document, "service"), _table(document, "scripts"), good)
    _hooks(review, _table(document, "traffic"))
    _knobs(review, _table(document, "safety").get("may_change_output", []), good)
    for name, keys in _table(document, "workloads").items():
        if isinstance(keys, dict):
            _source(review, dotted("workloads", name), [k for k in ("builtin", "file") if k in keys])
    _goals(review, tuple(_table(document, "workloads")), good, _measured(_table(document, "load"), good))


def _table(document: dict[str, Any], name: str) -> dict[str, Any]:
    table = document.get(name)
    return table if isinstance(table, dict) else {}


def _hooks(review: Review, traffic: dict[str, Any]) -> None:
    for given, missing in (("drain", "undrain"), ("undrain", "drain")):
        if given in traffic and missing not in traffic:
            hint = "give both or neither"
            review.wrong(f"traffic.{missing}", "nothing", f"a command, since traffic.{given} is given", hint)


def _knobs(review: Review, may_change_output: object, good: Good) -> None:
    named = may_change_output if isinstance(may_change_output, list) else []
    allowed = named if named is may_change_output else review.names.changes_output
    for i, name in enumerate(named):
        if isinstance(name, str):
            check_name(review, f"safety.may_change_output[{i}]", name, good["service"].get("engine"), found(name))
    for name in good["knobs"]:
        if name in review.names.changes_output and name not in allowed:
            what = "a knob that may change what the model writes"
            hint = f'add "{name}" to safety.may_change_output if that is acceptable'
            review.wrong(dotted("knobs", name), what, "knobs that leave the output as it is", hint)
        if name in good["keep"]:
            what = "a knob that [knobs] tunes"
            review.wrong(dotted("keep", name), what, "knobs that are not tuned", "remove it here or from [knobs]")


def _source(review: Review, at: str, given: list[str]) -> None:
    if len(given) != 1:
        review.wrong(at, " and ".join(given) or "neither builtin nor file", "exactly one of builtin, file")


def _goals(review: Review, workloads: tuple[str, ...], good: Good, measured: set[Cell]) -> None:
    """Every workload that a goal names must be there, and a requirement needs a cell that some goal measures."""
    for goal, keys in good["goals"].items():
        at = dotted("goals", goal)
        for weight in keys.get("weights", ()):
            _workload(review, dotted(f"{at}.weights", _written(weight)), weight.workload, workloads)
        for requirement in keys.get("require", ()):
            _requirement(review, f"{at}.require", requirement, workloads, measured)


def _measured(load: dict[str, Any], good: Good) -> set[Cell]:
    """The cells that the goals weigh; none when a problem hides some of them."""
    goals, points = good["goals"].values(), good["load"].get("concurrency", LoadSpec().concurrency)
    given = load.get("concurrency", points)
    if not isinstance(given, list | tuple) or len(given) != len(points) or any("weights" not in g for g in goals):
        return set()
    return {cell for keys in goals for cell in cells(keys["weights"], points)}


def _requirement(
    review: Review, at: str, requirement: Requirement, workloads: tuple[str, ...], measured: set[Cell]
) -> None:
    cell = requirement.cell
    if cell is None or not _workload(review, at, cell.workload, workloads):
        return
    if measured and cell not in measured:
        ordered = sorted(measured, key=lambda c: (c.workload, c.concurrency))
        review.wrong(at, f"{cell}, which no goal gives a weight", f"a cell with a weight: {listed(map(str, ordered))}")


def _workload(review: Review, at: str, name: str, workloads: tuple[str, ...]) -> bool:
    """Whether there is such a workload. Without any, that alone was reported."""
    if name in workloads or not workloads:
        return bool(workloads)
    hint = f"add [workloads.{name}]" if name in review.names.workloads else meant(name, workloads)
    review.wrong(at, f"the workload {name}", f"one of [workloads]: {listed(workloads)}", hint)
    return False


def _written(weight: WeightSpec) -> str:
    return weight.workload if weight.concurrency is None else f"{weight.workload}@{weight.concurrency}"


def cells(weights: tuple[WeightSpec, ...], concurrency: tuple[int, ...]) -> dict[Cell, float]:
    """Weight of each cell: one without concurrency is spread evenly over [load]; those of the same cell add up."""
    total: dict[Cell, float] = {}
    for w in weights:
        points = concurrency if w.concurrency is None else (w.concurrency,)
        for point in points:
            cell = Cell(w.workload, point)
            total[cell] = total.get(cell, 0.0) + w.weight / len(points)
    return total


def goal_of(name: str, keys: dict[str, Any], concurrency: tuple[int, ...]) -> Goal:
    """The Goal that a section [goals.NAME] without problems means."""
    weights = tuple(Weight(cell, weight) for cell, weight in cells(keys["weights"], concurrency).items())
    rest = {"objective": keys["objective"]} if "objective" in keys else {}
    return Goal(name=name, weights=weights, requirements=keys.get("require", ()), **rest)
