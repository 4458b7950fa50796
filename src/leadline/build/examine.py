"""Looks at a service's host for `doctor`: asks, and changes nothing. `leadline.doctor` says what the answers mean."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Sequence

import msgspec

from leadline import doctor, sudoers
from leadline.build.live import look_at
from leadline.build.place import host_of, make_host, make_target, target_of
from leadline.build.recorder import SUDO, as_root, asked_of
from leadline.build.wiring import reach
from leadline.doctor import Check, Machine, State
from leadline.errors import HostError, InputError, LeadlineError
from leadline.evidence import ServiceState
from leadline.launch import LaunchSpec, Step, masked
from leadline.load.prober import HttpProber
from leadline.ports import Host, Observed, Service, Site, Target
from leadline.steps import command, observe

TIMES = 3


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A service and its host. `make(sudo)` = its target with or without sudo; `engine`, `url` = "": to be found out."""

    what: str
    host: Host
    sudo: bool
    make: Callable[[bool], Target]
    engine: str = ""
    url: str = ""


def place_of_unit(unit: str, host: str, ssh_config: str, *, sudo: bool) -> Place:
    """Raises InputError for what names no unit or no host."""
    return Place(
        what=unit,
        host=make_host(host, ssh_config),
        sudo=sudo,
        make=lambda sudo: make_target("systemd", Site(unit=unit, sudo=sudo)),
    )


def place_of_campaign(campaign: str) -> Place:
    """Raises InputError for a campaign that has no service of another's."""
    reached = reach(campaign)
    spec = reached.spec
    if reached.target.service is None:
        raise InputError(
            f"target {reached.target.name} starts a server of its own here and needs nothing of a host; "
            f"`leadline plan {campaign}` says what is in its way"
        )

    def make(sudo: bool) -> Target:
        service = msgspec.structs.replace(spec.service, sudo=sudo)
        base = LaunchSpec(argv=service.command, scratch=str(reached.folder.path / "launch"))
        return target_of(msgspec.structs.replace(spec, service=service), base)

    return Place(
        what=spec.service.unit or spec.service.compose_service or spec.service.target,
        host=host_of(spec),
        sudo=spec.service.sudo,
        make=make,
        engine=spec.service.engine,
        url=(spec.service.url or "").rstrip("/"),
    )


def examine(place: Place) -> Iterator[Check]:
    """One check after the other; what depends on one that failed is left out."""
    try:
        before = time.time()
        found = doctor.machine(place.host.run(("sh", "-c", doctor.SCRIPT), timeout_s=doctor.LIMIT_S))
        after = time.time()
        took = [_timed(place.host) for _ in range(TIMES)]
    except LeadlineError as error:
        yield Check(name="host", state=State.MISSING, text=str(error))
        return
    yield doctor.reached(place.host.name, took, found.user)
    yield doctor.user(found, sudo=place.sudo)
    target = place.make(place.sudo)
    observed, said = _observed(place, target)
    steps, trial = _steps(target, observed or _glimpsed(place))
    needed = sorted({t for step in steps for t in doctor.tools_of(asked_of(step))})
    if "systemctl" in needed:
        yield doctor.systemd(found)
    yield doctor.tools(_programs(place.host, needed), needed)
    if place.sudo and found.uid != 0:
        yield _sudo(place.host, steps)
    yield said
    if trial is not None:
        yield trial
    yield from _service(place, target, found)
    if observed is not None:
        yield _answers(place, target)
    yield _device(place.host)
    yield doctor.room(found)
    yield doctor.clock(found, before, after, time.strftime("%z"))


def _timed(host: Host) -> float:
    begin = time.monotonic()
    host.run(("true",))
    return time.monotonic() - begin


def _programs(host: Host, names: Sequence[str]) -> dict[str, str]:
    return doctor.programs(host.run(("sh", "-c", doctor.WHICH, "sh", *names), timeout_s=doctor.LIMIT_S))


def _observed(place: Place, target: Target) -> tuple[Observed | None, Check]:
    try:
        observed = observe(target, place.host)
    except LeadlineError as error:
        return None, Check(name="service", state=State.MISSING, text=str(error))
    state = "running" if observed.running else "not running, and will be given back so"
    text = f"{place.what}, {state}: {masked(observed.launch)}"
    return observed, Check(name="service", state=State.OK, text=text)


def _glimpsed(place: Place) -> Observed | None:
    """As far as it can be seen without sudo."""
    return _observed(place, place.make(False))[0] if place.sudo else None


def _steps(target: Target, observed: Observed | None) -> tuple[list[Step], Check | None]:
    """All Steps of a campaign, as far as they can be made, and why no further."""
    steps: list[Step] = []
    try:
        steps.extend(step for _, step in sudoers.steps(target, observed, sudoers.samples()[0]))
    except InputError as error:
        return steps, Check(name="trial", state=State.MISSING, text=str(error))
    return steps, None


