"""A llama-server command line as a list of items, each of which keeps its own words.

Reading never loses a word and never changes one; writing replaces an option where it stood. What stands before the
server's own options (`env A=b`, `nice -n 5`, the program) is the head, and is kept as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from leadline.engines.llamacpp.flags import OPTIONS, PRESETS, REMOVED, plain
from leadline.errors import InputError
from leadline.launch import LaunchSpec

_PROGRAM = re.compile(r"llama-server([-.][\w.-]*)?")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_NUMBER = re.compile(r"-\d+(\.\d*)?|-\.\d+")
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "fish", "busybox"})
_CONTAINERS = frozenset({"docker", "podman", "nerdctl"})
_WRAPPERS = frozenset(
    {"env", "nice", "ionice", "taskset", "numactl", "chrt", "stdbuf", "setsid", "nohup", "prlimit", "sudo", "exec"}
)


@dataclass(frozen=True, slots=True)
class Item:
    """One option with its values, or one loose word (`name` None)."""

    words: tuple[str, ...]
    name: str | None = None

    @property
    def value(self) -> str | None:
        return self.words[1] if len(self.words) > 1 else None


@dataclass(frozen=True, slots=True)
class CommandLine:
    """`env` is what the server sees of the environment that we know: the launch's own, and that of an `env` wrapper."""

    launch: LaunchSpec
    head: tuple[str, ...]
    items: tuple[Item, ...]
    env: Mapping[str, str]

    def last(self, *names: str) -> Item | None:
        """The occurrence that wins."""
        return next((i for i in reversed(self.items) if i.name in names), None)

    def value(self, name: str) -> str | None:
        """The text in force, from the command line or else the environment; None when neither has it."""
        item = self.last(name)
        if item is None:
            env = OPTIONS[name].env if name in OPTIONS else None
            return self.env.get(env) if env else None
        if item.value is None:
            raise InputError(f"{item.words[0]} is the last word of the command and has no value: {self.launch}")
        return item.value

    def put(self, name: str, *words: str, over: tuple[str, ...] = ()) -> CommandLine:
        """The option once: where `name`, or one of the names that it takes the place of, first stood, else at the end.

        An option with a value keeps the spelling that it had.
        """
        names = {name, *over}
        old = next((i for i in self.items if i.name in names), None)
        if old is not None and old.name == name and len(words) > 1:
            words = (old.words[0], *words[1:])
        new = Item(words, name)
        if old is None:
            return replace(self, items=(*self.items, new))
        items = tuple(new if i is old else i for i in self.items if i is old or i.name not in names)
        return replace(self, items=items)

    def set(self, name: str, text: str) -> CommandLine:
        """Like `put`, but a value that is in force already, from wherever, is left alone."""
        return self if self.value(name) == text else self.put(name, name, text)

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
        """An environment variable: in the wrapper when that sets it, since it would win, else in the launch."""
        prefix = f"{name}="
        if any(w.startswith(prefix) for w in self.head):
            return replace(self, head=tuple(prefix + text if w.startswith(prefix) else w for w in self.head))
        old = dict(self.launch.env)
        return replace(self, launch=_with_env(self.launch, {**old, name: text}))

    def written(self) -> LaunchSpec:
        argv = (*self.head, *(w for i in self.items for w in i.words))
        return LaunchSpec(argv=argv, env=self.launch.env, cwd=self.launch.cwd)


def _with_env(launch: LaunchSpec, env: Mapping[str, str]) -> LaunchSpec:
    return LaunchSpec(argv=launch.argv, env=tuple(env.items()), cwd=launch.cwd)


def read(launch: LaunchSpec) -> CommandLine:
    """Raises InputError when the server's own options cannot be seen, or when no server would start with them."""
    at = _program(launch) + 1
    head = launch.argv[:at]
    env = dict(launch.env)
    if any(_base_name(w) == "env" for w in head[:-1]):
        env.update((m[1], m[2]) for w in head[:-1] if (m := _ASSIGNMENT.fullmatch(w)))
    for name in env:
        _refuse_removed(name)
    return CommandLine(launch, head, _items(launch.argv[at:]), env)


def _base_name(word: str) -> str:
    return word.rsplit("/", 1)[-1]


def _program(launch: LaunchSpec) -> int:
    """Where the server's program stands in argv."""
    argv = launch.argv
    if not argv:
        raise InputError("the command is empty: give the llama-server command itself")
    at = 0
    if _base_name(argv[0]) in _WRAPPERS:
        at = next((i for i, w in enumerate(argv) if _PROGRAM.fullmatch(_base_name(w))), -1)
        if at < 0 and _base_name(argv[0]) == "env":
            at = next((i for i, w in enumerate(argv) if i and not w.startswith("-") and "=" not in w), -1)
        if at < 0:
            raise InputError(f"no llama-server in this command: {launch}")
    for word in argv[: at + 1]:
        if _base_name(word) in _SHELLS:
            raise InputError(
                f"a shell starts the server here, so that its options cannot be read or changed: {launch}\n"
                "Give the llama-server command itself, with its environment beside it."
            )
        if _base_name(word) in _CONTAINERS:
            raise InputError(f"a container starts the server here; give the llama-server command itself: {launch}")
    return at


def _refuse_removed(word: str) -> None:
    if word in REMOVED:
        raise InputError(f"llama-server has removed {word}: use {REMOVED[word]}")
    if word in PRESETS:
        raise InputError(f"{word} sets a model, a port and more at once: write out what it stands for")


def _items(argv: tuple[str, ...]) -> tuple[Item, ...]:
    items: list[Item] = []
    at = 0
    while at < len(argv):
        item = _item(argv, at)
        items.append(item)
        at += len(item.words)
    return tuple(items)


def _item(argv: tuple[str, ...], at: int) -> Item:
    word = plain(argv[at])
    option = OPTIONS.get(word)
    if option is not None:
        return Item(argv[at : at + 1 + option.values], option.name)
    if not _is_flag(word):
        return Item((argv[at],))
    _refuse_removed(word)
    before, eq, _ = word.partition("=")
    if eq and before in OPTIONS:  # the value may be a secret
        raise InputError(f"llama-server does not read {before}=...: write {before} and its value as two words")
    # It takes no positional words, so what follows an unknown flag and is no flag itself belongs to it.
    end = next((i for i in range(at + 1, len(argv)) if _is_flag(argv[i])), len(argv))
    return Item(argv[at:end], word)


def _is_flag(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and not _NUMBER.fullmatch(word)
