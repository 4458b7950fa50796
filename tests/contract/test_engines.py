"""Every engine obeys the laws of its port, and each law catches an engine that breaks it."""

from __future__ import annotations

import importlib
import json
import pkgutil
import random
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

import leadline.engines
from leadline.engines.llamacpp import LlamaCpp, canonical
from leadline.errors import InputError
from leadline.evidence import (
    Acceptance,
    Device,
    Diagnosis,
    Effective,
    Evidence,
    Failure,
    MemoryLaw,
    Model,
    Probe,
    Reply,
)
from leadline.launch import LaunchSpec
from leadline.ports import Engine
from leadline.space import Knob, Setting, Value
from leadline.testing.engine_suite import LAWS, Case, Window
from leadline.trial import RequestRecord

BUILT_IN: dict[str, Engine] = {
    module.name: importlib.import_module(f"leadline.engines.{module.name}").engine
    for module in pkgutil.iter_modules(leadline.engines.__path__)
}
GOLDEN = Path(__file__).parents[1] / "golden"


def command(text: str, **env: str) -> LaunchSpec:
    return LaunchSpec(argv=tuple(shlex.split(text)), env=tuple(env.items()))


def window(recorded: dict[str, Any]) -> Window:
    def look(side: str) -> Evidence:
        replies = {name: Reply(name=name, status=200, body=body.encode()) for name, body in recorded[side].items()}
        return Evidence(replies=replies, log="\n".join(recorded["log"]), argv=tuple(recorded["argv"]))

    records = tuple(
        RequestRecord(prompt_id=str(i), user=0, intended_ns=0, start_ns=0, end_ns=1, **counts)
        for i, counts in enumerate(recorded["records"])
    )
    counts = msgspec.convert(recorded["acceptance"], Acceptance)
    return Window(before=look("before"), after=look("after"), records=records, acceptance=counts)


def llamacpp(engine: Engine) -> Case:
    return Case(
        engine=engine,
        canonical=canonical,
        bases=(
            command("llama-server -m m.gguf"),
            command("llama-server -m m.gguf --spec-type ngram-simple --spec-ngram-simple-size-m 6 -np 2 --port 9000"),
            command("/opt/llama-server --spec-type draft-simple -md d.gguf -np 4 -m m.gguf -np 8 -ctk q8_0 --no-slots"),
            command(
                "llama-server -m m.gguf --port 1 --port 2", LLAMA_ARG_SPEC_TYPE="ngram-mod", LLAMA_ARG_N_PARALLEL="3"
            ),
            command("env LLAMA_ARG_PORT=81 llama-server --host 0.0.0.0 -m m.gguf --spec-default"),
        ),
        settings=(
            Setting(),
            Setting.of(depth=0),
            Setting.of(depth=0, spec_method="ngram-simple", max_running=2),
            Setting.of(depth=1, spec_method="ngram-simple"),
            Setting.of(depth=8, spec_method="ngram-mod", max_running=16, kv_dtype="q8_0"),
            Setting.of(depth=3, spec_method="draft-simple", draft_model="e.gguf", kv_dtype="q8_0/f16"),
            Setting.of({"flag:--threads": 2, "flag:--mlock": True, "env:OMP_NUM_THREADS": "2"}),
        ),
        foreign=("--alias", "--parallel", "--brand-new", "--log-file", "run.log"),
        refused=(
            (command("llama-server -m m.gguf"), Setting.of(depth=4)),
            (command("llama-server -m m.gguf --draft-max 4"), Setting.of(depth=4, spec_method="ngram-simple")),
            (command("bash -c 'llama-server -m m.gguf'"), Setting()),
        ),
        windows=tuple(window(w) for w in json.loads((GOLDEN / "llamacpp" / "windows.json").read_text())),
        loading=Reply(
            name="health",
            status=503,
            body=b'{"error":{"message":"Loading model","type":"unavailable_error","code":503}}',
        ),
    )


CASES: dict[str, Callable[[Engine], Case]] = {"llamacpp": llamacpp}


