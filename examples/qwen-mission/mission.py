"""The whole mission, unattended, on a real systemd over a real ssh: init, rehearse, run, report, apply, undo.

`make mission`, or `python examples/qwen-mission/mission.py FOLDER` as root. The service's machine is the test host of
tests/testhost, its program the lab server. Ends with 0 when everything came out as the README says.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "tests")]

from run import UNIT as WORDS  # noqa: E402
from support_systemd import SystemdHost  # noqa: E402

UNIT = "sglang-qwen.service"
FILE = f"/etc/systemd/system/{UNIT}"
PORT = 30000
WANTED = {"greedy-few": "depth=4", "greedy-crowd": "depth=3", "coding-few": "depth=4", "coding-crowd": "depth=2"}


def leadline(*words: str) -> str:
    """One command as its user types it. Its output; what it says on standard error is passed on."""
    print(f"\n$ leadline {' '.join(words)}", flush=True)
    done = subprocess.run([sys.executable, "-m", "leadline", *words], check=True, stdout=subprocess.PIPE, text=True)
    print(done.stdout, flush=True)
    return done.stdout


def install(host: SystemdHost) -> str:
    """The service as its operator has it. The hash of its unit file."""
    host.put("/opt/qwen/lab.json", (HERE / "lab.json").read_text(encoding="utf-8"))
    program = f'#!/bin/sh\nexec {host.python} -m leadline.testing.labserver --lab-spec /opt/qwen/lab.json "$@"\n'
    host.put("/opt/qwen/sglang", program, 0o755)
    host.put(
        FILE,
        "[Unit]\nDescription=Qwen3.5-122B-A10B on SGLang\nStartLimitIntervalSec=0\n[Service]\n"
        f"ExecStart=/opt/qwen/sglang {WORDS} --host 0.0.0.0 --port {PORT}\nRestart=no\n"
        "[Install]\nWantedBy=multi-user.target\n",
    )
    host.sh(f"systemctl daemon-reload && systemctl enable --now {UNIT}")
    return digest(host)


def digest(host: SystemdHost) -> str:
    return host.sh(f"sha256sum {FILE}").stdout.split()[0]


def prepare(folder: Path, host: SystemdHost) -> None:
    """What `init` finds out, with the mission's knobs, traffic and goals."""
    found = folder / "found"
    words = ("--unit", UNIT, "--host", f"ssh://{host.ssh_name}", "--ssh-config", str(host.ssh_config))
    leadline("init", *words, "--folder", str(found))
    service = tomllib.loads((found / "campaign.toml").read_text(encoding="utf-8"))["service"]
    lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in service.items() if key != "engine")
    template = (HERE / "campaign.toml.in").read_text(encoding="utf-8")
    template = template.replace("[safety]\n", "[safety]\ndisconnect_grace_s = 5\n").replace(
        "[budget]", "[canary]\nminutes = 0.2\nworst_frac = 0.15\n\n[budget]"
    )
    (folder / "campaign.toml").write_text(template.format(service=lines), encoding="utf-8")
    for name in ("greedy.jsonl", "coding.jsonl"):
        shutil.copy(HERE / name, folder)


def check(folder: Path, host: SystemdHost, before: str) -> list[str]:
    """What did not come out as it should."""
    report = json.loads(leadline("report", str(folder), "--format", "json"))
    text = leadline("report", str(folder))
    answers = {g["goal"]: g["setting"] for g in report["recommendation"]["goals"]}
    wrong = [f"{goal}: {answers.get(goal)}, not {want}" for goal, want in WANTED.items() if answers.get(goal) != want]
    for needle, what in (
        ("ratio", "both traffics side by side"),
        ("fits up to C=4", "how far depth 10 goes"),
        ("waiting_requests", "how many of 64 waited"),
    ):
        wrong += [] if needle in text or needle in json.dumps(report) else [f"the report lacks {what}"]
    return wrong + ([] if digest(host) == before else ["the unit file has changed"])


def main(at: str) -> int:
    folder = Path(at).resolve()
    folder.mkdir(parents=True)
    host = SystemdHost.up()
    try:
        before = install(host)
        prepare(folder, host)
        leadline("plan", str(folder))
        leadline("rehearse", str(folder), "--yes")
        leadline("run", str(folder), "--yes")
        wrong = check(folder, host, before)
        leadline("apply", str(folder), "--goal", "coding-crowd", "--yes")
        leadline("status", str(folder))
        leadline("undo", str(folder), "--yes")
        left = host.sh(
            "ls -A /run/systemd/system /run/leadline /etc/systemd/system 2>/dev/null | grep -i leadline || true"
        )
        wrong += [f"left on the host: {left.stdout}"] if left.stdout else []
        wrong += [] if digest(host) == before else ["the unit file has changed after undo"]
    finally:
        host.down()
    print("\n".join(["mission: not as expected:", *wrong] if wrong else ["mission: every answer as expected"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
