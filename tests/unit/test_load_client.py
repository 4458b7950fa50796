import asyncio
import itertools
import socket
import threading
from collections.abc import Iterable, Iterator

import pytest
from load_server import (
    CHUNKED,
    LAST_CHUNK,
    ROLE,
    Act,
    Request,
    ScriptedServer,
    chunk,
    finish,
    head,
    stream,
    text,
)

from leadline.load.client import LoadClient
from leadline.load.connect import Dialer
from leadline.load.decode import Raw, Sender, decode
from leadline.load.endpoint import Endpoint
from leadline.trial import RequestRecord

BODY = ROLE + text("a") + text("b") + finish(6)


def send(
    url: str, n: int = 1, *, stall_s: float = 10.0, stale_s: float = 1.0, connect_first: bool = False
) -> list[RequestRecord]:
    """Records of n requests, one after the other on one client."""

    async def go() -> list[Raw]:
        endpoint = Endpoint.of(url, headers={}, ca=None, proxy=None)
        client = LoadClient(Dialer(endpoint, stall_s, stale_s=stale_s))
        if connect_first:
            assert await client.connect() == ""
        raws = [await client.send(endpoint.post("/v1/chat/completions", b'{"i": %d}' % i)) for i in range(n)]
        client.close()
        return raws

    return [decode(raw, Sender(f"p{i}", 0)) for i, raw in enumerate(asyncio.run(go()))]


def scripted(*acts: bytes | float | Act) -> ScriptedServer:
    return ScriptedServer(lambda request: acts)


@pytest.mark.parametrize(
    "answer",
    [
        [CHUNKED, *(chunk(BODY[i : i + 7]) for i in range(0, len(BODY), 7)), LAST_CHUNK],
        [CHUNKED + chunk(BODY) + LAST_CHUNK],
        [CHUNKED + chunk(BODY) + b"0\r\nX-Trailer: 1\r\n\r\n"],
        [b"HTTP/1.1 100 Continue\r\n\r\n", head(Content_Length=str(len(BODY))), BODY[:50], BODY[50:]],
        [head(), BODY[:20], BODY[20:], Act.CLOSE],
        [b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + BODY, Act.CLOSE],
    ],
    ids=["chunked", "at once", "trailer", "length", "until close", "http 1.0"],
)
def test_every_way_of_framing_a_body(answer: list[bytes | float | Act]) -> None:
    with scripted(*answer) as server:
        for record in send(server.url, 2):
            assert (record.error, record.output_tokens, len(record.chunk_ns), record.status) == ("", 6, 2, 200)
            assert record.intended_ns <= record.start_ns < record.chunk_ns[0] <= record.chunk_ns[1] <= record.end_ns


def test_slow_chunks_are_stamped_when_they_arrive() -> None:
    with ScriptedServer(lambda request: stream(3, 12, gap_s=0.03)) as server:
        (record,) = send(server.url)
    gaps = [b - a for a, b in itertools.pairwise(record.chunk_ns)]
    assert record.chunk_ns[0] - record.start_ns >= 29e6
    assert all(gap >= 25e6 for gap in gaps)
    assert record.chunk_tokens == (4.0, 4.0, 4.0)


def test_a_connection_is_kept_for_the_next_request() -> None:
    with ScriptedServer(lambda request: stream()) as server:
        assert [r.error for r in send(server.url, 5, connect_first=True)] == [""] * 5
    assert server.connections == 1
    assert [r.json for r in server.requests] == [{"i": i} for i in range(5)]


@pytest.mark.parametrize("parting", [[Act.CLOSE], [Act.RESET]])
def test_a_connection_closed_between_requests_is_replaced_silently(parting: list[bytes | float | Act]) -> None:
    def answer(request: Request) -> Iterator[bytes | float | Act]:
        yield from stream()
        yield from parting

    with ScriptedServer(answer) as server:
        assert [r.error for r in send(server.url, 4)] == [""] * 4
    assert server.connections == 4
    assert len(server.requests) == 4


def test_an_announced_close_is_obeyed() -> None:
    answer = [head(Connection="close", Transfer_Encoding="chunked") + chunk(BODY) + LAST_CHUNK, Act.HANG]
    with scripted(*answer) as server:
        assert [r.error for r in send(server.url, 2)] == ["", ""]
    assert server.connections == 2


