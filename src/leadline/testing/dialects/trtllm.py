"""trtllm-serve's manners, for the lab: the port is taken at once, and the YAML file says whether it speculates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
    trtllm_flags,
    trtllm_log,
)
from leadline.testing.dialects.openai import OpenAi, json_answer
from leadline.testing.dialects.trtllm_probes import metrics, models
from leadline.testing.faults import Fault, FaultKind
from leadline.testing.model import Admission, Fatal
from leadline.testing.physics import Finish, LabSpec

_PLAIN = "text/plain; version=1.0.0; charset=utf-8"


class TrtLlm(OpenAi):
    """`Dialect` of trtllm-serve with its PyTorch backend. It knows no API key."""

    name = "trtllm"
    default_port = 8000
    process_name = "trtllm-serve"

    def __init__(self, version: str = "") -> None:
        self.version = f"{version or '1.3.0rc1'}+{LAB}"

    def parse(self, argv: Sequence[str], read: Read = nothing) -> Flags | Exit:
        return trtllm_flags.parse(argv, read, default_port=self.default_port)

    def boot(self, spec: LabSpec, flags: Flags, faults: Mapping[FaultKind, Fault]) -> Boot:
        return trtllm_log.boot(spec, flags, faults, self.version)

    def port_in_use(self, flags: Flags) -> Exit:
        return Exit(trtllm_log.port_in_use(flags), 1)

    def get(self, path: str, view: View) -> Answer:
        path = path.partition("?")[0]
        if path == "/health":
            return Answer(200, b"", "text/plain")
        if path == "/version":
            return json_answer({"version": self.version})
        if path == "/v1/models":
            return json_answer(models(view))
        if path == "/server_info":
            return json_answer({"disaggregated_params": None})
        if path == "/metrics":
            return json_answer([])  # statistics of iterations, which it gives once only
        if path in ("/prometheus/metrics", "/prometheus/metrics/") and view.flags.metrics:
            return Answer(200, metrics(view), _PLAIN)
        return json_answer({"detail": "Not Found"}, 404)

    def ask(self, path: str, body: bytes, view: View) -> Ask | Answer:
        found = self.read(path, body, view)
        return found if isinstance(found, Answer) else found[1]

    def error(self, status: int, message: str, kind: str) -> Answer:
        return json_answer({"object": "error", "message": message, "type": kind, "param": None, "code": status}, status)

    def refusal(self, admission: Admission) -> Answer:
        kind = "InternalServerError" if admission.status >= 500 else "BadRequestError"
        return self.error(admission.status, admission.error, kind)

    def unauthorized(self) -> Answer:
        return json_answer({"error": "Unauthorized"}, 401)

    def guards(self, path: str) -> bool:
        return False

    def served(self, at_s: float, number: int, finish: Finish) -> list[str]:
        where = f"127.0.0.1:{40000 + number % 20000}"
        return [f'INFO:     {where} - "POST /v1/chat/completions HTTP/1.1" 200 OK']

    def scribe(self) -> Scribe:
        return trtllm_log.TrtLlmScribe()

    def died(self, how: Fatal, at_s: float) -> End:
        return trtllm_log.died(how, at_s)

    def stopped(self, at_s: float) -> End:
        return trtllm_log.stopped(at_s)
