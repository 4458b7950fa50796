"""One HTTP/1.1 client connection: stamps what arrives, keeps it, and finds the end of the answer. No JSON here.

The receive path does four things for a piece: read the clock, run the HTTP parser (llhttp), append (t_ns, bytes), and
return. Everything that goes wrong ends as text in `Raw.error`.
"""

from __future__ import annotations

import asyncio
import time
from typing import cast

import httptools

from leadline.load.decode import Raw
from leadline.load.endpoint import explain


class Connection(asyncio.Protocol):
    """Carries one request at a time. `usable` = open, idle and able to carry the next one.

    `stale`: the last request got no answer at all, since the connection ended within `stale_s` of sending: most likely
    the server had closed it before. `stall_s`: the longest silence of a request.
    """

    def __init__(self, stall_s: float, stale_s: float) -> None:
        self._stall_s = stall_s
        self._stale_s = stale_s
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._raw: Raw | None = None
        self._ended: asyncio.Future[None] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._pieces: list[tuple[int, bytes]] = []
        self._heard_ns = 0
        self._framed = False  # the head says where the body ends
        self._keep = False
        self._watch: asyncio.TimerHandle | None = None
        self.stale = False

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing() and self._raw is None

    async def exchange(self, raw: Raw, request: bytes) -> None:
        """Send, and fill `raw` until the answer has ended in one way or another. A cancelled exchange closes."""
        assert self._transport is not None
        self._raw, self._pieces = raw, raw.pieces
        self._parser = httptools.HttpResponseParser(self)
        self._framed = self._keep = self.stale = False
        self._ended = self._loop.create_future()
        raw.start_ns = self._heard_ns = time.monotonic_ns()
        self._transport.write(request)
        self._watch = self._loop.call_later(self._stall_s, self._look)
        try:
            await self._ended
        except asyncio.CancelledError:
            self._finish("stopped")
            raise

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class is none of asyncio's

    def data_received(self, data: bytes) -> None:
        self._heard_ns = time.monotonic_ns()
        if self._raw is None:  # nobody asked: a server's farewell, or garbage; either way the connection is spent
            self.abort()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as e:
            self._finish(f"the answer is not HTTP/1.1: {e}")

    def connection_lost(self, exc: Exception | None) -> None:
        raw = self._raw
        if raw is None:
            return
        if self._heard_ns == raw.start_ns:
            self.stale = time.monotonic_ns() - raw.start_ns < self._stale_s * 1e9
            why = explain(exc) if isinstance(exc, OSError) else "connection closed"
            self._finish(f"{why} before any answer")
        elif raw.status and not self._framed and exc is None:
            self._finish("")  # a body without a length ends with its connection
        else:
            raw.cut = True
            self._finish("" if raw.status else "connection closed within the head of the answer")

    # httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in (b"content-length", b"transfer-encoding"):
            self._framed = True
        elif name == b"content-type" and self._raw is not None:
            self._raw.content_type = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self._raw is not None and status >= 200:
            self._raw.status = status
            self._keep = self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        self._pieces.append((self._heard_ns, body))

    def on_message_complete(self) -> None:
        if self._raw is not None and self._raw.status:  # else "100 Continue" or the like
            self._finish("", keep=self._keep)

    def _look(self) -> None:
        """Whether the server has been silent for too long; else look again when it could be."""
        silent_s = (time.monotonic_ns() - self._heard_ns) / 1e9
        if silent_s >= self._stall_s:
            self._finish(f"no byte for {self._stall_s:g} s", stalled=True)
        else:
            self._watch = self._loop.call_later(self._stall_s - silent_s, self._look)

    def _finish(self, error: str, *, keep: bool = False, stalled: bool = False) -> None:
        raw, ended = self._raw, self._ended
        if raw is None or ended is None:
            return
        raw.end_ns = self._heard_ns if not error and not raw.cut else time.monotonic_ns()
        raw.error, raw.stalled = error, stalled
        self._raw, self._ended, self._pieces = None, None, []
        if self._watch is not None:
            self._watch.cancel()
        if not keep:
            self.abort()
        if not ended.done():
            ended.set_result(None)
