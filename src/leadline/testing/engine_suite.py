"""The laws of ports.Engine as checks that any engine, ours or a third party's, can be put through.

A law takes a Case: the engine, command lines and settings of its own, and windows of a real server. It raises
AssertionError in words when the engine breaks it, and lets through what the engine raises. Needs no test framework:

    @pytest.mark.parametrize("law", LAWS)
    def test_obeys(law):
        LAWS[law](Case(engine=MyEngine(), ...))
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import product

import msgspec

from leadline.errors import InputError
from leadline.evidence import Device, Evidence, ExitFacts, Failure, Ground, Model, Probe, Reply, Seen, Verdict
from leadline.launch import LaunchSpec
from leadline.space import Setting
from leadline.testing.engine_case import SHAPES, Case, Window, spoilt, spoilt_body

__all__ = ["LAWS", "Case", "Window"]

ENV = ("LEADLINE_SUITE", "kept as it is")
FOLDER = "/srv/suite"
PORT = 45123
DEVICE = Device(name="suite", total_bytes=80 << 30)
UNKNOWN_MODEL = Model(name="never heard of")
SECRET = "sk-0123456789abcdefghij"
NO_VERSIONS = ("", "no version", "v", "\x00\ufffd\n\n")
ODD_VERSIONS = ("-1", "0", "9" * 5000, "9" * 400 + ".0", "1.2.3.4.5.6", "1..2", "b0-", "1.2rc")
_FAILS_TOO = re.compile(r"(?P<knob>\w+|flag:-\S+|env:\w+)[-+=]")
_RESERVED = {"model", "messages", "prompt", "stream", "max_tokens", "max_completion_tokens", "temperature"}


def _must(condition: object, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def has_knobs(case: Case) -> None:
    """Distinct, with the engine's own flag, without values; `depth` is one of them. And it names its programs."""
    _must(case.engine.programs and all(case.engine.programs), "it does not say which programs start it")
    knobs = case.engine.knobs()
    names = [k.name for k in knobs]
    _must("depth" in names, f"depth is not among the knobs {names}")
    _must(len(set(names)) == len(names), f"a knob is listed twice: {names}")
    for knob in knobs:
        _must(knob.flag, f"{knob.name} has no flag of the engine")
        _must(not knob.values, f"{knob.name}: values are the operator's, not the engine's")


def reads_what_it_wrote(case: Case) -> None:
    """parse(render(base, s)) == canonical(parse(base) + s), over the knobs of the engine."""
    names = {k.name for k in case.engine.knobs()}
    for base, setting in case.pairs():
        rendered = case.engine.render(base, setting)
        meant = case.canonical(case.engine.parse(base).merged(setting)).only(names)
        got = case.engine.parse(rendered)
        _must(got == meant, f"{setting} on {base}: meant {meant}, but {rendered} reads as {got}")


def tells_what_it_wrote(case: Case) -> None:
    """value() of each knob that a setting names, flags and variables included; false means that nothing is there."""
    for base, setting in case.pairs():
        rendered = case.engine.render(base, setting)
        for name, meant in case.canonical(case.engine.parse(base).merged(setting)):
            got = case.engine.value(rendered, name)
            right = got == meant or (meant is False and got is None)
            _must(right, f"{setting} on {base}: {name} was meant to be {meant!r}, and {rendered} says {got!r}")
        for name in ("flag:--never-heard-of", "env:NEVER_HEARD_OF"):
            got = case.engine.value(rendered, name)
            _must(got is None, f"{rendered} does not say {name}, and is said to: {got!r}")


def is_settled_after_once(case: Case) -> None:
    """Rendering a setting into what has it already changes nothing; rendering is the same every time."""
    for base, setting in case.pairs():
        once = case.engine.render(base, setting)
        _must(case.engine.render(base, setting) == once, f"{setting} on {base}: another result the second time")
        twice = case.engine.render(once, setting)
        _must(twice == once, f"{setting} on {base}: {once} becomes {twice} when rendered again")


