"""Public reports of servers that crashed, hung or came back wrong, one by one: what Leadline makes of each.

`reports.json` holds what their logs say, with the class and the words that the thread settled on; what is no matter of
a log is tested at the place where it is decided. The numbers are those of one collection of such reports; each case
names its issue.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support_sim import BASE, PORT, Sim, goal

from leadline.analysis.pairing import Table, mixed_identities
from leadline.build import plugin
from leadline.deploy import Deployer, Rules, StartFailed
from leadline.errors import RefusedError
from leadline.evidence import (
    Device,
    Diagnosis,
    Effective,
    Evidence,
    ExitFacts,
    Failure,
    Ground,
    Model,
    Probe,
    ProcessFacts,
    Reply,
    Seen,
    Verdict,
)
from leadline.launch import LaunchSpec, masked
from leadline.measure import LoadRules
from leadline.ports import Prober, Site
from leadline.space import Setting
from leadline.targets.command import CommandTarget
from leadline.testing.faults import Fault, FaultKind
from leadline.testing.lab import Lab
from leadline.testing.spec import LabSpec
from leadline.trial import TrialState
from leadline.verdict import AGAIN, NOT_ITS_FAULT, differences

GOLDEN = Path(__file__).parents[1] / "golden"
TABLE = json.loads((GOLDEN / "field_reports" / "reports.json").read_text())
ROWS: list[dict[str, Any]] = TABLE["rows"]
KINDS_B_AND_C = [10, 11, 13, 14, 16, 18, 19, 20, 21, 22, 23, 24, 26, 28, 29, 30, 31, 58]
"""Of the collection: "out of memory or crash" and "hang, health or restart"."""
GIB, MIB = 1 << 30, 1 << 20
H200 = Device(name="NVIDIA H200", total_bytes=143771 * MIB)


def engine(name: str, version: str | None = None) -> Any:
    return plugin("engines", name, "engine").at(version)


def model(name: str) -> Model:
    return Model(name=name, fields=json.loads((GOLDEN / "models" / f"{name}.json").read_text()))


def command(text: str) -> LaunchSpec:
    return LaunchSpec(argv=tuple(shlex.split(text)))


# --- what their logs say


def diagnosed(name: str, row: dict[str, Any]) -> Diagnosis:
    lines: list[str] = []
    for line in row["log"]:
        lines += TABLE["fragments"][line[1:]] if line.startswith("@") else [line]
    replies = {
        n: Reply(name=n, status=status, error="" if status else "timed out")
        for n, status in row.get("replies", {}).items()
    }
    exit = ExitFacts(**row["exit"]) if "exit" in row else None
    found: Diagnosis = engine(name).diagnose(Evidence(log="\n".join(lines), replies=replies, exit=exit))
    return found


@pytest.mark.parametrize(
    ("name", "row"), [pytest.param(e, r, id=f"{r['report']} {r['case']} [{e}]") for r in ROWS for e in r["engines"]]
)
def test_what_a_log_says(name: str, row: dict[str, Any]) -> None:
    said = diagnosed(name, row)
    assert said.failure == row["failure"], said
    for words in row["says"]:
        assert words in said.remedy
    for words in row.get("reason", []):
        assert words in said.reason
    for words in row.get("implies", []):
        assert words in said.implies
    for words in row["never"]:
        assert words not in said.remedy
    assert set(row["fails_too"]) <= set(said.fails_too)
    assert not set(row["spares"]) & set(said.fails_too)


def test_every_report_is_here() -> None:
    here = {int(name[6:8]) for name in globals() if name.startswith("test_r")}
    assert sorted(here | {int(r["report"][1:]) for r in ROWS}) == KINDS_B_AND_C


# --- what is decided elsewhere


def test_r10_captured_graphs_count_tokens() -> None:
    """vllm-project/vllm issue 49390, vllm-ascend 14440: capture sizes are tokens, requests * (1 + depth). And a key
    inside of the JSON that is not ours stays (`enforce_eager`)."""
    log = (
        "Initializing a V1 LLM engine (v0.11.0) with config: model='m', speculative_config=SpeculativeConfig("
        "method='mtp', model='m', num_spec_tokens=7), max_seq_len=32768, compilation_config={'max_cudagraph_capture_"
        "size': 512}"
    )
    assert engine("vllm").effective(Evidence(log=log)).graph_max_batch == 64
    spec = '{"num_speculative_tokens": 1,"method": "mtp","enforce_eager": true}'
    more = '{"enable_multithread_load": "true", "num_threads": 8}'
    base = LaunchSpec(argv=("vllm", "serve", "m", "--speculative-config", spec, f"--model-loader-extra-config={more}"))
    argv = engine("vllm").render(base, Setting.of(depth=2)).argv
    assert json.loads(argv[4]) == {"num_speculative_tokens": 2, "method": "mtp", "enforce_eager": True}
    assert f"--model-loader-extra-config={more}" in argv


def test_r11_two_opposite_errors_leave_no_fraction() -> None:
    said = [diagnosed("sglang", row) for row in ROWS if row["report"] == "R11"]
    assert {"memory_fraction+", "memory_fraction-"} <= {knob for one in said for knob in one.fails_too}
    assert all("depth+" in one.fails_too for one in said), "what is left is less depth"


def test_r14_the_depth_that_does_not_load_is_told_before() -> None:
    """sudoingX/qwen38-mtp, RTX 5060 Ti: 15,404 and 15,554 MiB at depths 2 and 3, 15,840 in all."""
    words = "llama-server -m q.gguf -ngl 99 -c 32768 -np 1 --spec-type draft-mtp --spec-draft-n-max"

    def log(total: int, states: int) -> str:
        return (
            "using device CUDA0 (NVIDIA RTX (a)) (0000:01:00.0) - 15840 MiB free\n"
            f"load_tensors: CUDA0 model buffer size = {total - states}.00 MiB\n"
            f"llama_memory_recurrent: CUDA0 RS buffer size = {states}.00 MiB\n"
            "srv load_model: initializing, n_slots = 1, n_ctx_slot = 32768, kv_unified = 'false'"
        )

    seen = (
        Seen(launch=command(f"{words} 2"), log=log(15404, 450)),
        Seen(launch=command(f"{words} 3"), log=log(15554, 600)),
    )
    found = {d: engine("llamacpp").memory(command(f"{words} {d}"), Ground(seen=seen)) for d in (4, 5, 6)}
    assert found[4].verdict is not Verdict.WILL_NOT_START
    assert [found[d].verdict for d in (5, 6)] == [Verdict.WILL_NOT_START] * 2
    assert "15854 MiB are needed" in found[5].reason


def test_r18_a_draft_eats_the_pool_of_a_hybrid_model() -> None:
    """SamMausberg/verified-progress: 662,552 tokens with 2 steps, 54,077 with 5, and the sixth cannot start."""

    def argv(steps: int) -> LaunchSpec:
        return command(
            "python -m sglang.launch_server --model-path Qwen/Qwen3.5-4B --mem-fraction-static 0.85 "
            "--max-running-requests 128 --max-mamba-cache-size 640 --speculative-algorithm NEXTN "
            f"--speculative-num-steps {steps} --speculative-eagle-topk 1 --speculative-num-draft-tokens {steps + 1}"
        )

    log = "max_total_num_tokens=662552, chunked_prefill_size=8192, max_prefill_tokens=16384"
    ground = Ground(model=model("qwen3.5-4b"), seen=(Seen(launch=argv(2), log=log),))
    five, six = (engine("sglang", "0.5.21").memory(argv(steps), ground) for steps in (5, 6))
    assert five.kv_tokens == pytest.approx(54_077, rel=0.003)
    assert (five.verdict, six.verdict) == (Verdict.STARVED, Verdict.WILL_NOT_START)


def test_r20_health_proves_no_memory(tmp_path: Path) -> None:
    """vllm-project/vllm issue 21410: a setting is feasible as far as it was loaded."""
    fault = Fault(kind=FaultKind.OOM_UNDER_LOAD, depths=(4,), above_running=4)
    sim = Sim(Lab(LabSpec(faults=(fault,)), seed=5), tmp_path, goals=(goal("all", "coding@1", "coding@8"),), rounds=1)
    sim.load = LoadRules(warmup=0, requests=8, per_user=1)
    answer = sim.run()
    (trial,) = sim.ledger().history().of(Setting.of(depth=4))
    assert (trial.state, trial.extent) == (TrialState.INFEASIBLE, "fits up to C=1")
    assert answer.single.depth != 4


def test_r21_another_version_is_another_server(tmp_path: Path) -> None:
    """sgl-project/sglang issues 23862, 28683: the same fraction leaves another pool. Numbers of two versions are not
    compared, and the memory law asks for the version."""
    sim = Sim(Lab(LabSpec()), tmp_path, rounds=1)
    sim.run()
    one, other = sim.ledger().history().trials[:2]
    assert all(m.identity["engine_version"] for m in (*one.measurements, *other.measurements))
    moved = tuple(
        msgspec.structs.replace(m, identity={**m.identity, "engine_version": "b9999"}) for m in other.measurements
    )
    newer = msgspec.structs.replace(other, measurements=moved)
    weights = sim.problem.goals[0].weights
    same = Table([one, other], weights, "output_tok_s", one.setting)
    assert same.versus(other.setting, one.setting) is not None
    mixed = Table([one, newer], weights, "output_tok_s", one.setting)
    assert mixed.versus(newer.setting, one.setting) is None
    assert "engine_version" in mixed_identities([one, newer])[0].message
    launch = command("sglang serve --model-path m --mem-fraction-static 0.88 --max-running-requests 16")
    ground = Ground(model=model("qwen3.5-4b"), device=H200)
    pools = {engine("sglang", v).memory(launch, ground).kv_tokens for v in ("0.5.9", "0.5.23")}
    assert len(pools) == 2


def test_r22_tokens_and_requests_that_do_not_agree() -> None:
    """noonghunna/club-3090 issue 613: neither figure is made from the other."""
    log = (GOLDEN / "vllm" / "plain.log").read_text()
    launch = command("vllm serve org/model")
    found = engine("vllm").memory(launch, Ground(seen=(Seen(launch=launch, log=log),)))
    assert found.kv_tokens == pytest.approx(106_240, abs=1)
    assert "24.20 requests of 16,384 tokens" in found.basis
    assert "neither figure follows from the other" in found.basis
    agrees = log.replace("24.20x", "6.48x")
    assert "neither" not in engine("vllm").memory(launch, Ground(seen=(Seen(launch=launch, log=agrees),))).basis


def test_r22_a_draft_context_is_no_part_of_what_fits() -> None:
    """llama.cpp issue 23472: `-fit` leaves the MTP context out. Until one launch had it, nothing is said to fit."""
    log = (
        "using device CUDA0 (NVIDIA RTX (a)) (0000:01:00.0) - 32000 MiB free\n"
        "load_tensors: CUDA0 model buffer size = 18000.00 MiB\n"
        "llama_kv_cache: CUDA0 KV buffer size =   544.00 MiB\n"
        "srv load_model: initializing, n_slots = 1, n_ctx_slot = 98304, kv_unified = 'false'"
    )
    plain = command("llama-server -m q.gguf -ngl 99 -c 98304 -np 1")
    drafts = command("llama-server -m q.gguf -ngl 99 -c 98304 -np 1 --spec-type draft-mtp --spec-draft-n-max 2")
    ground = Ground(seen=(Seen(launch=plain, log=log),))
    assert engine("llamacpp").memory(plain, ground).verdict is Verdict.FITS
    found = engine("llamacpp").memory(drafts, ground)
    assert found.verdict is Verdict.UNKNOWN
    assert "the draft's own context" in found.reason


def deployer(lab: Lab, **rules: float) -> Deployer:
    return Deployer(
        engine=engine("llamacpp"),
        target=CommandTarget(Site(launch=BASE, script="serve.sh")),
        host=lab.host,
        prober=lab.prober(f"http://127.0.0.1:{PORT}"),
        clock=lab.clock,
        rules=Rules(**{"start_stall_s": 120.0, "ready_s": 5.0, "grace_s": 2.0, **rules}),
    )


def start(deploy: Deployer) -> Any:
    launch = deploy.engine.render(BASE, Setting.of(depth=2, spec_method="ngram-simple"))
    return deploy.start(launch, deploy.observe(), "trial.log")


class Unwell:
    """The health check of a server that reads a long prompt."""

    def __init__(self, prober: Prober) -> None:
        self._prober = prober

    def fetch(self, probe: Probe) -> Reply:
        return Reply(name="health", status=503) if probe.name == "health" else self._prober.fetch(probe)


def test_r23_a_token_is_the_proof_of_life_and_not_health() -> None:
    lab = Lab(LabSpec(faults=(Fault(kind=FaultKind.MUTE),)))
    with pytest.raises(StartFailed) as failed:
        start(deployer(lab, start_stall_s=20.0))
    assert failed.value.diagnosis.failure is Failure.NOT_GENERATING
    assert Failure.NOT_GENERATING in AGAIN


def test_r24_a_server_that_is_busy_is_not_restarted() -> None:
    deploy = deployer(Lab())
    running = start(deploy)
    busy = msgspec.structs.replace(deploy, prober=Unwell(deploy.prober))
    assert not busy.evidence(running).replies["health"].ok
    assert busy.doubt(running, generate=True) is None


def test_r26_a_server_that_hangs_under_load_is_no_answer(tmp_path: Path) -> None:
    sim = Sim(Lab(LabSpec(faults=(Fault(kind=FaultKind.HANG, depths=(4,)),)), seed=5), tmp_path, start_stall_s=20.0)
    answer = sim.run()
    hung = sim.ledger().history().of(Setting.of(depth=4))
    assert hung[0].state is not TrialState.COMPLETE
    assert {v.diagnosis.failure for t in hung for v in t.voids} == {Failure.NOT_GENERATING}
    assert answer.single.depth != 4


def test_r28_who_killed_it() -> None:
    """A signal 9 with and without a kernel that says why; and a start limit is held against no setting."""
    for name in ("sglang", "vllm", "llamacpp", "trtllm"):
        by = {
            kills: engine(name).diagnose(Evidence(log="loading", exit=ExitFacts(signal=9, host_oom_kills=kills)))
            for kills in (0, 1)
        }
        assert (by[0].failure, by[1].failure) == (Failure.KILLED, Failure.HOST_OOM)
        stopped = engine(name).diagnose(Evidence(log="loading", exit=ExitFacts(signal=9, asked=True)))
        assert stopped.failure is Failure.STOPPED_BY_US
    assert Failure.START_LIMIT in NOT_ITS_FAULT


def test_r29_a_start_of_23_minutes_that_goes_on_is_waited_for() -> None:
    """1,374 s with 120 s of patience between two signs of life; the same silence ends a start."""
    lab = Lab(LabSpec(faults=(Fault(kind=FaultKind.SLOW_START, seconds=1374.0),)))
    assert start(deployer(lab)).load_s == pytest.approx(1374, abs=1)
    silent = Lab(LabSpec(faults=(Fault(kind=FaultKind.SILENT_START),)))
    with pytest.raises(StartFailed) as failed:
        start(deployer(silent))
    assert failed.value.diagnosis.failure is Failure.NO_PROGRESS
    assert silent.clock.now_ns() / 1e9 == pytest.approx(120, abs=10)


def test_r30_a_server_that_was_left_over_is_never_measured() -> None:
    """sudoingX/qwen38-mtp, RTX 3090: it kept the port, and the next arm had its numbers."""
    lab = Lab()
    lab.squatters[PORT] = ProcessFacts(pid=77, start_id="7", argv=("llama-server",), name="llama-server")
    with pytest.raises(RefusedError, match=r"in use by llama-server \(pid 77\)"):
        start(deployer(lab))
    assert lab.processes == []
    wrong, _ = differences(Setting.of(depth=4), Effective(depth=2, speculating=True))
    assert wrong is not None
    assert wrong.failure is Failure.WRONG_DEPTH
    later = Lab()
    deploy = deployer(later)
    running = start(deploy)
    another = deploy.doubt(msgspec.structs.replace(running, start_id="before"))
    assert another is not None
    assert another.failure is Failure.RESTARTED


def test_r31_a_missing_compiler_is_held_against_no_depth() -> None:
    (row,) = (r for r in ROWS if r["report"] == "R31")
    said = diagnosed("sglang", row)
    assert said.failure in NOT_ITS_FAULT
    assert said.fails_too == ()


def test_r58_a_block_drafter_in_a_container_command() -> None:
    """hasso5703/dgx-spark-qwen38: DFLASH has draft tokens and no steps; the key comes from a file."""
    script = (
        "exec python3 -m sglang.launch_server --model-path m --speculative-algorithm DFLASH \\\n"
        "  --speculative-draft-model-path d --speculative-num-draft-tokens 8 --max-running-requests 8 \\\n"
        '  --mem-fraction-static 0.50 --api-key "$(cat /etc/llm/key)" --port 30000'
    )
    base = LaunchSpec(argv=("/bin/bash", "-c", script), scratch="/run/leadline")
    sglang = engine("sglang", "0.5.23")
    assert sglang.parse(base).integer("depth") == 7
    launch = sglang.render(base, Setting.of(depth=3))
    assert sglang.parse(launch).integer("depth") == 3
    text = " ".join((*launch.argv, *(file.content for file in launch.ours)))
    assert "--speculative-num-draft-tokens 4" in text
    assert "num-steps" not in text
    assert "--mem-fraction-static 0.50" in text, "a hard bound of that machine"
    assert '"$(cat /etc/llm/key)"' in text, "read where it is used"
    assert "$(cat" not in " ".join(masked(launch).argv)
