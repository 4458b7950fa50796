"""A clock that advances only when somebody sleeps: whole campaigns run in the time that their arithmetic takes."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from leadline.metrics import NS_PER_S


class Alarm:
    """Something that will happen by itself, unless it is called off."""

    def __init__(self, action: Callable[[], None]) -> None:
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        self.action = None


class VirtualClock:
    """`ports.Clock` in virtual time. Starts at 0 ns; `start` is the time of day at that moment."""

    def __init__(self, start: datetime = datetime(2026, 1, 5, 22, 0, tzinfo=UTC)) -> None:
        self._start = start
        self._now_ns = 0
        self._alarms: list[tuple[int, int, Alarm]] = []
        self._numbers = itertools.count()

    def now_ns(self) -> int:
        return self._now_ns

    def utc(self) -> str:
        at = self._start + timedelta(microseconds=self._now_ns // 1000)
        return at.strftime("%Y-%m-%dT%H:%M:%SZ")

    def sleep(self, s: float) -> None:
        self.advance_ns(round(s * NS_PER_S))

    def after(self, s: float, action: Callable[[], None]) -> Alarm:
        """Let something happen so many seconds from now, at that very moment, whoever is asleep then."""
        alarm = Alarm(action)
        heapq.heappush(self._alarms, (self._now_ns + round(s * NS_PER_S), next(self._numbers), alarm))
        return alarm

    def advance_ns(self, ns: int) -> None:
        """Raises ValueError for a step back: no clock of ours may run backwards."""
        if ns < 0:
            raise ValueError(f"a monotonic clock cannot be set back by {-ns} ns")
        until_ns = self._now_ns + ns
        while self._alarms and self._alarms[0][0] <= until_ns:
            at_ns, _, alarm = heapq.heappop(self._alarms)
            if alarm.action is not None:
                self._now_ns = max(self._now_ns, at_ns)
                alarm.action()
        self._now_ns = max(self._now_ns, until_ns)
