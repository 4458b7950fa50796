"""A place that is reached through words before every command: `pct exec 105 --`, `kubectl exec -i pod --`."""

from __future__ import annotations

from collections.abc import Sequence

from leadline.errors import HostError
from leadline.hosts import _child, _words
from leadline.hosts._remote import RemoteHost
from leadline.ports import Completed, Held, Host

_WHERE = ("sh", "-c", "readlink /proc/self/ns/net; cat /proc/sys/kernel/random/boot_id")


class WrappedHost(RemoteHost):
    """ports.Host behind words on another host. There must be a POSIX shell and coreutils, and the words must pass
    standard input on (docker and kubectl: `exec -i`)."""

    def __init__(self, inner: Host, words: Sequence[str]) -> None:
        self._inner, self._words = inner, tuple(words)
        self.name = f"{' '.join(self._words)} ({inner.name})"

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0) -> Completed:
        words = (*self._words, *_words.watched(argv, timeout_s))
        done = self._inner.run(words, stdin=stdin, timeout_s=timeout_s)
        answer = _words.answer(argv, done, self.name)
        if answer is None:
            said = _words.last_line(done.stderr)
            raise HostError(
                f"{_child.shown(argv)} was not run: the words before it ended with {done.code} ({said}); try "
                f"{_child.shown((*self._words, 'true'))}"
            )
        return answer

    def hold(self, argv: Sequence[str], *, timeout_s: float = 60.0) -> Held:
        return self._inner.hold((*self._words, *_words.known(argv)), timeout_s=timeout_s)

    def forward(self, host: str, port: int) -> tuple[str, int]:
        """Raises HostError when the place has a network of its own: how that is reached only its operator knows."""
        if self.run(_WHERE).stdout != self._inner.run(_WHERE).stdout:
            raise HostError(
                f"{self.name} has a network of its own, so {host}:{port} there cannot be reached by itself: give "
                f"service.url, an address at which it is reached from here"
            )
        return self._inner.forward(host, port)


host = WrappedHost