def switches_off(case: Case) -> None:
    """Every base can run at depth 0, and reads as depth 0 then."""
    for base in case.bases:
        off = case.engine.render(base, Setting.of(depth=0))
        _must(case.engine.parse(off).depth == 0, f"depth=0 on {base} reads as {case.engine.parse(off)}: {off}")


def keeps_foreign_words(case: Case) -> None:
    """Program, folder, variables, files, and words that are not the engine's, in their order."""
    for base, setting in case.pairs():
        argv, env = (*base.argv, *case.foreign), (*base.env, ENV)
        full = msgspec.structs.replace(base, argv=argv, env=env, cwd=FOLDER)
        for what, launch in (
            ("rendered", case.engine.render(full, setting)),
            ("moved", case.engine.move(full, PORT)),
        ):
            _must(launch.argv[0] == base.argv[0], f"{what} {full}: the program has become {launch.argv[0]}")
            theirs, now = set(base.files) - set(base.ours), {f.path: f for f in launch.files}
            for file in theirs:  # one that is named no more may go
                kept = now.get(file.path) == file or (file.path not in now and file.path not in " ".join(launch.argv))
                _must(kept, f"{what} {full}: {file.path}, a file of the operator's, was changed or lost")
            _must(launch.cwd == FOLDER, f"{what} {full}: the folder is now {launch.cwd}")
            _must(ENV in launch.env, f"{what} {full}: {ENV[0]} is gone")
            words = " ".join(case.foreign)
            _must(words in " ".join(launch.argv), f"{what} {full}: `{words}` is gone or torn apart in {launch}")


def refuses_what_cannot_be(case: Case) -> None:
    """With an InputError that says something: nonsense of any engine, and what this one cannot do."""
    nonsense = (Setting.of(depth=-1), Setting.of(depth="deep"), Setting.of({"no_such_knob": 1}))
    for base, setting in (*product(case.bases, nonsense), *case.refused):
        try:
            rendered = case.engine.render(base, setting)
        except InputError as error:
            _must(str(error), f"{setting} on {base}: refused without a reason")
        else:
            raise AssertionError(f"{setting} on {base} must be refused, and became {rendered}")


def moves(case: Case) -> None:
    """To another port, and nothing else changes."""
    for base in case.bases:
        host, _ = case.engine.address(base)
        moved = case.engine.move(base, PORT)
        _must(case.engine.address(moved) == (host, PORT), f"{moved} listens on {case.engine.address(moved)}")
        _must(case.engine.parse(moved) == case.engine.parse(base), f"moving {base} changed its setting: {moved}")
        _must(case.engine.move(moved, PORT) == moved, f"moved to the same port, {moved} changes")
    bare = case.bare or LaunchSpec(argv=case.bases[0].argv[:1])
    _must(case.engine.address(bare)[1] == case.engine.default_port, f"{bare} listens on {case.engine.address(bare)}")


def can_be_probed(case: Case) -> None:
    """Distinct probes with paths; one is "health", and "ready" makes the server generate."""
    probes: Mapping[str, Probe] = {p.name: p for p in case.engine.probes()}
    _must(len(probes) == len(case.engine.probes()), "two probes have the same name")
    _must("health" in probes and "ready" in probes, f"no health or no ready among {list(probes)}")
    for probe in probes.values():
        _must(probe.path.startswith("/"), f"{probe.name}: the path {probe.path} does not begin with /")
        _must(probe.timeout_s > 0, f"{probe.name} has no time")
    _must(probes["ready"].method == "POST" and probes["ready"].body, "ready is no completion")


def knows_loading(case: Case) -> None:
    """Only what health says while the model loads is loading: neither 200 nor silence is."""
    for reply in (Reply(name="health", status=200, body=b"ok"), Reply(name="health", status=0, error="refused")):
        _must(not case.engine.loading(reply), f"taken for loading: {reply}")
    if case.loading is not None:
        _must(case.engine.loading(case.loading), f"not taken for loading: {case.loading}")


