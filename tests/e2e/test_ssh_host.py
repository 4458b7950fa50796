"""SshHost against a real sshd: what it says when there is no way, and what is left when the way or Leadline breaks."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import psutil
import pytest
from support_sshd import NO_SUDO, Sshd, answers, fake, free_port, make_key, needs_sshd, sshd, wait_until

from leadline.errors import HostError, HostLost, InputError
from leadline.hosts._link import private_folder
from leadline.hosts.ssh import SshHost
from leadline.testing.host_suite import HOST_LAWS, Ground

pytestmark = needs_sshd
SHELLS = [s for s in ("dash", "bash", "zsh", "fish", "tcsh", "mksh") if shutil.which(s)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Sshd]:
    with sshd(tmp_path / "sshd", "LogLevel VERBOSE") as server:
        yield server


@pytest.fixture
def connect(server: Sshd) -> Iterator[Callable[..., SshHost]]:
    """A host that is closed at the end."""
    hosts: list[SshHost] = []

    def make(name: str = Sshd.name, alive_s: int = 5, connect_s: int = 10) -> SshHost:
        hosts.append(SshHost(name, str(server.config), alive_s=alive_s, connect_s=connect_s))
        return hosts[-1]

    yield make
    for host in hosts:
        host.close()


Connect = Callable[..., SshHost]


class Later:
    """What a call in a thread of its own raised."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work, self._raised = work, list[BaseException]()
        self._thread = threading.Thread(target=self._do)
        self._thread.start()

    def _do(self) -> None:
        try:
            self._work()
        except HostError as error:
            self._raised.append(error)

    def raised(self) -> BaseException | None:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return next(iter(self._raised), None)


def changed_key(server: Sshd) -> None:
    make_key(server.folder / "other")
    server.know(server.folder / "other")


def unknown_key(server: Sshd) -> None:
    server.known.write_text("")


def unknown_key_that_the_config_takes(server: Sshd) -> None:
    unknown_key(server)
    server.configure("StrictHostKeyChecking no")


def unknown_key_that_is_kept_nowhere(server: Sshd) -> None:
    server.configure("StrictHostKeyChecking accept-new", "UserKnownHostsFile /dev/null")


def foreign_key(server: Sshd) -> None:
    make_key(server.folder / "foreign")
    server.configure(IdentityFile=str(server.folder / "foreign"))


def closed_port(server: Sshd) -> None:
    server.wire.cut()


def unknown_name(server: Sshd) -> None:
    server.configure(HostName="no-such-machine.invalid")


def silence(server: Sshd) -> None:
    server.wire.freeze()


def wrong_config(server: Sshd) -> None:
    server.configure("NoSuchOption yes")


WAYS = [
    (changed_key, ["host key has changed", "ssh-keygen -R"]),
    (unknown_key, ["host key is not known here", "fingerprint"]),
    (unknown_key_that_the_config_takes, ["host key is not known here"]),
    (unknown_key_that_is_kept_nowhere, ["host key is not known here"]),
    (foreign_key, ["permission denied (publickey)", "ssh's agent"]),
    (closed_port, ["connection refused"]),
    (unknown_name, ["name is not found", "service.host"]),
    (silence, ["does not answer (timed out)"]),
    (wrong_config, ["ssh's config is wrong"]),
]


@pytest.mark.parametrize(("way", "words"), WAYS, ids=[w.__name__ for w, _ in WAYS])
def test_no_way_is_said_with_what_to_do(
    server: Sshd, connect: Connect, way: Callable[[Sshd], None], words: list[str]
) -> None:
    way(server)
    host = connect(connect_s=2)
    actions = (lambda: host.run(("true",)), lambda: host.forward("127.0.0.1", 1), lambda: host.hold(("cat",)))
    for action in actions:
        with pytest.raises(HostLost) as caught:
            action()
        for word in ("box", *words):
            assert word in str(caught.value)
    server.wire.thaw()
    assert host._link.connected is False


