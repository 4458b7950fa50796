"""A SGLang command line together with the YAML file that its `--config` names.

SGLang puts the file's options before those of the command line, so that the command line wins
(`server_args_config_parser.py`, `ConfigArgumentMerger`). It looks for the word `--config` alone: `--config=FILE` and
shortened forms are read by nobody.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import msgspec

from leadline.dialect import yamlfile
from leadline.dialect.commandline import CommandLine, Grammar, Item, read
from leadline.dialect.opaque import known
from leadline.dialect.options import Option
from leadline.engines.sglang.options import options
from leadline.engines.sglang.programs import SERVER, starts
from leadline.engines.sglang.versions import refuse
from leadline.errors import InputError
from leadline.launch import LaunchFile, LaunchSpec

CONFIG = "--config"


@dataclass(frozen=True, slots=True)
class Words:
    """`line` = the command line; `filed` = the options of the configuration file by the key that sets each.

    `undone` are keys that a changed copy of the file will not have.
    """

    line: CommandLine
    patch: int | None
    filed: tuple[tuple[str, Item], ...] = ()
    undone: frozenset[str] = frozenset()

    @property
    def env(self) -> Mapping[str, str]:
        return self.line.env

    @property
    def options(self) -> Mapping[str, Option]:
        return self.line.grammar.options

    def last(self, *names: str) -> Item | None:
        """The occurrence that wins."""
        return self.line.last(*names) or self._of_file(*names)

    def has(self, *names: str) -> bool:
        return self.last(*names) is not None

    def value(self, *names: str) -> str | None:
        """The text in force of the first value; None when it is not given."""
        item = self.last(*names)
        if item is not None and item.value is None:
            raise InputError(f"{item.words[0]} has no value: {self.line.launch}")
        return None if item is None or item.value is None else known(item.value)

    def put(self, name: str, *words: str, over: tuple[str, ...] = ()) -> Words:
        return replace(self, line=self.line.put(name, *words, over=over))

    def set(self, name: str, text: str) -> Words:
        """The option with this value; one that is in force already, from wherever, is left alone."""
        return self if self.value(name) == text else self.put(name, name, text)

    def drop(self, unwanted: Callable[[str], bool]) -> Words:
        """Without the options whose canonical name is unwanted, in the file too."""
        gone = {key for key, item in self.filed if item.name is not None and unwanted(item.name)}
        return replace(self, line=self.line.drop(unwanted), undone=self.undone | gone)

    def tidy(self, *names: str) -> Words:
        return replace(self, line=self.line.tidy(*names))

    def assign(self, name: str, text: str) -> Words:
        return replace(self, line=self.line.assign(name, text))

    def written(self) -> LaunchSpec:
        """The launch; a file that must lose options is replaced by a copy in the launch's own folder.

        Raises InputError when there is no folder for it, which names what stands in the way.
        """
        if not self.undone:
            return self.line.written()
        path = str(self.line.value(CONFIG))
        launch = self.line.launch
        if not launch.scratch:
            raise InputError(
                f"{path} sets {', '.join(sorted(self.undone))}, which no option of the command line takes back: "
                "move it from the file to the command line"
            )
        content = yamlfile.edited(yamlfile.find(launch, path), {}, [(key,) for key in self.undone])
        base, new = yamlfile.ours(launch, path, content)
        written = self.line.put(CONFIG, CONFIG, new).written()
        theirs = tuple(f for f in launch.files if f not in launch.ours and f not in base.files)
        return msgspec.structs.replace(written, files=(*theirs, *base.files))

    def _of_file(self, *names: str) -> Item | None:
        kept = (item for key, item in reversed(self.filed) if key not in self.undone)
        return next((item for item in kept if item.name in names), None)


@cache
def grammar(patch: int | None) -> Grammar:
    return Grammar(SERVER, options(patch), starts, abbreviates=True, refuse=lambda word: refuse(word, patch))


def read_words(launch: LaunchSpec, patch: int | None) -> Words:
    """Raises InputError when SGLang's options cannot be seen, or when it would not start with them."""
    line = read(launch, grammar(patch))
    for item in line.items:
        _as_argparse_reads(item)
    path = _config(line)
    if path is None:
        return Words(line, patch)
    return Words(line, patch, _filed(yamlfile.find(launch, path), patch))


def config_file(launch: LaunchSpec) -> str | None:
    """The path after `--config`. Raises InputError for several, or for one that SGLang would not see."""
    return _config(read(launch, grammar(None)))


def _config(line: CommandLine) -> str | None:
    found = [i for i in line.items if i.name == CONFIG]
    if not found:
        return None
    if len(found) > 1:
        raise InputError("SGLang takes one --config file, and the command names several")
    if found[0].words[0] != CONFIG or len(found[0].words) < 2:
        raise InputError(f"SGLang passes over {found[0].words[0]}: write --config and the file as two words")
    return known(found[0].words[1])


def _as_argparse_reads(item: Item) -> None:
    """An option of ours with `_` for `-` is unknown to SGLang (plain argparse)."""
    if item.name is not None and "_" in item.spelling and item.spelling.replace("_", "-") in options(None):
        raise InputError(f"SGLang does not know {item.spelling}: write {item.spelling.replace('_', '-')}")


def _filed(file: LaunchFile, patch: int | None) -> tuple[tuple[str, Item], ...]:
    """By key, as `_convert_config_to_args` makes words of it: a key is the flag without its dashes."""
    return tuple((key, item) for key, value in yamlfile.load(file).items() for item in _items(file, key, value, patch))


def _items(file: LaunchFile, key: str, value: Any, patch: int | None) -> tuple[Item, ...]:
    option = options(patch).get(f"--{key}")
    if (isinstance(value, bool) and option is not None and option.values == 0 and not value) or value == []:
        return ()
    words = (f"--{key}", *_texts(value, option))
    try:
        line = read(LaunchSpec(argv=("sglang", "serve", *words)), grammar(patch))
        for item in line.items:
            _as_argparse_reads(item)
    except InputError as error:
        raise InputError(f"{file.path}: {error}") from None
    return line.items


def _texts(value: Any, option: Option | None) -> tuple[str, ...]:
    if isinstance(value, bool):
        return () if option is not None and option.values == 0 else (str(value).lower(),)
    if isinstance(value, list):
        return tuple(str(v) for v in value)
    return (json.dumps(value) if isinstance(value, dict) else str(value),)
