"""The laws of ports.Strategy as checks that any strategy, ours or a third party's, can be put through.

A law takes `make`, which builds a fresh strategy. It raises AssertionError in words when the strategy breaks it, and
lets through what the strategy raises. Needs no test framework:

    @pytest.mark.parametrize("law", LAWS)
    def test_obeys(law):
        LAWS[law](MyStrategy)
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from leadline.goal import Budget, Cell, Goal, Problem, Weight
from leadline.ports import Done, Strategy
from leadline.space import Knob, Setting, Space
from leadline.trial import History, Proposal, Trial, TrialState

Make = Callable[[], Strategy]
Outcome = Callable[[Proposal, int], TrialState]
"""How the n-th launch (from 1) of a proposal's setting and round ends."""

MOST = 300
PROBLEM = Problem(
    space=Space(knobs=(Knob(name="depth", values=(0, 2, 4, 6)), Knob(name="max_running", values=(8, 16)))),
    incumbent=Setting.of(depth=3, max_running=8),
    goals=(
        Goal(name="alone", weights=(Weight(Cell("chat", 1), 1.0),)),
        Goal(name="busy", weights=(Weight(Cell("chat", 8), 2.0), Weight(Cell("code", 1), 1.0))),
    ),
    budget=Budget(rounds=2),
    seed=7,
)
BY_HAND = Setting.of(depth=10, max_running=8)