def test_every_engine_of_the_folder_is_put_to_the_test_under_its_own_name() -> None:
    assert set(CASES) == set(BUILT_IN)
    assert all(name == engine.name for name, engine in BUILT_IN.items())


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("name", CASES)
def test_engine_obeys_the_law(name: str, law: str) -> None:
    LAWS[law](CASES[name](BUILT_IN[name]))


# --- engines that break one law each, made of a lawful one


class ListsValues(LlamaCpp):
    def knobs(self, version: str | None) -> Sequence[Knob]:
        return [msgspec.structs.replace(k, values=(1, 2)) for k in super().knobs(version)]


class HasNoDepth(LlamaCpp):
    def knobs(self, version: str | None) -> Sequence[Knob]:
        return [k for k in super().knobs(version) if k.name != "depth"]


class HasNoFlag(LlamaCpp):
    def knobs(self, version: str | None) -> Sequence[Knob]:
        return [msgspec.structs.replace(k, flag="") for k in super().knobs(version)]


class ForgetsSlots(LlamaCpp):
    def render(self, base: LaunchSpec, setting: Setting) -> LaunchSpec:
        return super().render(base, setting.only([n for n in setting.names() if n != "max_running"]))


class ReadsTheFirst(LlamaCpp):
    """Of two words that say the same option the last one counts."""

    def parse(self, launch: LaunchSpec) -> Setting:
        argv = launch.argv
        slots = [argv[i + 1] for i, w in enumerate(argv) if w == "-np"]
        return super().parse(launch).merged(Setting.of(max_running=int(slots[0])) if slots else Setting())


class TellsFlagsOnly(LlamaCpp):
    def value(self, launch: LaunchSpec, name: str) -> Value | None:
        return None if name.startswith("env:") else super().value(launch, name)


class TellsTextOnly(LlamaCpp):
    def value(self, launch: LaunchSpec, name: str) -> Value | None:
        told = super().value(launch, name)
        return None if told is None else str(told)


class TellsDefaults(LlamaCpp):
    def value(self, launch: LaunchSpec, name: str) -> Value | None:
        told = super().value(launch, name)
        return False if told is None else told


class AddsEveryTime(LlamaCpp):
    def render(self, base: LaunchSpec, setting: Setting) -> LaunchSpec:
        rendered = super().render(base, setting)
        return msgspec.structs.replace(rendered, argv=(*rendered.argv, "--verbose"))


class Wavers(LlamaCpp):
    def render(self, base: LaunchSpec, setting: Setting) -> LaunchSpec:
        rendered = super().render(base, setting)
        return msgspec.structs.replace(rendered, argv=(*rendered.argv, f"--tags={random.random()}"))


class StaysOn(LlamaCpp):
    def render(self, base: LaunchSpec, setting: Setting) -> LaunchSpec:
        return base if setting == Setting.of(depth=0) else super().render(base, setting)


class SearchesAndReplaces(LlamaCpp):
    """Takes a word for its own wherever it stands."""

    def render(self, base: LaunchSpec, setting: Setting) -> LaunchSpec:
        words = tuple("-np" if w == "--parallel" else w for w in super().render(base, setting).argv)
        return msgspec.structs.replace(super().render(base, setting), argv=words)


class StartsElsewhere(LlamaCpp):
    def render(self, base: LaunchSpec, setting: Setting) -> LaunchSpec:
        return msgspec.structs.replace(super().render(base, setting), cwd=None)


class DropsVariables(LlamaCpp):
    def move(self, launch: LaunchSpec, port: int) -> LaunchSpec:
        return msgspec.structs.replace(super().move(launch, port), env=())


class BelievesAnything(LlamaCpp):
    def render(self, base: LaunchSpec, setting: Setting) -> LaunchSpec:
        return super().render(base, setting.only([n for n in setting.names() if n != "no_such_knob"]))


class RefusesInSilence(LlamaCpp):
    def render(self, base: LaunchSpec, setting: Setting) -> LaunchSpec:
        try:
            return super().render(base, setting)
        except InputError:
            raise InputError from None


