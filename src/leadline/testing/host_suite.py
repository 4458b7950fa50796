"""The laws of ports.Host and ports.Session as checks that any host, ours or a third party's, can be put through.

A law takes a Ground: a host, an empty folder on it and the path of a Python there. It raises AssertionError in words
when the host breaks it, and lets through what the host raises. Needs no test framework; the host must have a POSIX
shell, coreutils and /proc:

    @pytest.mark.parametrize("law", LAWS)
    def test_obeys(law, tmp_path):
        LAWS[law](Ground(host=MyHost(), folder=str(tmp_path), python=sys.executable))

HOST_LAWS are those for a host that starts no servers of ours. What a host does when its holder dies cannot be seen
through the port: test that with real processes.
"""

from __future__ import annotations

import resource
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from leadline.errors import HostError
from leadline.ports import Held
from leadline.testing.host_ground import Ground, must, must_fail
from leadline.testing.session_suite import SESSION_LAWS

NO_TEXT = b"\xff\xfe\x00 not text \x80\n"


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
    must(ground.host.read(path) is None, "a file that is not there must read as None")
    for content in (NO_TEXT * 1000, b"shorter", b""):
        ground.host.write(path, content, 0o600)
        must(ground.host.read(path) == content, "a file must read back as it was written")


def writes_with_the_mode_asked_for(ground: Ground) -> None:
    """Exactly that mode, whatever the umask is and whatever the file had."""
    for mode in (0o766, 0o600, 0o755):
        ground.host.write(ground.path("file"), b"x", mode)
        found = ground.shell('stat -c %a "$1"', ground.path("file"))
        must(found == f"{mode:o}", f"written with mode {mode:o}, the file has {found}")


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
    must(content == (old if failed else new), "a write that failed must leave the whole old file")
    must(not failed or ground.shell('stat -c %a "$1"', path) == "640", "a write that failed must leave the old mode")
    must(ground.shell('ls -A "$1"', ground.folder) == "file", "a write must leave no other file in the folder")


def says_what_it_could_not_write(ground: Ground) -> None:
    path = ground.path("no-such-folder/file")
    must_fail(lambda: ground.host.write(path, b"x", 0o600), [path], "a write into a folder that is not there")


def removes_a_file(ground: Ground) -> None:
    """Absent is fine."""
    ground.host.write(ground.path("file"), b"x", 0o600)
    for _ in range(2):
        ground.host.remove(ground.path("file"))
        must(ground.host.read(ground.path("file")) is None, "a removed file must be gone")


def does_with_sudo_what_it_does_without(ground: Ground) -> None:
    """Where `sudo -n` works: write with the mode, read, remove."""
    path = ground.path("file")
    if not ground.sudo:
        return
    must(ground.host.read(path, sudo=True) is None, "a file that is not there must read as None")
    for content, mode in ((NO_TEXT * 1000, 0o600), (b"", 0o755)):
        ground.host.write(path, content, mode, sudo=True)
        found = (ground.host.read(path, sudo=True), ground.shell('stat -c %a "$1"', path))
        must(found == (content, f"{mode:o}"), "a file written with sudo must read back, with its mode")
    folder = ground.path("no-such-folder/file")
    must_fail(lambda: ground.host.write(folder, b"x", 0o600, sudo=True), [folder], "a write into no folder")
    for _ in range(2):
        ground.host.remove(path, sudo=True)
        must(ground.host.read(path, sudo=True) is None, "a removed file must be gone")


def shows_a_log_that_is_no_text(ground: Ground) -> None:
    """Bytes that are no UTF-8 are replaced, the rest stays; a log that is not there yet is empty."""
    must(ground.host.log(ground.path("none")) == "", "a log that is not there must be empty")
    ground.host.write(ground.path("log"), b"first\n" + NO_TEXT + "größer\n".encode(), 0o600)
    text = ground.host.log(ground.path("log"))
    must("first\n\ufffd\ufffd" in text and "not text" in text and "größer\n" in text, f"the log lost text: {text!r}")


def passes_words_as_they_are(ground: Ground) -> None:
    """No shell looks at them; the answer says what was run."""
    words = (
        "$HOME `id` $(id)",
        "a  b",
        "*",
        "'\"\\",
        "",
        ";true",
        "größe",
        "\n",
        "a\n\nb\n",
        "!!",
        "\\'",
        "%s\\0101",
        "-x",
    )
    done = ground.host.run((ground.python, "-c", "import sys; print(ascii(sys.argv[1:]))", *words))
    must(done.stdout.decode().strip() == ascii(list(words)), f"words reached the command as {done.stdout!r}")
    must(done.argv[-len(words) :] == words, "the answer must hold the words that were run")


