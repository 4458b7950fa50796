"""A unit's commands and what they run in, as systemd 252 reads them from its files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase

import msgspec

from leadline.targets.systemd import environment, unitfile
from leadline.targets.systemd.environment import Assigned
from leadline.targets.systemd.unitfile import BLANK, Entry, UnitFile
from leadline.targets.systemd.words import Cut, Piece, Unreadable, cut, specified, text_of

_PREFIXES = re.compile(r"[-@:+!]*")
_UNSAFE = re.compile(r"[\0-\x1f\"'\\\x7f]")
_TYPES = frozenset({"simple", "exec", "forking", "oneshot", "dbus", "notify", "notify-reload", "idle"})
_KEYS = {
    "User": "user",
    "Type": "type",
    "KillMode": "kill_mode",
    "Restart": "restart",
    "TimeoutStopSec": "timeout_stop",
}


class Word(msgspec.Struct, frozen=True):
    """`raw` as it is written, continued lines joined as systemd joins them; `text` once quotes, escapes and specifiers
    are resolved, without the prefixes `lead` of a first word. `offsets[i]` = where raw[i] begins in the file, in bytes;
    `start`, `end` = where the word does; `line` counts from 1."""

    raw: str
    text: str
    path: str
    start: int
    end: int
    line: int
    offsets: tuple[int, ...]
    lead: str = ""
    strange: bool = False
    """It has escapes that there are not: systemd warns, and takes them for themselves."""


class Command(msgspec.Struct, frozen=True):
    """One command of an ExecStart= line that begins at `line`. `words` are all of its words, the program first."""

    prefixes: str
    program: str
    argv0: str
    words: tuple[Word, ...]
    path: str
    line: int

    @property
    def named(self) -> bool:
        """Whether the process is given another name than its program's: the second word."""
        return "@" in self.prefixes

    @property
    def expands(self) -> bool:
        return ":" not in self.prefixes

    @property
    def sources(self) -> range:
        """The words that the process gets."""
        return range(1 if self.named else 0, len(self.words))


class Expanded(msgspec.Struct, frozen=True):
    """A word as the process gets it, and the index of the command's word that it comes from."""

    text: str
    word: int


