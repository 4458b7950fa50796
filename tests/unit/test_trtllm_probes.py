"""What a running trtllm-serve says: its counters over a window, its configuration, how busy it is."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support_trtllm import BUSY, MEMORY_LOG, WINDOWS, look, record, scrape

from leadline.engines.trtllm import engine
from leadline.evidence import Evidence, Reply
from leadline.testing.engine_suite import Window


def test_what_is_asked() -> None:
    probes = {p.name: p for p in engine.probes()}
    assert probes["metrics"].path == "/prometheus/metrics"
    assert list(probes)[-1] == "metrics"
    # Both are emptied by reading.
    assert not {"/metrics", "/perf_metrics"} & {p.path for p in probes.values()}
    assert msgspec.json.decode(probes["ready"].body)["max_tokens"] == 2


@pytest.mark.parametrize("window", WINDOWS)
def test_a_window_is_counted_exactly(window: Window) -> None:
    assert engine.acceptance(window.before, window.after, window.records) == window.acceptance
    assert engine.foreign_tokens(window.before, window.after, window.records) == 0
    assert engine.acceptance(window.after, window.before, ()) is None
    assert engine.restarted(window.after, window.before)


def test_tokens_of_somebody_else() -> None:
    window = WINDOWS[0]
    assert engine.foreign_tokens(window.before, window.after, window.records[:1]) == 61
    # A request that was cut may have got as much as a context holds.
    cut = (window.records[0], record(0, error="reset"))
    assert engine.foreign_tokens(window.before, window.after, cut) == 0
    bare = look(scrape(2, 1, info=False)), look(scrape(9000, 9, info=False))
    assert engine.foreign_tokens(*bare, (record(5), record(0, error="reset"))) == 0
    assert engine.foreign_tokens(*bare, (record(5),)) == 8993


def test_the_ready_probe_is_ours() -> None:
    window = WINDOWS[1]
    ready = Reply(name="ready", status=200, body=b'{"usage":{"completion_tokens":2}}')
    after = look(scrape(25, 3, method=None))
    after = msgspec.structs.replace(after, replies={**after.replies, "ready": ready})
    assert engine.foreign_tokens(window.before, after, window.records) == 0
    got = engine.acceptance(window.before, after, window.records)
    assert got is not None
    assert got.decode_tokens == 21


def test_what_is_not_counted_is_absent_and_not_nothing() -> None:
    fresh = look(scrape(0, 0))
    later = look(scrape(50, 3, (20, 20), (9,)))
    assert engine.acceptance(fresh, later, ()) is None
    # It speculates, and has not said a word about drafts: an n-gram that never matched, or a release without counters.
    assert engine.acceptance(look(scrape(2, 1)), look(scrape(50, 3)), ()) is None
    # Whether it speculates is not known.
    assert engine.acceptance(look(scrape(2, 1, info=False)), look(scrape(50, 3, info=False)), ()) is None
    # The first draft of all fell into the window.
    got = engine.acceptance(look(scrape(2, 1)), later, ())
    assert got is not None
    assert (got.drafted, got.accepted, got.per_position, got.drafting_rounds) == (40, 9, (9, 0), 20)
    assert got.rounds == 46 - 9


def test_a_server_that_lost_its_counters_is_another_one() -> None:
    old = look(scrape(50, 3, (20, 20), (9,)))
    assert engine.restarted(old, look(scrape(0, 0)))
    assert not engine.restarted(old, look(""))
    assert not engine.restarted(look(scrape(0, 0)), old)
    assert engine.restarted(old, look(scrape(60, 4, (20, 19), (9,))))


@pytest.mark.parametrize(
    ("metrics", "log", "depth", "speculating"),
    [
        (scrape(0, 0), "", 3, None),
        (scrape(9, 2, (3, 3, 3), (2,)), "", 3, True),
        (scrape(9, 2, method=None), "", 0, False),
        (scrape(9, 2, (3, 3), (2,), info=False), "", 2, True),
        (scrape(9, 2, info=False), "", None, None),
        (
            scrape(9, 2, (3, 3, 3), (2,)),
            "[I] [SpeculationGate] Speculative decoding disabled: rolling acceptance avg 1.203 < threshold 1.5 over",
            0,
            False,
        ),
        ("", "", None, None),
    ],
)
def test_the_depth_that_runs(metrics: str, log: str, depth: int | None, speculating: bool | None) -> None:
    seen = engine.effective(look(metrics, log))
    assert (seen.depth, seen.speculating) == (depth, speculating)


def test_what_really_runs() -> None:
    seen = engine.effective(look(scrape(9, 2), MEMORY_LOG))
    assert (seen.model, seen.version, seen.context) == ("m", "1.3.0rc9", 4096)
    assert (seen.max_running, seen.kv_tokens, seen.memory_fraction) == (64, 86711, 0.75)
    assert (seen.graphs, seen.graph_max_batch) == (True, 64)
    assert seen.weights_bytes == int(63.52 * (1 << 30))
    by_log = engine.effective(look("", MEMORY_LOG))
    assert (by_log.context, by_log.memory_fraction) == (86720, 0.9)
    gauges = 'trtllm_kv_cache_max_blocks{pid="7"} 100.0\ntrtllm_kv_cache_tokens_per_block{pid="7"} 32.0\n'
    assert engine.effective(look(gauges)).kv_tokens == 3200


def test_busy() -> None:
    for reply, busy in BUSY:
        assert engine.busy(reply) == busy
        assert engine.busy(msgspec.structs.replace(reply, status=503)) is None
    # Without enable_iter_perf_stats there are no gauges: it does not tell, and is not idle for all that.
    assert engine.busy(Reply(name="metrics", status=200, body=scrape(9, 2).encode())) is None


def test_it_never_says_that_it_is_loading() -> None:
    gone = Reply(name="health", status=503, body=b"LLM is unavailable. Please check the server logs for more details.")
    assert not engine.loading(gone)
    assert engine.body_fields() == {}


@given(st.binary(max_size=200), st.text(max_size=80))
def test_any_answer_is_borne(body: bytes, log: str) -> None:
    reply = Reply(name="metrics", status=200, body=body)
    spoilt = Evidence(replies={n: replace_name(reply, n) for n in ("metrics", "version", "models", "ready")}, log=log)
    engine.effective(spoilt)
    engine.busy(reply)
    assert engine.foreign_tokens(spoilt, WINDOWS[0].after, ()) >= 0
    assert engine.diagnose(spoilt).reason


def replace_name(reply: Reply, name: str) -> Reply:
    return msgspec.structs.replace(reply, name=name)


def test_a_position_that_is_no_number_is_no_position() -> None:
    odd = scrape(9, 2, (3, 3), (2,), info=False).replace('token_position="1"', 'token_position="99999999999"')
    assert engine.effective(look(odd)).depth == 1


def test_the_engine_of_a_version_is_the_same_engine() -> None:
    assert replace(engine, version="1.2") == engine.at("1.2")
