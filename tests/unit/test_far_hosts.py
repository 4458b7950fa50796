"""What hosts ask of another machine: words that survive shells, facts that mean what this machine's own do."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support_sshd import NO_SUDO, SUDO, fake

from leadline.errors import HostError, HostLost
from leadline.hosts import _facts, _link, _machine, _words
from leadline.hosts._child import shown
from leadline.hosts._files import Runner
from leadline.hosts.local import LocalHost
from leadline.hosts.wrapped import WrappedHost
from leadline.ports import Completed

LOCAL = LocalHost()
SHELLS = [s for s in ("sh", "dash", "bash", "zsh", "fish", "tcsh", "mksh") if shutil.which(s)]
PRINT = (sys.executable, "-S", "-c", "import sys; sys.stdout.buffer.write(ascii(sys.argv[1:]).encode())")


@pytest.mark.parametrize("shell", SHELLS)
@settings(max_examples=15, deadline=None)
@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), max_size=20))
def test_words_survive_a_login_shell(shell: str, words: list[str]) -> None:
    done = subprocess.run([shell, "-c", _words.line((*PRINT, *words))], capture_output=True, check=True)
    assert done.stdout.decode() == ascii(words)


def test_bytes_that_are_no_text_survive_too() -> None:
    word = os.fsdecode(b"\xff\xfe x")
    done = subprocess.run(["sh", "-c", _words.line(("printf", "%s", word))], capture_output=True, check=True)
    assert done.stdout == b"\xff\xfe x"


def test_a_word_with_a_nul_is_refused() -> None:
    with pytest.raises(HostError, match="NUL"):
        _words.line(("echo", "a\0b"))


def test_the_line_holds_nothing_that_a_shell_could_mistake() -> None:
    line = _words.line(_words.watched(("a'b", "c!d", "e\nf", "g\\h"), 1))
    assert not set("\n!") & set(line)
    assert line.count("'") % 2 == 0


def completed(code: int, stderr: bytes, *argv: str) -> Completed:
    return Completed(argv=argv, code=code, stdout=b"", stderr=stderr)


def test_the_sign_of_an_end_is_taken_out_of_the_messages() -> None:
    argv = ("x",)
    for stderr, code, rest in (
        (b"leadline-status=7\n", 7, b""),
        (b"no newlineleadline-status=255\n", 255, b"no newline"),
        (b"a\nleadline-status=1\nleadline-status=0\nlate\n", 0, b"a\nleadline-status=1\nlate\n"),
    ):
        found = _words.answer(argv, completed(99, stderr), "box")
        assert found is not None
        assert (found.code, found.stderr, found.argv) == (code, rest, argv)
    assert _words.answer(argv, completed(255, b"Connection closed\n"), "box") is None


@pytest.mark.parametrize(
    "said",
    [
        "sudo: a password is required",
        "sudo: a terminal is required to read the password; either use the -S option",
        "sudo: interactive authentication is required",
        "ops is not in the sudoers file.  This incident will be reported.",
        "Sorry, user ops is not allowed to execute '/bin/sh' as root on box.",
    ],
)
def test_sudo_that_refuses_is_told_from_a_command_that_fails(said: str) -> None:
    text = f"{said}\n".encode()
    with pytest.raises(HostError, match="doctor --sudoers"):
        _words.refuse_sudo(completed(1, text, "sudo", "-n", "systemctl", "stop", "x"), "box")
    _words.refuse_sudo(completed(1, text, "systemctl", "stop", "x"), "box")
    _words.refuse_sudo(completed(5, b"Failed to stop x\n", "sudo", "-n", "systemctl", "stop", "x"), "box")


def test_sudo_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "file")
    monkeypatch.setenv("PATH", fake(tmp_path / "bin", "sudo", NO_SUDO))
    for action in (
        lambda: LOCAL.run(("sudo", "-n", "true")),
        lambda: LOCAL.hold(("sudo", "-n", "cat")),
        lambda: LOCAL.read(path, sudo=True),
        lambda: LOCAL.write(path, b"", 0o600, sudo=True),
        lambda: LOCAL.remove(path, sudo=True),
    ):
        with pytest.raises(HostError, match="doctor --sudoers"):
            action()
    fake(tmp_path / "bin", "sudo", f'printf "%s " "$@" >> {tmp_path}/asked; {SUDO}')
    LOCAL.write(path, b"x", 0o640, sudo=True)
    assert LOCAL.read(path, sudo=True) == b"x"
    LOCAL.remove(path, sudo=True)
    assert (tmp_path / "asked").read_text().count("-n sh -c") == 3


def test_secrets_and_long_words_are_not_shown() -> None:
    text = shown(("sh", "-c", "x" * 1000, "--api-key", "hush"))
    assert "hush" not in text
    assert len(text) < 250


def test_facts_of_a_listener_are_those_that_the_kernel_tells_us() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        ours, theirs = LOCAL.listener("127.0.0.1", port), _facts.listener(LOCAL.run, "127.0.0.1", port, name="here")
        assert ours is not None
        assert theirs is not None
        known = [(f.pid, f.start_id, f.argv, f.name) for f in (ours, theirs)]
        assert known[0] == known[1]
        assert theirs.rss_bytes > 2**20
        assert _facts.listener(LOCAL.run, "::1", port, name="here") is None
    assert _facts.listener(LOCAL.run, "127.0.0.1", port, name="here") is None


def saying(text: str) -> Runner:
    """A machine on which every command says that."""

    def run(argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0) -> Completed:
        return Completed(argv=tuple(argv), code=0, stdout=text.encode(), stderr=b"")

    return run


def test_of_two_listeners_the_exact_address_goes_first() -> None:
    rows = "socket 00000000:1F90 11\nsocket 0100007F:1F90 12\nowner 11 5\nowner 12 6\nowner 12 7\n"
    for pid, began in ((5, 50), (6, 90), (7, 60)):
        fields = " ".join(["S", *["0"] * 18, str(began)])
        rows += f"stat {pid} {pid} (py (x) y) {fields}\nargv {pid} {b'py'.hex()}00{b'a b'.hex()}00\n"
        rows += f"rss {pid} VmRSS: 3 kB\n"
    found = [_facts.listener(saying(rows), a, 8080, name="box") for a in ("127.0.0.1", "127.0.0.2", "::1")]
    assert [f and f.pid for f in found] == [7, 5, None]
    first = found[0]
    assert first is not None
    assert (first.start_id, first.argv, first.name, first.rss_bytes) == ("60", ("py", "a b"), "py (x) y", 3072)
    unseen = saying("socket 00000000000000000000000000000000:1F90 11\n")
    assert _facts.listener(unseen, "127.0.0.1", 8080, name="box") == _machine.UNSEEN
    with pytest.raises(HostError, match="cannot find the address of 'nowhere'"):
        _facts.listener(saying("address unknown\n"), "nowhere", 8080, name="box")


def test_memory_is_limited_by_the_groups_there() -> None:
    text = (
        "MemTotal: 100 kB\nMemAvailable: 50 kB\ngroup /sys/fs/cgroup/a/b\nfile memory.max\nmax\n"
        "file memory.current\n5\ngroup /sys/fs/cgroup/a\nfile memory.max\n9000\nfile memory.current\n5000\n"
        "file memory.stat\nanon 1\ninactive_file 1000\ngroup /sys/fs/cgroup\n"
    )
    assert _facts.free_memory_bytes(saying(text), name="box") == 5000
    assert _facts.free_memory_bytes(saying("MemAvailable: 50 kB\n"), name="box") == 50 * 1024
    with pytest.raises(HostError, match="does not tell its free memory"):
        _facts.free_memory_bytes(saying("no /proc here"), name="box")


def test_free_memory_is_about_what_this_machine_says_itself() -> None:
    assert abs(_facts.free_memory_bytes(LOCAL.run, name="here") - LOCAL.free_memory_bytes()) < 2**30


def test_an_identity_asked_by_commands_is_the_same() -> None:
    assert _facts.identity(LOCAL.run, name="here") == LOCAL.identity()


MIB = 2**20
ROCM = "device,VRAM Total Memory (B),VRAM Total Used Memory (B)\ncard0,68702699520,10960896\ncard1,68702699520,7\n"


@pytest.mark.parametrize(
    ("nvidia", "rocm", "used"),
    [
        ("echo 80000; echo 3", "exit 9", (80000 * MIB, 3 * MIB)),
        ("echo 1; echo '[N/A]'", "exit 9", None),
        ("echo 'NVIDIA-SMI has failed'; exit 9", "exit 9", None),
        ("exit 9", f"echo '{ROCM}'", (10960896, 7)),
        ("echo 0", f"echo '{ROCM}'", (0,)),
        ("exit 0", "echo nothing", None),
    ],
)
def test_memory_of_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nvidia: str, rocm: str, used: tuple[int, ...] | None
) -> None:
    fake(tmp_path, "rocm-smi", rocm)
    monkeypatch.setenv("PATH", fake(tmp_path, "nvidia-smi", nvidia))
    assert LOCAL.device_used_bytes() == used
    assert WrappedHost(LOCAL, ("env",)).device_used_bytes() == used


def test_words_before_a_command_that_fail_are_told_from_it() -> None:
    host = WrappedHost(LOCAL, ("sh", "-c", "echo no such pod >&2; exit 1"))
    with pytest.raises(HostError, match=r"ended with 1 \(no such pod\)"):
        host.run(("true",))
    with pytest.raises(HostError, match="no such pod"):
        host.hold(("cat",))


def test_a_program_that_is_missing_behind_words_is_named() -> None:
    host = WrappedHost(LOCAL, ("env",))
    for action in (lambda: host.run(("no-such-program",)), lambda: host.hold(("no-such-program",))):
        with pytest.raises(HostError, match="there is no program no-such-program on"):
            action()


def test_words_that_pass_no_input_leave_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    host = WrappedHost(LOCAL, ("sh", "-c", '"$@" </dev/null', "sh"))
    with pytest.raises(HostError, match="0 of 7 bytes arrived"):
        host.write(str(tmp_path / "file"), b"content", 0o600)
    assert (tmp_path / "file").read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    host = WrappedHost(LOCAL, ("sh", "-c", 'ulimit -f 8; exec "$@"', "sh"))
    with pytest.raises(HostError, match="What was there is still there"):
        host.write(str(tmp_path / "file"), b"x" * 2**20, 0o600)
    assert (tmp_path / "file").read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_links_and_folders_are_treated_as_here(tmp_path: Path) -> None:
    host = WrappedHost(LOCAL, ("env",))
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    for action in (host.read, host.remove, lambda path: host.write(path, b"", 0o600)):
        with pytest.raises(HostError, match=str(tmp_path / "folder")):
            action(str(tmp_path / "folder"))
    host.write(str(tmp_path / "link"), b"ours", 0o600)
    assert not (tmp_path / "link").is_symlink()
    assert os.listdir(tmp_path / "folder") == []
    assert host.read(str(tmp_path / "link")) == b"ours"
    host.remove(str(tmp_path / "no-folder" / "file"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a network namespace")
def test_a_place_with_a_network_of_its_own_is_not_forwarded() -> None:
    assert WrappedHost(LOCAL, ("env",)).forward("127.0.0.1", 80) == ("127.0.0.1", 80)
    with pytest.raises(HostError, match=r"service\.url"):
        WrappedHost(LOCAL, ("unshare", "--net")).forward("127.0.0.1", 80)


@pytest.mark.parametrize(
    ("said", "means"),
    [
        ("ssh: connect to host x port 22: No route to host", "unreachable"),
        ("ssh: connect to host x port 22: Network is unreachable", "unreachable"),
        ("ssh: connect to host x port 22: Connection timed out", "timed out"),
        ("Connection timed out during banner exchange", "timed out"),
        ("Timeout, server x not responding.", "timed out"),
        ("Received disconnect from 1.2.3.4 port 22:2: Too many authentication failures", "too many keys"),
        ("root@x: Permission denied (publickey,password).", "permission denied (publickey,password)"),
        ("client_loop: send disconnect: Broken pipe", "the connection broke"),
        ("something new", "something new"),
    ],
)
def test_what_ssh_says_is_put_into_words(said: str, means: str) -> None:
    text = _link.cause(said, "box", "ssh box")
    assert means in text
    assert text.startswith("box: ")
    assert "{" not in text


def test_nothing_connects_before_it_is_used(tmp_path: Path) -> None:
    from leadline.hosts.ssh import SshHost

    host = SshHost("nowhere.invalid", str(tmp_path / "none"))
    assert not host._link.connected
    with pytest.raises(HostLost):
        host.run(("true",))