class MovesByAppending(LlamaCpp):
    def move(self, launch: LaunchSpec, port: int) -> LaunchSpec:
        return msgspec.structs.replace(launch, argv=(*launch.argv, "--port", str(port)))


class MovesHalf(LlamaCpp):
    def move(self, launch: LaunchSpec, port: int) -> LaunchSpec:
        return launch if "--port" in launch.argv else super().move(launch, port)


class OpensToTheWorld(LlamaCpp):
    def move(self, launch: LaunchSpec, port: int) -> LaunchSpec:
        moved = super().move(launch, port)
        return msgspec.structs.replace(moved, argv=(*moved.argv, "--host", "0.0.0.0"))


class NeverProvesItself(LlamaCpp):
    def probes(self) -> Sequence[Probe]:
        return [msgspec.structs.replace(p, method="GET", body=b"") for p in super().probes()]


class AsksTwice(LlamaCpp):
    def probes(self) -> Sequence[Probe]:
        return [*super().probes(), *super().probes()]


class AlwaysLoading(LlamaCpp):
    def loading(self, reply: Reply) -> bool:
        return not reply.ok


class NeverLoading(LlamaCpp):
    def loading(self, reply: Reply) -> bool:
        return False


class GuessesDepth(LlamaCpp):
    def effective(self, evidence: Evidence) -> Effective:
        seen = super().effective(evidence)
        return msgspec.structs.replace(seen, depth=0 if seen.depth is None else seen.depth)


