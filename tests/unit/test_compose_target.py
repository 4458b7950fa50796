"""The compose target on paper: words, override files, refusals, answers; and launches as operators write them."""

from __future__ import annotations

import difflib
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support_docker import REAL, FakeDocker, needs_compose
from support_docker_program import merged

from leadline.build import plugin
from leadline.errors import HostError, InputError, RefusedError
from leadline.evidence import ExitFacts, ServiceState
from leadline.hosts.local import LocalHost
from leadline.launch import LaunchFile, LaunchSpec, Put, Run
from leadline.ports import Completed, Observed, Site, Terms
from leadline.space import Setting
from leadline.steps import command, observe
from leadline.targets.compose import override, reading, rollout, words
from leadline.targets.compose.place import by_hand, place_of
from leadline.targets.compose.target import ComposeTarget, target

SHAPES = json.loads((Path(__file__).parents[1] / "golden" / "compose" / "shapes.json").read_text())
SITE = Site(compose_files=("/srv/llm/compose.yaml",), compose_service="llm")


def done(text: str, code: int = 0, argv: Sequence[str] = ()) -> Completed:
    return Completed(argv=tuple(argv), code=code, stdout=text.encode(), stderr=b"")


# --- words


@pytest.mark.parametrize(
    ("raw", "resolved", "kept"),
    [
        ("a ${B:-x} c", ["a", "x", "c"], ["a", "${B:-x}", "c"]),
        ('a "${B:-1 2}" c', ["a", "1 2", "c"], ["a", "${B:-1 2}", "c"]),
        ("a ${B} c", ["a", "1", "2", "c"], ["a", "1", "2", "c"]),  # split after its value was put in
        (["--x=${A}/${B:-${C}}", "$$HOME"], ["--x=m/n", "$HOME"], ["--x=${A}/${B:-${C}}", "$$HOME"]),
        (["a", "b"], ["a", "c"], ["a", "c"]),  # another file's words
        ('a \'q r\' d\\ e "f\\"g" > h; i', ["a", "q r", "d e", 'f"g'], ["a", "q r", "d e", 'f"g']),
        ("--flag ${E:---no}", ["--flag", "--no"], ["--flag", "${E:---no}"]),
        (None, ["$x"], ["$$x"]),
    ],
)
def test_words_are_kept_as_their_operator_wrote_them(raw: object, resolved: list[str], kept: list[str]) -> None:
    assert list(words.raw_words(raw, resolved)) == kept


def test_only_new_words_are_escaped() -> None:
    now = words.carried(
        ["s", "--n", "5", "--j", "$x"], ["s", "--n", "3", "--m", "/m"], ["s", "--n", "${N}", "--m", "${M}"]
    )
    assert now == ("s", "--n", "5", "--j", "$$x")


SECRET = "sk-4f2a9c0d1e8b7a65"
FILES = (LaunchFile("/c.yaml", f"# é\nx: {SECRET}\n"), LaunchFile("/.env", "K=other"))


@pytest.mark.parametrize(
    ("given", "written", "places"),
    [
        (("--api-key", "${API_KEY:?say it}"), ("--api-key", "${API_KEY:?say it}"), 0),
        (("--api-key", "$API_KEY"), ("--api-key", "$API_KEY"), 0),
        (("--api-key", SECRET), ("--api-key", "${LEADLINE_SECRET_1:?}"), 1),
        ((f"--api-key={SECRET}",), ("--api-key=${LEADLINE_SECRET_1:?}",), 1),
        (("--api-key", f"${{K:-{SECRET}}}"), ("--api-key", "${K:-${LEADLINE_SECRET_1:?}}"), 1),
        (("bash", "-c", 'x --api-key "$$(cat /k)"'), ("bash", "-c", 'x --api-key "$$(cat /k)"'), 0),
        (("--api-key", SECRET, "--hf-token", SECRET), None, 1),
    ],
)
def test_a_secret_is_left_where_it_is(given: tuple[str, ...], written: tuple[str, ...] | None, places: int) -> None:
    out, taken = words.without_secrets(given, FILES)
    assert written is None or out == written
    assert SECRET not in " ".join(out)
    assert len(taken) == places
    for place in taken:
        content = next(f.content for f in FILES if f.path == place.path).encode()
        assert content[place.start : place.start + place.length].decode() == SECRET


