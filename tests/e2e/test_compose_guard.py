"""What brings a compose service back without us, on a real systemd over real ssh; its `docker` is a fake."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import support_docker_program
from support_systemd import SystemdHost, needs_systemd

from leadline.clock import SystemClock
from leadline.errors import HostError
from leadline.hosts.ssh import SshHost
from leadline.launch import Run
from leadline.ports import Guard, Held, Site, Terms
from leadline.steps import carry_out, command, execute, observe
from leadline.targets.compose.target import ComposeTarget, target

pytestmark = needs_systemd
PATIENCE_S = 60.0
DOCKER = "/usr/local/bin/docker"
PROJECT = "/srv/llm"
SERVER = """#!/usr/bin/python3
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = " ".join(sys.argv[1:]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.ThreadingHTTPServer(("0.0.0.0", int(sys.argv[2])), Handler).serve_forever()
"""
COMPOSE = """services:
  llm: {image: img, network_mode: host, restart: unless-stopped, command: "--port 8000 --depth ${DEPTH:-3}"}
"""
ASK = (
    "python3 -c \"import urllib.request as u; print(u.urlopen('http://127.0.0.1:8000', timeout=5).read().decode())\""
    " 2>/dev/null || echo down"
)


class Service:
    def __init__(self, host: SystemdHost) -> None:
        self.host = host
        self.held: list[Held] = []
        self.far = SshHost(host.ssh_name, str(host.ssh_config))
        program = Path(support_docker_program.__file__).resolve()
        host.put("/opt/server", SERVER, 0o755)
        host.put(DOCKER, f"#!/bin/sh\nexec {host.python} {program} /var/fake '' \"$@\"\n", 0o755)
        host.put("/var/fake/containers/none", "")
        image = {"Id": "sha256:1", "Config": {"Entrypoint": ["/opt/server"], "Cmd": []}}
        host.put("/var/fake/images.json", json.dumps({"img": image}))
        host.put(f"{PROJECT}/compose.yaml", COMPOSE)
        files = (f"{PROJECT}/compose.yaml",)
        site = Site(compose_files=files, compose_service="llm", compose_program=(DOCKER, "compose"))
        self.target: ComposeTarget = target(site)
        self.compose("up -d llm")
        self.until(lambda: self.answer() == "--port 8000 --depth 3", "the original answers")

    def compose(self, words: str) -> None:
        self.host.sh(f"{DOCKER} compose -f {PROJECT}/compose.yaml {words}")

    def answer(self) -> str:
        return self.host.sh(ASK).stdout.strip()

    def terms(self, **other: Any) -> Terms:
        terms = Terms(
            owner="anna@desk",
            reason="campaign of spring",
            campaign="desk:/c",
            grace_s=300.0,
            lease_s=600.0,
            end_s=900.0,
            start=("sh", "-c", "echo start >>/root/hooks"),
            end=("sh", "-c", "echo end >>/root/hooks"),
            port=8000,
        )
        return msgspec.structs.replace(terms, **other)

    def arm(self, **other: Any) -> Guard:
        assert self.target.service is not None
        guard = self.target.service.guard(self.terms(**other))
        assert guard is not None
        for step in guard.arm:
            execute(self.far, step)
        return guard

    def hold(self, guard: Guard) -> Held:
        self.held.append(self.far.hold(guard.hold.argv, timeout_s=guard.hold.timeout_s))
        return self.held[-1]

    def trial(self, depth: int) -> None:
        observed = observe(self.target, self.far)
        launch = msgspec.structs.replace(observed.launch, argv=("/opt/server", "--port", "8000", "--depth", str(depth)))
        steps = self.target.plan(launch, observed, "log")
        carry_out(steps, host=self.far, target=self.target, clock=SystemClock(), launch=launch)
        self.until(lambda: self.answer().endswith(f"--depth {depth}"), "the trial answers")

    def until(self, holds: Callable[[], object], what: str) -> None:
        end = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < end, f"not within {PATIENCE_S:g} s: {what}; {self.answer()}; {self.left()}"
            time.sleep(0.1)

    def is_back(self) -> bool:
        return self.answer().endswith("--depth 3")

    def hooks(self) -> list[str]:
        return self.host.sh("cat /root/hooks", check=False).stdout.split()

    def left(self) -> str:
        """All of ours on that host."""
        units = "systemctl list-units --all --no-legend 'leadline-*'; find /etc/systemd /run/systemd -name 'leadline-*'"
        return self.host.sh(f"ls /var/lib/leadline; {units}", check=False).stdout.strip()

    def gone(self) -> bool:
        return self.left() == ""


@pytest.fixture(scope="module")
def service(systemd_host: SystemdHost) -> Iterator[Service]:
    made = Service(systemd_host)
    yield made
    made.far.close()


@pytest.fixture(autouse=True)
def _clean(service: Service) -> Iterator[None]:
    service.host.sh("rm -f /root/hooks")
    yield
    while service.held:
        service.held.pop().end()
    service.until(service.gone, "nothing of ours is left")


def test_a_connection_that_ends_brings_the_original_back(service: Service) -> None:
    guard = service.arm(grace_s=1.0)
    held = service.hold(guard)
    service.trial(7)
    held.end()
    service.until(service.is_back, "the original answers")
    service.until(lambda: service.hooks() == ["start", "end"], "the end hook has run")
    service.until(service.gone, "nothing of ours is left")
    for step in (guard.renew, guard.back, guard.hook, *guard.disarm):  # whoever comes too late does no harm
        execute(service.far, step)
    assert service.hooks() == ["start", "end"]


def test_a_blip_shorter_than_the_grace_changes_nothing(service: Service) -> None:
    guard = service.arm()
    held = service.hold(guard)
    service.trial(7)
    service.host.cut()
    grace = "systemctl is-active 'leadline-grace-*.timer'"
    service.until(lambda: service.host.sh(grace, check=False).stdout.strip() == "active", "the grace has begun")
    service.host.mend()
    held = service.hold(guard)
    assert service.host.sh(grace, check=False).stdout.strip() != "active"
    assert service.answer().endswith("--depth 7")
    execute(service.far, guard.back)
    service.until(service.is_back, "the original answers")
    execute(service.far, guard.hook)
    held.end()
    for step in guard.disarm:
        execute(service.far, step)
    assert service.hooks() == ["start", "end"]


@pytest.mark.torture
def test_an_old_connection_that_ends_late_begins_no_grace(service: Service) -> None:
    guard = service.arm()
    old, new = service.hold(guard), service.hold(guard)
    old.end()
    assert service.host.sh("systemctl is-active 'leadline-grace-*.timer'", check=False).stdout.strip() != "active"
    for step in guard.disarm:
        execute(service.far, step)
    new.end()


@pytest.mark.torture
@pytest.mark.parametrize("which", ["lease_s", "end_s"])
def test_a_time_that_is_over_brings_the_original_back(service: Service, which: str) -> None:
    held = service.hold(service.arm())
    service.trial(7)
    service.arm(**{which: 1.0})
    service.until(service.is_back, "the original answers")
    service.until(service.gone, "nothing of ours is left")
    held.end()
    assert service.hooks() == ["start", "end"]


@pytest.mark.torture
def test_what_was_stopped_is_stopped_again(service: Service) -> None:
    service.compose("stop llm")
    held = service.hold(service.arm(grace_s=1.0))
    service.trial(7)
    held.end()
    service.until(lambda: service.answer() == "down", "it is stopped")
    service.until(lambda: service.hooks() == ["start", "end"], "the end hook has run")
    service.compose("up -d llm")
    service.until(service.is_back, "the original answers")


def test_after_a_power_cut_the_original_comes_back(service: Service) -> None:
    service.hold(service.arm())
    service.trial(7)
    service.host.crash()
    service.host.again()
    service.until(service.is_back, "the original answers")
    service.until(lambda: service.hooks()[-1:] == ["end"], "the end hook has run")


@pytest.mark.torture
def test_by_hand(service: Service) -> None:
    service.arm()
    service.trial(7)
    override = service.host.sh("cat /var/lib/leadline/*/override.yaml").stdout
    (line,) = [line for line in override.splitlines() if "systemctl start" in line]
    service.host.sh("systemctl start" + line.partition("systemctl start")[2].partition(";")[0])
    service.until(service.is_back, "the original answers")


def test_two_campaigns_never_hold_one_service(service: Service) -> None:
    service.arm()
    with pytest.raises(
        HostError, match="held by another campaign: campaign=desk:/c;owner=anna@desk;reason=campaign of"
    ):
        service.arm(campaign="elsewhere:/d")
    assert service.target.service is not None
    who, unlock = service.target.service.unlock()
    assert "owner=anna@desk" in command(service.far, who).stdout.decode()
    service.trial(7)
    execute(service.far, unlock)
    service.until(service.is_back, "breaking the lock gives the service back")
    for step in service.arm(campaign="elsewhere:/d").disarm:
        execute(service.far, step)


def test_files_that_need_our_shell_are_refused(service: Service) -> None:
    assert service.target.service is not None
    guard = service.target.service.guard(service.terms())
    assert guard is not None
    (arm,) = guard.arm
    assert isinstance(arm, Run)
    done = service.far.run(("env", "DEPTH=4", *arm.argv), stdin=arm.stdin.encode())
    assert done.code == 5
    assert b"variables from your shell" in done.stderr
    assert service.is_back()
