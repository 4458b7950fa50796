import socket
import ssl

import pytest

from leadline.errors import InputError
from leadline.load.endpoint import Endpoint, Proxy, explain

KEY = "sk-1234567890abcdef"


def of(url: str = "http://h:8080", proxy: str | None = None, **headers: str) -> Endpoint:
    return Endpoint.of(url, headers={k.replace("_", "-"): v for k, v in headers.items()}, ca=None, proxy=proxy)


@pytest.mark.parametrize(
    ("url", "host", "port", "tls", "authority", "base"),
    [
        ("http://h", "h", 80, False, "h", ""),
        ("http://h:80/", "h", 80, False, "h", ""),
        ("http://h:8080/a/b/", "h", 8080, False, "h:8080", "/a/b"),
        ("https://h", "h", 443, True, "h", ""),
        ("https://h:80", "h", 80, True, "h:80", ""),
        ("http://[::1]:9", "::1", 9, False, "[::1]:9", ""),
    ],
)
def test_urls(url: str, host: str, port: int, tls: bool, authority: str, base: str) -> None:
    e = of(url)
    assert (e.host, e.port, e.tls, e.authority, e.base) == (host, port, tls, authority, base)


@pytest.mark.parametrize(
    "url",
    [
        *("", "h:80", "ftp://h", "http://", "http://h:99999", "http://h:x", "http://[::1", "http://ä"),
        *("http://h/?a=1", "http://h/#a", "http://h/a b", "http://h\r\n", f"http://{'x' * 64}"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused(url: str) -> None:
    with pytest.raises(InputError, match="the service URL must"):
        of(url)


@pytest.mark.parametrize("url", [f"http://user:{KEY}@h", f"ftp://user:{KEY}@h", f"http://user:{KEY}@h:x"])
def test_a_password_in_a_url_is_never_shown(url: str) -> None:
    with pytest.raises(InputError) as told:
        of(url)
    assert KEY not in str(told.value)
    with pytest.raises(InputError) as told:
        of(proxy=f"socks5://user:{KEY}@p")
    assert KEY not in str(told.value)


@pytest.mark.parametrize(
    ("name", "value"), [("X", f"{KEY}\r\nEvil: 1"), ("X Y", KEY), ("", KEY), ("X:", KEY), ("X", f"{KEY}é")]
)
def test_a_header_that_would_break_the_request_is_refused_without_its_value(name: str, value: str) -> None:
    with pytest.raises(InputError) as told:
        Endpoint.of("http://h", headers={name: value}, ca=None, proxy=None)
    assert KEY not in str(told.value)


def test_the_request_as_bytes() -> None:
    assert of("http://h:8080/b", X_A="1").post("/v1/completions", b"{}") == (
        b"POST /b/v1/completions HTTP/1.1\r\n"
        b"Content-Type: application/json\r\nAccept: text/event-stream\r\n"
        b"Host: h:8080\r\nUser-Agent: leadline\r\nAccept-Encoding: identity\r\nX-A: 1\r\n"
        b"Content-Length: 2\r\n\r\n{}"
    )


def test_the_operators_headers_win_except_for_framing() -> None:
    request = of(host="router", content_type="application/x", Content_Length="9", Connection="close").post("/p", b"{}")
    lines = request.decode().split("\r\n")
    assert "host: router" in lines
    assert "content-type: application/x" in lines
    assert not any(line.startswith(("Host:", "Content-Type:", "Connection:")) for line in lines)
    assert [line for line in lines if line.lower().startswith("content-length")] == ["Content-Length: 2"]


def test_secrets_are_taken_out_of_text() -> None:
    e = of(proxy="http://user:p%40ssword@p", Authorization=f"Bearer {KEY}", X_Key="abcdefgh", Accept="text/plain")
    assert e.proxy is not None
    text = f"key {KEY} or abcdefgh, {e.proxy.authorization}; Bearer wants text/plain"
    assert e.scrub(text) == "key <secret> or <secret>, Basic <secret>; Bearer wants text/plain"


def test_secrets_are_not_in_the_repr() -> None:
    e = of(proxy="http://user:password@p", Authorization=f"Bearer {KEY}")
    assert e.proxy is not None
    assert KEY not in repr(e)
    assert e.proxy.authorization not in repr(e)


def test_a_proxy() -> None:
    assert Proxy.of("http://p") == Proxy("p", 80)
    assert Proxy.of("http://u:p%40ss@p:3128") == Proxy("p", 3128, "Basic dTpwQHNz")


def test_a_tunnel_is_asked_for_with_host_and_port() -> None:
    assert of("https://[::1]", proxy="http://u:p@p").tunnel_request() == (
        b"CONNECT [::1]:443 HTTP/1.1\r\nHost: [::1]:443\r\nProxy-Authorization: Basic dTpw\r\n\r\n"
    )


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "connection refused"),
        (ConnectionResetError(104, "x"), "connection reset"),
        (BrokenPipeError(32, "x"), "connection reset"),
        (TimeoutError(), "timed out"),
        (OSError(113, "No route to host"), "no route to host"),
        (socket.gaierror(-2, "Name or service not known"), "name or service not known"),
        (ssl.SSLError(1, "[SSL] oops"), "TLS failed: no reason given"),
        (OSError(), "oserror"),
    ],
)
def test_failures_in_words(error: OSError, says: str) -> None:
    assert explain(error) == says
