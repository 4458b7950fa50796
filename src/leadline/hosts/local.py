"""This machine as a Host."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from leadline.errors import HostError
from leadline.evidence import ProcessFacts
from leadline.hosts import _machine
from leadline.hosts._session import LocalSession
from leadline.launch import LaunchSpec, Start, masked
from leadline.ports import Completed

GPU_QUERY = ("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")


class LocalHost:
    """ports.Host on this machine (Linux). Paths are taken as they are: a symbolic link is replaced or removed itself,
    never what it points to."""

    name = "local"

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0) -> Completed:
        """Never through a shell. When the time is over or we are interrupted, the command's process group is killed."""
        try:
            # A group of its own, not a session: sudo must still find our terminal.
            child = subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                process_group=0,
            )
        except (OSError, ValueError) as error:
            raise HostError(f"cannot run {_shown(argv)}: {_why(error)}") from error
        try:
            stdout, stderr = child.communicate(stdin, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise HostError(
                f"{_shown(argv)} did not end within {timeout_s:g} s; run it by hand to see what it waits for"
            ) from None
        finally:
            _end(child)
        code = child.returncode
        return Completed(argv=tuple(argv), code=128 - code if code < 0 else code, stdout=stdout, stderr=stderr)

    def start(self, step: Start) -> LocalSession:
        return LocalSession(step)

    def read(self, path: str) -> bytes | None:
        try:
            return Path(path).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise HostError(f"cannot read {path}: {_why(error)}") from error

    def write(self, path: str, content: bytes, mode: int) -> None:
        """`mode` exactly, whatever the umask. The owner becomes us."""
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
            raise HostError(f"cannot write {path}: {_why(error)}. What was there is still there.") from error

    def remove(self, path: str) -> None:
        try:
            os.unlink(path)
            _sync(os.path.dirname(path) or ".")
        except FileNotFoundError:
            return
        except OSError as error:
            raise HostError(f"cannot remove {path}: {_why(error)}") from error

    def log(self, path: str) -> str:
        return (self.read(path) or b"").decode(errors="replace")

    def listener(self, host: str, port: int) -> ProcessFacts | None:
        """One whose owner cannot be seen has pid 0 and says so in its name."""
        return _machine.listener(host, port)

    def free_memory_bytes(self) -> int:
        return _machine.free_memory_bytes()

    def identity(self) -> dict[str, str]:
        """Keys cpu, cores, memory_gib, kernel; gpu and gpu_driver where nvidia-smi tells them."""
        known = _machine.processor()
        if shutil.which(GPU_QUERY[0]):
            asked = self.run(GPU_QUERY, timeout_s=30)
            if asked.code == 0:
                known.update(_machine.accelerators(asked.stdout.decode(errors="replace")))
        return known


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill a command that has not ended, with its group: as long as the leader is not reaped, it is the one we made.

    One that sudo runs for another user is out of our reach and is left.
    """
    for pipe in (child.stdin, child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()
    if child.returncode is None:
        try:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        except (ProcessLookupError, PermissionError):
            return


def _sync(folder: str) -> None:
    """Make a rename in that folder survive a power cut."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _shown(argv: Sequence[str]) -> str:
    return shlex.join(masked(LaunchSpec(argv=tuple(argv))).argv)


def _why(error: OSError | ValueError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


host = LocalHost
