"""What the laws of every host do not cover: this machine's own facts, and how a session ends when things go wrong."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from leadline.errors import HostError
from leadline.evidence import ExitFacts
from leadline.hosts import _machine
from leadline.hosts._session import LocalSession
from leadline.hosts.local import LocalHost
from leadline.launch import LaunchSpec, Start

HOST = LocalHost()
STUBBORN = 'trap "" TERM; sleep 600 & echo "$$ $!" > "$0"; wait'


Served = tuple[LocalSession, list[psutil.Process]]
Serve = Callable[..., Served]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts a shell script as a server; gives the session, and the processes whose pids it writes into its "$0"."""
    sessions: list[LocalSession] = []
    fifo = tmp_path / "sign"
    os.mkfifo(fifo)

    def start(script: str, *words: str) -> Served:
        launch = LaunchSpec(argv=("sh", "-c", script, str(fifo), *words))
        sessions.append(HOST.start(Start(launch=launch, log=str(tmp_path / "log"), grace_s=0.1)))
        pids = HOST.run(("cat", str(fifo)), timeout_s=30).stdout.split()
        return sessions[-1], [psutil.Process(int(pid)) for pid in pids]

    yield start
    for session in sessions:
        session.end(0)


def alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_ctrl_c_while_a_server_ends_still_ends_it(serve: Serve) -> None:
    """The server, asked to end, sends the signal itself: so it comes while `end` waits, and the grace is long."""
    script = 'trap \'kill -INT "$1"\' TERM; sleep 600 & echo "$$ $!" > "$0"; while :; do wait; done'
    session, family = serve(script, str(os.getpid()))
    with pytest.raises(KeyboardInterrupt):
        session.end(3600)
    facts = session.end(3600)
    assert (facts.signal, facts.asked) == (9, True)
    assert not any(map(alive, family))


@pytest.mark.parametrize("which", ["inner", "outer"])
def test_a_killed_supervisor_leaves_nothing_and_nobody_saw_how(serve: Serve, which: str) -> None:
    session, family = serve(STUBBORN)
    inner = family[0].parent()
    assert inner is not None
    target = inner if which == "inner" else inner.parent()
    assert target is not None
    target.kill()
    facts = session.end(0.1)
    assert not any(map(alive, family))
    assert session.process() is None
    assert session.exit() == facts
    assert (facts.code, facts.signal) == ((None, None) if which == "inner" else (None, 9))


def test_a_session_that_is_let_go_ends_its_server(serve: Serve) -> None:
    session, family = serve(STUBBORN)
    session.drop()
    assert session.end(3600) == ExitFacts()
    assert not any(map(alive, family))


def test_the_exit_of_a_server_is_seen_without_ending_it(serve: Serve) -> None:
    session, family = serve('trap "exit 3" USR1; sleep 600 & echo $$ > "$0"; wait')
    assert session.exit() is None
    family[0].send_signal(signal.SIGUSR1)
    os.waitid(os.P_PID, session._supervisor.pid, os.WEXITED | os.WNOWAIT)
    assert session.exit() == ExitFacts(code=3)
    assert session.process() is None
    assert session.end(1) == ExitFacts(code=3)


def test_memory_of_a_server_is_that_of_all_its_processes(serve: Serve) -> None:
    hold = f'{sys.executable} -c \'x = bytearray(64 * 2**20); open("\'"$0"\'", "w").write("1"); input()\''
    session, _ = serve(f"sleep 600 | {hold}")
    facts = session.process()
    session.end(0)
    assert facts is not None
    assert facts.argv[0] == "sh"
    assert facts.rss_bytes > 64 * 2**20


def test_a_start_that_fails_leaves_no_process(tmp_path: Path) -> None:
    before = {p.pid for p in psutil.Process().children(recursive=True)}
    with pytest.raises(HostError, match="cannot start no-such-program: No such file"):
        HOST.start(Start(launch=LaunchSpec(argv=("no-such-program", "--api-key", "hush")), log=str(tmp_path / "log")))
    assert {p.pid for p in psutil.Process().children(recursive=True)} == before


