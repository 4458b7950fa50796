"""Campaign folders over the real lab server, driven through the command line as a user would."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import msgspec

from leadline.codec import to_json
from leadline.journal.file import replay
from leadline.journal.ledger import Ledger
from leadline.testing.spec import LabSpec

FAST = LabSpec(base_step_ms=1.0, token_ms=0.05, request_ms=0.02, jump_ms=0.1, draft_step_ms=0.05, load_s=0.05)
TOML = """
[service]
engine = "llamacpp"
target = "command"
command = {command}
start_stall_s = {start_stall_s}
request_stall_s = {request_stall_s}
launch_script = "serve.sh"

[safety]
grace_s = 2
min_free_memory_gib = 0

[traffic]
foreign = "pause"

[knobs]
depth = {depths}

[keep]
spec_method = "ngram-simple"

[load]
concurrency = [1, 4]
requests = {requests}
per_user = 1

[workloads.coding]
builtin = "coding"
body = {{ max_tokens = 24 }}

[goals.one]
weights = {{ "coding@1" = 1 }}

[goals.many]
weights = {{ "coding@4" = 1 }}

[budget]
rounds = {rounds}
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class LabCampaign:
    """A folder with a campaign.toml that starts the lab server."""

    def __init__(
        self,
        folder: Path,
        spec: LabSpec = FAST,
        *,
        depths: tuple[int, ...] = (0, 2, 4),
        rounds: int = 1,
        requests: int = 4,
        start_stall_s: float = 30.0,
        request_stall_s: float = 30.0,
    ) -> None:
        self.folder = folder
        self.port = free_port()
        folder.mkdir(parents=True, exist_ok=True)
        spec = msgspec.structs.replace(spec, launch_counter=str(folder / "launches"))
        (folder / "lab.json").write_bytes(to_json(spec))
        self.command = [
            sys.executable, "-m", "leadline.testing.labserver", "-m", "lab", "--lab-spec", str(folder / "lab.json"),
            "-np", "4", "-c", "16384", "--port", str(self.port), "--spec-type", "ngram-simple",
            "--spec-ngram-simple-size-n", "2", "--spec-ngram-simple-size-m", "2",
        ]  # fmt: skip
        text = TOML.format(
            command=json.dumps(self.command), depths=list(depths), rounds=rounds, requests=requests,
            start_stall_s=start_stall_s, request_stall_s=request_stall_s,
        )  # fmt: skip
        (folder / "campaign.toml").write_text(text, encoding="utf-8")

    def argv(self, command: str, *words: str) -> list[str]:
        return [sys.executable, "-m", "leadline", command, str(self.folder), *words]

    def call(self, command: str, *words: str, timeout_s: float = 240) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.argv(command, *words), capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL
        )

    def run(self) -> subprocess.CompletedProcess[str]:
        return self.call("run", "--yes")

    def ledger(self) -> Ledger:
        return replay(self.folder / "journal.jsonl").ledger

    def listening(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0
