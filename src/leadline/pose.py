"""From campaign.toml and an engine to the Problem: what is tuned, what is in force today, what cannot be launched."""

from __future__ import annotations

import msgspec

from leadline.config import CampaignSpec
from leadline.errors import InputError
from leadline.goal import Budget, Limits, Problem, Refusal
from leadline.launch import LaunchSpec
from leadline.outlook import difference
from leadline.ports import Engine
from leadline.space import Knob, Setting, Space, Value


def pose(spec: CampaignSpec, engine: Engine, base: LaunchSpec) -> Problem:
    """The problem of a campaign. `base` = the launch of trials. Raises InputError for a base that cannot be tuned."""
    flags = {k.name: k for k in engine.knobs()}
    knobs = tuple(
        msgspec.structs.replace(flags[k.name], values=k.values)
        if k.name in flags
        else Knob(name=k.name, values=k.values, flag=k.name.partition(":")[2])
        for k in spec.knobs
    )
    knobs = tuple(_with_own_flag(engine, base, spec.keep, k) for k in knobs)
    today = {k.name: _today(engine, base, k) for k in knobs}
    missing = [name for name, value in today.items() if value is None]
    if missing:
        raise InputError(
            f"{spec.path}: service.command does not set {', '.join(missing)}, so today's value is not known; write it "
            f"into service.command as it is in force today, so that it can be compared and given back."
        )
    space = Space(knobs=knobs)
    incumbent = Setting.of({k: v for k, v in today.items() if v is not None})
    engine.render(base, spec.keep.merged(incumbent))  # a base that cannot be rewritten is refused here
    return Problem(
        space=space,
        incumbent=incumbent,
        goals=spec.goals,
        kept=spec.keep,
        refused=_refused(engine, base, spec.keep, space, incumbent),
        limits=Limits(max_oom_chance=spec.safety.max_oom_chance, may_change_output=spec.safety.may_change_output),
        budget=Budget(
            rounds=spec.budget.rounds, max_launches=spec.budget.max_launches, max_minutes=spec.budget.max_minutes
        ),
        seed=spec.budget.seed,
    )


def _with_own_flag(engine: Engine, base: LaunchSpec, kept: Setting, knob: Knob) -> Knob:
    """The knob with the one flag that changes here when its value does: an engine's depth has a flag per method."""
    values = [v for v in knob.values if v != 0][:2]
    if len(values) < 2:
        return knob
    try:
        one, other = (engine.render(base, kept.merged(Setting.of({knob.name: v}))) for v in values)
    except InputError:
        return knob
    flags = sorted({unit.split()[0].split("=")[0] for unit in difference(one, other)[1]})
    return msgspec.structs.replace(knob, flag=" ".join(flags)) if flags else knob


def _today(engine: Engine, base: LaunchSpec, knob: Knob) -> Value | None:
    """Today's value of a knob; a bare flag that is not there is off."""
    value = engine.value(base, knob.name)
    bare = all(isinstance(v, bool) for v in knob.values)
    return False if value is None and bare else value


def _refused(engine: Engine, base: LaunchSpec, kept: Setting, space: Space, incumbent: Setting) -> tuple[Refusal, ...]:
    """Settings that the engine would not start with, and those that are the very launch of another one."""
    first: dict[LaunchSpec, Setting] = {}
    out: list[Refusal] = []
    baseline = incumbent.merged(Setting.of(depth=0)) if "depth" in space.names() else incumbent
    for setting in dict.fromkeys((incumbent, baseline, *space.settings())):
        try:
            launch = engine.render(base, kept.merged(setting))
        except InputError as error:
            out.append(Refusal(setting, str(error)))
            continue
        same = first.setdefault(launch, setting)
        if same != setting and setting != baseline:
            out.append(Refusal(setting, f"the same launch as {same}"))
    return tuple(out)
