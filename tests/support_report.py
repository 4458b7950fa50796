"""A realistic campaign as values, for the tests of the reports: seven depths, four cells, two rounds, some trouble.

Depth 16 runs out of memory under load ("fits up to C=16"), one launch is lost, one measurement is void, some findings.
Everything is a fixed function of depth, cell and round.
"""

from __future__ import annotations

import functools
import math
import os
import statistics
from pathlib import Path

from msgspec.structs import replace

from leadline.answer import CellResult, GoalAnswer, Loss, Ratio, Recommendation, SettingResult
from leadline.evidence import Acceptance, Diagnosis, Failure
from leadline.goal import Budget, Cell, Goal, Problem, Requirement, Weight
from leadline.report.model import Meta, Report, ServerKind, build
from leadline.space import Knob, Setting, Space
from leadline.trial import Finding, History, Measurement, Origin, Proposal, Purpose, Trial, TrialState, Void

GOLDEN = Path(__file__).parent / "golden" / "report"
DEPTHS = (0, 2, 4, 6, 8, 12, 16)
INCUMBENT = Setting.of(depth=4)
EDIT, ASK, BUSY, CROWD = Cell("coding", 1), Cell("chat", 4), Cell("coding", 16), Cell("chat", 32)
CELLS = (EDIT, ASK, BUSY, CROWD)
HOSTILE = "</title><script>alert(1)</script>\"'|`_*[x](javascript:alert(1))\x1b[31m\u202e&amp;\r=1+1"

_TOK_S = {  # by depth, as DEPTHS
    EDIT: (41.6, 47.9, 52.3, 55.8, 54.9, 51.2, 47.0),
    ASK: (118.0, 121.4, 119.2, 115.8, 110.3, 101.9, 92.4),
    BUSY: (402.0, 409.0, 398.0, 371.0, 349.0, 302.0, 263.0),
    CROWD: (655.0, 630.0, 598.0, 551.0, 507.0, 421.0, 0.0),
}
_TTFT_P99 = {EDIT: 214.0, ASK: 388.0, BUSY: 1240.0, CROWD: 2105.0}
_ACCEPT = {"coding": (0.83, 0.93), "chat": (0.41, 0.78)}  # chance at the first position, then its decay

FEW_PROMPTS = Finding(
    code="few_requests",
    message="Fewer than 100 requests: the 99th percentile is the slowest request or the one before it.",
    evidence="48 requests",
    remedy="Give the workload more prompts, or use p90 in the goal.",
)
FEW_PAIRS = Finding(
    code="few_pairs",
    message="Two launch pairs: the interval rests on few launches.",
    size="2 of 4 pairs wanted",
    remedy="Set budget.rounds to 4.",
)
FOREIGN = Diagnosis(
    failure=Failure.FOREIGN,
    reason="The server generated 412 tokens for somebody else in the window.",
    line="srv  slot launch_slot_: id  2 | task 917 | processing task",
    remedy="Give trials a private port ([traffic] private_port).",
)
OUT_OF_MEMORY = Diagnosis(
    failure=Failure.DEVICE_OOM_LOAD,
    reason="Out of memory under load at 32 requests in flight.",
    line="ggml_backend_alloc: failed to allocate 1207959552 bytes",
    remedy="Lower --parallel or the context, or stay at depth 12 or less.",
    implies="deeper ones too",
)
LOST = Diagnosis(
    failure=Failure.UNKNOWN, reason="The connection to the host was lost.", remedy="Nothing: it ran again."
)


def noise(*parts: object) -> float:
    """A factor within 1.2 % of 1 that depends on its arguments alone."""
    seed = sum(ord(c) * (i + 7) for i, c in enumerate(" ".join(map(str, parts))))
    return 1 + 0.012 * math.sin(seed)


def problem() -> Problem:
    flag = "--spec-ngram-simple-size-m"
    return Problem(
        space=Space(knobs=(Knob(name="depth", values=DEPTHS, flag=flag, unit="tokens"),)),
        incumbent=INCUMBENT,
        goals=(
            Goal(name="edit", weights=(Weight(EDIT, 1.0),)),
            Goal(name="busy", weights=(Weight(BUSY, 0.4), Weight(CROWD, 0.6))),
            Goal(
                name="first word",
                weights=(Weight(ASK, 1.0),),
                objective="ttft_ms.p99",
                requirements=(Requirement("output_tok_s", ">=", 90.0), Requirement("error_frac", "<", 0.01)),
            ),
        ),
        kept=Setting.of(spec_method="ngram-simple"),
        budget=Budget(rounds=2),
        seed=7,
    )


