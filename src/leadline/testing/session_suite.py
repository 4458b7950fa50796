"""The laws of ports.Session, for hosts that start servers: see host_suite."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from leadline.launch import LaunchSpec, Start
from leadline.testing.host_ground import Ground, must, must_fail


def sends_a_servers_output_to_its_log(ground: Ground) -> None:
    """Both outputs, bytes that are no text too, after what is there already."""
    ground.host.write(ground.path("log"), b"before\n", 0o600)
    session, _ = ground.start("echo out; echo err >&2; printf '\\377\\n'; echo up > \"$0\"; exec sleep 600")
    session.end(0)
    lines = ground.host.log(ground.path("log")).splitlines()
    must(lines == ["before", "out", "err", "\ufffd"], f"the log must hold all output, it has {lines}")


def says_which_server_it_cannot_start(ground: Ground) -> None:
    for argv, cwd, word in (
        (("no-such-server",), None, "no-such-server"),
        ((ground.folder,), None, ground.folder),
        (("sleep", "600"), ground.path("no-such-folder"), "no-such-folder"),
    ):
        step = Start(launch=LaunchSpec(argv=argv, cwd=cwd), log=ground.path("log"))
        must_fail(partial(ground.host.start, step), [word], f"the start of {argv} in {cwd}")


_FAMILY = 'sleep 600 & a=$!; (setsid sleep 600 & echo $! > "$1"); echo "$$ $a $(cat "$1")" > "$0"; wait'
"""A server with a child, and with a grandchild that left its session and lost its parent; signs with their pids."""


def knows_its_server_and_what_that_started(ground: Ground) -> None:
    """Facts of the main process while it lives; owned are it and all below it, whatever they did to get away."""
    session, family = ground.start(_FAMILY, ground.path("pid"))
    facts = session.process()
    must(session.exit() is None, "a server that runs has no exit")
    must(facts is not None and str(facts.pid) == family[0], f"the main process is {family[0]}, not {facts}")
    again = session.process()
    must(facts and again and facts.start_id and facts.start_id == again.start_id, "a process keeps its start_id")
    must(facts and facts.argv[:2] == ("sh", "-c") and facts.rss_bytes > 0, f"the facts must be whole: {facts}")
    for pid in family:
        must(session.owns(int(pid)), f"process {pid} of {family} was started by the server")
    for pid in ("1", ground.shell("echo $PPID")):
        must(not session.owns(int(pid)), f"process {pid} was not started by the server")
    session.end(ground.limit_s)
    must(session.process() is None, "a server that was ended has no process")
    must(not session.owns(int(family[0])), "a server that was ended owns nothing")


def tells_how_a_server_ended_by_itself(ground: Ground) -> None:
    """Its exit code or signal, and that nobody asked; also when it is ended after that."""
    for script, code, signal in (("exit 3", 3, None), ("exit 137", 137, None), ("kill -KILL $$", None, 9)):
        session, (pid,) = ground.start(f'echo $$ > "$0"; {script}')
        ground.wait_for_end(pid)
        facts = session.end(ground.limit_s)
        found = (facts.code, facts.signal, facts.asked)
        must(found == (code, signal, False), f"a server that does `{script}` ended by itself, not as {facts}")


def asks_before_it_kills(ground: Ground) -> None:
    """A server that heeds SIGTERM ends in its own way."""
    session, _ = ground.start('trap "echo bye; exit 5" TERM; sleep 600 & echo up > "$0"; wait')
    facts = session.end(ground.limit_s)
    must((facts.code, facts.signal, facts.asked) == (5, None, True), f"it was not let end by itself: {facts}")
    must("bye" in ground.host.log(ground.path("log")), "its last words must be in the log")


def leaves_nothing_of_a_server(ground: Ground) -> None:
    """When `end` returns, all that the server started is gone, also what ignores SIGTERM or left its session."""
    session, family = ground.start(f'trap "" TERM; {_FAMILY}', ground.path("pid"))
    facts = session.end(0.1)
    left = [pid for pid in family if ground.lives(pid)]
    must(not left, f"of the processes {family}, {left} are left")
    must((facts.code, facts.signal, facts.asked) == (None, 9, True), f"it was killed by us, not {facts}")


def leaves_nothing_of_a_server_that_ended_by_itself(ground: Ground) -> None:
    session, (child,) = ground.start('sleep 600 & echo "$!" > "$0"')
    session.end(ground.limit_s)
    must(not ground.lives(child), "what a server left behind must be ended")


def ends_a_server_once(ground: Ground) -> None:
    """Ending again changes nothing and says the same."""
    session, _ = ground.start('echo up > "$0"; exec sleep 600')
    first = session.end(ground.limit_s)
    answers = [session.end(ground.limit_s), session.end(0), session.exit()]
    must(first.asked and answers == [first] * 3, f"ended as {first}, afterwards it says {answers}")


def touches_no_other_server(ground: Ground) -> None:
    one, _ = ground.start('echo up > "$0"; exec sleep 600')
    two, (pid,) = ground.start('echo $$ > "$0"; exec sleep 600')
    one.end(0)
    must(two.exit() is None and ground.lives(pid), "ending one server ended another")
    must(not one.owns(int(pid)), "one server does not own another")
    two.end(0)


_LISTEN = """
import os, signal, socket, sys
server = socket.create_server(("127.0.0.1", 0))
with open(sys.argv[1], "w") as sign:
    sign.write(f"{os.getpid()} {server.getsockname()[1]}")
signal.pause()
"""


def finds_its_own_server_listening(ground: Ground) -> None:
    """The facts are those of the session."""
    session, (pid, port) = ground.start('exec "$1" -c "$2" "$0"', ground.python, _LISTEN)
    owner, server = ground.host.listener("127.0.0.1", int(port)), session.process()
    session.end(0)
    known = owner and server and (owner.pid, owner.start_id) == (server.pid, server.start_id)
    must(known and server and str(server.pid) == pid, f"process {pid} listens, not {owner}; it is {server}")


SESSION_LAWS: tuple[Callable[[Ground], None], ...] = (
    sends_a_servers_output_to_its_log,
    says_which_server_it_cannot_start,
    knows_its_server_and_what_that_started,
    tells_how_a_server_ended_by_itself,
    asks_before_it_kills,
    leaves_nothing_of_a_server,
    leaves_nothing_of_a_server_that_ended_by_itself,
    ends_a_server_once,
    touches_no_other_server,
    finds_its_own_server_listening,
)
