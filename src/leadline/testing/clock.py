"""A clock that advances only when somebody sleeps: whole campaigns run in the time that their arithmetic takes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from leadline.metrics import NS_PER_S


class VirtualClock:
    """`ports.Clock` in virtual time. Starts at 0 ns; `start` is the time of day at that moment."""

    def __init__(self, start: datetime = datetime(2026, 1, 5, 22, 0, tzinfo=UTC)) -> None:
        self._start = start
        self._now_ns = 0

    def now_ns(self) -> int:
        return self._now_ns

    def utc(self) -> str:
        at = self._start + timedelta(microseconds=self._now_ns // 1000)
        return at.strftime("%Y-%m-%dT%H:%M:%SZ")

    def sleep(self, s: float) -> None:
        self.advance_ns(round(s * NS_PER_S))

    def advance_ns(self, ns: int) -> None:
        """Raises ValueError for a step back: no clock of ours may run backwards."""
        if ns < 0:
            raise ValueError(f"a monotonic clock cannot be set back by {-ns} ns")
        self._now_ns += ns
