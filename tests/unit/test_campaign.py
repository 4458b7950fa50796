"""What a campaign does next, and what it writes first: whole campaigns in virtual time."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from support_sim import PORT, Sim, goal

from leadline.errors import (
    HostError,
    InputError,
    InterruptedRun,
    JournalError,
    NoAnswerError,
    NothingFeasibleError,
    RefusedError,
)
from leadline.evidence import Failure, ProcessFacts
from leadline.journal.events import (
    DeployFinished,
    DeployStarted,
    Measured,
    MeasureStarted,
    Returned,
    Returning,
    SettingQueued,
    TrialEnded,
    TrialPlanned,
    tag,
)
from leadline.journal.file import replay
from leadline.ports import Completed
from leadline.space import Knob, Setting, Space
from leadline.testing.faults import Fault, FaultKind
from leadline.testing.lab import Lab
from leadline.testing.spec import LabSpec
from leadline.trial import TrialState

QUIET = LabSpec(launch_sd=0.0, point_sd=0.0)


def events(sim: Sim) -> list:
    return list(replay(sim.folder / "journal.jsonl").entries)


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder


# --- order


def test_every_effect_comes_after_its_intent(tmp_path: Path) -> None:
    """At each moment when the journal's watcher looks, the world holds only what was announced before."""
    lab = Lab(QUIET)
    sim = Sim(lab, tmp_path, rounds=1)
    seen = []

    def watch(event) -> None:
        seen.append(event)
        if isinstance(event, DeployStarted):
            assert len(lab.processes) == event.trial - 1, "nothing is started before its intent is on disk"
        if isinstance(event, MeasureStarted):
            assert len(lab.realised) == sum(isinstance(e, Measured) for e in seen)
        if isinstance(event, Returning):
            assert lab.host.listener("127.0.0.1", PORT) is not None
        if isinstance(event, Returned | TrialEnded):
            assert lab.host.listener("127.0.0.1", PORT) is None

    sim.run(watch)
    trial = [tag(e) for e in seen if getattr(e, "trial", getattr(getattr(e, "measurement", None), "trial", 0)) == 1]
    measured = ["measure_started", "measured"]
    assert trial == [
        "trial_planned", "deploy_started", "deploy_finished", *measured, *measured, "returning", "returned",
        "trial_ended",
    ]  # fmt: skip


def test_the_way_back_is_written_down_before_anything_is_started(tmp_path: Path) -> None:
    sim = Sim(Lab(QUIET), tmp_path, rounds=1)
    sim.run()
    started = [e for e in events(sim) if isinstance(e, DeployStarted)]
    assert all("stop" in " ".join(e.undo) for e in started)
    assert all(e.files == {"serve.sh": "absent", "serve.sh.leadline-previous": "absent"} for e in started)


def test_every_setting_is_launched_once_a_round_and_the_incumbent_and_depth_0_are_among_them(tmp_path: Path) -> None:
    sim = Sim(Lab(QUIET), tmp_path, rounds=2)
    sim.run()
    trials = sim.ledger().history().trials
    for number in (1, 2):
        assert sorted(t.setting.depth for t in trials if t.proposal.round == number) == [0, 2, 4, 6]
    assert trials[0].setting == sim.problem.incumbent
    assert sim.ledger().closed.finished


# --- settings queued by hand


def test_a_setting_queued_while_it_runs_is_taken_up_with_launches_of_the_incumbent_beside_it(tmp_path: Path) -> None:
    sim = Sim(Lab(QUIET), tmp_path, rounds=2)
    ten = Setting.of(depth=10)
    sim.run(lambda e: sim.inbox.append(ten) if isinstance(e, TrialEnded) and e.trial == 2 else None)
    history = sim.ledger().history()
    assert history.queued == (ten,)
    assert [t.state for t in history.of(ten)] == [TrialState.COMPLETE] * 2
    by_round = {t.proposal.round for t in history.of(sim.problem.incumbent)}
    assert {t.proposal.round for t in history.of(ten)} <= by_round
    assert history.of(ten)[0].id <= 5, "after the trial that was going on, not at the very end"


