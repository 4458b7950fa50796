"""What a law of ports.Host is put on: a host, an empty folder on it and the path of a Python there."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from leadline.errors import HostError
from leadline.launch import LaunchSpec, Start
from leadline.ports import Held, Host, Session


class Ground(msgspec.Struct, frozen=True, kw_only=True):
    host: Host
    folder: str
    python: str
    sudo: bool = False
    """Whether `sudo -n` works there."""
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

    def hold(self, script: str, *words: str) -> Held:
        """A shell script, held; the words are $1, $2, ..."""
        return self.host.hold(("sh", "-c", script, "sh", *words), timeout_s=self.limit_s)

    def comes(self, condition: Callable[[], bool]) -> bool:
        """Whether it becomes true in time."""
        until = time.monotonic() + self.limit_s
        while not condition():
            if time.monotonic() > until:
                return False
            time.sleep(0.01)
        return True

    def lives(self, pid: int | str) -> bool:
        """Dead but not reaped counts as gone."""
        return self.shell('grep "^State:" "/proc/$1/status" 2>/dev/null | grep -v Z', str(pid)) != ""

    def wait_for_end(self, pid: int | str) -> None:
        wait = 'while grep "^State:" "/proc/$1/status" 2>/dev/null | grep -qv Z; do sleep 0.02; done'
        self.shell(wait, str(pid))


def must(condition: object, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def must_fail(action: Callable[[], object], words: Sequence[str], what: str) -> None:
    """It must raise HostError with these words in the message."""
    try:
        action()
    except HostError as error:
        for word in words:
            must(word in str(error), f"{what}: the message must name {word!r}, it says: {error}")
        return
    raise AssertionError(f"{what} must raise HostError")
