"""What campaign.toml says, as values. A field's default is the key's default: it is written nowhere else."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence
from pathlib import PurePath
from typing import Literal

import msgspec

from leadline.goal import Goal, Requirement
from leadline.space import Setting, Value

DAY_MIN = 24 * 60
_HOURS = re.compile(r"(\d\d):(\d\d)-(\d\d):(\d\d)")


class Names(msgspec.Struct, frozen=True, kw_only=True):
    """What the installed plug-ins are called: config knows no plug-in, so the composition root tells it.

    `knobs` maps an engine to its canonical knobs; `changes_output` are the knobs that may change what the model writes.
    """

    engines: tuple[str, ...]
    targets: tuple[str, ...]
    strategies: tuple[str, ...]
    workloads: tuple[str, ...]
    knobs: dict[str, tuple[str, ...]]
    changes_output: tuple[str, ...] = ()


class Secret(msgspec.Struct, frozen=True):
    """Where a secret is to be had: a variable's name, a file's path, or a command whose output it is.

    Never holds the secret itself, and prints as `<secret:NAME>`. Does not fetch it.
    """

    kind: Literal["env", "file", "command"]
    value: str

    @property
    def argv(self) -> tuple[str, ...]:
        """The command, word by word; empty for the other kinds."""
        return tuple(shlex.split(self.value)) if self.kind == "command" else ()

    def __str__(self) -> str:
        return f"<secret:{self.argv[0] if self.argv else self.value}>"

    def __repr__(self) -> str:
        return str(self)


class Hours(msgspec.Struct, frozen=True):
    """A span of the local day in minutes after midnight; one that ends before it starts runs past midnight."""

    start_min: int
    end_min: int

    @classmethod
    def parse(cls, text: str) -> Hours:
        """`22:00-06:00` -> Hours. 24:00 may only be an end. Raises ValueError."""
        match = _HOURS.fullmatch(text.strip())
        if not match:
            raise ValueError(f"hours are written HH:MM-HH:MM, not {text!r}")
        h1, m1, h2, m2 = (int(part) for part in match.groups())
        start, end = 60 * h1 + m1, 60 * h2 + m2
        if max(m1, m2) > 59 or start >= DAY_MIN or end > DAY_MIN or start == end:
            raise ValueError(f"no such span of a day: {text!r}")
        return cls(start, end)

    def __str__(self) -> str:
        return "-".join(f"{m // 60:02}:{m % 60:02}" for m in (self.start_min, self.end_min))

    def minutes(self) -> set[int]:
        """The minutes of the day that it covers, 0..1439."""
        end = self.end_min if self.end_min > self.start_min else self.end_min + DAY_MIN
        return {m % DAY_MIN for m in range(self.start_min, end)}


def window_allows(hours: Sequence[Hours], minute_of_day_now: float, minutes_needed: float) -> bool:
    """Whether work that starts now and takes so long ends within the hours. No hours at all: any time is allowed.

    Spans that touch or overlap are one. Every minute that is begun must be allowed.
    """
    if not hours:
        return True
    allowed = set[int]().union(*(span.minutes() for span in hours))
    first = math.floor(minute_of_day_now)
    end = math.ceil(minute_of_day_now + min(minutes_needed, DAY_MIN))
    return all(minute % DAY_MIN in allowed for minute in range(first, max(end, first + 1)))


class ServiceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """[service]. `command`, `env`, `cwd` = the launch in force today, empty where the live service tells; paths as
    written. `host` = "local" or "ssh://[user@]name[:port]"; `through` = words before every command there."""

    engine: str
    target: str
    command: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    cwd: str | None = None
    unit: str | None = None
    compose_files: tuple[str, ...] = ()
    compose_service: str | None = None
    compose_project: str | None = None
    compose_program: tuple[str, ...] = ("docker", "compose")
    host: str = "local"
    ssh_config: str | None = None
    through: tuple[str, ...] = ()
    sudo: bool = False
    url: str | None = None
    model: str | None = None
    api_key: Secret | None = None
    headers: tuple[tuple[str, str | Secret], ...] = ()
    ca: str | None = None
    proxy: str | None = None
    metrics_url: str | None = None
    engine_version: str | None = None
    model_config: str | None = None
    draft_config: str | None = None
    device_gib: float | None = None
    start_stall_s: float = 120.0
    request_stall_s: float = 60.0
    launch_script: str = "serve.sh"


class ScriptsSpec(msgspec.Struct, frozen=True, kw_only=True):
    """[scripts]: the operator's own commands; all are given, or all are empty."""

    start: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()
    give_back: tuple[str, ...] = ()
    status: tuple[str, ...] = ()
    logs: tuple[str, ...] = ()


