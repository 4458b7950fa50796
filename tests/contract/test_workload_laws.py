"""Every workload obeys the laws of its port, and each law catches a workload that breaks it."""

from __future__ import annotations

import importlib
import json
import pkgutil
import random
from collections.abc import Callable, Sequence

import msgspec
import pytest

import leadline.workloads
from leadline.errors import InputError
from leadline.ports import PlannedRequest, Workload
from leadline.testing.workload_suite import LAWS, Make
from leadline.workloads.file import FileWorkload

BUILT_IN = {
    module.name: importlib.import_module(f"leadline.workloads.{module.name}").workload
    for module in pkgutil.iter_modules(leadline.workloads.__path__)
    if not module.name.startswith("_") and module.name != "file"
}
LINES = [
    '{"messages": [{"role": "user", "content": "one"}], "temperature": 1, "stream": true}',
    '{"prompt": "two", "id": "b"}',
    '{"messages": [{"role": "user", "content": "three"}], "session": "s"}',
    '{"messages": [{"role": "user", "content": "four"}], "session": "s"}',
    '{"prompt": "two"}',
]


def from_file(body: dict[str, object]) -> Workload:
    return FileWorkload("mine", LINES, "mine.jsonl", body)


EVERY = {**BUILT_IN, "file": from_file}


def test_the_folder_holds_the_five_built_ins() -> None:
    assert set(BUILT_IN) == {"agent", "chat", "coding", "extract", "summarize"}


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("name", EVERY)
def test_workload_obeys_the_law(name: str, law: str) -> None:
    LAWS[law](EVERY[name])


class Small:
    """A lawful workload of five sessions, written against the port only; what breaks a law derives from it."""

    name = "small"
    origin = "test"
    available = 5

    def __init__(self, body: dict[str, object]) -> None:
        self.body = body
        self.digest = json.dumps(body, sort_keys=True) + "v1"

    def session(self, index: int) -> list[PlannedRequest]:
        return [
            PlannedRequest(
                prompt_id=f"small:{index}.{turn}",
                turn=turn,
                body={"messages": [{"role": "user", "content": f"{index} and {turn}"}], **self.body},
            )
            for turn in range(2)
        ]

    def order(self, seed: int) -> list[int]:
        return random.Random(seed).sample(range(self.available), self.available)

    def sessions(self, n: int, seed: int) -> Sequence[Sequence[PlannedRequest]]:
        if n > self.available:
            raise InputError(f"{self.available} sessions")
        return [self.session(index) for index in self.order(seed)[:n]]


class AsksToStream(Small):
    def session(self, index: int) -> list[PlannedRequest]:
        return [msgspec.structs.replace(r, body={**r.body, "stream": True}) for r in super().session(index)]


class HoldsAnObject(Small):
    def session(self, index: int) -> list[PlannedRequest]:
        return [msgspec.structs.replace(r, body={**r.body, "metadata": object}) for r in super().session(index)]


class Nameless(Small):
    origin = ""


class GivesOneLess(Small):
    def sessions(self, n: int, seed: int) -> Sequence[Sequence[PlannedRequest]]:
        return super().sessions(n, seed)[: max(1, n - 1)] if n else []


class CountsTurnsFromOne(Small):
    def session(self, index: int) -> list[PlannedRequest]:
        return [msgspec.structs.replace(r, turn=r.turn + 1) for r in super().session(index)]


class GivesWhatItHas(Small):
    def sessions(self, n: int, seed: int) -> Sequence[Sequence[PlannedRequest]]:
        return super().sessions(min(n, self.available), seed)


class RaisesItsOwn(Small):
    def sessions(self, n: int, seed: int) -> Sequence[Sequence[PlannedRequest]]:
        if n > self.available:
            raise KeyError(n)
        return super().sessions(n, seed)


class RepeatsAPrompt(Small):
    def session(self, index: int) -> list[PlannedRequest]:
        first, second = super().session(index)
        return [first, msgspec.structs.replace(second, body=dict(first.body))]


class RepeatsAnId(Small):
    def session(self, index: int) -> list[PlannedRequest]:
        return [msgspec.structs.replace(r, prompt_id=f"small:{index}") for r in super().session(index)]


class DrawsWithReplacement(Small):
    def order(self, seed: int) -> list[int]:
        return random.Random(seed).choices(range(self.available), k=self.available)


class UsesTheGlobalRandom(Small):
    def order(self, seed: int) -> list[int]:
        random.seed(seed)
        return random.sample(range(self.available), self.available)


class RemembersCalls(Small):
    calls = 0

    def order(self, seed: int) -> list[int]:
        type(self).calls += 1
        return super().order(seed + self.calls)


class SharesItsBodies(Small):
    def __init__(self, body: dict[str, object]) -> None:
        super().__init__(body)
        self.kept = [super(SharesItsBodies, self).session(index) for index in range(self.available)]

    def session(self, index: int) -> list[PlannedRequest]:
        return self.kept[index]


class ForgetsTheBodyInLaterTurns(Small):
    def session(self, index: int) -> list[PlannedRequest]:
        first, second = super().session(index)
        return [first, msgspec.structs.replace(second, body={"messages": second.body["messages"]})]


class HasAFixedDigest(Small):
    def __init__(self, body: dict[str, object]) -> None:
        super().__init__(body)
        self.digest = "v1"


class DigestsOnlyTheNames(Small):
    def __init__(self, body: dict[str, object]) -> None:
        super().__init__(body)
        self.digest = f"v1 {sorted(body)}"


class HasANewDigestEachTime(Small):
    made = 0

    def __init__(self, body: dict[str, object]) -> None:
        super().__init__(body)
        type(self).made += 1
        self.digest = f"v{self.made}"


BROKEN: list[tuple[str, Callable[[dict[str, object]], Small]]] = [
    ("is_well_formed", AsksToStream),
    ("is_well_formed", HoldsAnObject),
    ("is_well_formed", Nameless),
    ("gives_as_many_as_asked", GivesOneLess),
    ("gives_as_many_as_asked", CountsTurnsFromOne),
    ("refuses_more_than_there_are", GivesWhatItHas),
    ("refuses_more_than_there_are", RaisesItsOwn),
    ("repeats_nothing", RepeatsAPrompt),
    ("repeats_nothing", RepeatsAnId),
    ("repeats_nothing", DrawsWithReplacement),
    ("is_repeatable", UsesTheGlobalRandom),
    ("is_repeatable", RemembersCalls),
    ("keeps_its_requests_to_itself", SharesItsBodies),
    ("lays_the_body_over_every_request", ForgetsTheBodyInLaterTurns),
    ("has_a_digest_that_follows_the_requests", HasAFixedDigest),
    ("has_a_digest_that_follows_the_requests", DigestsOnlyTheNames),
    ("has_a_digest_that_follows_the_requests", HasANewDigestEachTime),
]


@pytest.mark.parametrize("law", LAWS)
def test_the_lawful_example_passes(law: str) -> None:
    LAWS[law](Small)


@pytest.mark.parametrize(("law", "broken"), BROKEN, ids=[broken.__name__ for _, broken in BROKEN])
def test_the_law_catches_who_breaks_it(law: str, broken: Make) -> None:
    with pytest.raises((AssertionError, KeyError)):
        LAWS[law](broken)


def test_every_law_has_somebody_who_breaks_it() -> None:
    assert {law for law, _ in BROKEN} == set(LAWS)
