"""A dummy server as a unit of a host with a real systemd, and what tests of targets.systemd do with it."""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Callable, Iterator, Sequence

import msgspec
import pytest
from support_systemd import SystemdHost

from leadline.clock import SystemClock
from leadline.evidence import ServiceFacts
from leadline.hosts.ssh import SshHost
from leadline.launch import LaunchSpec, Run, Step
from leadline.ports import Completed, Guard, Held, Observed, Site, Terms
from leadline.steps import carry_out, command, execute, observe
from leadline.targets.systemd import target

PATIENCE_S = 20.0
DEPTH = ("--depth", "4")
SERVER = """\
import http.server, os, signal, sys, time

words = sys.argv[1:]
port = int(words[words.index("--port") + 1])
print("serving", *[w for w in words if not w.startswith("hf_")], flush=True)
if "--exit" in words:
    os._exit(int(words[words.index("--exit") + 1]))
if "--stubborn" in words:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "--eat" in words:
    kept = []
    while True:
        kept.append(bytearray(8 << 20))


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args):
        pass


http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
_numbers = itertools.count(1)


class Unit:
    """One unit of its own, in its own files; it runs unless it is told not to. `more` = lines for its [Service]."""

    def __init__(
        self, host: SystemdHost, ssh: SshHost, more: str = "", words: str = "", *, running: bool = True
    ) -> None:
        number = next(_numbers)
        self.host, self.ssh, self.port = host, ssh, 8000 + number
        self.name = f"llm-{number}"
        self.unit = f"{self.name}.service"
        self.path = f"/etc/systemd/system/{self.unit}"
        self.target = target(Site(unit=self.unit))
        service = self.target.service
        assert service is not None
        self.service = service
        self._held: list[Held] = []
        host.put("/opt/server.py", SERVER)
        host.put(
            self.path,
            f"[Unit]\nDescription=Dummy server\n[Service]\nExecStart=/usr/bin/python3 /opt/server.py --port {self.port}"
            f"{words}\n{more}[Install]\nWantedBy=multi-user.target\n",
        )
        start = f"systemctl enable -q --now {self.unit}" if running else "true"
        host.sh(f"systemctl daemon-reload && {start}")
        if running:
            self.until(lambda: self.argv() != (), "the unit runs")

    def by(self, ssh: SshHost, *, sudo: bool) -> Unit:
        """The same unit, by another user."""
        other = copy.copy(self)
        other.ssh, other.target = ssh, target(Site(unit=self.unit, sudo=sudo))
        service = other.target.service
        assert service is not None
        other.service = service
        return other

    def sh(self, script: str, *, check: bool = True) -> str:
        return self.host.sh(script, check=check).stdout.strip()

    def until(self, condition: Callable[[], object], what: str, limit_s: float = PATIENCE_S) -> None:
        end = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < end, f"not within {limit_s:g} s: {what}; left of ours: {self.ours()}"
            time.sleep(0.05)

    def argv(self) -> tuple[str, ...]:
        """Of the main process; () when there is none."""
        text = self.sh(f"tr '\\0' '\\n' </proc/$(systemctl show -p MainPID --value {self.unit})/cmdline", check=False)
        return tuple(text.splitlines()) if "/opt/server.py" in text else ()

    def show(self, *names: str) -> str:
        return self.sh(f"systemctl show --value {' '.join(f'-p {n}' for n in names)} {self.unit}")

    def ours(self) -> str:
        """Every file and unit of ours on the host that has to do with this unit, the log of a guard excluded."""
        return self.sh(
            f"find /run/leadline/{self.unit} /run/systemd/system /run/systemd/transient /etc/systemd/system "
            f"/var/lib/leadline -path '*{self.name}.service*' ! -path {self.path} ! -name {self.unit} ! -name log "
            f"! -path '*/multi-user.target.wants/*' 2>/dev/null; "
            f"systemctl list-units --all --plain --no-legend 'leadline-*{self.name}.*' | grep -v not-found",
            check=False,
        )

    def observe(self) -> Observed:
        return observe(self.target, self.ssh)

    def look(self) -> ServiceFacts:
        return self.service.facts(self.run(self.service.look()))

    def run(self, step: Run) -> Completed:
        return command(self.ssh, step)

    def do(self, *steps: Step) -> None:
        for step in steps:
            execute(self.ssh, step)

    def carry(self, steps: Sequence[Step], launch: LaunchSpec) -> None:
        carry_out(steps, host=self.ssh, target=self.target, clock=SystemClock(), launch=launch)

    def guard(self, **more: object) -> Guard:
        terms = Terms(
            owner="anna@desk", reason="leadline run", campaign="desk:/one", grace_s=60.0, lease_s=600.0, end_s=3600.0,
            port=self.port,
        )  # fmt: skip
        guard = self.service.guard(msgspec.structs.replace(terms, **more))
        assert guard is not None
        return guard

    def hold(self, guard: Guard) -> Held:
        """Until `release` at the latest."""
        self._held.append(self.ssh.hold(guard.hold.argv))
        return self._held[-1]

    def release(self) -> None:
        for held in self._held:
            held.end()

    def trial(self, *words: str) -> Observed:
        """Put the launch with these words more in force; the service as it was observed before."""
        observed = self.observe()
        launch = with_words(observed.launch, *words)
        self.carry(self.target.plan(launch, observed, ""), launch)
        return observed


Make = Callable[..., Unit]


def with_words(launch: LaunchSpec, *words: str) -> LaunchSpec:
    return msgspec.structs.replace(launch, argv=(*launch.argv, *words))


@pytest.fixture(scope="module")
def ssh(systemd_host: SystemdHost) -> Iterator[SshHost]:
    host = SshHost(systemd_host.ssh_name, str(systemd_host.ssh_config))
    yield host
    host.close()


@pytest.fixture
def make(systemd_host: SystemdHost, ssh: SshHost) -> Iterator[Make]:
    made: list[Unit] = []

    def unit(more: str = "", words: str = "", *, running: bool = True) -> Unit:
        made.append(Unit(systemd_host, ssh, more, words, running=running))
        return made[-1]

    yield unit
    for one in made:
        one.release()
