"""The host that other tests stand on: what they take for granted is proved here."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import testhost
from support_systemd import SystemdHost, needs_systemd, needs_uml
from testhost import cgroups, recipe, rootfs

TESTS = Path(__file__).parents[1]
LIMIT_S = 30.0


def until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < deadline, f"not within {LIMIT_S:g} s: {what}"
        time.sleep(0.02)


def ssh(host: SystemdHost, command: str, *, user: str = "root", stdin: str = "") -> subprocess.CompletedProcess[str]:
    argv = ["ssh", "-F", str(host.ssh_config), f"{user}@{host.ssh_name}", command]
    return subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=60, check=False)


def traces(name: str) -> list[str]:
    """What is left of a host: its files, cgroups, and the processes that run in it, for it, or see its mounts."""
    left = [str(path) for path in rootfs.RUNS.glob(f"{name}*")]
    left += [str(h.at) for h in cgroups.hierarchies() if (h.at / f"testhost.{name}").exists()]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            told = (process / "mountinfo").read_text() + (process / "cgroup").read_text()
            told += (process / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        left += [process.name] if name in told and process.name != str(os.getpid()) else []
    return left


@pytest.fixture
def host() -> Iterator[SystemdHost]:
    """One of a test's own, that it may break."""
    made = SystemdHost.up(publish=[8000])
    yield made
    made.down()


@needs_systemd
def test_process_1_is_a_systemd_that_has_started_everything(systemd_host: SystemdHost) -> None:
    assert systemd_host.sh("cat /proc/1/comm").stdout == "systemd\n"
    assert systemd_host.sh("systemctl is-system-running").stdout == "running\n"
    assert systemd_host.sh("hostname").stdout.strip() == systemd_host.name


@needs_systemd
def test_what_targets_need_is_inside(systemd_host: SystemdHost) -> None:
    tools = "flock busctl systemd-run systemd-analyze journalctl ps ip sudo logger python3 sha256sum"
    assert len(systemd_host.sh(f"for t in {tools}; do command -v $t; done").stdout.splitlines()) == len(tools.split())


@needs_systemd
def test_sh_gives_the_exit_code_and_both_streams(systemd_host: SystemdHost) -> None:
    done = systemd_host.sh("echo out; echo err >&2; exit 3", check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "err\n")
    with pytest.raises(testhost.HostTrouble, match="ended with 3"):
        systemd_host.sh("exit 3")


@needs_systemd
@pytest.mark.parametrize("user", ["root", "operator"])
def test_ssh_gives_the_exit_code_and_both_directions(systemd_host: SystemdHost, user: str) -> None:
    done = ssh(systemd_host, "id -un; cat; exit 7", user=user, stdin="in\n")
    assert (done.returncode, done.stdout, done.stderr) == (7, f"{user}\nin\n", "")


@needs_systemd
def test_a_put_file_has_its_text_mode_and_owner(systemd_host: SystemdHost) -> None:
    systemd_host.put("/opt/a b/c", "it's $HOME\n", 0o640)
    assert systemd_host.sh("cat '/opt/a b/c'; stat -c '%a %U' '/opt/a b/c'").stdout == "it's $HOME\n640 root\n"


@needs_systemd
def test_the_operator_may_use_sudo_only_where_a_test_allows_it(systemd_host: SystemdHost) -> None:
    refused = ssh(systemd_host, "sudo -n id -u", user="operator")
    assert (refused.returncode, "password is required" in refused.stderr) == (1, True)
    systemd_host.put("/etc/sudoers.d/operator", "operator ALL=(root) NOPASSWD: /usr/bin/id\n", 0o440)
    assert ssh(systemd_host, "sudo -n id -u", user="operator").stdout == "0\n"
    assert ssh(systemd_host, "sudo -n whoami", user="operator").returncode == 1


