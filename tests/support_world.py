"""A lab world with one llama-server in it: what the tests of the lab start, send and read."""

from __future__ import annotations

import re

import msgspec

from leadline.evidence import Probe
from leadline.launch import LaunchSpec, Start
from leadline.ports import LoadPlan, PlannedRequest, Session
from leadline.testing.faults import Fault
from leadline.testing.lab import Lab
from leadline.testing.physics import LabSpec
from leadline.trial import LoadReport

URL = "http://127.0.0.1:9000"
QUIET = LabSpec(launch_sd=0.0, point_sd=0.0, load_s=2.0)
HEALTH = Probe(name="health", path="/health")
READY = Probe(name="ready", path="/v1/completions", method="POST", body=b'{"prompt":"hi","max_tokens":1}', timeout_s=5)
METRICS = Probe(name="metrics", path="/metrics")

Sessions = tuple[tuple[PlannedRequest, ...], ...]


def sessions(first: int, n: int, *, workload: str = "coding", turns: int = 1) -> Sessions:
    def request(i: int, turn: int) -> PlannedRequest:
        body: dict[str, object] = {"messages": [{"role": "user", "content": "x" * 800}], "max_tokens": 128}
        return PlannedRequest(prompt_id=f"{workload}:{i}.{turn}", turn=turn, body=body)

    return tuple(tuple(request(i, t) for t in range(turns)) for i in range(first, first + n))


def plan(concurrency: int, n: int, *, stall_s: float = 60.0, turns: int = 1) -> LoadPlan:
    return LoadPlan(
        url=URL,
        concurrency=concurrency,
        warmup=sessions(0, concurrency, turns=turns),
        sessions=sessions(1000, n, turns=turns),
        stall_s=stall_s,
    )


def argv(depth: int, *, slots: int = 16, port: int = 9000) -> tuple[str, ...]:
    base = ("llama-server", "-m", "m.gguf", "--port", str(port), "-np", str(slots), "--metrics")
    if not depth:
        return base
    size = ("--spec-ngram-simple-size-n", "1", "--spec-ngram-simple-size-m", str(depth))
    return (*base, "--spec-type", "ngram-simple", *size)


def start(lab: Lab, depth: int, *, slots: int = 16, wait_s: float = 2.5, log: str = "a.log") -> Session:
    session = lab.host.start(Start(launch=LaunchSpec(argv=argv(depth, slots=slots)), log=log))
    lab.clock.sleep(wait_s)
    return session


def counters(lab: Lab) -> dict[str, float]:
    text = lab.prober(URL).fetch(METRICS).body.decode()
    return {name: float(value) for name, value in re.findall(r"^llamacpp:(\S+) (\S+)$", text, re.MULTILINE)}


def moved(before: dict[str, float], after: dict[str, float]) -> dict[str, int]:
    """Differences of the draft counters, positions included."""
    return {k: int(v - before.get(k, 0.0)) for k, v in after.items() if k.startswith("spec_decode")}


def errors(report: LoadReport) -> list[str]:
    return [r.error for r in report.records if r.error]


def always() -> bool:
    return True


def faulty(*faults: Fault) -> Lab:
    return Lab(msgspec.structs.replace(QUIET, faults=faults))
