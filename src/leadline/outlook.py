"""What a campaign would do, as a value: each setting's exact difference, launches, time, and the way back.

Pure but for the clock's reading: changes nothing. `run` executes the very launches that are shown here.
"""

from __future__ import annotations

import difflib
import random
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from leadline.errors import InputError
from leadline.evidence import Footprint
from leadline.goal import Problem
from leadline.launch import LaunchSpec, Put, Step, masked
from leadline.masking import masked_text
from leadline.ports import Done, Strategy
from leadline.space import Setting
from leadline.trial import History, Proposal, Trial, TrialState

PREVIEW = 10_000  # launches; a strategy that never ends must not hang a plan


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One setting: the launch it becomes (secrets masked), the words it removes from and adds to today's, and why the
    engine refuses it ("" = it does not). `files` = for each file that is written for it the lines by which it differs
    from today's, "+" or "-" before each. `memory` = what it is foreseen to take; None = not looked at, or not known.
    `steps` = each Step that puts it in force on a service, and the text of the files that these write."""

    setting: Setting
    incumbent: bool
    launches: int
    launch: str = ""
    removed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    refused: str = ""
    files: dict[str, tuple[str, ...]] = {}
    memory: Footprint | None = None
    steps: tuple[str, ...] = ()


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """`minutes` = estimate for all launches to come, None before a load was timed; `based_on` says what it rests on.
    `in_the_way` = who listens where a trial would, so that `run` refuses; "" = nobody.
    `memory_unknown` = what is wrong with the facts that a memory law needs; "" = nothing is. `guarding` and `back` =
    the Steps that set the guard of a service before the first launch, and those of the way back."""

    today: str
    settings: tuple[Difference, ...]
    launches: int
    minutes: float | None
    based_on: str
    guard: str
    cells: tuple[str, ...]
    in_the_way: str = ""
    memory_unknown: str = ""
    guarding: tuple[str, ...] = ()
    back: tuple[str, ...] = ()


def difference(before: LaunchSpec, after: LaunchSpec) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Words (and NAME=value) that the second launch lacks, and those that it adds; values stay with their flags."""
    old, new = _units(before), _units(after)
    removed: list[str] = []
    added: list[str] = []
    for op, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if op != "equal":
            removed += old[a:b]
            added += new[c:d]
    return tuple(removed), tuple(added)


def rewritten(before: LaunchSpec, after: LaunchSpec) -> dict[str, tuple[str, ...]]:
    """For each file that the second launch writes, the lines that differ from the first's file that is most like it."""
    old = [f.content.splitlines() for f in masked(before).files]
    out = {}
    for file in masked(after).ours:
        new = file.content.splitlines()
        like = max(old, key=lambda lines: difflib.SequenceMatcher(None, lines, new).ratio(), default=[])
        changes = difflib.ndiff(like, new)
        out[file.path] = tuple(line for line in changes if line.startswith(("+ ", "- ")))
    return out


def _units(launch: LaunchSpec) -> list[str]:
    """Environment and words, a flag and its value as one unit."""
    shown = masked(launch)
    units = [f"{k}={v}" for k, v in shown.env]
    for word in shown.argv:
        follows_flag = bool(units) and units[-1].startswith("-") and " " not in units[-1]
        if follows_flag and not word.startswith("--") and not (word.startswith("-") and not _number(word)):
            units[-1] += f" {word}"
        else:
            units.append(word)
    return units


def _number(word: str) -> bool:
    return word.lstrip("-").replace(".", "", 1).isdigit()


def preview(strategy: Strategy, problem: Problem, history: History, most: int | None = None) -> list[Proposal]:
    """What the strategy would still ask for if every trial went well: the same pure function that `run` obeys.

    At most `most` proposals, those that come first.
    """
    coming: list[Proposal] = []
    most = PREVIEW if most is None else most
    trials = [msgspec.structs.replace(t, state=TrialState.COMPLETE) if t.live else t for t in history.trials]
    while len(coming) < most:
        now = msgspec.structs.replace(history, trials=tuple(trials))
        answer = strategy.propose(problem, now, 1, random.Random(problem.seed))
        if isinstance(answer, Done) or not answer:
            break
        coming.append(answer[0])
        trials.append(Trial(id=len(trials) + 1, proposal=answer[0], state=TrialState.COMPLETE))
    return coming


def look_ahead(
    *,
    problem: Problem,
    strategy: Strategy,
    history: History,
    render: Callable[[Setting], LaunchSpec],
    base: LaunchSpec,
    guard: str,
    trial_s: float | None,
    based_on: str,
    most: int | None = None,
    in_the_way: str = "",
    steps: Callable[[LaunchSpec], Sequence[Step]] = lambda launch: (),
) -> Outlook:
    """What is still to come. `trial_s` = seconds of one launch, None when nothing was timed yet; `most` = launches that
    the budget still allows, None = it does not say."""
    coming = preview(strategy, problem, history, most)
    counts = Counter(p.setting for p in coming)
    ordered = sorted(counts, key=lambda s: (s != problem.incumbent, s.depth, str(s)))
    settings = tuple(_difference(s, counts[s], problem.incumbent, render, base, steps) for s in ordered)
    settings += tuple(
        Difference(setting=r.setting, incumbent=False, launches=0, refused=r.reason) for r in problem.refused
    )
    return Outlook(
        today=str(masked(base)),
        settings=settings,
        launches=len(coming),
        minutes=None if trial_s is None else len(coming) * trial_s / 60,
        based_on=based_on,
        guard=guard,
        cells=tuple(str(c) for c in problem.cells()),
        in_the_way=in_the_way,
    )


def shown(steps: Sequence[Step]) -> tuple[str, ...]:
    """Each Step on a line, and under it the file that it writes, secrets masked."""
    lines: list[str] = []
    for step in steps:
        lines.append(str(step))
        if isinstance(step, Put):
            lines += [f"        | {line}" for line in masked_text(step.content).splitlines()]
    return tuple(lines)


def _difference(
    setting: Setting,
    launches: int,
    incumbent: Setting,
    render: Callable[[Setting], LaunchSpec],
    base: LaunchSpec,
    steps: Callable[[LaunchSpec], Sequence[Step]],
) -> Difference:
    is_today = setting == incumbent
    try:
        launch = render(setting)
        todo = shown(steps(launch))
    except InputError as error:
        return Difference(setting=setting, incumbent=is_today, launches=launches, refused=str(error))
    removed, added = difference(base, launch)
    return Difference(
        setting=setting,
        incumbent=is_today,
        launches=launches,
        launch=str(masked(launch)),
        removed=removed,
        added=added,
        files=rewritten(base, launch),
        steps=todo,
    )
