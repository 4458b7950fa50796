"""What the command line and the load worker do not import: heavy libraries, and each other's."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from leadline.cli.main import COMMANDS, cli

HEAVY = {"numpy", "scipy", "rich", "uvloop"}
AFTER = "; import json, sys; print('\\n' + json.dumps(sorted({m.partition('.')[0] for m in sys.modules})))"


def imported(code: str) -> set[str]:
    """Top-level names of all modules that a fresh interpreter holds after running the code."""
    argv = [sys.executable, "-c", code + AFTER]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def called(*calls: list[str]) -> str:
    """Code that calls the command line as `leadline` does, and goes on after it ends."""
    return (
        f"""
import sys
from leadline.cli.main import main
for words in {list(calls)!r}:
    sys.argv = ['leadline', *words]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, (words, ended.code)
"""
        + "pass"
    )


@pytest.mark.parametrize("words", [["--help"], ["version"], ["version", "--json"], ["--version"]])
def test_help_and_version_import_nothing_heavy(words: list[str]) -> None:
    assert not imported(called(words)) & HEAVY


def test_help_imports_neither_the_campaign_nor_any_plug_in() -> None:
    """Only the command that is called is loaded, and what it works with only when it works."""
    argv = [sys.executable, "-c", called(["--help"], ["version"]) + "\nprint('\\n' + ' '.join(sys.modules))"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    ours = {m for m in done.stdout.splitlines()[-1].split() if m.startswith("leadline")}
    assert ours <= {
        "leadline", "leadline.cli", "leadline.cli.common", "leadline.cli.main", "leadline.cli.version_command",
        "leadline.errors",
    }  # fmt: skip


def test_no_commands_help_imports_anything_heavy() -> None:
    assert not imported(called(*([name, "--help"] for name in COMMANDS))) & HEAVY


def test_no_plug_in_imports_anything_heavy() -> None:
    code = """
from leadline.build import found, names, plugin
names()
for kind, attribute in (("targets", "target"), ("hosts", "host"), ("strategies", "strategy")):
    for name in found(kind):
        plugin(kind, name, attribute)
import leadline.campaign, leadline.report.text, leadline.report.html, leadline.report.data
"""
    assert not imported(code + "pass") & HEAVY


def test_the_load_worker_imports_neither_those_nor_the_command_line() -> None:
    """uvloop is fetched when it begins to work, where it is installed."""
    found = imported("import leadline.load.worker")
    assert not found & {*HEAVY, "click", "psutil"}


def test_the_supervisor_needs_the_standard_library_alone() -> None:
    """It runs under `python -I -S`: there is no site-packages, and no Leadline."""
    from leadline.hosts._session import SUPERVISOR

    argv = [sys.executable, "-I", "-S", str(SUPERVISOR)]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_help_with_an_example_and_json(name: str) -> None:
    shown = CliRunner().invoke(cli, [name, "--help"])
    assert shown.exit_code == 0
    assert f"Example: leadline {name}" in shown.output
    assert "--json" in shown.output


def test_the_help_names_every_command_and_every_exit_code() -> None:
    shown = CliRunner().invoke(cli, ["--help"]).output
    for name in COMMANDS:
        assert f"\n  {name} " in shown
    for code in (0, 1, 2, 3, 4, 5, "128+n"):
        assert f"\n    {code}  " in shown
