"""Making a setting the permanent one, and taking it back byte for byte."""

from __future__ import annotations

import os
import subprocess
import urllib.request
from pathlib import Path

import pytest
from support_cli import answer, ask, copy_of, tree, wait_until
from support_lab import LabCampaign

THEIRS = b"#!/bin/sh\n# the operator's own \xe2\x80\xa8script\nexec llama-server -m model.gguf\n"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> LabCampaign:
    campaign = LabCampaign(tmp_path_factory.mktemp("finished") / "house", depths=(0, 2))
    called = campaign.run()
    assert called.returncode == 0, called.stderr
    return campaign


@pytest.fixture
def house(finished: LabCampaign, tmp_path: Path) -> LabCampaign:
    return copy_of(finished, tmp_path / "house")


def script(house: LabCampaign) -> Path:
    return house.folder / "serve.sh"


def kept(house: LabCampaign) -> Path:
    return house.folder / "serve.sh.leadline-previous"


def write_theirs(house: LabCampaign) -> None:
    script(house).write_bytes(THEIRS)
    script(house).chmod(0o750)


def test_the_script_really_starts_the_server_on_the_services_own_port(house: LabCampaign) -> None:
    called = ask(house, "apply", "--setting", "depth=0", "--yes")
    assert called.returncode == 0, called.stderr
    server = subprocess.Popen([script(house)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/")
    try:
        health = f"http://127.0.0.1:{house.port}/health"

        def healthy() -> bool:
            try:
                with urllib.request.urlopen(health, timeout=5) as reply:
                    return bool(reply.status == 200)
            except OSError:
                return False

        wait_until(healthy, "health of the server that the script starts")
        argv = Path(f"/proc/{server.pid}/cmdline").read_text().split("\0")[:-1]
        assert "--spec-type" not in argv
        assert argv[-2:] == ["--metrics", "--slots"]
    finally:
        server.terminate()
        server.wait()


def test_apply_says_what_it_changes_and_that_it_restarts_nothing(house: LabCampaign) -> None:
    called = ask(house, "apply", "--setting", "depth=0", "--yes")
    lines = called.stdout.splitlines()
    assert lines[0] == "setting  depth=0"
    assert "  - --spec-type ngram-simple" in lines
    assert f"put     {script(house)} (mode 0755" in called.stdout
    assert "Start your service with it" in lines[-1]
    assert os.access(script(house), os.X_OK)
    head = script(house).read_text()
    assert "# Undo: leadline undo" in head
    assert f"# By hand: rm {script(house)}" in head
    assert not house.listening()
    assert answer(ask(house, "status", "--json"))["applied"].startswith("depth=0 since ")


def test_apply_as_json(house: LabCampaign) -> None:
    done = answer(ask(house, "apply", "--goal", "one", "--yes", "--json"))
    assert done["path"] == str(script(house))
    assert len(done["steps"]) == 1


def test_without_a_yes_nothing_is_written_or_taken_back(house: LabCampaign) -> None:
    before = tree(house.folder)
    assert ask(house, "apply", "--setting", "depth=0").returncode == 2
    assert tree(house.folder) == before
    ask(house, "apply", "--setting", "depth=0", "--yes")
    before = tree(house.folder)
    called = ask(house, "undo")
    assert (called.returncode, "say --yes" in called.stderr) == (2, True)
    assert tree(house.folder) == before


def test_undo_removes_ours_when_there_was_none(house: LabCampaign) -> None:
    before = tree(house.folder)
    ask(house, "apply", "--setting", "depth=0", "--yes")
    called = ask(house, "undo", "--yes")
    assert (called.returncode, "as it was before" in called.stdout) == (0, True)
    assert tree(house.folder) == before
    again = ask(house, "undo", "--yes")
    assert (again.returncode, "nothing to undo" in again.stderr) == (2, True)


def test_undo_gives_the_previous_script_back_byte_for_byte(house: LabCampaign) -> None:
    write_theirs(house)
    before, inode = tree(house.folder), script(house).stat().st_ino
    assert ask(house, "apply", "--setting", "depth=0", "--yes").returncode == 0
    assert kept(house).read_bytes() == THEIRS
    assert script(house).read_bytes() != THEIRS
    assert answer(ask(house, "undo", "--yes", "--json"))["undone"] == "depth=0"
    assert tree(house.folder) == before
    assert (script(house).stat().st_ino, script(house).stat().st_mode & 0o777) == (inode, 0o750)
    assert not kept(house).exists()


def test_a_script_that_somebody_changed_since_is_neither_overwritten_nor_removed(house: LabCampaign) -> None:
    write_theirs(house)
    ask(house, "apply", "--setting", "depth=0", "--yes")
    script(house).write_bytes(script(house).read_bytes() + b"# and one line of mine\n")
    before = tree(house.folder)
    called = ask(house, "undo", "--yes")
    assert called.returncode == 2
    assert "somebody else changed" in called.stderr
    assert str(kept(house)) in called.stderr
    assert tree(house.folder) == before


def test_a_second_apply_is_refused_until_the_first_is_taken_back(house: LabCampaign) -> None:
    write_theirs(house)
    ask(house, "apply", "--setting", "depth=0", "--yes")
    before = tree(house.folder)
    called = ask(house, "apply", "--setting", "depth=2", "--yes")
    assert (called.returncode, "`leadline undo` first" in called.stderr) == (2, True)
    assert tree(house.folder) == before


def test_a_rollout_that_fails_leaves_everything_as_it_was_and_can_be_tried_again(house: LabCampaign) -> None:
    """A script is kept from an earlier rollout whose note is lost: it is never overwritten."""
    write_theirs(house)
    kept(house).write_bytes(b"still needed")
    before = tree(house.folder)
    called = ask(house, "apply", "--setting", "depth=0", "--yes")
    assert called.returncode == 1
    assert str(kept(house)) in called.stderr
    assert "is as it was: see to what is in the way, and apply again" in called.stderr
    assert tree(house.folder) == before
    kept(house).unlink()
    assert ask(house, "apply", "--setting", "depth=0", "--yes").returncode == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--setting", "depth=64"), "depth=64 has not run in this campaign, and only what ran is applied"),
        (("--setting", "depth"), "a setting is written name=value"),
        (("--goal", "nope"), "no goal named 'nope'; there are one, many"),
        (("--goal", "one", "--setting", "depth=0"), "--goal and --setting"),
    ],
)
def test_only_what_ran_and_what_was_asked_for_is_applied(house: LabCampaign, words: tuple[str, ...], told: str) -> None:
    called = ask(house, "apply", *words, "--yes")
    assert (called.returncode, told in called.stderr) == (2, True), called.stderr
    assert not script(house).exists()
