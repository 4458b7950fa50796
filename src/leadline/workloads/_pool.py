"""What every workload here is made of: a fixed pool of sessions, drawn without replacement."""

from __future__ import annotations

import copy
import hashlib
import random
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from leadline.errors import InputError
from leadline.ports import PlannedRequest

Body = Mapping[str, object]


class Pool:
    """A Workload over a fixed list of sessions.

    `sessions` shuffles the whole pool with the seed and takes the first `n`: nothing can repeat, and a smaller `n`
    gives the beginning of a larger one. Its bodies are copies, so a caller may change them. `remark` is added to the
    message that says how many sessions there are.
    """

    def __init__(
        self, *, name: str, origin: str, sessions: Iterable[Sequence[PlannedRequest]], remark: str = ""
    ) -> None:
        self.name = name
        self.origin = origin
        self._sessions = tuple(tuple(session) for session in sessions)
        self.available = len(self._sessions)
        self._remark = remark
        self.digest = hashlib.sha256(msgspec.json.encode(self._sessions, order="sorted")).hexdigest()[:16]

    def sessions(self, n: int, seed: int) -> Sequence[Sequence[PlannedRequest]]:
        if n > self.available:
            raise InputError(
                f"workload {self.name} ({self.origin}) has {self.available} distinct sessions and {n} were asked "
                f"for{self._remark}; ask for fewer requests a measurement, or give a JSONL file with more sessions"
            )
        shuffled = random.Random(seed).sample(self._sessions, self.available)
        return copy.deepcopy(shuffled[:n])


def request(*, prompt_id: str, turn: int, own: Body, body: Body) -> PlannedRequest:
    """A request with its own fields, its id as `user` so that a server's log can be matched, and `body` on top."""
    return PlannedRequest(prompt_id=prompt_id, turn=turn, body={"user": prompt_id, **own, **body})


def seed_of(prompt_id: str) -> int:
    """A sampling seed that depends on the prompt only: every setting is compared on the same draws."""
    return int.from_bytes(hashlib.sha256(prompt_id.encode()).digest()[:4]) >> 1


def check_overrides(name: str, body: Body) -> None:
    """Refuse what would make all prompts equal, and the field that is the load worker's."""
    wrong = [key for key in ("messages", "prompt", "stream") if key in body]
    if wrong:
        raise InputError(
            f"workload {name}: body sets {', '.join(wrong)}; the prompts are the workload's own and answers are always "
            "streamed. Allowed is any other field of a request, like max_tokens or temperature"
        )


def single_turns(*, name: str, prompts: Iterable[str], fields: Body, body: Body) -> Pool:
    """A built-in workload of sessions of one user message each. Ids are NAME:INDEX in the order of the material."""
    check_overrides(name, body)

    def session(index: int, prompt: str) -> tuple[PlannedRequest]:
        prompt_id = f"{name}:{index}"
        own = {"messages": [{"role": "user", "content": prompt}], **fields, "seed": seed_of(prompt_id)}
        return (request(prompt_id=prompt_id, turn=0, own=own, body=body),)

    return Pool(name=name, origin="built in", sessions=[session(i, prompt) for i, prompt in enumerate(prompts)])
