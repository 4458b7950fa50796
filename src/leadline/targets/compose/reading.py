"""What our scripts print, as values: compose's own configuration, and the containers as their engine sees them."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from leadline.errors import HostError, InputError
from leadline.evidence import ExitFacts, ProcessFacts, ServiceFacts, ServiceState
from leadline.ports import Completed
from leadline.targets.compose.place import MARK
from leadline.targets.compose.words import unescaped, words_of

_SECTION = re.compile(rf"^{MARK} (?P<about>\S+) (?P<rest>.*)\n", re.MULTILINE)
_LINE = re.compile(r"^(?P<time>\d{4}-\d\d-\d\dT[\d:.]+\S*) ?(?P<text>[^\r\n]*)\r?$", re.MULTILINE)
_STATES = {
    "running": ServiceState.RUNNING,
    "paused": ServiceState.RUNNING,
    "restarting": ServiceState.RESTARTING,
    "removing": ServiceState.STOPPING,
    "stopping": ServiceState.STOPPING,
    "dead": ServiceState.FAILED,
}


class Section(msgspec.Struct, frozen=True):
    """`rest` = the exit code of what was asked, or what the section is about."""

    about: str
    rest: str
    text: str


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """A service as compose understands its files. `entrypoint` and `command` None = the image's own."""

    entrypoint: tuple[str, ...] | None
    command: tuple[str, ...] | None
    env: tuple[tuple[str, str], ...]
    rest: dict[str, Any]


class Words(msgspec.Struct, frozen=True, kw_only=True):
    """The words that a container runs. `hidden` = its entrypoint is a script that executes the command's words."""

    entrypoint: tuple[str, ...]
    command: tuple[str, ...]

    @property
    def hidden(self) -> bool:
        return len(self.entrypoint) == 1 and self.entrypoint[0].endswith((".sh", "entrypoint")) and bool(self.command)

    @property
    def argv(self) -> tuple[str, ...]:
        return self.command if self.hidden else (*self.entrypoint, *self.command)


def sections(completed: Completed) -> list[Section]:
    text = completed.stdout.decode(errors="replace")
    marks = list(_SECTION.finditer(text))
    ends = (*(m.start() for m in marks[1:]), len(text))
    return [Section(m["about"], m["rest"], text[m.end() : end]) for m, end in zip(marks, ends, strict=False)]


def section(found: Sequence[Section], about: str) -> Section | None:
    return next((s for s in found if s.about == about), None)


def digests(found: Sequence[Section]) -> dict[str, str]:
    return {s.rest: s.about.partition(":")[2] for s in found if s.about.startswith("digest:")}


def texts(found: Sequence[Section]) -> dict[str, str]:
    """The operator's files, as they are."""
    out: dict[str, str] = {}
    for s in found:
        if s.about == "text":
            try:
                out[s.rest] = base64.b64decode("".join(s.text.split())).decode()
            except (binascii.Error, UnicodeDecodeError):
                raise InputError(f"{s.rest} is not UTF-8: save it as UTF-8") from None
    return out


def why(completed: Completed) -> str:
    """compose's own words, without its warnings."""
    lines = completed.stderr.decode(errors="replace").strip().splitlines()
    told = [line for line in lines if "level=warning" not in line]
    return " ".join(told[-3:]) or f"exit code {completed.code}, and not a word"


def service_of(text: str, service: str) -> dict[str, Any]:
    """The entry of a service in what `config --format json` printed. Raises InputError."""
    try:
        found = json.loads(text)["services"][service]
    except (ValueError, KeyError, TypeError):
        raise InputError(
            f"compose did not print service {service} as JSON: compose 2 or later is needed (`docker compose version`)"
        ) from None
    if not isinstance(found, dict):
        raise InputError(f"compose knows nothing of service {service}")
    return found


def definition(text: str, service: str) -> Definition:
    entry = service_of(text, service)
    given = entry.get("environment") or {}
    return Definition(
        entrypoint=words_of(entry.get("entrypoint")),
        command=words_of(entry.get("command")),
        env=tuple((name, unescaped(str(value))) for name, value in given.items() if value is not None),
        rest={k: v for k, v in entry.items() if k not in ("entrypoint", "command", "environment")},
    )


def image_words(text: str) -> Words | None:
    """An image's own entrypoint and command; None when there is no such image here."""
    try:
        config = json.loads(text)[0].get("Config") or {}
    except (ValueError, LookupError, AttributeError):
        return None
    return Words(entrypoint=_texts(config.get("Entrypoint")), command=_texts(config.get("Cmd")))


def in_force(found: Definition, image: Words | None) -> Words:
    """What a container of it runs. Raises InputError when only an image that is not here knows that."""
    needs_image = found.entrypoint is None
    if needs_image and image is None:
        raise InputError(
            "the service's image is not on its host, so that its entrypoint is unknown: pull or build it, and start "
            "the service once"
        )
    own = image or Words(entrypoint=(), command=())
    entrypoint = own.entrypoint if found.entrypoint is None else found.entrypoint
    command = found.command if found.command is not None else (own.command if needs_image else ())
    return Words(entrypoint=entrypoint, command=command)


