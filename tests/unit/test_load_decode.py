import json
import math

import pytest
from load_server import ROLE, event, finish, text

from leadline.load.decode import Raw, Sender, decode
from leadline.trial import RequestRecord

ME = Sender("p1", user=3, turn=2, warmup=True)


def read(*pieces: bytes, status: int = 200, **fields: object) -> RequestRecord:
    """A record of pieces that arrive at 100, 200, ... ns."""
    raw = Raw(intended_ns=1, start_ns=2, end_ns=9999, status=status, content_type="text/event-stream")
    raw.pieces = [(100 * (i + 1), p) for i, p in enumerate(pieces)]
    for name, value in fields.items():
        setattr(raw, name, value)
    return decode(raw, ME)


def counted(content: str, so_far: int) -> bytes:
    return event({"choices": [{"delta": {"content": content}}], "usage": {"completion_tokens": so_far}})


def test_a_whole_stream() -> None:
    r = read(ROLE, text("a"), text("b"), text("c"), finish(10, prompt=7))
    assert (r.error, r.prompt_id, r.user, r.turn, r.warmup) == ("", "p1", 3, 2, True)
    assert (r.intended_ns, r.start_ns, r.end_ns, r.status) == (1, 2, 9999, 200)
    assert r.chunk_ns == (200, 300, 400)
    assert (r.prompt_tokens, r.output_tokens, r.finish_reason, r.token_source) == (7, 10, "stop", "even")
    assert math.isclose(math.fsum(r.chunk_tokens), 10, abs_tol=1e-9)
    assert len(set(r.chunk_tokens)) == 1


def test_two_events_in_one_piece_are_two_chunks_of_one_moment_and_one_in_two_pieces_is_of_the_last() -> None:
    whole = text("c")
    r = read(text("a") + text("b"), whole[:9], whole[9:], finish(3))
    assert r.chunk_ns == (100, 100, 300)


@pytest.mark.parametrize(
    ("choice", "has_text"),
    [
        ({"delta": {"content": "x"}}, True),
        ({"delta": {"reasoning_content": "x"}}, True),
        ({"delta": {"reasoning": "x"}}, True),
        ({"delta": {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}}, True),
        ({"delta": {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]}}, True),
        ({"delta": {"tool_calls": [{"index": 0, "function": {"arguments": ""}}]}}, False),
        ({"delta": {"tool_calls": ["odd", {"function": 3}]}}, False),
        ({"delta": {"role": "assistant", "content": None}}, False),
        ({"delta": {"content": ""}}, False),
        ({"delta": {}}, False),
        ({"text": "x"}, True),
        ({"text": ""}, False),
    ],
)
def test_only_generated_text_is_a_chunk(choice: dict[str, object], has_text: bool) -> None:
    r = read(text("first"), event({"choices": [choice]}), finish(4))
    assert r.error == ""
    assert r.chunk_ns == ((100, 200) if has_text else (100,))


def test_tokens_per_chunk_come_from_the_engine_when_it_counts_along() -> None:
    r = read(counted("a", 4), counted("b", 5), counted("c", 9), finish(10))
    assert (r.token_source, r.chunk_tokens, r.output_tokens) == ("engine", (4.0, 1.0, 5.0), 10)


def test_counts_that_do_not_grow_are_not_believed() -> None:
    r = read(counted("a", 9), counted("b", 9), counted("c", 9), finish(9))
    assert (r.token_source, r.chunk_tokens) == ("even", (3.0, 3.0, 3.0))


def test_counts_at_only_some_chunks_are_not_believed() -> None:
    assert read(counted("a", 2), text("b"), finish(4)).token_source == "even"


@pytest.mark.parametrize("n", [1, 3, 7, 49, 1000])
def test_an_even_spread_sums_to_the_total(n: int) -> None:
    r = read(*[text("x")] * n, finish(997))
    assert len(r.chunk_tokens) == n
    assert abs(math.fsum(r.chunk_tokens) - 997) < 1e-9


def test_without_usage_tokens_are_not_known_and_chunks_are_not_counted() -> None:
    r = read(text("a"), event({"choices": [{"delta": {}, "finish_reason": "stop"}]}), event(b"[DONE]"))
    assert r.error == "no usage in the stream: token counts are not known"
    assert (r.output_tokens, r.chunk_tokens) == (0, (0.0,))


