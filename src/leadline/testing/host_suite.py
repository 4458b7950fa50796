"""The laws of ports.Host and ports.Session as checks that any host, ours or a third party's, can be put through.

A law takes a Ground: a host, an empty folder on it and the path of a Python there. It raises AssertionError in words
when the host breaks it, and lets through what the host raises. Needs no test framework; the host must have a POSIX
shell, coreutils and /proc:

    @pytest.mark.parametrize("law", LAWS)
    def test_obeys(law, tmp_path):
        LAWS[law](Ground(host=MyHost(), folder=str(tmp_path), python=sys.executable))

What a host does when its holder dies cannot be seen through the port: test that with real processes.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import msgspec

from leadline.errors import HostError
from leadline.launch import LaunchSpec, Start
from leadline.ports import Host, Session

NO_TEXT = b"\xff\xfe\x00 not text \x80\n"


class Ground(msgspec.Struct, frozen=True, kw_only=True):
    host: Host
    folder: str
    python: str
    limit_s: float = 30.0
    """How long anything of a law may take before it counts as broken."""

    def path(self, name: str) -> str:
        return f"{self.folder}/{name}"

    def shell(self, script: str, *words: str) -> str:
        """What a shell script prints on the host; the words are $1, $2, ..."""
        done = self.host.run(("sh", "-c", script, "sh", *words), timeout_s=self.limit_s)
        return done.stdout.decode(errors="replace").strip()

    def start(self, script: str, *words: str) -> tuple[Session, list[str]]:
        """A shell script as a server, and the words that it wrote into "$0" to say that it is there."""
        sign = self.path("sign")
        self.shell('rm -f "$1"; mkfifo "$1"', sign)
        launch = LaunchSpec(argv=("sh", "-c", script, sign, *words))
        session = self.host.start(Start(launch=launch, log=self.path("log"), grace_s=5.0))
        return session, self.shell('cat "$1"', sign).split()

    def lives(self, pid: int | str) -> bool:
        """Dead but not reaped counts as gone."""
        return self.shell('grep "^State:" "/proc/$1/status" 2>/dev/null | grep -v Z', str(pid)) != ""

    def wait_for_end(self, pid: int | str) -> None:
        wait = 'while grep "^State:" "/proc/$1/status" 2>/dev/null | grep -qv Z; do sleep 0.02; done'
        self.shell(wait, str(pid))


def _must(condition: object, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def _must_fail(action: Callable[[], object], words: Sequence[str], what: str) -> None:
    """It must raise HostError with these words in the message."""
    try:
        action()
    except HostError as error:
        for word in words:
            _must(word in str(error), f"{what}: the message must name {word!r}, it says: {error}")
        return
    raise AssertionError(f"{what} must raise HostError")


@contextmanager
def _files_up_to(size_bytes: int) -> Iterator[None]:
    """Writing of a longer file stops in the middle with an error, as on a full disk. For this process alone."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def reads_back_what_it_wrote(ground: Ground) -> None:
    """Any bytes, a second time over the first; what is not there reads as None."""
    path = ground.path("file")
    _must(ground.host.read(path) is None, "a file that is not there must read as None")
    for content in (NO_TEXT * 1000, b"shorter", b""):
        ground.host.write(path, content, 0o600)
        _must(ground.host.read(path) == content, "a file must read back as it was written")


def writes_with_the_mode_asked_for(ground: Ground) -> None:
    """Exactly that mode, whatever the umask is and whatever the file had."""
    for mode in (0o766, 0o600, 0o755):
        ground.host.write(ground.path("file"), b"x", mode)
        found = ground.shell('stat -c %a "$1"', ground.path("file"))
        _must(found == f"{mode:o}", f"written with mode {mode:o}, the file has {found}")


def keeps_the_old_file_when_a_write_fails(ground: Ground) -> None:
    """A write that stops in the middle leaves the old content, the old mode and no other file."""
    path = ground.path("file")
    old, new = b"old " * 1000, b"new " * 2**20
    ground.host.write(path, old, 0o640)
    failed = False
    with _files_up_to(2**20):
        try:
            ground.host.write(path, new, 0o600)
        except HostError:
            failed = True
    content = ground.host.read(path)
    _must(content == (old if failed else new), "a write that failed must leave the whole old file")
    _must(not failed or ground.shell('stat -c %a "$1"', path) == "640", "a write that failed must leave the old mode")
    _must(ground.shell('ls -A "$1"', ground.folder) == "file", "a write must leave no other file in the folder")


