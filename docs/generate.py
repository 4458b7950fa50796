"""Writes docs/reference/ from the code. `--check` writes nothing and exits 1 with the names of pages that are stale.

What a page says comes from where the program itself takes it: the table of keys, the metrics, click's help, the
exception tree, the events, the knobs of the engines. Nothing depends on a terminal, the time or the machine.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import get_args

import click
import msgspec

import leadline
from leadline import answer, campaign, errors, evidence, goal, trial
from leadline.build import found, plugin
from leadline.cli.main import COMMANDS, EXIT_CODES, cli
from leadline.config.reference import reference
from leadline.evidence import Failure
from leadline.journal import events
from leadline.journal import file as journal_file
from leadline.metrics import METRICS, STATS

FOLDER = Path(__file__).resolve().parent / "reference"
SOURCE = Path(leadline.__file__).resolve().parent
MARK = "<!-- Written by docs/generate.py from the code. Do not edit: change the code and run `make docs`. -->\n"
VALUES = {n: v for m in (answer, evidence, goal, trial) for n, v in vars(m).items() if inspect.isclass(v)}
COMPUTED = {"foreign_requests": "Somebody else used the server in this window; kept since traffic.foreign = 'keep'."}
"""Messages of findings that are no literal in the code."""


# --- Markdown


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = tuple(head)
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(_cell(c) for c in line)} |" for line in lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def block(text: str) -> str:
    return f"```text\n{text.strip()}\n```\n"


def first_sentence(text: str | None) -> str:
    paragraph = " ".join((text or "").strip().split("\n\n")[0].split())
    return re.split(r"(?<=\.)\s", paragraph, maxsplit=1)[0]


def paragraphs(docstring: str | None) -> str:
    return inspect.cleandoc(docstring or "").strip() + "\n"


# --- pages


def commands() -> str:
    """Every command with its options and an example."""
    intro = (
        "Each command takes `--json` and prints JSON on standard output then, an error included: "
        '`{"error": "...", "exit_code": 2}`. What a command says to people while it works goes to standard error. '
        "`-h` and `--help` are understood everywhere.\n"
    )
    parts = [intro, f"## leadline\n\n{_prose(cli.help)}"]
    parts.append(table(("command", "what it does"), [(f"[{n}](#leadline-{n})", text) for n, text in COMMANDS.items()]))
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        parts.append(_command(name, command))
    return "\n".join(parts)


def _command(name: str, command: click.Command) -> str:
    arguments = [p for p in command.params if isinstance(p, click.Argument)]
    options = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
    usage = " ".join(["leadline", name, "[OPTIONS]", *map(_argument, arguments)])
    rows = [(code(_option(o)), (o.help or "").strip()) for o in options]
    example = (command.epilog or "").removeprefix("Example: ")
    return "\n".join(
        [
            f"## leadline {name}\n\n{block(usage)}",
            _prose(command.help),
            table(("option", "meaning"), rows),
            f"Example:\n\n{block(example)}",
        ]
    )


def _prose(text: str | None) -> str:
    """Click's help text: paragraphs, those after a backspace as they stand."""
    parts = inspect.cleandoc(text or "").split("\n\n")
    return "\n".join(block(p.removeprefix("\b")) if p.startswith("\b") else " ".join(p.split()) + "\n" for p in parts)


def _argument(argument: click.Argument) -> str:
    word = argument.metavar or (argument.name or "").upper() + ("..." if argument.nargs != 1 else "")
    return word if argument.required else f"[{word}]"


def _option(option: click.Option) -> str:
    words = ", ".join(sorted(option.opts, key=len))
    if option.is_flag:
        return words
    if isinstance(option.type, click.Choice):
        return f"{words} {'|'.join(option.type.choices)}"
    kinds: dict[str, str] = {"integer range": "N", "file": "FILE", "directory": "FOLDER"}
    return f"{words} {kinds.get(option.type.name, option.type.name.upper())}"


def campaign_toml() -> str:
    """Every key of a campaign file: type, default, meaning, example."""
    return reference().partition("\n")[2].lstrip()


def metrics() -> str:
    """Every metric: unit, direction, formula."""
    rows = [(code(m.name), m.unit, m.better or "-", m.formula, ", ".join(_names(m.name))) for m in METRICS.values()]
    intro = (
        "Times are integer nanoseconds of one monotonic clock until they are converted here, once. Token counts come "
        "from the server's `usage`, never from counting chunks. The steady window opens when the last user has done "
        "its warm-up and closes when the first user finds no work left.\n\n"
        f"A metric with one value per request has {', '.join(code('.' + s) for s in STATS)} over the requests of one "
        "measurement. Any name of the last column may stand in a requirement; one with a direction may be an "
        "objective.\n\n"
    )
    return intro + table(("metric", "unit", "better", "formula", "names"), rows)


