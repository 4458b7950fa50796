"""What to ask a running llama-server, and what its answers say. Any bytes are accepted; what cannot be read is None."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from leadline.evidence import Acceptance, Effective, Evidence, Probe, Reply
from leadline.trial import RequestRecord

READY_BODY = (
    b'{"messages":[{"role":"user","content":"Say ok."}],"max_tokens":2,"temperature":0,"cache_prompt":false,'
    b'"stream":false}'
)
"""Two tokens: the first comes from the prompt's own pass, the second proves a decode step."""

PROBES = (
    Probe(name="health", path="/health"),
    Probe(name="ready", path="/v1/chat/completions", method="POST", body=READY_BODY, timeout_s=60.0),
    Probe(name="props", path="/props"),
    Probe(name="slots", path="/slots"),
    Probe(name="models", path="/v1/models"),
    Probe(name="metrics", path="/metrics"),
)
"""The counters come last, so that a window which they open does not hold the probes' own tokens."""

_SAMPLE = re.compile(r"llamacpp:(\w+)(\{[^}]*\})?\s+(\S+)\s*")
_POSITION = re.compile(r'\{position="(\d{1,4})"\}')
_SLOTS = re.compile(r"initializing, n_slots = (\d{1,6}), n_ctx_slot = (\d{1,9}), kv_unified = '(true|false)'")
_MOST = 2**53
"""Counts beyond are no counts: a float holds no more."""
_PREDICTED = "tokens_predicted_total"
_DRAFTED = "spec_decode_num_draft_tokens_total"
_ACCEPTED = "spec_decode_num_accepted_tokens_total"
_DRAFTS = "spec_decode_num_drafts_total"
_PER_POSITION = "spec_decode_num_accepted_tokens_per_pos_total"


class Counters(msgspec.Struct, frozen=True):
    """`/metrics` at one moment. `positions` has one entry per draft position once anything was drafted, none before."""

    values: dict[str, int]
    positions: tuple[int, ...]

    def __getitem__(self, name: str) -> int:
        return self.values.get(name, 0)


def counters(evidence: Evidence) -> Counters | None:
    """None when the server does not count tokens (it was started without --metrics)."""
    body = evidence.body("metrics")
    if body is None:
        return None
    values: dict[str, int] = {}
    positions: dict[int, int] = {}
    for line in body.decode(errors="replace").splitlines():
        sample = _SAMPLE.fullmatch(line)
        count = _count(sample[3]) if sample else None
        if sample is None or count is None:
            continue
        position = _POSITION.fullmatch(sample[2] or "")
        if sample[1] == _PER_POSITION and position:
            positions[int(position[1])] = count
        elif sample[2] is None:
            values[sample[1]] = count
    if _PREDICTED not in values:
        return None
    return Counters(values, tuple(positions[i] for i in sorted(positions)))


def effective(evidence: Evidence) -> Effective:
    """The depth is the number of positions that the server counts, which it shows once it has drafted; 0 when its
    slots say that they do not speculate; None before."""
    props = _object(_json(evidence, "props"))
    slots = [_object(s) for s in _list(_json(evidence, "slots"))]
    counted = counters(evidence)
    told = [s["speculative"] for s in slots if isinstance(s.get("speculative"), bool)]
    drafted = counted is not None and counted[_DRAFTED] > 0
    speculating = any(told) if told else (True if drafted else None)
    depth = len(counted.positions) or None if counted is not None and drafted else None
    if depth is None and speculating is False:
        depth = 0
    context = _whole(_object(props.get("default_generation_settings")).get("n_ctx"))
    model = props.get("model_path")
    version = props.get("build_info")
    return Effective(
        depth=depth,
        speculating=speculating,
        max_running=_whole(props.get("total_slots")) or (len(slots) or None),
        context=context,
        kv_tokens=_kv_tokens(evidence.log),
        model=model if isinstance(model, str) and model else _model_id(evidence),
        version=version if isinstance(version, str) and version else None,
    )


def loading(reply: Reply) -> bool:
    return reply.status == 503 and b"Loading model" in reply.body