class UnitExec(msgspec.Struct, frozen=True, kw_only=True):
    """`environment` = after environment files; `assigned` = where each of it comes from; `passed`, `unset` = names of
    PassEnvironment= and UnsetEnvironment=. `problems` = what systemd ignores; `fatal` = why it does not start the unit;
    `unknown` = what cannot be known from here. Secrets are in it in clear."""

    commands: tuple[Command, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    assigned: tuple[Assigned, ...] = ()
    passed: frozenset[str] = frozenset()
    unset: frozenset[str] = frozenset()
    user: str | None = None
    working_directory: str | None = None
    type: str = "simple"
    kill_mode: str = "control-group"
    restart: str = "no"
    timeout_stop: str | None = None
    problems: tuple[str, ...] = ()
    fatal: str = ""
    unknown: tuple[str, ...] = ()
    texts: Mapping[str, str] = {}
    specifiers: Mapping[str, str] = {}
    environment_files: Mapping[str, str] = {}

    def __repr__(self) -> str:
        return f"UnitExec({len(self.commands)} commands of {', '.join(self.texts)})"

    @property
    def words(self) -> tuple[str, ...]:
        """Of the last command, as systemd itself has them; () when there is none."""
        return self.bus(self.commands[-1]) if self.commands else ()

    def bus(self, command: Command) -> tuple[str, ...]:
        """As `busctl get-property ... ExecStart` shows it: variables are not replaced."""
        return tuple(command.words[k].text for k in command.sources)

    def expanded(self, command: Command) -> tuple[Expanded, ...]:
        """As in /proc/PID/cmdline. A variable that is set nowhere is empty."""
        values = dict(self.environment)
        return tuple(
            Expanded(text, k)
            for k in command.sources
            for word in (command.words[k].text,)
            for text in (environment.expanded(word, values) if command.expands else (word,))
        )

    def lone(self, word: Word) -> str | None:
        return environment.lone(word.text)


def read(texts: Mapping[str, str], specifiers: Mapping[str, str], environment_files: Mapping[str, str]) -> UnitExec:
    """`texts` = the unit's file and its drop-ins, path to text, in the order in which they hold; bytes that are no text
    stand in them as by `surrogateescape`. `specifiers` = letter to text. What is wrong is in the result."""
    reader = _Reader(specifiers)
    for path, text in texts.items():
        file = unitfile.parse(path, text)
        reader.problems += file.problems
        broken = reader.entries(file) or file.fatal
        if broken and re.search(r"\.d/[^/]*\Z", path):
            reader.problems.append(f"{broken}: systemd ignores the rest of this drop-in")
        elif broken:
            reader.fatal = broken
    found = reader.variables(environment_files)
    settings = {_KEYS[key]: value for key, value in reader.settings.items() if key in _KEYS and value}
    kind = settings.pop("type", "simple" if reader.commands else "oneshot")
    return UnitExec(
        commands=tuple(reader.commands),
        environment=tuple((a.name, a.value) for a in found),
        assigned=found,
        passed=frozenset(reader.names("PassEnvironment")),
        unset=frozenset(reader.names("UnsetEnvironment")),
        working_directory=reader.folder(),
        type=kind,
        problems=tuple(dict.fromkeys(reader.problems)),
        fatal=reader.fatal,
        unknown=tuple(dict.fromkeys(reader.unknown)),
        texts=dict(texts),
        specifiers=dict(specifiers),
        environment_files=dict(environment_files),
        **settings,
    )


class _Wrong(ValueError):
    """A command that systemd refuses."""


class _Reader:
    """Collects the settings of [Service], file by file."""

    def __init__(self, specifiers: Mapping[str, str]) -> None:
        self.specifiers = specifiers
        self.commands: list[Command] = []
        self.lines: dict[str, Assigned] = {}
        self.files: list[str] = []
        self.lists: dict[str, list[str]] = {}
        self.settings: dict[str, str] = {}
        self.problems: list[str] = []
        self.unknown: list[str] = []
        self.fatal = ""

    def entries(self, file: UnitFile) -> str:
        """Why systemd stops reading there; "" when it does not."""
        for entry in file.entries:
            if entry.section != "Service":
                continue
            if entry.key == "ExecStart":
                if why := self._exec(entry, file):
                    return why
            elif entry.key == "Environment":
                self._environment(entry, file)
            elif entry.key == "EnvironmentFile":
                self._file(entry)
            elif entry.key in ("PassEnvironment", "UnsetEnvironment"):
                now = self.lists.get(entry.key, []) if entry.value else []
                self.lists[entry.key] = [*now, *(w for w, _ in self._texts(entry))]
            elif entry.key == "Type" and entry.value not in _TYPES:
                self.problems.append(f"{entry.path}:{entry.line}: Type={entry.value} is unknown, ignored")
            else:
                self.settings[entry.key] = entry.value
        return ""

    def names(self, key: str) -> list[str]:
        return [word.partition("=")[0] for word in self.lists.get(key, [])]

    def folder(self) -> str | None:
        """None for the default, and for a home that only systemd knows."""
        given = self.settings.get("WorkingDirectory", "").removeprefix("-")
        return self._resolved(given, "WorkingDirectory=") if given.startswith("/") else None

    def variables(self, files: Mapping[str, str]) -> tuple[Assigned, ...]:
        found = dict(self.lines)
        for pattern in self.files:
            needed = not pattern.startswith("-")
            paths = sorted(p for p in files if _matches(p, pattern.removeprefix("-")))
            if needed and not paths:
                self.fatal = self.fatal or f"its EnvironmentFile={pattern} is not there or cannot be read"
            for path in paths:
                try:
                    new, problems = environment.of_file(path, files[path])
                except environment.NoText as why:
                    self.problems.append(str(why))
                    self.fatal = self.fatal or (str(why) if needed else "")
                    continue
                self.problems += problems
                for assigned in new:
                    found[assigned.name] = assigned
        for word in self.lists.get("UnsetEnvironment", []):
            name, equals, value = word.partition("=")
            if name in found and (not equals or found[name].value == value):
                del found[name]
        return tuple(found.values())

    def _environment(self, entry: Entry, file: UnitFile) -> None:
        if not entry.value:
            self.lines.clear()
        found, problems, unknown = environment.of_line(entry, self.specifiers, file.line)
        self.lines.update({a.name: a for a in found})
        self.problems += problems
        self.unknown += unknown

    def _file(self, entry: Entry) -> None:
        path = self._resolved(entry.value, f"{entry.path}:{entry.line}")
        if not entry.value:
            self.files.clear()
        elif path.removeprefix("-").startswith("/"):
            dash = "-" if path.startswith("-") else ""
            self.files.append(dash + re.sub(r"/(\.?/)+", "/", path.removeprefix("-")))
        else:
            self.problems.append(f"{entry.path}:{entry.line}: EnvironmentFile={path} is no whole path, ignored")

    def _resolved(self, text: str, where: str) -> str:
        """Without quotes: "" for a specifier that there is not, which systemd ignores together with its line."""
        found = specified(tuple(_single(text)), self.specifiers)
        self._unknown(found.unknown, where)
        return "" if found.wrong else text_of(found.pieces)

    def _unknown(self, letters: str, where: str) -> None:
        self.unknown += [f"what %{letter} stands for in {where}" for letter in letters]

    def _texts(self, entry: Entry) -> list[tuple[str, Cut]]:
        out: list[tuple[str, Cut]] = []
        at = 0
        try:
            while (word := cut(entry.value, at)) is not None:
                out.append((text_of(specified(word.pieces, self.specifiers).pieces), word))
                at = word.next
        except Unreadable as why:
            self.problems.append(f"{entry.path}:{entry.line}: {why}, ignored")
        return out

    def _exec(self, entry: Entry, file: UnitFile) -> str:
        """The commands of one ExecStart= line; why systemd refuses it, or ""."""
        if not entry.value:
            self.commands.clear()
            return ""
        where, at = f"{entry.path}:{entry.line}", 0
        while at < len(entry.value):
            try:
                first = cut(entry.value, at)
            except Unreadable as why:
                self.problems.append(f"{where}: {why}, ignored")
                return ""
            if first is None:
                break
            lead = _prefixes(text_of(first.pieces))
            ignoring = "-" in lead
            try:
                words, at = self._words(entry, file, first, lead)
            except (_Wrong, Unreadable) as why:
                if ignoring:
                    self.problems.append(f"{where}: {why}, ignored")
                return "" if ignoring else f"{where}: {why}"
            self._command(lead, words, entry)
        return ""

    def _command(self, lead: str, words: list[Word], entry: Entry) -> None:
        program = words[0].text
        argv0 = words[1].text if "@" in lead else program
        self.commands.append(Command(lead, program, argv0, tuple(words), entry.path, entry.line))

    def _words(self, entry: Entry, file: UnitFile, first: Cut, lead: str) -> tuple[list[Word], int]:
        """The words up to a lone `;` or the end, and where the next command begins. Raises _Wrong, Unreadable."""
        value = entry.value
        words = [self._word(entry, file, first, lead)]
        _check(words[0].text)
        at = first.next
        while at < len(value):
            lone = re.compile(r"(\\?);(?=[ \t]|\Z)").match(value, at)
            if lone and not lone[1]:
                at = _skip(value, at + 1)
                break
            if lone:
                words.append(_made(entry, file, Cut((), at, at + 2, at + 2), ";", ""))
                at = _skip(value, at + 2)
                continue
            if (word := cut(value, at)) is None:
                break
            words.append(self._word(entry, file, word, ""))
            at = word.next
        if "@" in lead and len(words) < 2:
            raise _Wrong("@ without a name for the process")
        return words, at

    def _word(self, entry: Entry, file: UnitFile, word: Cut, lead: str) -> Word:
        """Raises _Wrong."""
        found = specified(word.pieces[len(lead) :], self.specifiers)
        if found.wrong:
            raise _Wrong(f"there is no specifier %{found.wrong[0]}")
        self._unknown(found.unknown, "ExecStart=")
        if word.relaxed:
            self.problems.append(f"{entry.path}:{entry.line}: unknown escapes in ExecStart=, taken as they are")
        return _made(entry, file, word, text_of(found.pieces), lead)


def _made(entry: Entry, file: UnitFile, word: Cut, text: str, lead: str) -> Word:
    start, end = environment.span(entry, word)
    offsets = (*entry.offsets[word.start : word.end], end)
    raw = entry.value[word.start : word.end]
    return Word(raw, text, entry.path, start, end, file.line(start), offsets, lead, word.relaxed)


def _prefixes(text: str) -> str:
    """How many of the characters before the program systemd takes for prefixes: each once, and `!!`."""
    found = _PREFIXES.match(text)
    taken = ""
    for char in found[0] if found else "":
        marks = taken.count("!")
        again = char in taken if char in "-@:" else "+" in taken or (marks if char == "+" else marks > 1)
        if again:
            break
        taken += char
    return taken


def _check(program: str) -> None:
    """Raises _Wrong for what systemd does not take for a program."""
    if not program:
        raise _Wrong("no program in ExecStart=")
    if _UNSAFE.search(program):
        raise _Wrong("the program's name has special characters")
    if program.endswith("/") or (not program.startswith("/") and ("/" in program or program in (".", ".."))):
        raise _Wrong(f"{program} is neither a program's name nor a whole path")


def _single(text: str) -> list[Piece]:
    return [Piece(char, i, i + 1, "") for i, char in enumerate(text)]


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in BLANK:
        at += 1
    return at


def _matches(path: str, pattern: str) -> bool:
    """As glob(3): no wildcard stands for a slash."""
    ours, theirs = path.split("/"), pattern.split("/")
    return len(ours) == len(theirs) and all(map(fnmatchcase, ours, theirs))
