"""llama-server's manners, for the lab: flags, log lines, probes and streams as build 10434 was seen to have them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from leadline.testing.dialects import (
    Answer,
    Ask,
    Boot,
    End,
    Exit,
    Flags,
    Read,
    Scribe,
    Silent,
    View,
    llamacpp_flags,
    nothing,
)
from leadline.testing.dialects.llamacpp_probes import BUILD, metrics, model_name, models, props, slot_context, slots
from leadline.testing.dialects.requests import ask_of, prompt_text, prompt_tokens
from leadline.testing.faults import Fault, FaultKind
from leadline.testing.model import Admission, Fatal
from leadline.testing.physics import Finish, LabSpec

_OUT_OF_MEMORY = {FaultKind.OOM_AT_START, FaultKind.OOM_AT_KV, FaultKind.OOM_AT_GRAPHS}
_OPEN = ("/health", "/v1/health", "/models", "/v1/models")
_GENERATE = ("/v1/chat/completions", "/chat/completions", "/v1/completions", "/completions", "/completion")


def stamp(at_s: float) -> str:
    """Seconds since the start as the server prints them: `0.01.427.090`."""
    us = round(at_s * 1e6)
    return f"{us // 60_000_000}.{us // 1_000_000 % 60:02d}.{us // 1000 % 1000:03d}.{us % 1000:03d}"


def _json(value: Any, status: int = 200) -> Answer:
    return Answer(status, msgspec.json.encode(value))


def _error(code: int, message: str, kind: str) -> Answer:
    return _json({"error": {"code": code, "message": message, "type": kind}}, code)


def _event(value: Any) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


class LlamaCpp:
    """`Dialect` of llama-server. Several tokens of one round come in one chunk; the real one sends a chunk for each."""

    name = "llamacpp"
    default_port = 8080
    process_name = "llama-server"

    def parse(self, argv: Sequence[str], read: Read = nothing) -> Flags | Exit:
        return llamacpp_flags.parse(argv, default_port=self.default_port, version=BUILD)

    def boot(self, spec: LabSpec, flags: Flags, faults: Mapping[FaultKind, Fault]) -> Boot:
        slow, silent = faults.get(FaultKind.SLOW_START), faults.get(FaultKind.SILENT_START)
        load_s, count = spec.load_s, spec.progress_lines
        if slow:
            load_s = 60.0 if slow.seconds is None else slow.seconds
            count = max(count, math.ceil(load_s))
        running = spec.slots(flags.depth, flags.max_running or spec.max_running)
        starved = not _OUT_OF_MEMORY.isdisjoint(faults) or running < 1
        lines = [
            (0.0, "I cmn  common_param: common_params_print_info: verbosity = 3 (adjust with the `-lv N` CLI arg)"),
            (0.0, f"I srv    load_model: loading model '{flags.model}'"),
        ]
        if silent:
            never = None if silent.refused else 0.0
            return Boot(lines=_stamped(lines), claims_s=never, listens_s=never, progress=False)
        lines += [
            (load_s * i / count, f"I srv    load_model: lab tensors {100 * i // count} %") for i in range(1, count)
        ]
        if starved:
            lines = [line for line in lines if line[0] <= load_s / 2]
            lines += [(load_s / 2, text) for text in _starved(flags.model)]
            return Boot(lines=_stamped(lines), exit_s=load_s / 2)
        context = slot_context(flags, running)
        lines += [
            (
                load_s,
                f"I srv    load_model: initializing, n_slots = {running}, n_ctx_slot = {context}, kv_unified = 'false'",
            ),
            (load_s, "I srv  llama_server: model loaded"),
            (load_s, f"I srv  llama_server: listening on http://{flags.host}:{flags.port}"),
        ]
        return Boot(lines=_stamped(lines), ready_s=load_s)

    def port_in_use(self, flags: Flags) -> Exit:
        texts = [
            f"E srv         start: couldn't bind HTTP server socket, hostname: {flags.host}, port: {flags.port}",
            "I srv    operator(): operator(): cleaning up before exit...",
            "E srv  llama_server: exiting due to HTTP server error",
        ]
        return Exit(tuple(f"{stamp(0.005)} {text}" for text in texts), 1)

    def get(self, path: str, view: View) -> Answer:
        path = path.partition("?")[0]
        if view.loading:
            return _error(503, "Loading model", "unavailable_error")
        if path in ("/health", "/v1/health"):
            return _json({"status": "ok"})
        if path == "/props":
            return _json(props(view))
        if path in ("/v1/models", "/models"):
            return _json(models(view))
        if path == "/slots":
            return _json(slots(view)) if view.flags.slots else _unsupported("slots", "--slots")
        if path == "/metrics":
            if not view.flags.metrics:
                return _unsupported("metrics", "--metrics")
            return Answer(200, metrics(view), "text/plain; version=0.0.4")
        return _error(404, "File Not Found", "not_found_error")

    def ask(self, path: str, body: bytes, view: View) -> Ask | Answer:
        path = path.partition("?")[0]
        if path not in _GENERATE:
            return _error(404, "File Not Found", "not_found_error")
        if view.loading:
            return _error(503, "Loading model", "unavailable_error")
        try:
            fields = msgspec.json.decode(body, type=dict[str, Any])
        except msgspec.DecodeError as exc:
            return _error(500, f"parse error: {exc}", "server_error")
        chat = "chat" in path
        text = prompt_text(fields, chat)
        if text is None:
            return _error(400, f"'{'messages' if chat else 'prompt'}' is required", "invalid_request_error")
        context, tokens = slot_context(view.flags, view.model.engine.max_running), prompt_tokens(text)
        if tokens >= context:
            message = f"request ({tokens} tokens) exceeds the available context size ({context} tokens)"
            return _error(400, message, "exceed_context_size_error")
        return ask_of(fields, text, chat, context)

    def refusal(self, admission: Admission) -> Answer:
        kind = "server_error" if admission.status >= 500 else "exceed_context_size_error"
        return _error(admission.status, admission.error, kind)

    def unauthorized(self) -> Answer:
        return _error(401, "Invalid API Key", "authentication_error")

    def guards(self, path: str) -> bool:
        return path not in _OPEN

    def opening(self, ask: Ask, view: View) -> bytes:
        if not ask.chat:
            return b""
        return _event(_chunk(ask, view, {"delta": {"role": "assistant", "content": None}}))

    def piece(self, ask: Ask, text: str, tokens: int, view: View) -> bytes:
        return _event(_chunk(ask, view, {"delta": {"content": text}} if ask.chat else {"text": text}))

    def closing(self, ask: Ask, finish: Finish, view: View) -> bytes:
        last = _chunk(ask, view, {"delta": {}} if ask.chat else {"text": ""}, finish.reason)
        tail: dict[str, Any] = {"timings": _timings(finish)}
        if ask.include_usage:
            tail["usage"] = _usage(finish)
        if ask.chat and ask.include_usage:
            return _event(last) + _event({**last, "choices": [], **tail}) + b"data: [DONE]\n\n"
        return _event({**last, **tail}) + b"data: [DONE]\n\n"

    def whole(self, ask: Ask, text: str, finish: Finish, view: View) -> Answer:
        what: dict[str, Any] = {"message": {"role": "assistant", "content": text}} if ask.chat else {"text": text}
        value = _chunk(ask, view, what, finish.reason)
        value["object"] = "chat.completion" if ask.chat else "text_completion"
        return _json({**value, "content": text, "usage": _usage(finish), "timings": _timings(finish)})

    def served(self, at_s: float, number: int, finish: Finish) -> list[str]:
        head = f"{stamp(at_s)} I slot print_timing: id  0 | task {number} | "
        prompt_ms, decode_ms = finish.prompt_s * 1e3, finish.decode_s * 1e3
        lines = [
            f"{head}prompt eval time = {prompt_ms:10.2f} ms / {finish.prompt_tokens:5d} tokens "
            f"({_per(prompt_ms, finish.prompt_tokens)})",
            f"{head}       eval time = {decode_ms:10.2f} ms / {finish.output_tokens:5d} tokens "
            f"({_per(decode_ms, finish.output_tokens)})",
        ]
        seen = finish.acceptance
        if seen.drafted:
            lines.append(
                f"{head}draft acceptance = {seen.accepted / seen.drafted:.5f} ({seen.accepted:5d} accepted / "
                f"{seen.drafted:5d} generated), mean len = {seen.drafted_acceptance_length or 0:5.2f}"
            )
        return lines

    def scribe(self) -> Scribe:
        return Silent()

    def died(self, how: Fatal, at_s: float) -> End:
        """It has no processes of its own and no watchdog: those deaths are a kill."""
        if how in (Fatal.OUT_OF_MEMORY, Fatal.CRASH):
            what = "out of memory" if how is Fatal.OUT_OF_MEMORY else "an illegal memory access was encountered"
            alloc = (
                f"{stamp(at_s)} E ggml_backend_cuda_buffer_type_alloc_buffer: allocating 1536.00 MiB on device 0: "
                "cudaMalloc failed: out of memory"
            )
            head = (alloc,) if how is Fatal.OUT_OF_MEMORY else ()
            error = f"{stamp(at_s)} E CUDA error: {what}"
            return End((*head, error, "  current device: 0, in function alloc"), -6)
        return End((), -9)

    def stopped(self, at_s: float) -> End:
        return End((f"{stamp(at_s)} I srv    operator(): operator(): cleaning up before exit...",), 0)


def _stamped(lines: Sequence[tuple[float, str]]) -> tuple[tuple[float, str], ...]:
    return tuple((at, f"{stamp(at)} {text}") for at, text in lines)


def _starved(model: str) -> list[str]:
    return [
        "E ggml_backend_cuda_buffer_type_alloc_buffer: allocating 24576.00 MiB on device 0: "
        "cudaMalloc failed: out of memory",
        "E llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache",
        f"E cmn  common_init_: failed to create context with model '{model}'",
        f"E srv    load_model: failed to load model, '{model}'",
        "I srv    operator(): operator(): cleaning up before exit...",
        "E srv  llama_server: exiting due to model loading error",
    ]


def _unsupported(what: str, flag: str) -> Answer:
    return _error(501, f"This server does not support {what} endpoint. Start it with `{flag}`", "not_supported_error")


def _chunk(ask: Ask, view: View, what: Mapping[str, Any], reason: str | None = None) -> dict[str, Any]:
    return {
        "choices": [{"finish_reason": reason, "index": 0, **what}],
        "created": 0,
        "id": ask.tag,
        "model": model_name(view.flags),
        "system_fingerprint": BUILD,
        "object": "chat.completion.chunk" if ask.chat else "text_completion",
    }


def _usage(finish: Finish) -> dict[str, Any]:
    return {
        "completion_tokens": finish.output_tokens,
        "prompt_tokens": finish.prompt_tokens,
        "total_tokens": finish.output_tokens + finish.prompt_tokens,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def _timings(finish: Finish) -> dict[str, Any]:
    """As the server gives them: the draft counts are absent when nothing was drafted."""
    prompt_ms, decode_ms = finish.prompt_s * 1e3, finish.decode_s * 1e3
    seen = finish.acceptance
    drafts = {"draft_n": seen.drafted, "draft_n_accepted": seen.accepted} if seen.drafted else {}
    return {
        "cache_n": 0,
        "prompt_n": finish.prompt_tokens,
        "prompt_ms": prompt_ms,
        "prompt_per_second": finish.prompt_tokens / finish.prompt_s if finish.prompt_s else 0.0,
        "predicted_n": finish.output_tokens,
        "predicted_ms": decode_ms,
        "predicted_per_second": finish.output_tokens / finish.decode_s if finish.decode_s else 0.0,
        **drafts,
    }


def _per(ms: float, tokens: int) -> str:
    each = ms / tokens if tokens else 0.0
    return f"{each:8.2f} ms per token, {1e3 / each if each else 0.0:8.2f} tokens per second"
