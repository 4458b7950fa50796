"""A real campaign on the real llama-server with a real model, through the command line: what the demo rests on."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from support_engine import engine_or_skip
from support_lab import free_port

from leadline.journal.file import replay
from leadline.load.records import read_records
from leadline.trial import Origin, TrialState

pytestmark = pytest.mark.engine

TOML = """
[service]
engine = "llamacpp"
target = "command"
command = {command}
cwd = {cwd}
[safety]
min_free_memory_gib = 0.5
[knobs]
depth = [0, 3, 6]
[keep]
spec_method = "ngram-simple"
[load]
requests = 4
per_user = 2
[workloads.edits]
file = {edits}
body = {{ max_tokens = 32 }}
[goals.one]
weights = {{ "edits@1" = 1 }}
[goals.two]
weights = {{ "edits@2" = 1 }}
[budget]
rounds = 1
"""
EDITS = Path(__file__).resolve().parents[2] / "demo" / "edits.jsonl"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    server = engine_or_skip()
    folder = tmp_path_factory.mktemp("real")
    flags = ["-np", "2", "-c", "4096", "--port", str(free_port()), "--spec-type", "ngram-simple"]
    depth = ["--spec-ngram-simple-size-n", "2", "--spec-ngram-simple-size-m", "6"]
    text = TOML.format(
        command=json.dumps([*server.argv, *flags, *depth]), cwd=json.dumps(server.cwd), edits=json.dumps(str(EDITS))
    )
    (folder / "campaign.toml").write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "leadline", "run", str(folder), "--yes"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_every_trial_is_complete_and_ran_at_the_depth_it_was_asked_for(folder: Path) -> None:
    trials = replay(folder / "journal.jsonl").ledger.history().trials
    assert sorted(t.setting.depth for t in trials) == [0, 3, 6]
    for trial in trials:
        assert trial.state is TrialState.COMPLETE, trial.diagnosis
        assert trial.effective.max_running == 2
        assert trial.effective.speculating is (trial.setting.depth > 0)
        assert all(m.origin is Origin.MEASURED and m.errors == 0 for m in trial.measurements)


def test_acceptance_is_counted_at_every_depth_and_agrees_with_the_answers_own_figures(folder: Path) -> None:
    for trial in replay(folder / "journal.jsonl").ledger.history().trials:
        for m in trial.measurements:
            counts, report = m.acceptance, read_records(folder / "records" / m.records)
            assert counts.drafted == sum(r.drafted for r in report.records)
            assert counts.accepted == sum(r.accepted for r in report.records)
            assert len(counts.per_position) == trial.setting.depth
            assert sum(counts.per_position) == counts.accepted
            assert counts.decode_tokens == sum(r.output_tokens - 1 for r in report.records)
            assert (counts.accepted > 0) is (trial.setting.depth > 0)


def test_the_same_prompts_are_asked_at_every_depth_and_none_twice(folder: Path) -> None:
    asked: dict[str, set[tuple[str, ...]]] = {}
    for trial in replay(folder / "journal.jsonl").ledger.history().trials:
        for m in trial.measurements:
            ids = tuple(sorted(r.prompt_id for r in read_records(folder / "records" / m.records).records))
            assert len(set(ids)) == len(ids)
            asked.setdefault(str(m.cell), set()).add(ids)
    assert {cell: len(sets) for cell, sets in asked.items()} == {"edits@1": 1, "edits@2": 1}


def test_reports_say_that_a_real_engine_was_measured(folder: Path) -> None:
    assert "SIMULATED" not in (folder / "report.html").read_text(encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "leadline", "report", str(folder), "--format", "csv"], capture_output=True, text=True
    )
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert {row["origin"] for row in rows} == {"measured"}
    assert len(rows) == 6


def test_nothing_is_left_listening_or_running(folder: Path) -> None:
    import psutil

    commands = [p.info["cmdline"] or [] for p in psutil.process_iter(["cmdline"])]
    assert not [c for c in commands if str(folder) in " ".join(c)]
    port = next(word for word, before in zip(_argv(folder)[1:], _argv(folder), strict=False) if before == "--port")
    assert not [c for c in commands if "--port" in c and port in c]


def _argv(folder: Path) -> list[str]:
    import tomllib

    return tomllib.loads((folder / "campaign.toml").read_text(encoding="utf-8"))["service"]["command"]
