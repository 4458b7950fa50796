"""A port of 127.0.0.1 that leads to a port inside, and that can be cut."""

from __future__ import annotations

import asyncio
import contextlib
import socket

_BLOCK = 65536
_BACKLOG = 128


class Forward:
    """Made in the network namespace that it listens in; the connections inward are made in the one that is current when
    they are made. The port stays reserved while it does not listen."""

    def __init__(self, inner: tuple[str, int]) -> None:
        self._inner = inner
        self._socket = _reserved()
        self._accepting: asyncio.Task[None] | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def open(self) -> None:
        if self._accepting is None:
            self._socket.listen(_BACKLOG)
            self._accepting = asyncio.create_task(self._accept())

    async def close(self) -> None:
        """Connections are reset on both sides, new ones are refused; returns when that is done."""
        tasks = [*self._connections]
        if self._accepting is not None:
            tasks.append(self._accepting)
            self._accepting.cancel()
            self._accepting = None
            self._socket.shutdown(socket.SHUT_RDWR)
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self) -> None:
        while True:
            connection, _ = await asyncio.get_running_loop().sock_accept(self._socket)
            task = asyncio.create_task(self._serve(connection))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

    async def _serve(self, connection: socket.socket) -> None:
        outside, to_outside = await asyncio.open_connection(sock=connection)
        try:
            inside, to_inside = await asyncio.open_connection(*self._inner)
        except (OSError, asyncio.CancelledError):
            to_outside.transport.abort()
            return
        try:
            await asyncio.gather(_copy(outside, to_inside), _copy(inside, to_outside))
            to_outside.close()
            to_inside.close()
        except (OSError, asyncio.CancelledError):
            to_outside.transport.abort()
            to_inside.transport.abort()


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while block := await source.read(_BLOCK):
        sink.write(block)
        await sink.drain()
    with contextlib.suppress(OSError):
        sink.write_eof()


def _reserved() -> socket.socket:
    """A socket bound by its number: only such a one keeps it from one listen(2) to the next."""
    with socket.socket() as scout:
        scout.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        scout.bind(("127.0.0.1", 0))
        kept = socket.socket()
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(scout.getsockname())
    kept.setblocking(False)
    return kept
