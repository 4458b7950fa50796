"""vLLM's manners, for the lab: the port is taken at once, answers come once the engine is up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
    vllm_deaths,
    vllm_flags,
    vllm_log,
)
from leadline.testing.dialects.openai import OpenAi, json_answer
from leadline.testing.dialects.vllm_probes import metrics, models, speculation
from leadline.testing.faults import Fault, FaultKind
from leadline.testing.model import Admission, Fatal
from leadline.testing.physics import Finish, LabSpec

_GUARDED = ("/v1", "/v2", "/inference", "/cohere")
_PLAIN = "text/plain; version=1.0.0; charset=utf-8"


class Vllm(OpenAi):
    """`Dialect` of vLLM, without `VLLM_SERVER_DEV_MODE`."""

    name = "vllm"
    default_port = 8000
    process_name = "vllm"

    def __init__(self, version: str = "") -> None:
        self.version = f"{version or '0.33.0'}+{LAB}"

    def parse(self, argv: Sequence[str], read: Read = nothing) -> Flags | Exit:
        return vllm_flags.parse(argv, default_port=self.default_port, version=self.version)

    def boot(self, spec: LabSpec, flags: Flags, faults: Mapping[FaultKind, Fault]) -> Boot:
        return vllm_log.boot(spec, flags, faults, self.version)

    def port_in_use(self, flags: Flags) -> Exit:
        return Exit(vllm_deaths.port_in_use(flags), 1)

    def get(self, path: str, view: View) -> Answer:
        path = path.partition("?")[0]
        if path in ("/health", "/ping"):
            return Answer(200, b"", "text/plain")
        if path == "/version":
            return json_answer({"version": self.version})
        if path == "/v1/models":
            return json_answer(models(view))
        if path in ("/metrics", "/metrics/"):
            return Answer(200, metrics(view), _PLAIN)
        if path == "/load":
            return json_answer({"server_load": view.model.engine.running})
        return json_answer({"detail": "Not Found"}, 404)

    def ask(self, path: str, body: bytes, view: View) -> Ask | Answer:
        found = self.read(path, body, view)
        return found if isinstance(found, Answer) else found[1]

    def refusal(self, admission: Admission) -> Answer:
        kind = "InternalServerError" if admission.status >= 500 else "BadRequestError"
        return self.error(admission.status, admission.error, kind)

    def unauthorized(self) -> Answer:
        return json_answer({"error": "Unauthorized"}, 401)

    def guards(self, path: str) -> bool:
        return path.startswith(_GUARDED)

    def beside(self, ask: Ask, finish: Finish, view: View) -> dict[str, Any]:
        if not view.flags.per_request or not view.model.engine.depth:
            return {}
        return {"metrics": {"speculative_decoding": speculation(finish, view.model.engine.depth)}}

    def last(self, ask: Ask, finish: Finish, view: View) -> dict[str, Any]:
        return self.beside(ask, finish, view)

    def served(self, at_s: float, number: int, finish: Finish) -> list[str]:
        where = f"127.0.0.1:{40000 + number % 20000}"
        return [f'(APIServer pid=1) INFO:     {where} - "POST /v1/chat/completions HTTP/1.1" 200 OK']

    def scribe(self) -> Scribe:
        return vllm_log.VllmScribe()

    def died(self, how: Fatal, at_s: float) -> End:
        return vllm_deaths.died(how, at_s)

    def stopped(self, at_s: float) -> End:
        return vllm_deaths.stopped(at_s)
