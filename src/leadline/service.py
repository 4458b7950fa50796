"""A supervisor's service in our hands: the guard that brings it back without us, and the server that runs in it.

Whoever looks at the server keeps the guard alive by that: there is no thread and no timer of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from leadline.errors import HostError, HostLost, NotGivenBackError
from leadline.evidence import Diagnosis, ExitFacts, Failure, ProcessFacts, ServiceFacts, ServiceState
from leadline.ports import Clock, Guard, Held, Host, Observed, Service, Target
from leadline.steps import AGAIN_S, POLL_S, carry_out, command, execute, insist
from leadline.supervision import ended, verdict

LOOK_S = 0.5
BEGIN_S = 60.0
DEVICE_SLACK_BYTES = 512 << 20


class Custody:
    """Our hold on one service, from the first launch to the give-back. For one thread.

    `guard` makes one for a stay that begins now; None = the operator does without. `away_s` = how long the host may be
    out of reach before we give up on it; `lease_s` = how long the guard waits for a sign of life.
    """

    def __init__(
        self,
        *,
        host: Host,
        target: Target,
        guard: Callable[[], Guard | None],
        clock: Clock,
        lease_s: float,
        away_s: float,
        shield: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._host, self._target, self._clock, self._shield = host, target, clock, shield
        self._make = guard
        self._guard: Guard | None = None
        self._lease_ns, self._away_ns = int(lease_s * 1e9), int(away_s * 1e9)
        self._held: Held | None = None
        self._renewed_ns = 0
        self._idle_bytes: tuple[int, ...] | None = None
        self.taken = False
        self.broken = ""  # why the guard cannot be held, though it should

    def take(self) -> None:
        """Lock the service and leave the way back on its host. Nothing of the service is changed by that."""
        if self.taken:
            return
        self._guard, self.broken = self._make(), ""
        if self._guard is not None:
            for step in self._guard.arm:
                with self._shield():
                    execute(self._host, step)
            self._renewed_ns = self._clock.now_ns()
            self._hold(self._guard)
        self.taken = True

    def keep(self) -> None:
        """A sign of life. Raises HostLost while there is no connection; one that is back calls the grace off."""
        if self._guard is None or not self.taken:
            return
        if self._held is not None and not self._held.alive():
            self._held = None
        if self._held is None and not self.broken:
            self._hold(self._guard)
        now = self._clock.now_ns()
        if now - self._renewed_ns > self._lease_ns / 4:
            command(self._host, self._guard.renew)
            self._renewed_ns = now

    def assured(self) -> None:
        """Raises HostError unless the guard stands: nothing is changed without it."""
        self.keep()
        if self.broken:
            raise HostError(f"the guard on the service's host cannot be held: {self.broken}")

    def _hold(self, guard: Guard) -> None:
        argv = ("sudo", "-n", *guard.hold.argv) if guard.hold.sudo else guard.hold.argv
        try:
            self._held = self._host.hold(argv, timeout_s=guard.hold.timeout_s)
        except HostLost:
            raise
        except HostError as error:
            self.broken = str(error)

    def back(self, observed: Observed) -> None:
        """Execute the way back; the service restarts or stops by that, nobody waits for it here.

        Raises NotGivenBackError when it fails or its host stays out of reach.
        """
        self._guard = self._guard or self._make()
        self.taken = False  # from here on no sign of life is due
        self._insist(lambda: self._back(observed))

    def _back(self, observed: Observed) -> None:
        if self._guard is not None:
            execute(self._host, self._guard.back)
        else:
            carry_out(
                self._target.restore(observed),
                host=self._host,
                target=self._target,
                clock=self._clock,
                launch=observed.launch,
                shield=self._shield,
            )

    def look(self, service: Service) -> ServiceFacts:
        """The service now. Raises NotGivenBackError when its host stays out of reach."""
        found: list[ServiceFacts] = []
        self._insist(lambda: found.append(service.facts(command(self._host, service.look()))))
        return found[0]

    def forget(self) -> None:
        """The service is back: the end hooks, once; then nothing of ours is left on the host."""
        if self._guard is not None:
            self._insist(partial(execute, self._host, self._guard.hook))
            self._let_go()
            for step in self._guard.disarm:
                self._insist(partial(execute, self._host, step))
        self._let_go()
        self._guard = None

    def _let_go(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.end()

    def _insist(self, action: Callable[[], object]) -> None:
        """Again while the host is out of reach."""
        try:
            insist(action, clock=self._clock, away_s=self._away_ns / 1e9)
        except HostLost as error:
            raise NotGivenBackError(
                f"the service's host cannot be reached: {error}. {self._target.guarantee}. Look at the service."
            ) from error
        except HostError as error:
            raise NotGivenBackError(f"the way back failed: {error}. Look at the service now.") from error

    def settled(self, limit_s: float) -> Diagnosis | None:
        """Wait, the service stopped, until the device's memory is at the level first seen so. None = it is.

        Other tenants may use the same device: then somebody must look.
        """
        idle, until = self._idle_bytes, self._clock.now_ns() + limit_s * 1e9
        while True:
            used = self._host.device_used_bytes()
            if used is None:
                return None
            if idle is None or len(idle) != len(used):
                self._idle_bytes = used
                return None
            over = max(now - then for now, then in zip(used, idle, strict=True))
            if over <= DEVICE_SLACK_BYTES:
                return None
            if self._clock.now_ns() > until:
                return _occupied(over, limit_s)
            self.keep()
            self._clock.sleep(LOOK_S)


class ServiceSession:
    """ports.Session on a service: what its supervisor says, at most `LOOK_S` old.

    While its host is out of reach, for at most `away_s`, it is what it was; `blips` counts that. `keep_log` gets the
    lines of its log as they come. `before` = the service before the start that this session is of: the supervisor may
    take a moment to begin it.
    """

    def __init__(
        self,
        *,
        service: Service,
        host: Host,
        clock: Clock,
        custody: Custody,
        away_s: float,
        keep_log: Callable[[str], None] = lambda text: None,
        before: ServiceFacts | None = None,
    ) -> None:
        self._service, self._host, self._clock, self._custody = service, host, clock, custody
        self._away_ns, self._keep_log = int(away_s * 1e9), keep_log
        self._facts: ServiceFacts | None = None
        self._looked_ns = self._logged_ns = 0
        self._lost_ns: int | None = None
        self._blips = 0
        self._text, self._cursor = "", ""
        self._first = self._begun(before)

    def _begun(self, before: ServiceFacts | None) -> ServiceFacts:
        """The service once it is another than before."""
        until = self._clock.now_ns() + BEGIN_S * 1e9
        while True:
            facts = self.facts()
            old = before is not None and facts.incarnation == before.incarnation != ""
            stopping = before is not None and facts.state is ServiceState.STOPPING
            if not (old or stopping) or self._clock.now_ns() > until:
                return facts
            self._clock.sleep(POLL_S)
            self._facts = None

    def facts(self) -> ServiceFacts:
        """Raises HostLost when the host stays out of reach."""
        while self._facts is None or self._clock.now_ns() - self._looked_ns > LOOK_S * 1e9:
            reached = self._reach(self._look)
            self._looked_ns = self._clock.now_ns()
            if reached or self._facts is not None:
                break
            self._clock.sleep(AGAIN_S)
        assert self._facts is not None
        return self._facts

    def _look(self) -> None:
        self._custody.keep()
        self._facts = self._service.facts(command(self._host, self._service.look()))

    def _reach(self, action: Callable[[], None]) -> bool:
        """Whether the host answered. Raises HostLost after `away_s` without."""
        try:
            action()
        except HostLost:
            now = self._clock.now_ns()
            if self._lost_ns is None:
                self._lost_ns, self._blips = now, self._blips + 1
            if now - self._lost_ns > self._away_ns:
                raise
            return False
        self._lost_ns = None
        return True

    def process(self) -> ProcessFacts | None:
        return None if self.exit() is not None else self.facts().process

    def exit(self) -> ExitFacts | None:
        """Also of a server that its supervisor has started again since: ours has ended."""
        facts = self.facts()
        if facts.state.at_rest or self._another(facts):
            return ended(facts) or ExitFacts()
        return None

    def _another(self, facts: ServiceFacts) -> bool:
        return bool(
            facts.restarts > self._first.restarts
            or (self._first.incarnation and facts.incarnation and facts.incarnation != self._first.incarnation)
        )

    def owns(self, pid: int) -> bool:
        pids = self.facts().pids
        return not pids or pid in pids

    def log(self) -> str:
        if self._clock.now_ns() - self._logged_ns > LOOK_S * 1e9:
            self._reach(self._read_log)
            self._logged_ns = self._clock.now_ns()
        return self._text

    def _read_log(self) -> None:
        lines, self._cursor = self._service.logged(command(self._host, self._service.log(self._cursor)))
        self._text += lines
        self._keep_log(lines)

    def doubt(self) -> Diagnosis | None:
        """What somebody else did comes first."""
        facts = self.facts()
        if facts.trial != self._first.trial:
            return _taken_back() if facts.trial == "absent" else _changed(("the trial's own file",))
        changed = [p for p, seen in self._first.files.items() if facts.files.get(p, "absent") != seen]
        if changed or set(facts.files) - set(self._first.files):
            return _changed(changed or sorted(set(facts.files) - set(self._first.files)))
        if self.exit() is not None:
            return verdict(facts) or (_restarted(facts) if self._another(facts) else None)
        if self._custody.broken:
            return Diagnosis(
                failure=Failure.ENVIRONMENT,
                reason=f"the guard on the service's host cannot be held: {self._custody.broken}",
                remedy="see to it on that host; the service goes back to its original meanwhile",
            )
        return None

    def blips(self) -> int:
        return self._blips

    def end(self, grace_s: float) -> ExitFacts:
        """The target's way back ends it, not we."""
        return ExitFacts(asked=True)