@pytest.mark.parametrize("act", [Act.CLOSE, Act.RESET])
def test_a_request_that_met_a_stale_connection_is_sent_again(act: Act) -> None:
    """The server reads the second request of its first connection, and closes without a word."""

    def answer(request: Request) -> Iterable[bytes | float | Act]:
        return [act] if (request.connection, request.nth) == (0, 1) else stream()

    with ScriptedServer(answer) as server:
        first, second = send(server.url, 2)
    assert (first.error, second.error) == ("", "")
    assert second.start_ns >= second.intended_ns
    assert [(r.connection, r.nth) for r in server.requests] == [(0, 0), (0, 1), (1, 0)]


def test_it_is_sent_again_only_once() -> None:
    def answer(request: Request) -> Iterable[bytes | float | Act]:
        return stream() if request.connection == request.nth == 0 else [Act.CLOSE]

    with ScriptedServer(answer) as server:
        _, second = send(server.url, 2)
    assert second.error == "connection closed before any answer"
    assert len(server.requests) == 3


def test_a_fresh_connection_that_closes_is_an_error_at_once() -> None:
    with scripted(Act.CLOSE) as server:
        (record,) = send(server.url)
    assert record.error == "connection closed before any answer"
    assert len(server.requests) == 1


def test_a_connection_that_closes_late_without_an_answer_was_not_stale() -> None:
    """A server that died while it worked on the request: the failure must not be hidden by a second try."""

    def answer(request: Request) -> Iterable[bytes | float | Act]:
        return [0.1, Act.CLOSE] if request.nth == 1 else stream()

    with ScriptedServer(answer) as server:
        assert [r.error for r in send(server.url, 2, stale_s=0.02)] == ["", "connection closed before any answer"]


def test_a_reset_before_any_answer() -> None:
    with scripted(Act.RESET) as server:
        assert send(server.url)[0].error == "connection reset before any answer"


@pytest.mark.parametrize(
    "tail",
    [[Act.CLOSE], [Act.RESET], [chunk(finish(6)), Act.CLOSE], [b"40\r\nhalf a chunk", Act.CLOSE]],
    ids=["close", "reset", "close without the last chunk", "close within a chunk"],
)
def test_a_cut_stream(tail: list[bytes | float | Act]) -> None:
    with scripted(CHUNKED, chunk(text("a")), chunk(text("b")), 0.02, *tail) as server:
        first, second = send(server.url, 2)
    for record in (first, second):
        assert record.error.startswith("stream cut after 2 chunks")
        assert record.status == 200
    assert server.connections == 2


def test_a_body_shorter_than_its_length_is_cut() -> None:
    with scripted(head(Content_Length=str(len(BODY) + 1)), BODY, Act.CLOSE) as server:
        assert send(server.url)[0].error.startswith("stream cut after 2 chunks")


def test_a_stream_without_an_end_mark_is_cut_though_its_body_is_whole() -> None:
    with scripted(CHUNKED, chunk(text("a")), LAST_CHUNK) as server:
        assert send(server.url)[0].error.startswith("stream cut after 1 chunks: neither")


@pytest.mark.parametrize("before", [[], [CHUNKED], [CHUNKED, chunk(text("a"))], [b"HTTP/1.1 200 OK\r\nConte"]])
def test_a_silent_server_is_given_up(before: list[bytes]) -> None:
    with scripted(*before, Act.HANG) as server:
        (record,) = send(server.url, stall_s=0.05)
    assert record.error == "no byte for 0.05 s"
    assert record.end_ns - record.start_ns >= 50e6


def test_slow_but_steady_is_no_stall() -> None:
    with ScriptedServer(lambda request: stream(6, 12, gap_s=0.06)) as server:
        (record,) = send(server.url, stall_s=0.2)
    assert record.error == ""
    assert record.end_ns - record.start_ns > 0.2e9


def test_an_http_error_keeps_the_connection() -> None:
    body = b'{"error":{"message":"loading model"}}'

    def answer(request: Request) -> Iterable[bytes | float | Act]:
        failing = [head("503 Unavailable", Content_Type="application/json", Content_Length=str(len(body))) + body]
        return failing if request.nth == 0 else stream()

    with ScriptedServer(answer) as server:
        first, second = send(server.url, 2)
    assert (first.error, first.status) == ("HTTP 503: loading model", 503)
    assert second.error == ""
    assert server.connections == 1


