"""The lab's guard of one unit, in virtual time: a lock, and three things that bring the original back without us."""

from __future__ import annotations

import msgspec

from leadline.evidence import ServiceState
from leadline.ports import Terms
from leadline.testing.clock import Alarm
from leadline.testing.lab import Lab, LabHeld
from leadline.testing.labunit import LabUnit

KILL_S = 10.0


class LabGuard:
    """Its state is under /run: a power cut takes it away, with the trial. `reverts` = (virtual ns, why) for each time
    that it brought the original back by itself."""

    def __init__(self, lab: Lab, unit: LabUnit) -> None:
        self.lab, self.unit = lab, unit
        self.path = f"/run/leadline/{unit.name}/owner"
        self.terms: Terms | None = None
        self.was_running = False
        self.until = ""
        self.reverts: list[tuple[int, str]] = []
        self._hooked = False
        self._returned = False
        self._held: LabHeld | None = None
        self._alarms: dict[str, Alarm] = {}
        lab.on_crash.append(self._forget)

    def holder(self) -> str:
        return f"{self.terms.owner} ({self.terms.reason}) since {self.until}" if self.terms else ""

    def arm(self, terms: Terms) -> str:
        """What is wrong; "" = armed. Again by the same campaign, its terms and deadlines begin anew."""
        if self.terms is not None and self.terms.campaign != terms.campaign:
            return f"{self.unit.name} is held by {self.holder()}; `leadline unlock` breaks that lock"
        if self.lab.disk_full:
            return f"cannot write {self.path}: No space left on device"
        first = self.terms is None
        if first:
            self.was_running = not self.unit.facts().state.at_rest
            self.until = self.lab.clock.utc()
            self._hooked = False
        self.terms = terms
        self._returned = False
        self.lab.write(self.path, msgspec.json.encode(terms), 0o600)
        self._at("end", terms.end_s)
        self._at("lease", terms.lease_s)
        if first and terms.start:
            self.lab.execute(terms.start)
        return ""

    def hold(self) -> LabHeld:
        """A held connection. Its end begins the grace, another one within that calls it off."""
        self._call_off("grace")
        held = LabHeld(lambda: self._let_go(held))
        self._held = held
        return held

    def _let_go(self, held: LabHeld) -> None:
        if held is self._held:
            self._held = None
            if self.terms is not None:
                self._at("grace", self.terms.grace_s)

    def renew(self) -> bool:
        if self.terms is not None:
            self._at("lease", self.terms.lease_s)
        return self.terms is not None

    def back(self) -> None:
        """Once: a second time there is nothing left to do."""
        unit = self.unit
        state = unit.facts().state
        running = state in (ServiceState.RUNNING, ServiceState.STARTING)
        trial = self.lab.files.pop(unit.trial_path, None)
        unit.reload()
        unit.reset_failed()
        due = trial is not None or (self.terms is not None and not self._returned and running != self.was_running)
        self._returned = True
        if not due:
            return
        if self.was_running or self.terms is None:
            unit.restart()
        else:
            unit.stop()
        if unit.facts().state is ServiceState.STOPPING:
            self._alarms["kill"] = self.lab.clock.after(KILL_S, self._kill)

    def _kill(self) -> None:
        if self.unit.facts().state is ServiceState.STOPPING:
            self.unit.kill()

    def hook(self) -> None:
        """The end hooks, once."""
        if self.terms is not None and self.terms.end and not self._hooked:
            self._hooked = True
            self.lab.execute(self.terms.end)
        self._hooked = True

    def disarm(self) -> None:
        """The lock is let go of; a trial of a hung server is killed all the same."""
        for name in [n for n in self._alarms if n != "kill"]:
            self._call_off(name)
        self.terms = None
        self.lab.files.pop(self.path, None)

    def _revert(self, why: str) -> None:
        self.reverts.append((self.lab.clock.now_ns(), why))
        self.back()
        self.hook()
        self.disarm()

    def _at(self, name: str, s: float) -> None:
        self._call_off(name)
        self._alarms[name] = self.lab.clock.after(s, lambda: self._revert(name))

    def _call_off(self, name: str) -> None:
        alarm = self._alarms.pop(name, None)
        if alarm is not None:
            alarm.cancel()

    def _forget(self) -> None:
        for name in list(self._alarms):
            self._call_off(name)
        self.terms, self._held = None, None