@needs_systemd
@pytest.mark.parametrize("user", ["root", "operator"])
def test_the_project_runs_inside_and_cannot_be_written(systemd_host: SystemdHost, user: str) -> None:
    source = TESTS.parent / "src"
    done = ssh(systemd_host, f"{systemd_host.python} -c 'import leadline.cli.main as m; print(m.__file__)'", user=user)
    assert done.stdout.strip() == str(source / "leadline/cli/main.py"), done.stderr
    assert systemd_host.sh(f"touch {source}/written", check=False).returncode == 1
    assert not (source / "written").exists()


@needs_systemd
def test_two_hosts_know_nothing_of_each_other(systemd_host: SystemdHost, host: SystemdHost) -> None:
    for one in (systemd_host, host):
        one.put("/root/mine", one.name)
        one.sh("systemd-run --unit same-name sleep infinity")
    assert [one.sh("cat /root/mine").stdout for one in (systemd_host, host)] == [systemd_host.name, host.name]
    host.sh("systemctl stop same-name")
    assert systemd_host.sh("systemctl is-active same-name").stdout == "active\n"
    assert systemd_host.sh("pgrep -c sleep").stdout == "1\n"


@needs_systemd
def test_a_published_port_leads_inside(host: SystemdHost) -> None:
    host.sh("systemd-run --unit web python3 -m http.server 8000 --bind 127.0.0.1")
    host.sh("until ss -Hltn sport = 8000 | grep -q .; do sleep 0.05; done")
    with socket.create_connection(("127.0.0.1", host.port_of(8000)), 10) as connection:
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert connection.recv(12) == b"HTTP/1.0 200"


