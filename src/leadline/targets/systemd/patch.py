"""A launch written into the operator's own files: the bytes of the words that change, and a diff without secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from leadline.errors import RefusedError
from leadline.launch import LaunchSpec
from leadline.ports import Observed
from leadline.targets.systemd.aligned import Part, parts
from leadline.targets.systemd.definition import unit_of
from leadline.targets.systemd.edits import Reading, apply, changes_of, edited, pieces_of, refuse_secrets
from leadline.targets.systemd.environment import assignment, names, secret
from leadline.targets.systemd.execline import checked, reading_of, refuse_in_clear, sole
from leadline.targets.systemd.place import Place
from leadline.targets.systemd.shown import unified
from leadline.targets.systemd.unitexec import Command, UnitExec, Word, read
from leadline.targets.systemd.unitfile import parse
from leadline.targets.systemd.words import quoted

_NOTE = "Secrets read <secret:NAME> here: where a changed line has one, make the change by hand.\n"
_PLAIN = re.compile(r"[^\s'\"\\]+")
_BETWEEN = re.compile(rb"[ \t\r\n\\]*")
_REST = re.compile(rb"[ \t]*\\\r?")


def patch(place: Place, launch: LaunchSpec, observed: Observed) -> str:
    """A diff of the operator's own files, what we put over them left out. Raises RefusedError with the reason."""
    unit = unit_of(observed, without=place.accepted)
    return diff({**unit.texts, **unit.environment_files}, unit, launch)


def diff(texts: Mapping[str, str], unit: UnitExec, launch: LaunchSpec) -> str:
    """A unified diff of the files, for `patch -p1 -d /`; secrets read `<secret:NAME>`. Raises RefusedError."""
    new = patched(texts, unit, launch)
    found = "".join(unified(path, texts[path], text, unit.environment_files) for path, text in new.items())
    return found if "<secret:" not in found else _NOTE + found


def patched(texts: Mapping[str, str], unit: UnitExec, launch: LaunchSpec) -> dict[str, str]:
    """The new texts of the files that change, by path: those of the unit, and its environment files.

    Raises RefusedError where a word comes from what stands in none of them, or would change something else.
    """
    command, edits = sole(unit), _Edits(texts)
    reading = reading_of(unit, launch)
    _environment(unit, launch, command, edits)
    found = parts(unit, command, launch.argv, reading.moved)
    _Commandline(unit, command, reading, edits).write(found)
    new = edits.result()
    files = {path: new.get(path, text) for path, text in unit.environment_files.items()}
    again = read({path: new.get(path, text) for path, text in unit.texts.items()}, unit.specifiers, files)
    argv = tuple(e.text for c in again.commands for e in again.expanded(c))
    values = dict(again.environment)
    moved = {name: value for name, value in launch.env if name in reading.moved}
    if again.fatal or argv != launch.argv or any(values.get(name) != value for name, value in moved.items()):
        raise RefusedError(
            f"this change cannot be written into {command.path} without changing other words too, which share a "
            "variable with those that change: write the values themselves there"
        )
    return new


