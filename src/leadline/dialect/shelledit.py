"""Other words for one command of a shell script; every byte that has nothing to do with the change stays.

A word that comes from a variable is changed where the variable is set: once in the script, or in the environment.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher

from leadline.dialect.opaque import is_opaque, text_of
from leadline.dialect.shellvalues import Arg, Named, Part, Seen, Variable
from leadline.dialect.shellwords import Span
from leadline.errors import InputError

_NEEDS_NO_QUOTES = re.compile(r"[\w@%+=:,./-]+")
_NUMBER = re.compile(r"-[\d.]")


@dataclass(slots=True)
class Edit:
    """Changes to a script, to the words after it (`args`, from `$0` on), and to its environment."""

    script: str
    args: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    spans: dict[Span, str] = field(default_factory=dict)
    given: dict[int, list[str]] = field(default_factory=dict)
    """By index of `args`: what stands there and after it instead."""

    def words(self, old: tuple[Seen, ...], new: Sequence[str]) -> None:
        """Raises InputError when a word cannot be changed without changing something else."""
        removed: set[int] = set()
        kept = True
        last = -1
        for i, j in pairs([w.value for w in old], new):
            if i is None and j is not None:
                self.insert(old, last, new[j])
                kept = False
            elif i is not None and j is None:
                removed.add(i)
                last, kept = i, False
            elif i is not None and j is not None:
                if old[i].value != new[j]:
                    self.change(old[i], new[j], follow=kept)
                last, kept = i, old[i].value == new[j]
        self.remove(old, removed)

    def variable(self, name: str, variable: Variable, text: str) -> None:
        """Another value for a variable that the script sets."""
        if variable.seen is None:
            why = variable.why or "is an array"
            raise InputError(f"{name} cannot be set safely: it {why}. Change it by hand where it holds.")
        self.change(variable.seen, text)

    def result(self) -> tuple[str, tuple[str, ...]]:
        """The script and its args."""
        out: list[str] = []
        at = 0
        for (start, end), text in sorted(self.spans.items()):
            if start < at:
                raise InputError("two changes to one word of the script: make them by hand")
            out += (self.script[at:start], text)
            at = end
        args = [w for i, a in enumerate(self.args) for w in self.given.get(i, [a])]
        return "".join((*out, self.script[at:])), tuple(args)

    def change(self, seen: Seen, new: str, follow: bool = True) -> None:
        if seen.arg is not None:
            self.give(seen.arg, new)
            return
        if seen.span is None:
            raise _together(self.script[slice(*seen.site)])
        if seen.bare:
            self.put(seen.span, _bare(new))
            return
        if follow and not (seen.parts and seen.parts[0].home and _is_flag(new)):
            texts = _fit(seen.parts, new)
            if texts is not None:
                for part, text in zip((p for p in seen.parts if p.home), texts, strict=True):
                    if text != part.text:
                        self.at_home(part, text)
                return
        self.put(seen.span, _quoted(new))

    def at_home(self, part: Part, text: str) -> None:
        home = part.home
        if isinstance(home, Seen):
            self.change(home, text)
        elif isinstance(home, Arg):
            self.give(home.index, text)
        elif isinstance(home, Named) and self.env.setdefault(home.name, text) != text:
            raise InputError(f"two different values for {home.name}: set it by hand")

    def give(self, index: int, new: str) -> None:
        now = self.given.setdefault(index, [self.args[index]])
        if now[0] not in (self.args[index], new):
            raise InputError(f"two different values for ${index} of the script: change it by hand")
        now[0] = new

    def put(self, span: Span, text: str) -> None:
        if self.spans.setdefault(span, text) != text:
            raise InputError(f"two different values for {self.script[slice(*span)]} of the script: change it by hand")

    def insert(self, old: tuple[Seen, ...], after: int, new: str) -> None:
        seen = old[after]
        if seen.arg is not None:
            self.given.setdefault(seen.arg, [self.args[seen.arg]]).append(new)
            return
        inside = after + 1 < len(old) and old[after + 1].site == seen.site
        if inside and seen.span is None:
            raise _together(self.script[slice(*seen.site)])
        end = seen.span[1] if inside and seen.span is not None else seen.site[1]
        text = _bare(new) if inside and seen.bare else _quoted(new)
        self.spans[end, end] = f"{self.spans.get((end, end), '')} {text}"

    def remove(self, old: tuple[Seen, ...], removed: set[int]) -> None:
        for i in sorted(removed):
            seen = old[i]
            if seen.arg is not None:
                self.given.setdefault(seen.arg, [self.args[seen.arg]]).pop(0)
            elif seen.span is not None:
                self.cut(seen.span)
            elif all(k in removed for k, other in enumerate(old) if other.site == seen.site):
                self.cut(seen.site)
            else:
                raise _together(self.script[slice(*seen.site)])

    def cut(self, span: Span) -> None:
        """A word, and the blanks and continued lines before it; its whole line when it is alone there."""
        start, end = span
        start = _before_blanks(self.script, start)
        if self.script[end : end + 1] == "\n":
            line = len(self.script[:start].rstrip(" \t"))
            start = line - 1 if self.script[:line].endswith("\n") else start
        self.spans[start, end] = ""


def pairs(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[int | None, int | None]]:
    """Which new word takes the place of which old one; None for a word that is added or removed."""
    if len(old) == len(new) and all(a == b or not (_is_flag(a) or _is_flag(b)) for a, b in zip(old, new, strict=True)):
        yield from ((i, i) for i in range(len(old)))
        return
    for _, i1, i2, j1, j2 in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        common = min(i2 - i1, j2 - j1)
        yield from ((i1 + k, j1 + k) for k in range(common))
        yield from ((i, None) for i in range(i1 + common, i2))
        yield from ((None, j) for j in range(j1 + common, j2))


def _is_flag(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and not _NUMBER.match(word)


def _fit(parts: tuple[Part, ...], new: str) -> tuple[str, ...] | None:
    """What the parts that come from elsewhere must be, so that the word is `new`; None when nothing does."""
    if not any(p.home for p in parts) or is_opaque(new):
        return None
    pattern = "".join("(.*?)" if p.home else re.escape(p.text) for p in parts)
    found = re.fullmatch(pattern, new, re.DOTALL)
    return None if found is None else found.groups()


def _before_blanks(text: str, end: int) -> int:
    """Where the blanks and continued lines begin that end there."""
    while end:
        if text[end - 1] in " \t":
            end -= 1
        elif end > 1 and text.startswith("\\\n", end - 2):
            end -= 2
        else:
            break
    return end


def _quoted(word: str) -> str:
    return text_of(word) if is_opaque(word) else shlex.quote(word)


def _bare(word: str) -> str:
    if not _NEEDS_NO_QUOTES.fullmatch(word):
        raise InputError("a variable that the shell splits at blanks cannot hold this value: write it into the command")
    return word


def _together(text: str) -> InputError:
    return InputError(f"{text} stands for several words, one of which cannot be changed alone: write them out by hand")
