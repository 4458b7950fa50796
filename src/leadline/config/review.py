"""One reading of a campaign file: the problems found so far, and how each is worded."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable

from leadline.config.spec import Names
from leadline.errors import ConfigError

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_LONGEST = 60
_SECRET_NAME = re.compile(r"(^|[-_:])(api[-_]?key|token|secret|passw(or)?d|authorization|cookie)$", re.IGNORECASE)
OUTSIDE = "let the server read it from a file, or from a variable set in the shell that starts leadline"


def dotted(where: str, name: str) -> str:
    """A key's full name, quoted as TOML would: `knobs."flag:--threads"`."""
    word = name if _BARE.fullmatch(name) else json.dumps(name)
    return f"{where}.{word}" if where else word


def found(value: object) -> str:
    """A value of the file in a few words on one line. Not for values that may be secrets."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value) if -(2**63) <= value < 2**63 else "a whole number beyond 64 bits"
    if isinstance(value, str):
        return json.dumps(value if len(value) <= _LONGEST else value[:_LONGEST] + "...", ensure_ascii=False)
    if isinstance(value, list):
        return f"a list of {len(value)}" if value else "an empty list"
    if isinstance(value, dict):
        return "a table" if value else "an empty table"
    return repr(value) if isinstance(value, float) else f"a {type(value).__name__}"


def unshown(value: object) -> str:
    """The same for values that may hold secrets: no text is shown."""
    return "a text (not shown)" if isinstance(value, str) else found(value)


def looks_secret(name: str) -> bool:
    """Whether an option, variable or header of that name holds a secret: `--api-key`, `HF_TOKEN`, `Authorization`."""
    return bool(_SECRET_NAME.search(name))


def listed(words: Iterable[str]) -> str:
    return ", ".join(words) or "(none)"


def meant(word: object, choices: Iterable[str]) -> str:
    """`did you mean depth?` for a near miss of one of the choices, else nothing."""
    if not isinstance(word, str):
        return ""
    by_lower = {choice.lower(): choice for choice in choices}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return f"did you mean {by_lower[close[0]]}?" if close else ""


class Review:
    """Collects every problem of one file; nothing is raised before the whole file was read."""

    def __init__(self, path: str, names: Names) -> None:
        self.path = path
        self.names = names
        self.problems: list[str] = []

    def wrong(self, key: str, what: str, allowed: str, hint: str = "") -> None:
        """One line: the file, the key, what was found, what is allowed, and where we can, what to write instead."""
        self.problems.append(f"{self.path}: {key}: found {what}; allowed: {allowed}" + (f"; {hint}" if hint else ""))

    def unknown(self, key: str, allowed: Iterable[str], hint: str) -> None:
        """A key that means nothing here. Its value is not shown: it may be a secret under a misspelt name."""
        self.wrong(key, "an unknown name", listed(allowed), hint)

    def done(self) -> None:
        if self.problems:
            raise ConfigError(self.problems)