class _Edits:
    """Replacements of bytes, file by file."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = texts
        self._edits: dict[str, list[tuple[int, int, bytes]]] = {}

    def put(self, path: str, start: int, end: int, text: str) -> None:
        edit = (start, end, text.encode(errors="surrogateescape"))
        mine = self._edits.setdefault(path, [])
        if start == end or edit not in mine:
            mine.append(edit)

    def data(self, path: str) -> bytes:
        return self.texts[path].encode(errors="surrogateescape")

    def result(self) -> dict[str, str]:
        out: dict[str, str] = {}
        for path, edits in self._edits.items():
            data, before = self.data(path), len(self.data(path)) + 1
            order = sorted(enumerate(edits), key=lambda e: (e[1][0], e[1][1], e[0]), reverse=True)
            for _, (start, end, new) in order:
                if end > before:
                    raise RefusedError(f"two changes of {path} would be at the same place: make this change by hand")
                data, before = data[:start] + new + data[end:], start if start < end else before
            out[path] = data.decode(errors="surrogateescape")
        return out

    def value(self, unit: UnitExec, name: str, value: str) -> None:
        """Another value of a variable, where it is set."""
        assigned = next((a for a in unit.assigned if a.name == name), None)
        if assigned is None or assigned.path not in self.texts:
            where = "outside of this unit" if assigned is None else f"in {assigned}"
            raise RefusedError(
                f"the words that change come from the variable {name}, which is set {where}: change it there"
            )
        if secret(name, assigned.value):
            raise RefusedError(f"the change would write the variable {name} of {assigned}, and it is a secret")
        self.put(assigned.path, assigned.start, assigned.end, assigned.written(value))


def _environment(unit: UnitExec, launch: LaunchSpec, command: Command, edits: _Edits) -> None:
    """Variables with another value: where they are set now, else on a line of their own before ExecStart=."""
    now = dict(unit.environment)
    for name, value in launch.env:
        if now.get(name) == value:
            continue
        if secret(name, value):
            raise RefusedError(f"{name} is a secret: set it yourself where it is set now")
        if name in now:
            edits.value(unit, name, value)
            continue
        text = edits.texts[command.path]
        start = parse(command.path, text).starts[command.line - 1]
        end = "\r\n" if b"\r\n" in edits.data(command.path)[start:] else "\n"
        edits.put(command.path, start, start, f"Environment={assignment(name, value)}{end}")


def _lines_of(words: Sequence[Word], data: bytes) -> list[list[Word]]:
    """The words by the lines of the file that they stand on."""
    out: list[list[Word]] = []
    for word in words:
        if out and b"\n" not in data[out[-1][-1].end : word.start]:
            out[-1].append(word)
        else:
            out.append([word])
    return out


class _Commandline:
    """Writes the changed words into the file where the command stands."""

    def __init__(self, unit: UnitExec, command: Command, reading: Reading, edits: _Edits) -> None:
        self._unit, self._command, self._reading, self._edits = unit, command, reading, edits
        if command.path not in edits.texts:
            raise RefusedError(f"the command stands in {command.path}, which is no file of the service's own")

    def write(self, found: Sequence[Part]) -> None:
        self._variables(found)
        owners = [p.source if p.source is not None else p.of for p in found]
        words, seen, anchor = self._command.words, -1, self._command.words[0].start
        inside = {
            k: max(i for i, p in enumerate(found) if p.of == k) for k in owners if k is not None and k in self._lone
        }
        last = -1
        for i, (part, owner) in enumerate(zip(found, owners, strict=True)):
            if i <= last:
                continue
            if owner is not None and owner > seen:
                if part.lead and owner != 0:
                    raise RefusedError(f"the program of {self._command.path} would be another: change it by hand")
                self._gone(seen, owner)
                seen, anchor = owner, words[owner].end
                last = inside.get(owner, -1)
                if part.source is not None and not part.kept:
                    self._changed(words[owner], part)
                continue
            refuse_in_clear(part.text, self._unit)
            raw = (
                words[owner].raw
                if owner is not None and part.kept
                else quoted(part.text, dollars=self._reading.dollars)
            )
            self._edits.put(self._command.path, anchor, anchor, f" {raw}" if anchor != words[0].start else f"{raw} ")
        self._gone(seen, len(words))

    def _variables(self, found: Sequence[Part]) -> None:
        """Another value of a lone variable of which a part has changed."""
        self._lone = {p.of for p in found if p.of is not None}
        for source in self._lone:
            places = [i for i, p in enumerate(found) if p.of == source]
            values = [p.text for p in found[places[0] : places[-1] + 1]]
            name = self._unit.lone(self._command.words[source]) or ""
            if not all(map(_PLAIN.fullmatch, values)):
                where = next((str(a) for a in self._unit.assigned if a.name == name), self._command.path)
                raise RefusedError(f"the words that change come from {name}, set in {where}: change it there by hand")
            refuse_in_clear(" ".join(values), self._unit)
            self._edits.value(self._unit, name, " ".join(values))

    def _gone(self, before: int, after: int) -> None:
        """Take out the words between these two, and the lines that hold nothing else; comments stay."""
        path, data = self._command.path, self._edits.data(self._command.path)
        words, left = self._command.words[before + 1 : after], self._command.words[max(before, 0)].end
        if before < 0 or not words:
            return
        gaps = [left, *(w.end for w in words[:-1])]
        if all(_BETWEEN.fullmatch(data, gap, word.start) for gap, word in zip(gaps, words, strict=True)):
            self._edits.put(path, left, words[-1].end, "")
            return
        for group in _lines_of(words, data):
            start, end = data.rfind(b"\n", 0, group[0].start) + 1, data.find(b"\n", group[-1].end)
            if end >= 0 and not data[start : group[0].start].strip() and _REST.fullmatch(data, group[-1].end, end):
                self._edits.put(path, start, end + 1, "")
            else:
                blanks = len(data[: group[0].start]) - len(data[: group[0].start].rstrip(b" \t"))
                self._edits.put(path, group[0].start - blanks, group[-1].end, "")

    def _changed(self, word: Word, part: Part) -> None:
        """A changed word: in its place, but for what a variable of these files says, which changes there."""
        pieces = None if word.lead else pieces_of(word.raw, self._reading)
        if pieces is None:
            refuse_secrets(names(word.text), self._reading)
            refuse_in_clear(part.text, self._unit, word.text)
            raw = word.lead + quoted(part.text, dollars=self._reading.dollars)
            self._edits.put(word.path, word.start, word.end, raw)
            return
        text, at = "", 0
        for change in changes_of(pieces, part.text, self._reading):
            run = pieces[change.first : change.last]
            variables = [p.name for p in run if p.name and not p.name.startswith("%")]
            still = [n for n in variables if n not in self._reading.moved]
            text += "".join(p.text for p in pieces[at : change.first])
            if still and len(run) == 1:
                self._edits.value(self._unit, still[0], change.text)
                text += run[0].text
            elif still:
                raise RefusedError(
                    f"{word.path}:{word.line}: what changes there comes in part from the variable {still[0]}: write "
                    "the value itself there first"
                )
            else:
                text += change.text
            at = change.last
        text += "".join(p.text for p in pieces[at:])
        edits = edited(word.raw, text, self._reading)
        checked(apply(word.raw, edits), word, self._unit)
        for edit in edits:
            start = end = word.offsets[edit.start]
            if edit.start < edit.end:
                end = word.offsets[edit.end - 1] + len(word.raw[edit.end - 1].encode(errors="surrogateescape"))
            self._edits.put(word.path, start, end, edit.text)
