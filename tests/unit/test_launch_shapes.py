"""Launches as operators write them: the words that are read, and where a changed option is written.

Each row of the tables is one shape; several were reported in public threads and files, and have their numbers here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from leadline.dialect.opaque import is_opaque, text_of
from leadline.dialect.source import Source, base_name, contained, find
from leadline.errors import InputError
from leadline.launch import LaunchSpec

SHAPES = Path(__file__).parents[1] / "golden" / "shapes"
ROWS: list[dict[str, Any]] = [row for path in sorted(SHAPES.glob("*.json")) for row in json.loads(path.read_text())]
STARTS = {
    "sglang": (("sglang", "serve"), ("python", "-m", "sglang.launch_server")),
    "vllm": (("vllm", "serve"), ("python", "-m", "vllm.entrypoints.openai.api_server")),
    "trtllm-serve": (("trtllm-serve",),),
    "llama-server": (("llama-server",),),
}


def text(word: str | list[str]) -> str:
    """A script stands in a table as its lines."""
    return word if isinstance(word, str) else "\n".join(word)


def launch(row: dict[str, Any]) -> LaunchSpec:
    return LaunchSpec(argv=tuple(map(text, row["argv"])), env=tuple(row.get("env", {}).items()))


def source(row: dict[str, Any]) -> Source:
    def starts(words: Sequence[str], at: int) -> int:
        for start in STARTS[row["server"]]:
            first = base_name(words[at]).removesuffix(".exe")
            if (first.rstrip("3"), *words[at + 1 : at + len(start)]) == start:
                return len(start)
        return 0

    return find(launch(row), row["server"], starts)


def shown(word: str) -> str:
    return f"<unknown: {text_of(word)}>" if is_opaque(word) else word


def changed(row: dict[str, Any], found: Source) -> LaunchSpec:
    for name, value in row.get("assign", {}).items():
        found = found.assign(name, value)
    words = list(row.get("words_after", found.words))
    for flag, value in row.get("change", {}).items():
        at = next(i for i, w in enumerate(words) if w.partition("=")[0] == flag)
        if words[at] == flag:
            words[at + 1] = value
        else:
            words[at] = f"{flag}={value}"
    after = found.written(words)
    again = find(after, found.server, found.starts)
    assert again.words == tuple(words)
    assert all(again.env.get(name) == value for name, value in row.get("assign", {}).items())
    return after


def name(row: dict[str, Any]) -> str:
    return str(row["name"])


@pytest.mark.parametrize("row", [r for r in ROWS if "words" in r], ids=name)
def test_reads_the_words_of_the_server(row: dict[str, Any]) -> None:
    found = source(row)
    assert [shown(w) for w in found.words] == row["words"]
    assert found.contained is contained(launch(row)) is row.get("contained", False)


@pytest.mark.parametrize("row", [r for r in ROWS if "words" in r], ids=name)
def test_writing_the_same_words_changes_no_byte(row: dict[str, Any]) -> None:
    found = source(row)
    assert found.place.write((*found.head, *found.words), {}) == launch(row)
    assert found.written(found.words) == launch(row)


@pytest.mark.parametrize("row", [r for r in ROWS if "after" in r], ids=name)
def test_a_change_is_written_where_it_belongs(row: dict[str, Any]) -> None:
    after = changed(row, source(row))
    assert list(after.argv) == [text(w) for w in row["after"]["argv"]]
    assert dict(after.env) == row["after"]["env"]


@pytest.mark.parametrize("row", [r for r in ROWS if "refused" in r], ids=name)
def test_refuses_and_says_what_to_do(row: dict[str, Any]) -> None:
    with pytest.raises(InputError) as refused:
        changed(row, source(row))
    for words in row["refused"]:
        assert words in str(refused.value)


def test_each_row_says_what_it_expects() -> None:
    assert len(ROWS) > 40
    assert all(("after" in r) != ("refused" in r) for r in ROWS)
    assert len({r["name"] for r in ROWS}) == len(ROWS)
