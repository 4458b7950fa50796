"""The mission's campaign against a lab server that this machine runs: `python examples/qwen-mission/run.py FOLDER`.

Ends as `leadline run` does. FOLDER must not exist yet; one that was cut short goes on with `leadline run FOLDER`.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path

from leadline import codec
from leadline.testing.labserver import install
from leadline.testing.spec import LabSpec

HERE = Path(__file__).parent
UNIT = (
    "serve --model-path lab/Qwen3.5-122B-A10B --tp-size 4 --mem-fraction-static 0.88 --max-running-requests 48 "
    "--enable-metrics --speculative-algorithm EAGLE --speculative-num-steps 1 --speculative-eagle-topk 1 "
    "--speculative-num-draft-tokens 2"
)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def prepare(folder: Path) -> None:
    """A campaign folder with the lab server as its SGLang, at depth 1 today."""
    folder.mkdir(parents=True)
    for name in ("greedy.jsonl", "coding.jsonl"):
        shutil.copy(HERE / name, folder)
    program = install(folder, codec.from_json((HERE / "lab.json").read_bytes(), LabSpec))
    command = [str(program), *UNIT.split(), "--host", "127.0.0.1", "--port", str(free_port())]
    template = (HERE / "campaign.toml.in").read_text(encoding="utf-8")
    text = template.format(service=f'target = "command"\ncommand = {json.dumps(command)}')
    (folder / "campaign.toml").write_text(text, encoding="utf-8")


def main(folder: str) -> int:
    prepare(Path(folder).resolve())
    return subprocess.run([sys.executable, "-m", "leadline", "run", folder, "--yes"], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
