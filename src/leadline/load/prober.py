"""Fetches an engine's control endpoints with the standard library's HTTP client: one connection for each probe."""

from __future__ import annotations

import http.client
import socket
import time
from urllib.parse import urljoin, urlsplit

from leadline.errors import InputError
from leadline.evidence import Probe, Reply
from leadline.load.endpoint import Endpoint, explain

BODY_LIMIT = 8 << 20
_REDIRECTS = 3


class HttpProber:
    """A Prober.

    A redirect is followed only to the same scheme, host and port. A body is kept up to 8 MiB. `metrics_url` is the
    whole URL of the probe named "metrics"; on another host than the service it is asked without the headers, which may
    hold the service's secret. No error text holds a header.
    """

    def __init__(
        self,
        base_url: str,
        headers: dict[str, str] | None = None,
        ca: str | None = None,
        proxy: str | None = None,
        *,
        metrics_url: str | None = None,
    ) -> None:
        """Raises InputError when an URL, a header or the proxy cannot be used."""
        headers = headers or {}
        self._service = Endpoint.of(base_url, headers=headers, ca=ca, proxy=proxy)
        self._metrics: Endpoint | None = None
        if metrics_url:
            self._metrics = Endpoint.of(metrics_url, headers={}, ca=ca, proxy=proxy)
            if self._metrics.host == self._service.host:
                self._metrics = Endpoint.of(metrics_url, headers=headers, ca=ca, proxy=proxy)

    def fetch(self, probe: Probe) -> Reply:
        """Waits at most `probe.timeout_s` in all. A stop signal (InterruptedRun) comes through."""
        endpoint, path = self._service, probe.path
        if self._metrics is not None and probe.name == "metrics":
            endpoint, path = self._metrics, ""
        try:
            return _Fetch(endpoint, probe).follow(endpoint.base + path or "/")
        except TimeoutError:
            error = f"no answer within {probe.timeout_s:g} s"
        except OSError as e:
            error = explain(e)
        except http.client.IncompleteRead:
            error = "the answer was cut"
        except (http.client.InvalidURL, ValueError):  # the message may hold a header, so we do not repeat it
            error = f"the path {probe.path!r} cannot be requested"
        except http.client.HTTPException as e:
            error = f"the answer is not HTTP: {type(e).__name__}"
        except InputError as e:
            error = str(e)
        return Reply(name=probe.name, status=0, error=error)


class _Fetch:
    """One probe under way, with its deadline."""

    def __init__(self, endpoint: Endpoint, probe: Probe) -> None:
        self._endpoint = endpoint
        self._probe = probe
        self._deadline = time.monotonic() + probe.timeout_s
        self._wire: socket.socket

    def follow(self, path: str) -> Reply:
        for _ in range(_REDIRECTS):
            reply, location = self._once(path)
            onward = self._same_origin(path, location) if self._may_follow(reply.status) else None
            if onward is None:
                return reply
            path = onward
        return reply

    def _left_s(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def _once(self, path: str) -> tuple[Reply, str]:
        """One request and the `Location` of its answer."""
        endpoint, probe = self._endpoint, self._probe
        headers = endpoint.lines()
        if probe.body:
            headers = {"Content-Type": "application/json"} | headers
        absolute = endpoint.proxy is not None and not endpoint.tls
        connection = self._connection()
        try:
            connection.connect()
            self._wire = connection.sock
            connection.request(
                probe.method,
                f"http://{endpoint.authority}{path}" if absolute else path,
                body=probe.body or None,
                headers=headers,
            )
            self._wire.settimeout(self._left_s())
            response = connection.getresponse()
            body = self._body(response)
        finally:
            connection.close()
        return Reply(name=probe.name, status=response.status, body=body), response.headers.get("Location", "")

    def _connection(self) -> http.client.HTTPConnection:
        endpoint, left_s = self._endpoint, self._left_s()
        at = endpoint.proxy or endpoint
        context = endpoint.tls_context()
        if context is None:
            return http.client.HTTPConnection(at.host, at.port, timeout=left_s)
        connection = http.client.HTTPSConnection(at.host, at.port, timeout=left_s, context=context)
        if endpoint.proxy:
            secret = endpoint.proxy.authorization
            connection.set_tunnel(
                endpoint.host, endpoint.port, headers={"Proxy-Authorization": secret} if secret else {}
            )
        return connection

    def _body(self, response: http.client.HTTPResponse) -> bytes:
        body = bytearray()
        while len(body) < BODY_LIMIT:
            self._wire.settimeout(self._left_s())
            piece = response.read1(min(65_536, BODY_LIMIT - len(body)))
            if not piece:
                if response.length:
                    raise http.client.IncompleteRead(b"")
                break
            body += piece
        return bytes(body)

    def _may_follow(self, status: int) -> bool:
        return status in (307, 308) or (status in (301, 302, 303) and self._probe.method == "GET")

    def _same_origin(self, path: str, location: str) -> str | None:
        """The path that a redirect leads to; None when it leads to another server."""
        endpoint = self._endpoint
        here = f"{'https' if endpoint.tls else 'http'}://{endpoint.authority}{path}"
        parts = urlsplit(urljoin(here, location))
        there = (parts.scheme == "https", parts.hostname, parts.port or (443 if parts.scheme == "https" else 80))
        if not location or there != endpoint.origin:
            return None
        return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