def _names(metric: str) -> list[str]:
    return [code(f"{metric}.{s}") for s in STATS] if METRICS[metric].per_request else [code(metric)]


def exit_codes() -> str:
    """Exit codes, and the errors behind them."""
    rows = re.findall(r"^ {2}(\S+) {2}(.+)$", EXIT_CODES, re.MULTILINE)
    assert rows
    tree = inspect.cleandoc(errors.__doc__ or "").partition("\n\n")[2]
    tree, _, rule = tree.rpartition("\n\n")
    return table(("code", "meaning"), [(code(c), text) for c, text in rows]) + f"\n## Errors\n\n{block(tree)}\n{rule}\n"


def failures() -> str:
    """Why a launch could not be used, and what becomes of its trial."""
    intro = (
        "The class in a diagnosis of a void measurement or of a trial that did not complete, as it stands in the "
        "journal. A trial that is INFEASIBLE says how far it went: `not at all`, or `fits up to C=16`.\n\n"
    )
    return intro + table(("failure", "retried once", "the trial ends"), [(code(f), *_fate(f)) for f in Failure])


def _fate(failure: Failure) -> tuple[str, str]:
    retried = "yes" if failure in campaign.AGAIN else "no"
    if failure is Failure.STOPPED_BY_US:
        return retried, "INTERRUPTED; asked for again by the next run"
    if failure is Failure.FOREIGN:
        return retried, "FAILED, and the campaign pauses; it goes on with `traffic.foreign = 'skip'`"
    if failure in campaign.NOT_ITS_FAULT:
        return retried, "FAILED, and the campaign pauses"
    return retried, "INFEASIBLE, never launched again"


def findings() -> str:
    """Warnings as data: their codes, what they say, what to do."""
    intro = "A finding excludes nothing by itself; the ellipsis stands for what is filled in.\n\n"
    rows = [(code(c), *texts) for c, texts in sorted(_findings().items())]
    return intro + table(("code", "says", "what to do"), rows)


def _findings() -> dict[str, tuple[str, str]]:
    """All `Finding(code=..., message=..., remedy=...)` of the package."""
    seen: dict[str, tuple[str, str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        functions = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef))
        for function in functions:
            for keywords in _finding_calls(function):
                name = _literal(function, keywords["code"])
                message = _literal(function, keywords["message"]) or COMPUTED.get(name)
                if not name or not message:
                    raise SystemExit(f"{path}: a finding whose code or message cannot be read: {name or 'no code'}")
                seen[name] = (message, _literal(function, keywords.get("remedy")))
    return seen


def _finding_calls(function: ast.FunctionDef) -> Iterator[dict[str | None, ast.expr]]:
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Finding":
            yield {k.arg: k.value for k in node.keywords}


