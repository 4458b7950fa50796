"""Commands of a campaign as a user calls them: copies of a finished one, one that runs, and what a folder holds."""

from __future__ import annotations

import copy
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, TypeVar

from support_lab import LabCampaign

from leadline.cli.main import main
from leadline.trial import TrialState

Called = subprocess.CompletedProcess[str]
T = TypeVar("T")
PATIENCE_S = 60.0


def wait_until(look: Callable[[], T], what: str) -> T:
    """What `look` says as soon as it is true."""
    until = time.monotonic() + PATIENCE_S
    while not (seen := look()):
        assert time.monotonic() < until, f"{what}: not within {PATIENCE_S:g} s"
        time.sleep(0.02)
    return seen


def typed(*words: str) -> Called:
    """`leadline WORDS` through its entry point in this very process: quick, for what starts no server."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    before = sys.argv, sys.stdin
    with redirect_stdout(out), redirect_stderr(err), open(os.devnull, encoding="utf-8") as nothing:
        sys.argv, sys.stdin = ["leadline", *words], nothing
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        finally:
            sys.argv, sys.stdin = before
    return Called(words, code, out.getvalue(), err.getvalue())


def ask(campaign: LabCampaign, command: str, *words: str) -> Called:
    """The same for a command of a campaign."""
    return typed(command, str(campaign.folder), *words)


def copy_of(campaign: LabCampaign, folder: Path) -> LabCampaign:
    """The same campaign with all that it has measured, in a folder of its own. Only one of them may run at a time."""
    shutil.copytree(campaign.folder, folder)
    other = copy.copy(campaign)
    other.folder = folder
    return other


def add_to(campaign: LabCampaign, table: str, lines: str) -> None:
    """More keys for a table of its campaign.toml; a table that is not there is made."""
    path = campaign.folder / "campaign.toml"
    text = path.read_text(encoding="utf-8")
    head = f"[{table}]\n"
    path.write_text(text.replace(head, head + lines) if head in text else f"{text}\n{head}{lines}", encoding="utf-8")


def tree(folder: Path) -> dict[str, tuple[str, int]]:
    """Digest and time of change of every file below a folder."""
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {
        str(p.relative_to(folder)): (hashlib.sha256(p.read_bytes()).hexdigest(), p.stat().st_mtime_ns) for p in files
    }


def answer(called: Called) -> Any:
    """The one JSON object on standard output."""
    return json.loads(called.stdout)


def launches(campaign: LabCampaign) -> int:
    """How often its server was ever started, by the server's own count."""
    counter = campaign.folder / "launches"
    return int(counter.read_text()) if counter.exists() else 0


@contextmanager
def sailing(campaign: LabCampaign) -> Iterator[subprocess.Popen[str]]:
    """`leadline run`, once it measures; whatever happens here, it has ended afterwards."""
    process = subprocess.Popen(
        campaign.argv("run", "--yes"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: process.poll() is not None or _measures(campaign), "the first measurement")
        assert process.poll() is None, process.communicate()[1]
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)


def _measures(campaign: LabCampaign) -> bool:
    return any(t.state is TrialState.MEASURING for t in campaign.ledger().live_trials())