def test_messages_about_commands_show_no_secret() -> None:
    for argv in (("no-such-program", "--api-key", "hush"), ("sh", "-c", "exec sleep 600", "--token=hush")):
        with pytest.raises(HostError) as caught:
            HOST.run(argv, timeout_s=0.1)
        assert argv[0] in str(caught.value)
        assert "hush" not in str(caught.value)


def test_a_link_is_replaced_and_what_it_points_to_stays(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("theirs")
    (tmp_path / "link").symlink_to("real")
    HOST.write(str(tmp_path / "link"), b"ours", 0o600)
    assert (tmp_path / "real").read_text() == "theirs"
    assert not (tmp_path / "link").is_symlink()
    assert (tmp_path / "link").read_text() == "ours"


def test_a_folder_can_be_neither_read_nor_removed_nor_written(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for action in (HOST.read, HOST.remove, lambda path: HOST.write(path, b"", 0o600)):
        with pytest.raises(HostError, match=str(tmp_path / "folder")):
            action(str(tmp_path / "folder"))
    assert os.listdir(tmp_path) == ["folder"]


def test_our_own_socket_is_found_with_its_facts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        owner = HOST.listener("127.0.0.1", port)
        assert owner is not None
        assert (owner.pid, owner.start_id) == (os.getpid(), _machine.start_id(os.getpid()))
        assert owner.argv == tuple(psutil.Process().cmdline())
        for address in ("[::ffff:127.0.0.1]", ""):  # the memory of a live process moves between two looks
            seen = HOST.listener(address, port)
            assert seen is not None
            assert (seen.pid, seen.start_id, seen.argv, seen.name) == (
                owner.pid,
                owner.start_id,
                owner.argv,
                owner.name,
            )
        client = socket.create_connection(("127.0.0.1", port))
        local_port = client.getsockname()[1]
        assert HOST.listener("127.0.0.1", local_port) is None, "a connection does not listen"
        client.close()
    assert HOST.listener("127.0.0.1", port) is None


def test_the_exact_address_goes_before_the_wildcard(serve: Serve) -> None:
    """Two sockets on one port: the kernel gives a connection to the one with the exact address."""
    code = (
        "import socket, signal, sys\n"
        "s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)\n"
        "s.bind(('0.0.0.0', int(sys.argv[2]))); s.listen()\n"
        "open(sys.argv[1], 'w').write(str(__import__('os').getpid())); signal.pause()\n"
    )
    with socket.socket() as exact:
        exact.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        exact.bind(("127.0.0.1", 0))
        exact.listen()
        port = exact.getsockname()[1]
        session, (other,) = serve('exec "$1" -c "$2" "$0" "$3"', sys.executable, code, str(port))
        found = HOST.listener("127.0.0.1", port), HOST.listener("127.0.0.2", port)
        session.end(0)
    assert [f.pid for f in found if f is not None] == [os.getpid(), other.pid]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_listener_of_another_user_is_found_without_its_name() -> None:
    code = (
        "import os, sys; from leadline.hosts.local import LocalHost\n"
        "LocalHost().listener('127.0.0.1', 1)  # imports what the other user may not be able to read\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "owner = LocalHost().listener('127.0.0.1', int(sys.argv[1])); print(owner.pid, owner.name)\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        done = subprocess.run([sys.executable, "-c", code, port], capture_output=True, text=True, timeout=30)
    assert done.stdout.strip() == "0 (another user's process)", done.stderr


def test_a_host_name_that_means_nothing_is_said() -> None:
    with pytest.raises(HostError, match="no-such-name"):
        HOST.listener("no-such-name.invalid", 1)


def group(root: Path, **files: str) -> None:
    root.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (root / name.replace("__", ".")).write_text(text)


def test_memory_is_limited_by_the_tightest_group_above_us(tmp_path: Path) -> None:
    gib = 2**30
    group(tmp_path, cgroup__controllers="memory\n")
    group(
        tmp_path / "a", memory__max=f"{gib // 2}\n", memory__current=f"{gib // 4}\n", memory__stat="inactive_file 0\n"
    )
    group(
        tmp_path / "a/b",
        memory__max="max\n",
        memory__current=f"{gib // 8}\n",
        memory__events="low 0\noom 4\noom_kill 3\n",
    )
    groups = _machine.memory_groups("0::/a/b\n", tmp_path)
    assert groups == [tmp_path / "a/b", tmp_path / "a", tmp_path]
    assert _machine.free_memory_bytes(groups) == gib // 4
    assert _machine.oom_kills(groups) == 3
    group(tmp_path / "a", memory__stat=f"anon 5\ninactive_file {gib // 8}\n")
    assert _machine.free_memory_bytes(groups) == gib // 4 + gib // 8, "file pages that can be dropped are free"


def test_memory_of_a_first_version_group(tmp_path: Path) -> None:
    """As on machines where both versions are mounted: the memory controller decides which counts."""
    group(
        tmp_path / "memory/x",
        memory__limit_in_bytes="1000\n",
        memory__usage_in_bytes="900\n",
        memory__stat="inactive_file 1\ntotal_inactive_file 100\n",
        memory__oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 7\n",
    )
    groups = _machine.memory_groups("9:cpu:/y\n4:memory:/x\n0::/\n", tmp_path)
    assert groups == [tmp_path / "memory/x", tmp_path / "memory"]
    assert _machine.free_memory_bytes(groups) == 200
    assert _machine.oom_kills(groups) == 7


def test_a_group_that_cannot_be_seen_from_a_container_is_its_root(tmp_path: Path) -> None:
    group(tmp_path, cgroup__controllers="memory\n", memory__max="5000\n", memory__current="6000\n")
    groups = _machine.memory_groups("0::/outside/of/it\n", tmp_path)
    assert groups == [tmp_path]
    assert _machine.free_memory_bytes(groups) == 0


def test_without_a_group_all_available_memory_is_free() -> None:
    assert _machine.memory_groups("", Path("/none")) == []
    assert _machine.free_memory_bytes([]) > 2**20
    assert _machine.oom_kills([]) == 0


@pytest.mark.parametrize(
    ("csv", "known"),
    [
        ("NVIDIA H200, 550.54.15\nNVIDIA H200, 550.54.15\n", {"gpu": "2 x NVIDIA H200", "gpu_driver": "550.54.15"}),
        ("A, 1\nB, C, 1\n", {"gpu": "1 x A, 1 x B, C", "gpu_driver": "1"}),
        ("No devices were found\n", {}),
        ("", {}),
    ],
)
def test_accelerators_are_counted_by_name(csv: str, known: dict[str, str]) -> None:
    assert _machine.accelerators(csv) == known


@pytest.mark.parametrize(("code", "seen"), [(0, True), (9, False)])
def test_identity_asks_nvidia_smi_when_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, seen: bool
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho 'NVIDIA H200, 550.54.15'\nexit {code}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    identity = HOST.identity()
    assert identity.get("gpu") == ("1 x NVIDIA H200" if seen else None)
    assert {"cpu", "cores", "memory_gib", "kernel"} <= set(identity)


def test_psutil_is_not_imported_before_it_is_needed() -> None:
    code = "import sys, leadline.hosts.local; print('psutil' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "False"


def test_an_interrupted_command_is_killed(tmp_path: Path) -> None:
    """Ctrl-C reaches us alone, since the command has a process group of its own. It comes once we wait for the command:
    that is when its stdin ends."""
    pids = tmp_path / "pids"
    script = 'sleep 600 & echo "$$ $!" > "$1"; cat; kill -INT "$2"; wait'
    with pytest.raises(KeyboardInterrupt):
        HOST.run(("sh", "-c", script, "sh", str(pids), str(os.getpid())), timeout_s=60)
    for pid in map(int, pids.read_text().split()):
        with suppress(ProcessLookupError):
            fd = os.pidfd_open(pid)
            ended = select.select([fd], [], [], 30)[0]
            os.close(fd)
            assert ended