def says_what_it_could_not_write(ground: Ground) -> None:
    path = ground.path("no-such-folder/file")
    _must_fail(lambda: ground.host.write(path, b"x", 0o600), [path], "a write into a folder that is not there")


def removes_a_file(ground: Ground) -> None:
    """Absent is fine."""
    ground.host.write(ground.path("file"), b"x", 0o600)
    for _ in range(2):
        ground.host.remove(ground.path("file"))
        _must(ground.host.read(ground.path("file")) is None, "a removed file must be gone")


def shows_a_log_that_is_no_text(ground: Ground) -> None:
    """Bytes that are no UTF-8 are replaced, the rest stays; a log that is not there yet is empty."""
    _must(ground.host.log(ground.path("none")) == "", "a log that is not there must be empty")
    ground.host.write(ground.path("log"), b"first\n" + NO_TEXT + "größer\n".encode(), 0o600)
    text = ground.host.log(ground.path("log"))
    _must("first\n\ufffd\ufffd" in text and "not text" in text and "größer\n" in text, f"the log lost text: {text!r}")


def passes_words_as_they_are(ground: Ground) -> None:
    """No shell looks at them; the answer says what was run."""
    words = ("$HOME `id` $(id)", "a  b", "*", "'\"\\", "", ";true", "größe")
    done = ground.host.run((ground.python, "-c", "import sys; print(ascii(sys.argv[1:]))", *words))
    _must(done.stdout.decode().strip() == ascii(list(words)), f"words reached the command as {done.stdout!r}")
    _must(done.argv[-len(words) :] == words, "the answer must hold the words that were run")


def passes_bytes_in_and_out(ground: Ground) -> None:
    """Also more than a pipe holds, and both outputs apart."""
    data = NO_TEXT * 20_000
    done = ground.host.run(("sh", "-c", "cat; printf '\\377' >&2"), stdin=data)
    _must(done.stdout == data, "standard output must come back as the bytes that were written")
    _must(done.stderr == b"\xff", "standard error must come back as the bytes that were written")
    _must(ground.host.run(("cat",)).stdout == b"", "without stdin a command reads the end of its input")


def tells_how_a_command_ended(ground: Ground) -> None:
    for script, code in (("exit 0", 0), ("exit 7", 7), ("kill -KILL $$", 137), ("kill -TERM $$", 143)):
        found = ground.host.run(("sh", "-c", script)).code
        _must(found == code, f"a command that does `{script}` ends with {code}, not {found}")


def limits_the_time_of_a_command(ground: Ground) -> None:
    """Raises HostError with the command and the limit, and leaves nothing of the command."""
    path = ground.path("pids")
    script = 'sleep 600 & echo "$$ $!" > "$1"; wait'
    _must_fail(
        lambda: ground.host.run(("sh", "-c", script, "a-slow-one", path), timeout_s=0.7),
        ["a-slow-one", "0.7"],
        "a command that takes too long",
    )
    for pid in (ground.host.read(path) or b"").decode().split():
        ground.wait_for_end(pid)


def says_which_program_is_missing(ground: Ground) -> None:
    _must_fail(lambda: ground.host.run(("no-such-program", "x")), ["no-such-program"], "a program that is not there")


def sends_a_servers_output_to_its_log(ground: Ground) -> None:
    """Both outputs, bytes that are no text too, after what is there already."""
    ground.host.write(ground.path("log"), b"before\n", 0o600)
    session, _ = ground.start("echo out; echo err >&2; printf '\\377\\n'; echo up > \"$0\"; exec sleep 600")
    session.end(0)
    lines = ground.host.log(ground.path("log")).splitlines()
    _must(lines == ["before", "out", "err", "\ufffd"], f"the log must hold all output, it has {lines}")


def says_which_server_it_cannot_start(ground: Ground) -> None:
    for argv, cwd, word in (
        (("no-such-server",), None, "no-such-server"),
        ((ground.folder,), None, ground.folder),
        (("sleep", "600"), ground.path("no-such-folder"), "no-such-folder"),
    ):
        step = Start(launch=LaunchSpec(argv=argv, cwd=cwd), log=ground.path("log"))
        _must_fail(partial(ground.host.start, step), [word], f"the start of {argv} in {cwd}")


