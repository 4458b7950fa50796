"""Every target obeys the laws of its port, and each law catches a target that breaks it."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from leadline.errors import RefusedError
from leadline.hosts.local import LocalHost
from leadline.launch import LaunchSpec, Put, Remove, Run, Step
from leadline.ports import Completed, Observed, Site, Target
from leadline.targets.command import ABSENT, KEPT, CommandTarget
from leadline.testing.target_suite import LAWS, Case

Make = Callable[[LaunchSpec, str], Target]


def in_folder(kind: type[CommandTarget]) -> Make:
    return lambda launch, folder: kind(Site(launch=launch, script=f"{folder}/serve.sh"))


def case(make: Make, tmp_path: Path) -> Case:
    return Case(make=make, host=LocalHost(), folder=str(tmp_path))


@pytest.mark.parametrize("law", LAWS)
def test_the_command_target_obeys_the_law(law: str, tmp_path: Path) -> None:
    LAWS[law](case(in_folder(CommandTarget), tmp_path))


class PromisesNothing(CommandTarget):
    guarantee = " "


class TalksTooMuch(CommandTarget):
    guarantee = "one line\nand another"


class TouchesTheScript(CommandTarget):
    def observe(self) -> Sequence[Run]:
        return (*super().observe(), Run(argv=("touch", self.rollout_path()), timeout_s=5))


class SeesNoScript(CommandTarget):
    def interpret(self, completed: Sequence[Completed]) -> Observed:
        return msgspec.structs.replace(super().interpret(completed), files={})


class ForgetsTodaysLaunch(CommandTarget):
    def interpret(self, completed: Sequence[Completed]) -> Observed:
        return msgspec.structs.replace(super().interpret(completed), launch=LaunchSpec(argv=("x",)))


class CountsItsPlans(CommandTarget):
    count = itertools.count()

    def plan(self, launch: LaunchSpec, observed: Observed, log: str) -> Sequence[Step]:
        return super().plan(launch, observed, f"{log}.{next(self.count)}")


class PlansNothing(CommandTarget):
    def plan(self, launch: LaunchSpec, observed: Observed, log: str) -> Sequence[Step]:
        return ()


class EditsTheScriptToPlan(CommandTarget):
    def plan(self, launch: LaunchSpec, observed: Observed, log: str) -> Sequence[Step]:
        path = self.rollout_path()
        put = Put(path=path, content="new", mode=0o755, expect=observed.files[path])
        return (put, *super().plan(launch, observed, log))


class NeverStops(CommandTarget):
    def restore(self, observed: Observed) -> Sequence[Step]:
        return ()


class LeavesAFile(CommandTarget):
    def plan(self, launch: LaunchSpec, observed: Observed, log: str) -> Sequence[Step]:
        path = f"{self.rollout_path()}.plan"
        return (Put(path=path, content="", mode=0o600, expect=ABSENT), *super().plan(launch, observed, log))


class RestoresOnce(LeavesAFile):
    def restore(self, observed: Observed) -> Sequence[Step]:
        path = f"{self.rollout_path()}.plan"
        empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        return (*super().restore(observed), Remove(path=path, expect=empty))


class WritesTheKey(CommandTarget):
    def rollout(self, launch: LaunchSpec, observed: Observed, present: str, note: str) -> Sequence[Step]:
        *before, put = super().rollout(launch, observed, present, note)
        assert isinstance(put, Put)
        content = f"#!/bin/sh\nexec {shlex.join(launch.argv)}\n"
        return (*before, msgspec.structs.replace(put, content=content))


class ShowsTheToken(CommandTarget):
    def plan(self, launch: LaunchSpec, observed: Observed, log: str) -> Sequence[Step]:
        words = [f"{name}={value}" for name, value in launch.env]
        return (Run(argv=("env", *words, "true"), timeout_s=5), *super().plan(launch, observed, log))


class ClearsTheWay(CommandTarget):
    """Removes whatever is there, so that its own `expect` always holds."""

    def rollout(self, launch: LaunchSpec, observed: Observed, present: str, note: str) -> Sequence[Step]:
        put = super().rollout(launch, observed, present, note)[-1]
        assert isinstance(put, Put)
        path = self.rollout_path()
        keep = Run(argv=("cp", "-p", path, path + KEPT), timeout_s=5)
        clear = Run(argv=("rm", "-f", path), timeout_s=5)
        return (*(() if present == ABSENT else (keep,)), clear, msgspec.structs.replace(put, expect=ABSENT))


class KeepsTheLatestAlone(CommandTarget):
    def rollout(self, launch: LaunchSpec, observed: Observed, present: str, note: str) -> Sequence[Step]:
        put = super().rollout(launch, observed, present, note)[-1]
        path = self.rollout_path()
        keep = Run(argv=("cp", "-p", path, path + KEPT), timeout_s=5)
        return (put,) if present == ABSENT else (keep, put)


class PutsNothingBack(CommandTarget):
    def undo(self, observed: Observed, written: str, previous: str) -> Sequence[Step]:
        return (Remove(path=self.rollout_path(), expect=written),)


class LosesTheMode(CommandTarget):
    def undo(self, observed: Observed, written: str, previous: str) -> Sequence[Step]:
        steps = super().undo(observed, written, previous)
        path = self.rollout_path()
        copy = Run(argv=("install", "-m", "700", path + KEPT, path), timeout_s=5)
        return [copy if isinstance(s, Run) else s for s in steps]


class TakesEveryUndoForTheFirst(CommandTarget):
    def undo(self, observed: Observed, written: str, previous: str) -> Sequence[Step]:
        path = self.rollout_path()
        kept = ABSENT if previous == ABSENT else previous
        return super().undo(
            msgspec.structs.replace(observed, files={path: written, path + KEPT: kept}), written, previous
        )


class UndoesByForce(CommandTarget):
    def undo(self, observed: Observed, written: str, previous: str) -> Sequence[Step]:
        path = self.rollout_path()
        now = {**observed.files, path: written} if observed.files[path] not in (ABSENT, previous) else observed.files
        steps = super().undo(msgspec.structs.replace(observed, files=now), written, previous)
        force = Run(argv=("rm", "-f", path), timeout_s=5)
        return [force if isinstance(s, Remove) and s.path == path else s for s in steps]


BROKEN: list[tuple[str, type[CommandTarget]]] = [
    ("says_what_brings_the_service_back", PromisesNothing),
    ("says_what_brings_the_service_back", TalksTooMuch),
    ("changes_nothing_by_looking", TouchesTheScript),
    ("changes_nothing_by_looking", SeesNoScript),
    ("changes_nothing_by_looking", ForgetsTodaysLaunch),
    ("answers_the_same_when_asked_again", CountsItsPlans),
    ("puts_a_launch_in_force", PlansNothing),
    ("puts_a_launch_in_force", EditsTheScriptToPlan),
    ("restores_from_wherever_a_plan_stopped", NeverStops),
    ("restores_from_wherever_a_plan_stopped", LeavesAFile),
    ("restores_from_wherever_a_plan_stopped", RestoresOnce),
    ("shows_no_secret", WritesTheKey),
    ("shows_no_secret", ShowsTheToken),
    ("rolls_out_over_what_it_saw_alone", ClearsTheWay),
    ("loses_no_earlier_file", KeepsTheLatestAlone),
    ("undoes_from_wherever_a_rollout_stopped", PutsNothingBack),
    ("undoes_from_wherever_a_rollout_stopped", LosesTheMode),
    ("undoes_from_wherever_an_undo_stopped", TakesEveryUndoForTheFirst),
    ("undoes_nothing_that_somebody_else_changed", UndoesByForce),
]


@pytest.mark.parametrize(("law", "broken"), BROKEN, ids=[broken.__name__ for _, broken in BROKEN])
def test_the_law_catches_who_breaks_it(law: str, broken: type[CommandTarget], tmp_path: Path) -> None:
    with pytest.raises((AssertionError, RefusedError)):
        LAWS[law](case(in_folder(broken), tmp_path))


def test_every_law_has_somebody_who_breaks_it() -> None:
    assert {law for law, _ in BROKEN} == set(LAWS)
