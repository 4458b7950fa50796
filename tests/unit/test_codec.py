"""JSON to and from our values."""

from __future__ import annotations

import msgspec
import pytest

from leadline.codec import from_json, reader, to_builtins, to_json, to_pretty
from leadline.errors import ConfigError
from leadline.goal import Cell, Goal, Requirement, Weight
from leadline.launch import Put, Run, Step
from leadline.space import Setting


class Note(msgspec.Struct, frozen=True):
    setting: Setting
    cell: Cell
    extra: dict[str, object] = {}


NOTE = Note(Setting.of(depth=4, spec_method="ngram-simple"), Cell("coding", 4), {"n": 1, "list": [1.5, "two", None]})


def test_settings_and_cells_are_stored_as_the_words_that_a_person_searches_for() -> None:
    assert to_json(Note(Setting.of(depth=4), Cell("coding", 1))) == (
        b'{"setting":"depth=4","cell":"coding@1","extra":{}}'
    )


@pytest.mark.parametrize("text", [to_json(NOTE), to_json(NOTE).decode(), to_pretty(NOTE)])
def test_what_was_written_is_read_back(text: bytes | str) -> None:
    assert from_json(text, Note) == NOTE


def test_a_line_of_the_journal_has_no_newline_whatever_is_in_it() -> None:
    line = to_json(Note(Setting.of(draft_model="a\nb\u2028c"), Cell("coding", 1)))
    assert b"\n" not in line
    assert from_json(line, Note).setting["draft_model"] == "a\nb\u2028c"


def test_values_within_values_are_words_too() -> None:
    goal = Goal(name="g", weights=(Weight(Cell("chat", 8), 2.0),), requirements=(Requirement("error_frac", "<", 0.01),))
    assert list(to_builtins(goal)["weights"]) == [{"cell": "chat@8", "weight": 2.0}]
    assert from_json(to_json(goal), Goal) == goal


def test_keys_that_are_words_are_kept_as_text() -> None:
    assert to_builtins({Cell("coding", 1): 2}) == {"coding@1": 2}


def test_a_reader_takes_a_union_apart_by_its_tag() -> None:
    read = reader(Step)
    steps = [
        Run(argv=("ls", "-l"), timeout_s=3.0),
        Put(path="serve.sh", content="#!/bin/sh\n", mode=0o755, expect="absent"),
    ]
    assert [read(to_json(step)) for step in steps] == steps


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b'{"setting":"depth=4","cell":"coding"}', "cell"),
        (b'{"setting":4,"cell":"coding@1"}', "setting"),
        (b'{"cell":"coding@1"}', "setting"),
        (b'{"setting":"depth=4"', "truncated"),
    ],
)
def test_what_cannot_be_read_is_a_value_error_that_says_where(text: bytes, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        from_json(text, Note)


def test_what_has_no_spelling_is_refused_and_not_stored_as_something_else() -> None:
    with pytest.raises(TypeError, match="cannot store a ConfigError"):
        to_json(ConfigError(["wrong"]))