def test_a_secret_that_stands_nowhere_is_refused_without_being_shown() -> None:
    with pytest.raises(InputError, match=r"put it into \.env") as refused:
        words.without_secrets(("--api-key", "sk-unseen-0123456789"), FILES)
    assert "unseen" not in str(refused.value)


COMMANDS = [
    'x "${A:-1 2}" ${B:-3 4} a\\ b \'q r\' "d\\"e" $$(cat /k) `b c` "x $$(b c)"',
    "python3 -m s --j '{\"a\": 1}' --k=\"v w\" --l=x'y'z",
    "a b > c; d",
    "a | b",
    "  lead  and   trail  ",
    "a '' \"\" b",
    "a\\nb 'c\\d' \"e\\f\"",
]


@needs_compose
@pytest.mark.parametrize("text", COMMANDS)
def test_a_text_is_cut_as_compose_cuts_it(tmp_path: Path, text: str) -> None:
    document = {"services": {"a": {"image": "x", "command": text}}}
    file = tmp_path / "compose.yaml"
    file.write_text(json.dumps(document))
    asked = subprocess.run(
        [REAL, "-f", str(file), "config", "--format", "json"], capture_output=True, text=True, check=True
    )
    theirs = [w.replace("$$", "$") for w in json.loads(asked.stdout)["services"]["a"]["command"]]
    ours = words.spans(text)[0]
    if "{B:" not in text:
        assert [w.replace("$$", "$") for w in ours] == theirs
    assert len(words.raw_words(text, theirs)) == len(theirs)


@needs_compose
def test_the_small_compose_of_the_tests_reads_as_the_real_one(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("M=/models/$$x\nK='sk 1'\n")
    (tmp_path / "x.env").write_text("FOO=bar\n")
    first, second = tmp_path / "a.yaml", tmp_path / "b.yaml"
    first.write_text(
        "name: lab\nservices:\n  s:\n    image: i\n    env_file: [x.env]\n    environment: ['A=${M}', 'B=$$b', 'C=1']\n"
        "    command: serve ${M} --n ${N:-${O:-3}} --k \"${K}\" $$h\n    ports: ['8000:8000']\n"
    )
    second.write_text("services:\n  s:\n    environment: {C: 2}\n    entrypoint: ['x', '$$y']\n")
    asked = subprocess.run(
        [REAL, "-f", str(first), "-f", str(second), "config", "--format", "json"],
        capture_output=True,
        text=True,
        check=True,
    )
    real, ours = (d["services"]["s"] for d in (json.loads(asked.stdout), merged([str(first), str(second)])))
    for key in ("command", "entrypoint", "environment", "image"):
        assert real[key] == ours[key], key


@needs_compose
def test_an_override_means_its_words_to_the_real_compose(tmp_path: Path) -> None:
    argv = ("serve", "$x", "${Y}", "a b", "é 😀", 'q"\\', "\x85\u2028", "", "# no", "- x", "l1\nl2\t")
    env = {"A": "v$w", "NO": "no", "N": "1", "E": ""}
    base, over = tmp_path / "compose.yaml", tmp_path / "over.yaml"
    base.write_text("services:\n  'my.svc': {image: x, command: old, environment: {NO: yes}}\n")
    wanted = override.Override(
        command=tuple(map(words.escaped, argv)), environment={k: words.escaped(v) for k, v in env.items()}
    )
    over.write_text(override.text_of("my.svc", wanted, ("a header", "of two lines")))
    asked = subprocess.run(
        [REAL, "-f", str(base), "-f", str(over), "config", "--format", "json"],
        capture_output=True,
        text=True,
        check=True,
    )
    meant = reading.definition(asked.stdout, "my.svc")
    assert meant.command == argv
    assert dict(meant.env) == env


# --- places, answers, refusals


@pytest.mark.parametrize(
    ("site", "reason"),
    [
        (Site(compose_service="llm"), "needs the paths"),
        (Site(compose_files=("/a/compose.yaml",)), "its name"),
        (Site(compose_files=("compose.yaml",), compose_service="llm"), "whole paths"),
        (msgspec.structs.replace(SITE, home="/var/lib/a b"), "cannot hold the way back"),
        (msgspec.structs.replace(SITE, home="state"), "cannot hold the way back"),
    ],
)
def test_a_place_that_is_none_is_refused(site: Site, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        target(site)


def test_two_services_never_share_a_place() -> None:
    sites = [
        SITE,
        msgspec.structs.replace(SITE, compose_service="draft"),
        msgspec.structs.replace(SITE, compose_files=("/opt/llm/compose.yaml",)),
        msgspec.structs.replace(SITE, compose_project="other"),
        msgspec.structs.replace(SITE, compose_files=("/srv/llm/compose.yaml", "/srv/llm/gpu.yaml")),
    ]
    assert len({place_of(site).home for site in sites}) == len({place_of(site).key for site in sites}) == len(sites)


def test_the_words_before_the_command_are_the_operators() -> None:
    podman = msgspec.structs.replace(SITE, compose_program=("podman", "compose"), compose_project="p")
    assert place_of(podman).words == ("podman", "compose", "-p", "p", "-f", "/srv/llm/compose.yaml")
    assert place_of(podman).engine == ("podman",)
    context = msgspec.structs.replace(SITE, compose_program=("docker", "--context", "gpu", "compose"))
    assert place_of(context).engine == ("docker", "--context", "gpu")
    assert by_hand(place_of(SITE))[-1] == (
        "docker compose -f /srv/llm/compose.yaml up -d --no-deps --force-recreate llm"
    )


ENTRY: dict[str, Any] = {"command": ["serve", "--n", "3"], "entrypoint": ["vllm"], "image": "i", "network_mode": "host"}


def observed(entry: dict[str, Any], containers: Sequence[dict[str, Any]] = (), image: object = (), **more: str) -> str:
    config, lines = json.dumps({"services": {"llm": entry}}), "\n".join(map(json.dumps, containers))
    parts = {"config": config, "source": config, "inspect": lines, "image": json.dumps(image)}
    text = "".join(f"\n@leadline {name} 0\n{content}\n" for name, content in {**parts, **more}.items())
    return text + "\n@leadline digest:absent /srv/llm/compose.leadline.yaml\n\n@leadline trial absent\n"


def interpret(entry: dict[str, Any], *args: Any, **more: Any) -> Observed:
    return target(SITE).interpret([done(observed(entry, *args, **more))])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"deploy": {"replicas": 2}}, "2 replicas"),
        ({"deploy": {"mode": "global"}}, "swarm"),
        ({"scale": 3}, "3 replicas"),
        ({"network_mode": None, "ports": [{"published": "8000", "target": 30000}]}, "PORT:PORT"),
        ({"network_mode": None}, "publishes no port"),
        ({"entrypoint": None}, "image is not on its host"),
        ({"command": "serve"}, "compose 2 or later"),
    ],
)
def test_a_service_that_cannot_be_tried_is_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        interpret({**ENTRY, **change})


