"""What a unit starts, read as systemd reads it; and the ExecStart= of a drop-in that starts another launch."""

from __future__ import annotations

import msgspec

from leadline.dialect.wrappers import CONTAINERS, base_name
from leadline.dialect.wrappers import container as container_at
from leadline.errors import RefusedError
from leadline.launch import LaunchSpec, masked
from leadline.targets.systemd.aligned import Part, parts
from leadline.targets.systemd.edits import Reading, apply, edited, refuse_secrets
from leadline.targets.systemd.environment import BY_SYSTEMD, assignment, names, secret
from leadline.targets.systemd.unitexec import Command, Expanded, UnitExec, Word
from leadline.targets.systemd.unitexec import read as read
from leadline.targets.systemd.words import cut, quoted, tame, text_of

__all__ = ["Command", "Expanded", "UnitExec", "Word", "environment_lines", "launch", "read", "rendered"]

_COMPOSERS = frozenset({"docker-compose", "podman-compose"})
_AWAY = {
    "oneshot": "its command is meant to end, so it is no server that stays",
    "forking": "its command leaves the server in the background and ends",
}


def launch(unit: UnitExec) -> LaunchSpec:
    """The words and the environment of the process that systemd starts: secrets are in it in clear. Raises RefusedError
    for what cannot be tried, with the reason."""
    if unit.fatal:
        raise RefusedError(f"systemd does not start this unit: {unit.fatal}")
    if unit.type in _AWAY:
        raise RefusedError(f"this unit has Type={unit.type}: {_AWAY[unit.type]}")
    command = sole(unit)
    if unit.unknown:
        raise RefusedError(f"this unit depends on what cannot be known from here: {'; '.join(unit.unknown)}")
    values = dict(unit.environment)
    if command.expands:
        for name in (n for word in command.words for n in names(word.text)):
            if name not in values and (BY_SYSTEMD.fullmatch(name) or name in unit.passed):
                raise RefusedError(
                    f"ExecStart= takes {name} from what systemd itself gives the service, which is known only once it "
                    "runs: write the value itself there, or set it by Environment="
                )
    argv = tuple(e.text for e in unit.expanded(command))
    if not argv:
        raise RefusedError("the command of ExecStart= comes to no words at all")
    _refuse_elsewhere(argv)
    return LaunchSpec(argv=argv, env=unit.environment, cwd=unit.working_directory)


def sole(unit: UnitExec) -> Command:
    if not unit.commands:
        raise RefusedError("this unit has no ExecStart=, so there is no command to change")
    if len(unit.commands) > 1:
        raise RefusedError(
            f"this unit has {len(unit.commands)} commands in ExecStart=, which systemd allows for Type=oneshot alone"
        )
    return unit.commands[0]


def _refuse_elsewhere(argv: tuple[str, ...]) -> None:
    """A container whose words do not stand in this command, or that outlives it."""
    name, verbs = base_name(argv[0]), [w for w in argv[1:] if not w.startswith("-")]
    if name in _COMPOSERS or (name in CONTAINERS and verbs[:1] == ["compose"]):
        raise RefusedError(
            "this unit runs compose, which has the server's words in its own files: use the target compose"
        )
    if name not in CONTAINERS:
        return
    box = container_at(argv, 0)
    if box is None:
        raise RefusedError(
            f"the server's words do not stand in this unit: its container was made elsewhere, and `{name} "
            f"{' '.join(verbs[:1])}` only uses it. Let the unit create it by `{name} run`"
        )
    options = argv[box.verb + 1 : box.image]
    if any(
        w == "--detach" or (w[:1] == "-" and w[1:2] != "-" and w.startswith(("-d", "-itd", "-td", "-id")))
        for w in options
    ):
        raise RefusedError(
            f"this unit starts a container in the background ({name} run -d), which systemd then does not see: take "
            "the -d out of it"
        )


def rendered(unit: UnitExec, launch: LaunchSpec) -> str:
    """What stands after `ExecStart=` in a drop-in for the launch, together with its `environment_lines`.

    A word that does not change keeps its raw form, so that variables and specifiers stay what they are; a new one means
    itself. Raises RefusedError where a secret would have to be written, or a word cannot be.
    """
    command = sole(unit)
    reading = reading_of(unit, launch)
    text = " ".join(_raw(part, command, reading, unit) for part in parts(unit, command, launch.argv, reading.moved))
    lines = "".join(f"{line}\n" for line in environment_lines(unit, launch))
    drop_in = f"[Service]\n{lines}ExecStart=\nExecStart={text}\n"
    again = read({**unit.texts, "drop-in": drop_in}, unit.specifiers, unit.environment_files)
    found = tuple(e.text for c in again.commands for e in again.expanded(c))
    if again.fatal or len(again.commands) != 1 or found != launch.argv:
        shown = masked(msgspec.structs.replace(launch, env=()))
        raise RefusedError(f"these words cannot be written into a unit so that systemd reads the same: {shown}")
    return text


def environment_lines(unit: UnitExec, launch: LaunchSpec) -> tuple[str, ...]:
    """The lines that a drop-in needs beside its ExecStart=, for variables with another value than in the unit."""
    now, new = dict(unit.environment), dict(launch.env)
    in_files = {a.name: a for a in unit.assigned if a.file}
    lines: list[str] = []
    for name, value in new.items():
        if now.get(name) == value:
            continue
        if name in in_files:
            raise RefusedError(
                f"{name} is set in {in_files[name]}, an environment file, which wins over every line of a unit: change "
                "it there, or take it out of that file"
            )
        if name in unit.unset:
            raise RefusedError(f"{name} is taken away by UnsetEnvironment= of this unit, which wins over Environment=")
        if secret(name, value):
            raise RefusedError(f"{name} is a secret, and a setting is written down: set it in the unit yourself")
        lines.append(f"Environment={assignment(name, value)}")
    return (*lines, *(f"UnsetEnvironment={name}" for name in now if name not in new))


def reading_of(unit: UnitExec, launch: LaunchSpec) -> Reading:
    now, new = dict(unit.environment), dict(launch.env)
    moved = frozenset(name for name in {*now, *new} if now.get(name) != new.get(name))
    return Reading(unit.specifiers, now, sole(unit).expands, moved)


def _raw(part: Part, command: Command, reading: Reading, unit: UnitExec) -> str:
    if part.source is None:
        refuse_in_clear(part.text, unit)
        return part.lead + quoted(part.text, dollars=reading.dollars)
    word = command.words[part.source]
    raw = tame(word.raw) if word.raw != "\\;" else word.raw
    if part.kept:
        return raw
    if word.lead:
        refuse_secrets(names(word.text), reading)
        return part.lead + quoted(part.text, dollars=reading.dollars)
    return part.lead + checked(apply(raw, edited(raw, part.text, reading)), word, unit)


def checked(raw: str, word: Word, unit: UnitExec) -> str:
    """The new raw form of a word. Raises RefusedError when it has a secret in clear that the word had not."""
    new = cut(raw, 0)
    refuse_in_clear(text_of(new.pieces) if new else "", unit, word.text)
    return raw


def refuse_in_clear(text: str, unit: UnitExec, before: str = "") -> None:
    """A word that holds in clear what only a variable held."""
    for name, value in unit.environment:
        if len(value) >= 4 and value in text and value not in before and secret(name, value):
            raise RefusedError(
                f"the change would write the value of the variable {name} in clear, and it is a secret: leave the word "
                "that takes it as it is"
            )
