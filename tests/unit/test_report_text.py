"""Plain text and Markdown: golden files, width, and hostile text."""

from __future__ import annotations

import re

import pytest
import support_report as sample

from leadline.report import markdown, text
from leadline.report.table import Column, Table

SAMPLES = (sample.measured, sample.simulated, sample.running, sample.two_knobs, sample.hostile)


@pytest.mark.parametrize(
    ("make", "render", "ending"),
    [
        (sample.measured, text.render, "txt"),
        (sample.measured, markdown.render, "md"),
        (sample.simulated, text.render, "txt"),
        (sample.running, text.render, "txt"),
    ],
)
def test_golden(make, render, ending):
    rendered = render(make())
    assert rendered == sample.golden(f"{make.__name__}.{ending}", rendered)


@pytest.mark.parametrize("make", SAMPLES)
def test_text_fits_100_columns_and_has_no_trailing_blanks(make):
    for line in text.render(make()).splitlines():
        assert len(line) <= 100
        assert line == line.rstrip()


@pytest.mark.parametrize("make", [sample.measured, sample.simulated, sample.running, sample.two_knobs])
def test_text_is_ascii_when_the_names_are(make):
    assert text.render(make()).isascii()


@pytest.mark.parametrize("render", [text.render, markdown.render])
def test_a_simulation_says_so_in_the_first_line(render):
    first = render(sample.simulated()).splitlines()[0]
    assert first.strip("> *") == "SIMULATED: lab server, not a real engine"
    assert "SIMULATED" not in render(sample.measured())


@pytest.mark.parametrize("render", [text.render, markdown.render])
def test_the_server_is_named_at_the_top(render):
    assert "real engine" in "".join(render(sample.measured()).splitlines()[:4])


@pytest.mark.parametrize("render", [text.render, markdown.render])
def test_no_control_character_of_a_log_line_gets_through(render):
    rendered = render(sample.hostile())
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", rendered)


def test_what_does_not_fit_goes_into_further_blocks_with_the_key_repeated():
    columns = (Column("setting"), *(Column(f"cell{i}", right=True) for i in range(6)))
    table = Table(columns=columns, rows=(("depth=0", *("123456789012" for _ in range(6))),))
    lines = text.layout(table, width=50)
    assert sum(line.startswith("depth=0") for line in lines) == 2
    assert max(len(line) for line in lines) <= 50
    assert sum(line.count("123456789012") for line in lines) == 6


def test_sentences_are_folded_into_the_room_that_is_left():
    table = Table(columns=(Column("id"), Column("reason", wrap=True)), rows=(("1", "word " * 30),))
    lines = text.layout(table, width=40)
    assert len(lines) > 4
    assert all(len(line) <= 40 for line in lines)
    assert " ".join(" ".join(lines[2:]).split()) == "1 " + " ".join(["word"] * 30)


def test_numbers_are_aligned_to_the_right():
    table = Table(columns=(Column("a"), Column("n", right=True)), rows=(("x", "1"), ("y", "100")))
    assert text.layout(table) == ["a    n", "-  ---", "x    1", "y  100"]


def test_every_row_of_a_markdown_table_has_the_columns_of_its_head():
    for block in markdown.render(sample.hostile()).split("\n\n"):
        if block.startswith("|"):
            pipes = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
            assert len(pipes) == 1, block


def test_markdown_has_no_tag_but_line_breaks_outside_of_code():
    rendered = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", markdown.render(sample.hostile()))
    assert set(re.findall(r"<[^>]*>?", rendered)) <= {"<br>"}
    assert "](" not in rendered.replace("\\](", "")


@pytest.mark.parametrize(
    ("raw", "escaped"),
    [
        ("a|b", "a\\|b"),
        ("~", "\\~"),
        ("*bold*", "\\*bold\\*"),
        ("output_tok_s", "output_tok_s"),
        ("_under_", "\\_under\\_"),
        ("1 < 2 & 3", "1 &lt; 2 &amp; 3"),
        ("two\nlines", "two<br>lines"),
    ],
)
def test_markdown_escapes(raw, escaped):
    assert markdown.escape(raw) == escaped


@pytest.mark.parametrize(
    ("raw", "span"), [("depth=4", "`depth=4`"), ("a`b", "``a`b``"), ("`x", "`` `x ``"), ("a|b", "`a\\|b`")]
)
def test_markdown_code_spans_hold_any_text(raw, span):
    assert markdown.code(raw) == span


def test_the_brief_one_holds_answer_results_and_acceptance_and_tells_what_else_there_is():
    whole, brief = text.render(sample.measured()), text.render(sample.measured(), brief=True)
    assert re.findall(r"\n([A-Z ]+)\n-+\n", brief) == ["ANSWER", "RESULTS", "ACCEPTANCE"]
    told, also = brief.split("\nAlso in the whole report: ")
    assert set(told.splitlines()) <= set(whole.splitlines())
    assert also.startswith("3 findings (knee_below_load, few_pairs, few_requests); 1 void measurement,")


def test_the_brief_one_of_a_simulation_says_so_too():
    assert text.render(sample.simulated(), brief=True).startswith("SIMULATED: lab server, not a real engine\n")
