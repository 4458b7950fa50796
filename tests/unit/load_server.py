"""A real HTTP/1.1 server that sends what a test tells it to, byte by byte, on a port of the kernel's choice."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType


class Act(Enum):
    CLOSE = "close"
    RESET = "reset"
    HANG = "hang until the client goes away"


@dataclass
class Request:
    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    connection: int
    nth: int
    """Position on its connection, from 0."""

    @property
    def json(self) -> dict[str, object]:
        return json.loads(self.body)


Answer = Callable[[Request], Iterable[bytes | float | Act]]
"""What to do for a request, in order: send bytes, wait seconds, close, reset or hang."""


@dataclass
class ScriptedServer:
    answer: Answer
    tls: ssl.SSLContext | None = None
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    live: int = 0
    peak: int = 0

    def __enter__(self) -> ScriptedServer:
        self._changed = threading.Condition()
        self._serving: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(
            asyncio.start_server(self._accepted, "127.0.0.1", 0, ssl=self.tls, backlog=256)
        )
        self.port: int = self._server.sockets[0].getsockname()[1]
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    def wait_for(self, requests: int, timeout_s: float = 20.0) -> None:
        """Until so many requests have come; in all, not at once."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.requests) >= requests, timeout_s), len(self.requests)

    async def _end(self) -> None:
        # Connections that asyncio is just accepting would be left open by a closed server: end accepting first.
        self._loop.remove_reader(self._server.sockets[0].fileno())
        others = asyncio.all_tasks() - set(self._serving) - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=1)
        self._server.close()
        for task, writer in self._serving.items():
            task.cancel()
            writer.transport.abort()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await asyncio.sleep(0)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._serving[asyncio.create_task(self._serve(reader, writer))] = writer

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number, nth = self.connections, 0
        self.connections += 1
        try:
            while (request := await self._read(reader, number, nth)) is not None:
                nth += 1
                with self._changed:
                    self.requests.append(request)
                    self.live += 1
                    self.peak = max(self.peak, self.live)
                    self._changed.notify_all()
                try:
                    if not await self._act(self.answer(request), reader, writer):
                        return
                finally:
                    self.live -= 1
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()

    async def _read(self, reader: asyncio.StreamReader, connection: int, nth: int) -> Request | None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except asyncio.IncompleteReadError:
            return None
        first, *lines = head.split("\r\n")[:-2]
        method, target, _ = first.split(" ")
        headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        return Request(method, target, headers, body, connection, nth)

    async def _act(
        self, acts: Iterable[bytes | float | Act], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Whether the connection goes on."""
        for act in acts:
            if isinstance(act, bytes):
                writer.write(act)
                await writer.drain()
            elif isinstance(act, float):
                await asyncio.sleep(act)
            elif act is Act.HANG:
                await reader.read()
                return False
            elif act is Act.RESET:
                sock: socket.socket = writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return False
            else:
                writer.close()
                return False
        return True


def head(status: str = "200 OK", **headers: str) -> bytes:
    lines = {"Content-Type": "text/event-stream"} | {k.replace("_", "-"): v for k, v in headers.items()}
    return f"HTTP/1.1 {status}\r\n{''.join(f'{k}: {v}{chr(13)}{chr(10)}' for k, v in lines.items())}\r\n".encode()


CHUNKED = head(Transfer_Encoding="chunked")
LAST_CHUNK = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(value: object) -> bytes:
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def text(content: str) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": content}, "finish_reason": None}]})


def finish(tokens: int, prompt: int = 5) -> bytes:
    """The last events of a stream: finish_reason, usage, [DONE]."""
    usage = {"completion_tokens": tokens, "prompt_tokens": prompt}
    return (
        event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        + event({"choices": [], "usage": usage})
        + event(b"[DONE]")
    )


ROLE = event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})


def stream(chunks: int = 3, tokens: int = 12, gap_s: float = 0.0) -> Iterable[bytes | float]:
    """A whole chunked answer."""
    yield CHUNKED + chunk(ROLE)
    for i in range(chunks):
        if gap_s:
            yield gap_s
        yield chunk(text(f"w{i} "))
    yield chunk(finish(tokens)) + LAST_CHUNK