def _sudo(host: Host, steps: Sequence[Step]) -> Check:
    """Asks sudo about each command, and executes none."""
    commands = list(dict.fromkeys(argv for step in steps for argv in as_root(step)))
    ask = shlex.join((*SUDO, "-l"))
    lines = (f"{ask} {shlex.join(argv)} >/dev/null 2>&1 && echo yes || echo no\n" for argv in commands)
    told = host.run(("sh", "-s"), stdin="".join((*lines, f"{ask} 2>/dev/null\n")).encode(), timeout_s=doctor.LIMIT_S)
    answers = told.stdout.decode(errors="replace").split("\n", len(commands))
    refused = [argv for i, argv in enumerate(commands) if answers[i : i + 1] != ["yes"]]
    return doctor.sudo(refused, len(commands), answers[-1])


def _service(place: Place, target: Target, found: Machine) -> Iterator[Check]:
    """Its state, who holds it, and what is left over."""
    service = _service_of(target)
    try:
        facts = service.facts(command(place.host, service.look()))
        holder = command(place.host, service.unlock()[0]).stdout.decode(errors="replace")
    except LeadlineError as error:
        yield Check(name="state", state=State.MISSING, text=str(error))
        return
    bad = facts.state is ServiceState.FAILED or facts.restarts > 0
    text = f"{facts.state}, restarts by itself: {facts.restarts}, processes: {len(facts.pids)}"
    yield Check(name="state", state=State.WARNING if bad else State.OK, text=text)
    held = ", ".join(holder.split("\n")).strip(", ")
    if held:
        remedy = "let it end; `leadline unlock` is for one that is gone"
        yield Check(name="held by", state=State.WARNING, text=held, remedy=remedy)
    else:
        yield Check(name="held by", state=State.OK, text="nobody")
    yield doctor.leftovers(found, held=bool(held))


def _service_of(target: Target) -> Service:
    if target.service is None:
        raise InputError(f"target {target.name} has no service of another's")
    return target.service


def _answers(place: Place, target: Target) -> Check:
    """Whether the URL answers, and who listens there."""
    try:
        live = look_at(target, place.host, engine=place.engine)
        url = place.url or live.url
        health = next(p for p in live.engine.probes() if p.name == "health")
        reply = HttpProber(url).fetch(health)
        name, port = live.engine.address(live.base)
        listener = place.host.listener(name, port)
        service = _service_of(target)
        facts = service.facts(command(place.host, service.look()))
    except LeadlineError as error:
        return Check(
            name="url", state=State.WARNING, text=str(error), remedy="it matters once a trial is to be measured"
        )
    return doctor.answers(url, reply, port, listener, facts)


def _device(host: Host) -> Check:
    try:
        return doctor.device(host.device_used_bytes(), host.identity())
    except LeadlineError as error:
        return Check(name="device", state=State.WARNING, text=str(error))


def sudo_rules(place: Place) -> tuple[str, list[dict[str, str]]]:
    """The file for sudoers.d, and its rules as values. Looks without sudo where that will do.

    Raises InputError when the service cannot be read or tried, HostError when its host cannot be asked.
    """
    host, target = place.host, place.make(True)
    found = doctor.machine(host.run(("sh", "-c", doctor.SCRIPT), timeout_s=doctor.LIMIT_S))
    observed = _readable(place)
    phases = [list(sudoers.steps(target, observed, sample)) for sample in sudoers.samples()]
    rules = sudoers.rules(
        [[*phase, (sudoers.LOOK, log)] for phase, log in zip(phases, _logs(place), strict=True)], as_root
    )
    paths = _programs(host, sorted({rule.program for rule in rules}))
    user = found.user if found.uid else sudoers.SOMEBODY
    text = sudoers.document(rules, paths, user=user, what=place.what, where=host.name)
    told = [{"purpose": r.purpose, "command": r.command(paths[r.program]), "note": r.note} for r in rules]
    return text, told


def _readable(place: Place) -> Observed:
    try:
        return observe(place.make(False), place.host)
    except LeadlineError as error:
        try:
            return observe(place.make(True), place.host)
        except HostError:
            raise InputError(
                f"{error} (the rules are made from the service's own files: log in as root for once)"
            ) from None


def _logs(place: Place) -> tuple[Step, Step]:
    """The first question for the log, and the next."""
    plain, service = _service_of(place.make(False)), _service_of(place.make(True))
    _, cursor = plain.logged(command(place.host, plain.log("")))
    return service.log(""), service.log(cursor)
