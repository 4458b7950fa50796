"""The composition root: wires a campaign's folder into objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from leadline import detect
from leadline.build.place import DAY_MIN, host_of, refuse_container, target_of, terms_of
from leadline.build.plugins import names, plugin
from leadline.build.secrets import resolve
from leadline.campaign import Campaign, Conduct
from leadline.clock import SystemClock
from leadline.config import CampaignSpec, Hours, Secret, parse_campaign, window_allows
from leadline.deploy import Deployer, Rules
from leadline.errors import InputError, RefusedError
from leadline.evidence import Ground, Seen
from leadline.folder import Folder
from leadline.goal import Problem
from leadline.interrupts import Interrupts
from leadline.journal.file import Journal, replay
from leadline.launch import LaunchSpec, Step
from leadline.load.loader import ProcessLoader
from leadline.load.prober import HttpProber
from leadline.measure import Endpoint, LoadRules, Measurer, cut
from leadline.patient import PatientHost
from leadline.ports import Clock, Engine, Guard, Host, Observed, Prober, Strategy, Target, Workload
from leadline.pose import pose
from leadline.service import Custody
from leadline.space import Setting
from leadline.stay import Stay
from leadline.steps import observe


class Reach(msgspec.Struct, frozen=True, kw_only=True):
    """A campaign as far as it can be read without its server."""

    folder: Folder
    spec: CampaignSpec
    target: Target
    host: Host
    workloads: dict[str, Workload]

    def headers(self) -> dict[str, str]:
        """What every request carries, secrets resolved: only what sends requests needs them."""
        service = self.spec.service
        headers = {k: self._resolve(v) if isinstance(v, Secret) else v for k, v in service.headers}
        if service.api_key is not None:
            headers["Authorization"] = f"Bearer {self._resolve(service.api_key)}"
        return headers

    def _resolve(self, secret: Secret) -> str:
        return resolve(Secret("file", self.spec.beside(secret.value)) if secret.kind == "file" else secret)


class Wired(Reach, frozen=True, kw_only=True):
    """Everything of one campaign that does not need its journal. `base` = today's launch; `trial_base` = the same on
    the private port, when there is one; `url` = where trials answer, `home_url` = where users are served; `observed` =
    the live service, of a target that has one."""

    engine: Engine
    clock: Clock
    strategy: Strategy
    base: LaunchSpec
    trial_base: LaunchSpec
    problem: Problem
    url: str
    home_url: str
    observed: Observed | None = None

    def endpoint(self, url: str = "") -> Endpoint:
        """Where requests go, secrets resolved: only what sends requests needs them. `url` = "" means to trials."""
        service = self.spec.service
        ca = self.spec.beside(service.ca) if service.ca else None
        return Endpoint(url=url or self.url, headers=self.headers(), ca=ca, proxy=service.proxy, model=service.model)

    def prober(self, url: str = "") -> Prober:
        to = self.endpoint(url)
        return HttpProber(to.url, to.headers, to.ca, to.proxy, metrics_url=self.spec.service.metrics_url)

    def render(self, setting: Setting) -> LaunchSpec:
        """How a setting is launched in a trial."""
        return self.engine.render(self.trial_base, self.problem.kept.merged(setting))

    def permanent(self, setting: Setting) -> LaunchSpec:
        """How the same setting is launched for good: on the service's own port, its files beside the launch script."""
        if self.observed is not None:
            return self.engine.render(self.base, self.problem.kept.merged(setting))
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
            device_settle_s=safety.device_settle_s,
            away_s=safety.disconnect_grace_s,
        )
        return Deployer(
            engine=self.engine,
            target=self.target,
            host=PatientHost(self.host, self.clock, rules.away_s) if self.observed is not None else self.host,
            prober=self.prober(),
            clock=self.clock,
            rules=rules,
            shield=interrupts.shield,
            custody=self._custody(interrupts) if self.target.service is not None else None,
            home=self.prober(self.home_url),
            keep_log=_append,
        )

    def guard(self) -> Guard | None:
        """Of a stay that begins now; None for a server of our own, and where the target has none."""
        if self.target.service is None:
            return None
        ledger = replay(self.folder.journal).ledger
        port = self.engine.address(self.base)[1]
        terms = terms_of(self.spec, str(self.folder.path), port, SystemClock().minute_of_day, ledger.longest_load_s())
        return None if self.spec.safety.unguarded else self.target.service.guard(terms)

    def refuse_unguarded(self) -> None:
        """Raises RefusedError for a service that nothing would bring back without us, unless the operator wants it."""
        if self.target.service is not None and self.guard() is None and not self.spec.safety.unguarded:
            raise RefusedError(
                f"target {self.target.name} leaves nothing on the host that brings the original back when we are "
                f"killed or cut off ({self.target.guarantee}). Say safety.unguarded = true if you do without."
            )

    def steps(self, launch: LaunchSpec) -> Sequence[Step]:
        """What a launch of a service would do; of a server of our own the launch itself says it all."""
        if self.observed is None:
            return ()
        return self.target.plan(launch, self.observed, self.folder.log(0, 1))

    def guarding(self) -> Sequence[Step]:
        guard = self.guard()
        return () if guard is None else (*guard.arm, guard.hold)

    def way_back(self) -> Sequence[Step]:
        guard = self.guard()
        if self.observed is None:
            return ()
        return self.target.restore(self.observed) if guard is None else (guard.back, guard.hook, *guard.disarm)

    def _custody(self, interrupts: Interrupts) -> Custody:
        return Custody(
            host=self.host,
            target=self.target,
            guard=self.guard,
            clock=self.clock,
            lease_s=self.spec.safety.lease_s,
            away_s=self.spec.safety.disconnect_grace_s,
            shield=interrupts.shield,
        )

    def at_home(self, interrupts: Interrupts) -> Deployer:
        """For the service as its users reach it."""
        deployer = self.deployer(interrupts)
        return msgspec.structs.replace(deployer, prober=deployer.home or deployer.prober)

    def measurer(
        self, deployer: Deployer, url: str = "", on_load: Callable[[int, int, int], None] | None = None
    ) -> Measurer:
        return Measurer(
            deployer=deployer,
            loader=ProcessLoader(on_load),
            workloads=self.workloads,
            rules=_load_rules(self.spec),
            endpoint=self.endpoint(url),
            records=self.folder.records,
            seed=self.problem.seed,
            keep_foreign=self.spec.traffic.foreign == "keep",
        )

    def campaign(
        self,
        journal: Journal,
        interrupts: Interrupts,
        on_load: Callable[[int, int, int], None] | None = None,
        on_wait: Callable[[float], None] = lambda seconds: None,
    ) -> Campaign:
        """The loop over an open journal. `on_load(done, of, tokens)` hears how a measurement goes on, `on_wait(s)` that
        the window is closed for so long."""
        spec, deployer, conduct = self.spec, self.deployer(interrupts), _conduct(self.spec)
        stay = Stay(
            journal=journal,
            deployer=deployer,
            log_of=self.folder.log,
            shield=interrupts.shield,
            public=deployer.stays and spec.traffic.private_port is None,
            drain=conduct.drain,
            undrain=conduct.undrain,
            hooks_by_guard=deployer.stays and self.guard() is not None,
        )
        return Campaign(
            journal=journal,
            problem=self.problem,
            strategy=self.strategy,
            deployer=deployer,
            measurer=self.measurer(deployer, on_load=on_load),
            stay=stay,
            render=self.render,
            inbox=self.folder.inbox.settings,
            conduct=conduct,
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
        target=target_of(spec, _written(spec, folder)),
        host=host_of(spec),
        workloads={w.name: _workload(spec, w.name) for w in spec.workloads},
    )