def test_several_containers_and_swarm_are_refused() -> None:
    one = {"Id": "a", "Config": {"Labels": {}}, "State": {"Running": True}}
    with pytest.raises(InputError, match="2 containers"):
        interpret(ENTRY, [one, one])
    with pytest.raises(InputError, match="docker swarm"):
        interpret(ENTRY, [{**one, "Config": {"Labels": {"com.docker.swarm.service.id": "x"}}}])
    once = {**one, "Config": {"Labels": {"com.docker.compose.oneoff": "True"}}}
    assert interpret(ENTRY, [one, once]).running


@pytest.mark.parametrize(
    ("entry", "image", "argv"),
    [
        ({"command": ["--n", "3"], "entrypoint": None}, {"Entrypoint": ["vllm", "serve"]}, "vllm serve --n 3"),
        ({"command": None, "entrypoint": None}, {"Entrypoint": ["a"], "Cmd": ["b"]}, "a b"),
        ({"command": None, "entrypoint": ["x"]}, {"Entrypoint": ["a"], "Cmd": ["b"]}, "x"),
        ({"command": ["vllm"], "entrypoint": None}, {"Entrypoint": ["/opt/nvidia/nvidia_entrypoint.sh"]}, "vllm"),
        ({"command": ["vllm"], "entrypoint": None}, {"Entrypoint": None, "Cmd": ["bash"]}, "vllm"),
        ({"command": ["$$x"], "entrypoint": []}, {"Entrypoint": ["a"]}, "$x"),
    ],
)
def test_the_words_in_force_are_those_of_docker(entry: dict[str, Any], image: dict[str, Any], argv: str) -> None:
    assert interpret({**ENTRY, **entry}, (), [{"Config": image}]).launch.argv == tuple(argv.split())


