"""Every case of tests/golden/systemd/cases.json on a real systemd: its words, and those of the process, are those of
the table, which the reader is held to as well; and what is written for it is read by it as it was meant."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support_systemd import SystemdHost, needs_systemd

from leadline.launch import LaunchSpec
from leadline.targets.systemd import execline

pytestmark = needs_systemd
GOLDEN = Path(__file__).parents[1] / "golden" / "systemd"
ROWS: list[dict[str, Any]] = json.loads((GOLDEN / "cases.json").read_text())
SHAPES: list[dict[str, Any]] = json.loads((GOLDEN / "shapes.json").read_text())
PROGRAM = """\
import json, os
words = [w.decode(errors="surrogateescape") for w in open("/proc/self/cmdline", "rb").read().split(b"\\0")[:-1]]
unit = os.path.basename(open("/proc/self/cgroup").read().split("\\n")[0])
with open("/tmp/argv-" + unit, "a") as out:
    out.write(json.dumps(words) + "\\n")
"""
DRIVER = """\
import json, os, subprocess, sys

def said(*words):
    return subprocess.run(words, capture_output=True, text=True).stdout

def state(unit):
    path = said("busctl", "call", "org.freedesktop.systemd1", "/org/freedesktop/systemd1",
                "org.freedesktop.systemd1.Manager", "LoadUnit", "s", unit).split('"')[1]
    entries = said("busctl", "--json=short", "get-property", "org.freedesktop.systemd1", path,
                   "org.freedesktop.systemd1.Service", "ExecStart")
    return json.loads(entries)["data"] if entries else []

units = json.load(open(sys.argv[1]))
for name, unit in units.items():
    for path, text in unit["files"].items():
        os.makedirs(os.path.dirname(path), exist_ok=True)
        open(path, "w", newline="", encoding="utf-8", errors="surrogateescape").write(text)
said("systemctl", "daemon-reload")
found = {}
for name in units:
    if "--start" in sys.argv:
        said("systemctl", "start", name)
    try:
        lines = open("/tmp/argv-" + name).read().splitlines()
    except FileNotFoundError:
        lines = []
    found[name] = {"bus": [entry[1] for entry in state(name)], "argv": [json.loads(line) for line in lines]}
print(json.dumps(found))
"""


def on(host: SystemdHost, units: dict[str, dict[str, str]], name: str, option: str = "--start") -> dict[str, Any]:
    """Files by unit, put on the host and started; what systemd has of each, and the words that its processes had."""
    host.put("/opt/argv.py", PROGRAM)
    host.put("/opt/driver.py", DRIVER)
    host.put(f"/opt/{name}.json", json.dumps({unit: {"files": files} for unit, files in units.items()}))
    answer: dict[str, Any] = json.loads(host.sh(f"/usr/bin/python3 /opt/driver.py /opt/{name}.json {option}").stdout)
    return answer


def unit_of(row: dict[str, Any]) -> str:
    return f"case-{row['name'].split()[0]}.service"


def texts_of(row: dict[str, Any]) -> dict[str, str]:
    path = f"/run/systemd/system/{unit_of(row)}"
    return {path: row["unit"], **{f"{path}.d/{name}": text for name, text in row.get("drop_ins", {}).items()}}


@pytest.fixture(scope="module")
def answers(systemd_host: SystemdHost) -> dict[str, Any]:
    return on(systemd_host, {unit_of(r): {**texts_of(r), **r.get("files", {})} for r in ROWS}, "cases")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_systemd_reads_the_table_as_we_do(answers: dict[str, Any], row: dict[str, Any]) -> None:
    found = answers[unit_of(row)]
    assert found["bus"] == row["bus"]
    assert found["argv"] == ([row["program"]] if "program" in row else row["argv"])


WORDS = (
    "",
    " ",
    "a b\tc\nd",
    "$HOME ${HOME} $$ $",
    "%n %% %Z 50%",
    "\\ \\\\ \\n \\x41",
    "'",
    '"',
    'it\'s "both"',
    '{"model": "a\\"b", "n": [1, 2], "p": "$V"}',
    ";",
    "# no comment",
    "é 漢字 \u00a0\u2028\ufeff😀",
    "\x01\x7f",
    "@x",
    "-:+!",
    "a\\",
    'exec serve "$@" --n $((D + 1)) | tee /tmp/x; echo ${V:-y} # %i',
)


def test_what_is_written_is_read_by_systemd_as_it_was_meant(systemd_host: SystemdHost) -> None:
    """Each word alone, all of them together, and with the prefix that stops variables."""
    unit = "[Service]\nType=exec\nEnvironment=V=v\nExecStart={}/usr/bin/python3 /opt/argv.py ${{V}} %n old\n"
    units: dict[str, dict[str, str]] = {}
    meant: dict[str, tuple[str, ...]] = {}
    for lead in ("", ":", "-@"):
        for words in (WORDS, *((w,) for w in WORDS)):
            name = f"words-{len(units)}.service"
            path = f"/run/systemd/system/{name}"
            text = unit.format("-@/usr/bin/python3 " if lead == "-@" else lead)
            read = execline.read({path: text}, {"n": name}, {})
            base = execline.launch(read)
            launch = LaunchSpec(argv=(*base.argv[:-1], *words, *words), env=base.env)
            line = execline.rendered(read, launch)
            drop_in = f"[Service]\nType=oneshot\nExecStart=\nExecStart={line}\n"
            units[name] = {path: text, f"{path}.d/trial.conf": drop_in}
            meant[name] = launch.argv
            if not lead:
                assert "${V} %n" in line
    found = on(systemd_host, units, "words")
    for name, argv in meant.items():
        assert found[name]["argv"] == [list(argv)], units[name]
        ours = execline.read(units[name], {"n": name}, {})
        assert found[name]["bus"] == [list(ours.words)]


def test_systemd_has_the_words_of_every_shape_that_is_written(systemd_host: SystemdHost) -> None:
    """As they are, then with our drop-in: none of these programs is there, so none is started."""
    units: dict[str, dict[str, str]] = {}
    ours: dict[str, list[str]] = {}
    for number, row in enumerate(r for r in SHAPES if "execstart" in r):
        drop_in = "\n".join(["[Service]", *row["environment"], "ExecStart=", f"ExecStart={row['execstart']}", ""])
        for kind, more in (("as-it-is", {}), ("changed", {"zzz-leadline.conf": drop_in})):
            unit = f"shape-{kind}-{number}@qwen.service"
            path = f"/etc/systemd/system/{unit}"
            texts = {p.replace("/etc/systemd/system/llm.service", path): t for p, t in row["files"].items()}
            texts |= {f"{path}.d/{name}": text for name, text in more.items()}
            units[unit] = {**texts, **row.get("environment_files", {})}
            host = systemd_host.sh("uname -n").stdout.strip()
            read = execline.read(texts, {"n": unit, "i": "qwen", "H": host}, row.get("environment_files", {}))
            ours[unit] = list(read.words)
    found = on(systemd_host, units, "shapes", "--look")
    assert {unit: answer["bus"] for unit, answer in found.items()} == {unit: [words] for unit, words in ours.items()}
