"""Why llama-server failed: logs of build 10434 (those of accelerators: as its source prints them), and any text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leadline.engines.llamacpp import engine
from leadline.engines.llamacpp.diagnosis import ENDING, HINTS, LIVING
from leadline.evidence import Diagnosis, Evidence, ExitFacts, Failure, Reply

ROWS = json.loads((Path(__file__).parents[1] / "golden" / "llamacpp" / "diagnose.json").read_text())
LINES = sorted({line for row in ROWS for line in row["log"]})


def diagnose(row: dict[str, Any]) -> Diagnosis:
    replies = {
        name: Reply(name=name, status=status, body=text.encode() if status else b"", error="" if status else text)
        for name, (status, text) in row.get("replies", {}).items()
    }
    exit = ExitFacts(**row["exit"]) if "exit" in row else None
    return engine.diagnose(Evidence(log="\n".join(row["log"]), exit=exit, replies=replies))


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r["name"])
def test_diagnoses(row: dict[str, Any]) -> None:
    said = diagnose(row)
    assert said.failure == row["failure"]
    assert said.line == row.get("line", said.line)
    text = f"{said.reason} {said.remedy} {said.implies}"
    for words in row.get("says", []):
        assert words in text
    assert list(said.fails_too) == row.get("fails_too", list(said.fails_too))


def test_every_sign_has_an_example() -> None:
    for sign in (*ENDING, *LIVING, *HINTS):
        assert any(sign.pattern.search(line) for line in LINES), sign.pattern.pattern


PATTERNS = json.loads((Path(__file__).parents[1] / "golden" / "patterns" / "log_lines.json").read_text())
FAILURES = {
    "lc.F.cuda_oom": Failure.DEVICE_OOM_START,
    "lc.F.kv": Failure.DEVICE_OOM_KV,
    "lc.F.ctx": Failure.CRASHED,
    "lc.F.load": Failure.DRAFT_BAD,
    "lc.F.port": Failure.PORT_IN_USE,
    "lc.F.badflag": Failure.BAD_FLAG,
    "lc.F.nospec": Failure.NO_SPECULATION,
    "lc.F.ctxfull": Failure.KV_STARVED,
    "lc.F.cuda": Failure.DEVICE_OOM_START,
    "lc.fit": Failure.DEVICE_OOM_START,
}


def test_the_lines_of_failures_are_read() -> None:
    failing = {p["name"]: p["sample"] for p in PATTERNS if p["name"].startswith(("lc.F.", "lc.fit"))}
    assert set(failing) == set(FAILURES)
    for name, line in failing.items():
        alive = FAILURES[name] in (Failure.NO_SPECULATION, Failure.KV_STARVED)
        said = engine.diagnose(Evidence(log=line, exit=None if alive else ExitFacts(code=1)))
        assert (name, said.failure, said.line) == (name, FAILURES[name], line)


def test_a_long_line_is_shortened() -> None:
    said = engine.diagnose(Evidence(exit=ExitFacts(code=1), log="error: invalid argument: " + "x" * 9999))
    assert len(said.line) <= 300
    assert len(said.reason) < 400


@given(
    st.lists(st.sampled_from(LINES) | st.text(max_size=30), max_size=8),
    st.none() | st.builds(ExitFacts, code=st.none() | st.integers(-1, 255), signal=st.none() | st.integers(0, 64)),
)
@settings(max_examples=150, deadline=None)
def test_any_log_has_a_diagnosis(lines: list[str], exit: ExitFacts | None) -> None:
    said = engine.diagnose(Evidence(log="\n".join(lines), exit=exit))
    assert said.reason
    assert said.remedy