_FAMILY = 'sleep 600 & a=$!; (setsid sleep 600 & echo $! > "$1"); echo "$$ $a $(cat "$1")" > "$0"; wait'
"""A server with a child, and with a grandchild that left its session and lost its parent; signs with their pids."""


def knows_its_server_and_what_that_started(ground: Ground) -> None:
    """Facts of the main process while it lives; owned are it and all below it, whatever they did to get away."""
    session, family = ground.start(_FAMILY, ground.path("pid"))
    facts = session.process()
    _must(session.exit() is None, "a server that runs has no exit")
    _must(facts is not None and str(facts.pid) == family[0], f"the main process is {family[0]}, not {facts}")
    again = session.process()
    _must(facts and again and facts.start_id and facts.start_id == again.start_id, "a process keeps its start_id")
    _must(facts and facts.argv[:2] == ("sh", "-c") and facts.rss_bytes > 0, f"the facts must be whole: {facts}")
    for pid in family:
        _must(session.owns(int(pid)), f"process {pid} of {family} was started by the server")
    for pid in ("1", ground.shell("echo $PPID")):
        _must(not session.owns(int(pid)), f"process {pid} was not started by the server")
    session.end(ground.limit_s)
    _must(session.process() is None, "a server that was ended has no process")
    _must(not session.owns(int(family[0])), "a server that was ended owns nothing")


def tells_how_a_server_ended_by_itself(ground: Ground) -> None:
    """Its exit code or signal, and that nobody asked; also when it is ended after that."""
    for script, code, signal in (("exit 3", 3, None), ("exit 137", 137, None), ("kill -KILL $$", None, 9)):
        session, (pid,) = ground.start(f'echo $$ > "$0"; {script}')
        ground.wait_for_end(pid)
        facts = session.end(ground.limit_s)
        found = (facts.code, facts.signal, facts.asked)
        _must(found == (code, signal, False), f"a server that does `{script}` ended by itself, not as {facts}")


def asks_before_it_kills(ground: Ground) -> None:
    """A server that heeds SIGTERM ends in its own way."""
    session, _ = ground.start('trap "echo bye; exit 5" TERM; sleep 600 & echo up > "$0"; wait')
    facts = session.end(ground.limit_s)
    _must((facts.code, facts.signal, facts.asked) == (5, None, True), f"it was not let end by itself: {facts}")
    _must("bye" in ground.host.log(ground.path("log")), "its last words must be in the log")


def leaves_nothing_of_a_server(ground: Ground) -> None:
    """When `end` returns, all that the server started is gone, also what ignores SIGTERM or left its session."""
    session, family = ground.start(f'trap "" TERM; {_FAMILY}', ground.path("pid"))
    facts = session.end(0.1)
    left = [pid for pid in family if ground.lives(pid)]
    _must(not left, f"of the processes {family}, {left} are left")
    _must((facts.code, facts.signal, facts.asked) == (None, 9, True), f"it was killed by us, not {facts}")


def leaves_nothing_of_a_server_that_ended_by_itself(ground: Ground) -> None:
    session, (child,) = ground.start('sleep 600 & echo "$!" > "$0"')
    session.end(ground.limit_s)
    _must(not ground.lives(child), "what a server left behind must be ended")


def ends_a_server_once(ground: Ground) -> None:
    """Ending again changes nothing and says the same."""
    session, _ = ground.start('echo up > "$0"; exec sleep 600')
    first = session.end(ground.limit_s)
    answers = [session.end(ground.limit_s), session.end(0), session.exit()]
    _must(first.asked and answers == [first] * 3, f"ended as {first}, afterwards it says {answers}")


def touches_no_other_server(ground: Ground) -> None:
    one, _ = ground.start('echo up > "$0"; exec sleep 600')
    two, (pid,) = ground.start('echo $$ > "$0"; exec sleep 600')
    one.end(0)
    _must(two.exit() is None and ground.lives(pid), "ending one server ended another")
    _must(not one.owns(int(pid)), "one server does not own another")
    two.end(0)


