"""The demo: a real campaign on the server that demo/prepare.py found, in .demo/demo.

The last campaign is kept as .demo/demo.previous. Ends as `leadline run` does: answer, tables, report.html.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

from prepare import FOLDER, free_port

HERE = FOLDER.parent / "demo"
SLOTS = ["-np", "4", "-c", "8192"]
TODAY = ["--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "2", "--spec-ngram-simple-size-m", "4"]
REQUESTS = 6


def main() -> int:
    server = json.loads((FOLDER / "server.json").read_text(encoding="utf-8"))
    campaign, previous = FOLDER / "demo", FOLDER / "demo.previous"
    if campaign.exists():
        shutil.rmtree(previous, ignore_errors=True)
        campaign.rename(previous)
    campaign.mkdir()
    shutil.copy(HERE / "edits.jsonl", campaign)
    command = [*server["argv"], *SLOTS, "--port", str(free_port()), *TODAY]
    template = (HERE / "campaign.toml.in").read_text(encoding="utf-8")
    text = template.format(command=json.dumps(command), cwd=json.dumps(str(FOLDER)), requests=REQUESTS)
    (campaign / "campaign.toml").write_text(text, encoding="utf-8")
    print(f"demo: a campaign on {server['kind']}: leadline run {campaign.relative_to(FOLDER.parent)}", flush=True)
    return subprocess.run([sys.executable, "-m", "leadline", "run", str(campaign), "--yes"], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
