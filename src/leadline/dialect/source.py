"""Where a server's own words stand in a launch: after wrappers, in the script of a shell, in a container.

And writing them back there: whatever is not the server's keeps its bytes.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from leadline.dialect.opaque import is_opaque, text_of, why_of
from leadline.dialect.places import Argv, Place, Script
from leadline.dialect.shell import Command, commands
from leadline.dialect.shellvalues import Variable
from leadline.dialect.wrappers import (
    CONTAINERS,
    OTHER_USERS,
    SHELLS,
    WRAPPERS,
    Located,
    Starts,
    assigned,
    base_name,
    environment,
    is_assignment,
    locate,
)
from leadline.dialect.wrappers import container as container_at
from leadline.errors import InputError
from leadline.launch import LaunchSpec

__all__ = ["Source", "Starts", "base_name", "contained", "find"]

_NO_SERVERS = frozenset(
    {"sed", "awk", "grep", "cat", "echo", "printf", "cp", "mv", "rm", "ln", "git", "make", "tee", "xargs", "patch"}
    | {"systemctl", "journalctl", "kubectl", "helm", "docker-compose", "podman-compose", "ssh", "curl", "sleep", "cd"}
    | {"cmd", "cmd.exe", "powershell", "powershell.exe", "pwsh", "set", "export", "source", "perl", "vi", "vim", "nano"}
)
_READERS = frozenset(
    {"cat", "echo", "printf", "ls", "test", "[", "head", "tail", "grep", "wc", "stat", "file", "md5sum", "sha256sum"}
)
"""Commands that write no file that they are given as a word."""
_CARET = re.compile(r"[ \t][\^`][ \t]*\n[ \t]*-")
_SOURCED = re.compile(r"(?:^|[;&|\n])\s*(?:source|\.|bash|sh|exec)\s+([^\s;&|-][^\s;&|]*)")
_MANY = re.compile(r"\[[@*]\]|\$\{?[@*]")
_NAME = re.compile(r"[A-Za-z_]\w*")
_SPECULATIVE = re.compile(r"(?<![\w-])--?[a-z][\w-]*(spec|draft)|(?<![\w-])--?(spec|draft|sc\b|md\b)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Source:
    """`head` = the words that start the server, wrappers included; `words` = its own, after those.

    A word that only the running shell knows is opaque (`dialect.opaque`): compare it, move it, but read it by `known`.
    `env` is what the server sees of the environment that we know: the launch's own, and what a wrapper or the script
    sets. Of a container it is only what the container is given. `scripted`: a shell runs more than the server.
    """

    launch: LaunchSpec
    head: tuple[str, ...]
    words: tuple[str, ...]
    env: Mapping[str, str]
    place: Place
    located: Located
    server: str
    starts: Starts

    @property
    def contained(self) -> bool:
        """Whether a container holds the server."""
        boxes = [self.located.container]
        place = self.place
        while isinstance(place, Script):
            boxes.append(place.shell.container)
            place = place.outer
        return any(box is not None for box in boxes)

    @property
    def scripted(self) -> bool:
        return isinstance(self.place, Script)

    def written(self, words: Sequence[str]) -> LaunchSpec:
        """The launch with other words of the server's own.

        Raises InputError when something else would change with them: `find(written(words)).words == words`.
        """
        if tuple(words) == self.words:
            return self.launch
        return self._checked(self.place.write((*self.head, *words), {}), words)

    def assign(self, name: str, text: str) -> Source:
        """An environment variable: where it is set now, since that would win, else in the launch or the container.

        A variable that the script sets by one plain assignment is changed there, exported or not. Words of the server
        that depend on it follow.
        """
        words = assigned(self.place.words, self.located, name, text)
        new = self.place.write(self.place.words, {name: text}) if words is None else self.place.write(words, {})
        found = find(new, self.server, self.starts)
        if found.env.get(name) != text:
            raise InputError(f"{name} cannot be set here so that the {self.server} sees it: set it by hand")
        return found

    def _checked(self, launch: LaunchSpec, words: Sequence[str]) -> LaunchSpec:
        if not isinstance(self.place, Script) and self.located.container is None:
            return launch
        if find(launch, self.server, self.starts).words != tuple(words):
            raise InputError(
                f"this change of the {self.server} command would change other words of it too, since they share a"
                " variable or an unclear place in the script: write the values themselves into the command"
            )
        return launch


def find(launch: LaunchSpec, server: str, starts: Starts) -> Source:
    """The words of `server` (its name, for messages). Raises InputError when they cannot be seen or changed safely."""
    if not launch.argv:
        raise InputError(f"the command is empty: give the {server} command itself")
    _refuse_windows(launch.argv, server)
    found = _descend(Argv(launch), server, starts, images=True) or _renamed(launch)
    if found is None:
        raise InputError(f"no {server} in this command: {_shown(launch)}{_advice(launch, server)}")
    place, located = found
    at = located.at + located.count
    words = place.words[at:]
    _refuse_hidden(words, place, server)
    _refuse_made(launch, place, server)
    env = environment(place.words, located, place.env)
    return Source(launch, place.words[:at], words, env, place, located, server, starts)


def contained(launch: LaunchSpec) -> bool:
    """Whether a container is started, or entered, by the command or by a script in it.

    Raises InputError when that script cannot be read.
    """
    return _holds_container(launch.argv)


def _holds_container(words: Sequence[str]) -> bool:
    found = locate(words, lambda w, at: 1 if base_name(w[at]) in CONTAINERS else 0, images=False)
    if found is None:
        return False
    if found.script is None:
        return not found.shell and container_at(words, found.at) is not None
    return any(_holds_container([w.value for w in c.words]) for c in _commands(words, found.script, {}) if c.live)


def _descend(place: Place, server: str, starts: Starts, images: bool) -> tuple[Place, Located] | None:
    """The command that starts the server, however deep; the last one where there are several in a script."""
    located = locate(place.words, _as_ourselves(starts, isinstance(place, Argv)), images)
    if located is None or not located.shell:
        return None if located is None else (place, located)
    if located.script is None:
        if isinstance(place, Script):
            return None
        raise InputError(
            f"a shell starts the server here, so that its options cannot be read or changed: {_start_of(place.words)}\n"
            f"Give the {server} command itself, with its environment beside it."
        )
    outside = environment(place.words, located, place.env)
    script = place.words[located.script]
    if is_opaque(script):
        raise InputError(
            f"the script of the inner shell is made by the outer one, which cannot be followed: {why_of(script)}\n"
            f"Give the {server} command itself, or set that variable in the launch."
        )
    _refuse_windows([script], server)
    inside = _commands(place.words, located.script, outside)
    places = [Script(place, located, located.script, c, outside) for c in inside if c.live]
    found: list[tuple[Command, tuple[Place, Located]]] = []
    reasons: list[InputError] = []
    for with_images in dict.fromkeys((False, images)):
        for at in places if not found else ():
            try:
                inner = _descend(at, server, starts, with_images)
            except InputError as reason:  # another command's, unless there is none that starts the server
                reasons.append(reason)
            else:
                found += [(at.command, inner)] if inner else []
    if not found and reasons:
        raise reasons[-1]
    return _last(found, inside, server) if found else None


def _as_ourselves(starts: Starts, whole: bool) -> Starts:
    """Refuses a command that starts the server as another user: its processes could not be ended.

    `whole`: the command is the whole launch; of a script, another command than the server's may run as whoever.
    """

    def starting(words: Sequence[str], at: int) -> bool:
        try:
            return base_name(words[at]) in SHELLS | CONTAINERS or starts(words, at) > 0
        except InputError:  # such as `vllm vllm`, where the first is the name of a user
            return True

    def checked(words: Sequence[str], at: int) -> int:
        name = base_name(words[at])
        if name in OTHER_USERS and (whole or any(starting(words, i) for i in range(at + 1, len(words)))):
            raise InputError(
                f"{name} would start the server as another user, whose processes cannot be ended from here: run"
                f" Leadline as the user that runs the server, and give the command without {name}"
            )
        return starts(words, at)

    return checked


def _last(
    found: Sequence[tuple[Command, tuple[Place, Located]]], inside: Sequence[Command], server: str
) -> tuple[Place, Located]:
    """The last command that starts the server, when it is certain that the script comes to it."""
    command, place = found[-1]
    if any(c.at > command.at and c.first.startswith("-") for c in inside):
        raise InputError(
            f"the lines after the first of the {server} command are separate commands as pasted: they begin with an"
            " option, and the line before does not end with a backslash (or a blank or a comment follows it). End every"
            " line but the last with a backslash and nothing behind it, and take comments out of the command"
        )
    if len(found) > 1 and not command.sure:
        raise InputError(
            f"the script starts the {server} in several branches, and which one runs is not known before: give the"
            f" {server} command itself"
        )
    return place


def _commands(words: Sequence[str], script: int, env: Mapping[str, str]) -> tuple[Command, ...]:
    args = [w if not is_opaque(w) else text_of(w) for w in words[script + 1 :]]
    return commands(words[script], args, env)


def _renamed(launch: LaunchSpec) -> tuple[Place, Located] | None:
    """A program that is unknown and no wrapper is taken for the server itself, under another name."""
    argv = launch.argv
    name = base_name(argv[0])
    if name not in WRAPPERS | SHELLS | CONTAINERS | _NO_SERVERS and not is_assignment(argv[0]):
        return Argv(launch), Located(0, 1)
    if name == "env" or is_assignment(argv[0]):
        at = next((i for i, w in enumerate(argv) if i and not w.startswith("-") and "=" not in w), -1)
        if at > 0 and base_name(argv[at]) not in WRAPPERS | SHELLS | CONTAINERS | _NO_SERVERS:
            return Argv(launch), Located(at, 1)
    return None


def _refuse_windows(words: Sequence[str], server: str) -> None:
    if any("\r" in w for w in words):
        raise InputError(
            f"the {server} command has line ends of Windows (CR LF), which a shell takes for parts of its words:"
            " save it with plain line ends (dos2unix, sed 's/\\r$//')"
        )
    if any(w in ("^", "`") or _CARET.search(w) for w in words):
        raise InputError(
            f"the lines of the {server} command are joined by ^ or `, as on Windows, which no shell here reads: join"
            " them by a backslash at the end of each line, or write one line"
        )


def _refuse_hidden(words: Sequence[str], place: Place, server: str) -> None:
    """Words that may hold the very options that we are asked about."""
    variables: Mapping[str, Variable] = place.command.names if isinstance(place, Script) else {}
    for word in words:
        if not is_opaque(word):
            continue
        text = text_of(word)
        hints = {n: v.hint for n in _NAME.findall(text) if (v := variables.get(n)) is not None}
        if _MANY.search(text):
            raise InputError(
                f"options of the {server} come from {text}, which cannot be followed: {why_of(word)}."
                f"{_deciding(hints, variables)}"
            )
        for name, hint in hints.items():
            if _SPECULATIVE.search(hint):
                raise InputError(
                    f"{name} may hold options of the speculation, but {why_of(word)}."
                    f"{_deciding({name: hint}, variables)}"
                )


def _refuse_made(launch: LaunchSpec, place: Place, server: str) -> None:
    """A configuration file that the script makes at each start: what was read of it may be of an earlier one, and a
    changed copy under its name would be written over."""
    paths = {base_name(f.path): f.path for f in launch.files}
    while isinstance(place, Script) and paths:
        for command in _commands(place.outer.words, place.script, place.outside):
            if not command.live or command.at >= place.command.at:
                continue
            words = [w.value for w in command.words]
            given = [] if not words or base_name(words[0]) in _READERS else words[1:]
            for path in (paths[base_name(w)] for w in (*command.writes, *given) if base_name(w) in paths):
                raise InputError(
                    f"the script writes {path} itself before it starts the {server}: what it holds now may be of an"
                    " earlier start, and a changed copy of it would be written over.\nWrite that file once, outside of"
                    " the script, and take the lines that write it out of the script."
                )
        place = place.outer


def _deciding(hints: Mapping[str, str], variables: Mapping[str, Variable]) -> str:
    """What to do by hand: the variables that decide in the end, which the script does not set itself."""
    found: set[str] = set()
    texts = list(hints.values())
    while texts:
        new = set(re.findall(r"\$\{?([A-Za-z_]\w*)", texts.pop())) - found
        found |= new
        texts += [variables[n].hint for n in new if n in variables]
    names = sorted(found - set(variables))
    if names:
        return f"\nSet in the launch what it depends on, {', '.join(names)}, or write the options into the command."
    return "\nWrite the options themselves into the command."


def _advice(launch: LaunchSpec, server: str) -> str:
    if base_name(launch.argv[0]) in _NO_SERVERS:
        return f"\n{base_name(launch.argv[0])} starts no server: give the command that does"
    sourced = [m[1] for w in launch.argv if (m := _SOURCED.search(w))]
    where = f" (it may be in {sourced[0]})" if sourced else ""
    return f"\nGive the {server} command itself{where}, with its environment beside it."


def _shown(launch: LaunchSpec) -> str:
    """Without a script, which may hold secrets that no rule finds."""
    return _start_of(launch.argv) if any("\n" in w or " " in w for w in launch.argv) else str(launch)


def _start_of(words: Sequence[str]) -> str:
    return f"{shlex.join(w for w in words[:2] if not is_opaque(w))} ..."
