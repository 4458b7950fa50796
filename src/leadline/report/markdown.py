"""GitHub-flavoured Markdown: the same report for an issue, a pull request or a wiki."""

from __future__ import annotations

import re

from leadline.report import answers, words
from leadline.report.model import Report
from leadline.report.sections import sections
from leadline.report.table import Column, Section, Table

_SPECIAL = re.compile(r"([\\`*\[\]|~]|(?<!\w)_|_(?!\w))")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def render(report: Report) -> str:
    """The whole report; ends with a newline."""
    meta = report.meta
    about = [f"{meta.engine} {meta.engine_version}".strip(), meta.model, f"target {meta.target}"]
    blocks = [f"> **{escape(report.banner)}**"] if report.banner else []
    blocks += [
        f"# Leadline report: {escape(meta.campaign)}",
        f"Server: **{escape(meta.server)}**. {escape(', '.join(x for x in about if x))}.  \n"
        f"State: {escape(meta.state)}.",
        "## Answer",
        *_answer(report),
    ]
    for section in sections(report):
        blocks += _section(section)
    return "\n\n".join(blocks) + "\n"


def escape(text: str) -> str:
    """Text that Markdown and HTML read as text; newlines become line breaks."""
    text = "".join(_ENTITIES.get(c, c) for c in words.clean(text))
    return _SPECIAL.sub(r"\\\1", text).replace("\n", "<br>")


def code(text: str) -> str:
    """A code span for a table's cell, each line its own: fenced by more backticks than the text holds in a row."""
    return "<br>".join(_span(line) for line in words.clean(text).split("\n"))


def _span(line: str) -> str:
    fence = "`" * (max((len(run) for run in re.findall("`+", line)), default=0) + 1)
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{pad}{line}{pad}{fence}".replace("|", "\\|") if line.strip() else ""


def _answer(report: Report) -> list[str]:
    shared = answers.single(report)
    if shared is None:
        return [escape(answers.pending(report))]
    blocks = [_goal(view) for view in answers.goals(report)]
    lines = [f"**One setting for all goals: {escape(shared.action)}**"]
    lines += [escape(shared.reason)] if shared.reason else []
    losses = Table(
        columns=(Column("goal"), Column("loses"), Column("ratio to its own best", right=True)),
        rows=tuple((x.goal, x.loses, x.ratio) for x in shared.losses),
    )
    return [*blocks, "  \n".join(lines), *([_table(losses)] if shared.losses else [])]


def _goal(view: answers.GoalView) -> str:
    lines = [f"**{escape(view.goal)}: {escape(view.action)}**", f"{escape(view.about)}"]
    if view.score is not None and view.interval:
        gain = f" ({view.gain})" if view.gain != view.verdict else ""
        lines.append(f"{view.score.ratio:.3f} × the incumbent: **{view.verdict}**{gain}; {view.interval}")
    lines += [escape(x) for x in (view.reason, view.ties) if x]
    lines += [f"Note: {escape(note)}" for note in view.notes]
    return "  \n".join(lines)


def _section(section: Section) -> list[str]:
    blocks = [f"## {escape(section.title)}", *(escape(sentence) for sentence in section.intro)]
    for table in section.tables:
        blocks += [f"### {escape(table.title)}"] if table.title else []
        blocks.append(_table(table))
        blocks += [escape(table.note)] if table.note else []
    return blocks


def _table(table: Table) -> str:
    rows = [
        [escape(c.title) for c in table.columns],
        ["---:" if c.right else "---" for c in table.columns],
        *([_cell(c, text) for c, text in zip(table.columns, row, strict=True)] for row in table.rows),
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(column: Column, text: str) -> str:
    if not column.code or text == words.NONE:
        return escape(text)
    first, *rest = text.split("\n")  # below a setting stand its roles, which are words
    return "<br>".join([code(first), *(escape(line) for line in rest)])
