"""Looks at SGLang servers for the tests: the real files of tests/golden/sglang, and windows made from them."""

from __future__ import annotations

import json
import random
import shlex
from pathlib import Path

from leadline.engines.sglang import canonical
from leadline.evidence import Acceptance, Evidence, ExitFacts, Reply
from leadline.launch import LaunchSpec
from leadline.ports import Engine
from leadline.space import Setting
from leadline.testing.engine_suite import SHAPES, Case, Window
from leadline.trial import RequestRecord

GOLDEN = Path(__file__).parent / "golden" / "sglang"
PATTERNS = Path(__file__).parent / "golden" / "patterns" / "log_lines.json"
MODEL = "/models/qwen3-30b-a3b"
_COUNTED = ("generation_tokens", "prompt_tokens", "num_requests", "spec_verify_calls")


def text(name: str) -> str:
    return (GOLDEN / name).read_text(encoding="utf-8")


def look(*, log: str = "", argv: tuple[str, ...] = (), **bodies: str | bytes) -> Evidence:
    """Answers with 200, by the probe's name."""
    replies = {
        name: Reply(name=name, status=200, body=body if isinstance(body, bytes) else body.encode())
        for name, body in bodies.items()
    }
    return Evidence(replies=replies, log=log, argv=argv)


def server_info(**changed: object) -> str:
    """The real one, of 3 steps, with other values."""
    return json.dumps(json.loads(text("server_info-steps3.json")) | changed)


def plain_info() -> str:
    names = ("algorithm", "num_steps", "eagle_topk", "num_draft_tokens", "draft_model_path")
    return server_info(**{f"speculative_{name}": None for name in names})


def scrape(
    generated: int | None = None, requests: int | None = None, verified: int | None = None, *, labels: str = ""
) -> str:
    """A page as the server gives it right after its start, and its counters once there are any."""
    lines = [f'sglang:num_running_reqs{{model_name="{MODEL}",tp_rank="0"{labels}}} 0.0']
    names = {"generation_tokens": generated, "num_requests": requests, "spec_verify_calls": verified}
    for name, count in names.items():
        if count is not None:
            lines.append(f'sglang:{name}_total{{engine_type="unified",model_name="{MODEL}"{labels}}} {count}.0')
    return "\n".join(lines)


def record(
    tokens: int, *, n: int = 0, histogram: tuple[int, ...] = (), error: str = "", drafted: int = 0
) -> RequestRecord:
    return RequestRecord(
        prompt_id=f"p{n}",
        user=0,
        intended_ns=0,
        start_ns=0,
        end_ns=10**9,
        output_tokens=tokens,
        rounds=sum(histogram),
        histogram=histogram,
        accepted=sum(i * n for i, n in enumerate(histogram)),
        drafted=drafted,
        error=error,
    )


def spoil(rng: random.Random, seen: Evidence) -> Evidence:
    """Cut, broken and changed bytes: whatever a server may answer."""
    replies = {
        name: Reply(name=name, status=rng.choice((0, 200, 200, 200, 503)), body=_spoilt(rng, reply.body))
        for name, reply in seen.replies.items()
    }
    exit = rng.choice((None, ExitFacts(code=rng.randrange(256)), ExitFacts(signal=rng.randrange(1, 64))))
    return Evidence(replies=replies, log=_spoilt(rng, seen.log.encode()).decode(errors="replace"), exit=exit)


def _spoilt(rng: random.Random, body: bytes) -> bytes:
    match rng.randrange(4):
        case 0:
            return rng.choice(SHAPES)
        case 1:
            return body[: rng.randrange(len(body) + 1)]
        case 2:  # digits become other digits, so that the answer can still be read
            changed = bytearray(body)
            for i, byte in enumerate(changed):
                if 48 <= byte <= 57 and rng.random() < 0.3:
                    changed[i] = rng.choice(b"0123456789")
            return bytes(changed)
        case _:
            return bytes(rng.randrange(256) if rng.random() < 0.02 else byte for byte in body)