META = Meta(
    campaign="house assistant",
    engine="llama.cpp",
    engine_version="b10434",
    model="SmolLM2-135M-Instruct F16",
    target="command",
    server=ServerKind.REAL,
    machine={"processor": "AMD EPYC 9554, 2 cores", "memory": "7.8 GB"},
    workloads={"coding": "40 prompts, built in, digest 9f2c1e", "chat": "48 prompts, built in, digest 07ab44"},
    tool_version="0.1.0",
    started="2026-11-30T15:53:00Z",
    ended="2026-11-30T15:58:31Z",
    journal="house-assistant.journal",
    minutes_without_service=0.0,
    restarts=16,
)


def measurement(trial: int, depth: int, cell: Cell, rnd: int, origin: Origin = Origin.MEASURED) -> Measurement:
    rate = _TOK_S[cell][DEPTHS.index(depth)] * noise(depth, cell, rnd)
    ttft = _TTFT_P99[cell] * noise("ttft", depth, cell, rnd)
    tpot = 1000 * cell.concurrency / rate
    acceptance = accepted_counts(depth, cell, rnd) if depth else None
    per_round = acceptance.acceptance_length if acceptance else 1.0
    return Measurement(
        trial=trial,
        cell=cell,
        attempt=1,
        origin=origin,
        started_at=f"2026-11-30T15:{min(53 + trial // 3, 58)}:{(trial * 20) % 60:02d}Z",
        window_s=18.5,
        requests=48,
        errors=0,
        prompt_tokens=9_216,
        output_tokens=round(rate * 18.5),
        values={
            "output_tok_s": rate,
            "error_frac": 0.0,
            "tokens_per_chunk": per_round or 1.0,
            "ttft_ms.mean": 0.5 * ttft,
            "ttft_ms.p50": 0.44 * ttft,
            "ttft_ms.p99": ttft,
            "tpot_ms.p50": tpot,
            "itl_ms.p99": 2.1 * tpot,
        },
        intervals={"output_tok_s": (0.98 * rate, 1.02 * rate)},
        acceptance=acceptance,
        findings=(FEW_PROMPTS,) if cell == ASK else (),
        identity={"engine_version": "b10434", "model_sha256": "5d3c77"},
        records=f"records/{trial:04d}-{cell}.jsonl",
    )


def accepted_counts(depth: int, cell: Cell, rnd: int) -> Acceptance:
    first, decay = _ACCEPT[cell.workload]
    drafting = 900 + 13 * rnd
    per_position = tuple(round(drafting * first * decay**i) for i in range(depth))
    return Acceptance(
        decode_tokens=1_400 + sum(per_position),
        rounds=1_400,
        drafting_rounds=drafting,
        drafted=drafting * depth,
        accepted=sum(per_position),
        per_position=per_position,
    )


def trial(ident: int, depth: int, rnd: int, origin: Origin = Origin.MEASURED) -> Trial:
    purpose = {4: Purpose.INCUMBENT, 0: Purpose.BASELINE}.get(depth, Purpose.PROBE)
    cells = CELLS[:3] if depth == 16 else CELLS
    return Trial(
        id=ident,
        proposal=Proposal(setting=Setting.of(depth=depth), purpose=purpose, cells=CELLS, round=rnd),
        state=TrialState.COMPLETE,
        attempt=1,
        load_s=2.4 * noise("load", ident),
        measurements=tuple(measurement(ident, depth, c, rnd, origin) for c in cells),
    )


def history(origin: Origin = Origin.MEASURED) -> History:
    """14 launches: round 1, one launch lost on our side, round 2."""
    trials: list[Trial] = []
    for rnd, order in ((1, (4, 0, 8, 2, 16, 6, 12)), (2, (6, 4, 12, 0, 2, 8))):
        for depth in order:
            trials.append(trial(len(trials) + 1, depth, rnd, origin))
    lost = replace(trial(len(trials) + 1, 8, 2), state=TrialState.FAILED, measurements=(), diagnosis=LOST, load_s=None)
    trials.append(lost)
    at = {t.setting.depth: i for i, t in enumerate(trials[:7])}
    trials[at[16]] = replace(
        trials[at[16]], state=TrialState.INFEASIBLE, diagnosis=OUT_OF_MEMORY, extent="fits up to C=16"
    )
    void = Void(cell=ASK, attempt=1, diagnosis=FOREIGN)
    trials[at[2]] = replace(trials[at[2]], attempt=2, voids=(void,))
    return History(trials=tuple(trials), queued=(Setting.of(depth=10),))


