"""What each command says while a campaign runs, how `stop` ends it, and what is said of one that died."""

from __future__ import annotations

from pathlib import Path

import pytest
from support_cli import Called, answer, ask, sailing, wait_until
from support_lab import LabCampaign

from leadline.testing.spec import LabSpec

SLOW = LabSpec(base_step_ms=1500.0, load_s=0.05)  # a measurement takes minutes
FORMATS = ("text", "md", "html", "json", "csv")


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Called]:
    """What each command said while a slow campaign ran, what `stop` did, and what they said afterwards."""
    campaign = LabCampaign(tmp_path_factory.mktemp("running") / "house", SLOW, depths=(0, 2))
    said: dict[str, Called] = {}
    with sailing(campaign) as process:
        for form in FORMATS:
            said[f"report {form}"] = ask(campaign, "report", "--format", form)
        for name, words in (
            ("status", ("--json",)), ("plan", ("--json",)), ("try", ("depth=9", "--json")), ("run", ("--yes",)),
            ("apply", ("--yes",)), ("rehearse", ("--yes",)),
        ):  # fmt: skip
            said[name] = ask(campaign, name, *words)
        said["stop"] = ask(campaign, "stop")
        out, err = process.communicate(timeout=60)
        said["the run itself"] = Called(process.args, process.returncode, out, err)
    assert not campaign.listening()
    said["status afterwards"] = ask(campaign, "status", "--json")
    said["report afterwards"] = ask(campaign, "report")
    return said


@pytest.mark.parametrize("form", FORMATS)
def test_a_report_can_be_had_while_it_runs(watched: dict[str, Called], form: str) -> None:
    said = watched[f"report {form}"]
    assert said.returncode == 0, said.stderr
    assert said.stdout


def test_a_report_of_a_campaign_that_runs_says_so(watched: dict[str, Called]) -> None:
    assert "State:  running.\n" in watched["report text"].stdout
    assert "No recommendation yet." in watched["report text"].stdout
    assert answer(watched["report json"])["recommendation"] is None


def test_status_while_it_runs_says_who_holds_it_and_what_it_does(watched: dict[str, Called]) -> None:
    status = answer(watched["status"])
    assert status["state"] == "running"
    assert status["owner"].startswith("leadline run, pid ")
    assert status["present"] == "trial 1, depth=2, measuring"
    assert "--spec-ngram-simple-size-m 2" in status["in_force"]


def test_plan_while_it_runs_counts_what_is_left_and_takes_our_server_for_no_stranger(
    watched: dict[str, Called],
) -> None:
    plan = answer(watched["plan"])
    assert (plan["launches"], plan["in_the_way"]) == (1, "")


def test_try_while_it_runs_says_when_it_is_taken_up(watched: dict[str, Called]) -> None:
    assert answer(watched["try"])["running"] is True


@pytest.mark.parametrize("command", ["run", "rehearse"])
def test_a_second_hand_on_the_service_is_refused_and_told_whose_the_first_is(
    watched: dict[str, Called], command: str
) -> None:
    said = watched[command]
    assert said.returncode == 2
    assert "is held by another process: leadline run, pid " in said.stderr
    assert "`leadline stop`" in said.stderr


def test_apply_before_there_is_an_answer_is_refused(watched: dict[str, Called]) -> None:
    assert (watched["apply"].returncode, "no recommendation yet" in watched["apply"].stderr) == (2, True)


def test_stop_ends_it_in_order(watched: dict[str, Called]) -> None:
    assert watched["stop"].returncode == 0
    assert watched["stop"].stdout.startswith("stopped: leadline run, pid ")
    assert watched["the run itself"].returncode == 143
    assert "stopped by signal 15" in watched["the run itself"].stderr
    status = answer(watched["status afterwards"])
    assert (status["state"], status["why"]) == ("stopped", "stopped by signal 15")
    assert (status["owner"], status["in_force"], status["trials"]) == ("", "", {"interrupted": 1})
    assert "State:  stopped: stopped by signal 15.\n" in watched["report afterwards"].stdout


def test_status_after_a_kill_says_that_it_died_and_what_to_do(tmp_path: Path) -> None:
    campaign = LabCampaign(tmp_path / "house", SLOW, depths=(0, 2))
    with sailing(campaign) as process:
        process.kill()
        process.wait()
        called = ask(campaign, "status")
        assert called.stdout.startswith("died: its process is gone")
        assert "`leadline run` goes on" in called.stdout
        assert "was in force" in called.stdout
        wait_until(lambda: not campaign.listening(), "the end of the server")
