"""SGLang's manners, for the lab: HTTP begins once the model is loaded, and whatever kills it kills all of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from leadline.testing.dialects import (
    LAB,
    Answer,
    Ask,
    Boot,
    End,
    Exit,
    Flags,
    Read,
    Scribe,
    View,
    nothing,
    sglang_deaths,
    sglang_flags,
    sglang_log,
    sglang_steps,
)
from leadline.testing.dialects.openai import OpenAi, json_answer
from leadline.testing.dialects.sglang_probes import metrics, model_info, models, server_args, server_info, speculation
from leadline.testing.faults import Fault, FaultKind, depth_in_force
from leadline.testing.model import Admission, Fatal
from leadline.testing.physics import Finish, LabSpec

_DETAILS_SINCE = (0, 5, 19)
_PLAIN = "text/plain; version=1.0.0; charset=utf-8"


class SgLang(OpenAi):
    """`Dialect` of SGLang. Before 0.5.19 a request cannot ask for its speculation figures."""

    name = "sglang"
    default_port = 30000
    process_name = "sglang"

    def __init__(self, version: str = "") -> None:
        self._release = version or "0.5.23"
        self.version = f"{self._release}+{LAB}"

    def parse(self, argv: Sequence[str], read: Read = nothing) -> Flags | Exit:
        return sglang_flags.parse(list(argv), default_port=self.default_port, version=self.version)

    def boot(self, spec: LabSpec, flags: Flags, faults: Mapping[FaultKind, Fault]) -> Boot:
        args = server_args(flags, depth_in_force(flags.depth, faults))
        return sglang_log.boot(spec, flags, faults, args)

    def port_in_use(self, flags: Flags) -> Exit:
        return Exit(sglang_deaths.port_in_use(flags), 1)

    def get(self, path: str, view: View) -> Answer:
        path = path.partition("?")[0]
        if path in ("/health", "/health_generate", "/ready"):
            return Answer(503 if view.loading else 200, b"", "text/plain")
        if path in ("/server_info", "/get_server_info"):
            return json_answer(server_info(view, self.version))
        if path in ("/model_info", "/get_model_info"):
            return json_answer(model_info(view))
        if path == "/v1/models":
            return json_answer(models(view))
        if path in ("/metrics", "/metrics/") and view.flags.metrics:
            return Answer(200, metrics(view), _PLAIN)
        return json_answer({"detail": "Not Found"}, 404)

    def ask(self, path: str, body: bytes, view: View) -> Ask | Answer:
        found = self.read(path, body, view)
        if isinstance(found, Answer):
            return found
        fields, ask = found
        details = bool(fields.get("return_spec_tokens_details")) and self._tells()
        return msgspec.structs.replace(ask, speculation=details)

    def _tells(self) -> bool:
        return tuple(int(n) for n in self._release.split(".")[:3] if n.isdigit()) >= _DETAILS_SINCE

    def error(self, status: int, message: str, kind: str) -> Answer:
        body = {"object": "error", "message": message, "type": kind, "param": None, "code": status}
        return json_answer(body, status)

    def refusal(self, admission: Admission) -> Answer:
        kind = "InternalServerError" if admission.status >= 500 else "BadRequestError"
        return self.error(admission.status, admission.error, kind)

    def unauthorized(self) -> Answer:
        return json_answer({"error": "Unauthorized"}, 401)

    def guards(self, path: str) -> bool:
        return not path.startswith(("/health", "/metrics"))

    def beside(self, ask: Ask, finish: Finish, view: View) -> dict[str, Any]:
        if not ask.speculation or not view.model.engine.depth:
            return {}
        return {"sglext": {"spec_tokens_details": speculation(finish, view.model.engine.depth)}}

    def extra(self, ask: Ask, finish: Finish, view: View) -> Sequence[dict[str, Any]]:
        beside = self.beside(ask, finish, view)
        return (beside,) if beside else ()

    def served(self, at_s: float, number: int, finish: Finish) -> list[str]:
        head = sglang_deaths.stamp(at_s)
        return [f'{head} INFO:     127.0.0.1:{40000 + number % 20000} - "POST /v1/chat/completions HTTP/1.1" 200 OK']

    def scribe(self) -> Scribe:
        return sglang_steps.SgLangScribe()

    def died(self, how: Fatal, at_s: float) -> End:
        return sglang_deaths.died(how, at_s)

    def stopped(self, at_s: float) -> End:
        return sglang_deaths.stopped(at_s)
