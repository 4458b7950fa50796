"""The built-in workload `agent`: sessions of a coding agent that calls tools.

All sessions begin with the same system prompt, and each request holds all turns of its session so far: a prefix cache
helps here as it does in production. The assistant's turns are written in advance, so that a prompt does not depend on
what the server answered and every setting gets the same ones.
"""

from __future__ import annotations

import msgspec

from leadline.ports import PlannedRequest, Workload
from leadline.workloads._material import read
from leadline.workloads._pool import Body, Pool, check_overrides, request, seed_of

FIELDS = {"temperature": 0.2, "max_tokens": 250}


class Script(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Turns of user, assistant, user, ...: an odd number."""

    turns: tuple[str, ...]


class Scripts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    system: str
    session: tuple[Script, ...]


def workload(body: dict[str, object], name: str | None = None) -> Workload:
    """`body` is laid over the fields of every request. Ids are NAME:SESSION.TURN, both from 0."""
    name = name or "agent"
    check_overrides(name, body)
    material = read("agent.toml", Scripts)
    sessions = [
        _session(f"{name}:{index}", system=material.system, turns=script.turns, body=body)
        for index, script in enumerate(material.session)
    ]
    return Pool(name=name, origin="built in", sessions=sessions)


def _session(session_id: str, *, system: str, turns: tuple[str, ...], body: Body) -> list[PlannedRequest]:
    messages = [{"role": "system", "content": system}]
    requests = []
    for position, text in enumerate(turns):
        from_user = position % 2 == 0
        messages.append({"role": "user" if from_user else "assistant", "content": text})
        if from_user:
            turn = position // 2
            prompt_id = f"{session_id}.{turn}"
            own = {"messages": list(messages), **FIELDS, "seed": seed_of(prompt_id)}
            requests.append(request(prompt_id=prompt_id, turn=turn, own=own, body=body))
    return requests
