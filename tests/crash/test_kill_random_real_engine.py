"""SIGKILL of `leadline run` at random moments of a shortened campaign on the real llama-server."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support_crash import GRACE_S, Crash, assert_whole
from support_lab import free_port

from leadline.journal.events import tag

pytestmark = [pytest.mark.engine, pytest.mark.torture]

SERVER = Path(__file__).resolve().parents[2] / ".demo" / "server.json"
KILLS = 12
SEED = 2
DEPTHS = (0, 2, 4)
FLAGS = ["-np", "2", "-c", "4096", "--spec-type", "ngram-simple"]
TODAY = ["--spec-ngram-simple-size-n", "2", "--spec-ngram-simple-size-m", "2"]
TOML = """
[service]
engine = "llamacpp"
target = "command"
command = {command}
{cwd}

[safety]
grace_s = {grace_s}
min_free_memory_gib = 0

[knobs]
depth = {depths}

[keep]
spec_method = "ngram-simple"

[load]
concurrency = [1, 2]
requests = 4
per_user = 2

[workloads.chat]
builtin = "chat"
body = {{ max_tokens = 16 }}

[goals.one]
weights = {{ "chat@1" = 1 }}

[goals.two]
weights = {{ "chat@2" = 1 }}

[budget]
rounds = 1
"""


class Yard:
    """Campaigns on the real server, one after the other."""

    def __init__(self, folder: Path, server: dict) -> None:
        self.folder = folder
        self.server = server
        self.campaigns: list[Crash] = []

    def fresh(self) -> Crash:
        folder = self.folder / f"campaign-{len(self.campaigns)}"
        folder.mkdir()
        port = free_port()
        cwd = self.server.get("cwd")
        text = TOML.format(
            command=json.dumps([*self.server["argv"], *FLAGS, "--port", str(port), *TODAY]),
            cwd=f"cwd = {json.dumps(cwd)}" if cwd else "", grace_s=GRACE_S, depths=list(DEPTHS),
        )  # fmt: skip
        (folder / "campaign.toml").write_text(text, encoding="utf-8")
        self.campaigns.append(Crash(folder, port))
        return self.campaigns[-1]


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    if not SERVER.exists():
        pytest.skip(f"there is no {SERVER.name}: `make setup` looks for a llama-server")
    server = json.loads(SERVER.read_text(encoding="utf-8"))
    if server["simulated"]:
        pytest.skip("no real engine runs on this machine: " + "; ".join(server["passed_over"]))
    it = Yard(tmp_path, server)
    yield it
    for campaign in it.campaigns:
        campaign.end()


def assert_finished(it: Crash) -> None:
    assert_whole(it, [f"depth={depth}" for depth in DEPTHS])


def killed_after(it: Crash, seconds: float) -> bool:
    """Whether the campaign was still under way then; if so, it was killed and nothing is left of it."""
    voyage = it.sail()
    try:
        voyage.process.wait(seconds)
    except subprocess.TimeoutExpired:
        voyage.signal(signal.SIGKILL)
    code = voyage.ended()
    assert code in (0, 128 + 9), voyage.said()
    it.assert_all_gone(voyage)
    return code != 0


def test_killed_at_random_moments(yard: Yard, capsys: pytest.CaptureFixture[str]) -> None:
    """Kills fall anywhere in the time that a campaign takes. One that gets to its end makes room for the next."""
    it = yard.fresh()
    began = time.monotonic()
    it.finish()
    assert_finished(it)
    whole_s = time.monotonic() - began
    moments = random.Random(SEED)
    kills: list[str] = []
    it = yard.fresh()
    while len(kills) < KILLS:
        known = it.journal.read_bytes() if it.journal.exists() else b""
        seconds = moments.uniform(0.0, whole_s)
        under_way = killed_after(it, seconds)
        now = it.journal.read_bytes() if it.journal.exists() else b""
        assert now.startswith(known[: known.rfind(b"\n") + 1])
        if under_way:
            after = it.entries()
            kills.append(f"{seconds:5.1f} s: {tag(after[-1]) if after else 'nothing written yet'}")
        else:
            assert_finished(it)
            it = yard.fresh()
    it.finish()
    assert_finished(it)
    with capsys.disabled():
        print(report(yard, kills, whole_s))


def report(yard: Yard, kills: list[str], whole_s: float) -> str:
    trials = [t for c in yard.campaigns for t in c.ledger().history().trials]
    states = ", ".join(f"{sum(t.state == s for t in trials)} {s}" for s in sorted({t.state for t in trials}))
    return "\n".join(
        [
            f"\n{yard.server['kind']}: {len(kills)} kills in {len(yard.campaigns)} campaigns of {whole_s:.0f} s",
            *(f"  killed at {kill}" for kill in kills),
            f"  {len(trials)} trials: {states}; every campaign complete, no server left",
        ]
    )
