"""Plain text for a terminal or a file: 100 columns, no colours, no drawn boxes."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from leadline.report import answers, words
from leadline.report.model import Report
from leadline.report.sections import sections
from leadline.report.table import Column, Section, Table

WIDTH = 100
GAP = 2
LONG = 30  # a column wider than this may be folded at its blanks, whatever it holds
NARROWEST = 16
BRIEF = ("results", "acceptance")


def render(report: Report, *, brief: bool = False) -> str:
    """The whole report; ends with a newline. `brief`: answer, results, acceptance, and what else there is."""
    lines = [*_head(report), "", *_answer(report)]
    for section in sections(report):
        if not brief or section.anchor in BRIEF:
            lines += ["", *_section(section)]
    if brief:
        lines += _left_out(report)
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _left_out(report: Report) -> list[str]:
    """What a reader of the brief one must know to be there."""
    codes = ", ".join(dict.fromkeys(f.finding.code for f in report.findings))
    told = [f"{_counted(len(report.findings), 'finding')} ({codes})"] if codes else []
    told += [f"{_counted(len(report.voids), 'void measurement')}, not counted"] if report.voids else []
    return ["", *_wrap(f"Also in the whole report: {'; '.join(told)}.")] if told else []


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _head(report: Report) -> list[str]:
    meta = report.meta
    title = _wrap(f"Leadline report: {meta.campaign}")
    about = [f"{meta.engine} {meta.engine_version}".strip(), meta.model, f"target {meta.target}"]
    lines = [words.clean(report.banner), ""] if report.banner else []
    lines += [*title, "=" * max(map(len, title))]
    lines += _wrap(f"Server: {meta.server}. {', '.join(x for x in about if x)}.")
    lines += _wrap(f"State:  {meta.state}.")
    return lines


def _answer(report: Report) -> list[str]:
    lines = ["ANSWER", "------"]
    shared = answers.single(report)
    if shared is None:
        return [*lines, *_wrap(answers.pending(report))]
    for view in answers.goals(report):
        lines += [*_goal(view), ""]
    return [*lines, *_single(shared)]


def _goal(view: answers.GoalView) -> list[str]:
    lines = [*_wrap(f"{view.goal}: {view.action}"), *_wrap(view.about, 4)]
    if view.score is not None and view.interval:
        gain = f" ({view.gain})" if view.gain != view.verdict else ""
        lines += _wrap(f"{view.score.ratio:.3f} x the incumbent: {view.verdict}{gain}; {view.interval}", 4)
    lines += _wrap(f"Why: {view.reason}", 4) if view.reason else []
    lines += _wrap(view.ties, 4) if view.ties else []
    for note in view.notes:
        lines += _wrap(f"Note: {note}", 4)
    return lines


def _single(view: answers.SingleView) -> list[str]:
    lines = [*_wrap(f"One setting for all goals: {view.action}")]
    lines += _wrap(f"Why: {view.reason}", 4) if view.reason else []
    for loss in view.losses:
        lines += _wrap(f"{loss.goal} loses: {loss.loses}" + (f" ({loss.ratio})" if loss.ratio != "1" else ""), 4)
    return lines


def _section(section: Section) -> list[str]:
    title = section.title.upper()
    lines = [title, "-" * len(title)]
    for sentence in section.intro:
        lines += _wrap(sentence)
    for table in section.tables:
        lines += ["", *_wrap(table.title), ""] if table.title else [""]
        lines += layout(table)
        lines += _wrap(table.note) if table.note else []
    return lines


def layout(table: Table, width: int = WIDTH) -> list[str]:
    """The table in lines of at most `width`: sentences are folded; what still does not fit goes into further blocks
    that repeat the key columns."""
    grid = [[words.clean(text).split("\n") for text in row] for row in table.rows]
    widths = _widths(table.columns, grid, width)
    lines: list[str] = []
    for block in _blocks(widths, table.keys, width):
        lines += [""] if lines else []
        lines += _block(table, grid, widths, block)
    return lines


def _widths(columns: Sequence[Column], grid: list[list[list[str]]], width: int) -> list[int]:
    natural = [
        max([len(column.title), *(len(line) for row in grid for line in row[i])]) for i, column in enumerate(columns)
    ]
    room = width - GAP * (len(columns) - 1) - sum(natural)
    folding = [i for i, c in enumerate(columns) if c.wrap or natural[i] > LONG]
    room += sum(natural[i] for i in folding)
    if not folding or room >= sum(natural[i] for i in folding):
        return [min(n, width) for n in natural]
    if room < NARROWEST * len(folding):
        return [min(n, LONG) for n in natural]
    return _shrink(natural, folding, room)


def _shrink(natural: list[int], folding: list[int], room: int) -> list[int]:
    """Shares `room` among the columns that fold: the short ones keep what they need, the long ones the rest."""
    widths = list(natural)
    left = len(folding)
    for i in sorted(folding, key=lambda i: natural[i]):
        widths[i] = max(NARROWEST, min(natural[i], room // left))
        room -= widths[i]
        left -= 1
    return widths


def _blocks(widths: list[int], keys: int, width: int) -> list[list[int]]:
    head = list(range(keys))
    blocks: list[list[int]] = []
    block = list(head)
    for i in range(keys, len(widths)):
        if block != head and sum(widths[j] for j in (*block, i)) + GAP * len(block) > width:
            blocks.append(block)
            block = list(head)
        block.append(i)
    return [*blocks, block]


def _block(table: Table, grid: list[list[list[str]]], widths: list[int], block: list[int]) -> list[str]:
    titles = [[c.title] for c in table.columns]
    lines = _row(table.columns, titles, widths, block)
    lines.append((" " * GAP).join("-" * widths[i] for i in block))
    for n, row in enumerate(grid):
        lines += [""] if table.spaced and n else []
        lines += _row(table.columns, row, widths, block)
    return lines


def _row(columns: Sequence[Column], row: list[list[str]], widths: list[int], block: list[int]) -> list[str]:
    cells = {i: [part for line in row[i] for part in _fold(line, widths[i])] for i in block}
    out = []
    for n in range(max(len(lines) for lines in cells.values())):
        parts = []
        for i in block:
            text = cells[i][n] if n < len(cells[i]) else ""
            parts.append(text.rjust(widths[i]) if columns[i].right else text.ljust(widths[i]))
        out.append((" " * GAP).join(parts).rstrip())
    return out


def _fold(line: str, width: int) -> list[str]:
    if len(line) <= width:
        return [line]
    return textwrap.wrap(line, width, break_on_hyphens=False) or [""]


def _wrap(text: str, indent: int = 0) -> list[str]:
    margin = " " * indent
    return textwrap.wrap(
        words.clean(text), WIDTH, initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False
    )