def changed(then: dict[str, str], now: dict[str, str]) -> Diagnosis | None:
    """Whether a file of the service's definition is another than before."""
    paths = [path for path in sorted({*then, *now}) if then.get(path, "absent") != now.get(path, "absent")]
    return _changed(paths) if paths else None


def _changed(paths: Sequence[str]) -> Diagnosis:
    return Diagnosis(
        failure=Failure.CHANGED,
        reason=f"somebody else changed the service meanwhile: {', '.join(paths)}",
        remedy="nothing of theirs was overwritten; look at it, then go on with `leadline run`, or in a new folder",
    )


def _taken_back() -> Diagnosis:
    return Diagnosis(
        failure=Failure.TAKEN_BACK,
        reason="the guard on the service's host has put the original back, as we gave no sign of life in time",
        remedy="see what held us up (a frozen process, a dead connection), then `leadline run` goes on",
    )


def _restarted(facts: ServiceFacts) -> Diagnosis:
    return Diagnosis(
        failure=Failure.RESTARTED,
        reason="the server was restarted by its supervisor or by somebody else",
        line=facts.lines[-1] if facts.lines else "",
        remedy="find what restarts it; nothing measured over a restart counts",
    )


def _occupied(over_bytes: int, limit_s: float) -> Diagnosis:
    return Diagnosis(
        failure=Failure.DEVICE_BUSY,
        reason=f"{limit_s:g} s after the service stopped, its accelerator still holds {over_bytes / 2**30:.1f} GiB "
        f"more than when it was first stopped",
        remedy="look with nvidia-smi for who uses it: a process left over, or another tenant; then run again",
    )