def test_words_that_an_image_hides_are_refused() -> None:
    image = [{"Config": {"Entrypoint": ["/start.sh"], "Cmd": []}}]
    with pytest.raises(InputError, match="its image's own script holds them"):
        interpret({**ENTRY, "command": None, "entrypoint": None}, (), image)


def test_what_compose_says_is_told_and_its_warnings_are_not() -> None:
    answer = msgspec.structs.replace(
        done("\n@leadline config 1\n\n"),
        stderr=b'time="x" level=warning msg="The TOKEN variable is not set"\nno such service: llm\n',
    )
    with pytest.raises(InputError, match=r"^compose refuses: no such service: llm$"):
        target(SITE).interpret([answer])


def test_a_trial_in_force_hides_nothing_of_what_was() -> None:
    text = observed(ENTRY, [{"Id": "a", "Config": {}, "State": {"Running": True}}]).replace(
        "trial absent", "trial 12ab"
    )
    for was, runs in (("running", True), ("stopped", False), ("missing", False)):
        seen = target(SITE).interpret([done(f"{text}\n@leadline was 0\n{was}\n\n@leadline owner 0\nowner=me\n")])
        assert (seen.held, seen.running, seen.holder) == (True, runs, "owner=me")


@pytest.mark.parametrize(
    ("state", "means", "exit"),
    [
        ({"Status": "running", "Running": True, "Pid": 7}, ServiceState.RUNNING, None),
        ({"Status": "exited", "ExitCode": 0}, ServiceState.STOPPED, ExitFacts(code=0)),
        ({"Status": "exited", "ExitCode": 137}, ServiceState.FAILED, ExitFacts(code=137)),
        (
            {"Status": "exited", "ExitCode": 137, "OOMKilled": True},
            ServiceState.FAILED,
            ExitFacts(code=137, host_oom_kills=1, result="oom-kill"),
        ),
        ({"Status": "restarting", "Running": True, "ExitCode": 1}, ServiceState.RESTARTING, ExitFacts(code=1)),
        ({"Status": "created", "ExitCode": 127, "Error": "exec: no"}, ServiceState.FAILED, ExitFacts(code=127)),
        ({"Status": "created", "ExitCode": 0}, ServiceState.STOPPED, ExitFacts(code=0)),
        ({"Status": "dead", "ExitCode": 0}, ServiceState.FAILED, ExitFacts(code=0)),
    ],
)
def test_states_of_containers(state: dict[str, Any], means: ServiceState, exit: ExitFacts | None) -> None:
    one = {"Id": "c1", "Path": "/bin/vllm", "Args": ["serve"], "RestartCount": 2, "State": {"StartedAt": "t", **state}}
    text = f"\n@leadline inspect 0\nrow c1 true\n{json.dumps(one)}\n\n@leadline digest:ab /c.yaml\n"
    text += "\n@leadline top 0\nPID\n7\n9\n"
    facts = reading.facts(done(text if exit is None else text.partition("\n@leadline top")[0]))
    assert (facts.state, facts.exit, facts.restarts, facts.incarnation) == (means, exit, 2, "c1 t")
    assert facts.pids == ((7, 9) if exit is None else ())
    assert facts.files == {"/c.yaml": "ab"}
    if exit is None:
        assert facts.process is not None
        assert (facts.process.argv, facts.process.name) == (("/bin/vllm", "serve"), "vllm")


def test_no_container_is_a_missing_service_and_no_answer_is_an_error() -> None:
    assert reading.facts(done("\n@leadline inspect 0\n\n")).state is ServiceState.MISSING
    for text in ("", "\n@leadline inspect 1\n\n", "\n@leadline inspect 0\nnot json\n"):
        with pytest.raises(HostError):
            reading.facts(done(text))


def test_a_log_goes_on_where_it_was() -> None:
    lines = "2026-12-01T04:33:59.000000002Z b\n2026-12-01T04:33:59.000000001Z a\r\n2026-12-01T04:34:00.000000000Z c\n"
    text = f"\n@leadline id 0\n\n@leadline log 0\n{lines}".replace("id 0", "id c1")
    first, cursor = reading.logged(done(text, argv=("sh", "-", "-")))
    assert (first, cursor) == ("a\nb\nc\n", "c1 2026-12-01T04:34:00.000000000Z")
    assert reading.logged(done(text, argv=("sh", *cursor.split()))) == ("", cursor)
    assert reading.logged(done(text, argv=("sh", "c0", "2027"))) == (first, cursor)  # of another container
    assert reading.logged(done("\n@leadline none 0\n", argv=("sh", *cursor.split()))) == ("", cursor)
    with pytest.raises(HostError, match="driver"):
        reading.logged(done("\n@leadline id c1\n\n@leadline log 0\nno reading: logging driver none\n", 1, ("-", "-")))


