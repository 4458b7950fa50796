"""A host with a real systemd and a real sshd, for tests that would prove nothing without one."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import pytest
import testhost
from testhost.shared import python

_reason = testhost.lacking("container")
needs_systemd = pytest.mark.skipif(bool(_reason), reason=f"the host with a real systemd {_reason}")
_uml_reason = testhost.lacking("uml")
needs_uml = pytest.mark.skipif(bool(_uml_reason), reason=f"the host with a kernel of its own {_uml_reason}")


class SystemdHost:
    """Reached as root by `ssh -F ssh_config ssh_name`, as a plain user by `ssh -F ssh_config operator@ssh_name`.

    That user may use sudo only after `put("/etc/sudoers.d/operator", "operator ALL=(root) NOPASSWD: ALL\\n", 0o440)` or
    the like. `python` runs inside and can import leadline. src, tests and the virtual environment are read-only inside.
    """

    def __init__(self, host: testhost.Host) -> None:
        self._host = host
        self.name = self.ssh_name = host.name
        self.ssh_config: Path = host.ssh_config
        self.python: str = python()

    @classmethod
    def up(cls, *, backend: Literal["container", "uml"] = "container", publish: Sequence[int] = ()) -> SystemdHost:
        """Each call gives another host. `publish`: ports inside for `port_of`."""
        return cls(testhost.Host.up(backend=backend, publish=publish))

    def port_of(self, inner: int) -> int:
        """The port of 127.0.0.1 here that leads to `inner`, one of those published."""
        return self._host.port_of(inner)

    def sh(self, script: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
        """`sh -c` inside as root, under container also while the link is cut. `check`: raise unless it ends with 0."""
        return self._host.sh(script, check=check)

    def put(self, path: str, text: str, mode: int = 0o644) -> None:
        """Write a file inside, with its folders; owner root."""
        self._host.put(path, text, mode)

    def crash(self) -> None:
        """Cut the power: every process ends at once, the disk stays, /run is lost."""
        self._host.crash()

    def again(self) -> None:
        """Boot after a crash, and wait until it is up. Ports and keys are as before."""
        self._host.again()

    def cut(self) -> None:
        """Reset all ssh connections, on both sides, and refuse new ones. Other published ports stay open."""
        self._host.cut()

    def mend(self) -> None:
        self._host.mend()

    def down(self) -> None:
        self._host.down()


@pytest.fixture(scope="module")
def systemd_host() -> Iterator[SystemdHost]:
    """One for all tests of a module, which mark themselves with `needs_systemd`."""
    host = SystemdHost.up()
    try:
        yield host
    finally:
        host.down()
