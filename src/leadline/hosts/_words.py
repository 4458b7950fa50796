"""Commands for the far side of something that is not under our control: a login shell, sudo, `kubectl exec`.

Far away there must be a POSIX shell and coreutils, nothing else.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import msgspec

from leadline.errors import HostError
from leadline.hosts._child import shown
from leadline.ports import Completed

SUDO = ("sudo", "-n")
_SAFE = frozenset(range(0x20, 0x7F)) - frozenset(b"'\\!")

_DECODE = (
    'for w do case $w in e*) w=$(printf "%b." "${w#?}"); w=${w%.};; *) w=${w#?};; esac; '
    'shift; set -- "$@" "$w"; done; exec "$@"'
)
"""For `sh -c` as the login shell gets it: no character in it that any shell treats in its own way between quotes."""

_KNOWN = 'command -v "$1" >/dev/null 2>&1 || { echo "leadline-missing=$1" >&2; exit 127; }; '
_WATCH = (
    f"limit=$1; shift; {_KNOWN}"
    'exec 3>&2 2>/dev/null; ( exec timeout -s KILL "$limit" "$@" 2>&3 3>&- ); status=$?; '
    'echo "leadline-status=$status" >&3; exit "$status"'
)
"""The shell's own words on how its child ended go nowhere."""
_STATUS = re.compile(rb"leadline-status=(\d+)\n")
_MISSING = re.compile(rb"leadline-missing=(.*)\n\Z", re.S)

_NO_SUDO = re.compile(
    r"sudo: .*(?:password is required|terminal is required|no tty present|authentication is required|not allowed)"
    r"|not in the sudoers file|is not allowed to (?:execute|run)"
)


def line(argv: Sequence[str]) -> str:
    """One line that any login shell (sh, bash, zsh, fish, csh) executes as exactly these words.

    Raises HostError for a word that no command can get.
    """
    if any("\0" in word for word in argv):
        raise HostError(f"cannot run {shown(argv)}: a word of a command cannot hold a NUL character")
    return " ".join([f"exec sh -c '{_DECODE}' sh", *(f"'{_coded(w)}'" for w in argv)])


def _coded(word: str) -> str:
    """Plain words as `pWORD`, all others as `e` and what `printf %b` makes the word from."""
    data = word.encode(errors="surrogateescape")
    if _SAFE.issuperset(data):
        return "p" + word
    return "e" + "".join(chr(b) if b in _SAFE else f"\\0{b:03o}" for b in data)


def watched(argv: Sequence[str], timeout_s: float) -> tuple[str, ...]:
    """The command under a shell that says how it ended, and kills it when we no longer wait for it."""
    return ("sh", "-c", _WATCH, "sh", str(math.ceil(timeout_s) + 1), *argv)


def known(argv: Sequence[str]) -> tuple[str, ...]:
    """The command under a shell that says when there is no such program, and becomes it otherwise."""
    return ("sh", "-c", f'{_KNOWN}exec "$@"', "sh", *argv)


def answer(argv: Sequence[str], done: Completed, name: str) -> Completed | None:
    """What a watched command said; None when whatever led to it broke first. Raises HostError when there is no such
    program, or sudo does not let us."""
    refuse_missing(argv, done, name)
    told = list(_STATUS.finditer(done.stderr))
    if not told:
        return None
    last = told[-1]
    stderr = done.stderr[: last.start()] + done.stderr[last.end() :]
    found = msgspec.structs.replace(done, argv=tuple(argv), code=int(last[1]), stderr=stderr)
    refuse_sudo(found, name)
    return found


def refuse_missing(argv: Sequence[str], done: Completed, name: str) -> None:
    missing = _MISSING.search(done.stderr)
    if missing and done.code == 127:
        program = missing[1].decode(errors="replace")
        raise HostError(f"cannot run {shown(argv)}: there is no program {program} on {name}")


def refuse_sudo(done: Completed, name: str) -> None:
    """Raises HostError when sudo wanted a password or has no rule for the command."""
    if done.code == 0 or tuple(done.argv[:2]) != SUDO:
        return
    said = next((s for s in done.stderr.decode(errors="replace").splitlines() if _NO_SUDO.search(s)), None)
    if said is not None:
        raise HostError(
            f"{shown(done.argv)} on {name} is not allowed without a password ({said.strip()}). Leadline never asks for "
            f"one: `leadline doctor --sudoers` prints the rules that it needs."
        )


def last_line(text: bytes) -> str:
    """The last line that says something."""
    lines = [s.strip() for s in text.decode(errors="replace").splitlines() if s.strip()]
    return lines[-1] if lines else "no message"