def test_a_finished_campaign_takes_a_queued_setting_up_and_says_how_it_compares(tmp_path: Path) -> None:
    sim = Sim(Lab(QUIET), tmp_path, rounds=2)
    sim.run()
    sim.inbox.append(Setting.of(depth=10))
    recommendation = sim.run()
    trials = sim.ledger().history().trials[8:]
    assert sorted(t.setting.depth for t in trials) == [2, 2, 10, 10]
    ranked = next(r for r in recommendation.goals[0].ranking if r.setting.depth == 10)
    assert ranked.score.pairs == 2
    assert [type(e) for e in events(sim)].count(SettingQueued) == 1


def test_what_was_taken_up_is_not_taken_up_again(tmp_path: Path) -> None:
    sim = Sim(Lab(QUIET), tmp_path, rounds=1)
    sim.inbox += [Setting.of(depth=10), Setting.of(depth=10)]
    sim.run()
    launches = sim.ledger().launches
    sim.run()
    assert sim.ledger().launches == launches
    assert len(sim.ledger().history().of(Setting.of(depth=10))) == 1


# --- going on


def test_a_finished_campaign_launches_nothing_and_gives_the_same_answer(tmp_path: Path) -> None:
    sim = Sim(Lab(QUIET), tmp_path)
    first = sim.run()
    assert sim.run() == first
    assert len(sim.lab.processes) == 8
    assert [tag(e) for e in events(sim)][-2:] == ["session_opened", "session_closed"]


def test_an_interrupted_trial_is_asked_for_again_and_what_was_complete_is_not(tmp_path: Path) -> None:
    sim = Sim(Lab(QUIET), tmp_path, rounds=1)

    def watch(event) -> None:
        if isinstance(event, MeasureStarted) and event.trial == 3:
            raise InterruptedRun(1)

    with pytest.raises(InterruptedRun):
        sim.run(watch)
    sim.run()
    trials = sim.ledger().history().trials
    assert [t.state for t in trials].count(TrialState.INTERRUPTED) == 1
    assert sorted(t.setting.depth for t in trials if t.state is TrialState.COMPLETE) == [0, 2, 4, 6]
    assert trials[2].diagnosis.failure is Failure.STOPPED_BY_US
    assert trials[3].setting == trials[2].setting


def test_other_goals_over_the_same_cells_are_answered_without_a_launch(tmp_path: Path) -> None:
    sim = Sim(Lab(QUIET), tmp_path)
    sim.run()
    goals = (goal("alone", "coding@1"), goal("crowd", "coding@4", objective="ttft_ms.p50"))
    sim.problem = msgspec.structs.replace(sim.problem, goals=goals)
    recommendation = sim.run()
    assert [g.goal for g in recommendation.goals] == ["alone", "crowd"]
    assert len(sim.lab.processes) == 8
    assert [tag(e) for e in events(sim)].count("problem_changed") == 1


def test_a_cell_that_is_new_to_a_measured_campaign_is_refused(tmp_path: Path) -> None:
    """What ran before has no number there: nothing could be compared with today's setting."""
    sim = Sim(Lab(QUIET), tmp_path)
    sim.run()
    sim.problem = msgspec.structs.replace(sim.problem, goals=(goal("more", "coding@1", "coding@8"),))
    with pytest.raises(InputError, match=r"coding@8, where nothing was measured .* new folder"):
        sim.run()
    assert len(sim.lab.processes) == 8


def test_the_server_is_ended_even_when_the_journal_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sim = Sim(Lab(QUIET), tmp_path)
    real = os.write

    def full(fd: int, data: bytes) -> int:
        return real(fd, data[:20] if b'"event":"measured"' in data else data)

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(JournalError, match="could not be written"):
        sim.run()
    monkeypatch.undo()
    assert not sim.lab.listener(PORT)
    assert sim.lab.processes[0].exit() is not None
    assert [tag(e) for e in events(sim)][-1] == "measure_started"
    assert sim.run().single is not None


