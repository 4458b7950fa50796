"""A server's command line as a list of items, each of which keeps its own words.

Reading never loses a word and never changes one; writing replaces an option where it stood. What stands before the
server's own options (`env A=b`, `nice -n 5`, the program) is kept as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from leadline.dialect.opaque import known
from leadline.dialect.options import MANY, Option, plain
from leadline.dialect.source import Source, Starts, find
from leadline.errors import InputError
from leadline.launch import LaunchSpec

_NUMBER = re.compile(r"-\d+(\.\d*)?([eE][-+]?\d+)?|-\.\d+")


@dataclass(frozen=True, slots=True)
class Grammar:
    """How a server reads its command line.

    `equals`: it reads `--name=value`. `abbreviates`: it completes unambiguous beginnings of long options, as Python's
    argparse does. `refuse` raises InputError for a word or variable that the server would not start with.
    """

    server: str
    options: Mapping[str, Option]
    starts: Starts
    equals: bool = True
    abbreviates: bool = False
    refuse: Callable[[str], None] = lambda word: None

    def option(self, spelling: str) -> Option | None:
        """The option of a spelling, abbreviations included; None when it is unknown or ambiguous."""
        word = plain(spelling)
        exact = self.options.get(word)
        if exact is not None or not self.abbreviates or not word.startswith("--") or len(word) < 4:
            return exact
        owners = {o.name: o for s, o in self.options.items() if s.startswith(word)}
        return next(iter(owners.values())) if len(owners) == 1 else None


@dataclass(frozen=True, slots=True)
class Item:
    """One option with its values, or one loose word (`name` None). `--name=value` is one word."""

    words: tuple[str, ...]
    name: str | None = None

    @property
    def value(self) -> str | None:
        """The first value; None when it has none."""
        if len(self.words) > 1:
            return self.words[1]
        _, eq, text = self.words[0].partition("=")
        return text if eq and self.name is not None else None

    @property
    def values(self) -> tuple[str, ...]:
        return self.words[1:] if len(self.words) > 1 else (() if self.value is None else (self.value,))

    @property
    def spelling(self) -> str:
        """The flag as it was written, without its value."""
        return self.words[0].partition("=")[0] if self.name is not None else self.words[0]


@dataclass(frozen=True, slots=True)
class CommandLine:
    """`env` is what the server sees of the environment that we know: the launch's own, and that of an `env` wrapper."""

    grammar: Grammar
    source: Source
    items: tuple[Item, ...] = field(default=())

    @property
    def env(self) -> Mapping[str, str]:
        return self.source.env

    @property
    def launch(self) -> LaunchSpec:
        """As it was read."""
        return self.source.launch

    def last(self, *names: str) -> Item | None:
        """The occurrence that wins."""
        return next((i for i in reversed(self.items) if i.name in names), None)

    def value(self, name: str) -> str | None:
        """The text in force, from the command line or else the environment; None when neither has it.

        Raises InputError when only the running shell knows it, or when a flag stands there without one.
        """
        text = self._text(name)
        return None if text is None else known(text)

    def _text(self, name: str) -> str | None:
        """Like `value`, but opaque where it cannot be known."""
        item = self.last(name)
        if item is None:
            option = self.grammar.options.get(name)
            return self.env.get(option.env) if option and option.env else None
        if item.value is None:
            raise InputError(f"{item.words[0]} is the last word of the {self.grammar.server} command and has no value")
        return item.value

    def put(self, name: str, *words: str, over: tuple[str, ...] = ()) -> CommandLine:
        """The option once: where `name`, or one of the names that it takes the place of, first stood, else at the end.

        An option with a value keeps the spelling that it had, `=` included.
        """
        names = {name, *over}
        old = next((i for i in self.items if i.name in names), None)
        if old is not None and old.name == name and len(words) > 1:
            joined = len(old.words) == 1 and "=" in old.words[0] and len(words) == 2
            words = (f"{old.spelling}={words[1]}",) if joined else (old.spelling, *words[1:])
        new = Item(words, name)
        if old is None:
            return replace(self, items=(*self.items, new))
        items = tuple(new if i is old else i for i in self.items if i is old or i.name not in names)
        return replace(self, items=items)

    def set(self, name: str, text: str) -> CommandLine:
        """Like `put`, but a value that is known to be in force already, from wherever, is left alone."""
        return self if self._text(name) == text else self.put(name, name, text)

    def drop(self, unwanted: Callable[[str], bool]) -> CommandLine:
        """Without the options whose canonical name is unwanted."""
        return replace(self, items=tuple(i for i in self.items if i.name is None or not unwanted(i.name)))

    def tidy(self, *names: str) -> CommandLine:
        """Of several occurrences the winner alone, where the first stood."""
        winner = self.last(*names)
        first = next((i for i in self.items if i.name in names), None)
        if winner is None or winner is first:
            return self
        items = tuple(winner if i is first else i for i in self.items if i is first or i.name not in names)
        return replace(self, items=items)

    def assign(self, name: str, text: str) -> CommandLine:
        """An environment variable, where it is set now or else in the launch.

        It is read anew after that, since words of a script may depend on the variable.
        """
        source = find(self.written(), self.grammar.server, self.grammar.starts).assign(name, text)
        return CommandLine(self.grammar, source, _items(source.words, self.grammar))

    def written(self) -> LaunchSpec:
        return self.source.written([w for i in self.items for w in i.words])


def read(launch: LaunchSpec, grammar: Grammar) -> CommandLine:
    """Raises InputError when the server's own options cannot be seen, or when no server would start with them."""
    source = find(launch, grammar.server, grammar.starts)
    for name in source.env:
        grammar.refuse(name)
    return CommandLine(grammar, source, _items(source.words, grammar))


def is_flag(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and not _NUMBER.fullmatch(word)


def _items(words: tuple[str, ...], grammar: Grammar) -> tuple[Item, ...]:
    items: list[Item] = []
    at = 0
    while at < len(words):
        item = _item(words, at, grammar)
        items.append(item)
        at += len(item.words)
    return tuple(items)


def _item(words: tuple[str, ...], at: int, grammar: Grammar) -> Item:
    word = plain(words[at])
    before, eq, _ = word.partition("=")
    option = grammar.option(word)
    if option is not None:
        count = _until_flag(words, at) if option.values == MANY else at + 1 + option.values
        return Item(words[at:count], option.name)
    if not is_flag(word):
        return Item((words[at],))
    grammar.refuse(before)
    owner = grammar.option(before) if eq else None
    if owner is not None and not grammar.equals:  # the value may be a secret
        raise InputError(f"{grammar.server} does not read {before}=...: write {before} and its value as two words")
    if eq and grammar.equals:
        return Item((words[at],), owner.name if owner else before)
    # What follows an unknown flag and is no flag itself belongs to it.
    return Item(words[at : _until_flag(words, at)], word)


def _until_flag(words: tuple[str, ...], at: int) -> int:
    return next((i for i in range(at + 1, len(words)) if is_flag(words[i])), len(words))
