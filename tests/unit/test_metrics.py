"""Metrics from request records: each value of one small load, worked out by hand."""

from __future__ import annotations

import pytest

from leadline import metrics
from leadline.metrics import NS_PER_MS, percentile, window_tokens
from leadline.trial import LoadReport, RequestRecord


def record(start_ms: float, chunks: list[tuple[float, float]], end_ms: float, **fields) -> RequestRecord:
    """`chunks` = arrival in ms and tokens of each."""
    values = {
        "prompt_id": "p",
        "user": 0,
        "intended_ns": round(start_ms * NS_PER_MS),
        "start_ns": round(start_ms * NS_PER_MS),
        "chunk_ns": tuple(round(at * NS_PER_MS) for at, _ in chunks),
        "chunk_tokens": tuple(tokens for _, tokens in chunks),
        "end_ns": round(end_ms * NS_PER_MS),
        "output_tokens": round(sum(tokens for _, tokens in chunks)),
        "prompt_tokens": 10,
    }
    return RequestRecord(**{**values, **fields})


def report(*records: RequestRecord, window_ms: tuple[float, float] = (0, 1000)) -> LoadReport:
    start, end = (round(t * NS_PER_MS) for t in window_ms)
    return LoadReport(records=records, window_start_ns=start, window_end_ns=end)


ONE = record(100, [(150, 1), (170, 3), (230, 2)], 240)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ttft_ms.p50", 50.0),  # 150 - 100
        ("tpot_ms.p50", 16.0),  # (230 - 150) / (6 - 1)
        ("vllm_tpot_ms.p50", 18.0),  # (240 - 150) / (6 - 1)
        ("chunk_gap_ms.mean", 40.0),  # 20 and 60
        ("itl_ms.mean", 16.0),  # 20/3 three times, 60/2 twice
        ("e2e_ms.p50", 140.0),
        ("per_request_tok_s.mean", 6 / 0.14),
        ("output_tok_s", 6.0),  # in a window of one second
        ("requests_s", 1.0),
        ("tokens_per_chunk", 2.0),
        ("cached_frac", 0.0),
        ("error_frac", 0.0),
    ],
)
def test_one_request(name: str, value: float) -> None:
    assert metrics.reduce(report(ONE))[name] == pytest.approx(value)


def test_the_gap_of_a_chunk_is_shared_among_its_tokens_and_not_hidden_from_the_stalls() -> None:
    """A round of speculation brings several tokens at once: each gets its share; the stall itself stays visible."""
    found = metrics.reduce(report(record(0, [(10, 1), (110, 10)], 110)))
    assert found["itl_ms.p99"] == pytest.approx(10.0)
    assert found["chunk_gap_ms.p99"] == pytest.approx(100.0)


def test_a_failed_request_counts_in_the_errors_alone() -> None:
    slow = record(0, [(900, 1)], 950, error="connection reset")
    values = metrics.reduce(report(ONE, slow))
    alone = metrics.reduce(report(ONE))
    assert values["error_frac"] == 0.5
    assert values["e2e_ms.p99"] == alone["e2e_ms.p99"]
    assert values["requests_s"] == alone["requests_s"]


def test_when_all_failed_there_is_an_error_fraction_and_no_other_number() -> None:
    assert metrics.reduce(report(record(0, [], 10, error="refused"))) == {"error_frac": 1.0}


def test_warm_up_counts_in_no_value_per_request_but_its_tokens_in_the_window_do() -> None:
    warm = record(0, [(10, 4), (20, 4)], 20, warmup=True)
    values = metrics.reduce(report(ONE, warm))
    assert values["ttft_ms.mean"] == pytest.approx(50.0)
    assert values["output_tok_s"] == pytest.approx(14.0)


def test_the_window_is_open_at_its_start_and_closed_at_its_end() -> None:
    records = [record(0, [(100, 1), (101, 2), (200, 4), (201, 8)], 201)]
    assert window_tokens(records, 100 * NS_PER_MS, 200 * NS_PER_MS) == 6


def test_tokens_out_of_the_window_do_not_count_as_throughput() -> None:
    values = metrics.reduce(report(ONE, window_ms=(160, 200)))
    assert values["output_tok_s"] == pytest.approx(3 / 0.04)
    assert values["requests_s"] == 0.0


def test_an_empty_window_gives_no_throughput_instead_of_a_division_by_zero() -> None:
    assert "output_tok_s" not in metrics.reduce(report(ONE, window_ms=(100, 100)))


@pytest.mark.parametrize(
    ("record_of_one", "missing"),
    [
        (record(0, [(10, 5)], 10), "tpot_ms.p50"),  # all tokens in one chunk: no time between tokens
        (record(0, [(10, 1)], 10), "vllm_tpot_ms.p50"),
        (record(0, [], 10), "ttft_ms.p50"),
    ],
)
def test_what_cannot_be_known_is_left_out(record_of_one: RequestRecord, missing: str) -> None:
    assert missing not in metrics.reduce(report(record_of_one))


@pytest.mark.parametrize(("q", "value"), [(0.0, 1.0), (0.5, 2.5), (0.9, 3.7), (1.0, 4.0)])
def test_percentiles_interpolate_between_the_closest_ranks(q: float, value: float) -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], q) == pytest.approx(value)


def test_a_percentile_of_one_value_is_that_value() -> None:
    assert {percentile([7.0], q) for q in (0.0, 0.5, 0.99, 1.0)} == {7.0}


def test_every_value_of_a_load_is_a_name_that_a_goal_may_use() -> None:
    assert set(metrics.reduce(report(ONE))) <= set(metrics.names())


def test_a_name_with_a_statistic_has_the_unit_and_direction_of_its_metric() -> None:
    assert (metrics.unit("ttft_ms.p99"), metrics.better("ttft_ms.p99")) == ("ms", "lower")
    assert metrics.better("output_tok_s") == "higher"
