"""The lab server's HTTP/1.1: requests in, answers and event streams out. Keep-alive; no pipelining, no TLS."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import socket
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus

import msgspec

from leadline.testing.dialects import Answer, Ask, Dialect, View, words
from leadline.testing.model import LabModel
from leadline.testing.physics import Emission

_HEAD_LIMIT = 1 << 16
_SERVER = "leadline-lab"


class _Request(msgspec.Struct, frozen=True):
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class _Waiter:
    """A client that waits for the emissions of its request; None on the queue = it was given up."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.queue: asyncio.Queue[Emission | None] = asyncio.Queue()

    def gone(self) -> bool:
        return self._reader.at_eof() or self._writer.is_closing()


class Front:
    """Between the connections and the model. `ended` is told of every emission that ends a request."""

    def __init__(
        self, *, dialect: Dialect, model: LabModel, view: Callable[[], View], ended: Callable[[Emission], None]
    ) -> None:
        self._dialect, self._model, self._view, self._ended = dialect, model, view, ended
        self._waiters: dict[int, _Waiter] = {}
        self._work = asyncio.Event()
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._closing = False

    # --- the engine's side

    def busy(self) -> bool:
        return self._model.engine.running + self._model.engine.queued > 0

    async def wait_for_work(self) -> None:
        self._work.clear()
        await self._work.wait()

    def drop_gone(self) -> None:
        """Cancel the requests whose clients have closed their connections."""
        for number, waiter in list(self._waiters.items()):
            if waiter.gone():
                self._model.cancel(number)
                del self._waiters[number]
                waiter.queue.put_nowait(None)

    def deliver(self, emissions: Sequence[Emission]) -> None:
        for emission in emissions:
            waiter = self._waiters.get(emission.id)
            if emission.finish is not None:
                self._ended(emission)
                self._waiters.pop(emission.id, None)
            if waiter is not None:
                waiter.queue.put_nowait(emission)

    # --- the connections' side

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, request after request."""
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = writer
        with contextlib.suppress(ConnectionError):
            while (request := await _read(reader)) is not None:
                keep = await self._answer(request, reader, writer)
                await writer.drain()
                if not keep or request.headers.get("connection", "").lower() == "close":
                    break
        writer.close()
        del self._connections[task]

    async def close(self) -> None:
        """Cut all connections, and wait until nobody serves them."""
        self._closing = True
        for waiter in self._waiters.values():
            waiter.queue.put_nowait(None)
        for writer in self._connections.values():
            writer.transport.abort()
        if self._connections:
            await asyncio.wait(self._connections)

    async def _answer(self, request: _Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """False when the connection must end."""
        view = self._view()
        guarded = self._dialect.guards(request.path.partition("?")[0])
        if guarded and not _allowed(request, view.flags.api_keys):
            _write(writer, self._dialect.unauthorized())
        elif request.method == "GET":
            _write(writer, self._dialect.get(request.path, view))
        else:
            return await self._generate(request, _Waiter(reader, writer), writer)
        return True

    async def _generate(self, request: _Request, waiter: _Waiter, writer: asyncio.StreamWriter) -> bool:
        if self._closing:  # it had been read, but not yet looked at
            return False
        ask = self._dialect.ask(request.path, request.body, self._view())
        if isinstance(ask, Answer):
            _write(writer, ask)
            return True
        admission = self._model.admit(ask.request)
        if admission.id is None:
            _write(writer, self._dialect.refusal(admission))
            return True
        self._waiters[admission.id] = waiter
        self._work.set()
        return await (self._stream if ask.stream else self._whole)(ask, waiter, writer)

    async def _stream(self, ask: Ask, waiter: _Waiter, writer: asyncio.StreamWriter) -> bool:
        writer.write(_head(200, "text/event-stream", "Transfer-Encoding: chunked"))
        opening, sent = self._dialect.opening(ask, self._view()), 0
        while (emission := await waiter.queue.get()) is not None:
            text = words(ask.request.prompt_id, sent, emission.tokens)
            sent += emission.tokens
            data = (opening if sent == emission.tokens else b"") + self._dialect.piece(ask, text, sent, self._view())
            if emission.finish is not None and not emission.cut:
                data += self._dialect.closing(ask, emission.finish, self._view())
            writer.write(b"%x\r\n%b\r\n" % (len(data), data))
            if emission.cut:
                return False
            if emission.finish is not None:
                writer.write(b"0\r\n\r\n")
                return True
            await writer.drain()
        return False

    async def _whole(self, ask: Ask, waiter: _Waiter, writer: asyncio.StreamWriter) -> bool:
        tokens = 0
        while (emission := await waiter.queue.get()) is not None:
            tokens += emission.tokens
            if emission.cut:
                return False
            if emission.finish is not None:
                text = words(ask.request.prompt_id, 0, tokens)
                _write(writer, self._dialect.whole(ask, text, emission.finish, self._view()))
                return True
        return False


def claim(host: str, port: int) -> socket.socket:
    """Takes the port without listening: connections are refused. Raises OSError when it is taken."""
    found = socket.getaddrinfo(host or "127.0.0.1", port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = min(found, key=lambda f: f[0] != socket.AF_INET)
    taken = socket.socket(family, kind, protocol)
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(address)
    except OSError:
        taken.close()
        raise
    return taken


async def serve(front: Front, claimed: socket.socket) -> asyncio.Server:
    """Answers on a port that was claimed."""
    return await asyncio.start_server(front.talk, sock=claimed, limit=_HEAD_LIMIT)


async def _read(reader: asyncio.StreamReader) -> _Request | None:
    """The next request; None at the end of the connection, or when this is no HTTP."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ", 2)
        pairs = (line.partition(":") for line in lines if line)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
        return None
    return _Request(method, path, headers, body)


def _allowed(request: _Request, keys: Sequence[str]) -> bool:
    given = request.headers.get("authorization", "").removeprefix("Bearer ").encode()
    return not keys or any(hmac.compare_digest(given, key.encode()) for key in keys)


def _head(status: int, content_type: str, framing: str) -> bytes:
    return (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nServer: {_SERVER}\r\n"
        f"Content-Type: {content_type}\r\n{framing}\r\n\r\n"
    ).encode()


def _write(writer: asyncio.StreamWriter, answer: Answer) -> None:
    writer.write(_head(answer.status, answer.content_type, f"Content-Length: {len(answer.body)}") + answer.body)
