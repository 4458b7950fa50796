"""How busy a server is, sampled while it is loaded."""

from leadline.busy import BusyWatch
from leadline.engines.llamacpp import LlamaCpp
from leadline.evidence import Busy, Probe, Reply
from leadline.testing.clock import VirtualClock


class Counting(LlamaCpp):
    """Says what it was asked the how-many-th time."""

    def __init__(self) -> None:
        self.asked: list[Probe] = []

    def probes(self) -> tuple[Probe, ...]:
        return (Probe(name="health", path="/health"), Probe(name="metrics", path="/metrics"))

    def busy(self, reply: Reply) -> Busy | None:
        return None if len(self.asked) == 2 else Busy(running=len(self.asked), waiting=10 * len(self.asked))

    def fetch(self, probe: Probe) -> Reply:
        self.asked.append(probe)
        return Reply(name=probe.name, status=200)


def test_it_asks_once_a_second_however_often_it_is_called() -> None:
    engine, clock = Counting(), VirtualClock()
    watch = BusyWatch(engine, engine, clock)
    for _ in range(31):
        watch.look()
        clock.sleep(0.1)
    assert [p.path for p in engine.asked] == ["/metrics"] * 3
    assert {p.timeout_s for p in engine.asked} == {1.0}  # it must not hold up the load
    assert watch.values() == {
        "running_requests": 2.0, "running_requests_max": 3.0, "waiting_requests": 20.0, "waiting_requests_max": 30.0,
    }  # fmt: skip


def test_an_engine_that_does_not_tell_gives_no_values() -> None:
    engine, clock = Counting(), VirtualClock()
    assert BusyWatch(engine, engine, clock).values() == {}
