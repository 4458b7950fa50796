"""Runs the commands of a page as a reader would type them, with the lab server under the name llama-server."""

from __future__ import annotations

import os
import pty
import re
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
from support_lab import FAST, free_port

from leadline.testing.labserver import install
from leadline.testing.physics import WORKLOADS

PORT = "8080"
SHORT = {name: msgspec.structs.replace(kind, out_tokens=24.0) for name, kind in WORKLOADS.items()}


class LabShell:
    """One folder, one port in place of 8080, one terminal that answers yes to every question."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        programs = folder / "bin"
        programs.mkdir()
        install(programs, msgspec.structs.replace(FAST, workloads=SHORT))
        path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
        self.env = {**os.environ, "PATH": path, "COLUMNS": "100"}
        self.home = folder / "home"
        self.home.mkdir()

    def run(self, text: str) -> str:
        """The output of all commands of a block. Raises AssertionError with it when one of them fails."""
        return "".join(self._run(line.removeprefix("$ ")) for line in text.split("\n") if line.startswith("$ "))

    def listening(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def _run(self, command: str) -> str:
        ours, terminal = pty.openpty()
        try:
            os.write(ours, b"y\n" * 4)
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", command.replace(PORT, str(self.port))],
                stdin=terminal, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120,
                cwd=self.home, env=self.env,
            )  # fmt: skip
        finally:
            os.close(terminal)
            os.close(ours)
        assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}"
        return done.stdout.replace(str(self.port), PORT).replace("[y/N]: ", "[y/N]: y\n")


def matches(shown: str, output: str) -> bool:
    """Whether an output is what a block shows: `...` stands for anything, decimals may differ. A block without output
    shows nothing of it."""
    expected = [line for line in shown.split("\n") if line and not line.startswith("$ ")]
    if not expected:
        return True
    pattern = "".join(r"(?:.*\n)*?" if line == "..." else _pattern(line) for line in expected)
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in output.split("\n") if line)) is not None


def _pattern(line: str) -> str:
    parts = re.split(r"(\d+\.\d+|\.\.\.)", line.rstrip())
    words = {"...": r".*"}
    return "".join(words.get(p, r"\d+\.\d+") if i % 2 else re.escape(p) for i, p in enumerate(parts)) + r" *\n"