class WindowSpec(msgspec.Struct, frozen=True, kw_only=True):
    """[window]. No hours = any time; None = no limit."""

    hours: tuple[Hours, ...] = ()
    max_minutes_without_service: float | None = None
    max_restarts: int | None = None


class TrafficSpec(msgspec.Struct, frozen=True, kw_only=True):
    """[traffic]. Both hooks are given, or both are empty."""

    drain: tuple[str, ...] = ()
    undrain: tuple[str, ...] = ()
    private_port: int | None = None
    foreign: str = "pause"


class SafetySpec(msgspec.Struct, frozen=True, kw_only=True):
    """[safety]. `disconnect_grace_s`, `lease_s`, `unguarded`, `device_settle_s` are for services of a supervisor's."""

    grace_s: float = 10.0
    deadline_s: float = 7200.0
    disconnect_grace_s: float = 120.0
    lease_s: float = 300.0
    unguarded: bool = False
    device_settle_s: float = 60.0
    min_free_memory_gib: float = 1.0
    max_oom_chance: float = 0.05
    may_change_output: tuple[str, ...] = ()


class KnobSpec(msgspec.Struct, frozen=True):
    """One line of [knobs]: values in the order given, distinct, at least one."""

    name: str
    values: tuple[Value, ...]


class RangeSpec(msgspec.Struct, frozen=True):
    """{ from = 1, to = 8, step = 1 }: both ends included."""

    first: int = msgspec.field(name="from")
    last: int = msgspec.field(name="to")
    step: int = 1


class LoadSpec(msgspec.Struct, frozen=True, kw_only=True):
    """[load]. At a point of concurrency C at least max(requests, per_user * C) sessions are measured."""

    concurrency: tuple[int, ...] = (1, 4)
    warmup: int = 1
    requests: int = 8
    per_user: int = 3


class WorkloadSpec(msgspec.Struct, frozen=True, kw_only=True):
    """[workloads.NAME]: exactly one of `builtin` and `file`; `body` is laid over each request's own fields."""

    name: str
    builtin: str | None = None
    file: str | None = None
    body: dict[str, object] = {}


class WeightSpec(msgspec.Struct, frozen=True):
    """One weight as written; `concurrency` None = spread evenly over [load].concurrency."""

    workload: str
    concurrency: int | None
    weight: float


class GoalSpec(msgspec.Struct, frozen=True, kw_only=True):
    """[goals.NAME] as written; the reader makes a Goal of it."""

    weights: tuple[WeightSpec, ...]
    objective: str = "output_tok_s"
    require: tuple[Requirement, ...] = ()


class BudgetSpec(msgspec.Struct, frozen=True, kw_only=True):
    """[budget]. None = no limit."""

    strategy: str = "grid"
    rounds: int = 2
    max_launches: int | None = None
    max_minutes: float | None = None
    seed: int = 1


class CanarySpec(msgspec.Struct, frozen=True, kw_only=True):
    """[canary]. `worst_frac` 0.05 = up to 5 % worse than promised is still good."""

    minutes: float = 10.0
    worst_frac: float = 0.05


class CampaignSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A whole campaign.toml, checked. `path` is the file as it was named; `digest` changes with its meaning."""

    path: str
    digest: str
    service: ServiceSpec
    knobs: tuple[KnobSpec, ...]
    workloads: tuple[WorkloadSpec, ...]
    goals: tuple[Goal, ...]
    scripts: ScriptsSpec = ScriptsSpec()
    window: WindowSpec = WindowSpec()
    traffic: TrafficSpec = TrafficSpec()
    safety: SafetySpec = SafetySpec()
    keep: Setting = Setting()
    load: LoadSpec = LoadSpec()
    budget: BudgetSpec = BudgetSpec()
    canary: CanarySpec = CanarySpec()

    def beside(self, path: str) -> str:
        """A path of the file, relative to the file's folder."""
        return str(PurePath(self.path).parent / path)
