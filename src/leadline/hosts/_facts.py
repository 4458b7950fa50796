"""Facts of a machine through commands of a shell and coreutils, one call each: with the meaning of `_machine`, which
asks this machine's kernel itself."""

from __future__ import annotations

import ipaddress
import re
import struct
from collections.abc import Iterator

from leadline.errors import HostError
from leadline.evidence import ProcessFacts
from leadline.hosts import _machine
from leadline.hosts._files import Runner
from leadline.hosts._words import last_line

LIMIT_S = 60.0

_LISTENER = """
LC_ALL=C; export LC_ALL
inodes=
[ -z "$2" ] || { getent ahosts "$2" || echo unknown; } | while read -r address _; do echo "address $address"; done
while read -r _ local _ _ _ _ _ _ _ inode _; do
    [ -z "$inode" ] || { echo "socket $local $inode"; inodes="$inodes|$inode"; }
done <<END
$(grep -h "[0-9]: [0-9A-F]*:$1 0*:0000 0A " /proc/net/tcp /proc/net/tcp6 2>/dev/null)
END
[ -n "$inodes" ] || exit 0
pids=" "
while read -r row; do
    case $row in
    /proc/*) pid=${row#/proc/}; pid=${pid%%/*} ;;
    *)
        inode=${row##*socket:[}; echo "owner ${inode%]} $pid"
        case $pids in *" $pid "*) ;; *) pids="$pids$pid " ;; esac ;;
    esac
done <<END
$(ls -ln /proc/[0-9]*/fd 2>/dev/null | grep -E "^/proc/|socket:\\[(${inodes#|})\\]$")
END
for pid in $pids; do
    echo "stat $pid $(cat "/proc/$pid/stat" 2>/dev/null | tr '\\n' ' ')"
    echo "argv $pid $(od -An -v -tx1 "/proc/$pid/cmdline" 2>/dev/null | tr -d ' \\n')"
    echo "rss $pid $(grep VmRSS: "/proc/$pid/status" 2>/dev/null)"
    echo "read $pid $(grep ^read_bytes: "/proc/$pid/io" 2>/dev/null)"
done
exit 0
"""
_MEMORY = """
cat /proc/meminfo || exit 1
while IFS=: read -r _ controllers path; do
    case ,$controllers, in
    *,memory,*) base=/sys/fs/cgroup/memory ;;
    ,,) base=/sys/fs/cgroup; [ -e "$base/cgroup.controllers" ] || continue ;;
    *) continue ;;
    esac
    group=${base}${path%/}
    [ -d "$group" ] || group=$base
    while :; do
        echo "group $group"
        for name in $1; do [ -r "$group/$name" ] && echo "file $name" && cat "$group/$name" 2>/dev/null; done
        [ "$group" = "$base" ] && break
        group=${group%/*}
    done
    break
done < /proc/self/cgroup
exit 0
"""
_IDENTITY = """
echo "model $(grep -m 1 '^model name' /proc/cpuinfo)"
echo "machine $(uname -m)"
echo "cores $(nproc)"
echo "memory $(grep ^MemTotal: /proc/meminfo)"
echo "kernel $(uname -r)"
echo "gpus"
command -v nvidia-smi >/dev/null 2>&1 || exit 0
listed=$(timeout 30 nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null) && echo "$listed"
exit 0
"""
_DEVICES = """
if command -v nvidia-smi >/dev/null 2>&1; then
    listed=$(timeout 30 nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits 2>/dev/null) && echo "$listed"
fi
echo rocm
if command -v rocm-smi >/dev/null 2>&1; then
    listed=$(timeout 30 rocm-smi --showmeminfo vram --csv 2>/dev/null) && echo "$listed"
fi
exit 0
"""


def listener(run: Runner, host: str, port: int, *, name: str) -> ProcessFacts | None:
    """As `_machine.listener`; a host name means there what it means there."""
    wanted, asked = _addresses(host)
    rows = _Rows(_sh(run, _LISTENER, f"{port:04X}", asked, name=name))
    if asked:
        resolved = [row[0] for row in rows.of("address")]
        if not resolved or resolved == ["unknown"]:
            raise HostError(f"{name} cannot find the address of {asked!r}; give an IP address instead")
        wanted = _machine.or_all(_machine.address_of(a) for a in resolved)
    return _machine.first(_owners(rows, wanted))


