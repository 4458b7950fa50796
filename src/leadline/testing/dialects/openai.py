"""Answers in the OpenAI shapes as the Python servers give them: chunks, usage, and the end of a stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from leadline.evidence import Acceptance
from leadline.testing.dialects import Answer, Ask, Flags, View
from leadline.testing.dialects.requests import ask_of, prompt_text, prompt_tokens
from leadline.testing.physics import Finish

DEFAULT_CONTEXT = 32768
PATHS = ("/v1/chat/completions", "/v1/completions")
_DONE = b"data: [DONE]\n\n"


def json_answer(value: Any, status: int = 200) -> Answer:
    return Answer(status, msgspec.json.encode(value), "application/json")


def event(value: Any) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def model_name(flags: Flags) -> str:
    """The model's name; "lab" is in it, whatever the command line says."""
    name = flags.alias or flags.model
    return name if "lab" in name else f"lab:{name}"


def context_of(flags: Flags) -> int:
    return flags.context or DEFAULT_CONTEXT


def usage(prompt: int, output: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + output,
        "completion_tokens": output,
        "prompt_tokens_details": None,
    }


def exactly(seen: Acceptance, rounds: int) -> list[int]:
    """How many of the rounds accepted exactly 0, 1, 2, ... draft tokens, up to the depth."""
    at_least = [rounds, *seen.per_position]
    return [a - b for a, b in zip(at_least, [*at_least[1:], 0], strict=True)]


class OpenAi:
    """The common part of a dialect. What differs: `error`, and what comes beside the text (`beside`, `extra`)."""

    def error(self, status: int, message: str, kind: str) -> Answer:
        """An error as this engine words it."""
        return json_answer({"error": {"message": message, "type": kind, "param": None, "code": status}}, status)

    def beside(self, ask: Ask, finish: Finish, view: View) -> dict[str, Any]:
        """Fields of a whole answer that OpenAI's has not."""
        return {}

    def extra(self, ask: Ask, finish: Finish, view: View) -> Sequence[dict[str, Any]]:
        """Chunks of a stream between the finish reason and the usage."""
        return ()

    def last(self, ask: Ask, finish: Finish, view: View) -> dict[str, Any]:
        """Fields that the usage chunk of a stream has beside it."""
        return {}

    def read(self, path: str, body: bytes, view: View) -> tuple[Mapping[str, Any], Ask] | Answer:
        """The fields of a request and what it asks for; or why not."""
        if path.partition("?")[0] not in PATHS:
            return json_answer({"detail": "Not Found"}, 404)
        try:
            fields = msgspec.json.decode(body, type=dict[str, Any])
        except msgspec.DecodeError as exc:
            return self.error(400, f"JSON decode error: {exc}", "BadRequestError")
        chat = "chat" in path
        text = prompt_text(fields, chat)
        if text is None:
            what = "messages" if chat else "prompt"
            return self.error(400, f"[{{'type': 'missing', 'loc': ('body', '{what}')}}]", "BadRequestError")
        context = context_of(view.flags)
        if prompt_tokens(text) >= context:
            return self.error(400, self.too_long(prompt_tokens(text), context), "BadRequestError")
        return fields, ask_of(fields, text, chat, context, limit=0 if chat else 16)

    def too_long(self, tokens: int, context: int) -> str:
        return (
            f"This model's maximum context length is {context} tokens. However, you requested {tokens} tokens in the "
            "messages, Please reduce the length of the messages."
        )

    def opening(self, ask: Ask, view: View) -> bytes:
        if not ask.chat:
            return b""
        start = {"delta": {"role": "assistant", "content": ""}}
        more = {"usage": usage(ask.request.prompt_tokens, 0)} if ask.continuous_usage else {}
        return event({**self.chunk(ask, view, start), **more})

    def piece(self, ask: Ask, text: str, tokens: int, view: View) -> bytes:
        what: dict[str, Any] = {"delta": {"content": text}} if ask.chat else {"text": text}
        more = {"usage": usage(ask.request.prompt_tokens, tokens)} if ask.continuous_usage else {}
        return event({**self.chunk(ask, view, what), **more})

    def closing(self, ask: Ask, finish: Finish, view: View) -> bytes:
        what: dict[str, Any] = {"delta": {}} if ask.chat else {"text": ""}
        head = self.chunk(ask, view, what, finish.reason)
        counted = {"usage": usage(finish.prompt_tokens, finish.output_tokens)}
        events = [{**head, **counted} if ask.continuous_usage else head]
        events += [{**head, "choices": [], **fields} for fields in self.extra(ask, finish, view)]
        if ask.include_usage:
            events.append({**head, "choices": [], **counted, **self.last(ask, finish, view)})
        return b"".join(event(e) for e in events) + _DONE

    def whole(self, ask: Ask, text: str, finish: Finish, view: View) -> Answer:
        what: dict[str, Any] = {"message": {"role": "assistant", "content": text}} if ask.chat else {"text": text}
        value = self.chunk(ask, view, what, finish.reason)
        value["object"] = "chat.completion" if ask.chat else "text_completion"
        counted = usage(finish.prompt_tokens, finish.output_tokens)
        return json_answer({**value, "usage": counted, **self.beside(ask, finish, view)})

    def chunk(self, ask: Ask, view: View, what: Mapping[str, Any], reason: str | None = None) -> dict[str, Any]:
        return {
            "id": ask.tag,
            "object": "chat.completion.chunk" if ask.chat else "text_completion",
            "created": 0,
            "model": model_name(view.flags),
            "choices": [{"index": 0, **what, "logprobs": None, "finish_reason": reason}],
        }
