"""The report as values: what is shown, in which order, and on which launches it rests."""

from __future__ import annotations

import support_report as sample
from msgspec.structs import replace

from leadline.analysis.recommend import recommend
from leadline.goal import Cell, Refusal
from leadline.report import data, html, markdown, sections, text
from leadline.report.model import ServerKind, banner, build
from leadline.space import Setting
from leadline.trial import Finding, History, Origin, TrialState


def at(report, depth: int, cell: Cell, objective: int = 0):
    return report.objectives[objective].at(Setting.of(depth=depth), cell)


def test_settings_are_in_order_of_depth_and_know_their_roles():
    rows = sample.measured().settings
    assert [r.setting.depth for r in rows] == list(sample.DEPTHS)
    by_depth = {r.setting.depth: r for r in rows}
    assert by_depth[4].incumbent
    assert by_depth[6].recommended_for == ("edit",)
    assert by_depth[0].recommended_for == ("busy", "first word")
    assert by_depth[2].single
    assert by_depth[16].extent == "fits up to C=16"
    assert not by_depth[16].complete


def test_other_knobs_are_sorted_in_the_order_of_their_domain_before_depth():
    settings = [str(r.setting) for r in sample.two_knobs().settings]
    assert settings == [f"depth={d} max_running={m}" for m in (16, 64) for d in (0, 4, 6)]


def test_the_incumbent_has_a_row_even_before_it_was_launched():
    report = build(sample.problem(), History(), None, sample.META)
    assert [r.setting for r in report.settings] == [sample.INCUMBENT]
    assert not report.settings[0].complete


def test_judged_values_are_the_recommendations_own():
    point = at(sample.measured(), 6, sample.EDIT)
    assert point.result is not None
    assert point.result.ratio is not None
    assert point.value == point.result.value


def test_without_a_recommendation_a_value_is_the_median_over_launches_and_has_no_interval():
    full = sample.measured()
    report = build(full.problem, full.history, None, full.meta)
    launches = [t.measurement(sample.EDIT) for t in full.history.of(Setting.of(depth=6))]
    values = [m.values["output_tok_s"] for m in launches if m]
    point = at(report, 6, sample.EDIT)
    assert point.result is None
    assert point.launches == 2
    assert point.value == sum(values) / 2


def test_a_setting_that_runs_only_in_part_is_shown_as_far_as_it_ran():
    report = sample.measured()
    assert at(report, 16, sample.BUSY).value is not None
    beyond = at(report, 16, sample.CROWD)
    assert beyond.value is None
    assert beyond.note == "fits up to C=16"


def test_measurements_of_failed_and_interrupted_trials_are_not_counted():
    history = sample.history()
    bad = [
        replace(t, state=s) for t, s in zip(history.trials, (TrialState.FAILED, TrialState.INTERRUPTED), strict=False)
    ]
    report = build(sample.problem(), History(trials=tuple(bad)), None, sample.META)
    assert report.latency == ()
    assert report.acceptance == ()
    assert [at(report, 4, c).value for c in report.objectives[0].cells] == [None] * 3
    assert at(report, 4, sample.EDIT).note == "failed"


def test_acceptance_is_the_sum_of_the_counts_over_launches_and_only_for_depths_above_0():
    report = sample.measured()
    assert {r.setting.depth for r in report.acceptance} == {2, 4, 6, 8, 12, 16}
    row = next(r for r in report.acceptance if r.setting.depth == 6 and r.cell == sample.EDIT)
    assert row.counts == sample.accepted_counts(6, sample.EDIT, 1).plus(sample.accepted_counts(6, sample.EDIT, 2))


def test_equal_findings_are_gathered_with_their_places():
    found = {f.finding.code: f for f in sample.measured().findings}
    assert found["few_requests"].places[:2] == ("trial 1 at chat@4", "trial 2 at chat@4")
    assert len(found["few_requests"].places) == 13
    assert "goal busy" in found["few_pairs"].places


def test_findings_that_differ_in_size_alone_say_the_size_at_each_place():
    first = sample.measurement(1, 4, sample.EDIT, 1)
    sized = [replace(first, findings=(Finding(code="c", message="m", size=s),)) for s in ("1 %", "2 %")]
    trials = tuple(replace(sample.trial(i, 4, i), measurements=(m,)) for i, m in enumerate(sized, 1))
    found = build(sample.problem(), History(trials=trials), None, sample.META).findings
    assert [f.places for f in found] == [("trial 1 at coding@1 (1 %)", "trial 2 at coding@1 (2 %)")]
    assert found[0].finding.size == ""


def test_the_banner_tells_a_simulation_by_its_server_and_by_its_numbers():
    lab = replace(sample.META, server=ServerKind.LAB)
    warning = "SIMULATED: lab server, not a real engine"
    assert banner(sample.META, sample.history(), None) == ""
    assert banner(lab, History(), None) == warning
    assert banner(sample.META, sample.history(Origin.SIMULATED), None) == warning
    assert banner(sample.META, sample.history(Origin.IMPORTED), None).startswith("IMPORTED: ")


def test_a_mixture_of_origins_is_said():
    mixed = History(trials=(sample.trial(1, 4, 1), sample.trial(2, 0, 1, Origin.SIMULATED)))
    text_of = banner(sample.META, mixed, None)
    assert text_of.startswith("SIMULATED: ")
    assert "some trials were measured on a real engine" in text_of


def test_formulas_of_every_metric_shown_and_required():
    names = {m.name for m in sample.measured().formulas}
    assert {"output_tok_s", "ttft_ms", "tpot_ms", "itl_ms", "tokens_per_chunk", "error_frac"} <= names
    assert "vllm_tpot_ms" not in names


def test_every_format_takes_what_the_analysis_recommends():
    problem, history = sample.problem(), sample.history()
    report = build(problem, history, recommend(problem, history), sample.META)
    for render in (text.render, markdown.render, html.render, data.to_json, data.to_csv):
        assert "depth=6" in render(report)


def test_every_format_can_say_that_nothing_was_launched_yet():
    report = build(sample.problem(), History(), None, replace(sample.META, state="running: 0 of 14 launches"))
    for render in (text.render, markdown.render, html.render):
        assert "No recommendation yet" in render(report)
    assert data.to_csv(report).count("\n") == 1


def test_what_was_never_launched_is_shown_with_its_reason():
    full = sample.measured()
    refused = (Refusal(Setting.of(depth=9), "the engine says no"),)
    report = build(replace(full.problem, refused=refused), full.history, full.recommendation, full.meta)
    section = next(s for s in sections.sections(report) if s.anchor == "refused")
    assert section.tables[0].rows == (("depth=9", "the engine says no"),)
    for form in (text, markdown, html):
        assert "the engine says no" in form.render(report)
    assert all(s.anchor != "refused" for s in sections.sections(full))
