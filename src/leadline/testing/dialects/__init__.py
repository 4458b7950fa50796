"""What the lab must be told to pass for a given engine: flags in; log lines, answers and streams out.

A dialect is one module with one class that implements `Dialect`. It is pure: the virtual world and the lab server use
the same one.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from leadline.testing.faults import Fault, FaultKind
from leadline.testing.model import Admission, Fatal, LabModel
from leadline.testing.physics import Finish, LabRequest, LabSpec

JSON = "application/json; charset=utf-8"
LAB = "leadline-lab"
"""The mark that every build name of the lab carries."""

Read = Callable[[str], str | None]
"""The content of a file that a command line names; None when it cannot be read."""
_FILLER = """
tide deck lead line rope mark keel sail bow stern harbour buoy anchor chart depth wind wave shore sand shell pilot crew
watch bell lamp mast helm wake gull reef bay port
"""
_WORDS = _FILLER.split()


class Flags(msgspec.Struct, frozen=True, kw_only=True):
    """What a command line asks for. `drafts` False = its drafter can never fire; `max_running` None = the default.

    `context` = tokens of all slots together, 0 = not given. `topk`, `draft_tokens`, `draft_model` and
    `memory_fraction` as the knobs of those names. `warnings` = what it says of the command line before it loads.
    `told` = resolved options as the engine itself names them, where it shows them.
    """

    host: str
    port: int
    depth: int = 0
    drafts: bool = True
    method: str = "none"
    max_running: int | None = None
    context: int = 0
    model: str = "lab"
    alias: str = ""
    metrics: bool = False
    slots: bool = True
    api_keys: tuple[str, ...] = ()
    topk: int = 1
    draft_tokens: int = 0
    draft_model: str = ""
    memory_fraction: float = 0.0
    per_request: bool = False
    decode_log_interval: int = 40
    warnings: tuple[str, ...] = ()
    told: dict[str, str | int | float | bool | None] = {}


class Exit(msgspec.Struct, frozen=True):
    """The process ends at once: what it prints (to `stdout`, or as an error), and its exit code."""

    lines: tuple[str, ...]
    code: int
    stdout: bool = False


class Boot(msgspec.Struct, frozen=True, kw_only=True):
    """A start-up as a timetable in seconds since the start: log lines, readiness (None: never), or an early end.

    `claims_s` = when it takes its port, and ends when that is taken; only lines due earlier are written then.
    `listens_s` = when it answers there. None = never. `exit_code` below 0 = it dies by that signal. `progress` = it
    reads its model meanwhile.
    """

    lines: tuple[tuple[float, str], ...]
    ready_s: float | None = None
    exit_s: float | None = None
    exit_code: int = 1
    claims_s: float | None = 0.0
    listens_s: float | None = 0.0
    progress: bool = True


class End(msgspec.Struct, frozen=True):
    """Last words, and how the process ends then: an exit code, or below 0 the signal that kills it."""

    lines: tuple[str, ...]
    code: int


class View(msgspec.Struct, frozen=True, kw_only=True):
    """A live server as its control endpoints see it. `boot_id` differs for every start."""

    flags: Flags
    model: LabModel
    loading: bool
    boot_id: str


class Answer(msgspec.Struct, frozen=True):
    """A whole HTTP answer."""

    status: int
    body: bytes
    content_type: str = JSON


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A request for text, understood. `tag` names it in its answers."""

    request: LabRequest
    tag: str
    chat: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool = False
    speculation: bool = False


class Scribe(Protocol):
    """Writes what a server logs while it generates. One for each start; it may remember."""

    def stepped(self, at_s: float, view: View) -> Sequence[str]:
        """Log lines after one step of the engine."""


class Silent:
    """A `Scribe` that has nothing to say."""

    def stepped(self, at_s: float, view: View) -> Sequence[str]:
        return ()


def nothing(path: str) -> str | None:
    """`Read` where there are no files."""
    return None


class Dialect(Protocol):
    """One engine's manners. Laws: pure; a name that carries "lab" wherever a model or build is named."""

    name: str
    default_port: int
    process_name: str
    """The name of its process, as the kernel shows it."""

    def parse(self, argv: Sequence[str], read: Read = nothing) -> Flags | Exit:
        """A command line without its program."""

    def boot(self, spec: LabSpec, flags: Flags, faults: Mapping[FaultKind, Fault]) -> Boot: ...

    def port_in_use(self, flags: Flags) -> Exit: ...

    def get(self, path: str, view: View) -> Answer:
        """Any GET; `Answer.status` 404 when it knows no such path."""

    def ask(self, path: str, body: bytes, view: View) -> Ask | Answer:
        """A POST: a request for text, or why not."""

    def refusal(self, admission: Admission) -> Answer: ...

    def unauthorized(self) -> Answer: ...

    def guards(self, path: str) -> bool:
        """Whether a path needs the API key, where there is one."""

    def opening(self, ask: Ask, view: View) -> bytes:
        """What a stream begins with, before any text."""

    def piece(self, ask: Ask, text: str, tokens: int, view: View) -> bytes:
        """One chunk; `tokens` = all tokens of the answer so far, this chunk's included."""

    def closing(self, ask: Ask, finish: Finish, view: View) -> bytes: ...

    def whole(self, ask: Ask, text: str, finish: Finish, view: View) -> Answer:
        """The answer to a request that did not want a stream."""

    def served(self, at_s: float, number: int, finish: Finish) -> list[str]:
        """Log lines of a request that ended."""

    def scribe(self) -> Scribe:
        """Who logs the steps of one start."""

    def died(self, how: Fatal, at_s: float) -> End:
        """A death under load, but for `Fatal.RESTART`."""

    def stopped(self, at_s: float) -> End:
        """An end that was asked for."""


def lab_flags(argv: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The lab's own flags (`--lab-spec FILE`, ...) apart from those of the engine that it passes for."""
    own: dict[str, str] = {}
    rest: list[str] = []
    words = iter(argv)
    for word in words:
        if word.startswith("--lab-"):
            own[word] = next(words, "")
        else:
            rest.append(word)
    return own, rest


def words(prompt_id: str, at: int, n: int) -> str:
    """Filler text: one word a token, different for every prompt."""
    start = zlib.crc32(prompt_id.encode())
    return "".join(f"{' ' if i else ''}{_WORDS[(start + i * i) % len(_WORDS)]}" for i in range(at, at + n))