def passes_bytes_in_and_out(ground: Ground) -> None:
    """Also more than a pipe holds, and both outputs apart."""
    data = NO_TEXT * 600_000
    done = ground.host.run(("sh", "-c", "cat; printf '\\377' >&2"), stdin=data)
    must(done.stdout == data, "standard output must come back as the bytes that were written")
    must(done.stderr == b"\xff", "standard error must come back as the bytes that were written")
    must(ground.host.run(("cat",)).stdout == b"", "without stdin a command reads the end of its input")


def tells_how_a_command_ended(ground: Ground) -> None:
    for script, code in (
        ("exit 0", 0),
        ("exit 7", 7),
        ("exit 255", 255),
        ("kill -KILL $$", 137),
        ("kill -TERM $$", 143),
    ):
        found = ground.host.run(("sh", "-c", script)).code
        must(found == code, f"a command that does `{script}` ends with {code}, not {found}")


def limits_the_time_of_a_command(ground: Ground) -> None:
    """Raises HostError with the command and the limit, and leaves nothing of the command."""
    path = ground.path("pids")
    script = 'sleep 600 & echo "$$ $!" > "$1"; wait'
    must_fail(
        lambda: ground.host.run(("sh", "-c", script, "a-slow-one", path), timeout_s=0.7),
        ["a-slow-one", "0.7"],
        "a command that takes too long",
    )
    for pid in (ground.host.read(path) or b"").decode().split():
        ground.wait_for_end(pid)


def says_which_program_is_missing(ground: Ground) -> None:
    must_fail(lambda: ground.host.run(("no-such-program", "x")), ["no-such-program"], "a program that is not there")


_LISTEN = """
import os, socket, sys, threading
family = socket.AF_INET6 if ":" in sys.argv[2] else socket.AF_INET
try:
    server = socket.create_server((sys.argv[2], 0), family=family, dualstack_ipv6=sys.argv[2] == "::")
    port = server.getsockname()[1]
except (OSError, ValueError):
    port = 0
with open(sys.argv[1], "w") as sign:
    sign.write(f"{os.getpid()} {port}")
print("listens", flush=True)
def serve():
    while True:
        caller, _ = server.accept()
        with caller:
            caller.sendall(caller.recv(100).upper())
if port:
    threading.Thread(target=serve, daemon=True).start()
sys.stdin.read()
"""
"""Listens until its input ends; answers in capitals; signs with its pid and port."""


def _listening(ground: Ground, address: str) -> tuple[Held, int, int]:
    """A held program on a free port of that address, its pid and port; port 0 when the host has no such address."""
    held = ground.host.hold((ground.python, "-c", _LISTEN, ground.path("sign"), address), timeout_s=ground.limit_s)
    pid, port = (ground.host.read(ground.path("sign")) or b"").split()
    return held, int(pid), int(port)


def finds_who_listens(ground: Ground) -> None:
    """Whoever would get a connection to the address that was asked for, or is in the way there: a wildcard is, in IPv6
    too, and who asks for a wildcard finds any."""
    for listens, asked in (
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.1", "localhost"),
        ("127.0.0.1", "0.0.0.0"),
        ("0.0.0.0", "127.0.0.1"),
        ("::", "127.0.0.1"),
        ("::1", "::1"),
    ):
        held, pid, port = _listening(ground, listens)
        owner = ground.host.listener(asked, port) if port else None
        again = ground.host.listener(asked, port) if port else None
        held.end()
        what = f"who listens on {listens}, asked for {asked}"
        must(not port or owner is not None, f"{what}: nobody was found")
        if owner is not None:
            must(owner.pid == pid, f"{what}: found {owner}, it is process {pid}")
            must(owner.name and owner.argv[1:2] == ("-c",), f"{what}: the facts must be whole: {owner}")
            must(owner.argv[3:] == (ground.path("sign"), listens), f"{what}: its words are not {owner.argv}")
            same = again is not None and owner.start_id == again.start_id
            must(owner.start_id and same, f"{what}: a process keeps its start_id, and differs in it from others")


def finds_nobody_where_nobody_listens(ground: Ground) -> None:
    """Neither another address of the same port, nor a server that was ended."""
    held, _, port = _listening(ground, "127.0.0.2")
    elsewhere = ground.host.listener("127.0.0.1", port) if port else None
    held.end()
    must(elsewhere is None, f"{elsewhere} listens on another address")
    held, _, port = _listening(ground, "127.0.0.1")
    held.end()
    left = ground.host.listener("127.0.0.1", port)
    must(left is None, f"the server was ended, but {left} was found")


def forwards_to_an_address(ground: Ground) -> None:
    """What listens there is reached from here, over the same address whenever it is asked for."""
    held, _, port = _listening(ground, "127.0.0.1")
    near = ground.host.forward("127.0.0.1", port)
    must(near == ground.host.forward("127.0.0.1", port), "the same address must lead there each time")
    for _ in range(2):
        with socket.create_connection(near, timeout=ground.limit_s) as caller:
            caller.sendall(b"hello")
            answered = caller.recv(100)
        must(answered == b"HELLO", f"{near} must lead to port {port} of the host, it answers {answered!r}")
    held.end()


