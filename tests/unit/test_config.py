"""campaign.toml that is right: what it means; the template and the reference made from the same table."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leadline.codec import from_json, to_json
from leadline.config import (
    CampaignSpec,
    Hours,
    KnobSpec,
    Names,
    Secret,
    config_digest,
    parse_campaign,
    reference,
    template,
    window_allows,
)
from leadline.config.table import RANGE, SCRIPTS, SECTIONS
from leadline.config.target_rules import RULES, takes
from leadline.config.toml import toml_key, toml_text
from leadline.errors import InputError
from leadline.goal import Cell, Requirement
from leadline.space import Setting

NAMES = Names(
    engines=("llamacpp",),
    targets=("command", "compose", "script", "systemd"),
    strategies=("grid", "random"),
    workloads=("coding", "chat", "summarize", "extract", "agent"),
    knobs={"llamacpp": ("depth", "spec_method", "draft_model", "max_running", "kv_dtype")},
    changes_output=("kv_dtype",),
)
SMALL = """
[service]
engine = "llamacpp"
target = "command"
command = "llama-server -m 'my model.gguf' --port 8080"
[knobs]
depth = [2, 4]
[workloads.coding]
builtin = "coding"
[goals.fast]
weights = { coding = 1 }
"""
FULL = """
[service]
engine = "llamacpp"
target = "command"
command = ["llama-server", "-m", "m.gguf"]
env = { OMP_NUM_THREADS = "2", EMPTY = "" }
cwd = "/srv/llm"
url = "https://[::1]:8080/base"
model = "smol"
api_key = { command = ["pass", "show", "my llm"] }
headers = { X-Team = "a", Authorization = { file = "key" } }
ca = "ca.pem"
proxy = "http://proxy:3128"
metrics_url = "http://127.0.0.1:9000/metrics"
engine_version = "10434"
model_config = "config.json"
draft_config = "draft.json"
device_gib = 80
start_stall_s = 30
request_stall_s = 7.5
launch_script = "run.sh"
[window]
hours = ["22:00-06:00", "12:00-13:00"]
max_minutes_without_service = 240
max_restarts = 60
[traffic]
drain = ["./router", "off"]
undrain = "./router on"
private_port = 18080
foreign = "skip"
[safety]
grace_s = 0
deadline_s = 600
disconnect_grace_s = 0.5
lease_s = 1
unguarded = true
device_settle_s = 0
min_free_memory_gib = 0.5
max_oom_chance = 1
may_change_output = ["kv_dtype", "flag:--rope-scale"]
[knobs]
depth = [0, 2, 4, 6, 8]
max_running = { from = 1, to = 7, step = 3 }
kv_dtype = ["f16", "q8_0"]
"flag:--threads" = [1, 2]
"flag:--mlock" = [true, false]
"env:OMP_NUM_THREADS" = ["1", "2"]
[keep]
spec_method = "ngram-simple"
"flag:--prio" = 2
[load]
concurrency = [1, 4, 16]
warmup = 0
requests = 20
per_user = 5
[workloads.coding]
builtin = "coding"
body = { max_tokens = 128, temperature = 0.2, stop = ["</s>"], extra = { a = true } }
[workloads.mine]
file = "prompts.jsonl"
[goals.interactive]
weights = { "coding@1" = 3, coding = 3, mine = 0.5 }
objective = "ttft_ms.p90"
require = ["ttft_ms.p99 < 2000", "error_frac<=1e-2", "ttft_ms.p99 >= 900 at mine@4"]
[goals.throughput]
weights = { "mine@64" = 1 }
[budget]
strategy = "random"
rounds = 1
max_launches = 40
max_minutes = 60.5
seed = 7
[canary]
minutes = 0
worst_frac = 0.2
"""
AWAY = """host = "ssh://me@gpu1:2222"
ssh_config = "ssh_config"
through = "pct exec 105 --"
"""
PLACES = {
    "command": 'command = "llama-server --port 8080"\n',
    "systemd": f'unit = "llm@a.service"\nsudo = true\n{AWAY}',
    "compose": f"""compose_files = ["/srv/a.yaml", "/srv/b.yaml"]
