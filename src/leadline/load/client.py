"""What one user of the load holds: a kept-alive connection, and `send`, which never raises for what a server does."""

from __future__ import annotations

import asyncio
import time

from leadline.errors import HostError
from leadline.load.connect import Dialer
from leadline.load.connection import Connection
from leadline.load.decode import Raw
from leadline.load.endpoint import explain


class LoadClient:
    """Sends one request at a time; connects again by itself whenever there is no usable connection.

    A request that met a connection which the server had closed while it was idle is sent once more on a new one,
    silently: the server has not seen it. Any other failure is in `Raw.error`.
    """

    def __init__(self, dialer: Dialer) -> None:
        self._dialer = dialer
        self._connection: Connection | None = None

    async def connect(self) -> str:
        """Connect beforehand, so that no request pays for it. Returns why it failed, or an empty text."""
        try:
            self._connection = await self._dialer.connect()
        except TimeoutError:
            return "no connection in time"
        except OSError as e:
            return explain(e)
        except HostError as e:
            return str(e)
        return ""

    async def send(self, request: bytes) -> Raw:
        """The answer, once it has ended. Cancelled, it returns what has come so far, with the error "stopped"."""
        now = time.monotonic_ns()
        raw = Raw(intended_ns=now, start_ns=now)
        try:
            await self._send(raw, request)
        except asyncio.CancelledError:
            if raw.error or not raw.end_ns:  # else it had just ended
                raw.error, raw.end_ns = "stopped", time.monotonic_ns()
        return raw

    async def _send(self, raw: Raw, request: bytes) -> None:
        connection = self._connection
        if connection is not None and connection.usable:
            await connection.exchange(raw, request)
            if not connection.stale:
                return
        raw.error = await self.connect()
        if raw.error:
            raw.start_ns, raw.end_ns = raw.intended_ns, time.monotonic_ns()
        elif self._connection is not None:
            await self._connection.exchange(raw, request)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.abort()
