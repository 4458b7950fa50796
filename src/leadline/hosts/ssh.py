"""Another machine over the OpenSSH program: the user's own config, keys, agents, jumps and known hosts hold."""

from __future__ import annotations

import re
import weakref
from collections.abc import Sequence

from leadline.errors import HostError, InputError
from leadline.hosts import _child, _words
from leadline.hosts._link import Link, unanswered
from leadline.hosts._remote import RemoteHost
from leadline.ports import Completed

DESTINATION = re.compile(r"(?!-|ssh://-)\S+")


class SshHost(RemoteHost):
    """ports.Host on another machine. `destination` = "ssh://[user@]host[:port]" or a name of ssh's config; `config` =
    another file than ~/.ssh/config. Connects when it is first used, and again after the connection broke: what runs
    then raises HostLost. For one thread.

    Nothing is asked for (passwords, passphrases, host keys): what needs an answer fails with what to do by hand. A
    command that we no longer wait for is killed there a second or two after its time; when we are killed, it gets the
    end of its input, and its time holds too. `alive_s` = seconds between signs of life; three missed ones end the
    connection.
    """

    def __init__(self, destination: str, config: str = "", *, alive_s: int = 5, connect_s: int = 10) -> None:
        if not DESTINATION.fullmatch(destination):
            raise InputError(f"{destination!r} is no machine; write ssh://user@host:port or a name of ssh's config")
        self.name = destination
        self._link = Link(destination, config, alive_s=alive_s, connect_s=connect_s)
        self.close = weakref.finalize(self, self._link.close)
        """Ends the connection; happens by itself at the end of the program."""

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0) -> Completed:
        line = _words.line(_words.watched(argv, timeout_s))
        self._link.up()
        try:
            done = _child.call(self._link.session(line), stdin, timeout_s)
        except _child.Slow:
            self._link.check()
            raise _child.slow(argv, timeout_s, self.name) from None
        except OSError as error:
            raise HostError(f"cannot run {_child.shown(argv)} on {self.name}: {_child.why(error)}") from error
        answer = _words.answer(argv, done, self.name)
        if answer is None:
            raise self._broken(done, argv)
        return answer

    def _broken(self, done: Completed, argv: Sequence[str]) -> HostError:
        if not self._link.connected:
            return self._link.lost(done.stderr.decode(errors="replace"))
        self._link.check()
        return unanswered(done, argv, self.name)

    def hold(self, argv: Sequence[str], *, timeout_s: float = 60.0) -> _child.HeldCommand:
        """Its input ends there as soon as we end, however that comes."""

        def failed(done: Completed) -> HostError:
            _words.refuse_missing(argv, done, self.name)
            _words.refuse_sudo(done, self.name)
            if done.code == 255:
                return self._broken(done, argv)
            said = _words.last_line(done.stderr)
            return HostError(f"{_child.shown(argv)} on {self.name} ended with {done.code} and holds nothing: {said}")

        self._link.up()
        words = self._link.session(_words.line(_words.known(argv)))
        return _child.HeldCommand(words, words=argv, timeout_s=timeout_s, failed=failed)

    def forward(self, host: str, port: int) -> tuple[str, int]:
        """The same address again for the same question, also after a new connection."""
        return "127.0.0.1", self._link.forward(host, port)


host = SshHost
