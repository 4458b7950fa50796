"""The example of the mission: its lab server, its traffic, and the figures that the server must reproduce."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

from leadline import codec
from leadline.evidence import Acceptance
from leadline.testing.dialects.requests import prompt_text, prompt_tokens
from leadline.testing.physics import LabEngine, LabRequest, truth
from leadline.testing.spec import LabSpec
from leadline.workloads.file import FileWorkload

EXAMPLE = Path(__file__).parent.parent / "examples" / "qwen-mission"
ASKED_RUNNING = 48
SPEC = codec.from_json((EXAMPLE / "lab.json").read_bytes(), LabSpec)
CAMPAIGN = tomllib.loads((EXAMPLE / "campaign.toml.in").read_text(encoding="utf-8").format(service=""))

# What the mission saw: tok/s of all requests together, by users and depth.
FIGURES = {
    1: {1: 123.0, 2: 186.0, 3: 234.0, 4: 277.0, 5: 282.0},
    4: {1: 4 * 119.0, 2: 4 * 162.0, 3: 4 * 200.0, 4: 4 * 236.0},
    64: {1: 1582.0, 2: 1844.0, 3: 1914.0, 4: 1817.0},
}
AT_DEPTH_10 = (280.0, 293.0)
HONEST = {2: 2.73, 3: 3.39, 4: 3.97, 5: 4.41}


@cache
def requests(workload: str) -> tuple[LabRequest, ...]:
    """All requests of the example's file, as the lab server understands them."""
    body = CAMPAIGN["workloads"][workload]["body"]
    lines = (EXAMPLE / CAMPAIGN["workloads"][workload]["file"]).read_text(encoding="utf-8").split("\n")
    made = FileWorkload(workload, lines, "example", body)
    return tuple(
        LabRequest(
            prompt_id=r.prompt_id,
            prompt_tokens=prompt_tokens(prompt_text(r.body, chat=True) or ""),
            max_tokens=body["max_tokens"],
            ignore_eos=body.get("ignore_eos", False),
        )
        for session in made.sessions(made.available, seed=1)
        for r in session
    )


@cache
def tok_s(workload: str, depth: int, users: int) -> float:
    """Without noise and faults, with prompts as long as the example's on average."""
    sent = requests(workload)
    return truth(
        SPEC,
        depth=depth,
        concurrency=users,
        max_running=ASKED_RUNNING,
        mix={workload: 1.0},
        prompt_tokens=round(sum(r.prompt_tokens for r in sent) / len(sent)),
        max_tokens=sent[0].max_tokens,
    )


@cache
def acceptance_length(workload: str, depth: int) -> float:
    """As realised over the example's whole file, ends of answers included."""
    engine = LabEngine(SPEC.quiet(), depth=depth, max_running=ASKED_RUNNING)
    for request in requests(workload):
        engine.submit(request)
    total = Acceptance(decode_tokens=0, rounds=0, drafting_rounds=0, drafted=0, accepted=0)
    while engine.running + engine.queued:
        for emission in engine.step().emissions:
            total = total.plus(emission.finish.acceptance) if emission.finish else total
    return total.acceptance_length or 0.0
