"""What a service's host has and lacks: one script that looks, and what is said of its answer. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

import msgspec

from leadline.errors import HostError
from leadline.evidence import ProcessFacts, Reply, ServiceFacts
from leadline.ports import Completed

LIMIT_S = 30.0
SLOW_S = 1.0
CLOCK_S = 5.0
ROOM_KIB = 4096
SYSTEMD = 240
"""The oldest version that has all that the scripts ask for (`busctl --json`)."""
TOOLS = re.findall(
    r"\S+",
    "awk base64 busctl cat chmod chown comm cp cut date dd df find flock grep head install journalctl ln "
    "ls mkdir mktemp mv od sed sha256sum sleep sort stat sync systemctl systemd-analyze systemd-run tail "
    "timeout tr uname wc",
)
HELPFUL = ("logger", "dmesg")
"""Without these less is said, and nothing fails."""

_PASSWORD = re.compile(r"^\s+\([^)]*\) (?:(?!.*NOPASSWD:)|.*(?<!NO)PASSWD:)", re.MULTILINE)
"""A rule in the list of `sudo -l` that wants a password."""

WHICH = """
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
for program; do
    path=$(command -v "$program") && echo "$program $path"
done
exit 0
"""
"""Where programs are, as sudo finds them."""
SCRIPT = """
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export LC_ALL=C PATH
echo "clock $(date +%s) $(date +%z)"
echo "user $(id -un) $(id -u)"
[ ! -d /run/systemd/system ] || echo "systemd $(systemctl --version 2>/dev/null | head -n 1)"
for place in /run /etc /var/lib; do
    [ ! -d "$place" ] || echo "room $place $(df -Pk "$place" 2>/dev/null | tail -n 1)"
done
while read -r _ place _ options _; do echo "mounted ${options%%,*} $place"; done < /proc/mounts
systemctl list-units --all --plain --no-legend 'leadline-*' 2>/dev/null | while read -r unit _; do
    echo "unit $unit"
