"""Stop signals as one exception: SIGTERM, SIGHUP and Ctrl-C raise InterruptedRun in the main thread, once.

Inside `shield()` a signal waits until the end of the block, so that giving back is never cut short; a second signal
while we already stop changes nothing. SIGHUP stays ignored where it was: that is what nohup asks for.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from leadline.errors import InterruptedRun

STOPS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


class Interrupts:
    def __init__(self) -> None:
        self._depth = 0
        self._pending = 0
        self._raised = False

    @contextmanager
    def installed(self) -> Iterator[Interrupts]:
        """Handle the stop signals within; the previous handlers come back."""
        stops = [s for s in STOPS if s != signal.SIGHUP or signal.getsignal(s) is not signal.SIG_IGN]
        before = {s: signal.signal(s, self._on) for s in stops}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def shield(self) -> Iterator[None]:
        """Let a stop signal wait until the outermost shield ends."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
        if self._pending and not self._depth:
            self._stop()

    def _on(self, number: int, frame: FrameType | None) -> None:
        if self._raised or self._pending:
            return
        self._pending = number
        if not self._depth:
            self._stop()

    def _stop(self) -> None:
        number, self._pending, self._raised = self._pending, 0, True
        raise InterruptedRun(number)
