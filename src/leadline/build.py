"""The composition root: finds plug-ins by name and wires a campaign's folder into objects. The only place that may.

A plug-in is a module of its folder (`leadline/engines/NAME.py` with an `engine`), or an entry point of the group
`leadline.engines` for third parties.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import msgspec

from leadline import detect
from leadline.campaign import Campaign, Conduct
from leadline.clock import SystemClock
from leadline.config import CampaignSpec, Hours, Names, Secret, parse_campaign, window_allows
from leadline.deploy import Deployer, Rules
from leadline.dialect.source import contained
from leadline.errors import InputError
from leadline.evidence import Ground, Seen
from leadline.folder import Folder
from leadline.goal import Problem
from leadline.interrupts import Interrupts
from leadline.journal.file import Journal, replay
from leadline.launch import LaunchSpec
from leadline.load.loader import ProcessLoader
from leadline.load.prober import HttpProber
from leadline.measure import Endpoint, LoadRules, Measurer, cut
from leadline.ports import Clock, Engine, Host, Prober, Strategy, Target, Workload
from leadline.pose import pose
from leadline.space import Setting

DAY_MIN = 24 * 60


class Reach(msgspec.Struct, frozen=True, kw_only=True):
    """A campaign as far as it can be read without its server."""

    folder: Folder
    spec: CampaignSpec
    target: Target
    host: Host
    workloads: dict[str, Workload]


class Wired(Reach, frozen=True, kw_only=True):
    """Everything of one campaign that does not need its journal. `base` = today's launch; `trial_base` = the same on
    the private port, when there is one."""

    engine: Engine
    clock: Clock
    strategy: Strategy
    base: LaunchSpec
    trial_base: LaunchSpec
    problem: Problem
    url: str

    def endpoint(self) -> Endpoint:
        """Where requests go, secrets resolved: only what sends requests needs them."""
        service = self.spec.service
        headers = {k: self._resolve(v) if isinstance(v, Secret) else v for k, v in service.headers}
        if service.api_key is not None:
            headers["Authorization"] = f"Bearer {self._resolve(service.api_key)}"
        ca = self.spec.beside(service.ca) if service.ca else None
        return Endpoint(url=self.url, headers=headers, ca=ca, proxy=service.proxy, model=service.model)

    def _resolve(self, secret: Secret) -> str:
        return resolve(Secret("file", self.spec.beside(secret.value)) if secret.kind == "file" else secret)

    def prober(self) -> Prober:
        to = self.endpoint()
        return HttpProber(to.url, to.headers, to.ca, to.proxy, metrics_url=self.spec.service.metrics_url)

    def render(self, setting: Setting) -> LaunchSpec:
        """How a setting is launched in a trial."""
        return self.engine.render(self.trial_base, self.problem.kept.merged(setting))

    def permanent(self, setting: Setting) -> LaunchSpec:
        """How the same setting is launched for good: on the service's own port, its files beside the launch script."""
        script = Path(self.spec.beside(self.spec.service.launch_script))
        base = msgspec.structs.replace(self.base, scratch=str(script.parent))
        return self.engine.render(base, self.problem.kept.merged(setting))

    def ground(self, seen: Sequence[Seen] = ()) -> Ground:
        """What a memory law can be told of this service."""
        service = self.spec.service
        return detect.ground(
            self.engine,
            self.host,
            self.base,
            model_config=self.spec.beside(service.model_config) if service.model_config else None,
            draft_config=self.spec.beside(service.draft_config) if service.draft_config else None,
            device_bytes=None if service.device_gib is None else int(service.device_gib * 2**30),
            seen=seen,
        )

    def launches_left(self, launched: int) -> int | None:
        """What the limits still allow after so many; None = they do not say."""
        limits = [n for n in (self.spec.budget.max_launches, self.spec.window.max_restarts) if n is not None]
        return max(0, min(limits) - launched) if limits else None

    def deployer(self, interrupts: Interrupts) -> Deployer:
        safety, service = self.spec.safety, self.spec.service
        rules = Rules(
            start_stall_s=service.start_stall_s,
            ready_s=service.request_stall_s,
            deadline_s=safety.deadline_s,
            grace_s=safety.grace_s,
            min_free_memory_bytes=int(safety.min_free_memory_gib * 2**30),
        )
        return Deployer(
            engine=self.engine, target=self.target, host=self.host, prober=self.prober(), clock=self.clock, rules=rules,
            shield=interrupts.shield,
        )  # fmt: skip

    def campaign(
        self,
        journal: Journal,
        interrupts: Interrupts,
        on_load: Callable[[int, int, int], None] | None = None,
        on_wait: Callable[[float], None] = lambda seconds: None,
    ) -> Campaign:
        """The loop over an open journal. `on_load(done, of, tokens)` hears how a measurement goes on, `on_wait(s)` that
        the window is closed for so long."""
        spec, deployer = self.spec, self.deployer(interrupts)
        measurer = Measurer(
            deployer=deployer,
            loader=ProcessLoader(on_load),
            workloads=self.workloads,
            rules=_load_rules(spec),
            endpoint=self.endpoint(),
            records=self.folder.records,
            seed=self.problem.seed,
            keep_foreign=spec.traffic.foreign == "keep",
        )
        return Campaign(
            journal=journal,
            problem=self.problem,
            strategy=self.strategy,
            deployer=deployer,
            measurer=measurer,
            render=self.render,
            log_of=self.folder.log,
            inbox=self.folder.inbox.settings,
            conduct=_conduct(spec),
            shield=interrupts.shield,
            on_wait=on_wait,
        )


