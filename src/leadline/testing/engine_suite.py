"""The laws of ports.Engine as checks that any engine, ours or a third party's, can be put through.

A law takes a Case: the engine, command lines and settings of its own, and windows of a real server. It raises
AssertionError in words when the engine breaks it, and lets through what the engine raises. Needs no test framework:

    @pytest.mark.parametrize("law", LAWS)
    def test_obeys(law):
        LAWS[law](Case(engine=MyEngine(), ...))
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from itertools import product

import msgspec

from leadline.errors import InputError
from leadline.evidence import Acceptance, Device, Evidence, ExitFacts, Failure, MemoryLaw, Model, Probe, Reply
from leadline.launch import LaunchSpec
from leadline.ports import Engine
from leadline.space import Setting
from leadline.trial import RequestRecord

ENV = ("LEADLINE_SUITE", "kept as it is")
FOLDER = "/srv/suite"
PORT = 45123
DEVICE = Device(name="suite", total_bytes=80 << 30)
UNKNOWN_MODEL = Model(name="never heard of")
SHAPES = (
    b"",
    b"\x00\xff\xfe",
    b"null",
    b"[]",
    b"[[]]",
    b"[null]",
    b"{}",
    b'"text"',
    b"-1",
    b"1e999",
    b'{"data":{}}',
    b'{"data":[7]}',
    b"[" * 100_000,
    b'{"a":' * 50_000,
)
"""Answers that are no answer, or not of the shape that was expected."""


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """Two looks at a real server with `records` between them, and what they amount to."""

    before: Evidence
    after: Evidence
    records: tuple[RequestRecord, ...]
    acceptance: Acceptance


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """`bases` are command lines of the engine, with speculation on and off; each accepts each of `settings`.

    `canonical` is the engine's own: what a setting means, and no more. `foreign` are words that the engine does not
    own, as they may stand at the end of a command line. `refused` are pairs that cannot be rendered. `windows` hold
    more accepted tokens than none in one of them. `loading` = what "health" says while the model loads; None when the
    engine does not listen then.
    """

    engine: Engine
    canonical: Callable[[Setting], Setting]
    bases: tuple[LaunchSpec, ...]
    settings: tuple[Setting, ...]
    foreign: tuple[str, ...]
    refused: tuple[tuple[LaunchSpec, Setting], ...]
    windows: tuple[Window, ...]
    loading: Reply | None = None

    def pairs(self) -> Iterator[tuple[LaunchSpec, Setting]]:
        return product(self.bases, self.settings)


def _must(condition: object, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def has_knobs(case: Case) -> None:
    """Distinct, with the engine's own flag, without values; `depth` is one of them. And it names its programs."""
    _must(case.engine.programs and all(case.engine.programs), "it does not say which programs start it")
    knobs = case.engine.knobs(None)
    names = [k.name for k in knobs]
    _must("depth" in names, f"depth is not among the knobs {names}")
    _must(len(set(names)) == len(names), f"a knob is listed twice: {names}")
    for knob in knobs:
        _must(knob.flag, f"{knob.name} has no flag of the engine")
        _must(not knob.values, f"{knob.name}: values are the operator's, not the engine's")


def reads_what_it_wrote(case: Case) -> None:
    """parse(render(base, s)) == canonical(parse(base) + s), over the knobs of the engine."""
    names = {k.name for k in case.engine.knobs(None)}
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
    """Program, folder, variables, and words that are not the engine's, in their order."""
    for base, setting in case.pairs():
        full = LaunchSpec(argv=(*base.argv, *case.foreign), env=(*base.env, ENV), cwd=FOLDER)
        for what, launch in (
            ("rendered", case.engine.render(full, setting)),
            ("moved", case.engine.move(full, PORT)),
        ):
            _must(launch.argv[0] == base.argv[0], f"{what} {full}: the program has become {launch.argv[0]}")
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
    bare = LaunchSpec(argv=case.bases[0].argv[:1])
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


def never_guesses(case: Case) -> None:
    """Where nothing is known, nothing is said."""
    nothing = Evidence()
    engine = case.engine
    seen = msgspec.structs.asdict(engine.effective(nothing))
    _must(not any(v is not None for v in seen.values()), f"effective made up {seen} from nothing")
    _must(engine.acceptance(nothing, nothing, ()) is None, "acceptance made up counts from nothing")
    _must(engine.foreign_tokens(nothing, nothing, ()) == 0, "foreign tokens made up from nothing")
    _must(not engine.restarted(nothing, nothing), "a restart made up from nothing")
    law = engine.memory_law(UNKNOWN_MODEL, DEVICE, nothing)
    _must(law == MemoryLaw(), f"the memory of an unknown model was made up: {law}")
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
        old, new = (_spoilt(rng, rng.choice(case.windows)) for _ in range(2))
        engine.effective(new)
        _must(engine.diagnose(new).reason, "a diagnosis without a reason")
        for reply in new.replies.values():
            engine.loading(reply)
        got = engine.acceptance(old, new, records)
        fine = got is None or min(got.decode_tokens, got.rounds, got.drafting_rounds, got.drafted, got.accepted) >= 0
        _must(fine, f"spoilt answers {n} were counted as {got}")
        _must(engine.foreign_tokens(old, new, records) >= 0, "fewer than no foreign tokens")
        engine.restarted(old, new)
        engine.memory_law(UNKNOWN_MODEL, DEVICE, new)


def _spoilt(rng: random.Random, window: Window) -> Evidence:
    replies = {
        name: Reply(name=name, status=rng.choice((0, 200, 200, 200, 500, 503)), body=_spoilt_body(rng, reply.body))
        for name, reply in window.after.replies.items()
    }
    log = _spoilt_body(rng, window.after.log.encode()).decode(errors="replace")
    exit = rng.choice((None, None, ExitFacts(code=rng.randrange(256)), ExitFacts(signal=rng.randrange(1, 64))))
    return Evidence(replies=replies, log=log, exit=exit, argv=window.after.argv[: rng.randrange(8)])


def _spoilt_body(rng: random.Random, body: bytes) -> bytes:
    match rng.randrange(5):
        case 0:
            return rng.choice(SHAPES)
        case 1:
            return rng.randbytes(rng.randrange(200))
        case 2:
            return body[: rng.randrange(len(body) + 1)]
        case 3:  # digits become other digits, so that the answer can still be read
            return bytes(rng.choice(b"0123456789") if 48 <= b <= 57 and rng.random() < 0.3 else b for b in body)
        case _:
            return bytes(rng.randrange(256) if rng.random() < 0.02 else b for b in body)


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
        never_guesses,
        counts_exactly,
        notices_a_restart,
        reads_what_runs,
        believes_the_supervisor,
        bears_any_answer,
    )
}
