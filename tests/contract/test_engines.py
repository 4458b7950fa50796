"""Every engine obeys the laws of its port, and each law catches an engine that breaks it."""

from __future__ import annotations

import importlib
import importlib.util
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
    Busy,
    Diagnosis,
    Effective,
    Evidence,
    Failure,
    Footprint,
    Ground,
    Probe,
    Reply,
    Seen,
    Verdict,
)
from leadline.launch import LaunchFile, LaunchSpec
from leadline.ports import Engine
from leadline.space import Knob, Setting, Value
from leadline.testing.engine_suite import LAWS, Case, Window
from leadline.trial import RequestRecord

BUILT_IN: dict[str, Engine] = {
    module.name: importlib.import_module(f"leadline.engines.{module.name}").engine
    for module in pkgutil.iter_modules(leadline.engines.__path__)
}
GOLDEN = Path(__file__).parents[1] / "golden"
PATTERNS = json.loads((GOLDEN / "patterns" / "log_lines.json").read_text())


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


TEMPLATED = LaunchSpec(
    argv=("llama-server", "-m", "m.gguf", "--chat-template-file", "/srv/chat.jinja"),
    files=(LaunchFile("/srv/chat.jinja", "{{ messages }}"),),
)


def telling(*prefixes: str) -> tuple[str, ...]:
    """Lines of servers that failed, by the names of their patterns."""
    return tuple(row["sample"] for row in PATTERNS if row["name"].startswith(prefixes))


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
            TEMPLATED,
        ),
        named=((TEMPLATED, ()),),
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
            (command("bash start.sh"), Setting()),
        ),
        windows=tuple(window(w) for w in json.loads((GOLDEN / "llamacpp" / "windows.json").read_text())),
        seen=(
            Seen(
                launch=LaunchSpec(argv=("llama-server", "-m", "m.gguf")),
                log=(GOLDEN / "llamacpp" / "buffers-depth2.log").read_text(),
            ),
        ),
        loading=Reply(
            name="health",
            status=503,
            body=b'{"error":{"message":"Loading model","type":"unavailable_error","code":503}}',
        ),
    )


def at_work(*gauges: str) -> tuple[tuple[Reply, Busy], ...]:
    """The metrics of a server with two requests, and one that waits."""
    body = "\n".join(f"{gauge} {n}.0" for gauge, n in zip(gauges, (2, 1), strict=True))
    return ((Reply(name="metrics", status=200, body=body.encode()), Busy(running=2, waiting=1)),)


MORE: dict[str, dict[str, Any]] = {
    "llamacpp": {
        "telling": telling("lc.F."),
        "versions": ("b10434-7e4c0a9", "11434 (7e4c0a9)", "version: 0.1.0-dev (build 11434, commit 7e4c0a9)"),
        "busy": at_work("llamacpp:requests_processing", "llamacpp:requests_deferred"),
    },
    "sglang": {
        "telling": telling("sg.F.", "any.F."),
        "versions": ("0.5.9", "0.5.16", "0.5.23"),
        "busy": at_work('sglang:num_running_reqs{model_name="m"}', 'sglang:num_queue_reqs{model_name="m"}'),
    },
    "vllm": {
        "telling": telling("vl.F.", "any.F."),
        "versions": ("0.9.1", "0.16.0", "0.33.0"),
        "busy": at_work('vllm:num_requests_running{engine="0"}', 'vllm:num_requests_waiting{engine="0"}'),
    },
    "trtllm": {
        "telling": telling("tr.F.", "any.F.torch"),
        "versions": ("1.2.1", "1.3.0rc1"),
        "busy": at_work("trtllm_num_requests_running", "trtllm_num_requests_waiting"),
    },
}
"""What the laws need besides launches, settings and windows, unless a case brings it."""

BUILDERS: dict[str, Callable[[Engine], Case]] = {
    "llamacpp": llamacpp,
    **{
        name: module.case
        for name in BUILT_IN
        if importlib.util.find_spec(f"support_{name}") is not None
        if hasattr(module := importlib.import_module(f"support_{name}"), "case")
    },
}
"""An engine's case stands in its `tests/support_NAME.py` as `case(engine)`."""


def case_of(name: str, engine: Engine) -> Case:
    case = BUILDERS[name](engine)
    return msgspec.structs.replace(case, **{k: v for k, v in MORE.get(name, {}).items() if not getattr(case, k)})


def test_every_engine_of_the_folder_is_put_to_the_test_under_its_own_name() -> None:
    assert set(BUILDERS) == set(BUILT_IN)
    assert all(name == engine.name for name, engine in BUILT_IN.items())


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("name", BUILDERS)
def test_engine_obeys_the_law(name: str, law: str) -> None:
    LAWS[law](case_of(name, BUILT_IN[name]))


# --- engines that break one law each, made of a lawful one


class ListsValues(LlamaCpp):
    def knobs(self) -> Sequence[Knob]:
        return [msgspec.structs.replace(k, values=(1, 2)) for k in super().knobs()]


class HasNoDepth(LlamaCpp):
    def knobs(self) -> Sequence[Knob]:
        return [k for k in super().knobs() if k.name != "depth"]


class HasNoFlag(LlamaCpp):
    def knobs(self) -> Sequence[Knob]:
        return [msgspec.structs.replace(k, flag="") for k in super().knobs()]


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
    def memory(self, launch: LaunchSpec, ground: Ground) -> Footprint:
        return Footprint(verdict=Verdict.FITS) if ground.device else super().memory(launch, ground)


class GuessesParts(LlamaCpp):
    def memory(self, launch: LaunchSpec, ground: Ground) -> Footprint:
        return msgspec.structs.replace(super().memory(launch, ground), parts={"kv": 1 << 30})


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


