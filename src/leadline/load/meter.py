"""How well the load worker itself keeps up: lateness of its event loop, and its share of one processor core.

A measurement by a worker that is late, or that fills its core, says more about the worker than about the server.
"""

from __future__ import annotations

import asyncio
import time

from leadline.metrics import percentile

_TICK_NS = 10_000_000


class Meter:
    """Runs from `start` to `stop`. Deadlines are absolute: a loop that stands still for 1 s is late 100 times."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._late_ns: list[int] = []
        self._due_ns = 0
        self._timer: asyncio.TimerHandle | None = None
        self._began = (0.0, 0.0)
        self.cpu_share = 0.0

    def start(self) -> None:
        self._began = (time.monotonic(), time.process_time())
        self._due_ns = time.monotonic_ns() + _TICK_NS
        self._arm()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        wall_s, cpu_s = time.monotonic() - self._began[0], time.process_time() - self._began[1]
        self.cpu_share = cpu_s / wall_s if wall_s > 0 else 0.0

    @property
    def lag_p99_ms(self) -> float:
        return percentile(sorted(self._late_ns), 0.99) / 1e6 if self._late_ns else 0.0

    def _arm(self) -> None:
        self._timer = self._loop.call_later(max(0, self._due_ns - time.monotonic_ns()) / 1e9, self._tick)

    def _tick(self) -> None:
        now = time.monotonic_ns()
        while self._due_ns <= now:
            self._late_ns.append(now - self._due_ns)
            self._due_ns += _TICK_NS
        self._arm()  # uvloop may fire up to a millisecond early: then nothing was due yet