def knows_its_versions(case: Case) -> None:
    """Without a version, or with one that cannot be read, it is as it was; and every version obeys the law of reading
    what it wrote, or refuses."""
    for text in (None, *NO_VERSIONS):
        same = case.engine.at(text)
        _must(same.knobs() == case.engine.knobs(), f"at({text!r}) has other knobs")
        for base, setting in case.pairs():
            rendered = same.render(base, setting)
            _must(rendered == case.engine.render(base, setting), f"at({text!r}) renders {setting} as {rendered}")
    for text in ODD_VERSIONS:
        _must(case.engine.at(text).knobs(), f"at({text!r}) has no knobs")
    for version in case.versions:
        one = case.engine.at(version)
        _must(one.name == case.engine.name, f"at({version!r}) is called {one.name}")
        its = msgspec.structs.replace(case, engine=one)
        has_knobs(its)
        for base, setting in case.pairs():
            with suppress(InputError):
                reads_what_it_wrote(msgspec.structs.replace(its, bases=(base,), settings=(setting,)))


def asks_for_the_version_quickly(case: Case) -> None:
    """With the launch's own program, and without its model."""
    for base in case.bases:
        argv = case.engine.version_argv(base)
        model = case.engine.model(base)
        if argv is None:
            continue
        another = argv and argv[0] != base.argv[0] and argv[0].rsplit("/", 1)[-1] in case.engine.programs
        _must(argv and not another, f"{base}: the version is asked of {argv}")
        named = model and re.search(rf"(?<![\w./-]){re.escape(model)}(?![\w./-])", " ".join(argv))
        _must(not named, f"{base}: {argv} loads the model {model}")


def names_its_model_and_files(case: Case) -> None:
    """As they stand in the launch; what is not there is not named."""
    named = dict(case.named)
    for base in (*case.bases, *named):
        files, meant = case.engine.files(base), named.get(base, tuple(f.path for f in base.files))
        _must(files == meant, f"{base} names the files {meant}, and is said to: {files}")
        model = case.engine.model(base)
        said = " ".join((*base.argv, *(v for _, v in base.env), *(f.content for f in base.files)))
        _must(model is None or (model and model in said), f"{base}: no word of it says the model {model!r}")
    _must(any(case.engine.model(base) for base in case.bases), "no base has a model")


def adds_only_its_own_fields(case: Case) -> None:
    """To the body of a request: nothing that the workload says, and nothing that cannot be sent."""
    fields = case.engine.body_fields()
    _must(not _RESERVED & set(fields), f"fields of the workload are overwritten: {sorted(_RESERVED & set(fields))}")
    _must(msgspec.json.decode(msgspec.json.encode(fields)) == fields, f"{fields} is no JSON")


def knows_when_it_is_busy(case: Case) -> None:
    """By the answer to "metrics"; an answer that does not say it says nothing."""
    if any(p.name == "metrics" for p in case.engine.probes()):
        _must(any(busy.running for _, busy in case.busy), "give the metrics of a server at work")
    for reply, busy in case.busy:
        got = case.engine.busy(reply)
        _must(got == busy, f"it was {busy}, and is said to be {got}")
        failed = msgspec.structs.replace(reply, status=500)
        _must(case.engine.busy(failed) is None, "an answer with HTTP 500 was read")
    for body in (*SHAPES, b"# HELP x y\n", b"x{ 1 2 3\n"):
        got = case.engine.busy(Reply(name="metrics", status=200, body=body))
        _must(got is None, f"from {body[:40]!r} it made up {got}")