def test_a_name_that_is_an_option_reaches_no_ssh() -> None:
    for name in ("-oProxyCommand=touch x", "", "ssh://-x", "a b"):
        with pytest.raises(InputError, match="ssh://user@host"):
            SshHost(name)


def test_without_ssh_it_is_said(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/none")
    with pytest.raises(HostError, match="Install the OpenSSH client"):
        connect().run(("true",))


def test_an_address_as_a_url(server: Sshd, connect: Connect) -> None:
    """The options of the config's entry for that host hold."""
    server.config.write_text(server.config.read_text().replace("Host box", "Host 127.0.0.1"))
    assert connect(f"ssh://127.0.0.1:{server.wire.port}").run(("echo", "here")).stdout == b"here\n"


def test_sudo_that_wants_a_password(tmp_path: Path) -> None:
    with sshd(tmp_path / "sshd", path=fake(tmp_path / "bin", "sudo", NO_SUDO)) as server:
        host = SshHost(server.name, str(server.config))
        path = str(tmp_path / "file")
        for action in (
            lambda: host.run(("sudo", "-n", "systemctl", "stop", "x")),
            lambda: host.hold(("sudo", "-n", "cat")),
            lambda: host.read(path, sudo=True),
            lambda: host.write(path, b"", 0o600, sudo=True),
            lambda: host.remove(path, sudo=True),
        ):
            with pytest.raises(HostError, match="leadline doctor --sudoers") as caught:
                action()
            assert "password is required" in str(caught.value)
            assert not isinstance(caught.value, HostLost)
        host.close()


def test_a_login_shell_that_talks(tmp_path: Path) -> None:
    talks = 'ForceCommand echo "Welcome to box!"; eval "$SSH_ORIGINAL_COMMAND"'
    with sshd(tmp_path / "sshd", talks) as server:
        host = SshHost(server.name, str(server.config))
        with pytest.raises(HostError, match=r"Welcome to box!.*bashrc"):
            host.run(("true",))
        host.close()


@pytest.mark.parametrize("shell", SHELLS)
def test_words_survive_every_login_shell(tmp_path: Path, shell: str) -> None:
    with sshd(tmp_path / "sshd", f'ForceCommand exec {shell} -c "$SSH_ORIGINAL_COMMAND"') as server:
        host = SshHost(server.name, str(server.config))
        ground = Ground(host=host, folder=str(tmp_path), python=sys.executable)
        HOST_LAWS["passes_words_as_they_are"](ground)
        HOST_LAWS["reads_back_what_it_wrote"](ground)
        host.close()


def test_too_few_sessions(tmp_path: Path) -> None:
    with sshd(tmp_path / "sshd", "MaxSessions 1") as server:
        host = SshHost(server.name, str(server.config))
        with pytest.raises(HostError, match="MaxSessions"):
            host.run(("true",))
        host.close()


def test_one_question_is_one_command(server: Sshd, connect: Connect, tmp_path: Path) -> None:
    host, path = connect(), str(tmp_path / "file")
    host.run(("true",))
    log = server.folder / "sshd.log"

    def commands() -> int:
        return log.read_text().count("Starting session: command")

    for question in (
        lambda: host.write(path, b"x" * 1000, 0o600),
        lambda: host.read(path),
        lambda: host.log(path),
        lambda: host.listener("127.0.0.1", server.wire.port),
        host.free_memory_bytes,
        host.device_used_bytes,
        host.identity,
        lambda: host.remove(path),
    ):
        before = commands()
        question()
        assert commands() == before + 1
    assert server.wire.connections == 1


def test_a_jump(server: Sshd, connect: Connect) -> None:
    inner = re.search(r"^Port (\d+)$", (server.folder / "sshd_config").read_text(), re.MULTILINE)
    assert inner
    public = Path(f"{server.host_key}.pub").read_text()
    server.known.write_text(f"{server.known.read_text()}[127.0.0.1]:{inner[1]} {public}")
    entry = server.config.read_text()
    far = entry.replace("Host box", "Host far").replace(f"Port {server.wire.port}", f"Port {inner[1]}\nProxyJump box")
    server.config.write_text(entry + far)
    host = connect("far")
    assert host.run(("cat",), stdin=b"through").stdout == b"through"
    assert server.wire.connections == 1
    server.wire.cut()
    with pytest.raises(HostLost):
        host.run(("true",))
    with pytest.raises(HostLost, match="connection refused"):
        host.run(("true",))


def test_a_cut_while_a_command_runs(server: Sshd, connect: Connect, tmp_path: Path) -> None:
    host, sign = connect(), tmp_path / "sign"
    command = Later(
        lambda: host.run(("sh", "-c", 'echo up > "$1"; cat; sleep 1; exit 9', "sh", str(sign)), timeout_s=60)
    )
    wait_until(sign.exists, "the command runs")
    server.wire.cut()
    lost = command.raised()
    assert isinstance(lost, HostLost)
    assert "connection" in str(lost)
    with pytest.raises(HostLost, match="connection refused"):
        host.run(("true",))
    server.wire.mend()
    assert host.run(("echo", "again")).stdout == b"again\n"


def test_a_cut_while_a_command_is_held(server: Sshd, connect: Connect, tmp_path: Path) -> None:
    host, note = connect(), tmp_path / "note"
    held = host.hold(("sh", "-c", 'echo up; cat; echo ended > "$1"', "sh", str(note)))
    assert held.alive()
    server.wire.cut()
    wait_until(lambda: not held.alive(), "the cut is noticed")
    wait_until(note.exists, "the command sees the end of its input")
    held.end()
    server.wire.mend()
    again = host.hold(("sh", "-c", "echo up; cat"))
    assert again.alive()
    again.end()


def test_a_network_that_is_silent(server: Sshd, connect: Connect) -> None:
    """Nothing is closed, nothing comes: signs of life tell. What was forwarded is forwarded again, from the same
    port."""
    host = connect(alive_s=1, connect_s=2)
    held = host.hold(("sh", "-c", "echo up; cat"))
    near = host.forward("127.0.0.1", server.wire.port)
    assert answers(near[1])
    server.wire.freeze()
    with pytest.raises(HostLost):
        host.run(("true",), timeout_s=60)
    assert not held.alive()
    with pytest.raises(HostLost, match="timed out"):
        host.run(("true",))
    server.wire.thaw()
    assert host.run(("true",)).code == 0
    assert host.forward("127.0.0.1", server.wire.port) == near
    assert answers(near[1])


def test_a_limit_that_passes_in_a_silent_network(server: Sshd, connect: Connect) -> None:
    """It is the way that is gone, not the command that is slow."""
    host = connect(alive_s=3)
    assert host.run(("true",)).code == 0
    server.wire.freeze()
    with pytest.raises(HostLost, match="timed out"):
        host.run(("true",), timeout_s=0.5)
    server.wire.thaw()


def test_a_write_that_is_cut_leaves_the_old_file(server: Sshd, connect: Connect, tmp_path: Path) -> None:
    host, folder = connect(), tmp_path / "folder"
    folder.mkdir()
    (folder / "file").write_text("old")
    writing = Later(lambda: host.write(str(folder / "file"), b"new" * 2**24, 0o600))
    wait_until(lambda: len(os.listdir(folder)) == 2, "the draft is written")
    server.wire.freeze()
    server.wire.cut()
    assert isinstance(writing.raised(), HostLost)
    wait_until(lambda: os.listdir(folder) == ["file"], "the draft is gone")
    assert (folder / "file").read_text() == "old"


DRIVER = """
import json, os, sys, time
from leadline.hosts.ssh import SshHost
host = SshHost("box", sys.argv[1])
held = host.hold(("sh", "-c", 'echo up; cat; echo ended > "$1"', "sh", sys.argv[2]))
near = host.forward("127.0.0.1", int(sys.argv[3]))
child = os.fork() if sys.argv[4] == "forks" else 0
if sys.argv[4] == "forks" and child == 0:
    time.sleep(600)
print(json.dumps([near[1], child]), flush=True)
if sys.argv[4] == "runs":
    host.run(("sh", "-c", 'echo up > "$1"; sleep 1', "sh", sys.argv[2] + ".runs"), timeout_s=60)
time.sleep(600)
"""


@pytest.mark.parametrize("doing", ["waits", "runs", "forks"])
def test_when_we_are_killed_the_other_side_sees_the_end(server: Sshd, tmp_path: Path, doing: str) -> None:
    """And no ssh of ours is left, though a fork of us lives on."""
    note, tag = tmp_path / "note", uuid4().hex
    argv = [sys.executable, "-c", DRIVER, str(server.config), str(note), str(server.wire.port), doing]
    driver = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env={**os.environ, "LEADLINE_TEST": tag})
    assert driver.stdout is not None
    near, child = json.loads(driver.stdout.readline())
    assert answers(near)
    if doing == "runs":
        wait_until((tmp_path / "note.runs").exists, "the command runs")
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    driver.stdout.close()
    wait_until(note.exists, "the held command sees the end of its input")
    wait_until(lambda: tagged(tag) == ([child] if child else []), "no ssh of ours is left")
    if child:
        os.kill(child, signal.SIGKILL)
    assert not answers(near)


