"""One self-contained page: no script, nothing from elsewhere, and a policy that would stop both.

The style is allowed by its hash alone, so not even a `style=` attribute that slipped through would work.
"""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

from leadline.report import answers, charts, svg, words
from leadline.report.markup import Markup, el, join, raw
from leadline.report.method import server
from leadline.report.model import Report
from leadline.report.sections import sections
from leadline.report.table import Column, Section, Table
from leadline.space import Setting

ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E"
    "%3Cpath d='M8 1v8' stroke='%230b62a8' stroke-width='2'/%3E%3Cpath d='M5 8h6l-3 7z' fill='%230b62a8'/%3E%3C/svg%3E"
)
FACTS = ("server", "engine", "model", "target", "restarts", "minutes without service")


def render(report: Report) -> str:
    """The whole page; ends with a newline."""
    style = files("leadline.report").joinpath("page.css").read_text(encoding="utf-8")
    body = [_banner(report), _header(report), el("main", *_main(report)), _footer(report)]
    page = el("html", _head(report, style), el("body", *body), lang="en")
    return f"<!doctype html>\n{page}\n"


def _head(report: Report, style: str) -> Markup:
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    return el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=policy),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("meta", name="generator", content=f"Leadline {report.meta.tool_version}"),
        el("title", f"{'SIMULATED: ' if report.banner else ''}{report.meta.campaign} · Leadline"),
        el("link", rel="icon", href=ICON),
        el("style", raw(style)),
    )


def _banner(report: Report) -> Markup:
    return el("p", el("strong", report.banner), class_="banner", role="note") if report.banner else join()


def _header(report: Report) -> Markup:
    facts = [(k, v) for k, v in server(report) if k in FACTS]
    return el(
        "header",
        el("p", "Leadline report", class_="eyebrow"),
        el("h1", report.meta.campaign),
        el("p", el("span", report.meta.state, class_="chip"), class_="state"),
        el("dl", *(el("div", el("dt", k), el("dd", v)) for k, v in facts), class_="facts"),
        _navigation(report),
    )


def _navigation(report: Report) -> Markup:
    links = [("answer", "Answer"), *((s.anchor, s.title) for s in sections(report))]
    return el("nav", *(el("a", title, href=f"#{anchor}") for anchor, title in links), aria_label="Sections")


def _main(report: Report) -> list[Markup]:
    parts = [_answer(report)]
    for section in sections(report):
        parts.append(_section(report, section))
    return parts


def _answer(report: Report) -> Markup:
    shared = answers.single(report)
    if shared is None:
        return el("section", el("h2", "Answer"), el("p", answers.pending(report), class_="pending"), id="answer")
    low, high = charts.score_range(report)
    cards = [_card(report, n, view, low, high) for n, view in enumerate(answers.goals(report))]
    return el("section", el("h2", "Answer"), el("div", *cards, class_="cards"), _single(report, shared), id="answer")


def _card(report: Report, number: int, view: answers.GoalView, low: float, high: float) -> Markup:
    parts = [
        el("p", el("span", view.goal, class_="goal"), *_chip(view.verdict), class_="cardhead"),
        el("p", view.about, class_="about"),
        _big(report, view.setting, view.action),
    ]
    if view.score is not None and view.interval:
        bar = svg.interval_bar(f"card-{number}", f"Ratio to the incumbent, goal {view.goal}", view.score, low, high)
        parts += [el("p", view.gain, class_="gain")] if view.gain != view.verdict else []
        parts.append(bar)
        parts.append(el("p", f"{view.score.ratio:.3f} × the incumbent, {view.interval}", class_="num muted"))
    parts += [el("p", view.reason)] if view.reason else []
    parts += [el("p", view.ties, class_="muted")] if view.ties else []
    parts += [el("p", note, class_="note") for note in view.notes]
    return el("article", *parts, class_="card")


def _big(report: Report, setting: Setting | None, action: str) -> Markup:
    """The setting in large letters, the engine's flags small beneath."""
    if setting is None:
        return el("p", action, class_="setting")
    flags = ", ".join(f for f in (words.flag(report.problem.space, n) for n in setting.names()) if f)
    verb = "keep" if setting == report.problem.incumbent else "run"
    return join(
        el("p", el("span", f"{verb} ", class_="verb"), str(setting), class_="setting"),
        el("p", el("code", flags), class_="flags") if flags else join(),
    )


def _chip(verdict: str) -> list[Markup]:
    kinds = {"better": "better", "worse": "worse"}
    return [el("span", verdict, class_=f"chip {kinds.get(verdict, 'same')}")] if verdict else []


def _single(report: Report, view: answers.SingleView) -> Markup:
    losses = Table(
        columns=(Column("goal"), Column("loses"), Column("ratio to its own best", right=True)),
        rows=tuple((x.goal, x.loses, x.ratio) for x in view.losses),
    )
    about = [
        el("p", el("span", "One setting for all goals", class_="goal"), class_="cardhead"),
        _big(report, view.setting, view.action),
        *([el("p", view.reason)] if view.reason else []),
    ]
    table = [_table(losses, "what each goal loses")] if view.losses else []
    return el("article", el("div", *about), el("div", *table), class_="card wide")


def _section(report: Report, section: Section) -> Markup:
    parts = [el("h2", section.title), *_figures(report, section.anchor)]
    parts += [el("p", sentence, class_="intro") for sentence in section.intro]
    for table in section.tables:
        parts += [el("h3", table.title)] if table.title else []
        parts.append(_table(table, table.title or section.title))
        parts += [el("p", table.note, class_="muted")] if table.note else []
    return el("section", *parts, id=section.anchor)


def _figures(report: Report, anchor: str) -> list[Markup]:
    """The charts that belong above a section's tables, with what their marks mean."""
    if anchor == "results":
        figures = charts.depth_figures(report)
        return [figures, _legend()] if figures else []
    if anchor == "ranking":
        return [charts.forest_figures(report)]
    if anchor == "acceptance":
        note = "Part of the drafting rounds in which each draft position was accepted, over all cells of a workload."
        figures = charts.position_figures(report)
        return [figures, el("p", note, class_="muted")] if figures else []
    return []


def _legend() -> Markup:
    return el(
        "p",
        *(el("span", svg.swatch(kind), said) for kind, said in svg.LEGEND),
        el("span", "Depths are evenly spaced; an axis need not start at 0."),
        class_="legend",
    )


def _table(table: Table, label: str) -> Markup:
    head = el("tr", *(el("th", c.title, scope="col", class_="num" if c.right else None) for c in table.columns))
    rows = [el("tr", *(_cell(table, i, text) for i, text in enumerate(row))) for row in table.rows]
    whole = el("table", el("thead", head), el("tbody", *rows))
    return el("div", whole, class_="scroll", role="region", tabindex="0", aria_label=label)


def _cell(table: Table, column: int, text: str) -> Markup:
    """The first line as it is, the others small beneath it: bounds and ratio, or a setting and its roles."""
    kind = table.columns[column]
    first, *rest = text.split("\n")
    shown = el("code", first) if kind.code and first != words.NONE else first
    classes = " ".join(x for x, on in (("num", kind.right), ("prose", kind.wrap)) if on) or None
    lines = [el("span", line, class_="sub") for line in rest]
    return el("td", shown, *lines, class_=classes)


def _footer(report: Report) -> Markup:
    made = f"Made by Leadline {report.meta.tool_version}".strip()
    return el("footer", el("p", f"{made}. {report.banner or f'Server: {report.meta.server}.'}"))
