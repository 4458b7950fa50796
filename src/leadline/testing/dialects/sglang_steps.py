"""What SGLang logs while it generates, for the lab."""

from __future__ import annotations

from collections.abc import Sequence

from leadline.testing.dialects import View
from leadline.testing.dialects.sglang_deaths import stamp
from leadline.testing.physics import Counters


class SgLangScribe:
    """`Scribe`: a line for every prefill, one for every so many decode steps, and one when requests are retracted."""

    def __init__(self) -> None:
        self._admitted = self._prompt_tokens = self._steps = self._retracted = 0
        self._decodes, self._window, self._at_s = 0, Counters(), 0.0

    def stepped(self, at_s: float, view: View) -> Sequence[str]:
        model, now = view.model, view.model.engine.so_far()
        lines: list[str] = []
        fresh = now.prompt_tokens - self._prompt_tokens
        usage = f"token usage: {model.engine.kv_used / max(1, model.engine.pool):.2f}"
        if now.admitted > self._admitted:
            lines.append(
                f"Prefill batch, #new-seq: {now.admitted - self._admitted}, #new-token: "
                f"{fresh}, #cached-token: 0, {usage}, #running-req: "
                f"{model.engine.running}, #queue-req: {model.engine.queued}, #pending-token: 0, cuda graph: False, "
                f"input throughput (token/s): {fresh / max(at_s - self._at_s, 1e-6):.2f}"
            )
        if model.retractions > self._retracted:
            lines.append(
                f"KV cache pool is full. Retract requests. #retracted_reqs: {model.retractions - self._retracted}, "
                "#new_tokens_gained: 180, #new_token_ratio: 0.5998 -> 0.9876"
            )
        if now.decodes > self._steps and now.decodes - self._decodes >= view.flags.decode_log_interval:
            lines.append(self._decode(at_s, view, now, usage))
            self._decodes, self._window, self._at_s = now.decodes, now, at_s
        self._admitted, self._prompt_tokens = now.admitted, now.prompt_tokens
        self._steps, self._retracted = now.decodes, model.retractions
        return [f"{stamp(at_s)} {line}" for line in lines]

    def _decode(self, at_s: float, view: View, now: Counters, usage: str) -> str:
        engine, rounds = view.model.engine, max(1, now.rounds - self._window.rounds)
        accepted = now.accepted - self._window.accepted
        speed = (now.predicted_tokens - self._window.predicted_tokens) / max(at_s - self._at_s, 1e-6)
        spec = ""
        if engine.depth:
            spec = f"accept len: {1 + accepted / rounds:.2f}, accept rate: {accepted / rounds / engine.depth:.2f}, "
        graph = not view.flags.told["disable_cuda_graph"]
        return (
            f"Decode batch, #running-req: {engine.running}, #token: {engine.kv_used}, {usage}, {spec}"
            f"cuda graph: {graph}, gen throughput (token/s): {speed:.2f}, #queue-req: {engine.queued}"
        )
