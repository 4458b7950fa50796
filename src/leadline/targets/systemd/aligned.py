"""Which words of a new command are which of the present one, so that those which stay can stay as they are written."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from leadline.targets.systemd.environment import names
from leadline.targets.systemd.unitexec import Command, Expanded, UnitExec

_SAME_FLAG, _SAME, _LIKE, _NEVER = 6, 4, 1, -(10**6)


Pairs = list[tuple[int | None, int | None]]


class Part(msgspec.Struct, frozen=True):
    """One word to write: the `source`-th of the command, as it is (`kept`) or with another text; None = a new one.

    `lead` = systemd's prefixes, when the first word must bring them along. `of` = the source word whose variable it
    came from, when a part of what the variable holds has changed.
    """

    text: str
    source: int | None = None
    kept: bool = False
    lead: str = ""
    of: int | None = None


def align(old: Sequence[str], new: Sequence[str]) -> Pairs:
    """Pairs of indices, in order: words that are the same or take each other's place. None = gone, or new."""
    rows, columns = len(old), len(new)
    best = [[0] * (columns + 1) for _ in range(rows + 1)]
    for i in range(rows - 1, -1, -1):
        for j in range(columns - 1, -1, -1):
            best[i][j] = max(best[i + 1][j + 1] + _score(old[i], new[j]), best[i + 1][j], best[i][j + 1])
    out: Pairs = []
    i = j = 0
    while i < rows and j < columns:
        score = _score(old[i], new[j])
        if score > 0 and best[i][j] == best[i + 1][j + 1] + score:
            out.append((i, j))
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            out.append((i, None))
            i += 1
        else:
            out.append((None, j))
            j += 1
    out += [(k, None) for k in range(i, rows)]
    return out + [(None, k) for k in range(j, columns)]


def _score(old: str, new: str) -> int:
    """A flag never takes the place of another, nor of a value."""
    flags = old.startswith("-"), new.startswith("-")
    if old == new:
        return _SAME_FLAG if flags[0] else _SAME
    same = old.partition("=")[0] == new.partition("=")[0] and "=" in old and "=" in new
    return _LIKE if same or flags == (False, False) else _NEVER


def parts(unit: UnitExec, command: Command, argv: Sequence[str], moved: frozenset[str]) -> list[Part]:
    """The words to write so that the command comes to `argv`."""
    old = unit.expanded(command)
    pairs = align([e.text for e in old], argv)
    whole = _whole(command, old, argv, pairs, moved)
    gone = {e.text: e.word for i, e in enumerate(old) if (i, None) in pairs and _single(unit, command, e.word)}
    empty = [k for k in command.sources if not any(e.word == k for e in old)]
    out = [Part(command.words[0].text, 0, True)] if command.named else []
    done: set[int] = set()
    for i, j in pairs:
        if i is None:
            text = argv[j or 0]
            moving = gone.get(text) if not moved.intersection(names(text)) else None
            out.append(Part(text) if moving is None else Part(text, moving, True))
            continue
        source = old[i].word
        out += [Part("", k, True) for k in empty if k < source and k not in done]
        done |= {k for k in empty if k < source}
        if source in whole:
            out += [] if source in done else [Part(command.words[source].text, source, True)]
        elif j is not None:
            single = _single(unit, command, source)
            out.append(Part(argv[j], source) if single else Part(argv[j], of=source))
        done.add(source)
    out += [Part("", k, True) for k in empty if k not in done]
    return _led(command, out)


def _single(unit: UnitExec, command: Command, source: int) -> bool:
    return not command.expands or unit.lone(command.words[source]) is None


def _whole(
    command: Command, old: Sequence[Expanded], argv: Sequence[str], pairs: Pairs, moved: frozenset[str]
) -> set[int]:
    """The words whose every expanded word stays, side by side, and whose variables do."""
    same = {i: j for i, j in pairs if i is not None and j is not None and old[i].text == argv[j]}
    out: set[int] = set()
    for source in {e.word for e in old}:
        places = [same.get(i, -len(argv) - 1) for i, e in enumerate(old) if e.word == source]
        steady = places[0] >= 0 and places == list(range(places[0], places[0] + len(places)))
        still = not command.expands or not moved.intersection(names(command.words[source].text))
        if steady and still:
            out.add(source)
    return out


def _led(command: Command, out: list[Part]) -> list[Part]:
    """The prefixes stay with the first word, whichever it is."""
    if command.named or not out:
        return out
    first, *rest = out
    if first.source != 0 or not first.kept:
        first = msgspec.structs.replace(first, lead=command.prefixes, kept=False)
    return [first, *(msgspec.structs.replace(p, kept=False) if p.source == 0 and command.prefixes else p for p in rest)]
