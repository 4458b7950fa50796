"""Facts of this machine (Linux): processes, listeners, memory and its control group, processor and accelerators."""

from __future__ import annotations

import ipaddress
import os
import platform
import re
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from leadline.errors import HostError
from leadline.evidence import ProcessFacts

if TYPE_CHECKING:
    import psutil

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

CGROUPS = Path("/sys/fs/cgroup")
GROUP_FILES = ("memory.max", "memory.limit_in_bytes", "memory.current", "memory.usage_in_bytes", "memory.stat")
UNSEEN = ProcessFacts(pid=0, start_id="", argv=(), name="(another user's process)")


def start_id(pid: int) -> str:
    """Clock ticks from boot to the start of that process, as the kernel counts them; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19].decode()
    except OSError:
        return ""


def usage(process: psutil.Process) -> tuple[int, int]:
    """Resident bytes, and bytes read from storage so far; zeros where they cannot be seen."""
    import psutil

    try:
        return process.memory_info().rss, process.io_counters().read_bytes
    except psutil.Error:
        return 0, 0


def facts(process: psutil.Process) -> ProcessFacts:
    """Of that process alone. Raises psutil.NoSuchProcess."""
    import psutil

    started = start_id(process.pid)
    try:
        argv = tuple(process.cmdline())
    except psutil.AccessDenied:
        argv = ()
    rss_bytes, read_bytes = usage(process)
    return ProcessFacts(
        pid=process.pid,
        start_id=started,
        argv=argv,
        name=process.name(),
        rss_bytes=rss_bytes,
        read_bytes=read_bytes,
    )


def listener(host: str, port: int) -> ProcessFacts | None:
    """Whose TCP socket gets a connection to that address, or would be in the way of a server there.

    An exact address goes before a wildcard, as in the kernel. Several that share an address (SO_REUSEPORT): one that
    cannot be seen first, then the oldest, since that is the one to be afraid of. Every wildcard IPv6 listener is taken
    to serve IPv4 too.
    """
    import psutil

    wanted = addresses(host)
    found: list[tuple[int, float, ProcessFacts]] = []
    for row in psutil.net_connections(kind="tcp"):
        if row.status != psutil.CONN_LISTEN or not row.laddr or row.laddr.port != port:
            continue
        rank = rank_of(address_of(row.laddr.ip), wanted)
        if rank is None:
            continue
        if row.pid is None:
            found.append((rank, 0.0, UNSEEN))
            continue
        try:
            process = psutil.Process(row.pid)
            found.append((rank, process.create_time(), facts(process)))
        except psutil.NoSuchProcess:
            continue
    return first(found)


def first(found: Iterable[tuple[int, float, ProcessFacts]]) -> ProcessFacts | None:
    """Of (rank, age, facts): the exact address before a wildcard, then the oldest."""
    return min(found, key=lambda f: f[:2], default=(0, 0.0, None))[2]


def address_of(text: str) -> Address:
    """Without a zone; an IPv4 address that is written as IPv6 becomes IPv4."""
    address = ipaddress.ip_address(text.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address


def addresses(host: str) -> frozenset[Address]:
    """What a host name stands for; empty = every address of the machine."""
    host = host.strip("[]")
    if host in ("", "*"):
        return frozenset()
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        raise HostError(f"cannot find the address of {host!r} ({error}); give an IP address instead") from error
    return or_all(address_of(str(entry[4][0])) for entry in found)


def or_all(found: Iterable[Address]) -> frozenset[Address]:
    """These addresses; empty, which means all of the machine, when a wildcard is among them."""
    addresses = frozenset(found)
    return frozenset() if any(a.is_unspecified for a in addresses) else addresses


def rank_of(listening: Address, wanted: frozenset[Address]) -> int | None:
    """0 = that very address, 1 = a wildcard that covers one of them, None = none of them."""
    if listening.is_unspecified:
        covers = listening.version == 6 or not wanted or any(a.version == 4 for a in wanted)
        return 1 if covers else None
    return 0 if not wanted or listening in wanted else None


def memory_groups(listing: str | None = None, root: Path = CGROUPS) -> list[Path]:
    """Folders of our memory control group, own one first, then those above it. `listing` = /proc/self/cgroup.

    Inside a container the path may name a folder that cannot be seen there: then the root stands for it.
    """
    if listing is None:
        listing = _text(Path("/proc/self/cgroup"))
    for line in listing.splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            base = root / "memory"
        elif controllers == "" and (root / "cgroup.controllers").exists():
            base = root
        else:
            continue
        own = base / path.strip("/")
        if not own.is_dir():
            own = base
        return [own, *(p for p in own.parents if p.is_relative_to(base))]
    return []


def oom_kills(groups: Sequence[Path] | None = None) -> int:
    """Processes of our control group that the kernel killed for want of memory so far; 0 when it cannot be read."""
    for group in (memory_groups() if groups is None else groups)[:1]:
        for name in ("memory.events", "memory.oom_control"):
            match = re.search(r"^oom_kill (\d+)$", _text(group / name), re.MULTILINE)
            if match:
                return int(match[1])
    return 0


def free_memory_bytes(groups: Sequence[Path] | None = None) -> int:
    """What a new process can get without swapping: MemAvailable, or less where a control group limits us."""
    import psutil

    available: int = psutil.virtual_memory().available
    return min([available, *_rooms(memory_groups() if groups is None else groups)])


def _rooms(groups: Sequence[Path]) -> Iterator[int]:
    for group in groups:
        found = room({name: _text(group / name) for name in GROUP_FILES})
        if found is not None:
            yield found


def room(texts: Mapping[str, str]) -> int | None:
    """Limit minus use of a group, from its GROUP_FILES; None when it has no limit. File pages that the kernel may drop
    do not count as used."""
    limit = texts.get("memory.max") or texts.get("memory.limit_in_bytes") or ""
    used = texts.get("memory.current") or texts.get("memory.usage_in_bytes") or ""
    if not (limit.strip().isdigit() and used.strip().isdigit()):
        return None
    stat = texts.get("memory.stat", "")
    # Version 1 counts the group's own pages under the bare name, those below it only under total_.
    match = re.search(r"^total_inactive_file (\d+)$", stat, re.MULTILINE) or re.search(
        r"^inactive_file (\d+)$", stat, re.MULTILINE
    )
    droppable = int(match[1]) if match else 0
    return max(0, int(limit) - max(0, int(used) - droppable))


def _text(path: Path) -> str:
    """A small file of the kernel's; empty when it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def processor() -> dict[str, str]:
    """Model, cores that we may use, memory and kernel: nothing that changes between two runs on one machine."""
    import psutil

    model = re.search(r"^model name\s*:\s*(.+)$", _text(Path("/proc/cpuinfo")), re.MULTILINE)
    return {
        "cpu": model[1].strip() if model else platform.processor() or platform.machine(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory_gib": f"{psutil.virtual_memory().total / 2**30:.0f}",
        "kernel": platform.release(),
    }


def accelerators(csv: str) -> dict[str, str]:
    """From `nvidia-smi --query-gpu=name,driver_version --format=csv,noheader`; empty when it lists none."""
    rows = [line.rpartition(", ") for line in csv.strip().splitlines() if ", " in line]
    if not rows:
        return {}
    names = [name for name, _, _ in rows]
    counted = (f"{names.count(n)} x {n}" for n in dict.fromkeys(names))
    return {"gpu": ", ".join(counted), "gpu_driver": rows[0][2].strip()}


def device_bytes(nvidia: str, rocm: str) -> tuple[int, ...] | None:
    """Memory in use on each accelerator, from `nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits` (MiB)
    or else `rocm-smi --showmeminfo vram --csv`; None when neither tells it of every accelerator."""
    used = [row.strip() for row in nvidia.splitlines() if row.strip()]
    if used:
        return tuple(int(u) << 20 for u in used) if all(u.isdigit() for u in used) else None
    head, *rows = [row.split(",") for row in rocm.splitlines() if "," in row] or [[]]
    column = next((i for i, title in enumerate(head) if "used" in title.lower()), None)
    found = [row[column].strip() for row in rows if len(row) > column] if column is not None else []
    return tuple(map(int, found)) if found and all(f.isdigit() for f in found) else None
