"""One connection of the OpenSSH program that many commands share: its master is our child and ends with us.

The master's own session is a `cat` on the other machine that reads a pipe of ours. When we end, however that comes, the
pipe closes, `cat` ends, and with it the master, once the commands that still use it have ended. Those are clients of
its socket and read no configuration. The user's configuration decides all of the connection itself: names, jumps,
agents, keys, known hosts.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, cast

from leadline.errors import HostError, HostLost
from leadline.hosts import _child, _words
from leadline.ports import Completed

READY = b"leadline\n"
SOCKET_ROOM = 100 - 17
"""Longest path that fits a socket's name, with the suffix that ssh adds while it makes one."""
PING_S = 5.0
FORWARD_TRIES = 5

_KEY_ADVICE = "Connect once by hand, compare the key's fingerprint with the machine's own, and accept it: {by_hand}"
_LOGIN_ADVICE = "This must work without a question, with a key in ssh's agent or without a passphrase: {by_hand}"
_NET_ADVICE = "See whether this works: {by_hand}"
_CAUSES: tuple[tuple[str, str, str], ...] = (
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED|Host key for .* has changed",
        "its host key has changed",
        "It was installed anew, or somebody is in between. Find out which; in the first case remove the old key with "
        "ssh-keygen -R and accept the new one by hand: {by_hand}",
    ),
    (r"Host key verification failed|No \S+ host key is known", "its host key is not known here", _KEY_ADVICE),
    (r"Permission denied \((?P<said>[^)]*)\)", "permission denied", _LOGIN_ADVICE),
    (r"Too many authentication failures", "permission denied after too many keys", _LOGIN_ADVICE),
    (r"Could not resolve hostname", "its name is not found", "Correct service.host, or its entry in ssh's config."),
    (r"Connection refused", "connection refused: no ssh server listens there", _NET_ADVICE),
    (r"No route to host|Network is unreachable", "unreachable: there is no route to it", _NET_ADVICE),
    (r"timed out|Timeout, server", "it does not answer (timed out)", _NET_ADVICE),
    (r"Bad configuration option|Can't open user config file|bad configuration", "ssh's config is wrong", "Correct it."),
    (r"Connection (?:reset|closed)|Broken pipe|closed by remote|disconnect", "the connection broke", _NET_ADVICE),
)


def cause(said: str, destination: str, by_hand: str) -> str:
    """What ssh's messages mean, and what to do next."""
    for pattern, meaning, advice in _CAUSES:
        match = re.search(pattern, said)
        if match:
            more = match.groupdict().get("said")
            return f"{destination}: {meaning}{f' ({more})' if more else ''}. {advice.format(by_hand=by_hand)}"
    last = _words.last_line(said.encode())
    return f"{destination}: the connection ended ({last}). {_NET_ADVICE.format(by_hand=by_hand)}"


