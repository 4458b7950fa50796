"""One test host, as a test sees it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shlex
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testhost import cgroups, plan, recipe, rootfs, shared
from testhost.plan import Plan

_UP_S = {"container": 60.0, "uml": 180.0}
_DOWN_S = 30.0
_SH_S = 120.0
_ENTER = ("--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup")
_ENVIRONMENT = ("env", "-i", f"PATH={plan.PATH}", "HOME=/root", "LANG=C.UTF-8")


class HostTrouble(RuntimeError):
    """The host did not do what it was asked. Says what, with the end of its console."""


@dataclass
class Host:
    """There from `up` to `down` or the end of this process. `name` is its host name and its name for ssh."""

    name: str
    backend: str
    ssh_config: Path
    _folder: Path
    _supervisor: subprocess.Popen[str]

    @classmethod
    def up(cls, *, backend: str = "container", publish: Sequence[int] = ()) -> Host:
        """Returns when ssh answers and systemd has started everything. The first one on a machine builds the root (a
        minute or two). `publish`: ports inside that `port_of` shall know. Raises HostTrouble."""
        if reason := recipe.lacking(backend):
            raise HostTrouble(f"this machine cannot have a test host: {reason}")
        sweep()
        name = f"host-{secrets.token_hex(4)}"
        folder = rootfs.RUNS / name
        with rootfs.in_use() as root_lock, rootfs.locked(_lock(name)) as own_lock:
            try:
                root = rootfs.ready(backend)
            except rootfs.RootTrouble as error:
                raise HostTrouble(f"cannot build the root of a test host: {error}") from None
            folder.mkdir(parents=True)
            ports = (plan.SSH_PORT, *(p for p in publish if p != plan.SSH_PORT))
            made = Plan(name, backend, str(folder), str(root), ports, shared.folders(), uuid.uuid4().hex)
            _seed(made)
            with open(folder / "console.log", "ab") as console:
                supervisor = subprocess.Popen(
                    [sys.executable, "-m", "testhost.supervisor", name],
                    cwd=Path(__file__).parents[1],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=console,
                    text=True,
                    bufsize=1,
                    start_new_session=True,
                    pass_fds=(root_lock, own_lock),
                )
        host = cls(name, backend, folder / "ssh_config", folder, supervisor)
        try:
            host._tell(made.text())
            _write_ssh_config(host, folder)
            host.again()
        except BaseException:
            host.down()
            raise
        return host

    def port_of(self, inner: int) -> int:
        """The port of 127.0.0.1 that leads to a published one. Under uml the service inside must listen on 0.0.0.0."""
        return int(self._ask("status")["ports"][str(inner)])

    def sh(self, script: str, *, stdin: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run by `sh -c` inside, as root. `check`: raise HostTrouble when it does not end with 0."""
        status = self._ask("status")
        if not status["on"]:
            raise HostTrouble(f"{self.name} is off")
        if self.backend == "container":
            done = _run(["nsenter", "--target", str(status["init"]), *_ENTER, *_ENVIRONMENT, "sh", "-c", script], stdin)
        else:
            done = _run(["ssh", "-F", str(self.ssh_config), self.name, f"sh -c {shlex.quote(script)}"], stdin)
        if check and done.returncode:
            raise HostTrouble(f"`{script}` ended with {done.returncode} on {self.name}: {done.stderr or done.stdout}")
        return done

    def put(self, path: str, text: str, mode: int) -> None:
        """Write a file, with its folders; owner root."""
        to, folder = shlex.quote(path), shlex.quote(os.path.dirname(path))
        self.sh(f"mkdir -p {folder} && cat > {to} && chmod {mode:o} {to}", stdin=text)

    def crash(self) -> None:
        """Cut the power: every process ends at once, the disk stays as it is, /run is lost."""
        self._ask("crash")

    def again(self) -> None:
        """Boot, when it is off, and wait until it is up. Same ports and keys as before. With the link cut, which it
        stays, there is nothing to wait for."""
        deadline = time.monotonic() + _UP_S[self.backend]
        cut = self._ask("boot")["cut"]
        while not cut:
            done = _run(["ssh", "-F", str(self.ssh_config), self.name, "systemctl is-system-running --wait"], "")
            if done.stdout.strip() in ("running", "degraded"):
                return
            if time.monotonic() > deadline or not self._ask("status")["on"]:
                raise HostTrouble(f"{self.name} is not up: {done.stdout}{done.stderr}\n{self._console()}")
            time.sleep(0.05)

    def cut(self) -> None:
        """Reset every ssh connection, on both sides, and refuse new ones. Other published ports stay."""
        self._ask("cut")

    def mend(self) -> None:
        self._ask("mend")

    def down(self) -> None:
        """Remove every trace of it. More than once does no harm."""
        pipes = (self._supervisor.stdin, self._supervisor.stdout)
        for pipe in pipes:
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            self._supervisor.wait(_DOWN_S)
        except subprocess.TimeoutExpired:
            self._supervisor.kill()
            self._supervisor.wait()
        sweep()

    def _ask(self, command: str) -> dict[str, Any]:
        self._tell(command)
        assert self._supervisor.stdout is not None
        answer: dict[str, Any] = json.loads(self._supervisor.stdout.readline() or '{"error": "its supervisor is gone"}')
        if "error" in answer:
            raise HostTrouble(f"cannot {command} {self.name}: {answer['error']}\n{self._console()}")
        return answer

    def _tell(self, line: str) -> None:
        assert self._supervisor.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._supervisor.stdin.write(f"{line}\n")
            self._supervisor.stdin.flush()

    def _console(self) -> str:
        try:
            return (self._folder / "console.log").read_text(errors="replace")[-2000:]
        except FileNotFoundError:
            return ""


