"""`rehearse` proves the way back and times the load; `bench` measures a running server and leaves it alone."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from support_cli import Called, answer, ask, launches
from support_lab import FAST, LabCampaign

from leadline.codec import to_json
from leadline.load.records import read_records
from leadline.testing.faults import Fault, FaultKind
from leadline.testing.spec import LabSpec

# --- rehearse


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> tuple[LabCampaign, Called]:
    campaign = LabCampaign(tmp_path_factory.mktemp("rehearsed") / "house", LabSpec(load_s=0.6), depths=(0, 2))
    return campaign, campaign.call("rehearse", "--yes", "--json")


def test_a_rehearsal_starts_the_server_twice_and_leaves_nothing_of_it(rehearsed: tuple[LabCampaign, Called]) -> None:
    campaign, called = rehearsed
    assert called.returncode == 0, called.stderr
    assert launches(campaign) in (1, 2), "the first one may be killed before it counts itself"
    assert not campaign.listening()


def test_a_rehearsal_notes_what_it_timed(rehearsed: tuple[LabCampaign, Called]) -> None:
    campaign, called = rehearsed
    noted = json.loads((campaign.folder / "rehearsal.json").read_text())
    assert noted == answer(called)
    assert noted["setting"] == "depth=2"
    assert noted["load_s"] >= 0.6
    assert 0 <= noted["killed_back_s"] <= 4.0


def test_a_rehearsal_is_no_campaign_and_plan_uses_what_it_timed(rehearsed: tuple[LabCampaign, Called]) -> None:
    campaign, _ = rehearsed
    assert answer(ask(campaign, "status", "--json"))["state"] == "new"
    plan = answer(ask(campaign, "plan", "--json"))
    noted = json.loads((campaign.folder / "rehearsal.json").read_text())
    assert plan["minutes"] == pytest.approx(2 * (noted["load_s"] + noted["back_s"]) / 60)
    assert "as rehearsed" in plan["based_on"]


def test_a_rehearsal_wants_a_yes(tmp_path: Path) -> None:
    campaign = LabCampaign(tmp_path / "house")
    called = campaign.call("rehearse")
    assert (called.returncode, "say --yes" in called.stderr) == (2, True)
    assert launches(campaign) == 0


def test_a_rehearsal_of_a_setting_that_does_not_run_says_why_and_where_its_log_is(tmp_path: Path) -> None:
    spec = LabSpec(load_s=0.05, faults=(Fault(kind=FaultKind.OOM_AT_START),))
    campaign = LabCampaign(tmp_path / "house", spec)
    called = campaign.call("rehearse", "--yes")
    assert called.returncode == 3
    assert "today's setting does not run here: " in called.stderr
    assert "What to do: " in called.stderr
    assert str(campaign.folder / "logs") in called.stderr
    assert not (campaign.folder / "rehearsal.json").exists()


def test_a_rehearsal_of_a_command_that_is_not_there_says_so_once_and_as_json(tmp_path: Path) -> None:
    campaign = LabCampaign(tmp_path / "house")
    path = campaign.folder / "campaign.toml"
    path.write_text(path.read_text().replace(sys.executable, "/no/such/llama-server"))
    called = campaign.call("rehearse", "--yes", "--json")
    assert called.returncode == 1
    assert "/no/such/llama-server" in answer(called)["error"]
    assert "Nothing was started" in answer(called)["error"]
    assert called.stderr == ""


def test_too_little_free_memory_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    campaign = LabCampaign(tmp_path / "house")
    path = campaign.folder / "campaign.toml"
    path.write_text(path.read_text().replace("min_free_memory_gib = 0", "min_free_memory_gib = 1000000"))
    for command in ("rehearse", "run"):
        called = campaign.call(command, "--yes")
        assert called.returncode == 2
        assert "safety.min_free_memory_gib asks for 1000000.0" in called.stderr
    assert launches(campaign) == 0
    assert list((campaign.folder / "logs").iterdir()) == []


# --- bench


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a lab server that somebody else runs."""
    folder = tmp_path_factory.mktemp("server")
    (folder / "lab.json").write_bytes(to_json(FAST))
    argv = [
        sys.executable, "-m", "leadline.testing.labserver", "-m", "lab", "--lab-spec", str(folder / "lab.json"), "-np",
        "4", "-c", "16384", "--port", "0", "--metrics", "--slots", "--spec-type", "ngram-simple",
        "--spec-ngram-simple-size-n", "2", "--spec-ngram-simple-size-m", "4",
    ]  # fmt: skip
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        url = next(m[1] for line in process.stdout if (m := re.search(r"listening on (http://\S+)", line)))
        yield url
        assert process.poll() is None, "bench must leave the server running"
        process.terminate()
        process.stdout.read()