class GuessesMemory(LlamaCpp):
    def memory_law(self, model: Model, device: Device, evidence: Evidence) -> MemoryLaw:
        return MemoryLaw(fixed_bytes=device.total_bytes // 2)


class CountsFirstTokens(LlamaCpp):
    """Takes the token of the prompt's pass for a round."""

    def acceptance(self, before: Evidence, after: Evidence, records: Sequence[RequestRecord]) -> Acceptance | None:
        return super().acceptance(before, after, [])


class CountsFromTheStart(LlamaCpp):
    def acceptance(self, before: Evidence, after: Evidence, records: Sequence[RequestRecord]) -> Acceptance | None:
        body = b"llamacpp:tokens_predicted_total 0"
        zero = Evidence(replies={"metrics": Reply(name="metrics", status=200, body=body)})
        return super().acceptance(zero, after, records)


class SuspectsUs(LlamaCpp):
    def foreign_tokens(self, before: Evidence, after: Evidence, records: Sequence[RequestRecord]) -> int:
        return super().foreign_tokens(before, after, [])


class SuspectsNobody(LlamaCpp):
    def foreign_tokens(self, before: Evidence, after: Evidence, records: Sequence[RequestRecord]) -> int:
        return 0


class OverlooksRestarts(LlamaCpp):
    def acceptance(self, before: Evidence, after: Evidence, records: Sequence[RequestRecord]) -> Acceptance | None:
        right = super().acceptance(before, after, records)
        return right or super().acceptance(after, before, records)


class NeverRestarted(LlamaCpp):
    def restarted(self, before: Evidence, after: Evidence) -> bool:
        return False


class TakesAnyChangeForARestart(LlamaCpp):
    def restarted(self, before: Evidence, after: Evidence) -> bool:
        return before.replies != after.replies


class HasNoProgram(LlamaCpp):
    programs = ()


class SeesNoDepth(LlamaCpp):
    def effective(self, evidence: Evidence) -> Effective:
        return msgspec.structs.replace(super().effective(evidence), depth=None)


class SeesDepthEverywhere(LlamaCpp):
    def effective(self, evidence: Evidence) -> Effective:
        return msgspec.structs.replace(super().effective(evidence), depth=4) if evidence.replies else Effective()


class BelievesTheLogFirst(LlamaCpp):
    def diagnose(self, evidence: Evidence) -> Diagnosis:
        if "out of memory" in evidence.log:
            return Diagnosis(failure=Failure.DEVICE_OOM_START, reason="the log says so")
        return super().diagnose(evidence)


class TakesCodesForSignals(LlamaCpp):
    def diagnose(self, evidence: Evidence) -> Diagnosis:
        if evidence.exit is not None and evidence.exit.code == 137:
            return Diagnosis(failure=Failure.KILLED, reason="137 - 128 = 9")
        return super().diagnose(evidence)


class TrustsItsServer(LlamaCpp):
    def effective(self, evidence: Evidence) -> Effective:
        if evidence.replies:
            msgspec.json.decode(evidence.replies["props"].body)
        return super().effective(evidence)


class CountsBackwards(LlamaCpp):
    def acceptance(self, before: Evidence, after: Evidence, records: Sequence[RequestRecord]) -> Acceptance | None:
        right = super().acceptance(before, after, records)
        return right and msgspec.structs.replace(right, rounds=right.decode_tokens - right.drafted)


BROKEN: list[tuple[type[LlamaCpp], str, str]] = [
    (ListsValues, "has_knobs", "values are the operator's"),
    (HasNoDepth, "has_knobs", "depth is not among"),
    (HasNoFlag, "has_knobs", "no flag"),
    (ForgetsSlots, "reads_what_it_wrote", "reads as"),
    (ReadsTheFirst, "reads_what_it_wrote", "reads as"),
    (TellsFlagsOnly, "tells_what_it_wrote", "says None"),
    (TellsTextOnly, "tells_what_it_wrote", "was meant to be"),
    (TellsDefaults, "tells_what_it_wrote", "never-heard-of, and is said to"),
    (AddsEveryTime, "is_settled_after_once", "when rendered again"),
    (Wavers, "is_settled_after_once", "the second time"),
    (StaysOn, "switches_off", "reads as depth="),
    (SearchesAndReplaces, "keeps_foreign_words", "torn apart"),
    (StartsElsewhere, "keeps_foreign_words", "the folder is now None"),
    (DropsVariables, "keeps_foreign_words", "is gone"),
    (BelievesAnything, "refuses_what_cannot_be", "must be refused"),
    (RefusesInSilence, "refuses_what_cannot_be", "without a reason"),
    (MovesByAppending, "moves", "moved to the same port"),
    (MovesHalf, "moves", "listens on"),
    (OpensToTheWorld, "moves", "listens on"),
    (NeverProvesItself, "can_be_probed", "no completion"),
    (AsksTwice, "can_be_probed", "the same name"),
    (AlwaysLoading, "knows_loading", "taken for loading"),
    (NeverLoading, "knows_loading", "not taken for loading"),
    (GuessesDepth, "never_guesses", "from nothing"),
    (GuessesMemory, "never_guesses", "was made up"),
    (CountsFirstTokens, "counts_exactly", "and it was"),
    (CountsFromTheStart, "counts_exactly", "and it was"),
    (SuspectsUs, "counts_exactly", "taken for foreign"),
    (SuspectsNobody, "counts_exactly", "somebody else"),
    (OverlooksRestarts, "notices_a_restart", "went back"),
    (NeverRestarted, "notices_a_restart", "no restart was noticed"),
    (TakesAnyChangeForARestart, "notices_a_restart", "the counters went on"),
    (HasNoProgram, "has_knobs", "which programs"),
    (SeesNoDepth, "reads_what_runs", "the depth is None"),
    (SeesDepthEverywhere, "reads_what_runs", "nothing was drafted"),
    (BelievesTheLogFirst, "believes_the_supervisor", "not device_oom_start"),
    (TakesCodesForSignals, "believes_the_supervisor", "137 alone"),
    (CountsBackwards, "bears_any_answer", "were counted as"),
]


@pytest.mark.parametrize(("broken", "law", "words"), BROKEN)
def test_law_catches_an_engine_that_breaks_it(broken: type[LlamaCpp], law: str, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        LAWS[law](llamacpp(broken()))


def test_law_lets_through_what_an_engine_raises() -> None:
    with pytest.raises(msgspec.DecodeError):
        LAWS["bears_any_answer"](llamacpp(TrustsItsServer()))


def test_every_law_has_an_engine_that_breaks_it() -> None:
    assert {law for _, law, _ in BROKEN} == set(LAWS)
