"""SGLang. `engine` is the plug-in; `canonical(setting)` is the form in which `parse` returns it."""

from __future__ import annotations

from leadline.engines.sglang.engine import SGLang
from leadline.engines.sglang.values import canonical

__all__ = ["SGLang", "canonical", "engine"]

engine = SGLang()