done
exit 0
"""


class State(StrEnum):
    OK = "ok"
    WARNING = "warning"
    MISSING = "missing"


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at; `remedy` = what to do."""

    name: str
    state: State
    text: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.state:<8} {self.name:<9} {self.text}" + (f": {self.remedy}" if self.remedy else "")


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """The file system under a folder."""

    free_kib: int
    read_only: bool

    def __str__(self) -> str:
        return "read-only" if self.read_only else f"{self.free_kib // 1024} MiB free"


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The answer. `clock` = its seconds since 1970; `units` = those named leadline-*, which are ours."""

    user: str
    uid: int
    clock: int
    zone: str
    systemd: str
    rooms: Mapping[str, Room]
    units: tuple[str, ...]


def machine(completed: Completed) -> Machine:
    """Raises HostError for an answer that makes no sense."""
    rows = [line.split(" ") for line in completed.stdout.decode(errors="replace").splitlines()]
    of: dict[str, list[list[str]]] = {}
    for kind, *words in rows:
        of.setdefault(kind, []).append(words)
    try:
        (user, uid), (clock, zone) = of["user"][0], of["clock"][0]
        return Machine(
            user=user,
            uid=int(uid),
            clock=int(clock),
            zone=zone,
            systemd=" ".join(of.get("systemd", [[]])[0]),
            rooms=_rooms(of.get("room", []), {place: option for option, place in of.get("mounted", [])}),
            units=tuple(unit for (unit,) in of.get("unit", [])),
        )
    except (LookupError, ValueError) as error:
        why = completed.stderr.decode(errors="replace").strip() or f"exit code {completed.code}"
        raise HostError(f"the host does not tell what it is: {why} (is there a POSIX shell with coreutils?)") from error


def _rooms(rows: Sequence[Sequence[str]], mounted: Mapping[str, str]) -> dict[str, Room]:
    """Rows of `df -P` after the folder: file system, blocks, used, free, share, where it is mounted."""
    wide = [(row[0], [word for word in row[1:] if word]) for row in rows]
    return {
        place: Room(free_kib=int(df[3]), read_only=mounted.get(df[5]) == "ro")
        for place, df in wide
        if len(df) == 6 and df[3].isdigit()
    }


def tools_of(commands: Iterable[tuple[Sequence[str], str]]) -> tuple[str, ...]:
    """The programs that commands and the scripts in them name: (argv, what it reads) of each."""
    found = set()
    for argv, read in commands:
        found |= {argv[0]} | {t for t in (*TOOLS, *HELPFUL) if _names(t, "\n".join((*argv, read)))}
    return tuple(sorted(found))


def _names(tool: str, text: str) -> bool:
    return re.search(rf"(?<![\w./$-]){re.escape(tool)}(?![\w./=-])", text) is not None


def reached(name: str, seconds: Sequence[float], user: str) -> Check:
    """`seconds` = how long the quickest command took, each time."""
    typical = sorted(seconds)[len(seconds) // 2]
    text = f"{name} answers as {user}, {typical * 1000:.0f} ms for a command"
    if typical <= SLOW_S:
        return Check(name="host", state=State.OK, text=text)
    return Check(
        name="host", state=State.WARNING, text=text,
        remedy="slow: a restart that somebody else makes may be seen late; is it far away, or busy?",
    )  # fmt: skip


def user(found: Machine, *, sudo: bool) -> Check:
    if found.uid == 0:
        return Check(name="user", state=State.OK, text="root" + (" (sudo is not needed)" if sudo else ""))
    if sudo:
        return Check(name="user", state=State.OK, text=f"{found.user}, by sudo -n")
    return Check(
        name="user",
        state=State.MISSING,
        text=f"{found.user} is not root",
        remedy="say --sudo, or set service.sudo, and see `leadline doctor --sudoers`; or log in as root",
    )


def sudo(refused: Sequence[Sequence[str]], asked: int, listing: str = "") -> Check:
    """`refused` = the commands that `sudo -n -l` does not let us; `listing` = all that it does, some for a password."""
    if not refused and _PASSWORD.search(listing):
        return Check(
            name="sudo",
            state=State.WARNING,
            text=f"all {asked} commands are allowed, some perhaps for a password, which other rules of this user want",
            remedy="the rules of `leadline doctor --sudoers` must be the last that match",
        )
    if not refused:
        return Check(name="sudo", state=State.OK, text=f"all {asked} commands are allowed")
    first = " ".join(" ".join(refused[0]).split())[:60]
    return Check(
        name="sudo",
        state=State.MISSING,
        text=f"{len(refused)} of {asked} commands are not allowed without a password, the first: {first}",
        remedy="`leadline doctor --sudoers` prints the rules",
    )


def systemd(found: Machine) -> Check:
    version = re.match(r"systemd (\d+)", found.systemd)
    if not version:
        return Check(
            name="systemd",
            state=State.MISSING,
            text="not there, or not what this machine was booted with",
            remedy="the guard needs it; for another supervisor use target script, and read what is lost there",
        )
    state, remedy = State.OK, ""
    if int(version[1]) < SYSTEMD:
        state, remedy = State.MISSING, f"version {SYSTEMD} or later is needed"
    return Check(name="systemd", state=state, text=f"version {version[1]}", remedy=remedy)


def programs(completed: Completed) -> dict[str, str]:
    """Paths by name, as `WHICH` tells them."""
    rows = (line.partition(" ") for line in completed.stdout.decode(errors="replace").splitlines())
    return {name: path for name, _, path in rows if path.startswith("/")}


def tools(there: Mapping[str, str], needed: Sequence[str]) -> Check:
    absent = [t for t in needed if t not in there]
    must = [t for t in absent if t not in HELPFUL]
    if must:
        return Check(name="tools", state=State.MISSING, text=f"no {', '.join(must)}", remedy="install them there")
    if absent:
        return Check(
            name="tools",
            state=State.WARNING,
            text=f"no {', '.join(absent)}",
            remedy="less is told when something fails",
        )
    return Check(name="tools", state=State.OK, text=f"all {len(needed)} programs are there")


def room(found: Machine) -> Check:
    told = ", ".join(f"{place} {room}" for place, room in found.rooms.items())
    bad = [place for place, room in found.rooms.items() if room.read_only or room.free_kib < ROOM_KIB]
    if not found.rooms:
        return Check(name="room", state=State.WARNING, text="nobody tells how much is free", remedy="see `df`")
    if "/run" in bad:
        return Check(
            name="room", state=State.MISSING, text=told, remedy=f"a trial needs {ROOM_KIB // 1024} MiB in /run"
        )
    if bad:
        return Check(name="room", state=State.WARNING, text=told, remedy="`leadline apply` needs it; a trial does not")
    return Check(name="room", state=State.OK, text=told)


def leftovers(found: Machine, *, held: bool) -> Check:
    """`held` = a campaign holds the service, and these are its own."""
    units = [unit for unit in found.units if not held]
    if not units:
        return Check(
            name="left over", state=State.OK, text="nothing of ours" if not held else "only what the holder needs"
        )
    return Check(
        name="left over",
        state=State.WARNING,
        text=", ".join(units),
        remedy="of another service's campaign, or of one that ended in disorder; see `systemctl status 'leadline-*'`",
    )


def clock(found: Machine, before: float, after: float, zone: str) -> Check:
    """`before` and `after` = our clock around the question; `zone` = ours, as +0100."""
    ahead = found.clock - after if found.clock > after else min(0.0, found.clock + 1 - before)
    text = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} ours" if abs(ahead) >= 1 else "as ours"
    zones = f"zone {found.zone}"
    if abs(ahead) > CLOCK_S:
        return Check(
            name="clock", state=State.WARNING, text=f"{text}, {zones}", remedy="journals of both are hard to compare"
        )
    if zone != found.zone:
        return Check(
            name="clock", state=State.WARNING, text=f"{text}, {zones}, ours {zone}", remedy="window.hours go by ours"
        )
    return Check(name="clock", state=State.OK, text=f"{text}, {zones}")


def answers(url: str, reply: Reply, port: int, listener: ProcessFacts | None, facts: ServiceFacts) -> Check:
    """Whether the service serves, and whether it is the service that listens."""
    name = "url"
    if listener is None:
        text = f"nobody listens on port {port}"
        if facts.state.at_rest:
            return Check(name=name, state=State.OK, text=f"{text}, as the service does not run")
        return Check(
            name=name, state=State.WARNING, text=text, remedy="still loading, or another port than its words say"
        )
    who = f"{listener.name or 'a process'} (pid {listener.pid})" if listener.pid else "a process that we may not see"
    if listener.pid and listener.pid not in facts.pids:
        return Check(
            name=name,
            state=State.WARNING,
            text=f"{who} listens on port {port}, which is none of the service's processes",
            remedy="a trial would not get the port: is it a proxy, a container, or a server started by hand?",
        )
    if reply.ok:
        return Check(name=name, state=State.OK, text=f"{url} answers; {who} listens on port {port}")
    said = reply.error or f"HTTP status {reply.status}"
    return Check(
        name=name,
        state=State.WARNING,
        text=f"{who} listens on port {port}, and {url} says {said}",
        remedy="see its log",
    )


def device(used: Sequence[int] | None, identity: Mapping[str, str]) -> Check:
    """`used` = bytes on each accelerator."""
    if used is None:
        return Check(
            name="device",
            state=State.WARNING,
            text="neither nvidia-smi nor rocm-smi tells of one",
            remedy="whether a stopped server has let go of its device cannot be seen then",
        )
    each = ", ".join(f"{b / 2**30:.1f}" for b in used)
    return Check(
        name="device", state=State.OK, text=f"{identity.get('gpu', f'{len(used)} devices')}, {each} GiB in use"
    )


def lacking(checks: Sequence[Check]) -> bool:
    return any(c.state is State.MISSING for c in checks)
