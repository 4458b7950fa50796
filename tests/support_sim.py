"""Whole campaigns in virtual time: the real campaign code over the lab's host, prober and loader."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from leadline.build import plugin
from leadline.campaign import Campaign, Conduct, begin
from leadline.deploy import Deployer, Rules
from leadline.goal import Budget, Cell, Goal, Problem, Weight
from leadline.journal.events import CampaignStarted, SessionOpened
from leadline.journal.file import Journal
from leadline.journal.ledger import Ledger
from leadline.launch import LaunchSpec
from leadline.measure import Endpoint, LoadRules, Measurer
from leadline.ports import Site, Workload
from leadline.space import Knob, Setting, Space
from leadline.stay import Stay
from leadline.targets.command import CommandTarget
from leadline.testing.lab import Lab

PORT = 8080  # of the virtual world: no socket is opened
BASE = LaunchSpec(
    argv=(
        "llama-server", "-m", "lab", "-np", "64", "--port", str(PORT), "--spec-type", "ngram-simple",
        "--spec-ngram-simple-size-n", "2", "--spec-ngram-simple-size-m", "2",
    )
)  # fmt: skip


class Sim:
    """One campaign in one virtual world. `run` may be called again: it goes on from the journal."""

    def __init__(
        self,
        lab: Lab,
        folder: Path,
        *,
        depths: tuple[int, ...] = (0, 2, 4, 6),
        goals: tuple[Goal, ...] | None = None,
        rounds: int = 2,
        requests: int = 8,
        conduct: Conduct | None = None,
        start_stall_s: float = 60.0,
        workloads: Mapping[str, Workload] | None = None,
    ) -> None:
        self.lab = lab
        self.folder = folder
        self.engine = plugin("engines", "llamacpp", "engine")
        self.conduct = conduct or Conduct()
        self.problem = Problem(
            space=Space(knobs=(Knob(name="depth", values=depths),)),
            incumbent=Setting.of(depth=2),
            kept=Setting.of(spec_method="ngram-simple"),
            goals=goals or (goal("all", "coding@1", "coding@4"),),
            budget=Budget(rounds=rounds),
            seed=1,
        )
        self.rules = Rules(start_stall_s=start_stall_s, ready_s=5.0, grace_s=2.0)
        self.load = LoadRules(requests=requests, per_user=2, stall_s=30.0)
        self.inbox: list[Setting] = []
        names = {c.workload for c in self.problem.cells()}
        self.workloads = workloads or {n: plugin("workloads", n, "workload")({}, n) for n in names}

    def render(self, setting: Setting) -> LaunchSpec:
        return self.engine.render(BASE, self.problem.kept.merged(setting))

    def campaign(self, journal: Journal) -> Campaign:
        deployer = Deployer(
            engine=self.engine,
            target=CommandTarget(Site(launch=BASE, script="serve.sh")),
            host=self.lab.host,
            prober=self.lab.prober(f"http://127.0.0.1:{PORT}"),
            clock=self.lab.clock,
            rules=self.rules,
        )
        measurer = Measurer(
            deployer=deployer,
            loader=self.lab.loader,
            workloads=self.workloads,
            rules=self.load,
            endpoint=Endpoint(url=f"http://127.0.0.1:{PORT}"),
            records=self.folder,
            seed=1,
            keep_foreign=self.conduct.foreign == "keep",
        )
        return Campaign(
            journal=journal,
            problem=self.problem,
            strategy=plugin("strategies", "grid", "strategy"),
            deployer=deployer,
            measurer=measurer,
            stay=Stay(
                journal=journal,
                deployer=deployer,
                log_of=lambda trial, attempt: f"trial-{trial}-{attempt}.log",
                drain=self.conduct.drain,
                undrain=self.conduct.undrain,
            ),
            render=self.render,
            inbox=lambda: self.inbox,
            conduct=self.conduct,
        )

    def run(self, watch=None):
        """Open the journal and run to the end; raises what the campaign raises."""
        with Journal(self.folder / "journal.jsonl", reason="sim", utc=self.lab.clock.utc) as journal:
            journal.watch = watch or (lambda event: None)
            start = CampaignStarted(
                name="sim", problem=self.problem, engine="llamacpp", target="command", launch=str(BASE),
                config_digest="", tool_version="0",
            )  # fmt: skip
            begin(journal, start, SessionOpened(pid=1, host="lab", repaired=journal.repaired))
            return self.campaign(journal).run()

    def ledger(self) -> Ledger:
        from leadline.journal.file import replay

        return replay(self.folder / "journal.jsonl").ledger


def goal(name: str, *cells: str, **fields) -> Goal:
    return Goal(name=name, weights=tuple(Weight(Cell.parse(c), 1.0) for c in cells), **fields)