_NOTES = 'echo "$$" > "$1"; echo up; cat > "$2"; echo ended > "$2"'


def holds_a_command(ground: Ground) -> None:
    """Returns after the first line; the command's input stays open until `end`, which waits for it to end."""
    note = ground.path("note")
    held = ground.hold(_NOTES, ground.path("pid"), note)
    pid = (ground.host.read(ground.path("pid")) or b"").decode().strip()
    must(held.alive() and ground.lives(pid), "a held command lives while its input is open")
    must(ground.host.read(note) in (b"", None), "the input of a held command must stay open and empty")
    held.end()
    must(ground.host.read(note) == b"ended\n", "`end` must let the command see the end of its input, and wait for it")
    held.end()
    must(not held.alive(), "a command that was ended does not live")


def notices_that_a_held_command_ended(ground: Ground) -> None:
    """By itself; also one that said much more than a pipe holds."""
    ground.shell('mkfifo "$1"', ground.path("sign"))
    held = ground.hold('echo up; head -c 200000 /dev/zero; read -r _ < "$1"', ground.path("sign"))
    must(held.alive(), "a held command lives while it waits")
    must(ground.comes(lambda: bool(held.alive()) and _written(ground)), "a held command must not wait for its reader")
    must(ground.comes(lambda: not held.alive()), "a held command that ended must not count as alive")
    held.end()


def _written(ground: Ground) -> bool:
    """Whether somebody reads the pipe, and was told to go on."""
    return ground.shell('timeout 0.3 sh -c \'echo go > "$1"\' sh "$1" && echo done', ground.path("sign")) == "done"


def says_why_it_cannot_hold(ground: Ground) -> None:
    """A command that ends or says nothing, a program that is not there; nothing of it is left."""
    fails = ("sh", "-c", "echo a-reason >&2; exit 3")
    must_fail(lambda: ground.host.hold(fails), ["a-reason", "3"], "holding a command that fails")
    must_fail(lambda: ground.host.hold(("no-such-program",)), ["no-such-program"], "holding no program")
    silent = ("sh", "-c", 'echo $$ > "$1"; cat', "a-silent-one", ground.path("pid"))
    must_fail(lambda: ground.host.hold(silent, timeout_s=0.7), ["a-silent-one", "0.7"], "holding a silent command")
    for pid in (ground.host.read(ground.path("pid")) or b"").decode().split():
        ground.wait_for_end(pid)


def tells_its_free_memory(ground: Ground) -> None:
    found = ground.host.free_memory_bytes()
    must(isinstance(found, int) and found > 0, f"free memory must be a number of bytes, not {found!r}")


def tells_the_memory_of_its_devices(ground: Ground) -> None:
    """Bytes of each accelerator, or None."""
    found = ground.host.device_used_bytes()
    known = found is None or (found and all(isinstance(b, int) and b >= 0 for b in found))
    must(known, f"memory in use must be a number of bytes for each accelerator, not {found!r}")


def has_a_lasting_identity(ground: Ground) -> None:
    """Names and values are text, and the same when asked again: results are compared by them."""
    first, second = ground.host.identity(), ground.host.identity()
    must(first == second, f"the identity of a machine changes: {first}, then {second}")
    texts = [text for pair in first.items() for text in pair]
    must(texts and all(isinstance(t, str) and t for t in texts), f"an identity is names with values, not {first}")


FILE_LAWS: tuple[Callable[[Ground], None], ...] = (
    reads_back_what_it_wrote,
    writes_with_the_mode_asked_for,
    keeps_the_old_file_when_a_write_fails,
    says_what_it_could_not_write,
    removes_a_file,
    does_with_sudo_what_it_does_without,
    shows_a_log_that_is_no_text,
)
COMMAND_LAWS: tuple[Callable[[Ground], None], ...] = (
    passes_words_as_they_are,
    passes_bytes_in_and_out,
    tells_how_a_command_ended,
    limits_the_time_of_a_command,
    says_which_program_is_missing,
    holds_a_command,
    notices_that_a_held_command_ended,
    says_why_it_cannot_hold,
)
MACHINE_LAWS: tuple[Callable[[Ground], None], ...] = (
    finds_who_listens,
    finds_nobody_where_nobody_listens,
    forwards_to_an_address,
    tells_its_free_memory,
    tells_the_memory_of_its_devices,
    has_a_lasting_identity,
)

HOST_LAWS: Mapping[str, Callable[[Ground], None]] = {
    law.__name__: law for law in (*FILE_LAWS, *COMMAND_LAWS, *MACHINE_LAWS)
}
LAWS: Mapping[str, Callable[[Ground], None]] = {**HOST_LAWS, **{law.__name__: law for law in SESSION_LAWS}}

__all__ = ["HOST_LAWS", "LAWS", "Ground"]