def bench(*words: str) -> Called:
    argv = [sys.executable, "-m", "leadline", "bench", *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)


def generated(url: str) -> int:
    """Tokens that the server says it has generated so far."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as reply:
        return int(float(re.search(r"^llamacpp:tokens_predicted_total (\S+)", reply.read().decode(), re.MULTILINE)[1]))


def test_bench_counts_the_tokens_that_usage_and_the_servers_counters_count(server: str, tmp_path: Path) -> None:
    before = generated(server)
    words = ("--workload", "coding", "--concurrency", "1,4", "--requests", "6", "--max-tokens", "24", "--json")
    called = bench(server, *words, "--out", str(tmp_path / "out"))
    assert called.returncode == 0, called.stderr
    points = json.loads(called.stdout)
    assert [p["cell"] for p in points] == ["coding@1", "coding@4"]
    records = [read_records(p["records"]).records for p in points]
    for point, kept in zip(points, records, strict=True):
        assert point["output_tokens"] == sum(r.output_tokens for r in kept if not r.warmup)
        assert (point["errors"], point["origin"]) == (0, "simulated")
        assert point["acceptance"]["drafted"] >= point["acceptance"]["accepted"] > 0
    assert generated(server) - before == sum(r.output_tokens for kept in records for r in kept)


def test_bench_prints_a_table_that_says_when_it_was_a_lab(server: str) -> None:
    called = bench(server, "--workload", "coding", "--concurrency", "2", "--requests", "4", "--max-tokens", "24")
    lines = called.stdout.splitlines()
    assert lines[0] == "SIMULATED: a lab server answered, not a real engine"
    assert lines[1].split()[:2] == ["cell", "tok/s"]
    assert lines[2].startswith("coding@2")


def test_bench_names_no_record_file_that_it_did_not_keep(server: str) -> None:
    called = bench(server, "--concurrency", "1", "--requests", "1", "--max-tokens", "4", "--json")
    assert [p["records"] for p in json.loads(called.stdout)] == [""]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--concurrency", "0"), "--concurrency takes whole numbers from 1"),
        (("--workload", "nope"), "there are agent, chat, coding, extract, summarize"),
        (("--engine", "nope"), "there are llamacpp"),
        (("--requests", "1000"), "too few for chat@1"),
        (("--api-key-env", "NO_SUCH_KEY"), "the environment has no NO_SUCH_KEY"),
    ],
)
def test_bench_refuses_wrong_input_with_what_is_allowed(server: str, words: tuple[str, ...], told: str) -> None:
    before = generated(server)
    called = bench(server, *words)
    assert (called.returncode, told in called.stderr) == (2, True), called.stderr
    assert generated(server) == before


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "ftp://127.0.0.1", "127.0.0.1:8080"])
def test_bench_of_what_does_not_answer_is_no_table_of_nothing(url: str) -> None:
    called = bench(url, "--concurrency", "1", "--requests", "1")
    assert (called.returncode, called.stdout) == (2, "")
    assert "URL" in called.stderr
