"""Every key of campaign.toml in one table: kind, meaning, example. Defaults are those of the structs in spec.py.

The reader, the template and the reference are all made from it.
"""

from __future__ import annotations

from functools import cache
from typing import Literal

import msgspec

from leadline.config.goal_kinds import MAX_CONCURRENCY, OBJECTIVE, REQUIREMENTS, WEIGHTS
from leadline.config.kinds import FLAG, HOURS, SCALAR, TEXT, Kind, list_of, number, one_of, whole
from leadline.config.place_kinds import ABSOLUTE, COMPOSE_NAME, HOST, UNIT
from leadline.config.service_kinds import API_KEY, BODY, COMMAND, ENV, HEADERS, URL
from leadline.config.spec import (
    BudgetSpec,
    CanarySpec,
    GoalSpec,
    LoadSpec,
    RangeSpec,
    SafetySpec,
    ScriptsSpec,
    ServiceSpec,
    TrafficSpec,
    WindowSpec,
    WorkloadSpec,
)

_SECONDS = number(0, above=True)
_SHORTEST_S = number(0.5)


class Key(msgspec.Struct, frozen=True):
    """`help` is one line without a full stop; `example` is TOML, shown where there is no default."""

    name: str
    kind: Kind
    help: str
    example: str


@cache
def _defaults(spec: type[msgspec.Struct]) -> dict[str, object]:
    """Kept, since msgspec reads the annotations anew on each call: 0.3 ms a struct."""
    fields = msgspec.structs.fields(spec)
    return {f.encode_name: f.default if f.default_factory is msgspec.NODEFAULT else f.default_factory() for f in fields}


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """`shape`: "one" table with these keys; "named": a table of these keys for each name; "knobs": any knob's name."""

    name: str
    help: str
    keys: tuple[Key, ...]
    spec: type[msgspec.Struct] | None = None
    shape: Literal["one", "named", "knobs"] = "one"
    required: bool = False

    def default(self, key: str) -> object:
        """The key's default; msgspec.NODEFAULT when the key must be given; None or empty when it may be left out."""
        return _defaults(self.spec).get(key) if self.spec else None

    def must_have(self) -> tuple[str, ...]:
        return tuple(k.name for k in self.keys if self.default(k.name) is msgspec.NODEFAULT)


