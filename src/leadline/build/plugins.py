"""Finds plug-ins by name: a module of their folder (`leadline/engines/NAME.py` with an `engine`), or an entry point of
the group `leadline.engines` for third parties. The only place that imports them."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Any

from leadline.config import Names
from leadline.errors import InputError
from leadline.ports import Engine


def plugin(kind: str, name: str, attribute: str) -> Any:
    """A plug-in by its name. Raises InputError with the names there are."""
    if name in _modules(kind):
        return getattr(importlib.import_module(f"leadline.{kind}.{name}"), attribute)
    for point in entry_points(group=f"leadline.{kind}"):
        if point.name == name:
            return point.load()
    raise InputError(f"no {kind} plug-in named {name!r}; there are {', '.join(found(kind))}")


def engine_of(argv: Sequence[str]) -> str:
    """The engine that a command line starts, by the words that start it. Raises InputError when none is recognised."""
    for name in found("engines"):
        engine: Engine = plugin("engines", name, "engine")
        text = "\n".join(argv)
        if any(re.search(rf"(?<![\w.-]){re.escape(p)}(?![\w-])", text) for p in engine.programs):
            return name
    raise InputError(f"cannot tell the engine from {argv[0]!r}; say --engine with one of {', '.join(found('engines'))}")


def found(kind: str) -> tuple[str, ...]:
    """The names of all plug-ins of a kind."""
    return tuple(sorted({*_modules(kind), *(p.name for p in entry_points(group=f"leadline.{kind}"))}))


def names() -> Names:
    """What campaign.toml may name."""
    engines = found("engines")
    knobs = {e: plugin("engines", e, "engine").knobs() for e in engines}
    return Names(
        engines=engines,
        targets=found("targets"),
        strategies=found("strategies"),
        workloads=tuple(n for n in found("workloads") if n != "file"),
        knobs={e: tuple(k.name for k in ks) for e, ks in knobs.items()},
        changes_output=tuple(sorted({k.name for ks in knobs.values() for k in ks if k.changes_output})),
    )


def _modules(kind: str) -> set[str]:
    folder = importlib.import_module(f"leadline.{kind}")
    hidden = {"supervisor", "data"}
    return {m.name for m in pkgutil.iter_modules(folder.__path__) if not m.name.startswith("_")} - hidden
