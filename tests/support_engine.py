"""The real llama-server that `make setup` found, for tests that need one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest

FOUND = Path(__file__).resolve().parent.parent / ".demo" / "server.json"


class Server(NamedTuple):
    argv: list[str]
    cwd: str


def engine_or_skip() -> Server:
    """Its command line and working directory; skips, saying why, where this machine has none."""
    if not FOUND.exists():
        pytest.skip("no .demo/server.json: `make setup` looks for a real llama-server")
    found = json.loads(FOUND.read_text(encoding="utf-8"))
    if found["simulated"]:
        pytest.skip(f"this machine cannot run a real llama-server: {'; '.join(found['passed_over'])}")
    return Server(argv=found["argv"], cwd=found["cwd"])
