"""The override file of a trial, and of a rollout: one service's words and variables, and nothing else of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import msgspec


class Override(msgspec.Struct, frozen=True, kw_only=True):
    """Words as a compose file has them: `${NAME}` is replaced, `$$` is a dollar. None = left as it is."""

    entrypoint: tuple[str, ...] | None = None
    command: tuple[str, ...] | None = None
    environment: Mapping[str, str] = {}


def text_of(service: str, override: Override, header: Sequence[str]) -> str:
    """YAML that any compose reads: its texts are written as JSON writes them."""
    lines = [*(f"# {line}" for line in header), "services:", f"  {_quoted(service)}:"]
    for name, words in (("entrypoint", override.entrypoint), ("command", override.command)):
        if words is not None:
            lines += [f"    {name}:", *(f"      - {_quoted(word)}" for word in words)] if words else [f"    {name}: []"]
    if override.environment:
        lines += ["    environment:"]
        lines += [f"      {_quoted(name)}: {_quoted(value)}" for name, value in override.environment.items()]
    if override == Override():
        lines[-1] += " {}"
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    out = json.dumps(text, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in out)