def tagged(tag: str) -> list[int]:
    """Processes that the driver started here; commands on the other side have another environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("LEADLINE_TEST") == tag and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def test_our_own_standard_input_is_left_alone(server: Sshd) -> None:
    code = (
        "import sys; from leadline.hosts.ssh import SshHost; host = SshHost('box', sys.argv[1])\n"
        "host.run(('cat',)); held = host.hold(('sh', '-c', 'echo up; cat')); held.end(); print(sys.stdin.read())"
    )
    argv = [sys.executable, "-c", code, str(server.config)]
    done = subprocess.run(argv, input="ours", capture_output=True, text=True, timeout=60)
    assert done.stdout == "ours\n", done.stderr


def test_nothing_is_left_after_the_end(server: Sshd) -> None:
    """Of the program, without a word; a fork in between keeps nothing open and ends nothing."""
    code = (
        "import os, sys; from leadline.hosts.ssh import SshHost; host = SshHost('box', sys.argv[1])\n"
        "held = host.hold(('sh', '-c', 'echo up; cat'))\n"
        "if os.fork() == 0: sys.exit(0)\n"
        "os.wait(); assert held.alive(); assert host.run(('true',)).code == 0\n"
    )
    tag = uuid4().hex
    argv = [sys.executable, "-c", code, str(server.config)]
    with tempfile.TemporaryDirectory(dir="/tmp") as run:
        env = {**os.environ, "LEADLINE_TEST": tag, "XDG_RUNTIME_DIR": run}
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, env=env)
        assert (done.returncode, done.stderr) == (0, "")
        wait_until(lambda: not tagged(tag), "no ssh of ours is left")
        assert os.listdir(f"{run}/leadline-ssh-{os.getuid()}") == []
    assert server.wire.connections == 1


def test_a_folder_for_sockets_that_is_not_ours_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 80)
    long.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    assert not private_folder().startswith(str(long))
    short = Path("/tmp") / uuid4().hex[:8]
    short.mkdir()
    try:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(short))
        mine = Path(private_folder())
        assert mine.parent == short
        assert mine.stat().st_mode & 0o777 == 0o700
        mine.chmod(0o755)
        assert Path(private_folder()).parent != short
        mine.rmdir()
        mine.symlink_to(tmp_path)
        assert Path(private_folder()).parent != short
    finally:
        shutil.rmtree(short)


def test_a_port_that_is_taken_is_not_forwarded(server: Sshd, connect: Connect) -> None:
    host = connect()
    first, second = host.forward("127.0.0.1", free_port()), host.forward("127.0.0.1", server.wire.port)
    assert first != second
    assert answers(second[1])
