"""Two campaigns that ran on an H200 with real servers: their journals, logs and reports are read to what happened.

The expected figures were read off the logs and off what `leadline run` printed. See tests/golden/campaigns/README.md.
"""

from __future__ import annotations

import json
import os
import random
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from leadline.build import names, plugin
from leadline.config import parse_campaign
from leadline.evidence import (
    Device,
    Effective,
    Evidence,
    ExitFacts,
    Failure,
    Footprint,
    Ground,
    Model,
    Seen,
    Verdict,
)
from leadline.journal.events import DeployStarted, Returned, SessionClosed
from leadline.journal.file import Replay, replay
from leadline.journal.ledger import Ledger
from leadline.launch import LaunchSpec
from leadline.ports import Done, Engine
from leadline.report import html, markdown, text
from leadline.report.model import Meta, Report, ServerKind, build
from leadline.space import Setting
from leadline.trial import History, Trial, TrialState

GOLDEN = Path(__file__).parents[1] / "golden"
CAMPAIGNS = GOLDEN / "campaigns"
EXPECTED: dict[str, dict[str, Any]] = json.loads((CAMPAIGNS / "expected.json").read_text())
SGLANG, VLLM = EXPECTED
GIB = 1 << 30
H200 = Device(name="NVIDIA H200", total_bytes=143771 << 20)
TARGET, DRAFT = "qwen3-30b-a3b-vocab49152", "qwen3-30b-a3b-vocab49152-eagle3"
CELLS = {"made@1": 1, "made@4": 4, "made@16": 16, "made@64": 64}
TRIALS = [(name, int(t)) for name in EXPECTED for t in EXPECTED[name]["trials"]]
FORESEEN = [(name, int(d)) for name in EXPECTED for d in EXPECTED[name]["config_alone"]]


@cache
def journal(name: str) -> Replay:
    return replay(CAMPAIGNS / name / "journal.jsonl")


def history(name: str) -> History:
    return journal(name).ledger.history()


def trial(name: str, number: int) -> Trial:
    return history(name).trials[number - 1]


def log_of(name: str, number: int) -> str:
    return (CAMPAIGNS / name / "logs" / f"trial-{number:03}-1.log").read_text(encoding="utf-8")


def engine(name: str) -> Engine:
    found: Engine = plugin("engines", EXPECTED[name]["engine"], "engine")
    return found.at(EXPECTED[name]["version"])


def launch(name: str, number: int) -> LaunchSpec:
    """As the journal has it: a command line with its environment before it."""
    (line,) = (e.launch for e in journal(name).entries if isinstance(e, DeployStarted) and e.trial == number)
    words, env = shlex.split(line), []
    while "=" in words[0]:
        key, _, value = words.pop(0).partition("=")
        env.append((key, value))
    return LaunchSpec(argv=tuple(words), env=tuple(env))


def base(name: str) -> LaunchSpec:
    spec = parse_campaign((CAMPAIGNS / name / "campaign.toml").read_text(), "campaign.toml", names())
    return LaunchSpec(argv=spec.service.command, env=spec.service.env)


# --- the journal


@pytest.mark.parametrize("name", EXPECTED)
def test_every_trial_ended_as_it_did(name):
    read = {str(t.id): (t.setting.depth, str(t.state), t.attempt) for t in history(name).trials}
    assert read == {n: (t["depth"], t["state"], 1) for n, t in EXPECTED[name]["trials"].items()}
    fractions = {t.id: t.setting.get("memory_fraction") for t in history(name).trials}
    assert fractions == {n: 0.3 if n == 2 else EXPECTED[name]["fraction"] for n in fractions}
    assert [str(s) for s in history(name).queued] == ["depth=3 memory_fraction=0.3"]
    assert not journal(name).torn
    assert journal(name).ledger.in_force is None, "a server of ours is said to be up"


