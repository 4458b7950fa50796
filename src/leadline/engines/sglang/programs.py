"""The commands that start SGLang, and the quick one that asks it for its version.

`python -m sglang.launch_server`, its file, or `sglang serve` (`sglang/cli/main.py`); `sglang` and `killall_sglang` are
the package's only programs.
"""

from __future__ import annotations

from collections.abc import Sequence

from leadline.dialect.question import ask_package, is_python
from leadline.dialect.source import Source, base_name
from leadline.errors import InputError
from leadline.launch import LaunchSpec

SERVER = "SGLang"
PROGRAMS: tuple[str, ...] = ("sglang.launch_server", "sglang/launch_server.py", "sglang\nserve")
"""As they stand in an argv with one word a line: the name alone may also be a folder of models."""

MODULE = "sglang.launch_server"

_SCRIPT = "sglang/launch_server.py"
_WITH_VALUE = ("-X", "-W", "--check-hash-based-pycs")


def starts(argv: Sequence[str], at: int) -> int:
    """How many words from there on start SGLang; 0 = they do not. Raises InputError for another Python module."""
    name = base_name(argv[at])
    if name == "sglang":
        return 2 if tuple(argv[at + 1 : at + 2]) == ("serve",) else 0
    if not is_python(name):
        return 0
    i = at + 1
    while i < len(argv) and argv[i].startswith("-"):
        if argv[i] == "-m":
            if tuple(argv[i + 1 : i + 2]) == (MODULE,):
                return i + 2 - at
            raise InputError(f"python does not start SGLang here, but the module {' '.join(argv[i + 1 : i + 2])}")
        if argv[i] == f"-m{MODULE}":
            return i + 1 - at
        i += 2 if argv[i] in _WITH_VALUE else 1
    if i < len(argv) and argv[i].replace("\\", "/").endswith(_SCRIPT):
        return i + 1 - at
    if i + 1 < len(argv) and base_name(argv[i]) == "sglang" and argv[i + 1] == "serve":
        return i + 2 - at
    return 0


def serves(source: Source) -> bool:
    """Whether it is `sglang serve`, which takes the model as its first word too."""
    return source.head[-1:] == ("serve",) and len(source.head) > 1 and base_name(source.head[-2]) == "sglang"


def version_argv(launch: LaunchSpec) -> tuple[str, ...] | None:
    """Asks the package's metadata; else `sglang version`, which imports all of SGLang and so takes its time."""
    return ask_package(launch, SERVER, starts, "sglang", programs=("sglang",), otherwise=("", "version"))
