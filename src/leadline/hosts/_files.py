"""Files through commands of a shell and coreutils: for other machines, and for what only root may do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from leadline.errors import HostError
from leadline.hosts._words import SUDO, last_line
from leadline.ports import Completed

LIMIT_S = 60.0
_ABSENT = (b"No such file or directory", b"Not a directory")

_READ = """
LC_ALL=C; export LC_ALL
exec cat -- "$1"
"""
_WRITE = """
LC_ALL=C; export LC_ALL
set -eu
trap '' PIPE
umask 077
path=$1 mode=$2 size=$3
if [ -d "$path" ] && [ ! -L "$path" ]; then echo "it is a folder" >&2; exit 1; fi
folder=${path%/*}
case $path in */*) folder=${folder:-/} ;; *) folder=. ;; esac
draft=$(mktemp "$folder/.leadline-XXXXXXXX")
trap 'rm -f "$draft"' EXIT
trap 'exit 1' HUP INT TERM
cat > "$draft"
found=$(wc -c < "$draft")
if [ "$found" -ne "$size" ]; then echo "$found of $size bytes arrived" >&2; exit 1; fi
chmod "$mode" "$draft"
sync "$draft"
mv -fT -- "$draft" "$path"
sync "$folder"
"""
_REMOVE = """
LC_ALL=C; export LC_ALL
set -eu
path=$1
folder=${path%/*}
case $path in */*) folder=${folder:-/} ;; *) folder=. ;; esac
rm -f -- "$path"
[ ! -d "$folder" ] || sync "$folder"
"""


class Runner(Protocol):
    """Host.run."""

    def __call__(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0) -> Completed: ...


def read(run: Runner, path: str, *, sudo: bool, name: str) -> bytes | None:
    done = _sh(run, _READ, (path,), sudo=sudo)
    if done.code == 0:
        return done.stdout
    if done.code == 1 and any(word in done.stderr for word in _ABSENT):
        return None
    raise HostError(f"cannot read {path} on {name}: {_why(done)}")


def write(run: Runner, path: str, content: bytes, mode: int, *, sudo: bool, name: str) -> None:
    """A draft in the same folder, complete and on the disk before it takes the file's name. The owner becomes whoever
    the commands run as."""
    done = _sh(run, _WRITE, (path, f"{mode:04o}", str(len(content))), stdin=content, sudo=sudo)
    if done.code:
        raise HostError(f"cannot write {path} on {name}: {_why(done)}. What was there is still there.")


def remove(run: Runner, path: str, *, sudo: bool, name: str) -> None:
    done = _sh(run, _REMOVE, (path,), sudo=sudo)
    if done.code:
        raise HostError(f"cannot remove {path} on {name}: {_why(done)}")


def _sh(run: Runner, script: str, words: Sequence[str], *, stdin: bytes = b"", sudo: bool) -> Completed:
    return run((*(SUDO if sudo else ()), "sh", "-c", script, "sh", *words), stdin=stdin, timeout_s=LIMIT_S)


def _why(done: Completed) -> str:
    return last_line(done.stderr).removeprefix("sh: ")
