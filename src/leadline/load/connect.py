"""Opens connections to an endpoint: name resolution, TLS, and an HTTP proxy in between."""

from __future__ import annotations

import asyncio
import socket
import ssl

from leadline.errors import HostError
from leadline.load.connection import Connection
from leadline.load.endpoint import Endpoint, Proxy


class _Tunnel(asyncio.Protocol):
    """Collects a proxy's answer to CONNECT."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._seen = b""

    def data_received(self, data: bytes) -> None:
        self._seen += data
        if b"\r\n\r\n" in self._seen:
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()

    def _end(self) -> None:
        if not self.answer.done():
            self.answer.set_result(self._seen)


class Dialer:
    """Makes connections that are ready for their first request. Its certificates are read once.

    A connection that the server had closed while it was idle shows that within a round trip, so `stale_s` is short: one
    that ends later without an answer belongs to a server that failed, and the failure must not be hidden.
    """

    def __init__(self, endpoint: Endpoint, stall_s: float, *, stale_s: float = 1.0) -> None:
        """Raises InputError when the certificate authorities cannot be read."""
        self._endpoint = endpoint
        self._stall_s = stall_s
        self._stale_s = stale_s
        self._context = endpoint.tls_context()

    async def connect(self) -> Connection:
        """Raises OSError, and HostError when a proxy refuses; gives up after `stall_s` with TimeoutError."""
        async with asyncio.timeout(self._stall_s):
            if self._endpoint.proxy and self._context:
                return await self._through(self._endpoint.proxy, self._context)
            at = self._endpoint.proxy or self._endpoint
            connection = Connection(self._stall_s, self._stale_s)
            await _open(connection, at.host, at.port, self._context)
            return connection

    async def _through(self, proxy: Proxy, context: ssl.SSLContext) -> Connection:
        tunnel = _Tunnel()
        plain = await _open(tunnel, proxy.host, proxy.port, None)
        secured: asyncio.Transport | None = None
        try:
            plain.write(self._endpoint.tunnel_request())
            status = b" ".join((await tunnel.answer).partition(b"\r\n")[0].split(b" ")[1:2]).decode("latin-1")
            if status != "200":
                raise HostError(f"the proxy did not connect us: {f'HTTP {status}' if status else 'connection closed'}")
            connection = Connection(self._stall_s, self._stale_s)
            secured = await asyncio.get_running_loop().start_tls(
                plain, connection, context, server_hostname=self._endpoint.host
            )
        finally:
            if secured is None:
                plain.abort()
        if secured is None:
            raise ConnectionResetError
        connection.connection_made(secured)
        return connection


async def _open(protocol: asyncio.Protocol, host: str, port: int, context: ssl.SSLContext | None) -> asyncio.Transport:
    """The first address that accepts.

    We go through the addresses ourselves, since asyncio hides the reason when several refuse (`localhost` has two).
    """
    loop = asyncio.get_running_loop()
    failed = OSError("the name has no address")
    for *_, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        try:
            transport, _ = await loop.create_connection(
                lambda: protocol, str(address[0]), port, ssl=context, server_hostname=host if context else None
            )
        except OSError as e:
            failed = e
        else:
            return transport
    raise failed
