"""The laws of ports.Workload as checks that any workload, ours or a third party's, can be put through.

A law takes `make`, which builds a fresh workload with the given fields laid over each request. It raises
AssertionError in words when the workload breaks it, and lets through what the workload raises. Needs no test framework:

    @pytest.mark.parametrize("law", LAWS)
    def test_obeys(law):
        LAWS[law](my_module.workload)
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from leadline.errors import InputError
from leadline.ports import PlannedRequest, Workload

Make = Callable[[dict[str, object]], Workload]
Sessions = Sequence[Sequence[PlannedRequest]]

_SEEDS = (0, 1, 20261130)


def _must(condition: object, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def _requests(sessions: Sessions) -> Iterator[PlannedRequest]:
    return (request for session in sessions for request in session)


def _everything(workload: Workload, seed: int = 0) -> Sessions:
    return workload.sessions(workload.available, seed)


def _prompt(request: PlannedRequest) -> bytes:
    return msgspec.json.encode([request.body.get("messages"), request.body.get("prompt")], order="sorted")


def _plain(sessions: Sessions) -> bytes:
    return msgspec.json.encode(sessions, order="sorted")


def is_well_formed(make: Make) -> None:
    """Named; each body can be sent as JSON, has messages or a prompt, and leaves streaming to the load worker."""
    workload = make({})
    for field in ("name", "digest", "origin"):
        value = getattr(workload, field)
        _must(isinstance(value, str) and value, f"{field} must be a text, not {value!r}")
    for request in _requests(_everything(workload)):
        kinds = [key for key in ("messages", "prompt") if request.body.get(key)]
        _must(len(kinds) == 1, f"{request.prompt_id}: a body has either messages or a prompt, not {kinds}")
        _must("stream" not in request.body, f"{request.prompt_id}: `stream` is the load worker's")
        try:
            msgspec.json.encode(request.body)
        except (TypeError, msgspec.MsgspecError) as error:
            raise AssertionError(f"{request.prompt_id}: the body cannot be sent as JSON: {error}") from error


def gives_as_many_as_asked(make: Make) -> None:
    """For every n up to `available`: n sessions, none empty, with turns counted from 0."""
    workload = make({})
    _must(workload.available > 0, "a workload has at least one session")
    for n in sorted({0, 1, workload.available // 2, workload.available}):
        sessions = workload.sessions(n, 0)
        _must(len(sessions) == n, f"{n} sessions were asked for and {len(sessions)} came")
        for session in sessions:
            turns = [request.turn for request in session]
            _must(turns and turns == list(range(len(turns))), f"the turns of a session are 0, 1, 2, ..., not {turns}")


def refuses_more_than_there_are(make: Make) -> None:
    """Beyond `available` it raises InputError, and neither repeats a session nor gives fewer."""
    workload = make({})
    for n in (workload.available + 1, workload.available + 1000):
        try:
            workload.sessions(n, 0)
        except InputError:
            continue
        raise AssertionError(f"asked for {n} of {workload.available} sessions, it must raise InputError")


def repeats_nothing(make: Make) -> None:
    """No prompt and no prompt id comes twice within one call's result."""
    workload = make({})
    for seed in _SEEDS:
        seen: dict[bytes, str] = {}
        ids: set[str] = set()
        for request in _requests(_everything(workload, seed)):
            before = seen.setdefault(_prompt(request), request.prompt_id)
            _must(before == request.prompt_id, f"{request.prompt_id} has the same prompt as {before}")
            _must(request.prompt_id not in ids, f"the prompt id {request.prompt_id} comes twice")
            ids.add(request.prompt_id)


def is_repeatable(make: Make) -> None:
    """The same seed gives the same requests: again, from a fresh workload, and whatever the global random state."""
    workload = make({})
    n = max(1, workload.available // 2)
    for seed in _SEEDS:
        state = random.getstate()
        first = _plain(workload.sessions(n, seed))
        _must(random.getstate() == state, "it draws from the global random state")
        random.random()
        _must(_plain(workload.sessions(n, seed)) == first, f"seed {seed} gave other requests when asked again")
        _must(_plain(make({}).sessions(n, seed)) == first, f"seed {seed} gave other requests from a fresh workload")


def keeps_its_requests_to_itself(make: Make) -> None:
    """What a caller does to the requests it got changes no later result."""
    workload = make({})
    before = _plain(_everything(workload))
    for request in _requests(_everything(workload)):
        messages = request.body.get("messages")
        if isinstance(messages, list):
            messages.append({"role": "user", "content": "one more thing"})
        request.body["max_tokens"] = 1
    _must(_plain(_everything(workload)) == before, "changing a returned body changed what the workload gives later")


def lays_the_body_over_every_request(make: Make) -> None:
    """Given fields are in each request, nested ones too, and change nothing else of it."""
    given: dict[str, object] = {"max_tokens": 7, "chat_template_kwargs": {"enable_thinking": False}}
    plain, laid = _everything(make({})), _everything(make(dict(given)))
    _must([len(session) for session in plain] == [len(session) for session in laid], "a body changes no session")
    for before, after in zip(_requests(plain), _requests(laid), strict=True):
        expected = {**before.body, **given}
        _must(after.body == expected, f"{after.prompt_id}: the given fields are not laid over the request's own")
        _must((after.prompt_id, after.turn) == (before.prompt_id, before.turn), "a body changes no prompt id")


def has_a_digest_that_follows_the_requests(make: Make) -> None:
    """The same for the same requests, another one when any field of them is another."""
    plain = make({}).digest
    _must(make({}).digest == plain, "two workloads with the same requests must have the same digest")
    bodies: tuple[dict[str, object], ...] = ({"max_tokens": 7}, {"max_tokens": 8}, {"logit_bias": {"1": 2}})
    digests = [plain, *(make(body).digest for body in bodies)]
    _must(len(set(digests)) == len(digests), f"the digest stays the same when the requests change: {digests}")


LAWS: Mapping[str, Callable[[Make], None]] = {
    law.__name__: law
    for law in (
        is_well_formed,
        gives_as_many_as_asked,
        refuses_more_than_there_are,
        repeats_nothing,
        is_repeatable,
        keeps_its_requests_to_itself,
        lays_the_body_over_every_request,
        has_a_digest_that_follows_the_requests,
    )
}
