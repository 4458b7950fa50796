"""The house rules that a person would otherwise have to remember: sizes, docstrings, and what is not written here."""

from __future__ import annotations

import ast
import re
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

import leadline

SOURCE = Path(leadline.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))
MAX_LINES, MAX_FUNCTION = 400, 60
SHORT = 30  # nine functions in ten are shorter

SENDERS = {
    "hosts/supervisor.py",  # its own children
    "hosts/_child.py",  # a command that it runs, with its group
    "load/loader.py",  # its worker
    "cli/stop_command.py",  # the holder of the campaign's lock
    "cli/rehearse_command.py",  # its own child
}
"""The only modules that end a process. Each may end what it started itself, or what holds our lock."""
ENDING = {"kill", "killpg", "terminate", "send_signal", "pidfd_send_signal"}
FORBIDDEN = re.compile(r"#\s*(type:\s*ignore|noqa)|\bTODO\b|\bFIXME\b|NotImplementedError|except Exception|except:")


def name(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    yield from (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (function.end_lineno or 0) - function.lineno + 1


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_a_module_fits_the_head_of_its_reader(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= MAX_LINES
    long = [f"{f.name}: {length(f)}" for f in functions(ast.parse(text)) if length(f) > MAX_FUNCTION]
    assert not long


def test_most_modules_and_functions_are_short() -> None:
    trees = [ast.parse(p.read_text(encoding="utf-8")) for p in MODULES]
    lengths = sorted(length(f) for tree in trees for f in functions(tree))
    assert statistics.median(p.read_text(encoding="utf-8").count("\n") for p in MODULES) <= 150
    assert lengths[int(0.9 * len(lengths))] < SHORT


@pytest.mark.parametrize("path", [p for p in MODULES if not p.name.startswith("_")], ids=name)
def test_a_public_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_nothing_is_silenced_left_open_or_caught_blindly(path: Path) -> None:
    found = [line for line in path.read_text(encoding="utf-8").splitlines() if FORBIDDEN.search(line)]
    assert not found


def test_only_these_modules_end_processes() -> None:
    senders = {
        name(path)
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ENDING
    }
    assert {s for s in senders if not s.startswith("testing/")} == SENDERS


def test_no_path_of_the_machine_that_it_was_written_on() -> None:
    here = str(SOURCE.parents[1])
    texts = [p for p in SOURCE.rglob("*") if p.suffix in (".py", ".toml", ".css", ".js")]
    assert not [name(p) for p in texts if here in p.read_text(encoding="utf-8")]
