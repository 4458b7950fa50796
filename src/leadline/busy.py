"""How busy a server is while it is loaded: requests being decoded and requests that wait, sampled from its metrics."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from leadline.evidence import Busy
from leadline.ports import Clock, Engine, Prober

EVERY_S = 1.0
PATIENCE_S = 1.0


class BusyWatch:
    """Call `look` as often as you like: it asks at most once in EVERY_S, and never waits longer than PATIENCE_S."""

    def __init__(self, engine: Engine, prober: Prober, clock: Clock) -> None:
        self._engine, self._prober, self._clock = engine, prober, clock
        probe = next((p for p in engine.probes() if p.name == "metrics"), None)
        self._probe = None if probe is None else msgspec.structs.replace(probe, timeout_s=PATIENCE_S)
        self._due_ns = clock.now_ns() + int(EVERY_S * 1e9)
        self._seen: list[Busy] = []

    def look(self) -> None:
        now = self._clock.now_ns()
        if self._probe is None or now < self._due_ns:
            return
        self._due_ns = now + int(EVERY_S * 1e9)
        busy = self._engine.busy(self._prober.fetch(self._probe))
        if busy is not None:
            self._seen.append(busy)

    def values(self) -> dict[str, float]:
        """Metrics `running_requests`, `waiting_requests` (means) and their `_max`; none without a sample."""
        running = [b.running for b in self._seen]
        waiting = [b.waiting for b in self._seen if b.waiting is not None]
        return {**_summary("running_requests", running), **_summary("waiting_requests", waiting)}


def _summary(name: str, counts: Sequence[int]) -> dict[str, float]:
    if not counts:
        return {}
    return {name: sum(counts) / len(counts), f"{name}_max": float(max(counts))}