@pytest.mark.parametrize(("name", "number"), TRIALS)
def test_what_really_ran_is_in_the_journal(name, number):
    told, expected = EXPECTED[name], EXPECTED[name]["trials"][str(number)]
    found = trial(name, number)
    if expected["state"] != "complete":
        assert (found.effective, found.load_s, found.measurements) == (None, None, ())
        return
    depth = expected["depth"]
    steps = told["engine"] == "sglang" and depth > 0
    assert found.load_s == pytest.approx(expected["load_s"], abs=0.05)
    assert found.effective == Effective(
        depth=depth,
        speculating=depth > 0,
        topk=1 if steps else None,
        draft_tokens=depth + 1 if steps else None,
        max_running=128,
        context=told["context"],
        kv_tokens=expected["kv_tokens"],
        memory_fraction=told["fraction"],
        graphs=True,
        graph_max_batch=64,
        moe_tuned=True,
        weights_bytes=round(expected["gib"] * GIB),
        model="/tmp/models/qwen3-30b-a3b",
        version=told["version"],
    )


@pytest.mark.parametrize("name", EXPECTED)
def test_measured_counts(name):
    told = EXPECTED[name]
    rates, counts = {}, {}
    for done in history(name).complete():
        depth = str(done.setting.depth)
        assert [str(m.cell) for m in done.measurements] == list(CELLS)
        rates[depth] = [round(m.values["output_tok_s"], 1) for m in done.measurements]
        for m in done.measurements:
            assert (m.origin, m.errors, m.output_tokens) == ("measured", 0, 128 * m.requests)
            if a := m.acceptance:
                counts.setdefault(depth, {})[str(m.cell)] = [a.rounds, a.drafted, a.accepted]
                assert (a.drafting_rounds, a.drafted) == ((a.rounds, a.rounds * int(depth)) if int(depth) else (0, 0))
                assert sum(a.per_position) == (a.accepted if name == VLLM else 0)
    assert rates == told["output_tok_s"]
    assert {d: c for d, c in counts.items() if d != "0"} == told["acceptance"]


@pytest.mark.parametrize("name", EXPECTED)
def test_acceptance_is_what_was_simulated(name):
    """0.78 a position: 1 + 0.78 + ... + 0.78^depth tokens a round."""
    for done in history(name).complete():
        depth = done.setting.depth
        for m in done.measurements if depth else ():
            assert m.values["acceptance_length"] == pytest.approx((1 - 0.78 ** (depth + 1)) / 0.22, rel=0.035)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_load_was_really_on_the_server(name):
    """All users were seen running at once, and the cap of 128 let nobody wait: one sample of 28 caught one request."""
    found = [(m, m.values) for t in history(name).complete() for m in t.measurements]
    assert [v["running_requests_max"] for _, v in found] == [CELLS[str(m.cell)] for m, _ in found]
    waited = [v["waiting_requests_max"] for _, v in found]
    assert sum(waited) == (1.0 if name == SGLANG else 0.0)
    assert all(0 < v["running_requests"] <= v["running_requests_max"] for _, v in found)


@pytest.mark.parametrize("name", EXPECTED)
def test_servers_were_given_back(name):
    ended = [e.ended for e in journal(name).entries if isinstance(e, Returned)]
    assert len(ended) == len(history(name).trials)
    served = [how for how, t in zip(ended, history(name).trials, strict=True) if t.state is TrialState.COMPLETE]
    assert set(served) == {"killed by signal 9" if name == SGLANG else "exit code 0"}


# --- what stopped and went on


def test_an_interrupted_trial_was_asked_for_again():
    cut, again = trial(SGLANG, 4), trial(SGLANG, 5)
    assert (cut.state, again.state) == (TrialState.INTERRUPTED, TrialState.COMPLETE)
    assert cut.diagnosis is not None
    assert (cut.diagnosis.failure, cut.diagnosis.reason) == (Failure.STOPPED_BY_US, "stopped by signal 15")
    assert again.proposal.setting == cut.proposal.setting
    assert "the last launch was interrupted" in again.proposal.reason
    closed = [e for e in journal(SGLANG).entries if isinstance(e, SessionClosed)]
    assert [(e.finished, e.resumable) for e in closed] == [(False, True), (True, True)]
    assert len(journal(SGLANG).ledger.sessions) == 2