def never_guesses(case: Case) -> None:
    """Where nothing is known, nothing is said."""
    nothing = Evidence()
    engine = case.engine
    seen = msgspec.structs.asdict(engine.effective(nothing))
    _must(not any(v is not None for v in seen.values()), f"effective made up {seen} from nothing")
    _must(engine.acceptance(nothing, nothing, ()) is None, "acceptance made up counts from nothing")
    _must(engine.foreign_tokens(nothing, nothing, ()) == 0, "foreign tokens made up from nothing")
    _must(not engine.restarted(nothing, nothing), "a restart made up from nothing")
    for base, ground in product(case.bases, (Ground(), Ground(model=UNKNOWN_MODEL, device=DEVICE))):
        told = engine.memory(base, ground)
        figures = (told.kv_tokens, told.max_running, told.error_frac)
        fine = told.verdict is Verdict.UNKNOWN and not told.parts and figures == (None, None, None)
        _must(fine, f"the memory of an unknown model was made up for {base}: {told}")
    _must(engine.diagnose(nothing).reason, "a diagnosis has a reason, even that there is none")


def counts_exactly(case: Case) -> None:
    """A window's acceptance as it was, no foreign tokens in it; all of it foreign when no request is ours."""
    _must(any(w.acceptance.accepted for w in case.windows), "give a window in which tokens were accepted")
    for window in case.windows:
        before, after, records = window.before, window.after, window.records
        got = case.engine.acceptance(before, after, records)
        _must(got == window.acceptance, f"counted {got}, and it was {window.acceptance}")
        none = case.engine.acceptance(after, after, ())
        _must(none is not None and none.decode_tokens == none.rounds == none.drafted == 0, f"counted {none} in no time")
        _must(case.engine.foreign_tokens(before, after, records) == 0, "our own requests were taken for foreign ones")
        theirs = case.engine.foreign_tokens(before, after, ())
        ours = sum(r.output_tokens for r in records)
        _must(theirs == ours, f"{ours} tokens for somebody else were counted as {theirs}")


def notices_a_restart(case: Case) -> None:
    """Counters that went back are of another process: a restart, no counts, and nobody's tokens."""
    for window in case.windows:
        before, after = window.before, window.after
        got = case.engine.acceptance(after, before, window.records)
        _must(got is None, f"the counters went back, and were counted as {got}")
        _must(case.engine.restarted(after, before), "the counters went back, and no restart was noticed")
        _must(
            case.engine.foreign_tokens(after, before, ()) == 0, "the counters went back, and somebody is blamed for it"
        )
        for look in (before, after):
            _must(not case.engine.restarted(look, look), "a restart was seen where nothing happened")
        _must(not case.engine.restarted(before, after), "a restart was seen where the counters went on")


def reads_what_runs(case: Case) -> None:
    """The depth is 0 or unknown before a draft, and known after accepted ones."""
    for window in case.windows:
        drafted = window.acceptance.drafted > 0
        depth = case.engine.effective(window.after).depth
        _must(not drafted or depth, f"{window.acceptance.drafted} tokens were drafted, and the depth is {depth}")
        _must(drafted or depth in (0, None), f"nothing was drafted, and the depth is {depth}")


def believes_the_supervisor(case: Case) -> None:
    """How the process ended counts before any line of its log; exit code 137 alone is no kill."""
    for exit, failure in (
        (ExitFacts(signal=9, host_oom_kills=1), Failure.HOST_OOM),
        (ExitFacts(signal=9), Failure.KILLED),
        (ExitFacts(code=0, asked=True), Failure.STOPPED_BY_US),
    ):
        for log in ("", "CUDA out of memory. Tried to allocate 2.00 GiB", "out of memory"):
            got = case.engine.diagnose(Evidence(exit=exit, log=log)).failure
            _must(got is failure, f"{exit} with the log {log!r} is {failure}, not {got}")
    got = case.engine.diagnose(Evidence(exit=ExitFacts(code=137))).failure
    _must(got not in (Failure.KILLED, Failure.HOST_OOM), f"exit code 137 alone was taken for {got}")
    for exit in (ExitFacts(code=1), ExitFacts(signal=11), ExitFacts()):
        said = case.engine.diagnose(Evidence(exit=exit))
        _must(said.failure is not Failure.STOPPED_BY_US, f"{exit} was taken for our own doing")
        _must(said.reason, f"{exit}: no reason")


