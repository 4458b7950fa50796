"""What engines tell of their speculation with an answer, in their own words."""

from typing import Any

import pytest
from load_server import event, finish, text
from test_load_decode import read

SGLANG = {
    "sglext": {
        "spec_tokens_details": {
            "spec_accept_length": 2.5,
            "spec_verify_ct": 4,
            "spec_num_correct_drafts": 6,
            "spec_num_proposed_drafts": 12,
            "spec_correct_drafts_histogram": [1, 0, 3, 0],
        }
    }
}
VLLM = {
    "metrics": {
        "speculative_decoding": {
            "mean_acceptance_length": 1.2325581395348837,
            "acceptance_histogram": [39, 1, 0, 3],
            "num_spec_steps": 43,
            "num_accepted_draft_tokens": 10,
            "num_draft_tokens": 129,
        }
    }
}


def test_sglang() -> None:
    r = read(text("a"), event({"choices": [], **SGLANG}), finish(10))
    assert (r.error, r.rounds, r.drafted, r.accepted, r.histogram) == ("", 4, 12, 6, (1, 0, 3, 0))


def test_vllm() -> None:
    r = read(text("a"), event({"choices": [], **VLLM}), finish(53))
    assert (r.error, r.rounds, r.drafted, r.accepted, r.histogram) == ("", 43, 129, 10, (39, 1, 0, 3))
    assert sum(i * n for i, n in enumerate(r.histogram)) == r.accepted
    assert sum(r.histogram) == r.rounds


def test_llamacpp() -> None:
    r = read(text("a"), event({"choices": [], "timings": {"draft_n": 9, "draft_n_accepted": 5}}), finish(10))
    assert (r.rounds, r.drafted, r.accepted, r.histogram) == (0, 9, 5, ())


@pytest.mark.parametrize(
    "odd",
    [
        {"sglext": None},
        {
            "sglext": {"spec_tokens_details": [{"spec_verify_ct": 3}]}
        },  # one for each choice: there is only one to ask for
        {"sglext": "text"},
        {"metrics": {"speculative_decoding": None}},
        {"metrics": {"speculative_decoding": {"num_spec_steps": -1, "acceptance_histogram": "none"}}},
        {"metrics": 7},
    ],
)
def test_odd_shapes_tell_nothing_and_spoil_nothing(odd: dict[str, Any]) -> None:
    r = read(text("a"), event({"choices": [], **odd}), finish(10))
    assert (r.error, r.rounds, r.drafted, r.accepted, r.histogram) == ("", 0, 0, 0, ())
