"""One cell on a running server: which prompts, whose numbers, and when they may not count."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from support_sim import BASE, PORT

from leadline.build import plugin
from leadline.deploy import Deployer, Rules, Running
from leadline.engines.sglang import engine as sglang
from leadline.errors import InputError
from leadline.evidence import Acceptance, Evidence, Failure, ProcessFacts
from leadline.goal import Cell
from leadline.load.records import read_records, write_records
from leadline.measure import Endpoint, Job, LoadRules, Measurer, Spoiled, cut, starved, values_of
from leadline.ports import LoadPlan, Site
from leadline.space import Setting
from leadline.targets.command import CommandTarget
from leadline.testing.faults import Fault, FaultKind
from leadline.testing.lab import Lab
from leadline.testing.spec import LabSpec
from leadline.trial import LoadReport, Origin

ENGINE = plugin("engines", "llamacpp", "engine")
CODING = plugin("workloads", "coding", "workload")({}, "coding")
ONE, FOUR = Cell("coding", 1), Cell("coding", 4)
ASKED = Setting.of(depth=4, spec_method="ngram-simple")
JOB = Job(trial=3, attempt=1, round=1, cell=FOUR, cells=(ONE, FOUR), asked=ASKED)
SECRET = "sk-hush-4711"


class KeepsRecords:
    """A Loader over another that writes the record file, as the real worker does."""

    def __init__(self, inner) -> None:
        self._inner = inner

    def run(self, plan: LoadPlan, alive: Callable[[], bool]) -> LoadReport:
        report = self._inner.run(plan, alive)
        write_records(plan.records, report)
        return report


def measurer(lab: Lab, folder: Path, **fields) -> Measurer:
    deployer = Deployer(
        engine=ENGINE,
        target=CommandTarget(Site(launch=BASE, script="serve.sh")),
        host=lab.host,
        prober=lab.prober(f"http://127.0.0.1:{PORT}"),
        clock=lab.clock,
        rules=Rules(start_stall_s=20.0, ready_s=5.0),
    )
    values = {
        "loader": KeepsRecords(lab.loader),
        "workloads": {"coding": CODING},
        "rules": LoadRules(requests=12, per_user=2),
        "endpoint": Endpoint(url=f"http://127.0.0.1:{PORT}", headers={"Authorization": f"Bearer {SECRET}"}),
        "records": folder,
        "seed": 1,
    }
    return Measurer(deployer=deployer, **{**values, **fields})


def started(measure: Measurer, asked: Setting = ASKED) -> Running:
    deployer = measure.deployer
    return deployer.start(ENGINE.render(BASE, asked), deployer.observe(), "trial.log")


def faulty(kind: FaultKind, **options) -> Lab:
    return Lab(LabSpec(faults=(Fault(kind=kind, **options),)))


# --- which prompts


def prompts(sessions) -> list[str]:
    return [r.prompt_id for session in sessions for r in session]


def test_cells_of_one_launch_share_no_prompt_and_none_repeats_within_a_cell() -> None:
    seen: list[str] = []
    for cell in (ONE, FOUR):
        warmup, sessions = cut(CODING, cell, (ONE, FOUR), LoadRules(requests=8, per_user=2), seed=5)
        assert (len(warmup), len(sessions)) == (cell.concurrency, 8)
        seen += prompts(warmup) + prompts(sessions)
    assert len(seen) == len(set(seen))


def test_when_there_are_too_few_for_both_a_cell_still_repeats_none() -> None:
    rules = LoadRules(requests=40, per_user=1)
    for cell in (ONE, FOUR):
        warmup, sessions = cut(CODING, cell, (ONE, FOUR), rules, seed=5)
        mine = prompts(warmup) + prompts(sessions)
        assert len(mine) == len(set(mine)) == cell.concurrency + 40


def test_a_cell_gets_the_larger_of_both_minima() -> None:
    assert [LoadRules(requests=8, per_user=3).of(c) for c in (1, 2, 4, 16)] == [8, 8, 12, 48]


def test_a_workload_that_is_too_small_is_refused_with_the_figures_and_the_way_out() -> None:
    cell = Cell("coding", 64)
    with pytest.raises(InputError, match=r"too few for coding@64: .*64 to warm up and 192 requests.*load\.per_user"):
        cut(CODING, cell, (cell,), LoadRules(requests=8, per_user=3), seed=5)


def test_all_settings_of_a_round_get_the_same_prompts_and_the_next_round_others(tmp_path: Path) -> None:
    measure = measurer(Lab(), tmp_path)
    first = measure.plan(JOB)
    other_setting = measure.plan(msgspec.structs.replace(JOB, trial=4, attempt=2, asked=Setting.of(depth=0)))
    next_round = measure.plan(msgspec.structs.replace(JOB, round=2))
    assert (first.warmup, first.sessions) == (other_setting.warmup, other_setting.sessions)
    assert prompts(first.sessions) != prompts(next_round.sessions)


def test_each_attempt_has_a_record_file_of_its_own(tmp_path: Path) -> None:
    measure = measurer(Lab(), tmp_path)
    again = msgspec.structs.replace(JOB, attempt=2)
    names = [Path(measure.plan(job).records).name for job in (JOB, again)]
    assert names == ["trial-003-coding@4-1.jsonl", "trial-003-coding@4-2.jsonl"]


def test_the_models_name_is_in_every_request_unless_the_workload_says_another(tmp_path: Path) -> None:
    endpoint = Endpoint(url="http://127.0.0.1:1", model="small")
    plan = measurer(Lab(), tmp_path, endpoint=endpoint).plan(JOB)
    assert {r.body["model"] for s in (*plan.warmup, *plan.sessions) for r in s} == {"small"}
    own = plugin("workloads", "coding", "workload")({"model": "large"}, "coding")
    plan = measurer(Lab(), tmp_path, endpoint=endpoint, workloads={"coding": own}).plan(JOB)
    assert {r.body["model"] for s in plan.sessions for r in s} == {"large"}


# --- what is measured


def test_a_measurement_holds_counts_values_intervals_and_where_they_come_from(tmp_path: Path) -> None:
    lab = Lab()
    measure = measurer(lab, tmp_path)
    found = measure.measure(started(measure), JOB)
    assert (found.trial, found.cell, found.attempt, found.requests, found.errors) == (3, FOUR, 1, 12, 0)
    assert found.origin is Origin.SIMULATED
    assert found.values["output_tok_s"] > 0
    lo, hi = found.intervals["ttft_ms.p50"]
    assert lo <= found.values["ttft_ms.p50"] <= hi
    assert found.identity["workload"] == CODING.digest
    assert {"engine", "engine_version", "model", "machine"} < set(found.identity)


def test_acceptance_is_exactly_what_the_server_did_warm_up_included(tmp_path: Path) -> None:
    lab = Lab()
    measure = measurer(lab, tmp_path)
    found = measure.measure(started(measure), JOB)
    (realised,) = lab.realised
    assert found.acceptance is not None
    assert (found.acceptance.drafted, found.acceptance.accepted) == (realised.total.drafted, realised.total.accepted)
    assert found.values["acceptance_length"] == found.acceptance.acceptance_length


def test_the_record_file_is_named_and_sealed_and_holds_no_secret(tmp_path: Path) -> None:
    measure = measurer(Lab(), tmp_path)
    found = measure.measure(started(measure), JOB)
    content = (tmp_path / found.records).read_bytes()
    assert found.records_sha256 == hashlib.sha256(content).hexdigest()
    assert len(read_records(str(tmp_path / found.records)).records) == 16
    assert SECRET.encode() not in content


def test_without_counts_there_is_no_acceptance_and_no_invented_one() -> None:
    report = LoadReport(records=(), window_start_ns=0, window_end_ns=1)
    nothing = Acceptance(decode_tokens=0, rounds=0, drafting_rounds=0, drafted=0, accepted=0)
    assert values_of(report, None) == values_of(report, nothing) == {}


# --- when it may not count


def spoiled(measure: Measurer, running: Running, job: Job = JOB) -> Failure:
    with pytest.raises(Spoiled) as raised:
        measure.measure(running, job)
    assert raised.value.diagnosis.reason
    return raised.value.diagnosis.failure


@pytest.mark.parametrize(
    ("fault", "failure"),
    [
        (Fault(kind=FaultKind.KILLED_UNDER_LOAD), Failure.KILLED),
        (Fault(kind=FaultKind.OOM_UNDER_LOAD, above_running=2), Failure.DEVICE_OOM_LOAD),
        (Fault(kind=FaultKind.HANG), Failure.NOT_GENERATING),
        (Fault(kind=FaultKind.RESTART), Failure.RESTARTED),
        (Fault(kind=FaultKind.FOREIGN), Failure.FOREIGN),
        (Fault(kind=FaultKind.WRONG_DEPTH), Failure.WRONG_DEPTH),
    ],
    ids=lambda x: str(getattr(x, "kind", x)),
)
def test_a_disturbed_measurement_is_no_measurement(tmp_path: Path, fault: Fault, failure: Failure) -> None:
    measure = measurer(faulty(**msgspec.structs.asdict(fault)), tmp_path)
    assert spoiled(measure, started(measure)) is failure


def test_somebody_elses_server_on_the_port_is_never_measured_as_ours(tmp_path: Path) -> None:
    lab = Lab()
    measure = measurer(lab, tmp_path)
    running = started(measure)
    lab.squatters[PORT] = ProcessFacts(pid=77, start_id="7", argv=("nginx",), name="nginx")
    assert spoiled(measure, running) is Failure.PORT_IN_USE


def test_foreign_requests_may_be_kept_and_then_stand_beside_the_number(tmp_path: Path) -> None:
    measure = measurer(faulty(FaultKind.FOREIGN), tmp_path, keep_foreign=True)
    found = measure.measure(started(measure), JOB)
    (finding,) = [f for f in found.findings if f.code == "foreign_requests"]
    assert int(finding.size.split()[0]) > 0


def test_failed_requests_are_counted_and_do_not_spoil_what_the_others_tell(tmp_path: Path) -> None:
    measure = measurer(faulty(FaultKind.HTTP_500, share=0.25), tmp_path)
    found = measure.measure(started(measure), JOB)
    assert (found.requests, found.errors) == (12, 3)
    assert found.values["error_frac"] == 0.25
    assert any(f.code == "errors" for f in found.findings)


RETRACT = (
    "[2026-11-30 12:00:00 TP0] KV cache pool is full. Retract requests. #retracted_reqs: 3, #new_tokens_gained: 900, "
    "#new_token_ratio: 0.5000 -> 0.7000\n"
)


def test_a_server_that_ran_out_of_room_for_tokens_in_the_window_is_a_finding() -> None:
    up = "[2026-11-30 11:59:00] The server is fired up and ready to roll!\n"
    before = Evidence(log=up)
    found = starved(sglang, before, Evidence(log=up + RETRACT))
    assert [f.code for f in found] == ["kv_starved"]
    assert "Retract requests" in found[0].evidence
    assert found[0].remedy
    earlier = Evidence(log=up + RETRACT)  # of the cell before: no finding of this one
    assert starved(sglang, earlier, earlier) == ()