@needs_systemd
def test_a_cut_ends_ssh_on_both_sides_and_mending_lets_it_in_again(host: SystemdHost) -> None:
    argv = ["ssh", "-F", str(host.ssh_config), host.ssh_name, "echo up; cat; echo ended > /root/ended"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as held:
        assert held.stdout is not None
        assert held.stdout.readline() == b"up\n"
        host.cut()
        assert held.wait(LIMIT_S) == 255
    until(lambda: host.sh("test -e /root/ended", check=False).returncode == 0, "the far side sees the end")
    refused = ssh(host, "true")
    assert (refused.returncode, "Connection refused" in refused.stderr) == (255, True)
    host.mend()
    assert ssh(host, "echo again").stdout == "again\n"


@needs_systemd
def test_a_power_cut_keeps_the_disk_and_loses_run(host: SystemdHost) -> None:
    host.put(
        "/etc/systemd/system/app.service", "[Service]\nExecStart=sleep inf\n[Install]\nWantedBy=multi-user.target\n"
    )
    host.sh("systemctl daemon-reload; systemctl enable --now app; touch /root/kept /run/lost")
    began = "systemctl show -P UserspaceTimestampMonotonic"
    port, before = host.port_of(8000), host.sh(began).stdout
    host.crash()
    assert ssh(host, "true").returncode == 255
    with pytest.raises(testhost.HostTrouble, match="is off"):
        host.sh("true")
    host.again()
    assert host.sh("ls /root/kept /run/lost", check=False).stdout == "/root/kept\n"
    assert host.sh("systemctl is-active app").stdout == "active\n"
    assert host.sh(began).stdout != before
    assert host.port_of(8000) == port
    assert ssh(host, "exit 7").returncode == 7


@needs_systemd
def test_a_cut_link_stays_cut_through_a_power_cut(host: SystemdHost) -> None:
    host.cut()
    host.crash()
    host.again()
    assert "Connection refused" in ssh(host, "true").stderr
    host.mend()
    until(lambda: ssh(host, "true").returncode == 0, "sshd is up")


@needs_systemd
def test_it_comes_back_from_a_reboot(host: SystemdHost) -> None:
    host.sh("touch /run/lost; systemctl reboot")
    look = "test ! -e /run/lost && systemctl is-system-running"
    until(lambda: ssh(host, look).stdout == "running\n", "it is up again")


@needs_systemd
def test_memory_limits_are_those_of_the_kernel(systemd_host: SystemdHost) -> None:
    eat = "-p MemoryMax=40M python3 -c 'x = bytearray(200 << 20)'"
    systemd_host.sh(f"systemd-run --unit eater --service-type=oneshot {eat}", check=False)
    shown = systemd_host.sh("systemctl show eater -P Result -P ExecMainStatus").stdout.split()
    assert shown in (["signal", "9"], ["oom-kill", "9"])


@needs_systemd
def test_down_leaves_nothing_and_twice_does_no_harm(host: SystemdHost) -> None:
    port = host.port_of(8000)
    host.sh("systemd-run --unit stubborn sh -c 'trap \"\" TERM; while :; do sleep 1; done'")
    assert traces(host.name)
    host.down()
    assert traces(host.name) == []
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    host.down()


@needs_systemd
def test_a_host_ends_with_its_owner() -> None:
    script = "import sys, support_systemd as s; print(s.SystemdHost.up().name, flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=TESTS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        name = owner.stdout.readline().strip()
        assert traces(name)
        owner.kill()
    until(lambda: traces(name) == [], "everything of it is gone")


@needs_systemd
def test_what_a_killed_supervisor_leaves_is_swept_away(host: SystemdHost) -> None:
    mine = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    [supervisor] = [pid for pid in mine if host.name in Path(f"/proc/{pid}/cmdline").read_text()]
    os.kill(int(supervisor), signal.SIGKILL)
    host.down()
    assert traces(host.name) == []


FAKE = """#!/bin/sh
echo built >> "$BUILT"
sleep 0.5
for word; do case $word in *.draft) root=$word ;; esac; done
mkdir -p "$root/etc/systemd/system" "$root/etc/ssh/sshd_config.d" "$root/usr/lib" "$root/var/log"
"""


def _build(folder: Path, mmdebstrap: str) -> subprocess.Popen[str]:
    """In a process of its own, with this in place of mmdebstrap."""
    (folder / "mmdebstrap").write_text(mmdebstrap)
    (folder / "mmdebstrap").chmod(0o755)
    environment = os.environ | {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "LEADLINE_TESTHOST_DIR": str(folder / "cache"),
        "BUILT": str(folder / "built"),
    }
    script = "from testhost import rootfs\nwith rootfs.in_use(): print(rootfs.ready('container'))"
    return subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=TESTS,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_several_processes_build_one_root(tmp_path: Path) -> None:
    answers = {process.communicate(timeout=60) for process in [_build(tmp_path, FAKE) for _ in range(4)]}
    assert len(answers) == 1
    assert (tmp_path / "built").read_text() == "built\n"


def test_a_build_that_fails_leaves_no_root_and_says_why(tmp_path: Path) -> None:
    _, said = _build(tmp_path, FAKE + "echo no mirror >&2; exit 4\n").communicate(timeout=60)
    assert "mmdebstrap ended with 4" in said
    assert "no mirror" in said
    assert [path.suffix for path in (tmp_path / "cache").glob("root-*")] == [".lock"]
    out, _ = _build(tmp_path, FAKE).communicate(timeout=60)
    assert Path(out.strip()).is_dir()


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="needs root on Linux")
def test_what_is_missing_is_said_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe, "SEARCH", "/nonexistent")
    assert "apt-get install e2fsprogs iproute2 mmdebstrap mount" in recipe.lacking("uml")
    assert "e2fsprogs" not in recipe.lacking("container")


def test_without_root_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert recipe.lacking("container") == "needs root"


@pytest.mark.torture
@needs_uml
def test_a_kernel_of_its_own() -> None:
    host = SystemdHost.up(backend="uml")
    try:
        done = host.sh("echo out; exit 3", check=False)
        assert (done.returncode, done.stdout) == (3, "out\n")
        assert host.sh(f"{host.python} -c 'import leadline; print(1)'").stdout == "1\n"
        eat = "-p MemoryMax=40M python3 -c 'x = bytearray(200 << 20)'"
        host.sh(f"systemd-run --unit eater --service-type=oneshot {eat}", check=False)
        assert host.sh("systemctl show eater -P Result").stdout == "oom-kill\n"
        host.sh("touch /root/kept /run/lost; sync")
        host.crash()
        host.again()
        assert host.sh("ls /root/kept /run/lost", check=False).stdout == "/root/kept\n"
    finally:
        host.down()
    assert traces(host.name) == []