@pytest.mark.parametrize(("name", "depth", "number"), [(SGLANG, 1, 4), (VLLM, 0, 5)])
def test_from_where_it_was_stopped_the_same_setting_is_next(name, depth, number):
    ledger = Ledger()
    for event in journal(name).entries:
        ledger.apply(event)
        if isinstance(event, SessionClosed):
            break
    assert len(ledger.history().trials) == number
    assert ledger.problem is not None
    strategy = plugin("strategies", "grid", "strategy")
    (first, *_) = strategy.propose(ledger.problem, ledger.history(), 4, random.Random(1))
    assert (first.setting.depth, first.setting) == (depth, trial(name, number).setting)


def test_a_finished_campaign_asks_for_nothing_more():
    ledger = journal(SGLANG).ledger
    assert ledger.problem is not None
    strategy = plugin("strategies", "grid", "strategy")
    assert isinstance(strategy.propose(ledger.problem, ledger.history(), 4, random.Random(1)), Done)


# --- command lines


@pytest.mark.parametrize(("name", "number"), TRIALS)
def test_the_same_launch_is_rendered_today(name, number):
    """Word by word; JSON by its value. And it is parsed to the setting that it was made from."""
    ran = launch(name, number)
    rendered = engine(name).render(base(name), trial(name, number).setting)
    assert [_word(w) for w in rendered.argv] == [_word(w) for w in ran.argv]
    assert rendered.env == ran.env
    parsed = engine(name).parse(ran)
    assert {k: parsed.get(k) for k in ("depth", "memory_fraction")} == dict(trial(name, number).setting.values)


def _word(word: str) -> object:
    return json.loads(word) if word.startswith("{") else word


# --- logs


@pytest.mark.parametrize(("name", "number"), TRIALS)
def test_a_log_tells_what_the_server_told(name, number):
    expected = EXPECTED[name]["trials"][str(number)]
    found = engine(name).effective(Evidence(log=log_of(name, number), argv=launch(name, number).argv))
    if expected["state"] == "complete":
        journaled = trial(name, number).effective
        assert journaled is not None
        known = {k: v for k, v in _fields(journaled).items() if not (k == "version" and name == SGLANG)}
        assert {k: v for k, v in _fields(found).items() if k in known} == known
        return
    weights = None if expected["gib"] is None else round(expected["gib"] * GIB)
    assert (found.kv_tokens, found.graphs, found.weights_bytes) == (None, None, weights)


def _fields(effective: Effective) -> dict[str, Any]:
    return {name: getattr(effective, name) for name in effective.__struct_fields__}


@pytest.mark.parametrize("name", EXPECTED)
def test_why_it_could_not_start(name):
    told = EXPECTED[name]["failure"]
    found = engine(name).diagnose(Evidence(log=log_of(name, 2), argv=launch(name, 2).argv))
    ended = trial(name, 2)
    for said in (found, ended.diagnosis, ended.voids[0].diagnosis):
        assert said is not None
        assert (said.failure, said.reason, said.remedy) == (told["class"], told["reason"], told["remedy"])
        assert list(said.fails_too) == told["fails_too"]
        assert said.line[:60] in log_of(name, 2)
    assert ended.extent == "not at all"


@pytest.mark.parametrize("name", EXPECTED)
def test_a_server_that_was_told_to_stop_did_not_fail(name):
    for done in history(name).complete():
        found = engine(name).diagnose(Evidence(log=log_of(name, done.id)))
        assert (found.failure, found.implies) == (Failure.KILLED, "says nothing of the setting")
        assert EXPECTED[name]["stopped_by"] in found.line


@pytest.mark.parametrize(
    ("exit", "failure"),
    [
        (ExitFacts(code=0), Failure.KILLED),
        (ExitFacts(signal=15), Failure.KILLED),
        (ExitFacts(code=0, asked=True), Failure.STOPPED_BY_US),
        (ExitFacts(code=1), Failure.CRASHED),
    ],
)
def test_the_exit_of_a_vllm_that_was_told_to_stop(exit, failure):
    assert engine(VLLM).diagnose(Evidence(log=log_of(VLLM, 1), exit=exit)).failure is failure


