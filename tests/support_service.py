"""Whole campaigns on a service of the lab's supervisor, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import msgspec
from support_sim import BASE, PORT, Sim

from leadline.campaign import Campaign
from leadline.deploy import Deployer
from leadline.journal.events import AnyEvent
from leadline.journal.file import Journal
from leadline.patient import PatientHost
from leadline.ports import Site, Terms
from leadline.service import Custody
from leadline.testing.lab import Lab, completed
from leadline.testing.labservice import LabService, LabServiceTarget

Shield = Callable[[], AbstractContextManager[object]]
UNIT = "llm.service"
URL = f"http://127.0.0.1:{PORT}"
DRAIN, UNDRAIN = ("router", "drain"), ("router", "undrain")
TERMS = Terms(
    owner="anna@desk", reason="campaign sim", campaign="desk:/sim", grace_s=120.0, lease_s=600.0, end_s=86400.0,
    start=DRAIN, end=UNDRAIN, port=PORT,
)  # fmt: skip


def service(lab: Lab, **options) -> LabService:
    """The service of support_sim's campaigns, with a router beside it."""
    lab.commands["router"] = lambda argv: completed(argv, 0)
    return LabService(lab, UNIT, BASE, **options)


class Killed(BaseException):
    """SIGKILL: nothing is done in order any more."""


def deployer(sim: Sim, terms: Terms = TERMS, *, away_s: float = 120.0, shield: Shield = nullcontext) -> Deployer:
    """On the lab's service, one that begins a custody of its own."""
    target = LabServiceTarget(Site(unit=UNIT))
    custody = Custody(
        host=sim.lab.host,
        target=target,
        guard=lambda: target.guard(terms),
        clock=sim.lab.clock,
        lease_s=terms.lease_s,
        away_s=away_s,
        shield=shield,
    )
    return Deployer(
        engine=sim.engine,
        target=target,
        host=PatientHost(sim.lab.host, sim.lab.clock, away_s),
        prober=sim.lab.prober(URL),
        clock=sim.lab.clock,
        rules=msgspec.structs.replace(sim.rules, away_s=away_s),
        custody=custody,
        shield=shield,
    )


class ServiceSim(Sim):
    """support_sim.Sim on a service: a process of ours that died is another call of `run`."""

    def __init__(self, lab: Lab, folder: Path, *, terms: Terms = TERMS, **options) -> None:
        super().__init__(lab, folder, **options)
        self.terms = terms
        self.dead = False

    @contextmanager
    def living(self) -> Iterator[None]:
        """What a process that was killed would have done at its end, it does not."""
        if self.dead:
            raise Killed
        yield

    def run_and_die(self, when: Callable[[AnyEvent], bool]) -> None:
        """Run until the event, and be killed there: our connections close, no more happens."""

        def watch(event: AnyEvent) -> None:
            if when(event):
                self.dead = True
                self.lab.disconnect()
                raise Killed

        try:
            self.run(watch)
        except Killed:
            self.dead = False

    def campaign(self, journal: Journal) -> Campaign:
        campaign = super().campaign(journal)
        hand = deployer(self, self.terms, away_s=self.terms.grace_s, shield=self.living)
        return msgspec.structs.replace(
            campaign,
            deployer=hand,
            measurer=msgspec.structs.replace(campaign.measurer, deployer=hand),
            stay=msgspec.structs.replace(
                campaign.stay, deployer=hand, public=True, hooks_by_guard=True, shield=self.living
            ),
            shield=self.living,
        )
