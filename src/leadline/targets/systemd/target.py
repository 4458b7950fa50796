"""ports.Target of a systemd unit."""

from __future__ import annotations

from collections.abc import Sequence

from leadline.errors import RefusedError
from leadline.evidence import ServiceFacts
from leadline.launch import LaunchSpec, Run, Step
from leadline.ports import Completed, Guard, Observed, Service, Site, Terms
from leadline.targets.systemd import guard, log, look, patch, plan, rollout
from leadline.targets.systemd.confirm import confirm
from leadline.targets.systemd.definition import observed_of
from leadline.targets.systemd.frames import read
from leadline.targets.systemd.place import Place, place_of


class SystemdTarget:
    """ports.Target for one service unit. Its own files are never written; what only root may do goes through sudo when
    the site says so."""

    name = "systemd"
    guarantee = (
        "disconnect and deadline revert: the unit's own host puts the original back when our connection ends, when we "
        "give no sign of life, and at the latest when the time is over; a boot starts the original"
    )

    def __init__(self, site: Site) -> None:
        """Raises InputError for what is not one service unit."""
        self._place = place_of(site)
        self._service = SystemdService(self._place)

    @property
    def service(self) -> Service | None:
        return self._service

    def observe(self) -> Sequence[Run]:
        return (self._place.run("observe", self._place.bus_path, of=("observe",)),)

    def interpret(self, completed: Sequence[Completed]) -> Observed:
        """Raises HostError when the host has no systemd, too."""
        return observed_of(self._place, read(self._place, completed[-1]))

    def plan(self, launch: LaunchSpec, observed: Observed, log: str) -> Sequence[Step]:
        return plan.plan(self._place, launch, observed)

    def confirm(self, launch: LaunchSpec, answers: Sequence[Completed]) -> None:
        confirm(self._place, launch, answers)

    def restore(self, observed: Observed) -> Sequence[Step]:
        return (guard.back(self._place),)

    def rollout(self, launch: LaunchSpec, observed: Observed, present: str, note: str) -> Sequence[Step]:
        """Raises RefusedError while a trial is in force."""
        if observed.held:
            raise RefusedError(
                f"a trial is in force on {self._place.unit} ({observed.holder or 'no guard'}): give it back first"
            )
        return rollout.rollout(self._place, launch, observed, present, note)

    def rollout_path(self) -> str:
        return self._place.accepted

    def undo(self, observed: Observed, written: str, previous: str) -> Sequence[Step]:
        return rollout.undo(self._place, observed, written, previous)

    def patch(self, launch: LaunchSpec, observed: Observed) -> str:
        return patch.patch(self._place, launch, observed)


class SystemdService:
    """ports.Service of the same unit."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def look(self) -> Run:
        return self._place.run("look", of=("look",), timeout_s=30)

    def facts(self, completed: Completed) -> ServiceFacts:
        return look.facts(self._place, completed)

    def log(self, cursor: str) -> Run:
        return log.log(self._place, cursor)

    def logged(self, completed: Completed) -> tuple[str, str]:
        return log.logged(self._place, completed)

    def guard(self, terms: Terms) -> Guard | None:
        return guard.guard(self._place, terms)

    def unlock(self) -> Sequence[Run]:
        return guard.unlock(self._place)


target = SystemdTarget
