"""YAML configuration files: read as the servers read them, rewritten without losing a comment."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leadline.dialect.yamlfile import changed, edited, find, load, ours, written
from leadline.errors import InputError
from leadline.launch import LaunchFile, LaunchSpec

TEXT = """\
# what the night shift agreed on
model: "org/model"   # do not change
speculative-config:
    # from the paper
    method: 'mtp'
    num_speculative_tokens: 3
    enforce_eager: true
sizes:
    - 1
    - 2
flat: {"a": 1, "b": [1, 2]}
trust: yes
"""


def file(content: str) -> LaunchFile:
    return LaunchFile("/etc/vllm/serve.yaml", content)


def test_reads_what_pyyaml_reads() -> None:
    assert load(file("a: yes\nb: 1_000\nc: null\nd: [1, x]\ne: off\n")) == {
        "a": True,
        "b": 1000,
        "c": None,
        "d": [1, "x"],
        "e": False,
    }
    assert load(file("")) == load(file("# nothing\n")) == {}


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("a: 1\nb: [1,\nc: 2\n", 3),
        ("a: b: c\n", 1),
        ("a: 1\nb: 2\na: 3\n", 3),
        ("a: 1\n\tb: 2\n", 2),
        ("a: !!python/object/apply:os.system [x]\n", 1),
        ("a: 1\n---\nb: 1\n", 2),
        ("a: 1\nb: \x07\n", 2),
        ("a: 2020-13-45\n", 1),
        ("- 1\n", 1),
        ("7: x\n", 1),
        ("[" * 3000, 1),
    ],
)
def test_says_the_file_and_the_line_of_what_is_no_yaml(content: str, line: int) -> None:
    with pytest.raises(InputError, match=rf"^/etc/vllm/serve\.yaml, line {line}: "):
        load(file(content))


def test_a_message_shows_no_value() -> None:
    with pytest.raises(InputError) as refused:
        load(file("api-key: sk-wW7\napi-key: sk-wW8\n"))
    assert "wW" not in str(refused.value)


def test_changes_one_value_and_nothing_else() -> None:
    got = edited(file(TEXT), {("speculative-config", "num_speculative_tokens"): 7})
    assert got == TEXT.replace("num_speculative_tokens: 3", "num_speculative_tokens: 7")


def test_takes_away_and_adds_at_the_end() -> None:
    got = edited(
        file(TEXT), {("max-num-seqs",): 8, ("new", "deep", "er"): "x"}, [("speculative-config",), ("none", "x")]
    )
    assert "speculative" not in got
    assert got.endswith("trust: yes\nmax-num-seqs: 8\nnew:\n    deep:\n        er: x\n")
    assert got.startswith('# what the night shift agreed on\nmodel: "org/model"   # do not change\n')


def test_edits_an_empty_file() -> None:
    assert edited(file("# only words\n"), {("a",): 1}).endswith("a: 1\n")


def test_what_is_no_mapping_cannot_hold_a_key() -> None:
    with pytest.raises(InputError, match="sizes holds no options"):
        edited(file(TEXT), {("sizes", "x"): 1})


@pytest.mark.parametrize("text", ["yes", "0o7", "1_0", "12:30", "null", "3", "a: b", "# x", "", "é"])
def test_a_text_that_looks_like_something_else_is_refused_or_quoted(text: str) -> None:
    """In YAML 1.1 alone, too: its kind must not change on the way."""
    with suppress(InputError):
        assert load(file(edited(file("a: 1\n"), {("b",): text})))["b"] == text


def test_most_of_those_texts_can_be_written() -> None:
    for text in ("1_0", "null", "3", "a: b", "# x", "", "é"):
        assert load(file(edited(file("a: 1\n"), {("b",): text})))["b"] == text


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(
        st.text("abc-_", min_size=1, max_size=6),
        st.one_of(st.integers(-9, 9**9), st.booleans(), st.text("ab1 :#'\"\\{}[]-.é", max_size=8), st.none()),
        max_size=5,
    ),
    st.integers(0, 99),
)
def test_a_written_file_reads_back_and_can_be_edited(values: dict[str, object], number: int) -> None:
    content = written(values)
    with suppress(InputError):
        assert load(file(content)) == values
        assert load(file(edited(file(content), {("depth",): number}))) == {**values, "depth": number}


def test_changed_touches_only_what_differs() -> None:
    values = load(file(TEXT))
    assert changed(file(TEXT), values) == TEXT
    values["speculative-config"]["num_speculative_tokens"] = 4
    del values["trust"]
    got = changed(file(TEXT), values)
    assert got == TEXT.replace("tokens: 3", "tokens: 4").replace("trust: yes\n", "")


def test_our_copy_takes_the_place_of_the_operators_file() -> None:
    base = LaunchSpec(argv=("x",), files=(file("a: 1\n"), LaunchFile("other", "b: 1\n")), scratch="/run/leadline/")
    first, path = ours(base, "/etc/vllm/serve.yaml", "a: 2\n")
    assert path.startswith("/run/leadline/")
    assert path.endswith(".yaml")
    assert first.ours == (LaunchFile(path, "a: 2\n"),)
    assert [f.path for f in first.files] == ["other", path]
    assert ours(base, "/etc/vllm/serve.yaml", "a: 2\n")[1] == path
    second, other = ours(first, path, "a: 3\n")
    assert other != path
    assert [f.path for f in second.files] == ["other", other]


def test_no_folder_no_copy() -> None:
    with pytest.raises(InputError, match=r"serve\.yaml.*no folder"):
        ours(LaunchSpec(argv=("x",)), "/etc/vllm/serve.yaml", "a: 2\n")


def test_a_file_that_nobody_read() -> None:
    launch = LaunchSpec(argv=("x",), files=(file("a: 1\n"),))
    assert find(launch, "/etc/vllm/serve.yaml").content == "a: 1\n"
    with pytest.raises(InputError, match=r"gone\.yaml"):
        find(launch, "gone.yaml")


def test_the_library_is_loaded_on_first_use_only() -> None:
    code = "import sys, leadline.dialect.yamlfile; sys.exit('ruamel.yaml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
