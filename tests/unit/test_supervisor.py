"""The supervisor as a program of its own, spoken to over its pipes, with real processes throughout."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from leadline.hosts import supervisor

PROGRAM = str(supervisor.__file__)
LIMIT_S = 30.0
GRACE_S = 0.2
STUBBORN = 'trap "" TERM; '
FAMILY = 'sleep 600 & a=$!; (setsid sleep 600 & echo $! > "$0.pid"); echo "$$ $a $(cat "$0.pid")" > "$0"; wait'
"""A server with a child and with a grandchild that left its session and lost its parent."""


class Line:
    """What comes through a file descriptor, line by line, in bounded time."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.rest = b""
        self.poll = select.poll()
        self.poll.register(fd, select.POLLIN)

    def read(self) -> str:
        """The next line; empty at the end."""
        while b"\n" not in self.rest:
            assert self.poll.poll(LIMIT_S * 1000), "nothing came in time"
            data = os.read(self.fd, 4096)
            if not data:
                return ""
            self.rest += data
        line, _, self.rest = self.rest.partition(b"\n")
        return line.decode()


class Supervised:
    """A running supervisor. The script that it starts has "$0", a fifo on which `sign` hears it."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "log"
        self.fifo = folder / "sign"
        os.mkfifo(self.fifo)
        # Also open for writing by ourselves: it does not end when the first of several writers has gone.
        self.sign = Line(os.open(self.fifo, os.O_RDWR | os.O_NONBLOCK))
        self.program = subprocess.Popen(
            [sys.executable, "-I", "-S", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        assert self.program.stdin is not None
        assert self.program.stdout is not None
        self.stdin, self.reports = self.program.stdin, Line(self.program.stdout.fileno())

    def order(self, script: str, grace_s: float = GRACE_S) -> None:
        self.start(["sh", "-c", script, str(self.fifo)], grace_s=grace_s)

    def start(self, argv: list[str], **changes: Any) -> None:
        order = {"argv": argv, "env": [], "cwd": None, "log": str(self.log), "grace_s": GRACE_S, **changes}
        self.stdin.write(json.dumps(order).encode() + b"\n")

    def report(self) -> dict[str, Any]:
        """The next one; empty after the last."""
        return dict(json.loads(self.reports.read() or "{}"))

    def family(self) -> list[psutil.Process]:
        """Whom the script named on its fifo."""
        return [psutil.Process(int(pid)) for pid in self.sign.read().split()]

    def ended(self) -> int:
        return self.program.wait(LIMIT_S)

    def close(self) -> None:
        assert self.program.stdout is not None
        if not self.stdin.closed:
            with suppress(BrokenPipeError):
                self.stdin.write(b"end 0\n")
            self.stdin.close()
        self.program.wait(LIMIT_S)
        self.program.stdout.close()
        os.close(self.sign.fd)


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[Supervised]:
    it = Supervised(tmp_path)
    yield it
    it.close()


def gone(processes: list[psutil.Process]) -> bool:
    """Wait until all of them have ended. One that is not reaped has: who reaps orphans may take long."""
    for process in processes:
        with suppress(ProcessLookupError):
            fd = os.pidfd_open(process.pid)
            ended = not alive(process) or select.select([fd], [], [], LIMIT_S)[0]
            os.close(fd)
            if not ended:
                return False
    return True


def alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(
    ("script", "code", "signum"), [("exit 0", 0, None), ("exit 137", 137, None), ("kill -KILL $$", None, 9)]
)
def test_reports_start_and_end_of_a_server_that_ends_by_itself(
    supervised: Supervised, script: str, code: int | None, signum: int | None
) -> None:
    supervised.order(script)
    started = supervised.report()["started"]
    assert started["pid"] > 0
    assert int(started["start_id"]) > 0
    assert supervised.report() == {"exit": {"code": code, "signal": signum, "asked": False}}
    assert supervised.report() == {"gone": True}
    assert supervised.report() == {}
    assert supervised.ended() == 0


@pytest.mark.parametrize(
    ("argv", "changes", "words"),
    [
        (["no-such-program"], {}, ["No such file", "no-such-program"]),
        (["/dev/null"], {}, ["Permission denied", "/dev/null"]),
        (["sleep", "600"], {"cwd": "/no-such-folder"}, ["No such file", "/no-such-folder"]),
        (["sleep", "600"], {"log": "/no-such-folder/log"}, ["No such file", "/no-such-folder/log"]),
        (["sleep", "600\0"], {}, ["null byte"]),
    ],
)
def test_says_why_a_server_cannot_be_started(
    supervised: Supervised, argv: list[str], changes: dict[str, str], words: list[str]
) -> None:
    supervised.start(argv, **changes)
    error = supervised.report()["error"]
    assert all(word in error for word in words), error
    assert supervised.report() == {"gone": True}
    assert supervised.ended() == 0


def test_ends_without_a_word_when_no_order_comes(supervised: Supervised) -> None:
    supervised.stdin.close()
    assert supervised.ended() == 0
    assert supervised.report() == {}


def test_end_of_stdin_ends_the_server_and_what_left_its_session(supervised: Supervised) -> None:
    supervised.order(FAMILY)
    family = supervised.family()
    assert all(map(alive, family))
    supervised.stdin.close()
    assert supervised.ended() == 0
    assert not any(map(alive, family))
    supervised.report()
    assert supervised.report() == {"exit": {"code": None, "signal": 15, "asked": True}}


@pytest.mark.parametrize("word", ["end", "end 0.05", "end 0"])
def test_what_ignores_sigterm_is_killed_after_the_grace(supervised: Supervised, word: str) -> None:
    supervised.order(STUBBORN + FAMILY)
    family = supervised.family()
    supervised.stdin.write(word.encode() + b"\n")
    assert supervised.ended() == 0
    assert not any(map(alive, family))
    supervised.report()
    assert supervised.report() == {"exit": {"code": None, "signal": 9, "asked": True}}


def test_the_end_of_stdin_cuts_a_long_grace_short(supervised: Supervised) -> None:
    supervised.order(STUBBORN + FAMILY)
    family = supervised.family()
    supervised.stdin.write(b"end 3600\n")
    supervised.stdin.close()
    assert gone(family)


COUNTING = """
import os, signal, sys
sign = sys.argv[1]
def write(path, mode, text):
    with open(path, mode) as file:
        file.write(text + "\\n")
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
child = os.fork()
if child:
    write(sign, "w", f"{os.getpid()} {child}")