def test_timings_and_cached_tokens() -> None:
    last = {
        "choices": [],
        "usage": {"completion_tokens": 8, "prompt_tokens": 30, "prompt_tokens_details": {"cached_tokens": 20}},
        "timings": {"predicted_n": 8, "predicted_ms": 41.5, "draft_n": 12, "draft_n_accepted": 5, "cache_n": 20},
    }
    r = read(text("a"), event({"choices": [{"delta": {}, "finish_reason": "length"}]}), event(last), event(b"[DONE]"))
    assert r.error == ""
    assert (r.drafted, r.accepted, r.engine_decode_ms, r.cached_tokens) == (12, 5, 41.5, 20)
    assert r.finish_reason == "length"


def test_timings_without_a_draft_mean_that_nothing_was_drafted() -> None:
    last = {"choices": [], "usage": {"completion_tokens": 2}, "timings": {"predicted_n": 2, "predicted_ms": 7}}
    r = read(text("a"), finish(2), event(last))
    assert (r.error, r.drafted, r.accepted, r.engine_decode_ms) == ("", 0, 0, 7.0)


def test_done_alone_or_a_finish_reason_alone_ends_a_stream() -> None:
    usage = event({"choices": [], "usage": {"completion_tokens": 2}})
    assert read(text("a"), usage, event(b"[DONE]")).error == ""
    assert (
        read(text("a"), event({"choices": [{"finish_reason": "stop"}], "usage": {"completion_tokens": 2}})).error == ""
    )


def test_a_stream_that_just_stops_is_cut() -> None:
    r = read(ROLE, text("a"), text("b"))
    assert r.error.startswith("stream cut after 2 chunks")
    assert r.chunk_tokens == (0.0, 0.0)


def test_a_body_that_ends_early_is_cut_whatever_was_said_before() -> None:
    assert read(text("a"), finish(2), cut=True).error.startswith("stream cut after 1 chunks")


def test_a_cut_stream_keeps_the_tokens_that_the_engine_counted() -> None:
    r = read(counted("a", 3), counted("b", 5), cut=True)
    assert (r.output_tokens, r.chunk_tokens, bool(r.error)) == (5, (3.0, 2.0), True)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"error":{"message":"out of\\n memory","code":500}}', "HTTP 500: out of memory"),
        (b'{"error":"busy"}', "HTTP 500: busy"),
        (b'{"detail":[{"loc":["body"]}]}', 'HTTP 500: [{"loc":["body"]}]'),
        (b"<html>oops</html>", "HTTP 500: <html>oops</html>"),
        (b"\xff\xfe", "HTTP 500: \ufffd\ufffd"),
        (b"", "HTTP 500: no text"),
        (b"[]", "HTTP 500: []"),
    ],
)
def test_an_http_error_is_told_with_the_servers_words(body: bytes, says: str) -> None:
    assert read(body, status=500).error == says


def test_a_long_error_body_is_shortened() -> None:
    assert len(read(b"x" * 10_000, b"y" * 100_000, status=503).error) < 400


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"error": {"message": "slot failed", "code": 500}}, "slot failed"),
        ({"error": "slot failed"}, "slot failed"),
        ({"object": "error", "message": "slot failed"}, "slot failed"),
    ],
)
def test_an_error_inside_the_stream(value: dict[str, object], says: str) -> None:
    r = read(text("a"), event(value), event(b"[DONE]"))
    assert r.error == f"error in the stream: {says}"
    assert r.chunk_ns == (100,)


@pytest.mark.parametrize("data", [b"{oops", b'{"choices":7}', b'{"usage":{"completion_tokens":"many"}}', b'"\xff"'])
def test_an_unreadable_event_is_an_error_not_an_exception(data: bytes) -> None:
    assert read(text("a"), event(data), finish(2)).error.startswith("unreadable event in the stream")


def test_an_answer_that_is_no_stream() -> None:
    body = json.dumps({"choices": [{"message": {"content": "hi"}}]}).encode()
    r = read(body, content_type="application/json")
    assert r.error == "the answer is no event stream (content type application/json)"


def test_an_end_of_text_token_alone_has_no_chunk() -> None:
    r = read(ROLE, finish(1))
    assert (r.error, r.chunk_ns, r.output_tokens) == ("", (), 1)


def test_many_tokens_without_any_text_cannot_be_timed() -> None:
    assert read(ROLE, finish(50)).error == "usage says 50 tokens, but no text came: they cannot be timed"


def test_text_with_a_usage_of_zero_is_not_believed() -> None:
    assert read(text("a"), finish(0)).error.startswith("usage says 0 tokens, but 1 chunks")


def test_the_clients_own_reason_comes_first() -> None:
    assert read(text("a"), error="no byte for 60 s", cut=True).error == "no byte for 60 s"
