"""A real sshd of this machine's OpenSSH on a loopback port, for the user who runs the tests, behind a wire that can be
cut or frozen."""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import pytest

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin") or ""
needs_sshd = pytest.mark.skipif(not (SSHD and shutil.which("ssh")), reason="OpenSSH's sshd and ssh are not installed")
USER = pwd.getpwuid(os.getuid()).pw_name
LIMIT_S = 30.0
T = TypeVar("T")


def wait_until(look: Callable[[], T], what: str, limit_s: float = LIMIT_S) -> T:
    """What `look` says as soon as it is true."""
    until = time.monotonic() + limit_s
    while not (seen := look()):
        assert time.monotonic() < until, f"{what}: not within {limit_s:g} s"
        time.sleep(0.01)
    return seen


class Wire:
    """A TCP relay on a loopback port that stays the same. Frozen, it passes nothing on and closes nothing."""

    def __init__(self, to: int) -> None:
        self._to = to
        self._flows = threading.Event()
        self._flows.set()
        self._lock = threading.Lock()
        self._ends: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.connections = 0
        self._server: socket.socket | None = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._server,), daemon=True).start()

    def _accept(self, server: socket.socket) -> None:
        while True:
            try:
                near, _ = server.accept()
            except OSError:
                return
            with self._lock:
                if self._server is not server:
                    near.close()
                    return
                far = socket.create_connection(("127.0.0.1", self._to))
                self.connections += 1
                for end in (near, far):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self._ends.append(end)
                for pair in ((near, far), (far, near)):
                    thread = threading.Thread(target=self._pass, args=pair, daemon=True)
                    thread.start()
                    self._threads.append(thread)

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self._flows.wait()
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def freeze(self) -> None:
        self._flows.clear()

    def thaw(self) -> None:
        self._flows.set()

    def cut(self) -> None:
        """Every connection ends, a new one is refused."""
        with self._lock:
            server, self._server = self._server, None
        if server is not None:
            with suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept
            server.close()
        self._flows.set()
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for end in self._ends:
            end.close()
        self._ends.clear()
        self._threads.clear()

    def mend(self) -> None:
        self._server = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, args=(self._server,), daemon=True).start()


class Sshd:
    """`config` is for `ssh -F`; `name` is the machine's name in it."""

    name = "box"

    def __init__(self, folder: Path, options: str = "", path: str = os.environ["PATH"]) -> None:
        """`options` = lines of sshd's configuration; `path` = where commands find programs."""
        self.folder = folder
        self.key, self.host_key = folder / "key", folder / "host_key"
        for key in (self.key, self.host_key):
            make_key(key)
        (folder / "authorized").write_text(f"{(folder / 'key.pub').read_text()}")
        port = free_port()
        (folder / "sshd_config").write_text(
            # From the second level on, bash does not read its user's start-up file.
            f"{options}\nSetEnv SHLVL=2 {shlex.quote(f'PATH={path}')}\n"
            f"ListenAddress 127.0.0.1\nPort {port}\nHostKey {self.host_key}\nPidFile none\nUsePAM no\nUseDNS no\n"
            f"StrictModes no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nPrintMotd no\n"
            f"PermitRootLogin prohibit-password\nAuthorizedKeysFile {folder}/authorized\n"
        )
        if os.getuid() == 0:
            os.makedirs("/run/sshd", 0o755, exist_ok=True)
        words = [SSHD, "-D", "-E", str(folder / "sshd.log"), "-f", str(folder / "sshd_config")]
        self._daemon = subprocess.Popen(words, stdin=subprocess.DEVNULL)
        wait_until(lambda: self._daemon.poll() is not None or answers(port), "sshd listens")
        assert self._daemon.poll() is None, (folder / "sshd.log").read_text()
        self.wire = Wire(port)
        self.config, self.known = folder / "ssh_config", folder / "known_hosts"
        self.know(self.host_key)
        self.configure()

    def configure(self, *lines: str, **changed: str) -> str:
        """Write ssh's config with these lines first; returns its path."""
        port = changed.get("Port", str(self.wire.port))
        entry = {"HostName": "127.0.0.1", "Port": port, "User": USER, "IdentityFile": str(self.key), **changed}
        rows = [f"Host {self.name}", *lines, *(f"{k} {v}" for k, v in entry.items())]
        rows += ["IdentitiesOnly yes", f"UserKnownHostsFile {self.known}", "GlobalKnownHostsFile none"]
        self.config.write_text("\n".join(rows) + "\n")
        return str(self.config)

    def know(self, key: Path) -> None:
        """Take this for the machine's key."""
        public = Path(f"{key}.pub").read_text()
        self.known.write_text(f"[127.0.0.1]:{self.wire.port} {public}")

    def down(self) -> None:
        self._daemon.terminate()
        self._daemon.wait()
        self.wire.cut()


@contextmanager
def sshd(folder: Path, options: str = "", path: str = os.environ["PATH"]) -> Iterator[Sshd]:
    folder.mkdir(exist_ok=True)
    server = Sshd(folder, options, path)
    try:
        yield server
    finally:
        server.down()


def make_key(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def fake(folder: Path, name: str, script: str) -> str:
    """A program of that name; returns a PATH that finds it first."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


SUDO = 'case $1 in -n) shift ;; *) echo "sudo: a terminal is required" >&2; exit 1 ;; esac; exec env AS_ROOT=1 "$@"'
"""Sudo that lets us without a password, and never asks for one."""
NO_SUDO = "echo 'sudo: a password is required' >&2; exit 1"
