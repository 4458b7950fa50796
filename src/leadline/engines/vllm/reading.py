"""A launch of vLLM as the options that are in force: those of its command line on top of those of its `--config` file.

Facts are those of `FlexibleArgumentParser` in vllm/utils/argparse_utils.py: the file's options go before all others,
so that the command line wins; `--config FILE` counts as two words only; `--NAME.key value` is one key of a JSON option.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from leadline.dialect import yamlfile
from leadline.dialect.commandline import CommandLine, Grammar, Item, is_flag
from leadline.dialect.commandline import read as read_words
from leadline.dialect.opaque import is_opaque, known
from leadline.dialect.options import Option, plain
from leadline.engines.vllm.flags import OPTIONS
from leadline.engines.vllm.programs import SERVER, located, starts
from leadline.errors import InputError
from leadline.launch import LaunchFile, LaunchSpec
from leadline.space import Value

CONFIG, MODEL = "--config", "--model"


@dataclass(frozen=True, slots=True)
class Options:
    """`values` = the options of the `file`, as they stand there or as they shall stand."""

    line: CommandLine
    file: LaunchFile | None
    values: Mapping[str, Any]

    def name_of(self, key: str) -> str:
        """The canonical name of an option in the file."""
        return _canonical(self.line.grammar, f"--{key}")

    def key(self, name: str) -> str | None:
        """How the file spells an option; None when it does not give it."""
        return next((k for k in reversed(list(self.values)) if self.name_of(k) == name), None)

    def has(self, *names: str) -> bool:
        return any(self.line.last(name) is not None or self.key(name) is not None for name in names)

    def text(self, name: str) -> str | None:
        """The (first) value in force, as a word; None when there is none."""
        if self.line.last(name) is not None:
            return self.line.value(name)
        key = self.key(name)
        return None if key is None else word(self.values[key])

    def words(self, name: str) -> tuple[str, ...]:
        """All values of an option that takes several. Raises InputError when only the running shell knows one."""
        return tuple(map(known, self._words(name)))

    def _words(self, name: str) -> tuple[str, ...]:
        item = self.line.last(name)
        if item is not None:
            return item.values
        key = self.key(name)
        value = None if key is None else self.values[key]
        return tuple(map(word, value)) if isinstance(value, list) else (() if key is None else (word(value),))

    def on(self, name: str) -> bool | None:
        """Whether a bare option is given, or its opposite; None when neither is. In the file: its value."""
        item = self.line.last(name)
        if item is not None:
            option = self.line.grammar.options.get(name)
            return not (option and plain(item.spelling) in option.off)
        key = self.key(name)
        if key is None:
            return None
        option = self.line.grammar.option(plain(f"--{key}"))
        opposite = bool(option and plain(f"--{key}") in option.off)
        return bool(self.values[key]) != opposite

    def set(self, name: str, *values: Value) -> Options:
        """These values, unless they are in force. On the command line: there they win over the file's."""
        words = tuple(map(str, values))
        return self if self._words(name) == words else replace(self, line=self.line.put(name, name, *words))

    def put(self, name: str, *words: str) -> Options:
        """These words on the command line, where the option stands there or at its end."""
        return replace(self, line=self.line.put(name, *words))

    def drop(self, unwanted: Callable[[str], bool]) -> Options:
        """Without the unwanted options, on the command line and in the file."""
        values = {k: v for k, v in self.values.items() if not unwanted(self.name_of(k))}
        return Options(self.line.drop(unwanted), self.file, values)

    def tidy(self, *names: str) -> Options:
        return replace(self, line=self.line.tidy(*names))

    def loose(self) -> tuple[str, ...]:
        """Words that belong to no option; the first is the model."""
        return tuple(i.words[0] for i in self.line.items if i.name is None and not is_flag(i.words[0]))

    def written(self) -> LaunchSpec:
        """The launch; a changed file becomes one of ours, which `--config` names then."""
        if self.file is None or yamlfile.load(self.file) == self.values:
            return self.line.written()
        content = yamlfile.changed(self.file, self.values)
        launch, path = yamlfile.ours(self.line.launch, self.file.path, content)
        argv = self.line.put(CONFIG, CONFIG, path).written().argv
        return msgspec.structs.replace(launch, argv=argv, env=self.line.written().env)


def read(launch: LaunchSpec) -> Options:
    """Raises InputError when the server's own options cannot be seen, or when no server would start with them."""
    line = _line(launch)
    path = _config(line)
    if path is None:
        return Options(line, None, {})
    file = yamlfile.find(launch, path)
    return Options(line, file, yamlfile.load(file))


def files(launch: LaunchSpec) -> tuple[str, ...]:
    """The path of the `--config` file, as the launch names it."""
    path = _config(_line(launch))
    return () if path is None else (path,)


def model(options: Options) -> str | None:
    """`--model`, which `vllm serve` puts in the place of its first word; else that word; else the file's."""
    loose = options.loose()
    if options.line.last(MODEL) is None and loose:
        return known(loose[0])
    return options.text(MODEL)


def _line(launch: LaunchSpec) -> CommandLine:
    return read_words(launch, _grammar(located(launch).words))


def _grammar(words: Sequence[str]) -> Grammar:
    """With what is an option only in these words: `--NAME.key` takes one value, `-O3` none."""
    common = Grammar(SERVER, OPTIONS, starts, abbreviates=True)
    more: dict[str, Option] = {}
    for word in words:
        spelling = plain(word).partition("=")[0]
        if re.fullmatch(r"-O[0-3a-z]+", spelling):
            more[spelling] = Option("--optimization-level", frozenset({spelling}), frozenset(), 0)
        elif is_flag(spelling) and "." in spelling and not is_opaque(word):
            more[spelling] = Option(_canonical(common, spelling), frozenset({spelling}), frozenset(), 1)
    return replace(common, options={**OPTIONS, **more}) if more else common


def _canonical(grammar: Grammar, spelling: str) -> str:
    head, dot, keys = plain(spelling).partition(".")
    option = grammar.option(head)
    return (option.name if option else head) + dot + keys.replace("_", "-")


def _config(line: CommandLine) -> str | None:
    items: list[Item] = [i for i in line.items if i.name == CONFIG]
    if not items:
        return None
    if len(items) > 1:
        raise InputError(f"{CONFIG} is given twice, and vLLM reads one file only")
    if items[0].words[:1] != (CONFIG,) or len(items[0].words) != 2:
        raise InputError(
            f"vLLM does not read the file of {items[0].words[0]}: write {CONFIG} and its path as two words"
        )
    return known(items[0].words[1])


def word(value: Any) -> str:
    """A value of the file as vLLM hands it to its own parser (`load_config_file`)."""
    return msgspec.json.encode(value).decode() if isinstance(value, dict) else str(value)