def test_a_vllm_whose_engine_died_was_not_told_to_stop():
    """The failed start ends in order too; so may a server whose engine is dead."""
    tail = "\n".join(log_of(VLLM, 1).splitlines()[-6:])
    assert "Shutting down" in tail
    failed = engine(VLLM).diagnose(Evidence(log=log_of(VLLM, 2) + tail, exit=ExitFacts(code=0)))
    assert failed.failure is Failure.NO_KV_ROOM
    serving = log_of(VLLM, 1).split("Shutdown initiated")[0].rpartition("\n")[0]
    dead = f"{serving}\nvllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.\n{tail}"
    assert engine(VLLM).diagnose(Evidence(log=dead)).failure is Failure.ENGINE_DEAD


# --- memory


def foreseen(name: str, depth: int, *seen: int, fraction: float | None = None) -> Footprint:
    """Of a setting that is rendered today, from config.json, the device and the logs of these trials."""
    setting = Setting.of(depth=depth, memory_fraction=fraction or EXPECTED[name]["fraction"])
    models = [Model(name=n, fields=json.loads((GOLDEN / "models" / f"{n}.json").read_text())) for n in (TARGET, DRAFT)]
    earlier = tuple(Seen(launch=launch(name, n), log=log_of(name, n)) for n in seen)
    ground = Ground(model=models[0], draft=models[1], device=H200, seen=earlier)
    return engine(name).memory(engine(name).render(base(name), setting), ground)


def measured(name: str, depth: int) -> int | None:
    return next(
        (t["kv_tokens"] for t in EXPECTED[name]["trials"].values() if t["depth"] == depth and t["kv_tokens"]), None
    )


@pytest.mark.parametrize(("name", "depth"), FORESEEN)
def test_tokens_before_the_first_launch(name, depth):
    found, truth = foreseen(name, depth), measured(name, depth)
    assert found.kv_tokens == EXPECTED[name]["config_alone"][str(depth)]
    if truth is not None:
        error = found.kv_tokens / truth - 1
        print(f"{name} depth {depth}, config.json alone: {found.kv_tokens:,} against {truth:,}: {error:+.3%}")
        assert abs(error) < 0.007
        assert found.verdict is Verdict.FITS


@pytest.mark.parametrize(("name", "depth"), FORESEEN)
def test_tokens_after_one_launch(name, depth):
    found, truth = foreseen(name, depth, 1), measured(name, depth)
    assert found.kv_tokens == EXPECTED[name]["from_trial_1"][str(depth)]
    if truth is not None:
        error = found.kv_tokens / truth - 1
        print(f"{name} depth {depth}, after trial 1: {found.kv_tokens:,} against {truth:,}: {error:+.4%}")
        assert abs(error) < 0.0003


@pytest.mark.parametrize(("name", "seen"), [(SGLANG, n) for n in (1, 3, 5, 6)] + [(VLLM, n) for n in (1, 3, 4)])
def test_any_one_launch_foretells_all_others(name, seen):
    truths = {d: t for d in (0, 1, 3, 5) if (t := measured(name, d)) is not None}
    errors = {d: (foreseen(name, d, seen).kv_tokens or 0) / t - 1 for d, t in truths.items()}
    print(f"{name}, from trial {seen}: " + ", ".join(f"depth {d} {e:+.4%}" for d, e in errors.items()))
    assert max(map(abs, errors.values())) < 0.0016, errors


@pytest.mark.parametrize("name", EXPECTED)
def test_the_setting_that_could_not_start_was_foreseen(name):
    alone, after = foreseen(name, 3, fraction=0.3), foreseen(name, 3, 1, fraction=0.3)
    assert (alone.verdict, after.verdict) == (Verdict.WILL_NOT_START, Verdict.WILL_NOT_START)
    assert EXPECTED[name]["failure"]["foreseen"] in alone.reason


