"""What `doctor` says of a host, and the sudo rules that it makes of a target's Steps."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence

import msgspec
import pytest

from leadline import doctor, sudoers
from leadline.build import make_target
from leadline.build.recorder import as_root, asked_of
from leadline.doctor import State
from leadline.errors import HostError, InputError
from leadline.evidence import ProcessFacts, Reply, ServiceFacts, ServiceState
from leadline.launch import Halt, LaunchFile, LaunchSpec, Put, Remove, Run, Start, Step
from leadline.ports import Completed, Observed, Site, Terms
from leadline.sudoers import Rule, Sample, Word

UNIT = "llm.service"
FILE = f"/etc/systemd/system/{UNIT}"
HOME = f"/var/lib/leadline/{UNIT}"
WORDS = ("/usr/bin/python3", "-m", "http.server", "8081")
TARGET = make_target("systemd", Site(unit=UNIT, sudo=True))


def frame(kind: str, name: str, content: str) -> str:
    return f"{kind} {base64.b64encode(name.encode()).decode()} {base64.b64encode(content.encode()).decode()}"


def observed() -> Observed:
    """As the target reads what a host says of the unit."""
    show = f"Id={UNIT}\nLoadState=loaded\nActiveState=active\nFragmentPath={FILE}\nDropInPaths=\nNeedDaemonReload=no\n"
    frames = (
        frame("show", "", show),
        frame("text", FILE, f"[Service]\nExecStart={' '.join(WORDS)}\n"),
        frame("digests", "", f"{'a' * 64} {FILE}\nabsent {FILE}.d/zz-leadline.conf\nabsent {HOME}/previous.conf\n"),
        frame("exec", "", json.dumps({"data": [[WORDS[0], WORDS]]})),
        frame("facts", "", ""),
    )
    answer = "\n".join(frames).encode() + b"\n"
    return TARGET.interpret([Completed(argv=("sh",), code=0, stdout=answer, stderr=b"")])


TERMS = Terms(
    owner="carol@there", reason="campaign night", campaign="there:/srv/night", grace_s=60, lease_s=90, end_s=40000,
    start=("true",), end=("false",), port=8081,
)  # fmt: skip
THIRD = Sample(terms=TERMS, word="--third=word", written="7" * 64, kept="8" * 64)


def lets(command: str, argv: Sequence[str]) -> bool:
    """Whether sudo lets these words through: sudoers takes some backslashes away, the rest is a glob."""
    path, _, words = command.partition(" ")
    if path != argv[0]:
        return False
    if words == '""':
        return len(argv) == 1
    glob = re.sub(r"\\([:\\,=# \t])", r"\1", words)
    tokens = re.findall(r"\[\[:cntrl:\]\]|\\.|.", glob)
    known = {"[[:cntrl:]]": "[\0-\x1f\x7f]", "*": ".*"}
    pattern = "".join(known.get(t) or re.escape(t[1:] if len(t) == 2 and t[0] == "\\" else t) for t in tokens)
    return re.fullmatch(pattern, " ".join(argv[1:]), re.DOTALL) is not None


def literal(*words: str) -> Rule:
    return Rule(purpose=sudoers.LOOK, words=tuple(map(Word, words)))


def systemd_rules() -> list[Rule]:
    phases = [list(sudoers.steps(TARGET, observed(), sample)) for sample in sudoers.samples()]
    return sudoers.rules(phases, as_root)


# --- escaping


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("id",), '/bin/x ""'),
        (("x", ""), '/bin/x ""'),
        (("x", "--signal=KILL", "a,b", "c:d"), r"/bin/x --signal\=KILL a\,b c\:d"),
        (("x", "a*b?", "[c]!", "#d"), r"/bin/x a\*b\? \[c\]\! \#d"),
        (("x", "back\\slash"), r"/bin/x back\\\\slash"),
        (("x", "two\nlines\tand"), r"/bin/x two[[\:cntrl\:]]lines[[\:cntrl\:]]and"),
        (("x", " a  b "), r"/bin/x \ a \ b\ "),
        (("x", "^a$"), r"/bin/x \^a$"),
        (("x", "a", "^b"), "/bin/x a ^b"),
    ],
)
def test_words_are_written_as_sudoers_reads_them(words: tuple[str, ...], text: str) -> None:
    assert literal(*words).command("/bin/x") == text
    if words[1:] != ("",):
        assert lets(text, ("/bin/x", *words[1:]))


def test_what_varies_is_a_star_and_the_rest_stays_literal() -> None:
    rule = Rule(purpose=sudoers.TRIAL, words=(Word("x"), Word("arm"), Word("", True), Word("for ", True)))
    assert rule.command("/bin/x") == "/bin/x arm * for *"
    assert lets(rule.command("/bin/x"), ("/bin/x", "arm", "desk:/one", "for 1:30:00"))
    assert not lets(rule.command("/bin/x"), ("/bin/x", "disarm", "desk:/one", "for 1:30:00"))


@pytest.mark.parametrize(
    ("commands", "words"),
    [
        ([("sh", "-s"), ("sh", "-s")], (Word("sh"), Word("-s"))),
        ([("rm", "/a/b/one"), ("rm", "/a/b/other")], (Word("rm"), Word("/a/b/", True))),
        ([("rm", "/a/12"), ("rm", "/a/13")], (Word("rm"), Word("/a/", True))),
        ([("x", "for 1:00:00"), ("x", "for 3 days")], (Word("x"), Word("for ", True))),
        ([("log", "u"), ("log", "u", "a", "b")], (Word("log"), Word("u"), Word("", True))),
        ([("x", ""), ("x", "abc")], (Word("x"), Word("", True))),
    ],
)
def test_the_same_step_of_two_campaigns_shows_what_varies(
    commands: list[tuple[str, ...]], words: tuple[Word, ...]
) -> None:
    assert sudoers.merged(commands) == words
    assert sudoers.merged(commands[::-1]) == words


# --- rules from Steps


def test_the_rules_let_every_step_of_another_campaign_through() -> None:
    commands = [rule.command(rule.program) for rule in systemd_rules()]
    asked = [argv for _, step in sudoers.steps(TARGET, observed(), THIRD) for argv in as_root(step)]
    assert len(set(asked)) > 30
    assert [argv for argv in asked if not any(lets(c, argv) for c in commands)] == []
    verbs = {argv[3] for argv in asked if argv[:3] == ("sh", "-s", "--")}
    assert verbs >= {"observe", "look", "log", "who", "arm", "back", "hook", "disarm", "unlock", "prepare", "verify",
                     "begin", "enforce", "owned", "keep", "folder", "undoing", "revert", "undone"}  # fmt: skip


def test_the_rules_let_nothing_through_that_names_another_unit_or_file() -> None:
    commands = [rule.command(rule.program) for rule in systemd_rules()]
    read, write = (as_root(s) for s in (put("/etc/shadow"), put(f"/run/leadline/{UNIT}/candidate.conf")))
    for argv in (
        ("id",),
        ("sh",),
        ("sh", "-s"),
        ("sh", "-c", "id"),
        ("sh", "-s", "--", "look", "ssh.service"),
        ("systemctl", "stop", "--no-block", "ssh.service"),
        ("systemctl", "daemon-reload", "x"),
        *read,
        (*write[0], "/etc/shadow"),
    ):
        assert [c for c in commands if lets(c, argv)] == [], argv
    assert all(any(lets(c, argv) for c in commands) for argv in write)


def put(path: str) -> Step:
    return Put(path=path, content="abc", mode=0o600, expect="absent", sudo=True)


def test_a_rule_says_what_it_lets_through_beside_what_is_meant() -> None:
    rules = systemd_rules()
    by_script = [r for r in rules if r.words[1:3] == (Word("-s"), Word("--"))]
    assert by_script
    assert {r.note for r in by_script} == {"any script, so root"}
    rest = {r.program: r.note for r in rules if r not in by_script and r.program != "sh"}
    assert rest == {"systemctl": "", "rm": "more than is meant: * stands for blanks and slashes too"}
    assert literal("/usr/bin/sh", "/run/leadline/x/guard", "hold").note == ""


def test_each_step_is_asked_as_the_core_and_the_hosts_ask_it() -> None:
    run = Run(argv=("a", "b"), timeout_s=1, sudo=True, stdin="script")
    assert asked_of(run) == [(("sudo", "-n", "a", "b"), "script")]
    assert as_root(msgspec.structs.replace(run, sudo=False)) == []
    assert as_root(Halt(stop=run, kill=msgspec.structs.replace(run, argv=("k",)), timeout_s=1)) == [("a", "b"), ("k",)]
    read, write = as_root(put("/etc/x"))
    assert read[-1] == "/etc/x"
    assert write[-3:] == ("/etc/x", "0600", "3")
    assert [argv[-1] for argv in as_root(Remove(path="/etc/x", expect="absent", sudo=True))] == ["/etc/x"] * 2
    assert as_root(Start(launch=LaunchSpec(argv=("x",)), log="")) == []


def test_a_target_that_owns_its_server_needs_no_rules() -> None:
    target = make_target("command", Site(launch=LaunchSpec(argv=("x",)), script="/s"))
    with pytest.raises(InputError, match="needs no sudo rules"):
        list(sudoers.steps(target, observed(), THIRD))


def test_a_service_that_could_not_be_seen_still_has_its_guard() -> None:
    text = "\n".join(str(step) for _, step in sudoers.steps(TARGET, None, THIRD))
    assert "observe llm.service" in text
    assert "arm llm.service" in text
    assert "verify" not in text


def test_the_document_names_its_user_its_paths_and_what_it_amounts_to() -> None:
    rules = systemd_rules()
    programs = {"sh": "/usr/bin/sh", "systemctl": "/bin/systemctl", "rm": "/bin/rm"}
    text = sudoers.document(rules, programs, user="anna", what=UNIT, where="ssh://gpu")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert len(lines) == len(set(lines)) == len(rules)
    assert all(re.match(r"anna ALL=\(root\) NOPASSWD: /(usr/)?bin/\w+ ", line) for line in lines)
    assert "AMOUNT TO ROOT" in text
    assert "put the name of the user" not in text
    assert "put the name of the user" in sudoers.document(
        rules, programs, user=sudoers.SOMEBODY, what=UNIT, where="ssh://gpu"
    )
    narrow = sudoers.document([literal("systemctl", "stop")], programs, user="a b", what=UNIT, where="x")
    assert "AMOUNT TO ROOT" not in narrow
    assert '"a b" ALL=' in narrow
    with pytest.raises(InputError, match="has no rm"):
        sudoers.document(rules, {"sh": "/x", "systemctl": "/y"}, user="a", what="u", where="w")
    with pytest.raises(InputError, match="needs no rules"):
        sudoers.document([], programs, user="a", what="u", where="w")


# --- what is said of a host

ANSWER = """clock 1000 +0000
user anna 1000
systemd systemd 252 (252.39-1~deb12u2)
room /run tmpfs  200000 100 199900   1% /run
room /etc /dev/sda1 9000000 1 8000000 1% /
room /var/lib /dev/sdb 9000000 1 70000 1% /var/lib
mounted rw /
mounted rw /run
mounted rw /var/lib
unit leadline-lease@llm.timer
"""


def host(text: str = ANSWER) -> doctor.Machine:
    return doctor.machine(Completed(argv=("sh",), code=0, stdout=text.encode(), stderr=b""))


def test_the_answer_of_a_host_is_read() -> None:
    found = host()
    assert (found.user, found.uid, found.clock, found.zone) == ("anna", 1000, 1000, "+0000")
    assert {place: room.free_kib for place, room in found.rooms.items()} == {
        "/run": 199900, "/etc": 8000000, "/var/lib": 70000,
    }  # fmt: skip
    assert found.units == ("leadline-lease@llm.timer",)
    with pytest.raises(HostError, match="does not tell what it is"):
        host("nonsense\n")


def test_room_is_needed_in_run_and_wanted_elsewhere() -> None:
    assert doctor.room(host()).state is State.OK
    assert doctor.room(host(ANSWER.replace("mounted rw /run", "mounted ro /run"))).state is State.MISSING
    assert doctor.room(host(ANSWER.replace("199900", "12"))).state is State.MISSING
    closed = doctor.room(host(ANSWER.replace("mounted rw /\n", "mounted ro /\n")))
    assert closed.state is State.WARNING
    assert "/etc read-only" in closed.text


@pytest.mark.parametrize(
    ("line", "state"),
    [("systemd systemd 252 (x)", State.OK), ("systemd systemd 232", State.MISSING), ("", State.MISSING)],
)
def test_systemd_must_be_there_and_not_too_old(line: str, state: State) -> None:
    assert doctor.systemd(host(re.sub("systemd systemd.*", line, ANSWER))).state is state


def test_a_user_is_root_or_has_sudo() -> None:
    assert doctor.user(host(), sudo=False).state is State.MISSING
    assert doctor.user(host(), sudo=True).state is State.OK
    assert doctor.user(host(ANSWER.replace("anna 1000", "root 0")), sudo=False).state is State.OK
    assert doctor.sudo([], 5).state is State.OK
    refused = doctor.sudo([("sh", "-s", "--", "look")], 5)
    assert refused.state is State.MISSING
    assert "leadline doctor --sudoers" in refused.remedy


@pytest.mark.parametrize(
    ("rules", "state"),
    [
        ("(root) NOPASSWD: /usr/bin/sh -s", State.OK),
        ("(ALL : ALL) NOPASSWD: ALL", State.OK),
        ("(root) NOPASSWD: /usr/bin/sh -s\n    (ALL : ALL) ALL", State.WARNING),
        ("(root) NOPASSWD: /usr/bin/id, PASSWD: /usr/bin/uptime", State.WARNING),
    ],
)
def test_a_password_that_may_be_asked_for_is_said(rules: str, state: State) -> None:
    listing = f"Matching Defaults entries for x:\n    env_reset, use_pty\n\nUser x may run:\n    {rules}\n"
    assert doctor.sudo([], 5, listing).state is state


def test_tools_are_those_that_the_scripts_name() -> None:
    asked = [(("sh", "-s"), "exec 9>x; flock 9 || exit\nsha256sum <f | awk 1\n# $tail my-cat /bin/wc date=1")]
    assert doctor.tools_of(asked) == ("awk", "flock", "sh", "sha256sum")
    assert doctor.tools({"a": "/a"}, ["a"]).state is State.OK
    assert doctor.tools({"a": "/a"}, ["a", "flock"]).state is State.MISSING
    assert doctor.tools({"a": "/a"}, ["a", "logger"]).state is State.WARNING
    assert doctor.programs(Completed(argv=(), code=0, stdout=b"sh /bin/sh\ncd cd\n", stderr=b"")) == {"sh": "/bin/sh"}


@pytest.mark.parametrize(
    ("now", "zone", "state", "text"),
    [
        (1000.4, "+0000", State.OK, "as ours"),
        (1003.0, "+0000", State.OK, "2 s behind"),
        (900.0, "+0000", State.WARNING, "100 s ahead"),
        (1100.0, "+0000", State.WARNING, "99 s behind"),
        (1000.4, "+0200", State.WARNING, "ours +0200"),
    ],
)
def test_clocks_are_compared_as_far_as_the_question_allows(now: float, zone: str, state: State, text: str) -> None:
    check = doctor.clock(host(), now, now + 0.2, zone)
    assert (check.state, text in check.text) == (state, True), check


def facts(state: ServiceState = ServiceState.RUNNING) -> ServiceFacts:
    return ServiceFacts(state=state, process=None, pids=(7, 8), incarnation="x")


def listener(pid: int) -> ProcessFacts:
    return ProcessFacts(pid=pid, start_id="1", argv=(), name="server")


@pytest.mark.parametrize(
    ("status", "who", "state", "text"),
    [
        (200, listener(8), State.OK, "answers"),
        (503, listener(8), State.WARNING, "503"),
        (200, listener(9), State.WARNING, "none of the service's"),
        (200, listener(0), State.OK, "may not see"),
        (0, None, State.WARNING, "nobody listens"),
    ],
)
def test_it_is_the_service_that_answers(status: int, who: ProcessFacts | None, state: State, text: str) -> None:
    check = doctor.answers("http://x", Reply(name="health", status=status), 8081, who, facts())
    assert (check.state, text in check.text) == (state, True), check


def test_a_stopped_service_is_not_expected_to_listen() -> None:
    stopped = facts(ServiceState.STOPPED)
    assert doctor.answers("http://x", Reply(name="health", status=0), 8081, None, stopped).state is State.OK


def test_what_is_left_over_is_ours_while_a_campaign_holds() -> None:
    assert doctor.leftovers(host(), held=True).state is State.OK
    assert doctor.leftovers(host(), held=False).state is State.WARNING
    assert doctor.leftovers(host(ANSWER.replace("unit leadline-lease@llm.timer\n", "")), held=False).state is State.OK


def test_a_check_is_one_line_with_what_to_do() -> None:
    line = str(doctor.sudo([("sh", "-c", "a\nb")], 5))
    assert line.startswith("missing  sudo")
    assert "\n" not in line
    assert doctor.lacking([doctor.sudo([("x",)], 1)])
    assert not doctor.lacking([doctor.device(None, {})])
    assert doctor.device([2**30], {"gpu": "H200"}).text == "H200, 1.0 GiB in use"


def test_a_slow_host_is_warned_about() -> None:
    assert doctor.reached("x", [0.01, 9.0, 0.02], "anna").state is State.OK
    assert doctor.reached("x", [2.0, 2.0, 2.0], "anna").state is State.WARNING


def test_files_of_a_setting_may_have_any_name() -> None:
    file = LaunchFile(f"{HOME}/files/hi there-0123.json", "{}")
    now = observed()
    launch = msgspec.structs.replace(now.launch, files=(file,))
    commands = [rule.command(rule.program) for rule in systemd_rules()]
    asked = [argv for step in TARGET.plan(launch, now, "") for argv in as_root(step)]
    assert [argv for argv in asked if not any(lets(c, argv) for c in commands)] == []