compose_service = "llm"
compose_project = "prod"
compose_program = "podman compose"
sudo = true
{AWAY}""",
    "script": f"""command = "llama-server --port 8080"
{AWAY}[scripts]
start = ["start", "{{argv}}", "{{env}}"]
stop = "stop --now"
give_back = ["give-back"]
status = ["status", "{{{{.State}}}}"]
logs = ["tail", "-c+{{since}}"]
""",
}
"""What each target needs, and where it may be."""


def placed(target: str) -> str:
    """A small file for that target."""
    head, _, rest = SMALL.partition('target = "command"\n')
    return f'{head}target = "{target}"\n{PLACES[target]}{rest.partition(chr(10))[2]}'


def parse(text: str, path: str = "campaign.toml") -> CampaignSpec:
    return parse_campaign(text, path, NAMES)


def test_a_small_file_gets_the_defaults() -> None:
    spec = parse(SMALL)
    assert spec.service.command == ("llama-server", "-m", "my model.gguf", "--port", "8080")
    assert (spec.service.url, spec.service.api_key, spec.service.launch_script) == (None, None, "serve.sh")
    assert (spec.service.start_stall_s, spec.service.request_stall_s) == (120, 60)
    assert (spec.window.hours, spec.window.max_restarts, spec.traffic.drain) == ((), None, ())
    assert (spec.safety.grace_s, spec.safety.max_oom_chance, spec.traffic.foreign) == (10, 0.05, "pause")
    assert (spec.load.concurrency, spec.load.warmup, spec.load.requests, spec.load.per_user) == ((1, 4), 1, 8, 3)
    assert (spec.budget.strategy, spec.budget.rounds, spec.budget.max_launches) == ("grid", 2, None)
    assert (spec.goals[0].objective, spec.goals[0].requirements, spec.keep) == ("output_tok_s", (), Setting())


def test_every_key_of_a_full_file_arrives() -> None:
    given_keys = tomllib.loads(FULL)
    for section in SECTIONS:
        table = given_keys.get(section.name, {})
        tables = table.values() if section.shape == "named" else [table]
        seen = {name for table in tables for name in table}
        there = {k.name for k in section.keys if takes("command", f"{section.name}.{k.name}")}
        assert section.shape == "knobs" or seen == there, section.name
    spec = parse(FULL)
    assert spec.service.env == (("OMP_NUM_THREADS", "2"), ("EMPTY", ""))
    assert spec.service.headers == (("X-Team", "a"), ("Authorization", Secret("file", "key")))
    assert (spec.service.url, spec.service.cwd, spec.service.model) == ("https://[::1]:8080/base", "/srv/llm", "smol")
    assert (spec.service.engine_version, spec.service.model_config) == ("10434", "config.json")
    assert (spec.service.draft_config, spec.service.device_gib) == ("draft.json", 80)
    assert (spec.service.ca, spec.service.proxy) == ("ca.pem", "http://proxy:3128")
    assert (spec.service.start_stall_s, spec.service.request_stall_s, spec.service.launch_script) == (30, 7.5, "run.sh")
    assert spec.window.hours == (Hours(22 * 60, 6 * 60), Hours(12 * 60, 13 * 60))
    assert (spec.window.max_minutes_without_service, spec.window.max_restarts) == (240, 60)
    assert (spec.traffic.drain, spec.traffic.undrain) == (("./router", "off"), ("./router", "on"))
    assert (spec.traffic.private_port, spec.traffic.foreign) == (18080, "skip")
    assert (spec.safety.grace_s, spec.safety.deadline_s, spec.safety.min_free_memory_gib) == (0, 600, 0.5)
    assert (spec.safety.max_oom_chance, spec.safety.may_change_output) == (1, ("kv_dtype", "flag:--rope-scale"))
    assert (spec.safety.disconnect_grace_s, spec.safety.lease_s) == (0.5, 1)
    assert (spec.safety.unguarded, spec.safety.device_settle_s) == (True, 0)
    assert (spec.canary.minutes, spec.canary.worst_frac) == (0, 0.2)
    assert spec.knobs[:2] == (KnobSpec("depth", (0, 2, 4, 6, 8)), KnobSpec("max_running", (1, 4, 7)))
    assert [k.values for k in spec.knobs[2:]] == [("f16", "q8_0"), (1, 2), (True, False), ("1", "2")]
    assert str(spec.keep) == "flag:--prio=2 spec_method=ngram-simple"
    assert (spec.load.concurrency, spec.load.warmup, spec.load.requests, spec.load.per_user) == ((1, 4, 16), 0, 20, 5)
    assert spec.workloads[0].body["extra"] == {"a": True}
    assert (spec.workloads[1].file, spec.workloads[1].builtin) == ("prompts.jsonl", None)
    assert (spec.budget.strategy, spec.budget.rounds, spec.budget.seed) == ("random", 1, 7)
    assert (spec.budget.max_launches, spec.budget.max_minutes) == (40, 60.5)


def test_a_service_gets_the_defaults() -> None:
    spec = parse(SMALL)
    assert (spec.service.host, spec.service.ssh_config, spec.service.through) == ("local", None, ())
    assert (spec.service.unit, spec.service.sudo, spec.service.compose_files) == (None, False, ())
    assert spec.service.compose_program == ("docker", "compose")
    assert spec.scripts.start == spec.scripts.status == ()
    assert (spec.safety.disconnect_grace_s, spec.safety.lease_s) == (120, 300)
    assert (spec.safety.unguarded, spec.safety.device_settle_s) == (False, 60)
    assert (spec.canary.minutes, spec.canary.worst_frac) == (10, 0.05)


@pytest.mark.parametrize("target", PLACES)
def test_what_a_target_needs_is_enough(target: str) -> None:
    given = tomllib.loads(placed(target))
    named = {f"{section}.{key}" for section in ("service", "scripts") for key in given.get(section, {})}
    assert set(RULES[target].needs) <= named
    assert parse(placed(target)).service.target == target


def test_where_a_service_is_arrives() -> None:
    systemd, compose, script = (parse(placed(target)) for target in ("systemd", "compose", "script"))
    for spec in (systemd, compose, script):
        assert (spec.service.host, spec.service.ssh_config) == ("ssh://me@gpu1:2222", "ssh_config")
        assert spec.service.through == ("pct", "exec", "105", "--")
    assert (systemd.service.unit, systemd.service.sudo, systemd.service.command) == ("llm@a.service", True, ())
    assert compose.service.compose_files == ("/srv/a.yaml", "/srv/b.yaml")
    assert (compose.service.compose_service, compose.service.compose_project) == ("llm", "prod")
    assert (compose.service.compose_program, compose.service.sudo) == (("podman", "compose"), True)
    assert script.service.command == ("llama-server", "--port", "8080")
    assert script.scripts.start == ("start", "{argv}", "{env}")
    assert (script.scripts.stop, script.scripts.give_back) == (("stop", "--now"), ("give-back",))
    assert (script.scripts.status, script.scripts.logs) == (("status", "{{.State}}"), ("tail", "-c+{since}"))


@pytest.mark.parametrize("host", ["local", "ssh://gpu1", "ssh://u.v-w@h.example:1", "ssh://[fe80::1%eth0]:22"])
def test_a_host_is_this_machine_or_a_name_that_ssh_knows(host: str) -> None:
    assert parse(placed("script").replace("ssh://me@gpu1:2222", host).replace('ssh_config = "ssh_config"\n', ""))


def test_a_command_is_local_and_may_say_so() -> None:
    assert parse(SMALL.replace("[knobs]", 'host = "local"\n[knobs]')).service.host == "local"


def test_a_target_of_somebody_else_takes_every_key() -> None:
    text = placed("systemd").replace(
        'target = "systemd"', 'target = "theirs"\ncompose_service = "llm"\ncommand = ["x"]'
    )
    names = msgspec.structs.replace(NAMES, targets=("theirs",))
    assert parse_campaign(text, "campaign.toml", names).service.compose_service == "llm"


def test_a_weight_without_concurrency_is_spread_over_the_load_and_adds_to_others() -> None:
    goal = parse(FULL).goals[0]
    weights = {str(w.cell): w.weight for w in goal.weights}
    assert {k: v for k, v in weights.items() if k.startswith("coding")} == {
        "coding@1": 4,
        "coding@4": 1,
        "coding@16": 1,
    }
    assert weights["mine@4"] == pytest.approx(0.5 / 3)
    assert goal.objective == "ttft_ms.p90"


def test_requirements_are_read_with_their_cell() -> None:
    assert parse(FULL).goals[0].requirements == (
        Requirement("ttft_ms.p99", "<", 2000.0),
        Requirement("error_frac", "<=", 0.01),
        Requirement("ttft_ms.p99", ">=", 900.0, Cell("mine", 4)),
    )


def test_a_requirement_may_name_a_cell_that_only_another_goal_weighs() -> None:
    text = FULL.replace("at mine@4", "at mine@64")
    assert parse(text).goals[0].requirements[2].cell == Cell("mine", 64)


@pytest.mark.parametrize(
    ("secret", "shown"),
    [
        (Secret("env", "KEY"), "<secret:KEY>"),
        (Secret("file", "/run/key"), "<secret:/run/key>"),
        (Secret("command", "pass show 'my llm'"), "<secret:pass>"),
    ],
)
def test_a_secret_prints_as_a_name_wherever_it_stands(secret: Secret, shown: str) -> None:
    assert (str(secret), f"{secret}", repr([secret])) == (shown, shown, f"[{shown}]")


def test_the_words_of_a_secret_command_survive() -> None:
    key = parse(FULL).service.api_key
    assert key is not None
    assert key.argv == ("pass", "show", "my llm")
    assert Secret("env", "A B").argv == ()


def test_files_of_the_campaign_lie_beside_it() -> None:
    assert parse(SMALL, "some/where/campaign.toml").beside("prompts.jsonl") == "some/where/prompts.jsonl"
    assert parse(SMALL, "some/campaign.toml").beside("/abs/p.jsonl") == "/abs/p.jsonl"
    assert parse(SMALL).beside("p.jsonl") == "p.jsonl"


def test_a_spec_goes_through_json_unchanged() -> None:
    spec = parse(FULL)
    assert from_json(to_json(spec), CampaignSpec) == spec


def test_the_digest_changes_with_the_meaning_alone() -> None:
    same = "# a comment\n" + SMALL.replace("depth = [2, 4]", "depth   =  [2,\n 4, ] # all")
    assert parse(same).digest == parse(SMALL).digest == config_digest(SMALL)
    assert len(config_digest(SMALL)) == 64
    for other in (
        SMALL.replace("[2, 4]", "[4, 2]"),
        SMALL.replace('"coding"', '"chat"'),
        SMALL + "objective = 'e2e_ms.p50'",
    ):
        assert config_digest(other) != config_digest(SMALL)


def test_hours_print_as_they_are_written() -> None:
    assert [str(Hours.parse(t)) for t in ("22:00-06:05", "00:00-24:00")] == ["22:00-06:05", "00:00-24:00"]


NIGHT = (Hours.parse("22:00-06:00"),)


@pytest.mark.parametrize(
    ("now", "needed", "allowed"),
    [
        ("22:00", 480, True),
        ("22:00", 481, False),
        ("21:59", 1, False),
        ("23:30", 60, True),
        ("05:30", 30, True),
        ("05:30", 30.5, False),
        ("05:59", 0, True),
        ("06:00", 0, False),
        ("12:00", 10, False),
    ],
)
def test_a_window_may_cross_midnight(now: str, needed: float, allowed: bool) -> None:
    hour, minute = now.split(":")
    assert window_allows(NIGHT, 60 * int(hour) + int(minute), needed) is allowed


def test_without_hours_any_time_is_allowed() -> None:
    assert window_allows((), 720, 1e9)


def test_spans_that_touch_are_one() -> None:
    hours = tuple(Hours.parse(t) for t in ("22:00-24:00", "00:00-02:00", "01:30-03:00"))
    assert window_allows(hours, 22 * 60, 300)
    assert not window_allows(hours, 22 * 60, 301)


def test_a_whole_day_allows_work_of_any_length_and_seconds_count() -> None:
    assert window_allows((Hours.parse("00:00-24:00"),), 700.5, float("inf"))
    assert window_allows(NIGHT, 359.5, 0.5)
    assert not window_allows(NIGHT, 359.5, 0.6)


HOSTILE = ["llama-server", "-m", "my model.gguf", "--x", "a'b\"c", "$HOME `id` \\ \n\t#", "", "ümlaut €", "[", "\x7f"]


WHERE: dict[str, dict[str, object]] = {
    "command": {},
    "systemd": {"unit": "llm.service", "host": "ssh://gpu1"},
    "compose": {"compose_files": ["/srv/a.yaml"], "compose_service": "llm", "host": "ssh://gpu1"},
    "script": {"host": "ssh://gpu1"},
}


def made(command: list[str], target: str = "command") -> str:
    incumbent, keep = Setting.of(depth=0, max_running=4), Setting.of(spec_method="x")
    return template(command, incumbent, "llamacpp", 8080, [2, 4], keep, target=target, where=WHERE[target])


def test_the_template_is_a_campaign_that_parses_back_to_what_it_was_made_of() -> None:
    spec = parse(made(HOSTILE))
    assert spec.service.command == tuple(HOSTILE)
    assert shlex.split(shlex.join(spec.service.command)) == HOSTILE
    assert spec.knobs == (KnobSpec("depth", (2, 4)),)
    assert str(spec.keep) == "spec_method=x"
    cells = {g.name: [str(c) for c in g.cells()] for g in spec.goals}
    assert cells["interactive"] == ["coding@1", "chat@1"]
    assert cells["throughput"] == ["coding@4", "chat@4"]
    assert cells["everything"] == ["coding@1", "coding@4", "chat@1", "chat@4"]


def test_the_template_says_nothing_but_what_was_given_and_the_defaults() -> None:
    spec, small = parse(made(["llama-server"])), parse(SMALL)
    assert (spec.window, spec.traffic, spec.safety, spec.load) == (
        small.window,
        small.traffic,
        small.safety,
        small.load,
    )
    assert spec.budget == small.budget


@pytest.mark.parametrize("target", WHERE)
def test_the_template_of_a_service_says_where_it_is_and_not_what_it_can_be_asked(target: str) -> None:
    spec = parse(template(
        ["llama-server"], Setting(), "llamacpp", 8080, [2], Setting(), target=target, cwd="/srv", where=WHERE[target]
    ))  # fmt: skip
    live = target in ("systemd", "compose")
    assert (spec.service.command, spec.service.cwd) == (((), None) if live else (("llama-server",), "/srv"))
    told = {name: getattr(spec.service, name) for name in WHERE[target]}
    assert told == {name: tuple(v) if isinstance(v, list) else v for name, v in WHERE[target].items()}


@pytest.mark.parametrize("target", WHERE)
def test_every_optional_key_of_the_template_may_be_uncommented(target: str) -> None:
    text = re.sub(r'(?m)^# (?=("[^"]+"|\w+) = |\[)', "", made(["llama-server"], target))
    spec = parse(text)
    assert spec.traffic.private_port == 8081
    assert spec.service.url == "http://127.0.0.1:8080"
    assert [w.name for w in spec.workloads] == ["coding", "chat", "mine"]
    for section in SECTIONS:
        if section.shape == "one":
            there = {k.name for k in section.keys if takes(target, f"{section.name}.{k.name}")}
            assert set(tomllib.loads(text).get(section.name, {})) == there


def test_the_templates_have_a_comment_for_every_key_and_no_very_long_line() -> None:
    text = "".join(made(["llama-server"], target) for target in WHERE)
    for section in SECTIONS:
        assert f"[{section.name}" in text
        assert section.help in text
    for key in (k for s in SECTIONS if s.shape == "one" for k in s.keys):
        assert key.help in text, key.name
    assert max(len(line) for line in text.splitlines()) <= 120


def test_the_template_shows_todays_setting_whatever_it_holds() -> None:
    incumbent = Setting.of({"depth": 0, "flag:--x": "two\nlines \x7f"})
    text = template(["s"], incumbent, "llamacpp", 65535, [2], Setting.of({"flag:--y": 1.5, "max_running": 2}))
    assert "# In force today: depth=0 flag:--x=" in text
    assert str(parse(text).keep) == "flag:--y=1.5 max_running=2"
    assert "# max_running" not in text
    assert "# private_port = 65534 " in text


def test_the_template_takes_other_workloads_and_loads() -> None:
    text = template(["s"], Setting(), "llamacpp", 1, [2], Setting(), workloads=("summarize",), concurrency=(2, 8, 16))
    spec = parse(text)
    assert [str(g.cells()[-1]) for g in spec.goals] == ["summarize@2", "summarize@16", "summarize@16"]
    assert spec.load.concurrency == (2, 8, 16)


def test_a_command_line_that_is_not_utf8_is_refused_by_the_template() -> None:
    with pytest.raises(InputError, match="not UTF-8"):
        made(["llama-server", "-m", "caf\udce9.gguf"])


@settings(max_examples=200, deadline=None)
@given(
    st.one_of(
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False),
        st.text(st.characters(exclude_categories=["Cs"])),
        st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=3),
    ),
    st.text(st.characters(exclude_categories=["Cs"])),
)
def test_values_and_keys_survive_toml(value: object, key: str) -> None:
    back = tomllib.loads(f"{toml_key(key)} = {toml_text(value)}")
    assert back == {key: value}
    assert type(back[key]) is type(value)


def test_every_field_of_a_section_has_a_key_and_every_key_a_field() -> None:
    for section in (*SECTIONS, RANGE):
        if section.spec is not None:
            fields = {f.encode_name for f in msgspec.structs.fields(section.spec)} - {"name"}
            assert fields == {k.name for k in section.keys}, section.name


def test_the_reference_has_every_key_and_its_examples_are_true() -> None:
    page = reference()
    for section in SECTIONS:
        title = f"{section.name}.NAME" if section.shape == "named" else section.name
        assert f"## [{title}]" in page
        for key in section.keys:
            assert f"| `{toml_key(key.name)}` | " in page
            assert key.help in page
            assert tomllib.loads(f"x = {key.example}")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert all(line.replace("\\|", "").count("|") in (5, 6) for line in rows)
    assert "| `120` |" in page
    assert page.count("| required |") == 3
    for target, rule in RULES.items():
        assert f"| `{target}` | {', '.join(f'`{key}`' for key in rule.needs)} | " in page


def test_the_example_of_every_key_is_accepted() -> None:
    for section in SECTIONS:
        for key in section.keys if section.shape == "one" else ():
            pair = {"drain": "undrain", "undrain": "drain"}.get(key.name, "")
            extra = f'{pair} = ["x"]\n' if pair else ""
            line = f"{key.name} = {key.example}\n"
            base = placed(next(target for target in PLACES if takes(target, f"{section.name}.{key.name}")))
            if f"[{section.name}]" in base:
                text = re.sub(rf"(?m)^{key.name} = .*\n", "", base).replace(
                    f"[{section.name}]\n", f"[{section.name}]\n{line}"
                )
            else:
                text = f"{base}[{section.name}]\n{line}{extra}"
            assert parse(text), key.name


def test_the_scripts_are_given_all_or_none() -> None:
    assert {f"scripts.{k.name}" for k in SCRIPTS.keys} < set(RULES["script"].needs)


def test_config_opens_no_file_and_imports_no_plugin() -> None:
    folder = Path(__file__).parents[2] / "src" / "leadline" / "config"
    words = "".join(f.read_text(encoding="utf-8") for f in folder.glob("*.py"))
    allowed = {"config", "errors", "goal", "masking", "metrics", "space"}
    assert set(re.findall(r"from leadline\.(\w+)", words)) <= allowed
    assert "open(" not in words
