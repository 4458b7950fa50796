"""The table of `leadline memory`."""

from __future__ import annotations

import json

import pytest

from leadline.evidence import Footprint, Verdict
from leadline.report.memory_table import data, lines

GIB = 1 << 30
ROWS = [
    (
        "depth=0",
        Footprint(
            verdict=Verdict.FITS,
            kv_tokens=1_317_073,
            max_running=128,
            asked_running=128,
            parts={"weights": 9 * GIB, "KV pool": 40 * GIB, "reserve left": 14 * GIB},
            basis="config.json and the device's size",
            error_frac=0.0127,
        ),
    ),
    (
        "depth=3",
        Footprint(
            verdict=Verdict.STARVED,
            reason="room for 72 of the 128 requests at once that it asks for",
            kv_tokens=459_771,
            max_running=72,
            asked_running=128,
            parts={"weights": 9 * GIB, "draft weights": GIB // 2, "KV pool": 14 * GIB, "intermediate states": 24 * GIB},
            basis="the log of an earlier launch",
            error_frac=0.0004,
        ),
    ),
    (
        "depth=6",
        Footprint(
            verdict=Verdict.WILL_NOT_START,
            reason="no memory for the KV cache",
            kv_tokens=0,
            max_running=0,
            asked_running=128,
            basis="the log of an earlier launch",
        ),
    ),
    ("depth=7", Footprint(reason="the draft model is not known")),
]

EXPECTED = """\
setting       KV tokens  requests at once  tokens each  memory
depth=0  1,317,073 ±1 %               128       10,289  fits
depth=3         459,771         128 -> 72        6,385  starved
depth=6               0          128 -> 0            -  will not start
depth=7               -                 -            -  unknown

depth=3 starved: room for 72 of the 128 requests at once that it asks for
depth=6 will not start: no memory for the KV cache
depth=7 unknown: the draft model is not known

Where the memory of one device goes, GiB:

                     depth=0  depth=3
weights                 9.00     9.00
draft weights              -     0.50
KV pool                40.00    14.00
intermediate states        -    24.00
reserve left           14.00        -
sum                    63.00    47.50

depth=0: figures from config.json and the device's size.
depth=3, depth=6: figures from the log of an earlier launch."""


def test_the_table():
    assert "\n".join(lines(ROWS)) == EXPECTED


@pytest.mark.parametrize("width", [60, 72, 80])
def test_no_line_is_wider_than_the_terminal(width):
    many = [(f"depth={n} max_running=64", ROWS[1][1]) for n in range(9)]
    out = lines(many, width)
    assert max(map(len, out)) <= width
    assert sum("intermediate states" in row for row in out) > 1  # settings that do not fit beside each other follow


def test_one_basis_is_said_once():
    assert lines([ROWS[1], ROWS[2]])[-1] == "Figures from the log of an earlier launch."


def test_what_is_not_known_is_absent():
    assert lines([]) == ["no setting to show"]
    out = lines([("depth=1", Footprint())])
    assert out[1].split() == ["depth=1", "-", "-", "-", "unknown"]
    assert len(out) == 2


def test_control_characters_are_made_visible():
    found = Footprint(verdict=Verdict.STARVED, reason="bad \x1b[31m", parts={"a\x1bb": GIB}, basis="x\x1b")
    assert "\x1b" not in "\n".join(lines([("depth=\x1b1", found)]))


def test_data_is_json_in_the_order_of_the_parts():
    back = json.loads(json.dumps(data(ROWS)))
    assert [row["setting"] for row in back] == ["depth=0", "depth=3", "depth=6", "depth=7"]
    assert list(back[1]["parts"]) == ["weights", "draft weights", "KV pool", "intermediate states"]
    assert (back[1]["verdict"], back[1]["max_running"], back[3]["kv_tokens"]) == ("starved", 72, None)