def test_graphs_and_weights_of_sglang_are_where_its_log_says():
    for depth, gib in EXPECTED[SGLANG]["graph_gib"].items():
        found = foreseen(SGLANG, int(depth), *(1, 3, 5, 6))
        assert found.parts["graphs"] / GIB == pytest.approx(gib, abs=0.015), depth
        assert found.parts["weights"] / GIB == pytest.approx(56.11, abs=0.001)
        assert found.parts.get("draft weights", 0) / GIB == pytest.approx(0.53 if int(depth) else 0, abs=0.001)


def test_a_vllm_draft_without_its_own_embedding_is_not_charged_for_one():
    """The log says so ("Sharing target model embedding weights"): 56.24 GiB with the draft, 0.46 of its own by its
    config.json, of which 0.31 are the embedding and the head. Nothing of the 56.24 may go missing without the draft."""
    assert "Sharing target model embedding weights with the draft model" in log_of(VLLM, 1)
    with_draft, without = foreseen(VLLM, 3, 1), foreseen(VLLM, 0, 1)
    assert with_draft.parts["weights"] / GIB == pytest.approx(56.24, abs=0.001)
    assert without.parts["weights"] / GIB == pytest.approx(56.09, abs=0.005)
    gained = without.parts["KV pool"] - with_draft.parts["KV pool"]
    assert gained == pytest.approx(with_draft.parts["weights"] - without.parts["weights"], abs=2)
    assert gained / GIB == pytest.approx(0.15, abs=0.01)


# --- reports


def report_of(name: str) -> Report:
    """What `leadline report` says on the machine that measured."""
    ledger = journal(name).ledger
    assert ledger.started is not None
    assert ledger.problem is not None
    assert ledger.closed is not None
    identity = history(name).complete()[0].measurements[0].identity
    machine = dict(pair.split(" ", 1) for pair in identity["machine"].split(", "))
    meta = Meta(
        campaign=name,
        engine=ledger.started.engine,
        engine_version=identity["engine_version"],
        model=identity["model"],
        target=ledger.started.target,
        server=ServerKind.REAL,
        machine=machine,
        tool_version=ledger.started.tool_version,
        started=ledger.started.at,
        ended=ledger.last_at,
        minutes_without_service=ledger.without_service_s() / 60,
        restarts=ledger.launches,
        state=("finished" if ledger.closed.finished else "stopped") + f": {ledger.closed.reason}",
    )
    decided = ledger.decided.recommendation if ledger.decided else None
    return build(ledger.problem, ledger.history(), decided, meta)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_report_can_be_read_in_every_format(name):
    report = report_of(name)
    pages = {"text": text.render(report), "markdown": markdown.render(report), "html": html.render(report)}
    for form, page in pages.items():
        for rate in (m.values["output_tok_s"] for t in history(name).complete() for m in t.measurements):
            shown = f"{rate:.1f}" if rate < 1000 else f"{rate:.0f}"
            assert shown in page, f"{shown} tok/s is not in the {form} report"
        for cells in EXPECTED[name]["acceptance"].values():
            assert all(f"{accepted:,}" in page for *_, accepted in cells.values())
        assert "does not run" in page
        assert "interrupted" in page
        assert "simulated" not in page.lower().split("formula")[0], "a real server's report says simulated"
    assert (report.recommendation is None) == (name == VLLM)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_stored_report_is_fresh(name):
    """LEADLINE_GOLDEN=write stores it first, for a person to read the difference."""
    path, page = CAMPAIGNS / name / "report.md", markdown.render(report_of(name))
    if os.environ.get("LEADLINE_GOLDEN") == "write":
        path.write_text(page, encoding="utf-8", newline="")
    assert path.read_bytes().decode() == page


# --- the files themselves


def test_the_files_are_small_and_name_no_place_but_the_lent_machine():
    files = [p for p in CAMPAIGNS.rglob("*") if p.is_file()]
    assert sum(p.stat().st_size for p in files) < 900_000
    for path in files:
        content = path.read_text(encoding="utf-8")
        for place in ("/work" + "/", "/root" + "/", "/home" + "/", "shared" + "/"):
            assert place not in content, f"{path.name} names {place}"