def acceptance(before: Evidence, after: Evidence, records: Sequence[RequestRecord]) -> Acceptance | None:
    """Differences of counters; None without counters, or when they cannot be of one server and of these requests.

    `records` must hold every request of the window, warm-up and failed ones too. The first token of a request comes
    from the prompt's pass and is no round; each round yields one token besides those that it accepts, so rounds =
    decode tokens - accepted. The server counts tokens that it accepted behind a stop and never sent, so a request may
    show up to `depth` rounds too few; never fewer than the rounds that drafted.
    """
    old, new = counters(before), counters(after)
    if old is None or new is None or _went_back(old, new):
        return None
    drafted, accepted, drafting = (new[n] - old[n] for n in (_DRAFTED, _ACCEPTED, _DRAFTS))
    if sum(r.drafted for r in records) > drafted or sum(r.accepted for r in records) > accepted:
        return None
    started = sum(1 for r in records if r.output_tokens or r.chunk_ns)
    probed = _probe_tokens(before, after)
    first_tokens = started + (1 if probed else 0)
    decode_tokens = max(0, new[_PREDICTED] - old[_PREDICTED] - first_tokens)
    width = len(new.positions)
    earlier = (*old.positions, *(0,) * width)
    return Acceptance(
        decode_tokens=decode_tokens,
        rounds=max(decode_tokens - accepted, drafting),
        drafting_rounds=drafting,
        drafted=drafted,
        accepted=accepted,
        per_position=tuple(n - o for n, o in zip(new.positions, earlier, strict=False)),
    )


def foreign_tokens(before: Evidence, after: Evidence, records: Sequence[RequestRecord]) -> int:
    """Tokens that the server generated and that cannot be ours.

    What a request of ours that failed or was cut got is unknown; it may be all that its slot's context holds, so that
    much is given to each, and nothing is reported when the context is unknown. Ours too: the tokens of a "ready" probe
    that was answered in the window. A foreign request is counted when it ends, so one still running is not seen.
    """
    old, new = counters(before), counters(after)
    if old is None or new is None or _went_back(old, new):
        return 0
    ours = sum(r.output_tokens for r in records) + _probe_tokens(before, after)
    excess = new[_PREDICTED] - old[_PREDICTED] - ours
    cut = sum(1 for r in records if not r.ok or r.output_tokens == 0)
    if cut:
        context = effective(after).context or effective(before).context
        if context is None:
            return 0
        excess -= cut * context
    return max(0, excess)


def restarted(before: Evidence, after: Evidence) -> bool:
    """Whether a counter shrank; without counters, no."""
    old, new = counters(before), counters(after)
    return old is not None and new is not None and _went_back(old, new)


def _went_back(old: Counters, new: Counters) -> bool:
    names = (_PREDICTED, _DRAFTED, _ACCEPTED, _DRAFTS)
    shrunk = any(n < o for n, o in zip(new.positions, old.positions, strict=False))
    return shrunk or len(new.positions) < len(old.positions) or any(new[n] < old[n] for n in names)


def _probe_tokens(before: Evidence, after: Evidence) -> int:
    """Tokens of a "ready" probe that the second evidence has and the first has not."""
    if after.replies.get("ready") == before.replies.get("ready"):
        return 0
    return _whole(_object(_object(_json(after, "ready")).get("usage")).get("completion_tokens")) or 0


def _kv_tokens(log: str) -> int | None:
    """Cells of the KV cache; the log says whether the slots share them."""
    found = _SLOTS.search(log)
    if found is None:
        return None
    return int(found[2]) * (1 if found[3] == "true" else int(found[1]))


def _model_id(evidence: Evidence) -> str | None:
    data = _list(_object(_json(evidence, "models")).get("data"))
    name = _object(data[0]).get("id") if data else None
    return name if isinstance(name, str) and name else None


def weights_bytes(evidence: Evidence) -> int | None:
    """Size of the model's tensors, as /v1/models tells it."""
    data = _list(_object(_json(evidence, "models")).get("data"))
    return _whole(_object(_object(data[0]).get("meta")).get("size")) if data else None


def _json(evidence: Evidence, name: str) -> Any:
    body = evidence.body(name)
    if body is None:
        return None
    try:
        return msgspec.json.decode(body)
    except (ValueError, msgspec.MsgspecError, RecursionError):
        return None


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST else None


def _count(text: str) -> int | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return int(number) if 0 <= number <= _MOST else None
