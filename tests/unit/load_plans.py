"""Plans for tests of the load."""

from leadline.ports import PlannedRequest


def session(name: str, turns: int = 1, **body: object) -> tuple[PlannedRequest, ...]:
    return tuple(
        PlannedRequest(prompt_id=f"{name}.{t}", turn=t, body={"messages": [{"role": "user", "content": name}], **body})
        for t in range(turns)
    )


def sessions(prefix: str, n: int, turns: int = 1) -> tuple[tuple[PlannedRequest, ...], ...]:
    return tuple(session(f"{prefix}{i}", turns) for i in range(n))
