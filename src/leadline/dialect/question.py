"""The quick command that asks a server's own program for its version, and what a version says.

The question must run nothing else of the operator's: not a start script, not a wrapper that writes, downloads or starts
services. Of wrappers, those stay that may choose the program, or are harmless; some that decide nothing are left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from leadline.dialect.source import base_name, find
from leadline.dialect.wrappers import Starts
from leadline.errors import InputError
from leadline.launch import LaunchSpec

_DECIDING = re.compile(r"PATH|LD_LIBRARY_PATH|VIRTUAL_ENV|PYTHON\w+|CONDA_\w+|HOME")
"""Variables that decide which program and which package is found."""

_PYTHON = re.compile(r"(?:python|pypy)(?:\d+(?:\.\d+)*)?t?(?:\.exe)?")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_BESIDE = 'd=$(command -v "$1") || exit 127; shift; "${d%/*}/python3" -c "$0" 2>/dev/null || exec "$@"'
"""The interpreter in the program's folder; else the words after the program."""

_NUMBERS = re.compile(r"(?<![\w.+])v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?(?!\d)(\.?dev)?")
"""Not what stands behind a +, the label of a local build."""


@dataclass(frozen=True, slots=True)
class _Wrapper:
    """`valued` = options with a value, `flags` = without, `more` = words before the command. All others: unknown."""

    valued: frozenset[str] = frozenset()
    flags: frozenset[str] = frozenset()
    more: int = 0
    kept: bool = True


def _wrapper(valued: str = "", flags: str = "", more: int = 0, *, kept: bool = True) -> _Wrapper:
    return _Wrapper(frozenset(valued.split()), frozenset((*flags.split(), "--")), more, kept)


_CONDA = _wrapper("-n --name -p --prefix --cwd", "--no-capture-output --live-stream")
_WRAPPERS = {
    "env": _wrapper("-u --unset -C --chdir", "- -i --ignore-environment"),
    "nice": _wrapper("-n --adjustment"),
    "ionice": _wrapper("-c --class -n --classdata", "-t --ignore"),
    "taskset": _wrapper("", "-a --all-tasks -c --cpu-list", 1),
    "numactl": _wrapper(
        "-i --interleave -m --membind -N --cpunodebind -C --physcpubind -p --preferred -P --preferred-many"
        " -w --weighted-interleave",
        "-l --localalloc -a --all -b --balancing",
    ),
    "chrt": _wrapper("", "-b --batch -f --fifo -i --idle -o --other -r --rr -R --reset-on-fork", 1),
    "stdbuf": _wrapper("-i --input -o --output -e --error"),
    "conda": _CONDA,
    "mamba": _CONDA,
    "micromamba": _CONDA,
    "setsid": _wrapper("", "-c --ctty -f --fork -w --wait", kept=False),  # it may come back before its command does
    "nohup": _wrapper(kept=False),
    "time": _wrapper("-o --output -f --format", "-a --append -p --portability -v --verbose -q --quiet", kept=False),
    "timeout": _wrapper("-k --kill-after -s --signal", "--foreground --preserve-status -v --verbose", 1, kept=False),
}
"""coreutils and util-linux manual pages, numactl(8), `conda run --help`. `conda run` installs nothing, while `uv run`,
`poetry run` and `pixi run` may."""


def ask_package(
    launch: LaunchSpec, server: str, starts: Starts, package: str, *, programs: Sequence[str], otherwise: Sequence[str]
) -> tuple[str, ...] | None:
    """Asks the metadata of the package that the launch's own interpreter would import; nothing of it is imported.

    `programs` = names of the server's program. It is asked of the interpreter beside it or, where there is none, by
    running `otherwise`, in which "" stands for that program. None when this cannot be asked without running more.
    """
    ask = f"from importlib.metadata import version; print(version('{package}'))"
    asked = _asked(launch, server, starts)
    if asked is None:
        return None
    prefix, words = asked
    for word in words:
        if is_python(word):
            return (*prefix, word, "-c", ask)
        if base_name(word) in programs:
            return (*prefix, "sh", "-c", _BESIDE, ask, word, *(text or word for text in otherwise))
    return None


