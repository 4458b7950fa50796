"""The real clock: implements ports.Clock."""

from __future__ import annotations

import time
from datetime import UTC, datetime


class SystemClock:
    def now_ns(self) -> int:
        return time.monotonic_ns()

    def utc(self) -> str:
        return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def sleep(self, s: float) -> None:
        time.sleep(s)

    def minute_of_day(self) -> int:
        """Minutes since local midnight."""
        now = datetime.now()
        return now.hour * 60 + now.minute
