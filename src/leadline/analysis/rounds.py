"""Who is launched when, for strategies that launch every setting of a roster equally often.

A *slot* is a setting in a round; it wants one COMPLETE trial. Rounds 1..R (`budget.rounds`) hold the whole roster, each
in an order of its own that depends on the seed alone, so that drift of the machine falls on no setting in particular.

- INTERRUPTED: asked again, in the same round. FAILED: asked again once; a setting that failed twice and never ran is
  given up, but not the incumbent, without which nothing can be compared. INFEASIBLE: never again, in no round.
- Queued by hand: takes part in every round that is still open (some setting of the roster is not done in it), at a
  place drawn for it, or next when that place is past. For the rounds that it came too late for it gets rounds of its
  own, each a pair with one more launch of the incumbent, so that both are measured close in time. Their order
  alternates; the queued setting goes first in the first one, so that nothing is wasted when it does not run.

`History.queued` must only ever grow at its end: a setting's place in it numbers its own rounds.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence

from leadline.goal import Problem
from leadline.ports import Done
from leadline.space import Setting
from leadline.trial import History, Proposal, Purpose, TrialState

ATTEMPTS = 2
Slot = tuple[int, Setting]


def fixed(problem: Problem) -> tuple[Setting, ...]:
    """What every campaign launches: the incumbent, and speculation off."""
    baseline = problem.baseline()
    runs = baseline is not None and all(r.setting != baseline for r in problem.refused)
    return tuple(dict.fromkeys((problem.incumbent, *((baseline,) if baseline is not None and runs else ()))))


def propose(
    problem: Problem, history: History, roster: Sequence[Setting], n: int, rng: random.Random
) -> Sequence[Proposal] | Done:
    """The next `n` slots that are due. None is due while the last ones are live: an empty list, not Done."""
    ledger = _Ledger(history, problem.incumbent)
    due = [slot for slot in _slots(problem, history, roster, ledger, rng) if ledger.due(slot)]
    if due:
        return [_proposal(problem, roster, slot, ledger) for slot in due[:n]]
    return [] if ledger.live else Done(reason=_summary(problem, ledger))


class _Ledger:
    """What became of each slot so far."""

    def __init__(self, history: History, incumbent: Setting) -> None:
        self.infeasible = set(history.infeasible())
        self.live: set[Slot] = set()
        self.tries: dict[Slot, list[TrialState]] = {}
        for trial in history.trials:
            slot = (trial.proposal.round, trial.setting)
            self.tries.setdefault(slot, []).append(trial.state)
            if trial.live:
                self.live.add(slot)
        ran = {t.setting for t in history.complete()}
        failed = Counter(t.setting for t in history.trials if t.state is TrialState.FAILED)
        self.hopeless = {s for s, n in failed.items() if n >= ATTEMPTS and s not in ran | {incumbent}}

    def settled(self, slot: Slot) -> bool:
        """Nothing more will come of it."""
        states = self.tries.get(slot, [])
        failed = states.count(TrialState.FAILED) >= ATTEMPTS
        return slot[1] in self.infeasible | self.hopeless or TrialState.COMPLETE in states or failed

    def due(self, slot: Slot) -> bool:
        return slot not in self.live and not self.settled(slot)

    def given_up(self) -> set[Setting]:
        return {
            s for (r, s), states in self.tries.items() if TrialState.COMPLETE not in states and self.settled((r, s))
        }


def _slots(
    problem: Problem, history: History, roster: Sequence[Setting], ledger: _Ledger, rng: random.Random
) -> Iterator[Slot]:
    """All slots in order, settled ones included."""
    rounds = range(1, problem.budget.rounds + 1)
    orders = {r: _order(problem, roster, r, rng) for r in rounds}
    is_open = {r: any(not ledger.settled((r, s)) for s in roster) for r in rounds}
    own: list[Slot] = []
    for place, setting in enumerate(history.queued):
        if setting in roster:
            continue
        draws = {r: rng.random() for r in rounds}
        joined = [r for r in rounds if is_open[r] or (r, setting) in ledger.tries]
        for r in joined:
            orders[r].insert(_before_last(draws[r], len(orders[r])), setting)
        first = len(rounds) * (place + 1)
        own.extend(_pairs(problem.incumbent, setting, first, len(rounds) - len(joined), ledger))
    for r in rounds:
        yield from ((r, s) for s in orders[r])
    yield from own


def _order(problem: Problem, roster: Sequence[Setting], number: int, rng: random.Random) -> list[Setting]:
    """Shuffled; the incumbent first in round 1, since everything else is told relative to it."""
    order = list(roster)
    rng.shuffle(order)
    if number == 1:
        order.sort(key=lambda s: s != problem.incumbent)
    return order


def _before_last(draw: float, length: int) -> int:
    """A place after the first and before the last of an order; the round stays open until the last has run."""
    return 1 + int(draw * (length - 1))


def _pairs(incumbent: Setting, setting: Setting, after: int, count: int, ledger: _Ledger) -> Iterator[Slot]:
    """Rounds of a setting's own, with the incumbent. No partner is launched for one that will not run."""
    for i in range(1, count + 1):
        slot = (after + i, setting)
        lost = ledger.settled(slot) and TrialState.COMPLETE not in ledger.tries.get(slot, [])
        partner = () if lost else ((after + i, incumbent),)
        yield from (slot, *partner) if i % 2 else (*partner, slot)


def _proposal(problem: Problem, roster: Sequence[Setting], slot: Slot, ledger: _Ledger) -> Proposal:
    number, setting = slot
    purpose, reason = _why(problem, roster, slot)
    states = ledger.tries.get(slot)
    if states:
        reason += f" Asked again: the last launch was {states[-1]}."
    return Proposal(setting=setting, purpose=purpose, cells=problem.cells(), round=number, reason=reason)


def _why(problem: Problem, roster: Sequence[Setting], slot: Slot) -> tuple[Purpose, str]:
    number, setting = slot
    rounds = problem.budget.rounds
    if setting == problem.incumbent:
        if number > rounds:
            return Purpose.INCUMBENT, "The setting in force today, once more, beside a setting queued by hand."
        return Purpose.INCUMBENT, "The setting in force today: everything is compared with it."
    if setting not in roster:
        return Purpose.MANUAL, "Queued by hand."
    if setting == problem.baseline():
        return Purpose.BASELINE, "Speculation off: what it is worth at all."
    if number > 1:
        return Purpose.CONFIRM, f"Launch {number} of {rounds}: one launch alone cannot tell a difference from noise."
    return Purpose.PROBE, f"One of {len(roster)} settings to compare."


def _summary(problem: Problem, ledger: _Ledger) -> str:
    rounds = problem.budget.rounds
    lost = ledger.given_up()
    reason = f"every setting has been launched in {rounds} round{'s' * (rounds > 1)}"
    return reason + (f", but for {', '.join(sorted(map(str, lost)))}" if lost else "")