def containers(text: str) -> list[dict[str, Any]]:
    """The service's own containers; those of `compose run` are none of it. Raises HostError."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("row ")]
    try:
        found = [json.loads(line) for line in lines]
    except ValueError:
        raise HostError(f"the container engine's answer makes no sense: {text[:80]!r}") from None
    return [c for c in found if isinstance(c, dict) and labels(c).get("com.docker.compose.oneoff") != "True"]


def labels(container: Mapping[str, Any]) -> dict[str, str]:
    return (container.get("Config") or {}).get("Labels") or {}


def running(container: Mapping[str, Any]) -> bool:
    state = container.get("State") or {}
    return bool(state.get("Running") or state.get("Restarting"))


def argv_of(container: Mapping[str, Any]) -> tuple[str, ...]:
    """The words that it was made with, its entrypoint included."""
    return (str(container.get("Path") or ""), *_texts(container.get("Args")))


def _texts(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,) if value else ()
    return tuple(map(str, value)) if isinstance(value, list) else ()


def facts(completed: Completed) -> ServiceFacts:
    """Raises HostError for an answer that makes no sense."""
    found = sections(completed)
    told = section(found, "inspect")
    if told is None or told.rest != "0":
        raise HostError(f"the container engine does not answer: {why(completed)}")
    trial = section(found, "trial")
    files = {path: digest for path, digest in digests(found).items() if digest != "absent"}
    ours = trial.rest if trial else "absent"
    there = containers(told.text)
    if not there:
        return ServiceFacts(state=ServiceState.MISSING, exit=ExitFacts(), files=files, trial=ours)
    container = max(there, key=lambda c: (running(c), str(c.get("Created") or "")))
    state = container.get("State") or {}
    pids = _numbers(found, "top") | _numbers(found, "proxy")
    if running(container) and state.get("ConmonPid"):
        pids.add(int(state["ConmonPid"]))
    status = _state(container)
    alive = status is ServiceState.RUNNING and bool(state.get("Pid"))
    return ServiceFacts(
        state=status,
        process=_process(container, found) if alive else None,
        pids=tuple(sorted(pids)),
        exit=None if alive else _exit(state),
        incarnation=f"{container.get('Id')} {state.get('StartedAt')}",
        restarts=int(container.get("RestartCount") or 0),
        lines=tuple(_lines(container)),
        files=files,
        trial=ours,
    )


def _numbers(found: Sequence[Section], about: str) -> set[int]:
    return {int(n) for s in found if s.about == about for n in s.text.split() if n.isdigit()}


def _state(container: Mapping[str, Any]) -> ServiceState:
    state = container.get("State") or {}
    status = str(state.get("Status") or "").lower()
    if status in _STATES:
        return _STATES[status]
    bad = state.get("ExitCode") or state.get("Error") or state.get("OOMKilled")
    return ServiceState.FAILED if bad else ServiceState.STOPPED


def _exit(state: Mapping[str, Any]) -> ExitFacts:
    """Which signal ended it, docker does not tell: 137 may be a SIGKILL, or what the program itself returned."""
    killed = bool(state.get("OOMKilled"))
    return ExitFacts(
        code=int(state.get("ExitCode") or 0), host_oom_kills=int(killed), result="oom-kill" if killed else ""
    )


def _process(container: Mapping[str, Any], found: Sequence[Section]) -> ProcessFacts:
    state = container.get("State") or {}
    usage = {s.about: s.text for s in found if s.about in ("io", "status")}
    read = re.search(r"^read_bytes: (\d+)", usage.get("io", ""), re.MULTILINE)
    resident = re.search(r"^VmRSS:\s*(\d+) kB", usage.get("status", ""), re.MULTILINE)
    argv = argv_of(container)
    return ProcessFacts(
        pid=int(state["Pid"]),
        start_id=str(state.get("StartedAt")),
        argv=argv,
        name=argv[0].rsplit("/", 1)[-1],
        rss_bytes=int(resident[1]) << 10 if resident else 0,
        read_bytes=int(read[1]) if read else 0,
    )


def _lines(container: Mapping[str, Any]) -> list[str]:
    state = container.get("State") or {}
    lines = [f"OOMKilled=true in container {str(container.get('Id'))[:12]}"] if state.get("OOMKilled") else []
    return [*lines, *([str(state["Error"])] if state.get("Error") else [])]


def image_id(text: str) -> str:
    """Of what `image inspect` says, without the name of the digest's kind; "" when there is no such image here."""
    try:
        return str(json.loads(text)[0]["Id"]).removeprefix("sha256:")
    except (ValueError, LookupError, TypeError):
        return ""


def logged(completed: Completed) -> tuple[str, str]:
    """The lines after the cursor, in the order of their times, and the next cursor."""
    found = sections(completed)
    container, lines = section(found, "id"), section(found, "log")
    before, since = completed.argv[-2:]
    if container is None or lines is None:
        return "", "" if since == "-" else f"{before} {since}"
    if completed.code != 0:
        raise HostError(f"the service's log cannot be read: {lines.text.strip()[-200:] or why(completed)}")
    told = [(m["time"], m["text"]) for m in _LINE.finditer(lines.text)]
    same = before == container.rest
    fresh = sorted(((t, line) for t, line in told if not same or t > since), key=lambda pair: pair[0])
    last = fresh[-1][0] if fresh else (since if same else "-")
    cursor = f"{container.rest} {last}" if last != "-" else ""
    return "".join(f"{line}\n" for _, line in fresh), cursor
