"""What to ask a running llama-server, and what its answers say. Any bytes are accepted; what cannot be read is None."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from leadline.dialect import prometheus
from leadline.dialect.answers import json_of, list_of, object_of, probe_tokens, text_of, whole_of
from leadline.engines.llamacpp import logs
from leadline.evidence import Acceptance, Busy, Effective, Evidence, Probe, Reply
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

_PLACE = re.compile(r"\d{1,4}")
_PREFIX = "llamacpp:"
_PREDICTED = "tokens_predicted_total"
_DRAFTED = "spec_decode_num_draft_tokens_total"
_ACCEPTED = "spec_decode_num_accepted_tokens_total"
_DRAFTS = "spec_decode_num_drafts_total"
_SPECULATION = (_DRAFTED, _ACCEPTED, _DRAFTS)
_PER_POSITION = "spec_decode_num_accepted_tokens_per_pos_total"


class Counters(msgspec.Struct, frozen=True):
    """The counters at one moment; one that the server does not have is absent, and not 0.

    `positions` has one entry per draft position once anything was drafted, none before.
    """

    values: dict[str, int]
    positions: tuple[int, ...] = ()

    def __getitem__(self, name: str) -> int:
        return self.values.get(name, 0)

    @property
    def drafts(self) -> bool:
        """Whether drafts are counted at all."""
        return all(name in self.values for name in _SPECULATION)


def counters(evidence: Evidence) -> Counters | None:
    """From /metrics, the drafts of a build that does not count them there from its log; None when the server does not
    count tokens (it was started without --metrics)."""
    samples = prometheus.parse(evidence.body("metrics"))
    counts = {name: samples.count(_PREFIX + name) for name in (_PREDICTED, *_SPECULATION)}
    values = {name: count for name, count in counts.items() if count is not None}
    if _PREDICTED not in values:
        return None
    found = Counters(values, _positions(samples))
    told = None if found.drafts else logs.drafting(evidence.log)
    if told is not None:
        values |= {_DRAFTED: told.drafted, _ACCEPTED: told.accepted, _DRAFTS: told.drafts}
    return found


def _positions(samples: prometheus.Samples) -> tuple[int, ...]:
    """Accepted at each position, which are numbered from 0."""
    counts = samples.by_label(_PREFIX + _PER_POSITION, "position")
    places = {int(name): count for name, count in counts.items() if _PLACE.fullmatch(name) and count >= 0}
    return tuple(int(places[i]) for i in sorted(places))


def effective(evidence: Evidence) -> Effective:
    """What runs. `context` is that of each slot: less than was asked for when `-fit` has shrunk it to the device.

    The depth is the number of positions that the server counts or reports, which it shows once it has drafted; 0 when
    its slots say that they do not speculate; None before.
    """
    props = object_of(json_of(evidence, "props"))
    slots = [object_of(s) for s in list_of(json_of(evidence, "slots"))]
    logged = logs.slots(evidence.log)
    counted = counters(evidence)
    told = [s["speculative"] for s in slots if isinstance(s.get("speculative"), bool)]
    drafted = counted is not None and counted[_DRAFTED] > 0
    speculating = any(told) if told else (True if drafted else None)
    depth = len(counted.positions) or None if counted is not None and drafted else None
    if depth is None:
        depth = 0 if speculating is False else _logged_depth(evidence.log)
    context = whole_of(object_of(props.get("default_generation_settings")).get("n_ctx"))
    return Effective(
        depth=depth,
        speculating=speculating,
        max_running=whole_of(props.get("total_slots")) or len(slots) or (logged.count if logged else None),
        context=context if context is not None else (logged.context if logged else None),
        kv_tokens=logged.cells if logged else None,
        weights_bytes=_weights_bytes(evidence.log),
        model=text_of(props.get("model_path")) or _model_id(evidence),
        version=text_of(props.get("build_info")),
    )


def _logged_depth(log: str) -> int | None:
    """As requests report it, or as a draft that was trained for less is clamped to."""
    return max((len(one.per_position) for one in logs.finished(log)), default=0) or logs.clamped_depth(log)


def busy(reply: Reply) -> Busy | None:
    """Slots that work on a request, and requests that wait for one."""
    samples = prometheus.parse(reply.body if reply.ok else None)
    running = samples.count(_PREFIX + "requests_processing")
    if running is None:
        return None
    return Busy(running=running, waiting=samples.count(_PREFIX + "requests_deferred"))


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
    if not new.drafts and effective(after).speculating is not False:
        return None
    drafted, accepted, drafting = (new[n] - old[n] for n in (_DRAFTED, _ACCEPTED, _DRAFTS))
    if sum(r.drafted for r in records) > drafted or sum(r.accepted for r in records) > accepted:
        return None
    started = sum(1 for r in records if r.output_tokens or r.chunk_ns)
    probed = probe_tokens(before, after)
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
    ours = sum(r.output_tokens for r in records) + probe_tokens(before, after)
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
    names = (_PREDICTED, *_SPECULATION)
    shrunk = any(n < o for n, o in zip(new.positions, old.positions, strict=False))
    return shrunk or len(new.positions) < len(old.positions) or any(new[n] < old[n] for n in names)


def _model_id(evidence: Evidence) -> str | None:
    data = list_of(object_of(json_of(evidence, "models")).get("data"))
    return text_of(object_of(data[0]).get("id")) if data else None


def _weights_bytes(log: str) -> int | None:
    """Tensors on the accelerator that holds most of them; on the host when there is none."""
    buffers = [b for b in logs.buffers(log) if b.kind == "model"]
    sums: dict[str, int] = {}
    for one in [b for b in buffers if not b.on_host] or buffers:
        name = "host" if one.on_host else one.device
        sums[name] = sums.get(name, 0) + one.size
    return max(sums.values(), default=None)