class _Rows:
    """Lines `KIND WORD ...` of a script."""

    def __init__(self, text: str) -> None:
        self._rows = [row.split(" ") for row in text.splitlines()]

    def of(self, kind: str) -> Iterator[list[str]]:
        return (row[1:] for row in self._rows if row[0] == kind)

    def about(self, kind: str, word: str) -> str:
        """The rest of the line about that word."""
        return next((" ".join(row[1:]) for row in self.of(kind) if row[0] == word), "")


def _addresses(host: str) -> tuple[frozenset[_machine.Address], str]:
    """What an address stands for, or else the name to be looked up there."""
    host = host.strip("[]")
    if host in ("", "*"):
        return frozenset(), ""
    if host == "localhost":
        return frozenset(map(ipaddress.ip_address, ("127.0.0.1", "::1"))), ""
    try:
        return _machine.or_all([_machine.address_of(host)]), ""
    except ValueError:
        return frozenset(), host


def _owners(rows: _Rows, wanted: frozenset[_machine.Address]) -> Iterator[tuple[int, float, ProcessFacts]]:
    owners = list(rows.of("owner"))
    for local, inode in rows.of("socket"):
        rank = _machine.rank_of(_kernel_address(local.rpartition(":")[0]), wanted)
        if rank is None:
            continue
        pids = {pid for owned, pid in owners if owned == inode}
        if not pids:
            yield rank, 0.0, _machine.UNSEEN
        for pid in pids:
            stat = rows.about("stat", pid)
            if stat:
                facts = _process(rows, pid, stat)
                yield rank, float(facts.start_id), facts


def _kernel_address(text: str) -> _machine.Address:
    """From /proc/net/tcp: words of 32 bits, each in the machine's own byte order, taken to be little-endian."""
    data = b"".join(struct.pack("<I", int(text[i : i + 8], 16)) for i in range(0, len(text), 8))
    return _machine.address_of(str(ipaddress.ip_address(data)))


def _process(rows: _Rows, pid: str, stat: str) -> ProcessFacts:
    head, _, tail = stat.rpartition(")")
    name = head.partition("(")[2]
    words = bytes.fromhex(rows.about("argv", pid)).decode(errors="surrogateescape").removesuffix("\0").split("\0")
    argv = tuple(words) if words != [""] else ()
    program = argv[0].rpartition("/")[2] if argv else ""
    return ProcessFacts(
        pid=int(pid),
        start_id=tail.split()[19],
        argv=argv,
        name=program if len(name) >= 15 and program.startswith(name) else name,
        rss_bytes=_number(rows.about("rss", pid)) * 1024,
        read_bytes=_number(rows.about("read", pid)),
    )


def free_memory_bytes(run: Runner, *, name: str) -> int:
    """As `_machine.free_memory_bytes`, for a process that a command starts there."""
    info, *groups = re.split(r"^group .*\n", _sh(run, _MEMORY, " ".join(_machine.GROUP_FILES), name=name), flags=re.M)
    rooms = (_machine.room(dict(re.findall(r"^file (\S+)\n((?:(?!file ).*\n?)*)", g, re.M))) for g in groups)
    available = re.search(r"^MemAvailable:\s*(\d+) kB$", info, re.M)
    if available is None:
        raise HostError(f"{name} does not tell its free memory (no MemAvailable in /proc/meminfo)")
    return min([int(available[1]) * 1024, *(r for r in rooms if r is not None)])


def device_used_bytes(run: Runner, *, name: str) -> tuple[int, ...] | None:
    nvidia, _, rocm = _sh(run, _DEVICES, name=name).partition("rocm\n")
    return _machine.device_bytes(nvidia, rocm)


def identity(run: Runner, *, name: str) -> dict[str, str]:
    """As LocalHost.identity."""
    text, _, gpus = _sh(run, _IDENTITY, name=name).partition("gpus\n")
    told = {kind: rest.strip() for kind, _, rest in (row.partition(" ") for row in text.splitlines())}
    found = {
        "cpu": told.get("model", "").partition(":")[2].strip() or told.get("machine", ""),
        "cores": told.get("cores", ""),
        "memory_gib": f"{_number(told.get('memory', '')) / 2**20:.0f}",
        "kernel": told.get("kernel", ""),
        **_machine.accelerators(gpus),
    }
    return {key: value for key, value in found.items() if value}


def _number(text: str) -> int:
    match = re.search(r"\d+", text)
    return int(match[0]) if match else 0


def _sh(run: Runner, script: str, *words: str, name: str) -> str:
    done = run(("sh", "-c", script, "sh", *words), timeout_s=LIMIT_S)
    if done.code:
        raise HostError(f"{name} does not tell what was asked of it: {last_line(done.stderr)}")
    return done.stdout.decode(errors="replace")
