"""Where a command's words stand: in argv, or in a script inside of another command; and writing them back there."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from leadline.dialect.shell import Command
from leadline.dialect.shelledit import Edit
from leadline.dialect.wrappers import Located, assigned
from leadline.errors import InputError
from leadline.launch import LaunchSpec


class Place(Protocol):
    @property
    def words(self) -> tuple[str, ...]:
        """All words of the command, its wrappers included; some may be opaque."""

    @property
    def env(self) -> Mapping[str, str]:
        """What is known of the environment that the command is started with."""

    def write(self, words: Sequence[str], env: Mapping[str, str]) -> LaunchSpec:
        """The launch with these words, and with these variables set outside of the command."""


@dataclass(frozen=True, slots=True)
class Argv:
    launch: LaunchSpec

    @property
    def words(self) -> tuple[str, ...]:
        return self.launch.argv

    @property
    def env(self) -> Mapping[str, str]:
        return dict(self.launch.env)

    def write(self, words: Sequence[str], env: Mapping[str, str]) -> LaunchSpec:
        own = tuple({**dict(self.launch.env), **env}.items())
        return msgspec.structs.replace(self.launch, argv=tuple(words), env=own)


@dataclass(frozen=True, slots=True)
class Script:
    """One command of the script that the shell at `shell` of the outer command runs.

    `outside` is the environment that the shell gets.
    """

    outer: Place
    shell: Located
    script: int
    command: Command
    outside: Mapping[str, str]

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(w.value for w in self.command.words)

    @property
    def env(self) -> Mapping[str, str]:
        """The launch's, and what the script exports, or sets for this command.

        A variable that the script itself uses counts too: whoever tunes the script sets it there.
        """
        variables = {**self.command.names, **self.command.prefix}
        seen = {name: text for name, text in self.outside.items() if name not in variables}
        script = self.outer.words[self.script]
        for name, variable in variables.items():
            used = variable.exported or re.search(rf"\$\{{?{name}\b", script)
            if used and variable.text is not None:
                seen[name] = variable.text
        return seen

    def write(self, words: Sequence[str], env: Mapping[str, str]) -> LaunchSpec:
        outer = self.outer.words
        edit = Edit(outer[self.script], outer[self.script + 1 :])
        edit.words(self.command.words, words)
        further: dict[str, str] = {}
        for name, text in env.items():
            variable = self.command.prefix.get(name) or self.command.names.get(name)
            if variable is None:
                further[name] = text
            else:
                edit.variable(name, variable, text)
        for name, text in edit.env.items():
            if further.setdefault(name, text) != text:
                raise InputError(f"two different values for {name}: set it by hand")
        script, args = edit.result()
        changed: tuple[str, ...] = (*outer[: self.script], script, *args)
        left: dict[str, str] = {}
        for name, text in further.items():
            inside = assigned(changed, self.shell, name, text)
            if inside is None:
                left[name] = text
            else:
                changed = inside
        return self.outer.write(changed, left)