# --- what is printed and written


def test_no_step_prints_more_than_a_line() -> None:
    made = target(SITE)
    assert made.service is not None
    terms = Terms(owner="me", reason="r", campaign="c", grace_s=1, lease_s=2, end_s=3, port=8000, end=("echo", "it's"))
    guard = made.service.guard(terms)
    assert guard is not None
    seen = interpret(ENTRY)
    launch = msgspec.structs.replace(seen.launch, argv=("vllm", "serve", "--n", "5"))
    steps = [*made.observe(), *made.plan(launch, seen, "log"), *made.restore(seen), *guard.arm, guard.hold, guard.back]
    assert all(len(str(step).splitlines()) == 1 for step in [*steps, *made.rollout(launch, seen, "absent", "note")])
    scripts = [s.stdin for s in steps if isinstance(s, Run) and s.stdin]
    for script in scripts:
        checked = subprocess.run(["sh", "-n"], input=script, text=True, capture_output=True, check=False)
        assert checked.returncode == 0, checked.stderr


def test_a_setting_for_good_says_how_it_comes_into_force() -> None:
    seen = interpret(ENTRY)
    launch = msgspec.structs.replace(seen.launch, argv=("vllm", "serve", "--n", "5"))
    put, again = target(SITE).rollout(launch, seen, "absent", "2026-11-30T15:53:00Z\rdepth=5")
    assert isinstance(put, Put)
    assert put.path == target(SITE).rollout_path() == "/srv/llm/compose.leadline.yaml"
    assert "docker compose -f /srv/llm/compose.yaml -f /srv/llm/compose.leadline.yaml up -d llm" in put.content
    assert put.content.endswith('services:\n  "llm":\n    command:\n      - "serve"\n      - "--n"\n      - "5"\n')
    assert isinstance(again, Run)
    assert not again.asked


def test_an_undo_takes_back_what_is_there_and_nothing_else() -> None:
    place = place_of(SITE)
    path = place.rollout
    ways = {
        ("w", None, "absent"): 2,
        ("absent", None, "absent"): 0,
        ("w", "p", "p"): 4,
        ("absent", "p", "p"): 3,
        ("p", "p", "p"): 2,
        ("p", None, "p"): 0,
    }
    for (now, kept, previous), steps in ways.items():
        files = {path: now, **({path + rollout.KEPT: kept} if kept else {})}
        assert len(rollout.undo(place, files, "w", previous)) == steps
    for now, kept, previous in (("x", None, "absent"), ("x", "p", "p"), ("w", "x", "p"), ("absent", None, "p")):
        with pytest.raises(RefusedError, match="somebody else changed"):
            rollout.undo(place, {path: now, **({path + rollout.KEPT: kept} if kept else {})}, "w", previous)


def test_what_an_override_cannot_say_is_refused() -> None:
    made, seen = target(SITE), interpret({**ENTRY, "environment": {"A": "1"}})
    with pytest.raises(InputError, match="cannot take a variable away: A"):
        made.plan(msgspec.structs.replace(seen.launch, env=()), seen, "log")
    ours = msgspec.structs.replace(seen.launch, files=(LaunchFile("/s/x.yaml", ""),), scratch="/s")
    with pytest.raises(InputError, match="the container could not see"):
        made.plan(ours, seen, "log")
    secret = msgspec.structs.replace(seen.launch, env=(("A", "1"), ("HF_TOKEN", "hf_0123456789abcdef")))
    with pytest.raises(InputError, match="a variable that holds a secret") as refused:
        made.plan(secret, seen, "log")
    assert "0123" not in str(refused.value)