@pytest.mark.parametrize(
    "garbage", [b"SSH-2.0-OpenSSH_9\r\n", b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n", b"\x00" * 9]
)
def test_what_is_not_http_is_an_error(garbage: bytes) -> None:
    with scripted(garbage, Act.HANG) as server:
        assert send(server.url)[0].error


def test_a_second_answer_that_nobody_asked_for_ends_the_connection() -> None:
    whole = CHUNKED + chunk(BODY) + LAST_CHUNK

    def answer(request: Request) -> Iterable[bytes | float | Act]:
        return [whole, 0.0, whole] if request.connection == 0 else [whole]

    with ScriptedServer(answer) as server:
        records = send(server.url, 3)
    assert all(len(r.chunk_ns) == 2 for r in records if r.ok)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_nobody_listens(host: str) -> None:
    (record,) = send(f"http://{host}:{free_port()}")
    assert record.error == "connection refused"
    assert record.intended_ns == record.start_ns <= record.end_ns


def test_a_failed_connection_beforehand_is_told_and_tried_again_by_the_request() -> None:
    async def go() -> tuple[str, Raw]:
        endpoint = Endpoint.of(f"http://127.0.0.1:{free_port()}", headers={}, ca=None, proxy=None)
        client = LoadClient(Dialer(endpoint, 10))
        return await client.connect(), await client.send(endpoint.post("/v1/completions", b"{}"))

    failed, raw = asyncio.run(go())
    assert failed == raw.error == "connection refused"


@pytest.mark.parametrize("before", [[], [CHUNKED + chunk(text("a"))]])
def test_a_cancelled_request_is_stopped_and_keeps_what_came(before: list[bytes]) -> None:
    sent = threading.Event()

    def answer(request: Request) -> Iterator[bytes | float | Act]:
        yield from before
        sent.set()
        yield Act.HANG

    async def go(server: ScriptedServer) -> Raw:
        endpoint = Endpoint.of(server.url, headers={}, ca=None, proxy=None)
        client = LoadClient(Dialer(endpoint, 10))
        task = asyncio.create_task(client.send(endpoint.post("/v1/completions", b"{}")))
        assert await asyncio.to_thread(sent.wait, 10)
        for _ in range(3):  # what was sent is in our socket by now: the next look at it reads it
            await asyncio.sleep(0)
        task.cancel()
        return await task

    with ScriptedServer(answer) as server:
        raw = asyncio.run(go(server))
    assert raw.error == "stopped"
    assert len(raw.pieces) == len(before)
    assert raw.end_ns >= raw.start_ns > 0


def test_a_request_cancelled_while_connecting_is_stopped() -> None:
    async def go(port: int) -> Raw:
        endpoint = Endpoint.of(f"https://127.0.0.1:{port}", headers={}, ca=None, proxy=None)
        task = asyncio.create_task(LoadClient(Dialer(endpoint, 10)).send(b""))
        await asyncio.sleep(0.05)  # the handshake never ends: any moment will do
        task.cancel()
        return await task

    with socket.create_server(("127.0.0.1", 0)) as silent:
        raw = asyncio.run(go(silent.getsockname()[1]))
    assert raw.error == "stopped"
    assert raw.end_ns > raw.start_ns


def test_a_connection_that_is_never_made_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        (record,) = send(f"https://127.0.0.1:{silent.getsockname()[1]}", stall_s=0.05)
    assert record.error == "no connection in time"


def test_the_receive_path_keeps_bytes_as_they_came() -> None:
    """A stream of nonsense is as good to `send` as any other: nothing is parsed before the request has ended."""

    async def go(server: ScriptedServer) -> Raw:
        endpoint = Endpoint.of(server.url, headers={}, ca=None, proxy=None)
        client = LoadClient(Dialer(endpoint, 10))
        raw = await client.send(endpoint.post("/v1/completions", b"{}"))
        client.close()
        return raw

    with scripted(CHUNKED, chunk(b"data: {nonsense"), chunk(b"\n\n"), LAST_CHUNK) as server:
        raw = asyncio.run(go(server))
    assert raw.error == ""
    assert [piece for _, piece in raw.pieces] == [b"data: {nonsense", b"\n\n"]
