"""The lab's dialects by the name of their engine."""

from __future__ import annotations

from collections.abc import Callable

from leadline.errors import InputError
from leadline.testing.dialects import Dialect
from leadline.testing.dialects.llamacpp import LlamaCpp
from leadline.testing.dialects.sglang import SgLang
from leadline.testing.dialects.trtllm import TrtLlm
from leadline.testing.dialects.vllm import Vllm

DIALECTS: dict[str, Callable[[str], Dialect]] = {
    "llamacpp": lambda version: LlamaCpp(),
    "sglang": SgLang,
    "vllm": Vllm,
    "trtllm": TrtLlm,
}


def named(name: str, version: str = "") -> Dialect:
    """The dialect of an engine, of that version of it (empty: the dialect's own). Raises InputError."""
    if name not in DIALECTS:
        raise InputError(f"the lab does not speak {name!r}; it speaks {', '.join(DIALECTS)}")
    return DIALECTS[name](version)
