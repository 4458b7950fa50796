"""The sudo rules that a service's target needs for a user who is not root, made from the very Steps that it makes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import msgspec

from leadline.errors import InputError, RefusedError
from leadline.launch import LaunchFile, LaunchSpec, Step
from leadline.ports import Observed, Target, Terms

Argv = tuple[str, ...]
ABSENT = "absent"
LOOK = "look; changes nothing"
TRIAL = "try a setting, and give the service back"
FILES = "try a setting that brings files of its own"
KEEP = "make a setting the permanent one, and take it back"
SHELLS = frozenset({"sh", "bash", "dash", "ash", "ksh", "zsh"})
MOST_FILES = 5
SOMEBODY = "leadline"
"""Stands for the user in rules that root asks for."""

_BREAKS = "/ "
"""What two words have in common is kept up to the last of these."""
_NO_WORDS = '""'
"""Nothing at all would mean any words."""
_CONTROL = r"[[\:cntrl\:]]"
_SPECIAL = {**dict.fromkeys("\n\t\r\f\v", _CONTROL), "\\": r"\\\\", **{c: f"\\{c}" for c in "*?[]!:,=#"}}
"""sudoers itself takes one backslash away, then the words are matched as a glob."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """What one campaign may choose, to see what varies: its terms, a word, digests of files."""

    terms: Terms
    word: str
    written: str
    kept: str


def samples() -> tuple[Sample, Sample]:
    """Two that share nothing, not even a length."""
    one = Terms(
        owner="anna@desk",
        reason="campaign one",
        campaign="desk:/home/anna/one",
        grace_s=120,
        lease_s=600,
        end_s=5400,
        port=8000,
    )
    other = Terms(
        owner="Bob@x",
        reason="other",
        campaign="x:/y",
        grace_s=7,
        lease_s=31,
        end_s=266523,
        start=("Drain", "it"),
        end=("Undrain", "it"),
        port=30000,
    )
    return (
        Sample(terms=one, word="1", written="1" * 64, kept="2" * 64),
        Sample(terms=other, word="another-word", written="e" * 64, kept="f" * 64),
    )


class Word(msgspec.Struct, frozen=True):
    """A word of a command; `open` = anything may follow its text."""

    text: str
    open: bool = False


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One command that sudo shall let through, and what for."""

    purpose: str
    words: tuple[Word, ...]

    @property
    def program(self) -> str:
        return self.words[0].text

    @property
    def any_script(self) -> bool:
        """Whether it is a shell that reads what to do from us, so that the words bind nobody."""
        return self.program.rpartition("/")[2] in SHELLS and Word("-s") in self.words

    @property
    def note(self) -> str:
        """What the rule lets through beside what is meant; "" = nothing."""
        if self.any_script:
            return "any script, so root"
        return "more than is meant: * stands for blanks and slashes too" if self.wide else ""

    @property
    def wide(self) -> bool:
        """Whether something varies in a path, or before the last word: sudo's `*` stands for blanks and slashes too."""
        return any(w.open and (w.text or w is not self.words[-1]) for w in self.words)

    def command(self, path: str) -> str:
        """As sudoers wants it; `path` = the program's own on the host."""
        text, *more = _texts(self.words[1:])
        out = escaped(text, first=True, last=not more)
        for number, text in enumerate(more, 1):
            out += "*" + escaped(text, first=False, last=number == len(more))
        return f"{escaped(path)} {out or _NO_WORDS}"


def _texts(words: Sequence[Word]) -> list[str]:
    """What is literal before, between and after what varies."""
    texts = [""]
    for i, word in enumerate(words):
        texts[-1] += (" " if i else "") + word.text
        if word.open:
            texts.append("")
    return texts


def escaped(text: str, *, first: bool = True, last: bool = True) -> str:
    """Literal text of a command, as sudoers wants it: blanks at its ends and after another would be lost."""
    ends = [r"(?<= ) ", *([r"\A "] if first else []), *([r" \Z"] if last else [])]
    marked = re.sub("|".join(ends), "\0", text)
    out = "".join("\\ " if c == "\0" else _SPECIAL.get(c, c) for c in marked)
    return f"\\{out}" if first and out.startswith("^") else out  # else it would begin a regular expression


def merged(commands: Sequence[Argv]) -> tuple[Word, ...]:
    """The pattern of commands that are the same Step of different campaigns."""
    width = min(map(len, commands))
    words = [_common([argv[i] for argv in commands]) for i in range(width)]
    if any(len(argv) > width for argv in commands):
        words.append(Word("", True))
    return tuple(words)


def _common(words: Sequence[str]) -> Word:
    if len(set(words)) == 1:
        return Word(words[0])
    prefix = 0
    while len({w[: prefix + 1] for w in words}) == 1:
        prefix += 1
    kept = max((words[0].rfind(c, 0, prefix) for c in _BREAKS), default=-1)
    return Word(words[0][: kept + 1], True)


