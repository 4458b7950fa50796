"""Live progress of a campaign on standard error: the journal's events as lines, and on a terminal what happens now.

Only shows; decides nothing. Without a terminal every line stands for itself, and nothing is overwritten.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import click

from leadline.cli.common import let_go
from leadline.journal.events import (
    AnyEvent,
    Decided,
    DeployFinished,
    DeployStarted,
    Measured,
    MeasureStarted,
    SessionClosed,
    SessionOpened,
    TrialEnded,
    TrialPlanned,
    Voided,
)
from leadline.trial import TrialState

if TYPE_CHECKING:
    from leadline.journal.ledger import Ledger


STDERR = 2


class Screen(Protocol):
    def line(self, text: str) -> None:
        """A line that stays."""

    def now(self, text: str) -> None:
        """What happens at the moment; the next call replaces it."""

    def close(self) -> None: ...


class Plain:
    """For pipes and log files: lines only."""

    def line(self, text: str) -> None:
        click.echo(text, err=True)

    def now(self, text: str) -> None:
        pass

    def close(self) -> None:
        pass


class Terminal:
    """Lines above, a spinner with the present moment below."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(stderr=True, highlight=False)
        self._status = self._console.status("starting")
        self._status.start()

    def line(self, text: str) -> None:
        self._console.print(text, markup=False)

    def now(self, text: str) -> None:
        from rich.text import Text

        self._status.update(Text(text))

    def close(self) -> None:
        self._status.stop()


class Lasting:
    """A screen that nobody may be left to see (a closed terminal, a pipe without a reader): it goes dark, no more."""

    def __init__(self, show: Screen) -> None:
        self._show = show

    def line(self, text: str) -> None:
        self._try(lambda: self._show.line(text))

    def now(self, text: str) -> None:
        self._try(lambda: self._show.now(text))

    def close(self) -> None:
        self._try(self._show.close)

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
        except OSError:
            let_go(STDERR)


def screen() -> Screen:
    return Lasting(Terminal() if sys.stderr.isatty() else Plain())


class Progress:
    """Watches a journal. `left()` = launches that are still to come after the present one."""

    def __init__(self, ledger: Ledger, left: Callable[[], int], show: Screen) -> None:
        self._ledger, self._left, self._show = ledger, left, show
        self._of = 0
        self._now = ""
        self._waiting = False

    def __call__(self, event: AnyEvent) -> None:
        handler = _HANDLERS.get(type(event))
        if handler is not None:
            handler(self, event)

    def load(self, done: int, of: int, tokens: int) -> None:
        """Progress within a measurement."""
        self._show.now(f"{self._now}: {done}/{of} requests, {tokens} tokens")

    def wait(self, seconds: float) -> None:
        """The window is closed for so long. One line at the first call of a wait."""
        text = f"waiting {seconds / 60:.0f} min for window.hours"
        if not self._waiting:
            self._show.line(text)
        self._waiting = True
        self._show.now(text)

    def _opened(self, e: SessionOpened) -> None:
        if e.repaired:
            self._show.line(f"journal repaired: {e.repaired}")
        done = len(self._ledger.history().complete())
        if done:
            self._show.line(f"going on: {done} trial{'s are' if done > 1 else ' is'} complete")

    def _planned(self, e: TrialPlanned) -> None:
        self._waiting = False
        self._of = self._settled() + 1 + self._left()
        self._show.line(f"{self._head(e.trial)} round {e.proposal.round}, {e.proposal.purpose}: {e.proposal.reason}")

    def _deploying(self, e: DeployStarted) -> None:
        if e.attempt > 1:
            self._show.line("    launched once more")
        self._moment(f"{self._head(e.trial)} loading{' again' if e.attempt > 1 else ''}")

    def _deployed(self, e: DeployFinished) -> None:
        self._show.line(f"    ready after {e.load_s:.1f} s (pid {e.pid})")

    def _measuring(self, e: MeasureStarted) -> None:
        self._moment(f"{self._head(e.trial)} {e.cell}")

    def _measured(self, e: Measured) -> None:
        m = e.measurement
        parts = [f"    {m.cell!s:<14} {m.values.get('output_tok_s', 0.0):8.1f} tok/s"]
        if m.acceptance is not None and m.acceptance.drafted:
            length = m.acceptance.acceptance_length or 0.0
            parts.append(f"accepted {m.acceptance.accepted}/{m.acceptance.drafted}, {length:.2f} tokens a round")
        if m.errors:
            parts.append(f"{m.errors} of {m.requests} requests failed")
        self._show.line("   ".join(parts))

    def _voided(self, e: Voided) -> None:
        self._show.line(f"    void: {e.void.diagnosis}")

    def _ended(self, e: TrialEnded) -> None:
        extent = f" ({e.extent})" if e.extent else ""
        why = f": {e.diagnosis.reason}" if e.diagnosis else ""
        self._show.line(f"    {e.state}{extent}{why}{self._eta()}")

    def _decided(self, e: Decided) -> None:
        for goal in e.recommendation.goals:
            self._show.line(f"{goal.goal}: {goal.setting if goal.setting is not None else 'none'} ({goal.reason})")

    def _closed(self, e: SessionClosed) -> None:
        self._show.line(f"ended: {e.reason}")

    def _head(self, trial: int) -> str:
        setting, number = self._ledger.trial(trial).setting, self._settled() + 1
        return f"[{number}/{max(self._of, number)}] {setting}"

    def _settled(self) -> int:
        """Trials that will not be asked for again."""
        history = self._ledger.history()
        return sum(t.state in (TrialState.COMPLETE, TrialState.INFEASIBLE) for t in history.trials)

    def _moment(self, text: str) -> None:
        self._now = text
        self._show.now(text)

    def _eta(self) -> str:
        took, left = self._ledger.trial_seconds, self._left()
        if not took or not left:
            return ""
        seconds = left * sum(took) / len(took)
        return (
            f"; {left} launches left, about {seconds / 60:.0f} min" if seconds > 90 else f"; about {seconds:.0f} s left"
        )


_HANDLERS: dict[type, Callable[[Progress, Any], None]] = {
    SessionOpened: Progress._opened,
    TrialPlanned: Progress._planned,
    DeployStarted: Progress._deploying,
    DeployFinished: Progress._deployed,
    MeasureStarted: Progress._measuring,
    Measured: Progress._measured,
    Voided: Progress._voided,
    TrialEnded: Progress._ended,
    Decided: Progress._decided,
    SessionClosed: Progress._closed,
}
