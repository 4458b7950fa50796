"""What one host is to be, as its supervisor is told it; and the command lines that boot it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from testhost import cgroups

SSH_PORT = 22
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
INNER_ADDRESS = {"container": "127.0.0.1", "uml": "10.0.2.15"}
MEMORY = "512M"
"""Of a host under uml."""


@dataclass(frozen=True)
class Plan:
    """`root`: the folder or the image of the root. `shared`: folders of this machine, read-only at the same path.
    `machine_id`: 32 hexadecimal digits, the same after each boot."""

    name: str
    backend: str
    state: str
    root: str
    ports: tuple[int, ...]
    shared: tuple[str, ...]
    machine_id: str

    @property
    def lock(self) -> str:
        """A file that is locked as long as there is a supervisor."""
        return f"{self.state}.lock"

    @property
    def leaf(self) -> str:
        return f"testhost.{self.name}"

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> Plan:
        known = json.loads(text)
        return cls(**(known | {"ports": tuple(known["ports"]), "shared": tuple(known["shared"])}))


def container(plan: Plan) -> tuple[list[str], Mapping[str, str]]:
    """Command and environment; starts when a line comes on its stdin."""
    script = str(Path(__file__).with_name("enter.sh"))
    environment = {
        "PATH": PATH,
        "STATE": plan.state,
        "LOWER": plan.root,
        "NAME": plan.name,
        "UNIFIED": "1" if cgroups.unified() else "0",
        "HIERARCHIES": "\n".join(f"{h.at.name} {h.options}" for h in cgroups.hierarchies()),
        "SHARED": "\n".join(plan.shared),
    }
    spaces = ("--pid", "--mount", "--uts", "--ipc", "--cgroup")
    return ["unshare", *spaces, "--fork", "--kill-child", "sh", script], environment


def uml(plan: Plan, memory_folder: str) -> tuple[list[str], Mapping[str, str]]:
    """Command and environment. `memory_folder`: where the memory of the machine may be mapped from, best in memory."""
    kernel = [
        "linux.uml",
        f"mem={MEMORY}",
        f"ubd0={plan.state}/disk.cow,{plan.root}",
        "root=/dev/ubda",
        "rw",
        "con=null",
        "con0=null,fd:1",
        "ssl=null",
        "quiet",
        f"umid={plan.leaf}",
        "vec0:transport=tap,ifname=tap0,depth=64,gro=0",
        f"testhost.seed={plan.state}/seed",
        f"systemd.hostname={plan.name}",
        f"systemd.machine_id={plan.machine_id}",
        "systemd.unified_cgroup_hierarchy=1",
        "systemd.show_status=no",
    ]
    environment = {"PATH": PATH, "TMPDIR": memory_folder, "HOME": plan.state}
    return ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *kernel], environment