def steps(target: Target, observed: Observed | None, sample: Sample) -> Iterator[tuple[str, Step]]:
    """All that the target may ask of the host for such a campaign, each with its purpose; of a service that could not
    be observed, what is asked of any.

    Raises InputError when it can try nothing on this service.
    """
    service = target.service
    if service is None:
        raise InputError(f"target {target.name} needs no sudo rules: it starts a server of its own, as its user")
    who, *unlock = service.unlock()
    yield from ((LOOK, step) for step in (*target.observe(), service.look(), service.log(""), who))
    guard = service.guard(sample.terms)
    if guard is not None:
        kept = (*guard.arm, guard.hold, guard.renew, guard.back, guard.hook, *guard.disarm)
        yield from ((TRIAL, step) for step in kept)
    yield from ((TRIAL, step) for step in unlock)
    if observed is None:
        return
    launch, filed = _launches(observed, sample)
    yield from ((TRIAL, s) for s in (*target.plan(launch, observed, ""), *target.restore(observed)))
    yield from ((FILES, step) for step in target.plan(filed, observed, ""))
    yield from ((KEEP, step) for step in _rollouts(target, observed, sample))


def _launches(observed: Observed, sample: Sample) -> tuple[LaunchSpec, LaunchSpec]:
    """One of another length, and the same with a file of ours."""
    base = observed.launch
    launch = msgspec.structs.replace(base, argv=(*base.argv, sample.word))
    files = (*base.files, LaunchFile(f"{base.scratch}/{sample.word}", sample.word)) if base.scratch else base.files
    return launch, msgspec.structs.replace(launch, files=files)


def _rollouts(target: Target, observed: Observed, sample: Sample) -> Iterator[Step]:
    """From whatever may be there, and back from wherever a rollout or an undo may have stopped."""
    launch, _ = _launches(observed, sample)
    path = target.rollout_path()
    ours = [path, *(p for p in observed.files if p not in observed.texts and p != path)][:MOST_FILES]
    for previous in (ABSENT, sample.kept):
        now = _with(observed, {path: previous})
        yield from _unless_refused(partial(target.rollout, launch, now, previous, sample.word))
        for digests in itertools.product((ABSENT, sample.written, sample.kept), repeat=len(ours)):
            now = _with(observed, dict(zip(ours, digests, strict=True)))
            yield from _unless_refused(partial(target.undo, now, sample.written, previous))


def _with(observed: Observed, files: Mapping[str, str]) -> Observed:
    return msgspec.structs.replace(observed, held=False, files={**observed.files, **files})


def _unless_refused(make: Callable[[], Sequence[Step]]) -> Sequence[Step]:
    try:
        return make()
    except RefusedError:
        return ()


def rules(phases: Sequence[Sequence[tuple[str, Step]]], commands: Callable[[Step], Sequence[Argv]]) -> list[Rule]:
    """The same Steps for each sample, to rules without repetition. `commands` = what a Step executes as root."""
    found: dict[tuple[Word, ...], Rule] = {}
    for same in zip(*phases, strict=True):
        for argvs in zip(*(commands(step) for _, step in same), strict=True):
            words = merged(argvs)
            found.setdefault(words, Rule(purpose=same[0][0], words=words))
    return list(found.values())


HEADER = """\
# sudo rules for {user} to let Leadline work on {what} of {where}.
# Check:    visudo -c -f FILE
# Install:  install -m 0440 -o root -g root FILE /etc/sudoers.d/leadline
"""
ROOT = """\
#
# THESE RULES AMOUNT TO ROOT. {count} of {all} make a shell that reads its script from {user}: sudo sees the words after
# `--`, not what the script does. Whoever can log in as {user} can do anything on this host. Give them only to somebody
# who may be root there; they keep mistakes away, not malice.
"""
SERVICE = """\
#
# WHO MAY CHANGE A SERVICE'S COMMAND LINE CAN DO WHAT THE SERVICE'S USER CAN, AND AS ROOT WHEN THAT IS ROOT.
"""
NOBODY = """\
#
# You are root there and need no rules: put the name of the user who does in place of `leadline`.
"""
WIDE = """\
#
# `*` stands for what varies, and in sudo for blanks and slashes too. In a path or before the last word it lets more
# through than is meant: {count} rules.
"""


def document(found: Sequence[Rule], programs: Mapping[str, str], *, user: str, what: str, where: str) -> str:
    """A file for sudoers.d. `programs` = absolute paths on the host. Raises InputError for one that is not there, and
    when there is no rule."""
    if not found:
        raise InputError(f"nothing that is asked of {where} goes through sudo, so {what} needs no rules")
    missing = sorted({r.program for r in found if r.program not in programs})
    if missing:
        raise InputError(f"{where} has no {', '.join(missing)}, so no rule for it can be written: install it there")
    open_shells, wide = sum(r.any_script for r in found), sum(r.wide and not r.any_script for r in found)
    text = HEADER.format(user=user, what=what, where=where)
    text += ROOT.format(count=open_shells, all=len(found), user=user) if open_shells else SERVICE
    text += NOBODY if user == SOMEBODY else ""
    text += WIDE.format(count=wide) if wide else ""
    for purpose, group in itertools.groupby(sorted(found, key=_order), key=lambda rule: rule.purpose):
        text += f"\n# {purpose}\n"
        text += "".join(f"{_user(user)} ALL=(root) NOPASSWD: {r.command(programs[r.program])}\n" for r in group)
    return text


def _order(rule: Rule) -> int:
    return (LOOK, TRIAL, FILES, KEEP).index(rule.purpose)


def _user(name: str) -> str:
    return name if re.fullmatch(r"[a-zA-Z_][\w.-]*", name, re.ASCII) else '"' + name.replace('"', '\\"') + '"'