def test_what_compose_understands_is_compared_with_what_was_meant() -> None:
    made, launch = target(SITE), LaunchSpec(argv=("vllm", "serve", "--n", "5"))

    def answer(entry: dict[str, Any]) -> Completed:
        base, new = (json.dumps({"services": {"llm": e}}) for e in (ENTRY, {**ENTRY, **entry}))
        return done(f"\n@leadline base 0\n{base}\n\n@leadline config 0\n{new}\n\n@leadline image 1\n\n")

    made.confirm(launch, [answer({"command": ["serve", "--n", "5"]})])
    for entry, reason in (
        ({"command": ["serve", "--n", "4"]}, "first at word 4"),
        ({"command": ["serve", "--n", "5", "6"]}, "differ in number"),
        ({"command": ["serve", "--n", "5"], "environment": {"B": "1"}}, "another environment than was meant: B"),
        ({"command": ["serve", "--n", "5"], "restart": "no"}, "more of llm than its words"),
    ):
        with pytest.raises(InputError, match=reason):
            made.confirm(launch, [answer(entry)])
    runs = {"Id": "a", "Path": "vllm", "Args": ["serve", "--n", "4"]}
    with pytest.raises(InputError, match="instead of vllm serve --n 5"):
        made.confirm(launch, [done(f"\n@leadline inspect 0\n{json.dumps(runs)}\n")])


# --- launches as operators write them


class Shape:
    """One row of the table as a project in a folder, read by compose, its image's words known."""

    def __init__(self, folder: Path, row: dict[str, Any]) -> None:
        self.file = folder / "compose.yaml"
        self.file.write_text("\n".join(row["file"]) + "\n")
        (folder / ".env").write_text("\n".join(row.get("env", [])) + "\n")
        docker = FakeDocker(folder / "docker")
        docker.image("img", row.get("entrypoint", ()), row.get("cmd", ()))
        self.host = LocalHost()
        site = Site(compose_files=(str(self.file),), compose_service="llm", home=str(folder / "state"))
        self.target: ComposeTarget = target(msgspec.structs.replace(site, compose_program=(docker.program, "compose")))
        self.seen = observe(self.target, self.host)
        engine = plugin("engines", row["engine"], "engine")
        self.parsed = str(engine.parse(self.seen.launch))
        self.launch: LaunchSpec = engine.render(self.seen.launch, Setting.parse(row["setting"]))


def changes(shape: Shape) -> list[str]:
    """The lines of the words, as a compose file has them, that a trial has otherwise than its operator."""
    argv = shape.seen.launch.argv
    touched = msgspec.structs.replace(shape.seen.launch, argv=(*argv, "X"))  # so that all words are in the override
    whole, now = (shape.target._plain(launch, shape.seen) for launch in (touched, shape.launch))
    before = (whole.command or whole.entrypoint or ())[:-1]
    after = now.command if now.entrypoint is None else now.entrypoint
    had, has = ("\n".join(side).splitlines() for side in (before, before if after is None else after))
    lines = [line for line in difflib.ndiff(had, has) if line[0] in "+-"]
    return [*lines, *(f"{name}={value}" for name, value in now.environment.items())]


def named(row: dict[str, Any]) -> str:
    return str(row["name"])


@pytest.mark.parametrize("row", [r for r in SHAPES if "changes" in r], ids=named)
def test_another_depth_changes_the_words_of_its_knobs_alone(tmp_path: Path, row: dict[str, Any]) -> None:
    shape = Shape(tmp_path, row)
    assert shape.parsed.startswith(row["parse"])
    candidate = shape.target.plan(shape.launch, shape.seen, "log")[0]
    assert isinstance(candidate, Run)
    shape.target.confirm(shape.launch, [command(shape.host, candidate)])
    written = (tmp_path / "state" / "candidate.yaml").read_text().partition("services:\n")[2]
    assert changes(shape) == row["changes"]
    assert all(json.dumps(part)[1:-1] in written for part in row.get("kept", []))


@pytest.mark.parametrize("row", [r for r in SHAPES if "patch" in r], ids=named)
def test_a_patch_of_the_operators_own_file_says_the_same(tmp_path: Path, row: dict[str, Any]) -> None:
    shape = Shape(tmp_path, row)
    patch = shape.target.patch(shape.launch, shape.seen)
    lines = [line for line in patch.splitlines()[2:] if line[0] in "+-"]
    assert lines == row["patch"]
    applied = subprocess.run(["patch", "-p1", "-d", "/"], input=patch, text=True, capture_output=True, check=False)
    assert applied.returncode == 0, applied.stdout
    assert observe(shape.target, shape.host).launch == shape.launch


@pytest.mark.parametrize("row", [r for r in SHAPES if "refused" in r], ids=named)
def test_what_cannot_be_changed_is_refused_with_the_reason(tmp_path: Path, row: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=row["refused"]):
        Shape(tmp_path, row)