class ForgetsMetrics(LlamaCpp):
    def render(self, base: LaunchSpec, setting: Setting) -> LaunchSpec:
        launch = super().render(base, setting)
        return msgspec.structs.replace(launch, argv=tuple(w for w in launch.argv if w != "--metrics"))


class ForgetsMetricsUnasked(LlamaCpp):
    def at(self, version: str | None) -> LlamaCpp:
        return ForgetsMetrics() if version is None else super().at(version)


class BreaksInOneVersion(LlamaCpp):
    def at(self, version: str | None) -> LlamaCpp:
        return ForgetsSlots() if version and "11434" in version else super().at(version)


class AsksWithTheModel(LlamaCpp):
    def version_argv(self, launch: LaunchSpec) -> tuple[str, ...] | None:
        return (*launch.argv, "--version")


class AsksAnother(LlamaCpp):
    def version_argv(self, launch: LaunchSpec) -> tuple[str, ...] | None:
        return ("llama-server", "--version")


class NamesTheModelAsAFile(LlamaCpp):
    def files(self, launch: LaunchSpec) -> tuple[str, ...]:
        return tuple(w for w in launch.argv if w.endswith(".gguf"))


class ResolvesTheModel(LlamaCpp):
    def model(self, launch: LaunchSpec) -> str | None:
        return f"/models/{super().model(launch)}"


class NamesNoModel(LlamaCpp):
    def model(self, launch: LaunchSpec) -> str | None:
        return None


class WantsNoStream(LlamaCpp):
    def body_fields(self) -> dict[str, object]:
        return {"stream": False}


class IdleWhenSilent(LlamaCpp):
    def busy(self, reply: Reply) -> Busy | None:
        return super().busy(reply) or Busy(running=0)


class ReadsErrors(LlamaCpp):
    def busy(self, reply: Reply) -> Busy | None:
        return super().busy(msgspec.structs.replace(reply, status=200))


class NeverWaits(LlamaCpp):
    def busy(self, reply: Reply) -> Busy | None:
        told = super().busy(reply)
        return told and msgspec.structs.replace(told, waiting=0)


class WarnsInProse(LlamaCpp):
    def diagnose(self, evidence: Evidence) -> Diagnosis:
        return msgspec.structs.replace(super().diagnose(evidence), fails_too=("deeper settings",))


class WarnsOfNothing(LlamaCpp):
    def diagnose(self, evidence: Evidence) -> Diagnosis:
        return msgspec.structs.replace(super().diagnose(evidence), fails_too=())


class WarnsOfAStranger(LlamaCpp):
    def diagnose(self, evidence: Evidence) -> Diagnosis:
        return msgspec.structs.replace(super().diagnose(evidence), fails_too=("topk+",))


class ShowsTheLine(LlamaCpp):
    def diagnose(self, evidence: Evidence) -> Diagnosis:
        return msgspec.structs.replace(super().diagnose(evidence), line=evidence.log)


class OwesMemory(LlamaCpp):
    def memory(self, launch: LaunchSpec, ground: Ground) -> Footprint:
        told = super().memory(launch, ground)
        return msgspec.structs.replace(told, parts={name: size - (1 << 50) for name, size in told.parts.items()})


class WillNotSayWhy(LlamaCpp):
    def memory(self, launch: LaunchSpec, ground: Ground) -> Footprint:
        return msgspec.structs.replace(super().memory(launch, ground), reason="")


class LosesFiles(LlamaCpp):
    def move(self, launch: LaunchSpec, port: int) -> LaunchSpec:
        return msgspec.structs.replace(super().move(launch, port), files=())


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
    (LosesFiles, "keeps_foreign_words", "a file of the operator's"),
    (GuessesParts, "never_guesses", "was made up"),
    (ForgetsMetricsUnasked, "knows_its_versions", "renders"),
    (BreaksInOneVersion, "knows_its_versions", "reads as"),
    (AsksWithTheModel, "asks_for_the_version_quickly", "loads the model"),
    (AsksAnother, "asks_for_the_version_quickly", "is asked of"),
    (NamesTheModelAsAFile, "names_its_model_and_files", "names the files"),
    (ResolvesTheModel, "names_its_model_and_files", "no word of it"),
    (NamesNoModel, "names_its_model_and_files", "no base has a model"),
    (WantsNoStream, "adds_only_its_own_fields", "overwritten"),
    (IdleWhenSilent, "knows_when_it_is_busy", "made up|was read"),
    (ReadsErrors, "knows_when_it_is_busy", "HTTP 500 was read"),
    (NeverWaits, "knows_when_it_is_busy", "is said to be"),
    (WarnsInProse, "warns_in_good_form", "is no knob"),
    (WarnsOfAStranger, "warns_in_good_form", "is no knob"),
    (WarnsOfNothing, "warns_in_good_form", "no line says"),
    (ShowsTheLine, "warns_in_good_form", "a secret is shown"),
    (OwesMemory, "foresees_from_any_log", "spoilt log"),
    (WillNotSayWhy, "foresees_from_any_log", "without a reason"),
]


@pytest.mark.parametrize(("broken", "law", "words"), BROKEN)
def test_law_catches_an_engine_that_breaks_it(broken: type[LlamaCpp], law: str, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        LAWS[law](case_of("llamacpp", broken()))


def test_law_lets_through_what_an_engine_raises() -> None:
    with pytest.raises(msgspec.DecodeError):
        LAWS["bears_any_answer"](case_of("llamacpp", TrustsItsServer()))


def test_every_law_has_an_engine_that_breaks_it() -> None:
    assert {law for _, law, _ in BROKEN} == set(LAWS)
