"""The lab's servers as SGLang, vLLM and TensorRT-LLM: how a test launches one, in virtual time or as a process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import msgspec

from leadline.testing.dialects import Answer, Dialect, Exit, Flags, View
from leadline.testing.dialects.registry import named
from leadline.testing.faults import Fault, active
from leadline.testing.model import LabModel
from leadline.testing.physics import LabSpec

PATTERNS = Path(__file__).parent / "golden" / "patterns" / "log_lines.json"
FAST = LabSpec(base_step_ms=1.0, token_ms=0.05, request_ms=0.02, jump_ms=0.1, draft_step_ms=0.05, load_s=0.2)
YAML = "return_perf_metrics: true\nenable_iter_perf_stats: true\n"
SPEC_YAML = "speculative_config:\n  decoding_type: Eagle3\n  max_draft_len: {depth}\n  speculative_model: lab-draft\n"


class Words(NamedTuple):
    """A command line without its program, and the files that it names."""

    argv: tuple[str, ...]
    files: dict[str, str]


def words(engine: str, depth: int, *, port: int = 0, running: int = 4, folder: str = "/lab") -> Words:
    if engine == "sglang":
        spec = (
            "--speculative-algorithm EAGLE3 --speculative-draft-model-path lab-draft --speculative-eagle-topk 1 "
            f"--speculative-num-steps {depth} --speculative-num-draft-tokens {depth + 1}"
        )
        line = f"serve --model-path lab --port {port} --enable-metrics --max-running-requests {running}"
        return Words((*line.split(), *(spec.split() if depth else ())), {})
    if engine == "vllm":
        config = json.dumps({"method": "eagle3", "model": "lab-draft", "num_speculative_tokens": depth})
        line = f"serve lab --host 127.0.0.1 --port {port} --max-num-seqs {running}"
        return Words((*line.split(), *(("--speculative-config", config) if depth else ())), {})
    path = f"{folder}/lab-{depth}.yaml"
    line = f"serve lab --host 127.0.0.1 --port {port} --max_batch_size {running} --config {path}"
    return Words(tuple(line.split()), {path: YAML + (SPEC_YAML.format(depth=depth) if depth else "")})


def parsed(
    engine: str, line: str | list[str], *, version: str = "", files: dict[str, str] | None = None
) -> Flags | Exit:
    given = line.split() if isinstance(line, str) else line
    return named(engine, version).parse(given, (files or {}).get)


def flags(engine: str, depth: int = 3, *, running: int = 4) -> Flags:
    found = words(engine, depth, port=9000, running=running)
    asked = named(engine).parse(found.argv, found.files.get)
    assert isinstance(asked, Flags), asked
    return asked


def view(engine: str, depth: int = 3, *faults: Fault, running: int = 4, loading: bool = False) -> View:
    asked = flags(engine, depth, running=running)
    spec = msgspec.structs.replace(FAST, faults=faults)
    model = LabModel(spec, depth=asked.depth, max_running=asked.max_running or 4, launch=1)
    return View(flags=asked, model=model, loading=loading, boot_id="1-0")


def start_log(engine: str, depth: int = 3, *faults: Fault, running: int = 4, spec: LabSpec = FAST) -> str:
    """All that a start writes."""
    asked = flags(engine, depth, running=running)
    boot = named(engine).boot(spec, asked, active(faults, asked.depth, 1))
    return "".join(f"{line}\n" for _, line in boot.lines)


def generate(dialect: Dialect, on: View, body: dict[str, object], *, path: str = "/v1/chat/completions") -> bytes:
    """One request alone, streamed to its end."""
    asked = dialect.ask(path, msgspec.json.encode({**body, "stream": True}), on)
    assert not isinstance(asked, Answer), asked
    admission = on.model.admit(asked.request)
    data, sent = dialect.opening(asked, on), 0
    while True:
        for emission in on.model.step().emissions:
            if emission.id != admission.id:
                continue
            sent += emission.tokens
            data += dialect.piece(asked, "x" * sent, sent, on)
            if emission.finish is not None:
                return data + dialect.closing(asked, emission.finish, on)


def events(data: bytes) -> list[dict]:
    *parts, last, rest = data.decode().split("\n\n")
    assert (last, rest) == ("data: [DONE]", "")
    return [json.loads(part.removeprefix("data: ")) for part in parts]


def patterns(prefix: str) -> dict[str, str]:
    """The regexes of one engine that were tested against its source."""
    return {p["name"]: p["regex"] for p in json.loads(PATTERNS.read_text()) if p["name"].startswith(prefix)}