def wire(campaign: str) -> Wired:
    """Read campaign.toml and build what it names. Reads files and secrets, looks at the live service, and asks the
    server's program for its version; starts and changes nothing."""
    reached = reach(campaign)
    folder, spec, host, workloads = reached.folder, reached.spec, reached.host, reached.workloads
    written, observed = _written(spec, folder), None
    if reached.target.service is not None:
        observed = observe(reached.target, host)
        written = msgspec.structs.replace(observed.launch, scratch=observed.launch.scratch or written.scratch)
    engine, base = _engine(spec, host, folder, written)
    port = spec.traffic.private_port
    trial_base = base if port is None else engine.move(base, port)
    problem = pose(spec, engine, trial_base)
    for cell in problem.cells():  # so are too few prompts
        cut(workloads[cell.workload], cell, problem.cells(), _load_rules(spec), problem.seed)
    url = _url(spec, host, engine, trial_base)
    return Wired(
        folder=folder,
        spec=spec,
        engine=engine,
        target=target_of(spec, base),
        host=host,
        clock=SystemClock(),
        strategy=plugin("strategies", spec.budget.strategy, "strategy"),
        workloads=workloads,
        base=base,
        trial_base=trial_base,
        problem=problem,
        url=url,
        home_url=url if port is None else _url(spec, host, engine, base),
        observed=observed,
    )


def _written(spec: CampaignSpec, folder: Folder) -> LaunchSpec:
    """The launch as campaign.toml has it; without words when the live service has it."""
    service = spec.service
    return LaunchSpec(
        argv=service.command,
        env=service.env,
        cwd=spec.beside(service.cwd) if service.cwd else None,
        scratch=str(folder.path / "launch"),
    )


def _engine(spec: CampaignSpec, host: Host, folder: Folder, base: LaunchSpec) -> tuple[Engine, LaunchSpec]:
    """The dialect of the version that the launch starts, and the launch with its files."""
    service = spec.service
    engine: Engine = plugin("engines", service.engine, "engine")
    if service.target == "command":
        refuse_container(base)
    version = service.engine_version or detect.version(engine, host, base) or _ran(folder)
    engine = engine.at(version)
    return engine, detect.with_files(engine, host, base)


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


def _url(spec: CampaignSpec, host: Host, engine: Engine, launch: LaunchSpec) -> str:
    """The service's URL; with a private port always the launch's own address, as it is reached from here."""
    if spec.service.url is not None and spec.traffic.private_port is None:
        return spec.service.url.rstrip("/")
    name, port = engine.address(launch)
    near, at = host.forward("127.0.0.1" if name in ("0.0.0.0", "::") else name, port)
    return f"http://{near}:{at}"


def _append(path: str, text: str) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(text)


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
