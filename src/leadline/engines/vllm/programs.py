"""The commands that start vLLM, and the quick one that asks it for its version.

`vllm serve`, `python -m vllm.entrypoints.openai.api_server` (deprecated, and still there in 0.33), and the script
behind `vllm` as a module. A container's image starts one of them by itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from leadline.dialect.question import ask_package, is_python
from leadline.dialect.source import Source, base_name, find
from leadline.errors import InputError
from leadline.launch import LaunchSpec

SERVER = "vLLM"
API_SERVER, MAIN = "vllm.entrypoints.openai.api_server", "vllm.entrypoints.cli.main"
_PROGRAM = re.compile(r"vllm(?:\.exe)?")
_SCRIPT = "vllm/entrypoints/openai/api_server.py"
_WITH_VALUE = ("-X", "-W", "--check-hash-based-pycs")


def starts(words: Sequence[str], at: int) -> int:
    """How many words from there on start vLLM; 0 = they do not. Raises InputError for another of its commands."""
    name = base_name(words[at])
    if _PROGRAM.fullmatch(name):
        return _program(words, at)
    if not is_python(name):
        return 0
    i = at + 1
    while i < len(words) and words[i].startswith("-"):
        if words[i] == "-m":
            return _module(words, at, i + 1)
        i += 2 if words[i] in _WITH_VALUE else 1
    if i < len(words) and words[i].endswith(_SCRIPT):
        return i + 1 - at
    if i < len(words) and _PROGRAM.fullmatch(base_name(words[i])):
        return i - at + _program(words, i)
    return 0


def located(launch: LaunchSpec) -> Source:
    """Raises InputError when vLLM is not in the command, or its words cannot be seen."""
    source = find(launch, SERVER, starts)
    if is_python(source.head[-1]):
        raise InputError(f"python does not start vLLM here: {launch}\nGive the `vllm serve` command.")
    return source


def serves(head: Sequence[str]) -> bool:
    """Whether it is `vllm serve`, for which the model's place is the first word."""
    return tuple(head[-1:]) == ("serve",)


def version_argv(launch: LaunchSpec) -> tuple[str, ...] | None:
    """Asks the package's metadata; else `vllm --version`, which imports all of vLLM and so takes its time."""
    names = ("vllm", "vllm.exe")
    return ask_package(launch, SERVER, starts, "vllm", programs=names, otherwise=("", "--version"))


def _program(words: Sequence[str], at: int) -> int:
    after = tuple(words[at + 1 : at + 2])
    if not after or after == ("serve",):
        return 1 + len(after)
    if after[0].startswith("-"):
        return 0
    raise InputError(f"this is `vllm {after[0]}`, which starts no server: give the `vllm serve` command")


def _module(words: Sequence[str], at: int, i: int) -> int:
    module = words[i] if i < len(words) else ""
    if module == API_SERVER:
        return i + 1 - at
    if module == MAIN and tuple(words[i + 1 : i + 2]) == ("serve",):
        return i + 2 - at
    raise InputError(f"python does not start vLLM here, but the module {module}: give the `vllm serve` command")