while signal.sigwait([signal.SIGTERM]):
    write(sign + ".asked", "a", "main" if child else "child")
    if child:
        os._exit(4)
    write(sign, "w", "told")
"""


def test_each_process_is_asked_once_and_may_take_its_time(supervised: Supervised) -> None:
    """Also a child that was told with its group, and then becomes the supervisor's own. Some servers give up in the
    middle of their last requests when SIGTERM comes a second time."""
    supervised.start([sys.executable, "-c", COUNTING, str(supervised.fifo)], grace_s=600)
    main, child = supervised.family()
    supervised.stdin.write(b"end 600\n")
    supervised.report()
    assert supervised.report() == {"exit": {"code": 4, "signal": None, "asked": True}}
    assert supervised.sign.read() == "told"
    assert gone([main])
    supervised.stdin.write(b"end 0.3\n")
    assert gone([child])
    assert supervised.ended() == 0
    assert sorted(Path(f"{supervised.fifo}.asked").read_text().split()) == ["child", "main"]


def test_what_a_server_leaves_behind_is_ended(supervised: Supervised) -> None:
    supervised.order(f'{STUBBORN}trap "exit 6" USR1; {FAMILY}')
    family = supervised.family()
    family[0].send_signal(signal.SIGUSR1)
    supervised.report()
    assert supervised.report() == {"exit": {"code": 6, "signal": None, "asked": False}}
    assert supervised.report() == {"gone": True}
    assert not any(map(alive, family))


def both(server: psutil.Process) -> tuple[psutil.Process, psutil.Process]:
    """The outer and the inner process of the supervisor."""
    inner = server.parent()
    assert inner is not None
    outer = inner.parent()
    assert outer is not None
    assert {PROGRAM} <= set(inner.cmdline()) & set(outer.cmdline())
    return outer, inner


@pytest.mark.parametrize("which", [0, 1], ids=["outer", "inner"])
def test_sigkill_of_the_supervisor_ends_the_whole_family(supervised: Supervised, which: int) -> None:
    supervised.order(STUBBORN + FAMILY)
    family = supervised.family()
    both(family[0])[which].kill()
    assert gone(family)
    supervised.ended()


def test_sigkill_of_both_processes_of_the_supervisor_ends_the_server(supervised: Supervised) -> None:
    supervised.order(STUBBORN + FAMILY)
    main, *others = supervised.family()
    outer, inner = both(main)
    inner.suspend()  # so that it cannot act on the other's death
    outer.kill()
    inner.kill()
    assert gone([main])
    for other in others:
        with suppress(psutil.NoSuchProcess):
            other.kill()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGHUP])
def test_a_terminals_signals_do_not_stop_the_supervisor(supervised: Supervised, signum: int) -> None:
    supervised.order(FAMILY)
    family = supervised.family()
    for process in both(family[0]):
        process.send_signal(signum)
    assert all(map(alive, family))
    supervised.stdin.close()
    assert supervised.ended() == 0
    assert not any(map(alive, family))


def test_sigterm_means_end_and_the_way_of_it_is_still_reported(supervised: Supervised) -> None:
    supervised.order(FAMILY)
    family = supervised.family()
    for process in both(family[0]):
        process.terminate()
    supervised.report()
    assert supervised.report() == {"exit": {"code": None, "signal": 15, "asked": True}}
    assert supervised.report() == {"gone": True}
    assert supervised.ended() == 0


def test_supervisor_and_server_have_sessions_of_their_own(supervised: Supervised) -> None:
    supervised.order(FAMILY)
    main = supervised.family()[0]
    outer, inner = both(main)
    sessions = [os.getsid(p.pid) for p in (outer, inner, main)]
    assert sessions == [outer.pid, outer.pid, main.pid]


CHILD = """
import json, os, signal, sys
names = ("SIGINT", "SIGHUP", "SIGTERM", "SIGPIPE", "SIGCHLD")
default = {n: signal.getsignal(getattr(signal, n)) in (signal.SIG_DFL, signal.default_int_handler) for n in names}
files = sorted(int(fd) for fd in os.listdir("/proc/self/fd"))[:4]
blocked = [int(s) for s in signal.pthread_sigmask(signal.SIG_BLOCK, [])]
print(json.dumps([os.readlink("/proc/self/fd/0"), default, files, blocked, os.getcwd(), os.environ["EXTRA"]]))
"""


def test_the_server_starts_clean(supervised: Supervised, tmp_path: Path) -> None:
    """No stdin, no file of ours open, no signal of ours ignored or blocked; its own folder and environment."""
    supervised.start([sys.executable, "-c", CHILD], cwd=str(tmp_path), env=[["EXTRA", "a=b c"]])
    supervised.report()
    assert supervised.report()["exit"]["code"] == 0, supervised.log.read_text()
    stdin, default, files, blocked, cwd, extra = json.loads(supervised.log.read_text())
    assert stdin == "/dev/null"
    # Python itself ignores SIGPIPE as it starts
    assert default == dict.fromkeys(["SIGINT", "SIGHUP", "SIGTERM", "SIGCHLD"], True) | {"SIGPIPE": False}
    assert files == [0, 1, 2, 3]  # 3 is the listing of the folder itself
    assert blocked == []
    assert (cwd, extra) == (str(tmp_path), "a=b c")


def test_output_is_appended_to_the_log(supervised: Supervised) -> None:
    supervised.log.write_bytes(b"before\n")
    supervised.order("echo out; echo err >&2; printf '\\377\\n'")
    assert supervised.ended() == 0
    assert supervised.log.read_bytes() == b"before\nout\nerr\n\xff\n"


def test_a_new_log_is_for_its_owner_alone(supervised: Supervised) -> None:
    supervised.order("exit 0")
    assert supervised.ended() == 0
    assert supervised.log.stat().st_mode & 0o777 == 0o600


def test_runs_when_nobody_reads_its_reports(supervised: Supervised) -> None:
    assert supervised.program.stdout is not None
    supervised.program.stdout.close()
    supervised.order(FAMILY)
    family = supervised.family()
    supervised.stdin.close()
    assert supervised.ended() == 0
    assert not any(map(alive, family))


HOLDER = """
import os, subprocess, sys
from leadline.hosts.local import LocalHost
from leadline.launch import LaunchSpec, Start
launch = LaunchSpec(argv=("sh", "-c", sys.argv[2], sys.argv[3]))
session = LocalHost().start(Start(launch=launch, log=os.devnull, grace_s=0.2))
print("up", flush=True)
{before}
sys.stdin.read()
"""
FORK = "if os.fork() == 0: os.read(0, 1); os._exit(0)"
CHILDREN = "subprocess.Popen(['cat'], close_fds=False)"


@pytest.mark.parametrize("kill", [psutil.Process.kill, psutil.Process.terminate], ids=["SIGKILL", "SIGTERM"])
@pytest.mark.parametrize("before", ["", FORK, CHILDREN], ids=["alone", "with a fork", "with a child"])
def test_the_death_of_the_holder_ends_the_server(
    tmp_path: Path, before: str, kill: Callable[[psutil.Process], None]
) -> None:
    """Also when others that the holder started live on."""
    fifo = tmp_path / "sign"
    os.mkfifo(fifo)
    sign = Line(os.open(fifo, os.O_RDWR | os.O_NONBLOCK))
    argv = [sys.executable, "-c", HOLDER.format(before=before), "-", STUBBORN + FAMILY, str(fifo)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as holder:
        assert holder.stdout is not None
        assert Line(holder.stdout.fileno()).read() == "up"
        family = [psutil.Process(int(pid)) for pid in sign.read().split()]
        kill(psutil.Process(holder.pid))
        assert gone([*family, *both_of(family)])
    os.close(sign.fd)


def both_of(family: list[psutil.Process]) -> list[psutil.Process]:
    try:
        return list(both(family[0]))
    except (psutil.NoSuchProcess, AssertionError):  # gone already
        return []
