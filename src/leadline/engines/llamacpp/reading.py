"""A launch of llama-server as its words, and what they say besides a setting: address, model, program, build."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from leadline.dialect.commandline import CommandLine, Grammar
from leadline.dialect.commandline import read as read_line
from leadline.dialect.question import ask_program
from leadline.dialect.source import base_name
from leadline.dialect.values import whole
from leadline.engines.llamacpp.flags import NEWER, OPTIONS, missing, refuse
from leadline.errors import InputError
from leadline.launch import LaunchSpec

DEFAULT_PORT = 8080
DEFAULT_HOST = "127.0.0.1"
SERVER = "llama-server"
HOST, PORT = "--host", "--port"

_PROGRAM = re.compile(r"llama-server([-.][\w.-]*)?")
_SCRIPT = re.compile(r"start|run|launch|wrap|\.(?:(?:ba|z|k|da|fi)?sh|py|pl|cmd|bat)$")
"""Names of what an operator may have put around the program."""
_BUILD = re.compile(r"(?m)(?:\bbuild |\bversion: |^\s*b?)(\d{4,6})\b(?!\.)")
_MODEL = ("--model", "--hf-repo", "--docker-repo", "--model-url")


def starts(words: Sequence[str], at: int) -> int:
    """One word starts the server: its program."""
    return 1 if _PROGRAM.fullmatch(base_name(words[at])) else 0


@cache
def grammar(build: int | None) -> Grammar:
    def refused(word: str) -> None:
        refuse(word)
        if missing(word, build):
            raise InputError(f"{SERVER} of build {build} has no {word}: build {NEWER} has it")

    options = {s: o for s, o in OPTIONS.items() if not missing(s, build)}
    return Grammar(server=SERVER, options=options, starts=starts, equals=False, refuse=refused)


def read(launch: LaunchSpec, build: int | None) -> CommandLine:
    return read_line(launch, grammar(build))


def address(launch: LaunchSpec, build: int | None) -> tuple[str, int]:
    """As the launch says it: a wildcard host stays a wildcard."""
    line = read(launch, build)
    host = line.value(HOST) or DEFAULT_HOST
    if host.endswith(".sock"):
        raise InputError(f"the server listens on the socket file {host}: give it {HOST} {DEFAULT_HOST} and a {PORT}")
    port = whole(PORT, line.value(PORT))
    return host, DEFAULT_PORT if port is None else port


def move(launch: LaunchSpec, port: int, build: int | None) -> LaunchSpec:
    line = read(launch, build).tidy(PORT)
    return line.set(PORT, str(port)).written()


def model(launch: LaunchSpec, build: int | None) -> str | None:
    """The file, or else the repository or address that it is fetched from."""
    line = read(launch, build)
    return next((value for name in _MODEL if (value := line.value(name))), None)


def version_argv(launch: LaunchSpec) -> tuple[str, ...] | None:
    """The launch's own program with no other word than --version; None for one of another name, or for a script."""
    return ask_program(launch, SERVER, starts, "--version", sure=lambda word: not _SCRIPT.search(base_name(word)))


def build_of(version: str | None) -> int | None:
    """The number of a build, from what --version prints or from the `build_info` of /props; None when it has none.

    Seen: `version: 10434 (7e4c0a9)`, `version: 0.1.0-dev (build 10434, commit 7e4c0a9)`, `b10434-7e4c0a9`. A server
    that was built without the history of its source calls itself build 0 or 1: that is no number.
    """
    found = _BUILD.search(version or "")
    return int(found[1]) if found else None
