"""Words of a command whose value only the running shell knows: `$(cat key)`, `$((n + 1))`, a variable set twice.

Such a word is a string with NUL characters in it, which no real word can have, so that it equals no flag and no value.
Before the first NUL stands what is known of its beginning (`--flag=`), then its text in the script, then the reason.
"""

from __future__ import annotations

from leadline.errors import InputError

_MARK = "\0"


def opaque(known: str, text: str, why: str) -> str:
    return _MARK.join((known, text, why))


def is_opaque(word: str) -> bool:
    return word.count(_MARK) == 2


def text_of(word: str) -> str:
    """An opaque word as it stands in the script."""
    return word.split(_MARK)[1]


def why_of(word: str) -> str:
    return word.split(_MARK)[2]


def known(word: str) -> str:
    """The word. Raises InputError for an opaque one, with the reason and what to do by hand."""
    if not is_opaque(word):
        return word
    raise InputError(
        f"the value of {text_of(word)} cannot be known before the command runs: {why_of(word)}\n"
        "Write the value itself there, or set the variable once, by a plain NAME=value line, before the command."
    )