def reach(campaign: str) -> Reach:
    """What needs neither the server nor its files: a report, and taking a rollout back."""
    folder = Folder.of(campaign)
    spec = parse_campaign(_text_of(folder.config), str(folder.config), names())
    return Reach(
        folder=folder,
        spec=spec,
        target=_target(spec, LaunchSpec(argv=spec.service.command, env=spec.service.env)),
        host=plugin("hosts", "local", "host")(),
        workloads={w.name: _workload(spec, w.name) for w in spec.workloads},
    )


def wire(campaign: str) -> Wired:
    """Read campaign.toml and build what it names. Reads files and secrets, and asks the server's program for its
    version; starts and changes nothing."""
    reached = reach(campaign)
    folder, spec, host, workloads = reached.folder, reached.spec, reached.host, reached.workloads
    engine, base = _engine(spec, host, folder)
    port = spec.traffic.private_port
    trial_base = base if port is None else engine.move(base, port)
    problem = pose(spec, engine, trial_base)
    for cell in problem.cells():  # so are too few prompts
        cut(workloads[cell.workload], cell, problem.cells(), _load_rules(spec), problem.seed)
    return Wired(
        folder=folder,
        spec=spec,
        engine=engine,
        target=_target(spec, base),
        host=host,
        clock=SystemClock(),
        strategy=plugin("strategies", spec.budget.strategy, "strategy"),
        workloads=workloads,
        base=base,
        trial_base=trial_base,
        problem=problem,
        url=_url(spec, engine, trial_base),
    )


def _target(spec: CampaignSpec, base: LaunchSpec) -> Target:
    make = plugin("targets", spec.service.target, "target")
    target: Target = make(base, spec.beside(spec.service.launch_script), spec.safety.grace_s)
    return target


def _engine(spec: CampaignSpec, host: Host, folder: Folder) -> tuple[Engine, LaunchSpec]:
    """The dialect of the version that the launch starts, and the launch with its files."""
    service = spec.service
    engine: Engine = plugin("engines", service.engine, "engine")
    base = LaunchSpec(
        argv=service.command,
        env=service.env,
        cwd=spec.beside(service.cwd) if service.cwd else None,
        scratch=str(folder.path / "launch"),
    )
    if service.target == "command":
        refuse_container(base)
    version = service.engine_version or detect.version(engine, host, base) or _ran(folder)
    engine = engine.at(version)
    return engine, detect.with_files(engine, host, base)


def refuse_container(launch: LaunchSpec) -> None:
    """Raises InputError for a launch that the target command could start and not end."""
    if contained(launch):
        raise InputError(
            "this command starts a container, which would go on without us when we are killed: the target command can "
            "hold processes only. Give the server's own command."
        )


def _ran(folder: Folder) -> str | None:
    """The version that the campaign's last launch ran, for a machine that has the folder but not the server."""
    trials = replay(folder.journal).ledger.history().trials
    return next((t.effective.version for t in reversed(trials) if t.effective and t.effective.version), None)


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 at byte {error.start}: save it as UTF-8") from error


def plugin(kind: str, name: str, attribute: str) -> Any:
    """A plug-in by its name. Raises InputError with the names there are."""
    if name in _modules(kind):
        return getattr(importlib.import_module(f"leadline.{kind}.{name}"), attribute)
    for point in entry_points(group=f"leadline.{kind}"):
        if point.name == name:
            return point.load()
    raise InputError(f"no {kind} plug-in named {name!r}; there are {', '.join(found(kind))}")


