"""JSON and CSV: stable keys, one row per (trial, cell), and where the numbers come from in each."""

from __future__ import annotations

import csv
import io
import json

import pytest
import support_report as sample

from leadline import codec
from leadline.report import data


def rows(report) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(data.to_csv(report))))


def paths(value: object, at: str = "") -> set[str]:
    """Every key of a document with its way down: `trials[].measurements[].cell`."""
    if isinstance(value, list):
        return {path for item in value for path in paths(item, f"{at}[]")} or {f"{at}[]"}
    if isinstance(value, dict) and value:
        return {path for key, item in value.items() for path in paths(item, f"{at}.{key}" if at else key)}
    return {at}


def test_csv_golden():
    rendered = data.to_csv(sample.measured())
    assert rendered == sample.golden("measured.csv", rendered)


def test_every_key_of_the_json_is_the_one_that_programs_know():
    found = "".join(f"{path}\n" for path in sorted(paths(json.loads(data.to_json(sample.measured())))))
    assert found == sample.golden("json-keys.txt", found)


def test_the_keys_are_those_of_version_1_and_documented():
    keys = list(json.loads(data.to_json(sample.measured())))
    assert keys == [
        "server", "banner", "format", "meta", "problem", "recommendation", "answer", "single", "settings",
        "objectives", "acceptance", "latency", "findings", "formulas", "trials", "queued",
    ]  # fmt: skip
    for key in keys:
        assert f"  {key} " in (data.__doc__ or "") or key == "format"


@pytest.mark.parametrize("make", [sample.measured, sample.running, sample.hostile])
def test_json_reads_back_as_what_it_was(make):
    report = make()
    assert codec.from_json(data.to_json(report), data.Document) == data.document(report)


def test_json_says_what_is_simulated_at_the_top_and_in_every_measurement():
    document = json.loads(data.to_json(sample.simulated()))
    assert document["server"] == "simulated (lab server)"
    assert document["banner"] == "SIMULATED: lab server, not a real engine"
    assert {m["origin"] for t in document["trials"] for m in t["measurements"]} == {"simulated"}


def test_json_words_a_difference_that_is_not_shown():
    answer = json.loads(data.to_json(sample.measured()))["answer"][2]
    assert answer["verdict"] == answer["gain"] == "no difference shown"


def test_csv_has_one_row_per_trial_and_cell_even_where_nothing_was_measured():
    found = rows(sample.measured())
    assert len(found) == 14 * 4
    assert len({(r["trial"], r["cell"]) for r in found}) == len(found)
    blank = [(r["trial"], r["state"], r["cell"]) for r in found if not r["origin"]]
    assert blank == [("5", "infeasible", "chat@32"), *(("14", "failed", str(c)) for c in sample.CELLS)]


def test_csv_rows_carry_knobs_cell_values_and_counts():
    row = next(r for r in rows(sample.measured()) if r["setting"] == "depth=6" and r["cell"] == "coding@1")
    m = sample.measurement(6, 6, sample.EDIT, 1)
    assert (row["depth"], row["workload"], row["concurrency"], row["origin"]) == ("6", "coding", "1", "measured")
    assert float(row["output_tok_s"]) == m.values["output_tok_s"]
    assert float(row["ttft_ms.p99"]) == m.values["ttft_ms.p99"]
    counts = sample.accepted_counts(6, sample.EDIT, 1)
    assert (int(row["rounds"]), int(row["accepted"])) == (counts.rounds, counts.accepted)
    assert row["accepted_per_position"].split() == [str(n) for n in counts.per_position]


def test_every_csv_row_says_its_source():
    assert {r["source"] for r in rows(sample.simulated())} == {"SIMULATED: lab server, not a real engine"}
    assert {r["source"] for r in rows(sample.measured())} == {"real engine"}


def test_a_spreadsheet_takes_no_text_for_a_formula():
    assert data._plain("=1+1") == "'=1+1"
    assert data._plain(-5) == -5
    assert data._plain("depth=4") == "depth=4"
    cells = [cell for row in csv.reader(io.StringIO(data.to_csv(sample.hostile()))) for cell in row]
    assert not [c for c in cells if c.startswith(("=", "+", "@", "\t", "\r"))]
