"""This machine as a Host."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from leadline.errors import HostError
from leadline.evidence import ProcessFacts
from leadline.hosts import _child, _facts, _files, _machine, _words
from leadline.hosts._session import LocalSession
from leadline.launch import Start
from leadline.ports import Completed

GPU_QUERY = ("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")


class LocalHost:
    """ports.Host on this machine (Linux). Paths are taken as they are: a symbolic link is replaced or removed itself,
    never what it points to."""

    name = "local"

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0) -> Completed:
        """Never through a shell. When the time is over or we are interrupted, the command's process group is killed."""
        try:
            done = _child.call(argv, stdin, timeout_s)
        except _child.Slow:
            raise _child.slow(argv, timeout_s, "this machine") from None
        except (OSError, ValueError) as error:
            raise HostError(f"cannot run {_child.shown(argv)}: {_child.why(error)}") from error
        _words.refuse_sudo(done, "this machine")
        return done

    def start(self, step: Start) -> LocalSession:
        return LocalSession(step)

    def hold(self, argv: Sequence[str], *, timeout_s: float = 60.0) -> _child.HeldCommand:
        """Its input ends as soon as we end, however that comes."""

        def failed(done: Completed) -> HostError:
            _words.refuse_missing(argv, done, "this machine")
            _words.refuse_sudo(done, "this machine")
            said = _words.last_line(done.stderr)
            return HostError(f"{_child.shown(argv)} ended with {done.code} and holds nothing: {said}")

        try:
            return _child.HeldCommand(argv, words=argv, timeout_s=timeout_s, failed=failed)
        except (OSError, ValueError) as error:
            raise HostError(f"cannot run {_child.shown(argv)}: {_child.why(error)}") from error

    def read(self, path: str, *, sudo: bool = False) -> bytes | None:
        if sudo:
            return _files.read(self.run, path, sudo=True, name="this machine")
        try:
            return Path(path).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise HostError(f"cannot read {path}: {_child.why(error)}") from error

    def write(self, path: str, content: bytes, mode: int, *, sudo: bool = False) -> None:
        """`mode` exactly, whatever the umask. The owner becomes us, or root."""
        if sudo:
            _files.write(self.run, path, content, mode, sudo=True, name="this machine")
            return
        folder = os.path.dirname(path) or "."
        try:
            fd, draft = tempfile.mkstemp(prefix=".leadline-", dir=folder)
            try:
                with open(fd, "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fchmod(fd, mode)
                    os.fsync(fd)
                os.replace(draft, path)
            except BaseException:
                os.unlink(draft)
                raise
            _sync(folder)
        except OSError as error:
            raise HostError(f"cannot write {path}: {_child.why(error)}. What was there is still there.") from error

    def remove(self, path: str, *, sudo: bool = False) -> None:
        if sudo:
            _files.remove(self.run, path, sudo=True, name="this machine")
            return
        try:
            os.unlink(path)
            _sync(os.path.dirname(path) or ".")
        except FileNotFoundError:
            return
        except OSError as error:
            raise HostError(f"cannot remove {path}: {_child.why(error)}") from error

    def log(self, path: str) -> str:
        return (self.read(path) or b"").decode(errors="replace")

    def listener(self, host: str, port: int) -> ProcessFacts | None:
        """One whose owner cannot be seen has pid 0 and says so in its name."""
        return _machine.listener(host, port)

    def forward(self, host: str, port: int) -> tuple[str, int]:
        return host, port

    def free_memory_bytes(self) -> int:
        return _machine.free_memory_bytes()

    def device_used_bytes(self) -> tuple[int, ...] | None:
        """As nvidia-smi tells it, or rocm-smi."""
        return _facts.device_used_bytes(self.run, name="this machine")

    def identity(self) -> dict[str, str]:
        """Keys cpu, cores, memory_gib, kernel; gpu and gpu_driver where nvidia-smi tells them."""
        known = _machine.processor()
        if shutil.which(GPU_QUERY[0]):
            asked = self.run(GPU_QUERY, timeout_s=30)
            if asked.code == 0:
                known.update(_machine.accelerators(asked.stdout.decode(errors="replace")))
        return known


def _sync(folder: str) -> None:
    """Make a rename in that folder survive a power cut."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


host = LocalHost