def _literal(function: ast.FunctionDef, node: ast.expr | None) -> str:
    """A text with an ellipsis for each part that is filled in; "" for what is no text."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return re.sub("(… ?)+…", "…", "".join(_literal(function, part) or "…" for part in parts))
        case ast.FormattedValue(value=ast.BinOp(left=ast.Constant(value=str(plural)), op=ast.Mult())):
            return f"({plural})"
        case ast.Name(id=name):
            bound = [n for n in ast.walk(function) if isinstance(n, ast.Assign) and _binds(n, name)]
            return _literal(function, bound[-1].value) if bound else ""
    return ""


def _binds(assign: ast.Assign, name: str) -> bool:
    return any(isinstance(t, ast.Name) and t.id == name for t in assign.targets)


def journal() -> str:
    """The events of journal.jsonl, and the values in them."""
    kinds = get_args(events.AnyEvent)
    own = set(inspect.get_annotations(events.Event))
    parts = [paragraphs(journal_file.__doc__), paragraphs(events.__doc__), "## Events\n"]
    parts.append(f"Each line is one event; `event` is its name. In every one: {_doc(events.Event)}\n")
    for kind in kinds:
        fields = {k: v for k, v in inspect.get_annotations(kind).items() if k not in own}
        parts.append(_section(kind.__struct_config__.tag, _doc(kind), _fields(fields)))
    parts.append("## Values\n")
    parts += [_value(n) for n in sorted(_mentioned(a for k in kinds for a in inspect.get_annotations(k).values()))]
    return "\n".join(parts)


def _section(title: str, *texts: str) -> str:
    return "\n\n".join((f"### {title}", *(t.strip() for t in texts if t.strip()))) + "\n"


def _doc(kind: type) -> str:
    """Its own docstring, on one line."""
    return " ".join((kind.__dict__.get("__doc__") or "").split())


def _fields(annotations: dict[str, str]) -> str:
    return table(("field", "type"), [(code(k), code(v)) for k, v in annotations.items()])


def _mentioned(annotations: Iterable[str]) -> set[str]:
    """The names of our values in some annotations, and in theirs."""
    names: set[str] = set()
    todo = list(annotations)
    while todo:
        for name in set(re.findall(r"[A-Z]\w+", todo.pop())) & VALUES.keys() - names:
            names.add(name)
            todo += inspect.get_annotations(VALUES[name]).values()
    return names


def _value(name: str) -> str:
    kind = VALUES[name]
    if issubclass(kind, StrEnum):
        return _section(name, _doc(kind), f"One of {', '.join(code(v.value) for v in kind)}.")
    if issubclass(kind, msgspec.Struct):
        return _section(name, _doc(kind), _fields(inspect.get_annotations(kind)))
    return _section(name, _doc(kind), "Stored as its text.")


def knobs() -> str:
    """What each engine can tune, with its own flags."""
    parts = [
        "A knob has the same name for every engine. Beside these, `flag:--NAME` is any other flag of the server and "
        "`env:NAME` any variable of its environment; they stand in quotes in campaign.toml. A knob that may change the "
        "output is tuned only when `safety.may_change_output` names it.\n"
    ]
    for name in found("engines"):
        rows = [
            (code(k.name), code(k.flag), k.unit, "yes" if k.changes_output else "no", k.doc)
            for k in plugin("engines", name, "engine").knobs()
        ]
        parts.append(f"## {name}\n\n" + table(("knob", "flag", "unit", "may change the output", "what it is"), rows))
    return "\n".join(parts)


def plug_ins() -> str:
    """Engines, targets, hosts, strategies and workloads of this version."""
    parts = []
    for kind in ("engines", "targets", "hosts", "strategies", "workloads"):
        rows = [(code(n), first_sentence(importlib.import_module(f"leadline.{kind}.{n}").__doc__)) for n in found(kind)]
        parts.append(f"## {kind}\n\n" + table(("name", "what it is"), rows))
    guarantees = [(code(n), plugin("targets", n, "target").guarantee) for n in found("targets")]
    parts.append("## What brings a service back\n\n" + table(("target", "guarantee"), guarantees))
    return "\n".join(parts)


PAGES: dict[str, tuple[str, Callable[[], str]]] = {
    "commands.md": ("Commands", commands),
    "campaign-toml.md": ("campaign.toml", campaign_toml),
    "metrics.md": ("Metrics", metrics),
    "knobs.md": ("Knobs", knobs),
    "exit-codes.md": ("Exit codes and errors", exit_codes),
    "failures.md": ("Failures", failures),
    "findings.md": ("Findings", findings),
    "journal.md": ("The journal", journal),
    "plug-ins.md": ("Plug-ins", plug_ins),
}


def pages() -> dict[str, str]:
    """Every page by its file name, the index included."""
    made = {name: f"{MARK}\n# {title}\n\n{make().strip()}\n" for name, (title, make) in PAGES.items()}
    lines = [f"- [{title}]({name}): {first_sentence(make.__doc__)}" for name, (title, make) in PAGES.items()]
    made["README.md"] = f"{MARK}\n# Reference\n\n" + "\n".join(lines) + "\n"
    return made


def stale(folder: Path) -> list[str]:
    """Names of pages that are missing, differ, or are no page any more."""
    made = pages()
    there = {p.name: p.read_text(encoding="utf-8") for p in folder.glob("*.md")}
    return sorted(name for name in made.keys() | there.keys() if made.get(name) != there.get(name))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a page is stale")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the pages are")
    options = parser.parse_args(argv)
    names = stale(options.folder)
    if options.check:
        for name in names:
            print(f"{options.folder / name} is stale: run `make docs`", file=sys.stderr)
        return 1 if names else 0
    options.folder.mkdir(parents=True, exist_ok=True)
    made = pages()
    for name in names:
        path = options.folder / name
        if name in made:
            path.write_text(made[name], encoding="utf-8")
        else:
            path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
