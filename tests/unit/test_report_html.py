"""The page: self-contained, without a script, accessible, and deaf to hostile text."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
import support_report as sample

from leadline.report import html
from leadline.report.markup import Markup, el, join, text

SAMPLES = (sample.measured, sample.simulated, sample.running, sample.two_knobs, sample.hostile)
SVG = re.compile(r"<svg .*?</svg>", re.DOTALL)


class Page(HTMLParser):
    """Elements with their attributes, and the text outside of <style>, as a browser would read them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "br", "hr"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data

    def attributes(self, name: str) -> list[str]:
        return [value or "" for _, attrs in self.elements for key, value in attrs.items() if key == name]


def test_golden():
    rendered = html.render(sample.measured())
    assert rendered == sample.golden("measured.html", rendered)


@pytest.mark.parametrize("make", SAMPLES)
def test_every_element_is_closed_in_order(make):
    assert Page(html.render(make())).open == []


@pytest.mark.parametrize("make", SAMPLES)
def test_nothing_runs_and_nothing_is_fetched(make):
    page = Page(html.render(make()))
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"script", "iframe", "object", "embed", "img", "form", "base"}
    names = {name for _, attrs in page.elements for name in attrs}
    assert not [n for n in names if n.startswith("on") or n in ("src", "style", "xlink:href", "action")]
    assert all(h.startswith(("#", "data:image/svg+xml,")) for h in page.attributes("href"))
    assert all(f.startswith("url(#") for f in page.attributes("fill"))


def test_the_policy_allows_one_style_by_its_hash_and_nothing_else():
    rendered = html.render(sample.hostile())
    styles = re.findall(r"<style>(.*?)</style>", rendered, re.DOTALL)
    policy = Page(rendered).attributes("content")[0]
    digest = base64.b64encode(hashlib.sha256(styles[0].encode()).digest()).decode()
    assert len(styles) == 1
    assert policy == (
        f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    )
    assert "url(" not in styles[0]
    assert "@import" not in styles[0]


def test_hostile_text_is_shown_as_text():
    page = Page(html.render(sample.hostile()))
    shown = sample.HOSTILE.replace("\x1b", "\\x1b").replace("\u202e", "\\u202e").replace("\r", "\\r")
    assert page.text.count(shown) > 40
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", page.text)


@pytest.mark.parametrize("make", SAMPLES)
def test_identifiers_are_unique_and_every_reference_has_its_target(make):
    page = Page(html.render(make()))
    ids = page.attributes("id")
    wanted = {i for value in page.attributes("aria-labelledby") for i in value.split()}
    wanted |= {h[1:] for h in page.attributes("href") if h.startswith("#")}
    wanted |= {f[5:-1] for f in page.attributes("fill")}
    assert len(ids) == len(set(ids))
    assert wanted <= set(ids)


@pytest.mark.parametrize("make", SAMPLES)
def test_every_chart_is_well_formed_and_has_a_title_and_a_description(make):
    drawings = SVG.findall(html.render(make()))
    for drawing in drawings:
        root = ElementTree.fromstring(drawing)
        if root.get("aria-hidden") != "true":
            assert [child.tag for child in root][:2] == ["title", "desc"]
            assert root.findtext("desc")


def test_charts_hold_every_depth_the_roles_and_what_will_not_run():
    page = html.render(sample.measured())
    drawing = next(d for d in SVG.findall(page) if "output_tok_s at coding@1 by depth" in d)
    root = ElementTree.fromstring(drawing)
    classes = [e.get("class") for e in root.iter()]
    assert classes.count("whisker") == 6
    assert (classes.count("ring"), classes.count("incumbent"), classes.count("frame")) == (1, 1, 1)
    desc = root.findtext("desc") or ""
    assert "depth 6: 55.7 [54.6, 56.8], ratio 1.054" in desc
    assert "depth 16: 46.5, fits up to C=16" in desc


def test_a_ring_marks_only_the_cells_of_the_goal():
    page = html.render(sample.measured())
    titles = {d: "ring" in d for d in SVG.findall(page) if "output_tok_s at chat@32 by depth" in d}
    assert list(titles.values()) == [True]  # depth 0, for the goal "busy"
    root = ElementTree.fromstring(next(iter(titles)))
    ringed = [g.findtext("title") or "" for g in root.iter("g") if g.find("circle[@class='ring']") is not None]
    assert [t.split(":")[0] for t in ringed] == ["depth 0"]


def test_a_difference_that_is_not_shown_is_never_a_gain():
    cards = html.render(sample.measured()).split("<article")
    first_word = next(c for c in cards if ">first word<" in c)
    assert "no difference shown" in first_word
    assert 'class="gain"' not in first_word
    assert 'class="gain"' in next(c for c in cards if ">edit<" in c)


def test_a_simulation_says_so_before_anything_else():
    page = Page(html.render(sample.simulated()))
    body = page.text.split("Leadline report")[0]
    assert "SIMULATED: lab server, not a real engine" in body
    assert page.text.startswith("SIMULATED: ", page.text.index("S"))
    assert "SIMULATED" not in html.render(sample.measured())


def test_no_depth_chart_where_depth_is_not_a_knob():
    page = html.render(sample.hostile())
    assert "depth-0" not in page
    assert 'id="forest-0-t"' in page


def test_elements_escape_all_that_is_not_markup():
    assert el("td", "<b>", el("i", "&")) == "<td>&lt;b&gt;<i>&amp;</i></td>"
    assert el("a", "x", href='"><script>') == '<a href="&quot;&gt;&lt;script&gt;">x</a>'
    assert el("p", class_=None, aria_label="a\nb") == '<p aria-label="a b"></p>'
    assert join("<", Markup("<br>")) == "&lt;<br>"
    assert text("a\nb") == "a<br>b"
