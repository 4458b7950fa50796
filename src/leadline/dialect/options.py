"""Tables of command-line options: spellings, how many values follow, and the environment's name for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MANY = -1
"""All words up to the next flag (argparse's `nargs="+"`)."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `name` is its canonical spelling; `off` are the spellings that switch it off; `values` follow it."""

    name: str
    spellings: frozenset[str]
    off: frozenset[str]
    values: int
    env: str | None = None


def table(text: str) -> dict[str, Option]:
    """Options by every spelling, from one line an option.

    The canonical spelling first, then the others; spellings after `/` switch it off; each `N` is one value that
    follows, `N*` any number; `$NAME` is the environment variable, which the command line overrides.
    """
    return {spelling: o for o in map(_option, text.strip().splitlines()) for spelling in o.spellings}


def by_env(options: Mapping[str, Option]) -> dict[str, Option]:
    return {o.env: o for o in options.values() if o.env}


def plain(word: str) -> str:
    """A flag as most servers read it: `_` is `-` after a leading `--`, but not in what follows a `=`."""
    if not word.startswith("--"):
        return word
    name, eq, value = word.partition("=")
    return name.replace("_", "-") + eq + value


def _option(line: str) -> Option:
    words = line.split()
    spellings = [w for w in words if w.startswith("-")]
    off = words[words.index("/") + 1 :] if "/" in words else []
    return Option(
        name=spellings[0],
        spellings=frozenset(spellings),
        off=frozenset(w for w in off if w.startswith("-")),
        values=MANY if "N*" in words else words.count("N"),
        env=next((w[1:] for w in words if w.startswith("$")), None),
    )