def test_a_wider_knob_launches_only_what_is_new(tmp_path: Path) -> None:
    sim = Sim(Lab(QUIET), tmp_path, rounds=1)
    sim.run()
    sim.problem = msgspec.structs.replace(
        sim.problem, space=Space(knobs=(Knob(name="depth", values=(0, 2, 4, 6, 8, 12)),))
    )
    sim.run()
    assert sorted(t.setting.depth for t in sim.ledger().history().trials[4:]) == [8, 12]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"kept": Setting.of(spec_method="ngram-mod")}, "another kept knobs"),
        (
            {"space": Space(knobs=(Knob(name="depth", values=(2,)), Knob(name="max_running", values=(1,))))},
            "knobs' names",
        ),
    ],
)
def test_another_service_in_the_same_folder_is_refused(tmp_path: Path, change: dict, told: str) -> None:
    sim = Sim(Lab(QUIET), tmp_path, rounds=1)
    sim.run()
    before = (tmp_path / "journal.jsonl").read_bytes()
    sim.problem = msgspec.structs.replace(sim.problem, **change)
    with pytest.raises(InputError, match=rf"{told}.*new folder"):
        sim.run()
    assert (tmp_path / "journal.jsonl").read_bytes() == before


def test_while_a_campaign_runs_a_second_one_in_its_folder_is_refused(tmp_path: Path) -> None:
    sim = Sim(Lab(QUIET), tmp_path, rounds=1)
    refused: list[str] = []

    def watch(event) -> None:
        if isinstance(event, DeployFinished) and not refused:
            with pytest.raises(JournalError) as raised:
                Sim(Lab(QUIET), tmp_path).run()
            refused.append(str(raised.value))

    sim.run(watch)
    assert "is held by another process: sim, pid" in refused[0]


# --- refusals and pauses


def test_a_taken_port_is_refused_before_anything_is_started_and_the_campaign_can_go_on(tmp_path: Path) -> None:
    lab = Lab(QUIET)
    lab.squatters[PORT] = ProcessFacts(pid=77, start_id="7", argv=("nginx",), name="nginx")
    sim = Sim(lab, tmp_path, rounds=1)
    with pytest.raises(RefusedError, match=r"nginx \(pid 77\)"):
        sim.run()
    ledger = sim.ledger()
    assert (lab.processes, ledger.history().trials) == ([], ())
    assert "nginx" in ledger.closed.reason
    assert lab.squatters[PORT].pid == 77
    lab.squatters.clear()
    sim.run()
    assert sim.ledger().closed.finished


def test_too_little_memory_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    lab = Lab(QUIET)
    lab.free_memory_bytes = 1 << 30
    sim = Sim(lab, tmp_path)
    sim.rules = msgspec.structs.replace(sim.rules, min_free_memory_bytes=2 << 30)
    with pytest.raises(RefusedError, match="min_free_memory_gib"):
        sim.run()
    assert lab.processes == []


def test_foreign_requests_pause_the_campaign_with_what_to_do_and_the_service_is_given_back(tmp_path: Path) -> None:
    sim = Sim(Lab(LabSpec(faults=(Fault(kind=FaultKind.FOREIGN, depths=(0,)),))), tmp_path, rounds=1)
    with pytest.raises(NoAnswerError, match=r"paused at depth=0: .*somebody else.*traffic\.private_port.*goes on"):
        sim.run()
    ledger = sim.ledger()
    assert ledger.closed.reason.startswith("paused: ")
    assert ledger.in_force is None
    assert sim.lab.host.listener("127.0.0.1", PORT) is None


def test_a_host_that_fails_pauses_and_says_nothing_about_the_setting(tmp_path: Path) -> None:
    lab = Lab(QUIET)

    def broken(argv) -> Completed:
        raise HostError("the connection is lost")

    sim = Sim(lab, tmp_path, rounds=1)
    lab.commands["sha256sum"] = broken
    with pytest.raises(NoAnswerError, match="our side failed: the connection is lost"):
        sim.run()
    (trial,) = sim.ledger().history().trials
    assert (trial.state, lab.processes) == (TrialState.FAILED, [])


