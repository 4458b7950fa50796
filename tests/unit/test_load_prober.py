import socket
import time
from collections.abc import Callable, Iterable

import pytest
from load_server import CHUNKED, LAST_CHUNK, Act, Request, ScriptedServer, chunk, head

from leadline.errors import InputError
from leadline.evidence import Probe, Reply
from leadline.load.prober import BODY_LIMIT, HttpProber

KEY = "sk-1234567890abcdef"
HEADERS = {"Authorization": f"Bearer {KEY}"}
HEALTH = Probe(name="health", path="/health")
METRICS = Probe(name="metrics", path="/metrics")


def ok(body: bytes = b"ok") -> bytes:
    return head(Content_Length=str(len(body))) + body


def fetch(*acts: bytes | float | Act, probe: Probe = HEALTH) -> tuple[Reply, list[Request]]:
    with ScriptedServer(lambda request: acts) as server:
        reply = HttpProber(server.url, HEADERS).fetch(probe)
    assert KEY not in reply.error
    return reply, server.requests


def test_a_reply() -> None:
    reply, (request,) = fetch(ok(b'{"status":"ok"}'))
    assert reply == Reply(name="health", status=200, body=b'{"status":"ok"}')
    assert (request.method, request.target, request.headers["authorization"]) == ("GET", "/health", f"Bearer {KEY}")


def test_a_body_is_posted_as_json() -> None:
    reply, (request,) = fetch(ok(), probe=Probe(name="ready", path="/v1/completions", method="POST", body=b'{"n":1}'))
    assert reply.ok
    assert (request.method, request.json, request.headers["content-type"]) == ("POST", {"n": 1}, "application/json")


def test_a_chunked_and_a_close_delimited_body() -> None:
    assert fetch(CHUNKED, chunk(b"a"), chunk(b"b"), LAST_CHUNK)[0].body == b"ab"
    assert fetch(head() + b"ab", Act.CLOSE)[0].body == b"ab"


def test_an_http_error_is_a_reply_with_its_body() -> None:
    reply, _ = fetch(head("503 Loading", Content_Length="4") + b"wait")
    assert (reply.status, reply.body, reply.error, reply.ok) == (503, b"wait", "", False)


@pytest.mark.parametrize(
    ("acts", "says"),
    [
        ([Act.CLOSE], "connection reset"),
        ([Act.RESET], "connection reset"),
        ([b"SSH-2.0-x\r\n\r\n", Act.CLOSE], "the answer is not HTTP: BadStatusLine"),
        ([head(Content_Length="9") + b"half", Act.CLOSE], "the answer was cut"),
        ([CHUNKED + b"9\r\nhalf", Act.CLOSE], "the answer was cut"),
    ],
)
def test_what_goes_wrong_is_in_the_reply(acts: list[bytes | float | Act], says: str) -> None:
    reply, _ = fetch(*acts)
    assert (reply.status, reply.error) == (0, says)


@pytest.mark.parametrize(
    "acts",
    [[Act.HANG], [head(Content_Length="9"), Act.HANG], [head(Content_Length="900"), *[0.02, b"x"] * 100]],
    ids=["no answer", "no body", "a drip"],
)
def test_the_timeout_holds_for_the_whole_answer(acts: list[bytes | float | Act]) -> None:
    began = time.monotonic()
    reply, _ = fetch(*acts, probe=Probe(name="health", path="/health", timeout_s=0.1))
    assert (reply.status, reply.error) == (0, "no answer within 0.1 s")
    assert time.monotonic() - began < 1.5  # all of a drip takes 2 s


def test_nobody_listens() -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        reply = HttpProber(f"http://127.0.0.1:{s.getsockname()[1]}").fetch(HEALTH)
    assert reply == Reply(name="health", status=0, error="connection refused")


@pytest.mark.parametrize("path", ["/a b", "/a\r\nX: 1", "/\x7f", "/ä"])
def test_a_path_that_cannot_be_requested(path: str) -> None:
    reply, requests = fetch(ok(), probe=Probe(name="health", path=path))
    assert reply.status == 0
    assert "cannot be requested" in reply.error
    assert requests == []


def test_a_body_is_kept_up_to_a_limit() -> None:
    piece = b"x" * (1 << 20)
    for start in (head(), head(Content_Length=str(9 << 20))):
        reply, _ = fetch(start, *[piece] * 9, Act.CLOSE)
        assert (reply.status, len(reply.body), reply.error) == (200, BODY_LIMIT, "")


def redirecting(to: Callable[[Request], str], status: str = "307 Go") -> Callable[[Request], Iterable[bytes]]:
    def answer(request: Request) -> Iterable[bytes]:
        if request.target == "/metrics/":
            return [ok(b"there")]
        return [head(status, Location=to(request), Content_Length="0")]

    return answer


def test_a_redirect_within_the_server_is_followed() -> None:
    with ScriptedServer(redirecting(lambda request: f"http://{request.headers['host']}/metrics/")) as server:
        assert HttpProber(server.url).fetch(METRICS).body == b"there"
    with ScriptedServer(redirecting(lambda request: "metrics/", "302 Go")) as server:
        assert HttpProber(server.url).fetch(METRICS).body == b"there"


def test_a_redirect_to_another_server_is_not_followed() -> None:
    with ScriptedServer(lambda request: [ok()]) as other:
        with ScriptedServer(redirecting(lambda request: f"{other.url}/metrics/")) as server:
            reply = HttpProber(server.url, HEADERS).fetch(METRICS)
        assert reply.status == 307
        assert other.requests == []


def test_a_circle_of_redirects_ends() -> None:
    with ScriptedServer(redirecting(lambda request: "/metrics")) as server:
        assert HttpProber(server.url).fetch(METRICS).status == 307
    assert len(server.requests) == 3


def test_a_post_is_not_repeated_after_a_302() -> None:
    with ScriptedServer(redirecting(lambda request: "/metrics/", "302 Go")) as server:
        reply = HttpProber(server.url).fetch(Probe(name="ready", path="/x", method="POST", body=b"{}"))
    assert reply.status == 302


def test_metrics_have_an_url_of_their_own() -> None:
    with ScriptedServer(lambda request: [ok(b"m")]) as metrics, ScriptedServer(lambda request: [ok(b"s")]) as service:
        prober = HttpProber(service.url, HEADERS, metrics_url=f"{metrics.url}/deep/prom")
        assert prober.fetch(METRICS).body == b"m"
        assert prober.fetch(HEALTH).body == b"s"
    assert [r.target for r in metrics.requests] == ["/deep/prom"]
    assert metrics.requests[0].headers["authorization"] == f"Bearer {KEY}"


def test_the_services_secret_does_not_go_to_another_host() -> None:
    with ScriptedServer(lambda request: [ok(b"m")]) as metrics:
        prober = HttpProber("http://service.invalid", HEADERS, metrics_url=metrics.url)
        assert prober.fetch(METRICS).body == b"m"
    assert "authorization" not in metrics.requests[0].headers
    assert metrics.requests[0].target == "/"


def test_what_cannot_be_used_is_refused_at_once() -> None:
    with pytest.raises(InputError):
        HttpProber("service:80")