def ratio(values: list[float], warnings: tuple[Finding, ...] = ()) -> Ratio:
    centre = math.exp(statistics.fmean(math.log(v) for v in values))
    spread = 0.011 + 0.5 * (max(values) - min(values))
    return Ratio(ratio=centre, lo=centre - spread, hi=centre + 1.1 * spread, pairs=len(values), warnings=warnings)


def score(ratios: list[Ratio]) -> Ratio:
    def middle(values: list[float]) -> float:
        return math.exp(statistics.fmean(math.log(v) for v in values))

    lo, hi = middle([r.lo for r in ratios]), middle([r.hi for r in ratios])
    return Ratio(ratio=middle([r.ratio for r in ratios]), lo=lo, hi=hi, pairs=2)


def _cell_result(hist: History, setting: Setting, cell: Cell, metric: str) -> CellResult | None:
    def values(of: Setting) -> list[float]:
        return [m.values[metric] for t in hist.complete() if t.setting == of for m in [t.measurement(cell)] if m]

    mine, theirs = values(setting), values(INCUMBENT)
    if not mine:
        return None
    higher = metric == "output_tok_s"
    pairs = [a / b if higher else b / a for a, b in zip(mine, theirs, strict=True)]
    middle = statistics.median(mine)
    return CellResult(
        cell=cell,
        metric=metric,
        value=middle,
        lo=0.985 * min(mine),
        hi=1.015 * max(mine),
        launches=len(mine),
        ratio=None if setting == INCUMBENT else ratio(pairs, warnings=(FEW_PAIRS,)),
    )


def _ranking(hist: History, goal: Goal) -> tuple[SettingResult, ...]:
    out = []
    for setting in hist.settings():
        found = [_cell_result(hist, setting, w.cell, goal.objective) for w in goal.weights]
        cells = tuple(c for c in found if c is not None)
        ratios = [c.ratio for c in cells if c.ratio]
        total = score(ratios) if len(ratios) == len(goal.weights) else None
        excluded = "" if len(cells) == len(goal.weights) else "not measured in every cell of the goal"
        out.append(SettingResult(setting=setting, cells=cells, score=total, excluded=excluded))
    return tuple(sorted(out, key=lambda r: (bool(r.excluded), -(r.score.ratio if r.score else 1.0))))


def recommendation(
    prob: Problem, hist: History, origin: Origin = Origin.MEASURED, first_word: int = 0
) -> Recommendation:
    """`first_word` = the depth recommended for the goal of that name: it makes no difference there."""
    edit, busy, first = (_ranking(hist, g) for g in prob.goals)

    def score_of(ranking: tuple[SettingResult, ...], depth: int) -> Ratio | None:
        return next(r.score for r in ranking if r.setting.depth == depth)

    answers = (
        GoalAnswer(
            goal="edit",
            objective="output_tok_s",
            setting=Setting.of(depth=6),
            score=score_of(edit, 6),
            reason="Fastest of the settings that ran; depth 8 was not shown to be worse, and the shallower wins.",
            ranking=edit,
            tie_with=(Setting.of(depth=8),),
        ),
        GoalAnswer(
            goal="busy",
            objective="output_tok_s",
            setting=Setting.of(depth=0),
            score=score_of(busy, 0),
            reason="With many requests in flight the processor has no time left for drafts.",
            ranking=busy,
            findings=(FEW_PAIRS,),
        ),
        GoalAnswer(
            goal="first word",
            objective="ttft_ms.p99",
            setting=Setting.of(depth=first_word),
            score=score_of(first, first_word),
            reason="No difference that matters between the settings that meet the requirements: the shallowest.",
            ranking=first,
            tie_with=tuple(Setting.of(depth=d) for d in (2, 4, 6, 8) if d != first_word),
        ),
    )
    return Recommendation(
        goals=answers,
        single=Setting.of(depth=2),
        single_reason="The setting whose worst loss over the three goals is smallest.",
        losses=(
            Loss(goal="edit", ratio=Ratio(ratio=0.859, lo=0.842, hi=0.875, pairs=2)),
            Loss(goal="busy", ratio=Ratio(ratio=0.987, lo=0.962, hi=1.009, pairs=2)),
            Loss(goal="first word", ratio=Ratio(ratio=1.004, lo=0.985, hi=1.021, pairs=2)),
        ),
        incumbent=INCUMBENT,
        origin=origin,
        findings=(
            Finding(
                code="knee_below_load",
                message="Speculation stops paying between 4 and 16 requests in flight.",
                remedy="If your peak load is above 16, prefer the goal `busy`.",
            ),
        ),
    )


