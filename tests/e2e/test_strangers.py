"""Whatever listens where we would is somebody else's: it is named, nothing is started, and it lives on untouched."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support_cli import add_to, answer, ask, tree
from support_lab import LabCampaign, free_port

OWNER = """
import os, signal, socket, sys
def note(number, frame):
    with open(sys.argv[2], "a") as file:
        file.write(f"{number}\\n")
for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
    try:
        signal.signal(number, note)
    except (OSError, ValueError):
        pass
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("127.0.0.1", int(sys.argv[1])))
listener.listen(64)
print("listening", flush=True)
while True:
    listener.accept()[0].close()
"""


class Stranger:
    """A process that holds a port and writes every signal that it gets into a file."""

    def __init__(self, port: int, noted: Path) -> None:
        self.noted = noted
        argv = [sys.executable, "-c", OWNER, str(port), str(noted)]
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "listening\n"
        self.facts = psutil.Process(self.process.pid)

    def untouched(self) -> bool:
        return self.process.poll() is None and not self.noted.exists()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LabCampaign, Stranger]]:
    """A new campaign whose port a stranger holds."""
    campaign = LabCampaign(tmp_path_factory.mktemp("strangers") / "house", depths=(0, 2))
    stranger = Stranger(campaign.port, campaign.folder.parent / "signals")
    yield campaign, stranger
    stranger.end()


@pytest.mark.parametrize("command", ["run", "rehearse"])
def test_a_port_in_use_is_refused_with_its_owner_before_anything_starts(
    house: tuple[LabCampaign, Stranger], command: str
) -> None:
    campaign, stranger = house
    called = campaign.call(command, "--yes")
    assert called.returncode == 2
    name = f"{stranger.facts.name()} (pid {stranger.process.pid})"
    assert f"port {campaign.port} is in use by {name}. Leadline never stops what it did not start" in called.stderr
    assert "traffic.private_port" in called.stderr
    assert not (campaign.folder / "launches").exists()
    assert stranger.untouched()


def test_it_is_refused_before_we_are_asked_and_nothing_is_written(house: tuple[LabCampaign, Stranger]) -> None:
    campaign, stranger = house
    before = tree(campaign.folder)
    called = campaign.call("run", "--json")
    assert called.returncode == 2
    assert f"(pid {stranger.process.pid})" in answer(called)["error"]
    assert tree(campaign.folder) == before


def test_no_other_command_touches_it_either(house: tuple[LabCampaign, Stranger]) -> None:
    campaign, stranger = house
    for words in (("plan",), ("status",), ("stop",), ("try", "depth=4"), ("report",), ("apply", "--yes")):
        ask(campaign, *words)
    assert stranger.untouched()


def test_behind_a_drain_hook_that_does_not_free_the_port_nothing_starts_either(tmp_path: Path) -> None:
    """Only the hook knows whether it frees the port, so it runs first, and is taken back."""
    campaign = LabCampaign(tmp_path / "house", depths=(0, 2))
    add_to(campaign, "traffic", f'drain = ["touch", "{tmp_path}/off"]\nundrain = ["rm", "{tmp_path}/off"]\n')
    stranger = Stranger(campaign.port, tmp_path / "signals")
    try:
        called = campaign.run()
        assert (called.returncode, f"(pid {stranger.process.pid})" in called.stderr) == (2, True)
        assert not (campaign.folder / "launches").exists()
        assert not (tmp_path / "off").exists()
        assert stranger.untouched()
        status = answer(ask(campaign, "status", "--json"))
        assert (status["state"], "is in use by" in status["why"]) == ("stopped", True)
    finally:
        stranger.end()


def test_trials_on_a_private_port_leave_the_running_service_alone(tmp_path: Path) -> None:
    """The operator's service holds its own port all the while; we measure beside it."""
    campaign = LabCampaign(tmp_path / "house", depths=(0, 2))
    add_to(campaign, "traffic", f"private_port = {free_port()}\n")
    stranger = Stranger(campaign.port, tmp_path / "signals")
    try:
        called = campaign.run()
        assert called.returncode == 0, called.stderr
        assert stranger.untouched()
        assert campaign.ledger().launches == 2
    finally:
        stranger.end()
