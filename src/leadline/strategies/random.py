"""A seeded sample of the space, with the incumbent and speculation off, in shuffled rounds."""

from __future__ import annotations

import random
from collections.abc import Sequence

from leadline.analysis import rounds
from leadline.goal import Problem
from leadline.ports import Done
from leadline.space import Setting
from leadline.trial import History, Proposal


class Random:
    """For spaces too large for a grid: as many settings as `budget.max_launches` pays for, in all rounds.

    Without that limit it is the whole space. The incumbent and speculation off are always among them.
    """

    name = "random"

    def propose(self, problem: Problem, history: History, n: int, rng: random.Random) -> Sequence[Proposal] | Done:
        return rounds.propose(problem, history, _roster(problem, rng), n, rng)


def _roster(problem: Problem, rng: random.Random) -> tuple[Setting, ...]:
    always = rounds.fixed(problem)
    others = [s for s in problem.settings() if s not in always]
    most = problem.budget.max_launches
    if most is None:
        return (*always, *others)
    affordable = max(0, most // problem.budget.rounds - len(always))
    return (*always, *rng.sample(others, min(affordable, len(others))))


strategy = Random()
