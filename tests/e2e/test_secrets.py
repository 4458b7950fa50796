"""A secret is used, and appears nowhere: in no file of the campaign and in nothing that any command prints."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from support_cli import Called, add_to, ask, copy_of
from support_lab import LabCampaign

from leadline.trial import TrialState

KEY, TEAM, TOKEN = "sk-hush-4711", "team-hush-0815", "hush-token-2357"
SECRETS = (KEY, TEAM, TOKEN)
ENVIRON = {"SERVER_KEY": KEY, "OUR_KEY": KEY, "TEAM_KEY": TEAM, "MY_TOKEN": TOKEN}
SERVER = """#!/bin/sh
# The server takes its key from the environment, and shows it on its command line as the real one does.
exec {python} "$@" --api-key "$SERVER_KEY"
"""


class Keyed(LabCampaign):
    """A campaign whose server wants a key; every command gets it by the environment."""

    environ = ENVIRON

    def call(self, command: str, *words: str, timeout_s: float = 240) -> Called:
        return subprocess.run(
            self.argv(command, *words), capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL,
            env={**os.environ, **self.environ},
        )  # fmt: skip


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Keyed:
    base = tmp_path_factory.mktemp("secrets")
    server = base / "server.sh"
    server.write_text(SERVER.format(python=sys.executable))
    server.chmod(0o755)
    campaign = Keyed(base / "house", depths=(0, 2))
    path = campaign.folder / "campaign.toml"
    path.write_text(path.read_text().replace(f'["{sys.executable}"', f'["{server}"'))
    add_to(
        campaign,
        "service",
        'api_key = { env = "OUR_KEY" }\n'
        'headers = { X-Team = { command = ["sh", "-c", "echo $TEAM_KEY"] }, X-Plain = "shown" }\n',
    )
    return campaign


@pytest.fixture(scope="module")
def said(house: Keyed) -> dict[str, Called]:
    """A whole campaign's life, with everything that was printed."""
    calls: dict[str, tuple[str, ...]] = {
        "plan": (), "rehearse": ("--yes",), "run": ("--yes",), "status": (), "report": (), "try": ("depth=4",),
        "apply": ("--setting", "depth=0", "--yes"), "undo": ("--yes",), "stop": (),
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRON.items():
            patch.setenv(name, value)
        found = {
            name: (house.call if name in ("run", "rehearse") else partial(ask, house))(name, *words)
            for name, words in calls.items()
        }
        for form in ("md", "html", "json", "csv"):
            found[f"report {form}"] = ask(house, "report", "--format", form)
        for name in ("plan", "status", "run"):
            found[f"{name} --json"] = ask(house, name, "--json")
    return found


def test_the_key_is_really_sent(said: dict[str, Called], house: Keyed) -> None:
    assert [said[name].returncode for name in ("plan", "rehearse", "run", "report", "apply", "undo")] == [0] * 6, said
    assert all(t.measurements for t in house.ledger().history().trials)


def test_a_wrong_key_pauses_at_once_and_says_nothing_about_the_setting(house: Keyed, tmp_path: Path) -> None:
    other = copy_of(house, tmp_path / "house")
    other.environ = {**ENVIRON, "OUR_KEY": TOKEN}
    ask(other, "try", "depth=7")
    called = other.call("run", "--yes")
    assert called.returncode == 4
    assert "refuses our request with HTTP 401: check service.api_key" in called.stderr
    assert TOKEN not in called.stderr
    assert other.ledger().history().trials[-1].state is TrialState.FAILED
    assert not other.listening()


def test_no_output_holds_a_secret(said: dict[str, Called]) -> None:
    for name, called in said.items():
        for secret in SECRETS:
            assert secret not in called.stdout + called.stderr, name


def test_no_file_of_the_campaign_holds_a_secret(said: dict[str, Called], house: Keyed) -> None:
    files = [p for p in house.folder.rglob("*") if p.is_file()]
    assert len(files) > 10
    for path in files:
        content = path.read_bytes()
        for secret in SECRETS:
            assert secret.encode() not in content, path


def test_a_secret_in_the_command_line_is_refused_without_showing_it(tmp_path: Path) -> None:
    campaign = LabCampaign(tmp_path / "house")
    path = campaign.folder / "campaign.toml"
    path.write_text(path.read_text().replace('"-np"', f'"--api-key", "{KEY}", "-np"'))
    for command in ("plan", "run", "rehearse", "apply"):
        called = ask(campaign, command)
        assert called.returncode == 2
        assert "--api-key" in called.stderr
        assert KEY not in called.stdout + called.stderr


def test_a_secret_that_is_not_there_is_refused_before_anything_is_written(house: Keyed, tmp_path: Path) -> None:
    campaign = LabCampaign(tmp_path / "house")
    add_to(campaign, "service", 'api_key = { env = "NO_SUCH_KEY" }\n')
    called = campaign.run()
    assert (called.returncode, "NO_SUCH_KEY" in called.stderr) == (2, True)
    assert sorted(p.name for p in campaign.folder.iterdir()) == ["campaign.toml", "lab.json"]
    assert ask(campaign, "plan").returncode == 0, "a plan needs no secret"
