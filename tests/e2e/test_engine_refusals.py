"""What an operator types wrongly, and what no launch may do: one clear message, no traceback, nothing begun."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from test_engine_commands import GOLDEN, answer, leadline, refused, told

YAML = 'speculative-config: \'{"method": "mtp", "num_speculative_tokens": 2}\'\n'


@pytest.mark.parametrize("command", ["parse", "init"])
def test_a_quote_that_is_not_closed(tmp_path: Path, command: str) -> None:
    said = refused(leadline(command, "--", 'sglang serve --model-path "M', cwd=tmp_path))
    assert "cannot be read as a shell would: No closing quotation" in said


def test_variables_before_the_command_are_the_environments(tmp_path: Path) -> None:
    said = told(leadline("parse", "--", "CUDA_VISIBLE_DEVICES=0", "vllm", "serve", "M", cwd=tmp_path))
    assert said["model"] == "M"
    assert leadline("init", "--", "CUDA_VISIBLE_DEVICES=0", "vllm", "serve", "M", cwd=tmp_path).returncode == 0
    assert 'command = ["env", "CUDA_VISIBLE_DEVICES=0", "vllm"' in (tmp_path / "campaign.toml").read_text()


def test_init_refuses_a_container_and_writes_nothing(tmp_path: Path) -> None:
    words = ("docker", "run", "--rm", "vllm/vllm-openai", "--model", "M")
    assert "would go on without us" in refused(leadline("init", "--engine", "vllm", "--", *words, cwd=tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_run_in_which_nothing_would_be_compared_does_not_begin(tmp_path: Path) -> None:
    assert leadline("init", "--", "sglang", "serve", "--model-path", "M", cwd=tmp_path).returncode == 0
    said = refused(leadline("run", ".", "--yes", cwd=tmp_path))
    assert "nothing would be compared with today's setting" in said
    assert "pin max_running under [keep]" in said
    assert not (tmp_path / "journal.jsonl").exists()


def test_a_campaign_whose_servers_file_is_gone_can_still_be_reported(tmp_path: Path) -> None:
    """And a rollout taken back: neither needs the server or its files."""
    real = GOLDEN / "campaigns" / "vllm-0.22.1-h200"
    for name in ("campaign.toml", "journal.jsonl"):
        shutil.copy(real / name, tmp_path / name)
    (tmp_path / "prompts.jsonl").write_text('{"messages": [{"role": "user", "content": "hello"}]}\n')
    text = (tmp_path / "campaign.toml").read_text()
    (tmp_path / "campaign.toml").write_text(text.replace('"--port",', '"--config", "/gone.yaml", "--port",', 1))
    assert "there is none at /gone.yaml" in refused(leadline("plan", ".", cwd=tmp_path))
    report = leadline("report", ".", cwd=tmp_path)
    assert report.returncode == 0, report.stderr
    assert "NVIDIA H200" in report.stdout  # the machine that measured, not this one
    assert "nothing is applied" in refused(leadline("undo", ".", "--yes", cwd=tmp_path))


def test_a_log_alone_does_not_say_that_the_server_runs(tmp_path: Path) -> None:
    (tmp_path / "quiet.log").write_text("all is well\n")
    said = answer(leadline("diagnose", "--engine", "vllm", "quiet.log", "--json", cwd=tmp_path))
    assert said["failure"] == "unknown"
    assert "it is not known whether the server ended" in said["reason"]