def _must(condition: object, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def ask(strategy: Strategy, history: History, n: int = 1, problem: Problem = PROBLEM) -> Sequence[Proposal] | Done:
    """As a campaign asks: with an rng that is freshly seeded every time."""
    return strategy.propose(problem, history, n, random.Random(problem.seed))


def grown(history: History, proposal: Proposal, state: TrialState) -> History:
    """The history with one more trial."""
    trial = Trial(id=len(history.trials) + 1, proposal=proposal, state=state)
    return msgspec.structs.replace(history, trials=(*history.trials, trial))


def well(proposal: Proposal, launch: int) -> TrialState:
    return TrialState.COMPLETE


def steps(strategy: Strategy, outcome: Outcome = well, *, queue_after: int | None = None) -> Iterator[History]:
    """A whole campaign, one launch at a time: the empty history, then the history after each launch.

    `queue_after` = launches after which BY_HAND is queued; past the last one, it is queued when the strategy is done.
    """
    now = History()
    yield now
    for _ in range(MOST):
        if queue_after is not None and len(now.trials) >= queue_after:
            now = msgspec.structs.replace(now, queued=(BY_HAND,))
        answer = ask(strategy, now)
        if isinstance(answer, Done):
            if queue_after is None or now.queued:
                return
            queue_after = 0
            continue
        _must(answer, "no trial is live: a strategy must propose something or be Done")
        slot = (answer[0].round, answer[0].setting)
        launch = 1 + sum((t.proposal.round, t.setting) == slot for t in now.trials)
        now = grown(now, answer[0], outcome(answer[0], launch))
        yield now
    raise AssertionError(f"it does not end: {MOST} launches for {len(PROBLEM.space.settings())} settings in the space")


def drive(strategy: Strategy, outcome: Outcome = well, *, queue_after: int | None = None) -> History:
    """The last of `steps`."""
    return list(steps(strategy, outcome, queue_after=queue_after))[-1]


def is_pure(make: Make) -> None:
    """The same arguments give the same answer: whatever it was asked before, by whichever instance."""
    used = make()
    asked = list(steps(used))
    before = random.getstate()
    for history in asked:
        first, again, fresh = ask(used, history, 3), ask(used, history, 3), ask(make(), history, 3)
        _must(first == again == fresh, f"another answer to the same question, after {len(history.trials)} trials")
    _must(random.getstate() == before, "it draws from the global random numbers instead of the rng that it is given")


def proposes_what_is_allowed(make: Make) -> None:
    """Settings of the space, the incumbent, the baseline, or queued by hand; cells of the problem; with a reason."""
    allowed = {*PROBLEM.space.settings(), PROBLEM.incumbent, PROBLEM.baseline()}
    for queue_after in (None, 3):
        for history in steps(make(), queue_after=queue_after):
            for trial in history.trials[-1:]:
                _proposal_is_allowed(trial.proposal, {*allowed, *history.queued})


def _proposal_is_allowed(proposal: Proposal, allowed: set[Setting | None]) -> None:
    _must(proposal.setting in allowed, f"{proposal.setting} is neither in the space nor queued")
    _must(proposal.cells, f"{proposal.setting}: no cell to measure")
    _must(set(proposal.cells) <= set(PROBLEM.cells()), f"{proposal.setting}: cells that no goal needs")
    _must(proposal.reason, f"{proposal.setting}: no reason")
    _must(proposal.round >= 1, f"{proposal.setting}: rounds are counted from 1")


def proposes_no_more_than_asked(make: Make) -> None:
    for n in (1, 2, 5, 100):
        answer = ask(make(), History(), n)
        count = 0 if isinstance(answer, Done) else len(answer)
        _must(1 <= count <= n, f"{count} proposals when asked for {n}")


def includes_incumbent_and_baseline(make: Make) -> None:
    """Also when everything else fails."""
    everything = drive(make()).settings()
    only = {PROBLEM.incumbent, PROBLEM.baseline()}

    def outcome(proposal: Proposal, launch: int) -> TrialState:
        return TrialState.COMPLETE if proposal.setting in only else TrialState.INFEASIBLE

    for settings in (everything, drive(make(), outcome).settings()):
        _must(PROBLEM.incumbent in settings, "the incumbent was never launched")
        _must(any(s.depth == 0 for s in settings), "depth 0 was never launched")


def never_repeats_an_infeasible_setting(make: Make) -> None:
    def outcome(proposal: Proposal, launch: int) -> TrialState:
        return TrialState.INFEASIBLE if proposal.setting.depth >= 4 else TrialState.COMPLETE

    for trials in (h.trials for h in steps(make(), outcome, queue_after=1)):
        if trials:
            bad = {t.setting for t in trials[:-1] if t.state is TrialState.INFEASIBLE}
            _must(trials[-1].setting not in bad, f"{trials[-1].setting} will not run, and was launched again")


def repeats_what_was_interrupted(make: Make) -> None:
    """In the same round, so that its pair stays a pair; nothing is missing at the end."""

    def outcome(proposal: Proposal, launch: int) -> TrialState:
        return TrialState.INTERRUPTED if launch == 1 else TrialState.COMPLETE

    undisturbed = drive(make())
    disturbed = drive(make(), outcome)
    lost = {(str(t.setting), t.proposal.round) for t in undisturbed.trials} - {
        (str(t.setting), t.proposal.round) for t in disturbed.complete()
    }
    _must(not lost, f"interrupted and never asked again: {sorted(lost)}")


def ends(make: Make) -> None:
    """Whatever happens to the launches, as long as interruptions end."""

    def rough(proposal: Proposal, launch: int) -> TrialState:
        states = (TrialState.FAILED, TrialState.INTERRUPTED, TrialState.COMPLETE, TrialState.INFEASIBLE)
        return states[(proposal.setting.depth + proposal.round + launch) % 4] if launch < 4 else TrialState.COMPLETE

    def failing(proposal: Proposal, launch: int) -> TrialState:
        return TrialState.FAILED

    def impossible(proposal: Proposal, launch: int) -> TrialState:
        return TrialState.INFEASIBLE

    for outcome in (well, failing, impossible, rough):
        drive(make(), outcome, queue_after=2)


def knows_what_is_live(make: Make) -> None:
    """A launch in progress is neither proposed again nor taken for done."""
    for history in steps(make()):
        answer = ask(make(), history)
        if isinstance(answer, Done):
            continue
        live = (answer[0].setting, answer[0].round)
        later = ask(make(), grown(history, answer[0], TrialState.MEASURING), 100)
        if isinstance(later, Done):
            raise AssertionError(f"Done while {answer[0].setting} is being measured")
        again = [p for p in later if (p.setting, p.round) == live]
        _must(not again, f"{answer[0].setting} is being measured in round {answer[0].round}, and was proposed again")


def launches_what_is_queued(make: Make) -> None:
    """At any moment, also after Done; in a round in which the incumbent is launched too, so that there is a pair."""
    length = len(drive(make()).trials)
    for queue_after in (0, 1, length // 2, length - 1, length):
        trials = drive(make(), queue_after=queue_after).trials
        by_hand = {t.proposal.round for t in trials if t.setting == BY_HAND}
        _must(by_hand, f"queued by hand after {queue_after} launches, and never launched")
        paired = {t.proposal.round for t in trials if t.setting == PROBLEM.incumbent}
        _must(by_hand <= paired, f"queued by hand after {queue_after} launches: no incumbent in its rounds")


LAWS: Mapping[str, Callable[[Make], None]] = {
    law.__name__: law
    for law in (
        is_pure,
        proposes_what_is_allowed,
        proposes_no_more_than_asked,
        includes_incumbent_and_baseline,
        never_repeats_an_infeasible_setting,
        repeats_what_was_interrupted,
        ends,
        knows_what_is_live,
        launches_what_is_queued,
    )
}
