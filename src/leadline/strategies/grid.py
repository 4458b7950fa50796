"""Every setting of the space, with the incumbent and speculation off, in shuffled rounds."""

from __future__ import annotations

import random
from collections.abc import Sequence

from leadline.analysis import rounds
from leadline.goal import Problem
from leadline.ports import Done
from leadline.trial import History, Proposal


class Grid:
    """Right for a handful of settings: it misses nothing, and pays for all of them."""

    name = "grid"

    def propose(self, problem: Problem, history: History, n: int, rng: random.Random) -> Sequence[Proposal] | Done:
        roster = dict.fromkeys((*rounds.fixed(problem), *problem.settings()))
        return rounds.propose(problem, history, tuple(roster), n, rng)


strategy = Grid()
