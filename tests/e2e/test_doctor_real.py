"""`leadline doctor` with real systemd, ssh, sudo and visudo: its rules and no others carry a whole campaign."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support_cli import Called, answer, typed
from support_systemd import SystemdHost, needs_systemd

from leadline.build import make_host, make_target
from leadline.clock import SystemClock
from leadline.errors import HostError
from leadline.launch import LaunchFile, LaunchSpec, Run, Step
from leadline.ports import Host, Observed, Site, Target, Terms
from leadline.steps import carry_out, command, digest, execute, observe

pytestmark = needs_systemd

UNIT = "llm.service"
PORT = 8081
RULES = "/etc/sudoers.d/operator"
WORDS = ("/usr/bin/python3", "-m", "http.server", str(PORT), "--bind", "127.0.0.1")
TERMS = Terms(
    owner="op@desk", reason="campaign real", campaign="desk:/srv/real", grace_s=60, lease_s=300, end_s=3661, port=PORT,
    end=("true",),
)  # fmt: skip


SERVER = """#!/usr/bin/python3
from http.server import BaseHTTPRequestHandler, HTTPServer
class Answer(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"status":"ok"}')
HTTPServer(("127.0.0.1", 8082), Answer).serve_forever()
"""


@pytest.fixture(scope="module")
def box(systemd_host: SystemdHost) -> SystemdHost:
    systemd_host.put(f"/etc/systemd/system/{UNIT}", f"[Service]\nExecStart={' '.join(WORDS)}\n")
    systemd_host.sh(f"systemctl daemon-reload && systemctl start {UNIT}")
    return systemd_host


@pytest.fixture
def unruled(box: SystemdHost) -> Iterator[SystemdHost]:
    box.sh(f"rm -f {RULES}")
    yield box
    box.sh(f"rm -f {RULES}")


@pytest.fixture
def ruled(unruled: SystemdHost) -> SystemdHost:
    give(unruled, rules(unruled))
    return unruled


def at(box: SystemdHost, user: str) -> tuple[str, ...]:
    return ("--host", f"ssh://{user}@{box.ssh_name}", "--ssh-config", str(box.ssh_config))


def asked(box: SystemdHost, *words: str, user: str = "operator", unit: str = UNIT) -> Called:
    sudo = () if user == "root" else ("--sudo",)
    return typed("doctor", "--unit", unit, *at(box, user), *sudo, *words)


def rules(box: SystemdHost, user: str = "operator") -> str:
    told = asked(box, "--sudoers", user=user)
    assert told.returncode == 0, told.stderr
    return told.stdout


def give(box: SystemdHost, text: str) -> None:
    """As an administrator would: checked by visudo, in whose absence sudo would ignore or refuse it."""
    box.put("/run/checked", text, 0o440)
    checked = box.sh("visudo -c -f /run/checked")
    assert "parsed OK" in checked.stdout
    box.put(RULES, text, 0o440)


def checks(called: Called) -> dict[str, dict[str, Any]]:
    return {check["name"]: check for check in answer(called)["checks"]}


def reach(box: SystemdHost) -> tuple[Host, Target]:
    host = make_host(f"ssh://operator@{box.ssh_name}", str(box.ssh_config))
    return host, make_target("systemd", Site(unit=UNIT, sudo=True))


# --- the host


def test_root_is_told_that_all_is_there(box: SystemdHost) -> None:
    called = asked(box, "--json", user="root")
    assert called.returncode == 0, called.stdout
    found = checks(called)
    assert answer(called)["ready"] is True
    assert {name for name, check in found.items() if check["state"] == "missing"} == set()
    assert found["service"]["text"].startswith(f"{UNIT}, running: /usr/bin/python3")
    assert found["held by"]["text"] == "nobody"
    assert "ms for a command" in found["host"]["text"]
    assert re.fullmatch(r"version 2\d\d", found["systemd"]["text"])


def test_who_serves_is_said(box: SystemdHost) -> None:
    box.put("/etc/systemd/system/llama.service", "[Service]\nExecStart=/opt/llama-server --port 8082\n")
    box.put("/opt/llama-server", SERVER, 0o755)
    box.sh("systemctl daemon-reload && systemctl start llama && until ss -tln | grep -q :8082; do sleep 0.05; done")
    try:
        found = checks(asked(box, "--json", user="root", unit="llama"))["url"]
        assert found["state"] == "ok", found
        assert "listens on port 8082" in found["text"]
        box.sh("systemctl stop llama; systemd-run --unit=other /opt/llama-server")
        box.sh("until ss -tln | grep -q :8082; do sleep 0.05; done")
        found = checks(asked(box, "--json", user="root", unit="llama"))["url"]
        assert (found["state"], "none of the service's processes" in found["text"]) == ("warning", True), found
    finally:
        box.sh("systemctl stop other llama", check=False)


def test_each_check_is_a_line(box: SystemdHost) -> None:
    called = asked(box, user="root")
    lines = called.stdout.splitlines()
    assert len(lines) > 8
    assert all(re.match(r"(ok|warning|missing) +\w", line) for line in lines), called.stdout


@pytest.mark.parametrize(
    ("unit", "name", "said"),
    [("nosuch.service", "service", "no unit"), ("two words", "", "no name of a unit")],
)
def test_a_unit_that_is_not_there_is_said(box: SystemdHost, unit: str, name: str, said: str) -> None:
    called = asked(box, "--json", user="root", unit=unit)
    assert called.returncode == 2
    text = checks(called)[name]["text"] if name else answer(called)["error"]
    assert said in text


def test_a_host_that_cannot_be_reached_is_said(box: SystemdHost) -> None:
    called = typed("doctor", "--unit", UNIT, "--host", "ssh://nobodyhere@" + box.ssh_name, "--ssh-config",
                   str(box.ssh_config))  # fmt: skip
    assert called.returncode == 2
    assert called.stdout.startswith("missing  host")


def test_a_missing_tool_is_said(box: SystemdHost) -> None:
    box.sh("mv /usr/bin/flock /usr/bin/flock.away")
    try:
        called = asked(box, "--json", user="root")
    finally:
        box.sh("mv /usr/bin/flock.away /usr/bin/flock")
    assert called.returncode == 2
    assert checks(called)["tools"]["text"] == "no flock"


CAMPAIGN = """
[service]
engine = "llamacpp"
{service}
[knobs]
depth = [0, 4]
[workloads.chat]
builtin = "chat"
[goals.one]
weights = {{ "chat@1" = 1 }}
"""


def campaign(folder: Path, service: str) -> str:
    (folder / "campaign.toml").write_text(CAMPAIGN.format(service=service), encoding="utf-8")
    return str(folder)


def test_a_campaign_says_where_to_look(ruled: SystemdHost, tmp_path: Path) -> None:
    where = f'host = "ssh://operator@{ruled.ssh_name}"\nssh_config = "{ruled.ssh_config}"\nsudo = true'
    called = typed("doctor", campaign(tmp_path, f'target = "systemd"\nunit = "{UNIT}"\n{where}'), "--json")
    assert called.returncode == 0, called.stdout
    found = checks(called)
    assert found["service"]["text"].startswith(f"{UNIT}, running")
    assert found["sudo"]["state"] == "ok"
    assert found["url"]["text"] != ""


def test_a_campaign_with_a_server_of_its_own_needs_no_doctor(tmp_path: Path) -> None:
    called = typed("doctor", campaign(tmp_path, 'target = "command"\ncommand = "llama-server -m model.gguf -np 4"'))
    assert called.returncode == 2
    assert "needs nothing of a host" in called.stderr


# --- sudo


def test_without_rules_it_says_which_command_prints_them(unruled: SystemdHost) -> None:
    called = asked(unruled, "--json")
    assert called.returncode == 2
    found = checks(called)
    assert found["sudo"]["state"] == "missing"
    assert "leadline doctor --sudoers" in found["sudo"]["remedy"]
    host, target = reach(unruled)
    with pytest.raises(HostError, match="leadline doctor --sudoers"):
        observe(target, host)


def test_with_the_rules_all_is_there(ruled: SystemdHost) -> None:
    called = asked(ruled, "--json")
    assert called.returncode == 0, called.stdout
    assert re.fullmatch(r"all \d\d commands are allowed", checks(called)["sudo"]["text"])


def test_rules_that_want_a_password_are_warned_about(unruled: SystemdHost) -> None:
    give(unruled, "operator ALL=(ALL) ALL\n" + rules(unruled))
    called = asked(unruled, "--json")
    assert called.returncode == 0, called.stdout
    assert checks(called)["sudo"]["state"] == "warning"


@pytest.mark.torture
def test_each_rule_that_is_missing_is_noticed(unruled: SystemdHost) -> None:
    text = rules(unruled)
    lines = [line for line in text.splitlines() if "NOPASSWD" in line]
    assert len(lines) == len(set(lines)) > 30
    for left_out in (next(line for line in lines if word in line) for word in (" arm ", "daemon-reload", " revert ")):
        give(unruled, text.replace(left_out + "\n", ""))
        called = asked(unruled, "--json")
        assert called.returncode == 2, left_out
        assert checks(called)["sudo"]["text"].startswith("1 of "), left_out


def test_root_gets_the_same_rules_for_somebody(unruled: SystemdHost) -> None:
    for_root = rules(unruled, "root")
    assert "put the name of the user" in for_root
    own = [line for line in rules(unruled).splitlines() if "NOPASSWD" in line]
    assert [
        line.replace("leadline ALL=", "operator ALL=") for line in for_root.splitlines() if "NOPASSWD" in line
    ] == own


@pytest.mark.parametrize(
    "argv",
    [
        ("id",),
        ("sh",),
        ("sh", "-s"),
        ("sh", "-c", "id"),
        ("cat", "/etc/shadow"),
        ("systemctl", "stop", "ssh.service"),
        ("sh", "-s", "--", "look", "ssh.service"),
    ],
    ids=" ".join,
)
def test_the_rules_are_for_nothing_else(ruled: SystemdHost, argv: Sequence[str]) -> None:
    host, _ = reach(ruled)
    with pytest.raises(HostError, match="not allowed"):
        host.run(("sudo", "-n", *argv), stdin=b"id\n")


def test_the_rules_read_and_write_no_other_file(ruled: SystemdHost) -> None:
    host, _ = reach(ruled)
    with pytest.raises(HostError, match="not allowed"):
        host.read("/etc/shadow", sudo=True)
    with pytest.raises(HostError, match="not allowed"):
        host.write("/etc/cron.d/x", b"", 0o644, sudo=True)
    assert ruled.sh("ls /etc/cron.d/x", check=False).returncode != 0


# --- a campaign with exactly these rules


def test_a_whole_campaign_needs_no_other_rule(ruled: SystemdHost) -> None:
    host, target = reach(ruled)
    service = target.service
    assert service is not None
    observed = observe(target, host)
    guard = service.guard(TERMS)
    assert guard is not None
    for step in guard.arm:
        execute(host, step)
    held = host.hold(("sudo", "-n", *guard.hold.argv), timeout_s=30)
    try:
        tried(host, target, observed, with_word(observed, "--directory=/run"))
        file = LaunchFile(f"{observed.launch.scratch}/draft-0123.json", "{}")
        tried(host, target, observed, msgspec.structs.replace(with_word(observed, "--directory=/srv"), files=(file,)))
        execute(host, guard.renew)
        logged(host, target)
        assert held.alive()
        execute(host, guard.back)
        execute(host, guard.hook)
    finally:
        held.end()
        for step in guard.disarm:
            execute(host, step)
    back = observe(target, host)
    assert (back.launch.argv, back.held) == (observed.launch.argv, False)
    applied_and_undone(ruled, host, target)


def tried(host: Host, target: Target, observed: Observed, launch: LaunchSpec) -> None:
    carry_out(target.plan(launch, observed, ""), host=host, target=target, clock=SystemClock(), launch=launch)
    service = target.service
    assert service is not None
    assert service.facts(command(host, service.look())).trial != "absent"


def with_word(observed: Observed, word: str) -> LaunchSpec:
    return msgspec.structs.replace(observed.launch, argv=(*observed.launch.argv, word))


def logged(host: Host, target: Target) -> None:
    service = target.service
    assert service is not None
    cursor = ""
    for _ in range(2):
        run: Run = service.log(cursor)
        _, cursor = service.logged(command(host, run))


def applied_and_undone(box: SystemdHost, host: Host, target: Target) -> None:
    path = target.rollout_path()
    first = observe(target, host)
    written = [rolled_out(host, target, word) for word in ("--directory=/run", "--directory=/srv")]
    for now, before in zip(written[::-1], (written[0], "absent"), strict=True):
        done(host, target, target.undo(observe(target, host), now, before), first.launch)
        assert digest(host, path, sudo=True) == before
    assert observe(target, host).launch.argv == first.launch.argv
    assert box.sh(f"ls {path}", check=False).returncode != 0


def rolled_out(host: Host, target: Target, word: str) -> str:
    """Returns the digest of what it wrote."""
    path = target.rollout_path()
    present = digest(host, path, sudo=True)
    observed = observe(target, host)
    launch = msgspec.structs.replace(observed.launch, argv=(*WORDS, word))
    done(host, target, target.rollout(launch, observed, present, "for a test"), launch)
    written = digest(host, path, sudo=True)
    assert written not in ("absent", present)
    return written


def done(host: Host, target: Target, steps: Sequence[Step], launch: LaunchSpec) -> None:
    carry_out(steps, host=host, target=target, clock=SystemClock(), launch=launch)
