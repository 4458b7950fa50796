"""Every command as a user or a program calls it, over campaigns with the real lab server."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support_cli import Called, add_to, answer, ask, copy_of, launches, tree, typed
from support_lab import LabCampaign

import leadline
from leadline.testing.faults import Fault, FaultKind
from leadline.testing.spec import LabSpec
from leadline.trial import Purpose, TrialState

FORMATS = ("text", "md", "html", "json", "csv")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[LabCampaign, Called]:
    campaign = LabCampaign(tmp_path_factory.mktemp("finished") / "house", depths=(0, 2, 6))
    return campaign, campaign.run()


@pytest.fixture
def mine(finished: tuple[LabCampaign, Called], tmp_path: Path) -> LabCampaign:
    """A copy of the finished campaign that a test may change."""
    return copy_of(finished[0], tmp_path / "house")


# --- run


def test_run_ends_with_the_answer_the_tables_and_where_the_report_is(finished: tuple[LabCampaign, Called]) -> None:
    campaign, called = finished
    assert called.returncode == 0, called.stderr
    text = called.stdout
    assert text.startswith("SIMULATED: lab server, not a real engine\n")
    for part in ("ANSWER", "One setting for all goals:", "RESULTS", "ACCEPTANCE", "Also in the whole report:"):
        assert part in text
    for part in ("HOW IT WAS MEASURED", "TRIALS", "Formula of every metric"):
        assert part not in text
    assert text.count("\n") < 90
    assert f"report: {campaign.folder}/report.html" in text
    assert "\nnext:   " in text
    assert (campaign.folder / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_run_without_a_terminal_tells_its_progress_in_plain_lines(finished: tuple[LabCampaign, Called]) -> None:
    lines = finished[1].stderr.splitlines()
    assert lines[0].startswith("[1/3] depth=2 round 1, incumbent: ")
    assert sum(line.startswith("    ready after ") for line in lines) == 3
    assert sum("tok/s" in line and "coding@" in line for line in lines) == 6
    assert any("s left" in line for line in lines), "an estimate of what is still to come"
    assert lines[-1] == "ended: every setting has been launched in 1 round"
    assert "\x1b" not in finished[1].stderr


def test_run_of_a_finished_campaign_starts_nothing_and_answers_the_same(mine: LabCampaign) -> None:
    called = mine.call("run", "--json")
    recommendation = answer(called)
    assert (called.returncode, recommendation["origin"], recommendation["incumbent"]) == (0, "simulated", "depth=2")
    assert {g["goal"] for g in recommendation["goals"]} == {"one", "many"}
    assert mine.ledger().launches == 3


def test_run_asks_before_it_starts_and_without_a_terminal_wants_yes(tmp_path: Path) -> None:
    campaign = LabCampaign(tmp_path / "new", depths=(0, 2))
    called = campaign.call("run")
    assert called.returncode == 2
    assert f"2 launches of llamacpp on http://127.0.0.1:{campaign.port}, time not known yet." in called.stderr
    assert "Way back: disconnect revert" in called.stderr
    assert "say --yes" in called.stderr
    assert launches(campaign) == 0
    assert not (campaign.folder / "journal.jsonl").exists()


@pytest.mark.parametrize(("typed_in", "code", "started"), [("n\n", 2, 0), ("\n", 2, 0), ("y\n", 0, 2)])
def test_on_a_terminal_it_asks_and_only_a_yes_starts(tmp_path: Path, typed_in: str, code: int, started: int) -> None:
    campaign = LabCampaign(tmp_path / "new", depths=(0, 2))
    ours, its = os.openpty()
    try:
        os.write(ours, typed_in.encode())
        called = subprocess.run(campaign.argv("run"), stdin=its, capture_output=True, text=True, timeout=120)
    finally:
        os.close(ours)
        os.close(its)
    assert called.returncode == code, called.stderr
    assert "Start? [y/N]: " in called.stderr
    assert launches(campaign) == started
    assert ("not confirmed, so nothing was changed" in called.stderr) == (code == 2)


# --- plan, status, stop


def test_plan_shows_differences_restarts_time_and_way_back(tmp_path: Path) -> None:
    campaign = LabCampaign(tmp_path / "new", depths=(0, 2))
    add_to(campaign, "window", 'hours = ["22:00-06:00"]\nmax_restarts = 9\n')
    text = ask(campaign, "plan").stdout
    for part in (
        "today      depth=2",
        "launches   2 (2 settings, 1 round)",
        "time not known (nothing was timed yet: `leadline rehearse` times the load)",
        "guard      disconnect revert",
        "limits     hours 22:00-06:00, at most 9 restarts",
        "  depth=2                  1x (today)",
        "      - --spec-type ngram-simple",
    ):
        assert part in text


def test_plan_of_a_finished_campaign_says_that_nothing_is_left(mine: LabCampaign) -> None:
    assert "nothing more would be launched" in ask(mine, "plan").stdout
    assert answer(ask(mine, "plan", "--json"))["launches"] == 0


def test_status_of_a_new_a_finished_and_a_stopped_campaign(mine: LabCampaign, tmp_path: Path) -> None:
    new = LabCampaign(tmp_path / "new")
    assert ask(new, "status").stdout == "new: `leadline plan` shows what it would do\n"
    state = answer(ask(mine, "status", "--json"))
    assert (state["state"], state["trials"], state["owner"]) == ("finished", {"complete": 3}, "")
    assert set(state["recommended"]) == {"one", "many"}
    text = ask(mine, "status").stdout
    assert text.startswith("finished: every setting has been launched in 1 round\n")
    assert "for one     depth=" in text


def test_stop_where_nothing_runs_is_no_error(mine: LabCampaign) -> None:
    called = ask(mine, "stop")
    assert (called.returncode, called.stdout) == (0, "nothing is running\n")
    assert answer(ask(mine, "stop", "--json"))["stopped"] is False


# --- try


def test_a_queued_setting_is_shown_planned_and_taken_up_by_the_next_run(mine: LabCampaign) -> None:
    called = ask(mine, "try", "depth=9")
    assert called.returncode == 0
    assert "depth=9: queued" in called.stdout
    assert "  + --spec-ngram-simple-size-m 9" in called.stdout
    assert "`leadline run` will measure it" in called.stdout
    assert answer(ask(mine, "try", "depth=9", "--json"))["queued"] is False
    assert answer(ask(mine, "status", "--json"))["queued"] == ["depth=9"]
    assert {s["setting"] for s in answer(ask(mine, "plan", "--json"))["settings"]} == {"depth=2", "depth=9"}
    assert mine.call("run").returncode == 2, "a restart is asked about, also one that was queued by hand"
    assert mine.run().returncode == 0
    more = mine.ledger().history().trials[3:]
    assert [(t.setting.depth, t.proposal.purpose, t.state) for t in more] == [
        (9, Purpose.MANUAL, TrialState.COMPLETE),
        (2, Purpose.INCUMBENT, TrialState.COMPLETE),
    ]
    assert answer(ask(mine, "status", "--json"))["queued"] == []
    assert "Queued by hand: depth=9" in ask(mine, "report").stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("max_running=8",), "max_running is not tuned in this campaign; its knobs are depth"),
        (("depth=x",), "depth is a whole number"),
        (("depth",), "a setting is written name=value"),
        (("depth=4", "depth=5"), "depth is given twice"),
    ],
)
def test_try_refuses_what_cannot_be_measured_here_and_says_what_can(
    mine: LabCampaign, words: tuple[str, ...], told: str
) -> None:
    before = tree(mine.folder)
    called = ask(mine, "try", *words)
    assert (called.returncode, told in called.stderr) == (2, True), called.stderr
    assert tree(mine.folder) == before


# --- report


@pytest.mark.parametrize("form", FORMATS)
def test_report_in_every_format_on_the_screen_and_in_a_file(mine: LabCampaign, tmp_path: Path, form: str) -> None:
    called = ask(mine, "report", "--format", form)
    assert called.returncode == 0, called.stderr
    assert "SIMULATED" in called.stdout
    path = tmp_path / f"report.{form}"
    written = ask(mine, "report", "--format", form, "--output", str(path))
    assert written.stdout == f"written: {path}\n"
    assert path.read_text(encoding="utf-8") == called.stdout


def test_the_text_report_is_complete(mine: LabCampaign) -> None:
    text = ask(mine, "report").stdout
    for title in ("ANSWER", "RESULTS", "RANKING", "ACCEPTANCE", "LATENCY", "TRIALS", "FINDINGS", "HOW IT WAS MEASURED"):
        assert f"\n{title}\n---" in text
    for fact in ("minutes without service", "restarts", "seed", "kept in every launch"):
        assert fact in text


def test_report_for_programs(mine: LabCampaign) -> None:
    document = answer(ask(mine, "report", "--json"))
    assert document["format"] == "leadline.report/1"
    assert len(document["trials"]) == 3
    rows = list(csv.DictReader(io.StringIO(ask(mine, "report", "--format", "csv").stdout)))
    assert [(r["setting"], r["cell"]) for r in rows[:2]] == [("depth=2", "coding@1"), ("depth=2", "coding@4")]
    assert answer(ask(mine, "report", "--format", "md", "--json"))["report"].startswith(">")


def test_report_into_a_folder_that_is_not_there_is_wrong_input(mine: LabCampaign) -> None:
    called = ask(mine, "report", "--output", str(mine.folder / "no" / "where.txt"))
    assert called.returncode == 2
    assert "cannot write" in called.stderr


def test_report_before_the_first_run_says_what_to_do(tmp_path: Path) -> None:
    called = ask(LabCampaign(tmp_path / "new"), "report")
    assert (called.returncode, "`leadline run` starts" in called.stderr) == (2, True)


# --- exit codes


def test_3_when_no_setting_runs(tmp_path: Path) -> None:
    faults = (Fault(kind=FaultKind.OOM_AT_START),)
    campaign = LabCampaign(tmp_path / "house", LabSpec(load_s=0.05, faults=faults), depths=(0, 2))
    called = campaign.call("run", "--yes", "--json")
    assert called.returncode == 3
    assert answer(called)["exit_code"] == 3
    assert "no setting has been measured completely" in answer(called)["error"]
    assert "INFEASIBLE" in ask(campaign, "report").stdout


def test_4_when_it_is_paused_to_be_looked_at(tmp_path: Path) -> None:
    faults = (Fault(kind=FaultKind.FOREIGN, launches=(1, 2)),)
    spec = LabSpec(base_step_ms=1.0, token_ms=0.05, load_s=0.05, faults=faults)
    campaign = LabCampaign(tmp_path / "house", spec, depths=(0, 2))
    called = campaign.run()
    assert called.returncode == 4
    assert "paused at depth=2: " in called.stderr
    assert "traffic.private_port" in called.stderr
    assert campaign.run().returncode == 0, "somebody looked, and it goes on"


def test_5_when_the_users_do_not_reach_the_service_again(tmp_path: Path) -> None:
    campaign = LabCampaign(tmp_path / "house", depths=(0, 2))
    add_to(campaign, "traffic", 'drain = ["true"]\nundrain = ["false"]\n')
    add_to(campaign, "budget", "max_launches = 1\n")
    called = campaign.run()
    assert called.returncode == 5
    assert "users do not reach the service: the hook false ended with 1; run it by hand" in called.stderr


def test_1_when_this_machine_fails_us(tmp_path: Path) -> None:
    campaign = LabCampaign(tmp_path / "house")
    (campaign.folder / "records").write_text("a file where a folder must be")
    called = campaign.run()
    assert called.returncode == 1
    assert f"{campaign.folder}/records: File exists" in called.stderr
    assert "Traceback" not in called.stderr


@pytest.mark.parametrize("words", [("frob",), ("run", "--frob"), ("report", "--format", "xml"), ("status", "no/where")])
def test_2_for_wrong_input_in_words_and_as_json(words: tuple[str, ...]) -> None:
    said, told = typed(*words), typed(*words, "--json")
    assert (said.returncode, told.returncode) == (2, 2)
    assert said.stderr
    assert "Traceback" not in said.stderr
    assert json.loads(told.stdout)["exit_code"] == 2


# --- init, version


def test_init_writes_a_campaign_that_plan_accepts_and_never_overwrites_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("--", "llama-server", "-m", "model.gguf", "--port", "18080")
    called = typed("init", "--folder", "new", *words)
    assert called.returncode == 0
    assert "leadline plan new" in called.stdout
    text = (tmp_path / "new" / "campaign.toml").read_text()
    assert f'cwd = "{tmp_path}"' in text, "relative paths of the command keep their meaning"
    assert typed("plan", "new").returncode == 0
    again = typed("init", "--folder", "new", "--json", *words)
    assert (again.returncode, "exists already" in json.loads(again.stdout)["error"]) == (2, True)
    assert (tmp_path / "new" / "campaign.toml").read_text() == text


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (("my-server",), "say --engine with one of llamacpp"),
        (("llama-server", "--api-key", "sk-hush-4711"), "--api-key, which takes a secret in clear"),
        ((), "say one of: -- COMMAND"),
    ],
)
def test_init_refuses_without_leaving_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: tuple[str, ...], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    called = typed("init", "--folder", "new", "--", *argv)
    assert (called.returncode, told in called.stderr) == (2, True), called.stderr
    assert "sk-hush" not in called.stderr + called.stdout
    assert list(tmp_path.iterdir()) == []


def test_version() -> None:
    assert typed("version").stdout == f"leadline {leadline.__version__}\n"
    assert json.loads(typed("version", "--json").stdout) == {"version": leadline.__version__}


def test_a_reader_that_goes_away_is_no_error_of_ours(mine: LabCampaign) -> None:
    shell = f"{shutil.which('sh')}"
    line = f"'{sys.executable}' -m leadline report '{mine.folder}' | head -1"
    done = subprocess.run([shell, "-c", line], capture_output=True, text=True, timeout=60)
    assert done.stdout == "SIMULATED: lab server, not a real engine\n"
    assert done.stderr == ""