class Link:
    """For one thread. Connects when it is needed, again after it broke."""

    def __init__(self, destination: str, config: str, *, alive_s: int, connect_s: int) -> None:
        self._destination, self._config = destination, config
        self._alive_s, self._connect_s = alive_s, connect_s
        self._master: subprocess.Popen[bytes] | None = None
        self._said: _child.Said = _child.Said()
        self._socket = ""
        self._forwards: dict[tuple[str, int], int] = {}
        self._standing: set[tuple[str, int]] = set()  # those of the present connection
        _child.for_us_alone(self)

    @property
    def connected(self) -> bool:
        """As far as this machine can tell."""
        return self._master is not None and self._master.poll() is None

    def up(self) -> None:
        """Raises HostLost when there is no way."""
        if not self.connected:
            self.close()
            self._connect()
        for (host, port), near in self._forwards.items():
            if (host, port) not in self._standing:
                self._forward(near, host, port)

    def client(self, *words: str) -> list[str]:
        """A command that goes through the connection, or fails at once when it is gone."""
        quiet = ("-F", "/dev/null", "-o", "LogLevel=ERROR", "-o", "ProxyCommand=false", "-S", self._socket)
        return ["ssh", *quiet, *words]

    def session(self, line: str) -> list[str]:
        return self.client("-T", "-e", "none", "leadline", line)

    def check(self) -> None:
        """Raises HostLost, and gives the connection up, when the other machine no longer answers through it."""
        try:
            done = _child.call(self.session("exec true"), b"", PING_S)
            if done.code == 0:
                return
            said = done.stderr.decode(errors="replace")
            if "Session open refused" in said:
                raise HostError(
                    f"{self._destination} refuses another session: its sshd's MaxSessions must be at least 4"
                )
        except _child.Slow:
            said = f"no answer within {PING_S:g} s: timed out"
        raise self.lost(said)

    def lost(self, said: str) -> HostLost:
        """Gives the connection up, and says why it is gone."""
        master = self._master
        if master is not None:
            with suppress(subprocess.TimeoutExpired):
                master.wait(0.5)
        said = self._said.text() + said
        self.close()
        return HostLost(cause(said, self._destination, self._by_hand()))

    def forward(self, host: str, port: int) -> int:
        """The local port that leads there, always the same one."""
        self.up()
        key = (host, port)
        for left in reversed(range(FORWARD_TRIES)):
            if key in self._forwards:
                break
            try:
                self._forwards[key] = self._forward(_free_port(), host, port)
            except HostLost:
                raise
            except HostError:
                if not left:
                    raise
        return self._forwards[key]

    def _forward(self, near: int, host: str, port: int) -> int:
        there = f"[{host}]" if ":" in host else host
        words = ("-O", "forward", "-L", f"127.0.0.1:{near}:{there}:{port}", "leadline")
        done = _child.call(self.client(*words), b"", PING_S)
        if done.code:
            self.check()
            said = _words.last_line(done.stderr)
            raise HostError(f"cannot forward 127.0.0.1:{near} to {there}:{port} of {self._destination}: {said}")
        self._standing.add((host, port))
        return near

    def _connect(self) -> None:
        self._socket = f"{private_folder()}/{os.getpid()}.{secrets.token_hex(4)}"
        self._said = _child.Said()
        try:
            self._master = subprocess.Popen(
                self._command(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said.fd,
                bufsize=0,
                env={**os.environ, "LC_ALL": "C", "SSH_ASKPASS_REQUIRE": "never"},
                start_new_session=True,  # no terminal: neither it nor a jump can ask something there
            )
            self._await_ready(_child.Lines(cast("IO[bytes]", self._master.stdout)))
        except OSError as error:
            self.close()
            raise HostError(f"cannot run ssh: {_child.why(error)}. Install the OpenSSH client.") from error
        except BaseException:
            self.close()
            raise

    def _await_ready(self, lines: _child.Lines) -> None:
        noise = b""
        while not (line := lines.read(3.0 * self._connect_s) or b"").endswith(READY):
            if not line:
                raise self.lost("" if lines.ended else "the other side says nothing: timed out")
            noise += line
        noise += line.removesuffix(READY)
        if noise:
            raise HostError(
                f"the login shell of {self._destination} prints text of its own before every command "
                f"({_words.last_line(noise)[:80]!r}). That breaks scp and rsync too: let its start-up file (~/.bashrc) "
                f"print in interactive shells only."
            )

    def _command(self) -> list[str]:
        options = [
            "BatchMode=yes",
            f"ConnectTimeout={self._connect_s}",
            f"ServerAliveInterval={self._alive_s}",
            "ServerAliveCountMax=3",
            "NoHostAuthenticationForLocalhost=no",
            "ControlMaster=yes",
            f"ControlPath={self._socket}",
            "ControlPersist=no",
            "ClearAllForwardings=yes",
            "PermitLocalCommand=no",
            "RemoteCommand=none",
            "LogLevel=ERROR",
            *(["StrictHostKeyChecking=yes"] if self._skips_keys() else []),
        ]
        words = [*self._ssh(), *(w for o in options for w in ("-o", o))]
        return [*words, "-a", "-x", "-T", "-e", "none", self._destination, "echo leadline; exec cat >/dev/null"]

    def _ssh(self) -> list[str]:
        return ["ssh", *(("-F", self._config) if self._config else ())]

    def _skips_keys(self) -> bool:
        """Whether the user's config would take any host key, which we never do."""
        try:
            told = _child.call([*self._ssh(), "-G", self._destination], b"", 3.0 * self._connect_s)
        except _child.Slow:
            return True
        text = told.stdout.decode(errors="replace").lower()
        found = dict(row.partition(" ")[::2] for row in text.splitlines())
        kept = set(found.get("userknownhostsfile", "").split()) - {"/dev/null", "none"}
        return found.get("stricthostkeychecking") in ("false", "no", "off") or (
            found.get("stricthostkeychecking") == "accept-new" and not kept
        )

    def _by_hand(self) -> str:
        return _child.shown([*self._ssh(), self._destination])

    def close(self) -> None:
        """End the connection, and what still uses it. May be repeated."""
        master = self._master
        if master is not None:
            if master.stdin is not None:
                master.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                master.wait(1.0)
            _child.end(master)
            with suppress(OSError):
                os.unlink(self._socket)
        self.drop()

    def drop(self) -> None:
        """Close our ends without waiting: in a fork they belong to the parent."""
        if self._master is not None:
            for pipe in (self._master.stdin, self._master.stdout):
                if pipe is not None:
                    pipe.close()
        self._said.close()
        self._master = None
        self._standing.clear()


def private_folder() -> str:
    """A folder for sockets that is ours alone and has a short name."""
    for base in (os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), "/tmp"):
        path = f"{base}/leadline-ssh-{os.getuid()}"
        if not base or len(os.fsencode(f"{path}/{os.getpid()}.01234567")) > SOCKET_ROOM:
            continue
        with suppress(OSError):
            with suppress(FileExistsError):
                os.mkdir(path, 0o700)
            facts = os.lstat(path)
            if stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid() and not facts.st_mode & 0o077:
                return path
    raise HostError(
        f"there is no folder for ssh's sockets: $XDG_RUNTIME_DIR, $TMPDIR or /tmp must have a short name, be writable "
        f"and hold no leadline-ssh-{os.getuid()} of anybody else"
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def unanswered(done: Completed, words: Sequence[str], name: str) -> HostError:
    """A command that gave no sign of its end over a connection that still works."""
    said = _words.last_line(done.stderr)
    return HostError(f"{_child.shown(words)} on {name} ended without a sign of how ({said}): its shell was killed")