def engine_of(argv: Sequence[str]) -> str:
    """The engine that a command line starts, by the words that start it. Raises InputError when none is recognised."""
    for name in found("engines"):
        engine: Engine = plugin("engines", name, "engine")
        text = "\n".join(argv)
        if any(re.search(rf"(?<![\w.-]){re.escape(p)}(?![\w-])", text) for p in engine.programs):
            return name
    raise InputError(f"cannot tell the engine from {argv[0]!r}; say --engine with one of {', '.join(found('engines'))}")


def found(kind: str) -> tuple[str, ...]:
    """The names of all plug-ins of a kind."""
    return tuple(sorted({*_modules(kind), *(p.name for p in entry_points(group=f"leadline.{kind}"))}))


def names() -> Names:
    """What campaign.toml may name."""
    engines = found("engines")
    knobs = {e: plugin("engines", e, "engine").knobs() for e in engines}
    return Names(
        engines=engines,
        targets=found("targets"),
        strategies=found("strategies"),
        workloads=tuple(n for n in found("workloads") if n != "file"),
        knobs={e: tuple(k.name for k in ks) for e, ks in knobs.items()},
        changes_output=tuple(sorted({k.name for ks in knobs.values() for k in ks if k.changes_output})),
    )


def _modules(kind: str) -> set[str]:
    folder = importlib.import_module(f"leadline.{kind}")
    hidden = {"supervisor", "data"}
    return {m.name for m in pkgutil.iter_modules(folder.__path__) if not m.name.startswith("_")} - hidden


def _url(spec: CampaignSpec, engine: Engine, trial_base: LaunchSpec) -> str:
    """The service's URL; with a private port always the launch's own address."""
    if spec.service.url is not None and spec.traffic.private_port is None:
        return spec.service.url.rstrip("/")
    host, port = engine.address(trial_base)
    return f"http://{'127.0.0.1' if host in ('0.0.0.0', '::') else host}:{port}"


def resolve(secret: Secret, environ: Mapping[str, str] = os.environ) -> str:
    """The secret itself. Raises InputError that names the source, never the secret."""
    if secret.kind == "env":
        if secret.value not in environ:
            raise InputError(f"the environment has no {secret.value}, which campaign.toml takes a secret from")
        return environ[secret.value]
    if secret.kind == "file":
        try:
            return Path(secret.value).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise InputError(f"cannot read the secret file {secret.value}: {error.strerror}") from error
    return _output_of(secret.argv)


def _output_of(argv: Sequence[str]) -> str:
    """What a secret's command prints. No message holds any of its output."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    except OSError as error:
        raise InputError(f"cannot run the secret's command {argv[0]}: {error.strerror}") from error
    except subprocess.TimeoutExpired:
        raise InputError(f"the secret's command {argv[0]} did not end within 60 s; run it by hand") from None
    if done.returncode != 0:
        raise InputError(f"the secret's command {argv[0]} ended with {done.returncode}; run it by hand to see why")
    return done.stdout.strip()


def _workload(spec: CampaignSpec, name: str) -> Workload:
    entry = next(w for w in spec.workloads if w.name == name)
    if entry.builtin is not None:
        built_in: Workload = plugin("workloads", entry.builtin, "workload")(entry.body, name)
        return built_in
    source = spec.beside(entry.file or "")
    try:
        lines = Path(source).read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise InputError(f"{spec.path}: workloads.{name}.file: cannot read {source}: {error.strerror}") from error
    own: Workload = plugin("workloads", "file", "FileWorkload")(name, lines, source, entry.body)
    return own


def _load_rules(spec: CampaignSpec) -> LoadRules:
    load = spec.load
    return LoadRules(
        warmup=load.warmup, requests=load.requests, per_user=load.per_user, stall_s=spec.service.request_stall_s
    )


def _conduct(spec: CampaignSpec) -> Conduct:
    window, traffic, clock = spec.window, spec.traffic, SystemClock()
    return Conduct(
        foreign=traffic.foreign,
        max_restarts=window.max_restarts,
        max_minutes_without_service=window.max_minutes_without_service,
        wait_s=lambda minutes: 60.0 * _wait_minutes(window.hours, clock.minute_of_day(), minutes),
        drain=traffic.drain,
        undrain=traffic.undrain,
    )


def _wait_minutes(hours: Sequence[Hours], now: int, needed: float) -> int:
    """Minutes until work of that length may begin. Raises InputError when no span of the hours is long enough."""
    for wait in range(DAY_MIN):
        if window_allows(hours, now + wait, needed):
            return wait
    raise InputError(
        f"one launch takes {needed:.0f} min, longer than any span of window.hours: {', '.join(map(str, hours))}"
    )
