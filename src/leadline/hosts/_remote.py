"""A host whose every fact and file comes from a command there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from leadline.errors import RefusedError
from leadline.evidence import ProcessFacts
from leadline.hosts import _facts, _files
from leadline.launch import Start
from leadline.ports import Completed, Session


class RemoteHost(ABC):
    """ports.Host but for `hold` and `forward`, from `run` alone: one command for each question. Paths are taken as they
    are: a symbolic link is replaced or removed itself, never what it points to."""

    name: str

    @abstractmethod
    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0) -> Completed:
        """As ports.Host."""

    def start(self, step: Start) -> Session:
        """Servers of our own are held by a pipe of this machine: there are none elsewhere."""
        raise RefusedError(
            f"a server of Leadline's own runs on this machine only, not on {self.name}: target command needs no host; "
            f"for a service there use target systemd, compose or script. Nothing was started."
        )

    def read(self, path: str, *, sudo: bool = False) -> bytes | None:
        return _files.read(self.run, path, sudo=sudo, name=self.name)

    def write(self, path: str, content: bytes, mode: int, *, sudo: bool = False) -> None:
        """`mode` exactly, whatever the umask. The owner becomes the user there, or root."""
        _files.write(self.run, path, content, mode, sudo=sudo, name=self.name)

    def remove(self, path: str, *, sudo: bool = False) -> None:
        _files.remove(self.run, path, sudo=sudo, name=self.name)

    def log(self, path: str) -> str:
        return (self.read(path) or b"").decode(errors="replace")

    def listener(self, host: str, port: int) -> ProcessFacts | None:
        """One whose owner cannot be seen (another user's, when we are not root there) has pid 0 and says so in its
        name."""
        return _facts.listener(self.run, host, port, name=self.name)

    def free_memory_bytes(self) -> int:
        return _facts.free_memory_bytes(self.run, name=self.name)

    def device_used_bytes(self) -> tuple[int, ...] | None:
        return _facts.device_used_bytes(self.run, name=self.name)

    def identity(self) -> dict[str, str]:
        return _facts.identity(self.run, name=self.name)
