"""The demo's own traffic: copy-heavy editing requests, chosen so that n-gram speculation has something to win."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

from leadline.workloads.file import FileWorkload

EDITS = Path(__file__).parents[2] / "demo" / "edits.jsonl"
FIELDS = {"id", "messages", "temperature", "max_tokens", "seed"}  # ignore_eos and the like would not be real traffic


def lines() -> list[str]:
    return EDITS.read_text(encoding="utf-8").split("\n")


def requests() -> list[dict[str, object]]:
    return [json.loads(line) for line in lines() if line]


def prompt(request: dict[str, object]) -> str:
    messages = request["messages"]
    assert isinstance(messages, list)
    assert [message["role"] for message in messages] == ["user"]
    return str(messages[0]["content"])


def three_grams(text: str) -> set[tuple[str, ...]]:
    words = text.split()
    return {tuple(words[i : i + 3]) for i in range(len(words) - 2)}


def test_the_file_loads_with_at_least_56_sessions_of_one_request() -> None:
    workload = FileWorkload("edits", lines(), "edits.jsonl", {})
    assert workload.available >= 56
    assert workload.repeated == 0
    assert {len(session) for session in workload.sessions(workload.available, 1)} == {1}


def test_every_request_has_the_same_fields_and_none_that_real_traffic_has_not() -> None:
    for request in requests():
        assert set(request) == FIELDS
        assert (request["temperature"], request["max_tokens"]) == (0.2, 64)


def test_ids_and_sampling_seeds_are_distinct() -> None:
    found = requests()
    assert len({str(request["id"]) for request in found}) == len(found)
    assert len({str(request["seed"]) for request in found}) == len(found)


def test_every_prompt_is_an_instruction_and_a_text_to_copy_of_its_own() -> None:
    parts = [prompt(request).split("\n\n", 1) for request in requests()]
    assert all(len(part) == 2 for part in parts)
    texts = [three_grams(text) for _, text in parts]
    for one, other in itertools.combinations(texts, 2):
        assert len(one & other) <= 0.2 * min(len(one), len(other))
