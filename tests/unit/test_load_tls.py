"""TLS and proxies: the certificate in `load_tls.pem` names localhost and 127.0.0.1, and protects nothing."""

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from load_server import Act, Request, ScriptedServer, head, stream

from leadline.errors import InputError
from leadline.evidence import Probe
from leadline.load.client import LoadClient
from leadline.load.connect import Dialer
from leadline.load.decode import Raw, Sender, decode
from leadline.load.endpoint import Endpoint
from leadline.load.prober import HttpProber
from leadline.trial import RequestRecord

PEM = str(Path(__file__).with_name("load_tls.pem"))
PASSWORD = "proxy-passw0rd"


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(PEM)

    def answer(request: Request) -> list[bytes | float | Act]:
        if request.method == "GET":
            return [head(Content_Length="2") + b"ok"]
        return list(stream())

    with ScriptedServer(answer, tls=context) as server:
        yield server


class Proxy(ScriptedServer):
    """Answers CONNECT with a tunnel, and everything else itself."""

    async def _act(
        self, acts: Iterable[bytes | float | Act], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        request = self.requests[-1]
        if request.method != "CONNECT":
            return await super()._act(acts, reader, writer)
        host, port = request.target.rsplit(":", 1)
        there_in, there_out = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\nX-Proxy: yes\r\n\r\n")
        await asyncio.gather(relay(reader, there_out), relay(there_in, writer))
        return False


async def relay(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await source.read(65_536):
            sink.write(data)
            await sink.drain()
    sink.close()


def send(url: str, *, ca: str | None = PEM, proxy: str | None = None, n: int = 2) -> list[RequestRecord]:
    async def go() -> list[Raw]:
        endpoint = Endpoint.of(url, headers={}, ca=ca, proxy=proxy)
        client = LoadClient(Dialer(endpoint, 10))
        raws = [await client.send(endpoint.post("/v1/completions", b"{}")) for _ in range(n)]
        client.close()
        return raws

    return [decode(raw, Sender("p", 0)) for raw in asyncio.run(go())]


def test_tls_with_our_own_authority(server: ScriptedServer) -> None:
    assert [(r.error, r.output_tokens) for r in send(server.url)] == [("", 12)] * 2
    assert server.connections == 1


def test_a_certificate_that_nobody_vouches_for_is_refused(server: ScriptedServer) -> None:
    (record,) = send(server.url, ca=None, n=1)
    assert record.error.startswith("the server's certificate is not trusted: self")
    reply = HttpProber(server.url).fetch(Probe(name="health", path="/health"))
    assert (reply.status, reply.error) == (0, record.error)


def test_a_certificate_for_another_name_is_refused(server: ScriptedServer) -> None:
    (record,) = send(server.url.replace("127.0.0.1", "127.0.0.2"), n=1)
    assert record.error


def speak(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.sendall(b"HTTP/1.1 400 This is plain HTTP\r\n\r\n")
        connection.recv(65_536)


def test_plain_http_where_tls_is_spoken_and_the_reverse(server: ScriptedServer) -> None:
    assert send(server.url.replace("https", "http"), n=1)[0].error
    with socket.create_server(("127.0.0.1", 0)) as plain:
        speaking = threading.Thread(target=lambda: speak(plain))
        speaking.start()
        (record,) = send(f"https://127.0.0.1:{plain.getsockname()[1]}", n=1)
        speaking.join()
    assert record.error.startswith("TLS failed")


@pytest.mark.parametrize("ca", ["/does/not/exist.pem", __file__])
def test_an_authority_file_that_cannot_be_read_is_named(ca: str) -> None:
    with pytest.raises(InputError, match=ca):
        Dialer(Endpoint.of("https://h", headers={}, ca=ca, proxy=None), 1)
    reply = HttpProber("https://h", ca=ca).fetch(Probe(name="health", path="/health"))
    assert ca in reply.error


def test_a_probe_over_tls(server: ScriptedServer) -> None:
    reply = HttpProber(server.url, ca=PEM).fetch(Probe(name="health", path="/health"))
    assert (reply.status, reply.body, reply.error) == (200, b"ok", "")


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxy(lambda request: stream() if request.method == "POST" else [head("403 No", Content_Length="0")]) as proxy:
        yield proxy


def test_through_a_proxy_to_tls(server: ScriptedServer, proxy: Proxy) -> None:
    url = f"http://user:{PASSWORD}@127.0.0.1:{proxy.port}"
    assert [r.error for r in send(server.url, proxy=url)] == ["", ""]
    reply = HttpProber(server.url, ca=PEM, proxy=url).fetch(Probe(name="health", path="/health"))
    assert (reply.status, reply.body) == (200, b"ok")
    assert [r.method for r in proxy.requests] == ["CONNECT", "CONNECT"]
    for request in proxy.requests:
        assert request.target == f"127.0.0.1:{server.port}"
        assert request.headers["proxy-authorization"].startswith("Basic ")
    assert all("proxy-authorization" not in r.headers for r in server.requests)


def test_through_a_proxy_to_plain_http(proxy: Proxy) -> None:
    url = f"http://user:{PASSWORD}@127.0.0.1:{proxy.port}"
    assert [r.error for r in send("http://model.invalid:8080/x", ca=None, proxy=url)] == ["", ""]
    HttpProber("http://model.invalid:8080/x", proxy=url).fetch(Probe(name="health", path="/health"))
    assert [r.target for r in proxy.requests] == [
        "http://model.invalid:8080/x/v1/completions",
        "http://model.invalid:8080/x/v1/completions",
        "http://model.invalid:8080/x/health",
    ]
    assert all(r.headers["host"] == "model.invalid:8080" for r in proxy.requests)
    assert all(r.headers["proxy-authorization"].startswith("Basic ") for r in proxy.requests)
    assert proxy.connections == 2


def test_a_proxy_that_refuses(server: ScriptedServer) -> None:
    with ScriptedServer(lambda request: [head("407 Who", Content_Length="0")]) as closed:
        url = f"http://user:{PASSWORD}@127.0.0.1:{closed.port}"
        (record,) = send(server.url, proxy=url, n=1)
        reply = HttpProber(server.url, ca=PEM, proxy=url).fetch(Probe(name="health", path="/health"))
    assert record.error == "the proxy did not connect us: HTTP 407"
    assert "407" in reply.error
    assert PASSWORD not in record.error + reply.error
    assert server.requests == []


def test_a_proxy_that_hangs_up(server: ScriptedServer) -> None:
    with ScriptedServer(lambda request: [Act.CLOSE]) as closed:
        (record,) = send(server.url, proxy=closed.url, n=1)
    assert record.error == "the proxy did not connect us: connection closed"
