"""vLLM's OpenAI server. `engine` is the plug-in; `canonical(setting)` is the form in which `parse` returns it."""

from __future__ import annotations

from leadline.engines.vllm.engine import VLLM
from leadline.engines.vllm.values import canonical

__all__ = ["VLLM", "canonical", "engine"]

engine = VLLM()
"""The plug-in."""
