"""From the bytes of one answer to its RequestRecord: pure, and off the hot path.

Token counts come from `usage` alone. Where the server counts with every chunk (`stream_options.continuous_usage_stats`
of vLLM and its like), the differences say how many tokens each chunk holds; else the total is spread evenly.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from leadline.load.speculation import Figures, Timings, figures
from leadline.load.sse import SseDecoder
from leadline.trial import RequestRecord

_TEXT_LIMIT = 300  # characters of a server's own error text that are kept
_BODY_LIMIT = 65_536  # bytes of an error answer that are looked at


@dataclass(slots=True)
class Raw:
    """One answer as received: stamps and body bytes, not yet read. Times are nanoseconds of the monotonic clock.

    `cut`: the connection ended before the body did. `stalled`: we gave it up after too long a silence. `error`: why
    there is no whole answer, in words.
    """

    intended_ns: int
    start_ns: int
    end_ns: int = 0
    status: int = 0
    content_type: str = ""
    pieces: list[tuple[int, bytes]] = field(default_factory=list)
    cut: bool = False
    stalled: bool = False
    error: str = ""


class Sender(NamedTuple):
    """Which request of whom."""

    prompt_id: str
    user: int
    turn: int = 0
    warmup: bool = False


class _Delta(msgspec.Struct):
    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: list[Any] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    completion_tokens: int | None = None
    prompt_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Message(msgspec.Struct):
    """One event of a chat or text completion stream; what we do not use is skipped unread."""

    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    timings: Timings | None = None
    sglext: Any = None
    metrics: Any = None
    error: Any = None
    object: Any = None
    message: Any = None


_decode_message = msgspec.json.Decoder(_Message).decode


def _has_text(choice: _Choice) -> bool:
    delta = choice.delta
    if choice.text or delta is None:
        return bool(choice.text)
    if delta.content or delta.reasoning_content or delta.reasoning:
        return True
    return any(_call_has_text(call) for call in delta.tool_calls or ())


def _call_has_text(call: Any) -> bool:
    """The name of a tool is generated as much as its arguments are."""
    function = call.get("function") if isinstance(call, dict) else None
    return isinstance(function, dict) and bool(function.get("arguments") or function.get("name"))


class AnswerReader:
    """Reads the pieces of one answer in order; `record` then tells what came of it."""

    def __init__(self) -> None:
        self._sse = SseDecoder()
        self._chunk_ns: list[int] = []
        self._counts: list[int] = []  # completion tokens so far, at the chunks whose event says so
        self._usage: _Usage | None = None
        self._decode_ms = 0.0
        self._told = Figures()
        self._finish_reason = ""
        self._done = False
        self._events = 0
        self._error = ""

    def feed(self, t_ns: int, data: bytes) -> None:
        for event in self._sse.feed(data):
            self._events += 1
            if event.data == b"[DONE]":
                self._done = True
            elif not self._error:
                self._read(t_ns, event.data)

    def _read(self, t_ns: int, data: bytes) -> None:
        try:
            message = _decode_message(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as e:
            self._error = f"unreadable event in the stream: {e}"
            return
        if message.error is not None or message.object == "error":
            self._error = "error in the stream: " + _words(message.message if message.error is None else message.error)
            return
        text = False
        for choice in message.choices or ():
            self._finish_reason = choice.finish_reason or self._finish_reason
            text = text or _has_text(choice)
        if text:
            self._chunk_ns.append(t_ns)
        if message.timings is not None:
            self._decode_ms = message.timings.predicted_ms
        self._told = figures(message.timings, message.sglext, message.metrics) or self._told
        if message.usage is not None and message.usage.completion_tokens is not None:
            self._usage = message.usage
            if text:
                self._counts.append(message.usage.completion_tokens)

    def record(self, raw: Raw, sender: Sender) -> RequestRecord:
        """The record of an answer whose pieces have all been fed."""
        error = self._trouble(raw)
        source, tokens = self._chunk_tokens(complete=not error)
        usage = self._usage or _Usage()
        details = usage.prompt_tokens_details or _PromptDetails()
        return RequestRecord(
            prompt_id=sender.prompt_id,
            user=sender.user,
            turn=sender.turn,
            warmup=sender.warmup,
            intended_ns=raw.intended_ns,
            start_ns=raw.start_ns,
            chunk_ns=tuple(self._chunk_ns),
            chunk_tokens=tuple(tokens),
            end_ns=raw.end_ns,
            prompt_tokens=usage.prompt_tokens or 0,
            cached_tokens=details.cached_tokens or 0,
            output_tokens=self._output_tokens(complete=not error),
            token_source=source,
            drafted=self._told.drafted,
            accepted=self._told.accepted,
            rounds=self._told.rounds,
            histogram=self._told.histogram,
            engine_decode_ms=self._decode_ms,
            finish_reason=self._finish_reason,
            status=raw.status,
            error=error,
        )

    def _trouble(self, raw: Raw) -> str:
        """What is wrong with the answer, nearest cause first; empty when nothing is."""
        if raw.error:
            return raw.error
        if raw.status and not 200 <= raw.status < 300:
            return f"HTTP {raw.status}: {_error_body(raw.pieces)}"
        if self._error:
            return self._error
        if raw.cut:
            return f"stream cut after {len(self._chunk_ns)} chunks: the connection closed before the end of the body"
        if not self._events:
            return f"the answer is no event stream (content type {raw.content_type[:80] or 'not given'})"
        if not self._done and not self._finish_reason:
            return f"stream cut after {len(self._chunk_ns)} chunks: neither a finish_reason nor [DONE] came"
        return self._uncounted()

    def _uncounted(self) -> str:
        """Why the tokens of a whole stream cannot be counted or timed."""
        if self._usage is None:
            return "no usage in the stream: token counts are not known"
        tokens, chunks = self._usage.completion_tokens or 0, len(self._chunk_ns)
        if chunks and tokens <= 0:
            return f"usage says {tokens} tokens, but {chunks} chunks of text came: token counts are not known"
        if tokens > 1 and not chunks:  # a single one may be the end-of-text token, which has no text
            return f"usage says {tokens} tokens, but no text came: they cannot be timed"
        return ""

    def _counted(self) -> bool:
        """Whether the server counted tokens with every chunk of text."""
        counts = self._counts
        if not counts or len(counts) != len(self._chunk_ns) or counts[0] <= 0:
            return False
        ordered = all(a <= b for a, b in itertools.pairwise([*counts, self._output_tokens(complete=True)]))
        return ordered and (len(counts) == 1 or counts[-1] > counts[0])

    def _output_tokens(self, *, complete: bool) -> int:
        """Of an incomplete answer, only what the server counted along the way."""
        if complete:
            return (self._usage.completion_tokens if self._usage else None) or 0
        return self._counts[-1] if self._counts and self._counted() else 0

    def _chunk_tokens(self, *, complete: bool) -> tuple[str, Sequence[float]]:
        """Token source and tokens per chunk; their sum is the record's output tokens."""
        n, total = len(self._chunk_ns), self._output_tokens(complete=complete)
        if not self._counted():
            return "even", [total / n] * n if n else []
        # tokens counted after the last text (an end-of-text token) arrived no earlier than it did
        marks = [0, *self._counts[:-1], total]
        return "engine", [float(b - a) for a, b in itertools.pairwise(marks)]


def decode(raw: Raw, sender: Sender) -> RequestRecord:
    """The record of one answer."""
    reader = AnswerReader()
    for t_ns, data in raw.pieces:
        reader.feed(t_ns, data)
    return reader.record(raw, sender)


def _error_body(pieces: Sequence[tuple[int, bytes]]) -> str:
    body = b"".join(data for _, data in pieces)[:_BODY_LIMIT]
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _words(body.decode("utf-8", "replace"))
    if isinstance(found, dict):
        found = next((found[k] for k in ("error", "message", "detail") if found.get(k)), found)
    return _words(found)


def _words(found: Any) -> str:
    """The text of an error object, on one line."""
    if isinstance(found, dict) and found.get("message"):
        found = found["message"]
    text = found if isinstance(found, str) else msgspec.json.encode(found).decode()
    return " ".join(text.split())[:_TEXT_LIMIT] or "no text"
