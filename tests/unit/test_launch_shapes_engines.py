"""Launches as operators write them, read and rewritten by the engines themselves.

Each row of tests/golden/shapes/engines is one shape; several were reported in public threads and files, and have their
numbers there. A row says what `parse` sees in it, and either the whole launch that `render` must make of it, letter for
letter, or why it is refused and what to do by hand. `{file}` is the path of our changed copy of a configuration file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leadline.engines import llamacpp, sglang, trtllm, vllm
from leadline.engines.vllm import jsontext
from leadline.errors import InputError
from leadline.launch import LaunchFile, LaunchSpec
from leadline.ports import Engine
from leadline.space import Setting

SHAPES = Path(__file__).parents[1] / "golden" / "shapes" / "engines"
SCRATCH = "/run/leadline/trial"
ENGINES: dict[str, tuple[Engine, Callable[[Setting], Setting]]] = {
    "sglang": (sglang.engine, sglang.canonical),
    "vllm": (vllm.engine, vllm.canonical),
    "trtllm": (trtllm.engine, trtllm.canonical),
    "llamacpp": (llamacpp.engine, llamacpp.canonical),
}
ROWS: list[dict[str, Any]] = [
    {"engine": path.stem, **row} for path in sorted(SHAPES.glob("*.json")) for row in json.loads(path.read_text())
]
REWRITTEN = [row for row in ROWS if "after" in row]
REFUSED = [row for row in ROWS if "refused" in row]


def text(word: str | list[str]) -> str:
    """A script or a file stands in a table as its lines."""
    return word if isinstance(word, str) else "\n".join(word)


def launch(row: dict[str, Any]) -> LaunchSpec:
    return LaunchSpec(
        argv=tuple(map(text, row["argv"])),
        env=tuple(row.get("env", {}).items()),
        files=tuple(LaunchFile(path, text(content)) for path, content in row.get("files", {}).items()),
        scratch=row.get("scratch", SCRATCH),
    )


def named(row: dict[str, Any]) -> str:
    return f"{row['engine']}: {row['name']}"


@pytest.mark.parametrize("row", [r for r in ROWS if "parse" in r], ids=named)
def test_the_engine_sees_what_is_in_force(row: dict[str, Any]) -> None:
    assert str(ENGINES[row["engine"]][0].parse(launch(row))) == row["parse"]


@pytest.mark.parametrize("row", REWRITTEN, ids=named)
def test_another_setting_changes_the_words_of_its_knobs_alone(row: dict[str, Any]) -> None:
    engine, canonical = ENGINES[row["engine"]]
    base, setting = launch(row), Setting.parse(row["setting"])
    after = engine.render(base, setting)
    content = text(row["after"].get("file", ""))
    path = f"{SCRATCH}/{hashlib.sha256(content.encode()).hexdigest()[:16]}.yaml"
    assert list(after.argv) == [text(word).replace("{file}", path) for word in row["after"]["argv"]]
    assert dict(after.env) == row["after"].get("env", row.get("env", {}))
    assert after.ours == ((LaunchFile(path, content),) if "file" in row["after"] else ())
    knobs = Setting(tuple((n, v) for n, v in setting if ":" not in n))
    assert engine.parse(after) == canonical(engine.parse(base).merged(knobs))
    for name, value in setting:
        assert ":" not in name or engine.value(after, name) == value


@pytest.mark.parametrize("row", REWRITTEN, ids=named)
def test_the_setting_in_force_changes_no_byte(row: dict[str, Any]) -> None:
    """Nor does a setting of ours, once it is there."""
    engine, _ = ENGINES[row["engine"]]
    base = launch(row)
    if "no file yet" not in row["name"]:  # there the counters must be switched on first
        assert engine.render(base, engine.parse(base)).argv == once(row, base.argv)
    after = engine.render(base, Setting.parse(row["setting"]))
    assert engine.render(after, engine.parse(after)) == after


@pytest.mark.parametrize(
    ("text", "value", "after"),
    [
        ('{ "n" : 3,"m": "x" }', {"n": 5, "m": "x"}, '{ "n" : 5,"m": "x" }'),
        ('\n{"a":{"b": 1 ,"c":"}"}, "d":[1,2]}', {"a": {"b": 9, "c": "}"}, "d": [1, 2]}, None),
        ('{"n":3}', {"n": 3, "m": "x"}, '{"n":3,"m":"x"}'),
        ('{"n": 3}', {"n": 4, "m": {"k": 1}}, '{"n": 4, "m": {"k": 1}}'),
        ('{"n":1,"n":2}', {"n": 3}, '{"n":3}'),
        ('{"n":1,"m":2}', {"m": 2}, '{"m":2}'),
        ('{"n":1.0}', {"n": 1}, '{"n":1}'),
        ('{"n":true,"\\u006d":1}', {"n": 1, "m": 2}, '{"n":1,"\\u006d":2}'),
        ("{}", {"n": 1}, '{"n":1}'),
        ("", {"n": 1}, '{"n": 1}'),
    ],
)
def test_in_a_json_text_only_what_differs_changes(text: str, value: dict[str, Any], after: str | None) -> None:
    changed = jsontext.changed(text, value)
    assert changed == (text.replace("1 ,", "9 ,") if after is None else after)
    assert json.loads(changed) == value


def once(row: dict[str, Any], argv: tuple[str, ...]) -> tuple[str, ...]:
    """Of a flag that is given twice, one is left."""
    if "given twice" not in row["name"]:
        return argv
    words = " ".join(argv).replace("--speculative-num-steps 1 ", "").replace(" --speculative-num-steps 3", "")
    return tuple(words.replace("--model-path /m", "--model-path /m --speculative-num-steps 3").split())


@pytest.mark.parametrize("row", REFUSED, ids=named)
def test_what_cannot_be_rewritten_is_refused_with_the_reason(row: dict[str, Any]) -> None:
    """`parse` refuses what cannot be read; what can be read and not changed, `render` alone."""
    engine, _ = ENGINES[row["engine"]]
    with pytest.raises(InputError) as refused:
        engine.render(launch(row), Setting.parse(row.get("setting", "")))
    assert row["refused"] in str(refused.value)
    if "parse" not in row:
        with pytest.raises(InputError) as unread:
            engine.parse(launch(row))
        assert str(unread.value) == str(refused.value)


def test_each_row_says_what_it_expects() -> None:
    assert len(REWRITTEN) >= 50
    assert len(REFUSED) >= 30
    assert all(("after" in r) != ("refused" in r) for r in ROWS)
    assert len({named(r) for r in ROWS}) == len(ROWS)
    assert {r["engine"] for r in ROWS} == set(ENGINES)
    for number in ("R05", "R54", "R55", "R56", "R58", "R59", "R60", *(f"R61.{n}" for n in (1, 2, 3, 4, 5, 6))):
        assert any(r["name"].startswith(f"{number} ") for r in ROWS), number
