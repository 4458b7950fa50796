"""A setting's text is the setting."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.codec import from_json, to_json
from leadline.goal import Cell
from leadline.space import Setting

names = st.from_regex(r"(flag:--)?[a-z][a-z_-]{0,12}|env:[A-Z_]{1,8}", fullmatch=True)
values = st.one_of(st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text())
settings = st.dictionaries(names, values, max_size=5).map(Setting.of)


@given(settings)
def test_text_reads_back(setting: Setting) -> None:
    assert Setting.parse(str(setting)) == setting


@given(settings)
def test_json_stores_the_text(setting: Setting) -> None:
    assert from_json(to_json(setting), Setting) == setting


@given(st.dictionaries(names, values, max_size=5))
def test_order_does_not_matter(given_values: dict) -> None:
    backwards = dict(reversed(list(given_values.items())))
    assert Setting.of(given_values) == Setting.of(backwards)
    assert hash(Setting.of(given_values)) == hash(Setting.of(backwards))


def test_one_and_true_and_one_point_zero_are_three_settings() -> None:
    assert len({Setting.of(a=1), Setting.of(a=True), Setting.of(a=1.0), Setting.of(a="1")}) == 4


@pytest.mark.parametrize("text", ["depth", "depth=1 depth=2", "=3", "a b=3"])
def test_what_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"setting|twice"):
        Setting.parse(text)


def test_a_setting_does_not_change() -> None:
    with pytest.raises(AttributeError):
        Setting.of(depth=1).values = ()


@given(st.from_regex(r"[A-Za-z][\w-]{0,9}", fullmatch=True).filter(str.isascii), st.integers(1, 10_000))
def test_a_cell_reads_back(workload: str, concurrency: int) -> None:
    cell = Cell(workload, concurrency)
    assert Cell.parse(str(cell)) == cell
    assert from_json(to_json((cell,)), tuple[Cell, ...]) == (cell,)


@pytest.mark.parametrize("text", ["coding", "coding@0", "coding@-1", "@4", "coding@4.5", "co ding@1"])
def test_a_wrong_cell_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a cell is written"):
        Cell.parse(text)
