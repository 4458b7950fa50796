"""What to ask a running SGLang. Its answers are read in `server` (what runs) and `counters` (what happened)."""

from __future__ import annotations

from leadline.engines.sglang.versions import patch_of
from leadline.evidence import Probe, Reply

READY_BODY = b'{"messages":[{"role":"user","content":"Say ok."}],"max_tokens":2,"temperature":0,"ignore_eos":true}'
"""Two tokens: the first comes from the prompt's own pass, the second proves a decode step."""

PROBES = (
    Probe(name="health", path="/health", timeout_s=25.0),
    Probe(name="ready", path="/v1/chat/completions", method="POST", body=READY_BODY, timeout_s=120.0),
    Probe(name="server_info", path="/server_info"),
    Probe(name="models", path="/v1/models"),
    Probe(name="metrics", path="/metrics"),
)
"""The counters come last, so that a window which they open does not hold the probes' own tokens.

`/health` generates a token itself and waits for it up to SGLANG_HEALTH_CHECK_TIMEOUT (20 s); a first request may take a
minute while kernels are compiled. `/server_info` is there in 0.5.9 and later; of older ones, whose `/get_server_info`
it replaced, the log tells the same.
"""

_DETAILS_SINCE = 19
"""0.5.19 is the first release whose `entrypoints/openai/protocol.py` has `return_spec_tokens_details`."""


def loading(reply: Reply) -> bool:
    """SGLang listens only once the model is loaded, and answers 503 until its own warm-up request is through
    (`entrypoints/http_server.py`, health_generate). A server that is long up also answers 503 when a prefill keeps it
    busy, and while it ends."""
    return reply.status == 503


def body_fields(version: str | None) -> dict[str, object]:
    """What makes the OpenAI endpoints return a request's speculation figures, as `sglext.spec_tokens_details` of the
    response, or of a last chunk without text when streaming. Nothing when the version does not have it."""
    patch = patch_of(version)
    return {"return_spec_tokens_details": True} if patch is not None and patch >= _DETAILS_SINCE else {}
