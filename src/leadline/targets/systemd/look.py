"""What `look.sh` prints of a unit at one moment, read: its state, its main process, how that ended, and who said so."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence

import msgspec

from leadline.errors import HostError
from leadline.evidence import ExitFacts, ProcessFacts, ServiceFacts, ServiceState
from leadline.ports import Completed
from leadline.targets.systemd.frames import digests_of
from leadline.targets.systemd.place import ABSENT, Place

_AT_REST = ("failed", "inactive")
_STATES = {
    "active": ServiceState.RUNNING,
    "reloading": ServiceState.RUNNING,
    "activating": ServiceState.STARTING,
    "deactivating": ServiceState.STOPPING,
    "failed": ServiceState.FAILED,
    "inactive": ServiceState.STOPPED,
}
_EXITED, _KILLED, _DUMPED = "1", "2", "3"
_SECTION = re.compile(r"^@leadline (\w+)\n", re.MULTILINE)
_OOM = re.compile(r"oom-kill:.*\bpid=(\d+)")
_VICTIM = re.compile(r"Killed process (\d+) ")
_AGAIN = "Scheduled restart job"
_PAGE = 4096


class Said(msgspec.Struct, frozen=True):
    """One line of the journal: when (microseconds), of which start, and the words."""

    at: int
    invocation: str
    words: str


def facts(place: Place, completed: Completed) -> ServiceFacts:
    """Raises HostError for an answer that makes no sense."""
    sections = _sections(place, completed)
    show = dict(line.split("=", 1) for line in sections["show"].splitlines() if "=" in line)
    state = _state(show)
    digests = digests_of(sections.get("digests", ""))
    told, kernel = _journal(sections.get("journal", "")), _kernel(place, sections)
    last = show.get("InvocationID") or next((s.invocation for s in reversed(told) if s.invocation), "")
    kills = [s for s in kernel if "oom-kill:" in s.words]
    lines = sorted([*_of_this_start(told), *kernel], key=lambda said: said.at)
    trial = digests.pop(place.trial, ABSENT)
    peak = sections.get("peak", "").strip()
    return ServiceFacts(
        state=state,
        process=_process(show, sections),
        pids=tuple(sorted({int(pid) for pid in sections.get("pids", "").split()})),
        exit=_exit(show, state, len(kills)),
        incarnation=f"{sections.get('boot', '').strip()}:{last}",
        restarts=int(show.get("NRestarts") or 0),
        files=digests,
        trial=trial,
        memory_peak_bytes=int(peak) if peak.isdigit() else None,
        lines=tuple(line.words for line in lines),
    )


def _sections(place: Place, completed: Completed) -> dict[str, str]:
    parts = _SECTION.split(completed.stdout.decode(errors="replace"))
    sections = {
        name: text[:-1] if text.endswith("\n\n") else text for name, text in zip(parts[1::2], parts[2::2], strict=True)
    }
    if completed.code != 0 or "ActiveState=" not in sections.get("show", ""):
        why = completed.stderr.decode(errors="replace").strip() or f"exit code {completed.code}"
        raise HostError(f"cannot look at {place.unit}: {why}")
    return sections


def _state(show: Mapping[str, str]) -> ServiceState:
    active = show.get("ActiveState", "")
    if show.get("SubState") == "auto-restart":
        return ServiceState.RESTARTING
    if active in _AT_REST and show.get("LoadState") in ("not-found", "masked"):
        return ServiceState.MISSING
    if active not in _STATES:
        raise HostError(f"systemd calls the service {active!r}, which we do not know")
    return _STATES[active]


def _process(show: Mapping[str, str], sections: Mapping[str, str]) -> ProcessFacts | None:
    pid = int(show.get("MainPID") or 0)
    if not pid or not sections.get("stat", "").startswith(f"{pid} ("):
        return None
    stat, *more = sections["stat"].splitlines()
    name, _, rest = stat.partition("(")[2].rpartition(")")
    fields = rest.split()
    try:
        words = base64.b64decode(sections.get("cmdline", "").strip()).decode(errors="surrogateescape")
    except binascii.Error as error:
        raise HostError(f"the command line of process {pid} came garbled") from error
    if fields[0] in "ZX" or not words:
        return None
    read = next((line.split()[1] for line in more if line.startswith("rchar: ")), "0")
    return ProcessFacts(
        pid=pid,
        start_id=fields[19],
        argv=tuple(words.split("\0")[:-1]),
        name=name,
        rss_bytes=int(fields[21]) * _PAGE,
        read_bytes=int(read),
    )


def _exit(show: Mapping[str, str], state: ServiceState, kills: int) -> ExitFacts | None:
    """Exit code 137 stays one, and is no signal 9."""
    if int(show.get("MainPID") or 0):
        return None
    code, status, result = (show.get(key, "") for key in ("ExecMainCode", "ExecMainStatus", "Result"))
    result = "" if result == "success" else result
    if code == _EXITED:
        return ExitFacts(code=int(status), host_oom_kills=kills, result=result)
    if code in (_KILLED, _DUMPED):
        return ExitFacts(signal=int(status), host_oom_kills=kills, result=result)
    return ExitFacts(host_oom_kills=kills, result=result) if result and state.at_rest else None


def _entries(text: str) -> list[Mapping[str, object]]:
    out: list[Mapping[str, object]] = []
    for line in text.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict):
            out.append(entry)
    return out


def _words(message: object) -> str:
    """journald gives what is no text as a list of bytes."""
    if isinstance(message, list):
        return bytes(b for b in message if isinstance(b, int) and 0 <= b < 256).decode(errors="replace")
    return str(message)


def _journal(text: str) -> list[Said]:
    return [
        Said(int(str(e.get("__REALTIME_TIMESTAMP", 0))), str(e.get("INVOCATION_ID", "")), _words(e.get("MESSAGE", "")))
        for e in _entries(text)
    ]


def _of_this_start(told: Sequence[Said]) -> Sequence[Said]:
    """The last start that somebody asked for, and the starts that the supervisor made of it by itself."""
    begin = len(told)
    while begin:
        invocation, at = told[begin - 1].invocation, begin
        while at and told[at - 1].invocation == invocation:
            at -= 1
        begin = at
        if not at or not any(_AGAIN in s.words for s in told[:at] if s.invocation == told[at - 1].invocation):
            break
    return told[begin:]


def _kernel(place: Place, sections: Mapping[str, str]) -> list[Said]:
    """Out-of-memory kills in the unit's control group: the line that names the group, and the one that names the
    victim. Process numbers are those of the root's namespace, so they only join the two."""
    said = _journal(sections.get("kernel", ""))
    group = re.compile(rf"(?:task|oom)_memcg=[^,]*/{re.escape(place.unit)}(?:[,/]|$)")
    pids = {m[1] for s in said if (m := _OOM.search(s.words)) and group.search(s.words)}
    return [s for s in said if (m := _OOM.search(s.words) or _VICTIM.search(s.words)) and m[1] in pids]