def bears_any_answer(case: Case) -> None:
    """Whatever bytes a server sends, nothing raises, and counts stay counts."""
    engine = case.engine
    rng = random.Random(20261130)
    records = case.windows[0].records
    for n in range(150):
        old, new = (spoilt(rng, rng.choice(case.windows)) for _ in range(2))
        engine.effective(new)
        _must(engine.diagnose(new).reason, "a diagnosis without a reason")
        for reply in new.replies.values():
            engine.loading(reply)
            engine.busy(reply)
        got = engine.acceptance(old, new, records)
        fine = got is None or min(got.decode_tokens, got.rounds, got.drafting_rounds, got.drafted, got.accepted) >= 0
        _must(fine, f"spoilt answers {n} were counted as {got}")
        _must(engine.foreign_tokens(old, new, records) >= 0, "fewer than no foreign tokens")
        engine.restarted(old, new)


def warns_in_good_form(case: Case) -> None:
    """What fails too is a knob of the engine, or any flag or variable, and a direction; secrets stay out of sight."""
    names = {k.name for k in case.engine.knobs()}
    _must(case.telling, "give lines of a log that tell of a failure")
    for line, exit in product(case.telling, (None, ExitFacts(code=1))):
        said = case.engine.diagnose(Evidence(log=line, exit=exit))
        for entry in said.fails_too:
            found = _FAILS_TOO.fullmatch(entry)
            known = found is not None and (":" in found["knob"] or found["knob"] in names)
            _must(known, f"{line!r}: {entry!r} is no knob with +, - or =")
        for leak in (f"{line} --api-key {SECRET}", f"{line} api_key='{SECRET}'", f"{line} {SECRET}"):
            shown = case.engine.diagnose(Evidence(log=leak, exit=exit))
            _must(SECRET not in f"{shown} {shown.line} {shown.remedy}", f"a secret is shown: {shown}")
    said_more = [case.engine.diagnose(Evidence(log=line, exit=ExitFacts(code=1))).fails_too for line in case.telling]
    _must(any(said_more), "no line says what fails too")


def foresees_from_any_log(case: Case) -> None:
    """Whatever earlier launches said, nothing raises, and no part of the memory is less than nothing."""
    rng = random.Random(20261201)
    looks = (*case.seen, *(Seen(launch=LaunchSpec(argv=w.after.argv), log=w.after.log) for w in case.windows))
    for n in range(150):
        seen = rng.choice(looks)
        lines = spoilt_body(rng, seen.log.encode()).decode(errors="replace")
        empty = Seen(launch=LaunchSpec(argv=()))
        ground = Ground(
            model=rng.choice((None, UNKNOWN_MODEL)),
            device=rng.choice((None, DEVICE, Device(name="none", total_bytes=0))),
            seen=tuple(rng.sample((msgspec.structs.replace(seen, log=lines), rng.choice(looks), empty), 2)),
        )
        told = case.engine.memory(rng.choice(case.bases), ground)
        fine = all(size >= 0 for size in told.parts.values()) and (told.kv_tokens or 0) >= 0
        _must(fine, f"spoilt log {n}: {told}")
        _must(told.verdict is Verdict.FITS or told.reason, f"spoilt log {n}: {told.verdict} without a reason")


LAWS: Mapping[str, Callable[[Case], None]] = {
    law.__name__: law
    for law in (
        has_knobs,
        reads_what_it_wrote,
        tells_what_it_wrote,
        is_settled_after_once,
        switches_off,
        keeps_foreign_words,
        refuses_what_cannot_be,
        moves,
        can_be_probed,
        knows_loading,
        knows_its_versions,
        asks_for_the_version_quickly,
        names_its_model_and_files,
        adds_only_its_own_fields,
        knows_when_it_is_busy,
        never_guesses,
        counts_exactly,
        notices_a_restart,
        reads_what_runs,
        believes_the_supervisor,
        bears_any_answer,
        warns_in_good_form,
        foresees_from_any_log,
    )
}
