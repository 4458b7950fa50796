"""TensorRT-LLM's trtllm-serve. `engine` is the plug-in; `canonical(setting)` is the form in which `parse` gives it."""

from __future__ import annotations

from leadline.engines.trtllm.engine import TensorRTLLM
from leadline.engines.trtllm.values import canonical

__all__ = ["TensorRTLLM", "canonical", "engine"]

engine = TensorRTLLM()