def ask_program(
    launch: LaunchSpec, server: str, starts: Starts, *options: str, sure: Callable[[str], bool]
) -> tuple[str, ...] | None:
    """Asks the program itself, with these options alone. `sure` of its word: whether that is no script around it."""
    asked = _asked(launch, server, starts)
    if asked is None or not sure(asked[1][0]):
        return None
    return (*asked[0], asked[1][0], *options)


def is_python(word: str) -> bool:
    """Whether a word of a command is a Python interpreter, by its name."""
    return _PYTHON.fullmatch(base_name(word)) is not None


def numbers(text: str | None) -> tuple[int, int, int] | None:
    """The first version in a text: `v0.5.16.post1` and `0.5.16+cu128` are (0, 5, 16), `0.6` is (0, 6, 0).

    None where no version can be seen, and for what a build from a source without its tags calls itself, `0.0.0.dev1`
    or `0.1.dev1+gabc` (setuptools-scm: "default versioning scheme"): it says nothing.
    """
    found = _NUMBERS.search(text or "")
    if found is None:
        return None
    number = int(found[1]), int(found[2]), int(found[3] or 0)
    untagged = number[:2] == (0, 0) or (number[:2] == (0, 1) and found[3] is None and found[4] is not None)
    return None if untagged else number


def _asked(launch: LaunchSpec, server: str, starts: Starts) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """What must stand before the question, and the words that start the server; None when it is not to be asked.

    The launch's folder and the variables that decide what is found go with it.
    """
    try:
        source = find(launch, server, starts)
        at = source.located.at
        if source.contained or source.scripted or not starts(source.head, at):
            return None
    except InputError:
        return None
    kept = _kept(source.head[:at])
    if kept is None:
        return None
    around = (
        *(("-C", launch.cwd) if launch.cwd else ()),
        *(f"{n}={v}" for n, v in launch.env if _DECIDING.fullmatch(n)),
    )
    return (*(("env", *around) if around else ()), *kept), source.head[at:]


def _kept(words: Sequence[str]) -> tuple[str, ...] | None:
    """The wrappers that stay; None when one of them is unknown, or has an option that is."""
    out: list[str] = []
    at = 0
    if words and _ASSIGNMENT.fullmatch(words[0]):  # as a shell would read it
        at = _after_assignments(words, 0)
        out += ["env", *words[:at]]
    while at < len(words):
        wrapper = _WRAPPERS.get(base_name(words[at]))
        end = None if wrapper is None else _end(words, at, wrapper)
        if wrapper is None or end is None:
            return None
        out += words[at:end] if wrapper.kept else ()
        at = end
    return tuple(out)


def _end(words: Sequence[str], at: int, wrapper: _Wrapper) -> int | None:
    """Where the command of the wrapper begins; None when that is not sure."""
    name = base_name(words[at])
    i = at + 1
    if wrapper is _CONDA:
        if tuple(words[i : i + 1]) != ("run",):
            return None
        i += 1
    while i < len(words) and words[i].startswith("-"):
        option = words[i].partition("=")[0] if words[i].startswith("--") else words[i]
        if words[i] in wrapper.valued:
            i += 1
        elif not (
            option in wrapper.valued | wrapper.flags
            or (option[:2] in wrapper.valued and not option.startswith("--"))
            or (name == "nice" and re.fullmatch(r"-\d+", option))
        ):
            return None
        i += 1
    i = _after_assignments(words, i) if name == "env" else i + wrapper.more
    return i if i <= len(words) else None


def _after_assignments(words: Sequence[str], at: int) -> int:
    return next((i for i in range(at, len(words)) if not _ASSIGNMENT.fullmatch(words[i])), len(words))