MODULE = "python3 -m sglang.launch_server --model-path /models/qwen3-8b"
EAGLE = "--speculative-algorithm EAGLE3 --speculative-draft-model-path /models/qwen3-8b-eagle3"
BASES = (
    f"{MODULE} {EAGLE} --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4",
    f"{MODULE} --max-running-requests 64",
    f"nice -n 5 {MODULE} --speculative-algo NEXTN --speculative-num-steps 1 --speculative-num-steps 2 --mem-frac 0.7",
    f"{MODULE} --speculative-algorithm NGRAM --speculative-ngram-max-bfs-breadth 1 --max-running=16",
    f"{MODULE} --speculative-algorithm DFLASH --speculative-draft-model /d --speculative-dflash-block-size 16",
)


def launch(text: str) -> LaunchSpec:
    return LaunchSpec(argv=tuple(shlex.split(text)))


def case(engine: Engine) -> Case:
    return Case(
        engine=engine,
        canonical=canonical,
        bases=tuple(map(launch, BASES)),
        settings=(
            Setting.of(depth=0),
            Setting.of(depth=4, spec_method="EAGLE3", draft_model="/e", topk=2, draft_tokens=6, memory_fraction=0.5),
            Setting.of(
                {
                    "depth": 1,
                    "spec_method": "EAGLE3",
                    "draft_model": "/e",
                    "max_running": 4,
                    "flag:--disable-radix-cache": False,
                    "env:SGLANG_X": "1",
                }
            ),
        ),
        foreign=("--never-heard-of", "x", "--never-either=y"),
        refused=(
            (launch(BASES[0]), Setting.of(depth=1, topk=2, draft_tokens=9)),
            (launch(MODULE), Setting.of(depth=1)),
            (launch(f"{MODULE} --nnodes 2"), Setting()),
        ),
        windows=windows(),
        bare=launch(MODULE),
        loading=Reply(name="health", status=503),
    )


def windows() -> tuple[Window, ...]:
    """For the contract suite: a whole load, one request with its histogram, and no speculation."""
    return (_whole_load(), _one_request(), _plain())


def _whole_load() -> Window:
    """The real counters of a load at 3 steps: 434 requests, 90,920 tokens, 31,971 verify calls. Before it, the same
    page without the series that appear with the first request."""
    after = text("metrics-steps3.prom")
    before = "\n".join(line for line in after.splitlines() if not any(f"sglang:{n}_total" in line for n in _COUNTED))
    info = server_info()
    sizes = [*(433 * [209]), 90_920 - 433 * 209]
    return Window(
        before=look(metrics=before, server_info=info),
        after=look(metrics=after, server_info=info, log=text("qwen3-30b-a3b-eagle3-steps3.log")),
        records=tuple(record(size, n=n) for n, size in enumerate(sizes)),
        acceptance=Acceptance(
            decode_tokens=90_486,
            rounds=31_971,
            drafting_rounds=31_971,
            drafted=3 * 31_971,
            accepted=90_486 - 31_971,
        ),
    )


def _one_request() -> Window:
    """The real answer of generate-response.json (40 tokens, 14 verify calls, histogram 0, 1, 13) after the server's own
    warm-up of 8 tokens. 27 drafts were accepted, and two of them were cut off by the length limit."""
    histogram = tuple(json.loads(text("generate-response.json"))["meta_info"]["spec_correct_drafts_histogram"])
    info = server_info()
    return Window(
        before=look(metrics=scrape(8, 1, 3), server_info=info),
        after=look(metrics=scrape(48, 2, 17), server_info=info),
        records=(record(40, histogram=histogram),),
        acceptance=Acceptance(
            decode_tokens=39, rounds=14, drafting_rounds=14, drafted=42, accepted=27, per_position=(14, 13, 0)
        ),
    )


def _plain() -> Window:
    info = plain_info()
    return Window(
        before=look(metrics=scrape(), server_info=info),
        after=look(metrics=scrape(100, 2), server_info=info, log=text("qwen3-8b-plain.log")),
        records=(record(60), record(40, n=1)),
        acceptance=Acceptance(decode_tokens=98, rounds=98, drafting_rounds=0, drafted=0, accepted=0),
    )