@functools.cache
def measured() -> Report:
    prob, hist = problem(), history()
    return build(prob, hist, recommendation(prob, hist), META)


@functools.cache
def simulated() -> Report:
    prob, hist = problem(), history(Origin.SIMULATED)
    return build(
        prob,
        hist,
        recommendation(prob, hist, Origin.SIMULATED, first_word=4),
        replace(META, server=ServerKind.LAB, engine="lab"),
    )


@functools.cache
def running() -> Report:
    """After five launches and a half; no recommendation yet."""
    done = history().trials[:6]
    last = replace(done[5], state=TrialState.MEASURING, measurements=done[5].measurements[:2])
    state = "running: 5 of 14 launches, about 4 min left"
    hist = History(trials=(*done[:5], last))
    return build(problem(), hist, None, replace(META, state=state, ended="", minutes_without_service=None))


@functools.cache
def hostile() -> Report:
    """Every text that comes from outside is an attack."""
    bad = HOSTILE
    setting, today = Setting.of({"draft_model": bad}), Setting.of(draft_model="none")
    cell = Cell("coding", 1)
    finding = Finding(code=bad, message=bad, evidence=bad, size=bad, remedy=bad)
    diagnosis = Diagnosis(failure=Failure.CRASHED, reason=bad, line=bad, remedy=bad)
    prob = Problem(
        space=Space(knobs=(Knob(name="draft_model", values=("none", bad), flag=bad, unit=bad),)),
        incumbent=today,
        goals=(Goal(name=bad, weights=(Weight(cell, 1.0),)),),
    )
    fine = measurement(1, 2, cell, 1)
    trials = tuple(
        replace(
            trial(i, 2, 1),
            proposal=Proposal(setting=s, purpose=Purpose.MANUAL, cells=(cell,), reason=bad),
            measurements=(fine,),
            voids=(Void(cell=cell, attempt=1, diagnosis=diagnosis),),
        )
        for i, s in ((1, today), (2, setting))
    )
    broken = replace(trials[1], id=3, state=TrialState.INFEASIBLE, extent=bad, diagnosis=diagnosis)
    result = CellResult(cell=cell, metric="output_tok_s", value=50.0, lo=49.0, hi=51.0, launches=1)
    score = Ratio(ratio=1.2, lo=1.1, hi=1.3, pairs=1, warnings=(finding,))
    rank = (SettingResult(setting=setting, cells=(result,), score=score, excluded=bad),)
    answer = GoalAnswer(
        goal=bad,
        objective="output_tok_s",
        setting=setting,
        score=score,
        reason=bad,
        ranking=rank,
        tie_with=(setting,),
        findings=(finding,),
    )
    rec = Recommendation(
        goals=(answer,),
        single=setting,
        single_reason=bad,
        losses=(Loss(goal=bad, ratio=score),),
        incumbent=today,
        origin=Origin.MEASURED,
        findings=(finding,),
    )
    where = replace(
        META,
        campaign=bad,
        engine=bad,
        engine_version=bad,
        model=bad,
        target=bad,
        machine={bad: bad},
        workloads={"coding": bad},
        tool_version=bad,
        started=bad,
        ended=bad,
        journal=bad,
        state=bad,
        interval_method=bad,
    )
    return build(prob, History(trials=(*trials, broken), queued=(setting,)), rec, where)


@functools.cache
def two_knobs() -> Report:
    """Depth and the number of requests decoded at once, in five cells: too wide for a terminal in one piece."""
    cells = (*CELLS, Cell("extract", 8))
    space = Space(
        knobs=(
            Knob(name="max_running", values=(16, 64), flag="--parallel"),
            Knob(name="depth", values=(0, 4, 6), flag="--spec-draft-n-max"),
        )
    )
    prob = Problem(
        space=space,
        incumbent=Setting.of(depth=4, max_running=16),
        goals=(Goal(name="all", weights=tuple(Weight(c, 1.0) for c in cells)),),
    )
    trials = tuple(
        replace(trial(i, s.depth, 1), proposal=Proposal(setting=s, purpose=Purpose.PROBE, cells=cells))
        for i, s in enumerate(space.settings(), 1)
    )
    return build(prob, History(trials=trials), None, META)


def golden(name: str, text: str) -> str:
    """The stored text of that name; LEADLINE_GOLDEN=write stores `text` first, for a person to read the difference."""
    path = GOLDEN / name
    if os.environ.get("LEADLINE_GOLDEN") == "write":
        path.write_text(text, encoding="utf-8", newline="")
    return path.read_bytes().decode()
