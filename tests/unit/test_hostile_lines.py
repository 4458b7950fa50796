"""A log line, an answer or a command that nobody meant: long, and of one kind. Reading it takes no more than a moment.

Nothing is timed here. A pattern that goes back and forth over such a text comes back after minutes, if ever.
"""

from __future__ import annotations

import random

import pytest

from leadline.engines import llamacpp, sglang, trtllm, vllm
from leadline.errors import InputError
from leadline.evidence import Device, Evidence, ExitFacts, Ground, Model, Reply, Seen
from leadline.launch import LaunchSpec
from leadline.ports import Engine
from leadline.space import Setting

LENGTH = 300_000
ENGINES: dict[str, tuple[Engine, str]] = {
    "sglang": (sglang.engine, "python3 -m sglang.launch_server --model-path /m"),
    "vllm": (vllm.engine, "vllm serve /m"),
    "trtllm": (trtllm.engine, "trtllm-serve /m"),
    "llamacpp": (llamacpp.engine, "llama-server -m /m.gguf"),
}
MIXED = "".join(random.Random(7).choices([chr(c) for c in range(33, 127)], k=LENGTH))
LINES = {
    "letters": "a" * LENGTH,
    "no blanks": MIXED,
    "dashes": "-" * LENGTH,
    "digits": "7" * LENGTH,
    "blanks": " " * LENGTH,
    "braces": "{" * LENGTH,
    "words joined by dashes": "a1-" * (LENGTH // 3),
}


@pytest.mark.parametrize("kind", LINES)
@pytest.mark.parametrize("name", ENGINES)
def test_a_long_line_is_read(name: str, kind: str) -> None:
    engine, command = ENGINES[name]
    line = LINES[kind]
    launch = LaunchSpec(argv=tuple(command.split()))
    log = f"ERROR {line}\n"
    replies = {p.name: Reply(name=p.name, status=200, body=line.encode()) for p in engine.probes()}
    evidence = Evidence(log=log, replies=replies, exit=ExitFacts(code=1))
    assert len(str(engine.diagnose(evidence))) < 2000
    assert engine.effective(evidence).depth is None
    device = Device(name="d", total_bytes=80 << 30)
    ground = Ground(model=Model(name="m"), device=device, seen=(Seen(launch=launch, log=log),))
    assert engine.memory(launch, ground).kv_tokens is None


@pytest.mark.parametrize("kind", LINES)
@pytest.mark.parametrize("name", ENGINES)
def test_a_long_script_is_read_or_refused(name: str, kind: str) -> None:
    """A tenth of the length: scripts are written by people."""
    engine, command = ENGINES[name]
    launch = LaunchSpec(argv=("sh", "-c", f"{LINES[kind][: LENGTH // 10]}\nexec {command}"))
    try:
        said = str(engine.parse(launch))
    except InputError as reason:
        said = str(reason)
    assert len(said) < 1000


@pytest.mark.parametrize("between", [" " * LENGTH, "\\\n" * (LENGTH // 2)], ids=["blanks", "continued lines"])
def test_a_word_behind_a_long_gap_is_taken_out(between: str) -> None:
    flag = '--speculative-config \'{"method":"mtp","num_speculative_tokens":3}\''
    launch = LaunchSpec(argv=("sh", "-c", f"exec vllm serve /m {between}{flag}"))
    assert vllm.engine.render(launch, Setting.of(depth=0)).argv[2] == "exec vllm serve /m"
