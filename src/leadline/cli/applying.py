"""How `apply` changes a service."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from leadline.applied import Applied
from leadline.cli.common import confirm, emit
from leadline.errors import InputError, RefusedError
from leadline.journal.file import Journal, replay
from leadline.launch import LaunchSpec, Put, Step
from leadline.outlook import difference, shown
from leadline.promotion import NotAsPromised, Promise, Promotion, promises
from leadline.steps import digest, observe

if TYPE_CHECKING:
    from leadline.build import Wired
    from leadline.interrupts import Interrupts
    from leadline.space import Setting


def apply_service(
    wired: Wired,
    interrupts: Interrupts,
    setting: Setting,
    launch: LaunchSpec,
    *,
    goal: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Show, ask, put in force, compare, watch. Raises NotAsPromised with the old setting back."""
    observed, host = wired.observed, wired.host
    if observed is None:
        raise InputError(f"target {wired.target.name} has no live service to change")
    if observed.held:
        raise RefusedError(
            f"a trial is in force ({observed.holder or 'of a campaign'}): let it end, or `leadline stop` it"
        )
    path, sudo = wired.target.rollout_path(), wired.spec.service.sudo
    present = digest(host, path, sudo=sudo)
    note = f"{setting}, written {wired.clock.utc()} from campaign {wired.folder.path.name}"
    steps = wired.target.rollout(launch, observed, present, note)
    content = next(s.content for s in steps if isinstance(s, Put) and s.path == path)
    promised = _promised(wired, setting, goal)
    removed, added = difference(wired.base, launch)
    if not as_json:
        click.echo("\n".join([f"setting  {setting}", *(f"  - {u}" for u in removed), *(f"  + {u}" for u in added)]))
        click.echo("\n".join(shown(steps)))
        click.echo("\n".join(f"promised {p.cell}: {p.metric} {p.value:.4g}" for p in promised))
    confirm(f"Write {path} and restart the service?", yes=yes)
    applied = Applied(
        path=path,
        setting=str(setting),
        at=wired.clock.utc(),
        written=hashlib.sha256(content.encode()).hexdigest(),
        previous=present,
        shadowed={p: d for p, d in observed.files.items() if p in observed.texts and p != path},
    )
    with Journal(wired.folder.journal, reason="leadline apply", utc=wired.clock.utc):
        kept = _promote(wired, interrupts, applied, steps, launch, setting, promised)
    if as_json:
        emit(
            {
                "setting": setting,
                "path": path,
                "removed": removed,
                "added": added,
                "steps": list(shown(steps)),
                "kept": kept,
            }
        )
    else:
        click.echo(f"applied: {setting}, kept what was promised; `leadline undo` takes it back at any time")


def _promote(
    wired: Wired,
    interrupts: Interrupts,
    applied: Applied,
    steps: Sequence[Step],
    launch: LaunchSpec,
    setting: Setting,
    promised: Sequence[Promise],
) -> Sequence[object]:
    service = wired.target.service
    assert service is not None
    wired.folder.prepare()
    deployer = wired.at_home(interrupts)

    def take_back() -> Sequence[Step]:
        return wired.target.undo(observe(wired.target, wired.host), applied.written, applied.previous)

    promotion = Promotion(
        deployer=deployer,
        measurer=wired.measurer(deployer, wired.home_url),
        service=service,
        log=wired.folder.log(0, 9),
        worst_frac=wired.spec.canary.worst_frac,
        watch_s=wired.spec.canary.minutes * 60,
        take_back=take_back,
        say=lambda text: click.echo(text, err=True),
    )
    applied.write(wired.folder.path)
    try:
        return promotion.carry(steps, launch, wired.problem.kept.merged(setting), promised)
    except NotAsPromised:
        Applied.forget(wired.folder.path)
        raise


def _promised(wired: Wired, setting: Setting, goal: str | None) -> tuple[Promise, ...]:
    goals = [g for g in wired.problem.goals if goal in (None, g.name)]
    return promises(replay(wired.folder.journal).ledger.history(), setting, goals)