def test_when_no_setting_runs_that_is_the_answer_with_its_own_exit_code(tmp_path: Path) -> None:
    sim = Sim(Lab(LabSpec(faults=(Fault(kind=FaultKind.OOM_AT_START),))), tmp_path)
    with pytest.raises(NothingFeasibleError, match="no setting has been measured completely") as raised:
        sim.run()
    assert raised.value.exit_code == 3
    trials = sim.ledger().history().trials
    assert {(t.state, t.extent) for t in trials} == {(TrialState.INFEASIBLE, "not at all")}
    assert len(trials) == 4, "none is tried twice"
    assert sim.ledger().closed.finished


# --- what is measured, and what may be recommended


def test_a_server_that_runs_another_depth_makes_the_setting_infeasible_with_the_reason(tmp_path: Path) -> None:
    sim = Sim(Lab(LabSpec(faults=(Fault(kind=FaultKind.WRONG_DEPTH, depths=(4,), depth=1),))), tmp_path)
    recommendation = sim.run()
    (trial,) = sim.ledger().history().of(Setting.of(depth=4))
    assert (trial.state, trial.diagnosis.failure) == (TrialState.INFEASIBLE, Failure.WRONG_DEPTH)
    assert "asked for depth 4, the server runs depth 1" in trial.diagnosis.reason
    assert recommendation.single.depth != 4


def test_a_cap_that_memory_dictates_is_a_finding_beside_every_number(tmp_path: Path) -> None:
    """With 64 requests asked for, the deeper settings have room for fewer."""
    spec = msgspec.structs.replace(QUIET, tokens_per_slot=4096, kv_tokens=262144, kv_lost_per_depth_tokens=8192)
    sim = Sim(Lab(spec), tmp_path, rounds=1)
    sim.problem = msgspec.structs.replace(sim.problem, kept=Setting.of(spec_method="ngram-simple", max_running=64))
    sim.run()
    for trial in sim.ledger().history().trials:
        found = [f for m in trial.measurements for f in m.findings if f.code == "max_running_cut"]
        assert trial.state is TrialState.COMPLETE
        assert len(found) == (len(trial.measurements) if trial.setting.depth else 0)
        assert all(f.size == f"{-2 * trial.setting.depth} requests" for f in found)


def test_the_answer_rests_on_no_void_measurement(tmp_path: Path) -> None:
    """The second launch is disturbed once and measured again; its numbers are those of an undisturbed campaign."""
    clean = Sim(Lab(QUIET), made(tmp_path / "clean"))
    disturbed = Sim(
        Lab(msgspec.structs.replace(QUIET, faults=(Fault(kind=FaultKind.RESTART, launches=(2,)),))),
        made(tmp_path / "disturbed"),
    )
    expected, found = clean.run(), disturbed.run()
    assert sum(len(t.voids) for t in disturbed.ledger().history().trials) == 1
    voided = next(t for t in disturbed.ledger().history().trials if t.voids)
    assert {m.attempt for m in voided.measurements} == {2}
    assert [(g.goal, g.setting) for g in found.goals] == [(g.goal, g.setting) for g in expected.goals]


def test_numbers_of_the_lab_are_marked_as_simulated(tmp_path: Path) -> None:
    sim = Sim(Lab(QUIET), tmp_path, rounds=1)
    assert sim.run().origin == "simulated"
    assert {m.origin for t in sim.ledger().history().trials for m in t.measurements} == {"simulated"}


def test_settings_of_one_round_get_the_same_prompts(tmp_path: Path) -> None:
    sim = Sim(Lab(QUIET), tmp_path)
    sim.run()
    totals: dict[tuple[int, str], set[int]] = {}
    for trial in sim.ledger().history().trials:
        for m in trial.measurements:
            totals.setdefault((trial.proposal.round, str(m.cell)), set()).add(m.prompt_tokens)
    assert all(len(prompts) == 1 for prompts in totals.values())
    assert totals[1, "coding@4"] != totals[2, "coding@4"]


def test_proposals_are_numbered_without_a_gap(tmp_path: Path) -> None:
    sim = Sim(Lab(QUIET), tmp_path)
    sim.run()
    assert [e.trial for e in events(sim) if isinstance(e, TrialPlanned)] == list(range(1, 9))
