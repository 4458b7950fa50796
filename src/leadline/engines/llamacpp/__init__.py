"""llama.cpp's llama-server. `engine` is the plug-in; `canonical(setting)` is the form in which `parse` returns it."""

from __future__ import annotations

from leadline.engines.llamacpp.engine import LlamaCpp
from leadline.engines.llamacpp.values import canonical

__all__ = ["LlamaCpp", "canonical", "engine"]

engine = LlamaCpp()