SERVICE = Section(
    name="service",
    help="the server to tune, as it is launched today",
    spec=ServiceSpec,
    required=True,
    keys=(
        Key("engine", one_of("the name of an engine", lambda n: n.engines), "what kind of server it is", '"llamacpp"'),
        Key("target", one_of("the name of a target", lambda n: n.targets), "how it is launched", '"command"'),
        Key("command", COMMAND, "its command line today", '["llama-server", "-m", "model.gguf"]'),
        Key("env", ENV, "added to its environment", '{ NAME = "value" }'),
        Key("cwd", TEXT, "its working directory", '"/srv/llm"'),
        Key("unit", UNIT, "the systemd unit that it is", '"vllm.service"'),
        Key("compose_files", list_of(ABSOLUTE, "paths"), "the compose files, on its host", '["/srv/llm/compose.yaml"]'),
        Key("compose_service", COMPOSE_NAME, "which service of them it is", '"llm"'),
        Key("compose_project", COMPOSE_NAME, "their project; default: as compose itself names it", '"llm"'),
        Key("compose_program", COMMAND, "what reads compose files there", '["podman", "compose"]'),
        Key("host", HOST, "where it runs", '"ssh://user@gpu1"'),
        Key("ssh_config", TEXT, "given to ssh as -F; default: your own configuration", '"ssh_config"'),
        Key("through", COMMAND, "words before every command there", '["pct", "exec", "105", "--"]'),
        Key("sudo", FLAG, "what only root may do there goes through sudo -n", "true"),
        Key("url", URL, "where it answers; default: the command's host and port", '"http://127.0.0.1:8080"'),
        Key("model", TEXT, "model name to ask for; default: none is sent", '"my-model"'),
        Key("api_key", API_KEY, "where its API key is to be had", '{ env = "LLM_API_KEY" }'),
        Key("headers", HEADERS, "sent with every request", '{ X-Team = "search" }'),
        Key("ca", TEXT, "certificates to trust, a PEM file", '"ca.pem"'),
        Key("proxy", URL, "HTTP proxy to go through", '"http://proxy:3128"'),
        Key("metrics_url", URL, "its metrics, when not under its own address", '"http://127.0.0.1:9000/metrics"'),
        Key("engine_version", TEXT, "the server's version; default: its program is asked", '"0.5.16"'),
        Key("model_config", TEXT, "the model's config.json; default: the one beside a local model", '"config.json"'),
        Key("draft_config", TEXT, "the same of the draft model", '"draft.json"'),
        Key("device_gib", number(0, above=True), "memory of one accelerator; default: it is asked", "80"),
        Key("start_stall_s", _SECONDS, "a start fails after so long without a sign of progress", "120"),
        Key("request_stall_s", _SECONDS, "a request fails after so long without a byte", "60"),
        Key("launch_script", TEXT, "what `leadline apply` writes, beside this file", '"serve.sh"'),
    ),
)
SCRIPTS = Section(
    name="scripts",
    help="your own commands, for a service that no other target knows",
    spec=ScriptsSpec,
    keys=(
        Key("start", COMMAND, "starts a launch, given after -- or as {argv}, {env}, {command}", '["/srv/llm/start"]'),
        Key("stop", COMMAND, "stops whatever runs of the service", '["/srv/llm/stop"]'),
        Key("give_back", COMMAND, "puts the original back and starts it", '["/srv/llm/original"]'),
        Key(
            "status",
            COMMAND,
            "exits with 0 = running, 3 = stopped, else failed; may print pid=N, exit=N",
            '["/srv/llm/status"]',
        ),
        Key("logs", COMMAND, "prints the log since the last start; {since} = bytes of it to skip", '["/srv/llm/logs"]'),
    ),
)
WINDOW = Section(
    name="window",
    help="when and how much the service may be disturbed",
    spec=WindowSpec,
    keys=(
        Key("hours", HOURS, "local time; default: any time", '["22:00-06:00"]'),
        Key("max_minutes_without_service", number(0, above=True), "in all; default: no limit", "240"),
        Key("max_restarts", whole(1), "in all; default: no limit", "60"),
    ),
)
TRAFFIC = Section(
    name="traffic",
    help="keeping users away from trials",
    spec=TrafficSpec,
    keys=(
        Key("drain", COMMAND, "run before the service is taken; needs undrain", '["./router", "off"]'),
        Key("undrain", COMMAND, "run after it was given back; needs drain", '["./router", "on"]'),
        Key("private_port", whole(1, 65535), "trials listen here; default: the service's own port", "18080"),
        Key(
            "foreign",
            one_of("pause, skip or keep", lambda n: ("pause", "skip", "keep")),
            "when somebody else uses a trial's server",
            '"pause"',
        ),
    ),
)
SAFETY = Section(
    name="safety",
    help="what may not be risked",
    spec=SafetySpec,
    keys=(
        Key("grace_s", number(0), "from SIGTERM to SIGKILL", "10"),
        Key("deadline_s", _SECONDS, "a trial that lasts longer is ended", "7200"),
        Key("disconnect_grace_s", _SHORTEST_S, "we are cut off so long: the service goes back by itself", "120"),
        Key("lease_s", _SHORTEST_S, "no sign of life from us so long: likewise", "300"),
        Key("unguarded", FLAG, "run though nothing on the host would bring the service back without us", "true"),
        Key("device_settle_s", number(0), "longest wait for its device's memory after a stop", "60"),
        Key("min_free_memory_gib", number(0), "free memory of the host that must remain", "1.0"),
        Key("max_oom_chance", number(0, 1), "for settings foreseen to run out of memory; none is yet", "0.05"),
        Key(
            "may_change_output",
            list_of(TEXT, "knobs"),
            "knobs that may be tuned although they can change the output",
            '["kv_dtype"]',
        ),
    ),
)
KNOBS = Section(
    name="knobs",
    help="what is tuned: lists of values, or { from = 1, to = 8, step = 1 }",
    shape="knobs",
    required=True,
    keys=(
        Key("depth", whole(0, 64), "draft tokens a round, 0 = off; 0 and today's are always tried", "[2, 4, 6]"),
        Key("spec_method", TEXT, "how drafts are made, in the engine's words", '["ngram-simple"]'),
        Key("draft_model", TEXT, "the model that drafts", '["draft.gguf"]'),
        Key("topk", whole(1), "branches at each draft position", "[1, 4]"),
        Key("draft_tokens", whole(1), "draft tokens verified a round", "[8, 16]"),
        Key("memory_fraction", number(0, 1, above=True), "share of device memory that the server takes", "[0.8, 0.9]"),
        Key("max_running", whole(1), "requests decoded at once", "{ from = 1, to = 4 }"),
        Key("graph_max_batch", whole(1), "largest batch with a captured graph", "[32, 64]"),
        Key("kv_dtype", TEXT, "type of the KV cache; may change the output", '["f16", "q8_0"]'),
        Key("flag:--NAME", SCALAR, "any other flag of the server", "[1, 2]"),
        Key("env:NAME", SCALAR, "any variable of its environment", '["1", "2"]'),
    ),
)
KEEP = Section(
    name="keep",
    help="pinned in every launch, today's included: names as in [knobs], one value each",
    shape="knobs",
    keys=(Key("NAME", SCALAR, "a knob, flag or variable, with a value that [knobs] would take", '"ngram-simple"'),),
)
LOAD = Section(
    name="load",
    help="how hard it is loaded",
    spec=LoadSpec,
    keys=(
        Key("concurrency", list_of(whole(1, MAX_CONCURRENCY), "whole numbers"), "users at once", "[1, 4]"),
        Key("warmup", whole(0), "sessions of each user that do not count", "1"),
        Key("requests", whole(1), "least measured sessions at each load", "8"),
        Key("per_user", whole(1), "and least of each user", "3"),
    ),
)
WORKLOADS = Section(
    name="workloads",
    help="what requests look like: one table [workloads.NAME] each, with builtin or file",
    spec=WorkloadSpec,
    shape="named",
    required=True,
    keys=(
        Key(
            "builtin",
            one_of("the name of a built-in workload", lambda n: n.workloads),
            "a workload of Leadline",
            '"coding"',
        ),
        Key("file", TEXT, "OpenAI-style requests, one JSON object a line, beside this file", '"prompts.jsonl"'),
        Key("body", BODY, "laid over each request's own fields", "{ max_tokens = 128, temperature = 0.2 }"),
    ),
)
GOALS = Section(
    name="goals",
    help="what you want: one table [goals.NAME] each, answered separately and together",
    spec=GoalSpec,
    shape="named",
    required=True,
    keys=(
        Key("weights", WEIGHTS, "what counts how much", '{ "coding@1" = 3, coding = 1 }'),
        Key("objective", OBJECTIVE, "the metric to improve", '"output_tok_s"'),
        Key("require", REQUIREMENTS, "what must hold in every cell, or in one", '["ttft_ms.p99 < 2000"]'),
    ),
)
BUDGET = Section(
    name="budget",
    help="when to stop",
    spec=BudgetSpec,
    keys=(
        Key("strategy", one_of("the name of a strategy", lambda n: n.strategies), "how settings are chosen", '"grid"'),
        Key("rounds", whole(1), "launches of each setting; intervals need 2 or more", "2"),
        Key("max_launches", whole(1), "in all; default: no limit", "40"),
        Key("max_minutes", number(0, above=True), "in all; default: no limit", "60"),
        Key("seed", whole(0), "fixes order and resampling", "1"),
    ),
)
CANARY = Section(
    name="canary",
    help="how `leadline apply` watches a service that it has changed",
    spec=CanarySpec,
    keys=(
        Key("minutes", number(0), "for so long", "10"),
        Key("worst_frac", number(0, 1), "worse than promised by more: the old setting is put back", "0.05"),
    ),
)
SECTIONS = (SERVICE, SCRIPTS, WINDOW, TRAFFIC, SAFETY, KNOBS, KEEP, LOAD, WORKLOADS, GOALS, BUDGET, CANARY)
RANGE = Section(
    name="range",
    help="whole numbers, both ends included",
    spec=RangeSpec,
    keys=(
        Key("from", whole(0), "the first", "1"),
        Key("to", whole(0), "the last", "8"),
        Key("step", whole(1), "their distance", "1"),
    ),
)