_LISTEN = """
import signal, socket, sys
family = socket.AF_INET6 if ":" in sys.argv[2] else socket.AF_INET
try:
    server = socket.create_server((sys.argv[2], 0), family=family, dualstack_ipv6=sys.argv[2] == "::")
    port = server.getsockname()[1]
except (OSError, ValueError):
    port = 0
with open(sys.argv[1], "w") as sign:
    sign.write(str(port))
signal.pause()
"""


def _listening(ground: Ground, address: str) -> tuple[Session, int]:
    """A server on a free port of that address; port 0 when the host has no such address."""
    session, (port,) = ground.start('exec "$1" -c "$2" "$0" "$3"', ground.python, _LISTEN, address)
    return session, int(port)


def finds_who_listens(ground: Ground) -> None:
    """Whoever would get a connection to the address that was asked for, or is in the way there: a wildcard is, in IPv6
    too, and who asks for a wildcard finds any. The facts are those of the session."""
    for listens, asked in (
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.1", "localhost"),
        ("127.0.0.1", "0.0.0.0"),
        ("0.0.0.0", "127.0.0.1"),
        ("::", "127.0.0.1"),
        ("::1", "::1"),
    ):
        session, port = _listening(ground, listens)
        owner, server = ground.host.listener(asked, port) if port else None, session.process()
        session.end(0)
        what = f"who listens on {listens}, asked for {asked}"
        _must(not port or owner is not None, f"{what}: nobody was found")
        if owner is not None:
            known = server is not None and (owner.pid, owner.start_id) == (server.pid, server.start_id)
            _must(known, f"{what}: found {owner}, it is {server}")
            _must(owner.name and owner.argv, f"{what}: the facts must be whole: {owner}")


def finds_nobody_where_nobody_listens(ground: Ground) -> None:
    """Neither another address of the same port, nor a server that was ended."""
    session, port = _listening(ground, "127.0.0.2")
    elsewhere = ground.host.listener("127.0.0.1", port) if port else None
    session.end(0)
    _must(elsewhere is None, f"{elsewhere} listens on another address")
    session, port = _listening(ground, "127.0.0.1")
    session.end(0)
    left = ground.host.listener("127.0.0.1", port)
    _must(left is None, f"the server was ended, but {left} was found")


def tells_its_free_memory(ground: Ground) -> None:
    found = ground.host.free_memory_bytes()
    _must(isinstance(found, int) and found > 0, f"free memory must be a number of bytes, not {found!r}")


def has_a_lasting_identity(ground: Ground) -> None:
    """Names and values are text, and the same when asked again: results are compared by them."""
    first, second = ground.host.identity(), ground.host.identity()
    _must(first == second, f"the identity of a machine changes: {first}, then {second}")
    texts = [text for pair in first.items() for text in pair]
    _must(texts and all(isinstance(t, str) and t for t in texts), f"an identity is names with values, not {first}")


FILE_LAWS: tuple[Callable[[Ground], None], ...] = (
    reads_back_what_it_wrote,
    writes_with_the_mode_asked_for,
    keeps_the_old_file_when_a_write_fails,
    says_what_it_could_not_write,
    removes_a_file,
    shows_a_log_that_is_no_text,
)
COMMAND_LAWS: tuple[Callable[[Ground], None], ...] = (
    passes_words_as_they_are,
    passes_bytes_in_and_out,
    tells_how_a_command_ended,
    limits_the_time_of_a_command,
    says_which_program_is_missing,
)
SERVER_LAWS: tuple[Callable[[Ground], None], ...] = (
    sends_a_servers_output_to_its_log,
    says_which_server_it_cannot_start,
    knows_its_server_and_what_that_started,
    tells_how_a_server_ended_by_itself,
    asks_before_it_kills,
    leaves_nothing_of_a_server,
    leaves_nothing_of_a_server_that_ended_by_itself,
    ends_a_server_once,
    touches_no_other_server,
    finds_who_listens,
    finds_nobody_where_nobody_listens,
)
MACHINE_LAWS: tuple[Callable[[Ground], None], ...] = (tells_its_free_memory, has_a_lasting_identity)

LAWS: Mapping[str, Callable[[Ground], None]] = {
    law.__name__: law for law in (*FILE_LAWS, *COMMAND_LAWS, *SERVER_LAWS, *MACHINE_LAWS)
}