def sweep() -> None:
    """Remove what hosts left whose supervisor was killed. Those that are up hold their lock."""
    for folder in rootfs.RUNS.glob("*/"):
        with contextlib.suppress(BlockingIOError), open(_lock(folder.name), "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            cgroups.sweep(f"testhost.{folder.name}")
            shutil.rmtree(folder, ignore_errors=True)
            _lock(folder.name).unlink(missing_ok=True)


def _lock(name: str) -> Path:
    return rootfs.RUNS / f"{name}.lock"


def _run(argv: Sequence[str], stdin: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=_SH_S, check=False)
    except subprocess.TimeoutExpired:
        raise HostTrouble(f"{' '.join(argv)} did not end within {_SH_S:g} s") from None


def _seed(made: Plan) -> None:
    """The files that are of this host alone, in a tree that is laid over the root."""
    state = Path(made.state)
    seed = state / ("upper" if made.backend == "container" else "seed")
    for keys in ("root/.ssh", f"home/{recipe.OPERATOR}/.ssh"):
        (seed / keys).mkdir(parents=True)
    for path, mode in ((state, 0o755), (seed / "root", 0o711), (seed / "root/.ssh", 0o700)):
        path.chmod(mode)  # 0711: the shared interpreter may lie below root's home, and the operator uses it too
    (seed / "etc/ssh").mkdir(parents=True)
    for file in (state / "id_ed25519", seed / "etc/ssh/testhost_ed25519"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", made.name, "-f", file], check=True)
    public = (state / "id_ed25519.pub").read_text()
    (seed / "root/.ssh/authorized_keys").write_text(public)
    (seed / f"home/{recipe.OPERATOR}/.ssh/authorized_keys").write_text(public)
    for path in (seed / f"home/{recipe.OPERATOR}", *(seed / f"home/{recipe.OPERATOR}").rglob("*")):
        os.chown(path, recipe.OPERATOR_ID, 100)
    (seed / "etc/hostname").write_text(f"{made.name}\n")
    (seed / "etc/hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {made.name}\n")
    (seed / "etc/machine-id").write_text(f"{made.machine_id}\n")
    (seed / "etc/testhost.shared").write_text("".join(f"{folder}\n" for folder in made.shared))


def _write_ssh_config(host: Host, folder: Path) -> None:
    port = host.port_of(plan.SSH_PORT)
    seed = next(f for f in (folder / "upper", folder / "seed") if f.exists())
    public = (seed / "etc/ssh/testhost_ed25519.pub").read_text()
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {public}")
    lines = (
        f"Host {host.name}",
        "HostName 127.0.0.1",
        f"Port {port}",
        "User root",
        f"IdentityFile {folder}/id_ed25519",
        "IdentitiesOnly yes",
        f"UserKnownHostsFile {folder}/known_hosts",
        "GlobalKnownHostsFile /dev/null",
        "StrictHostKeyChecking yes",
        "BatchMode yes",
        "ConnectTimeout 10",
        "LogLevel ERROR",
    )
    host.ssh_config.write_text("\n".join(lines) + "\n")
