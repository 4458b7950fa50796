"""A fixed number of users, each with one request in flight: the load of a LoadPlan, and its steady window."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from leadline.errors import InputError
from leadline.load.client import LoadClient
from leadline.load.connect import Dialer
from leadline.load.decode import AnswerReader, Raw, Sender
from leadline.load.endpoint import Endpoint
from leadline.load.meter import Meter
from leadline.ports import LoadPlan, PlannedRequest
from leadline.trial import LoadReport, RequestRecord

_CONNECT_AT_ONCE = 32  # well below the usual backlog of a listening socket (128)
_DECODE_SLICE = 32  # pieces that are read between two looks at the sockets: about 0.2 ms
_PROGRESS_S = 0.25


class Progress(msgspec.Struct, frozen=True):
    """Requests that have ended, of how many, and output tokens read so far."""

    done: int
    of: int
    tokens: int


class _Request(NamedTuple):
    prompt_id: str
    turn: int
    wire: bytes


class _Session(NamedTuple):
    requests: tuple[_Request, ...]
    warmup: bool


def wire(endpoint: Endpoint, request: PlannedRequest) -> bytes:
    """The request as sent: the planned body, streamed, with its usage asked for."""
    options = request.body.get("stream_options")
    body = {
        **request.body,
        "stream": True,
        "stream_options": {**(options if isinstance(options, dict) else {}), "include_usage": True},
    }
    text = "prompt" in body and "messages" not in body
    return endpoint.post("/v1/completions" if text else "/v1/chat/completions", msgspec.json.encode(body))


class ClosedLoop:
    """Users that take the next session, send its requests in order, and come back for another; runs once.

    Sessions of warm-up come first, with no barrier after them, so that the load is steady from then on. Answers are
    read beside the load, in small slices, so that no arrival waits long for its time stamp. When as many requests in a
    row as there are users stall, the server hangs, and the load ends: the others would only wait as long.
    """

    def __init__(self, plan: LoadPlan, on_progress: Callable[[Progress], None]) -> None:
        """Raises InputError when the plan cannot be carried out as it is."""
        if plan.concurrency < 1:
            raise InputError(f"a load needs at least one user, not {plan.concurrency}")
        self._endpoint = Endpoint.of(plan.url, headers=plan.headers, ca=plan.ca, proxy=plan.proxy)
        dialer = Dialer(self._endpoint, plan.stall_s)
        self._clients = [LoadClient(dialer) for _ in range(plan.concurrency)]
        self._todo = deque([*self._sessions(plan.warmup, True), *self._sessions(plan.sessions, False)])
        self._of = sum(len(s.requests) for s in self._todo)
        self._warming = len(plan.warmup)
        self._on_progress = on_progress
        self._told: Progress | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._answers: asyncio.Queue[tuple[Raw, Sender] | None] = asyncio.Queue()
        self._records: list[RequestRecord] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._done = self._tokens = self._stalls = 0
        self._start_ns = self._warm_ns = self._end_ns = 0
        self._stopping = False

    def _sessions(self, sessions: Sequence[Sequence[PlannedRequest]], warmup: bool) -> list[_Session]:
        return [
            _Session(tuple(_Request(r.prompt_id, r.turn, wire(self._endpoint, r)) for r in session), warmup)
            for session in sessions
        ]

    async def run(self) -> LoadReport:
        """Send everything, or until `stop`; every request that was begun has a record."""
        meter = Meter()
        reading = asyncio.create_task(self._read())
        await self._all([asyncio.create_task(self._connect())])
        with _no_garbage_collection():
            meter.start()
            self._progress()
            self._start_ns = time.monotonic_ns()
            await self._all([asyncio.create_task(self._user(i, c)) for i, c in enumerate(self._clients)])
            meter.stop()
        self._answers.put_nowait(None)
        await reading
        self._progress(last=True)
        start_ns, end_ns = self._window()
        return LoadReport(
            records=tuple(sorted(self._records, key=lambda r: (r.start_ns, r.user))),
            window_start_ns=start_ns,
            window_end_ns=end_ns,
            lag_p99_ms=round(meter.lag_p99_ms, 3),
            cpu_share=round(meter.cpu_share, 4),
        )

    def stop(self) -> None:
        """Send nothing more; running requests end now, with the error "stopped"."""
        self._stopping = True
        self._close_window()
        for task in self._tasks:
            task.cancel()

    async def _all(self, tasks: list[asyncio.Task[None]]) -> None:
        """Wait for tasks that `stop` may cancel, even before they began; what else ends them is an error of ours."""
        self._tasks = tasks
        await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.result()

    async def _connect(self) -> None:
        """Beforehand and in small groups; after a failure each user tries for itself, and its request tells."""
        for i in range(0, len(self._clients), _CONNECT_AT_ONCE):
            failures = await asyncio.gather(*(c.connect() for c in self._clients[i : i + _CONNECT_AT_ONCE]))
            if any(failures):
                return

    async def _user(self, number: int, client: LoadClient) -> None:
        # Every user comes to its first `send` before any answer is read: each takes one of the first sessions.
        while self._todo and not self._stopping:
            session = self._todo.popleft()
            for request in session.requests:
                if self._stopping:
                    break
                raw = await client.send(request.wire)
                self._answers.put_nowait((raw, Sender(request.prompt_id, number, request.turn, session.warmup)))
                self._done += 1
                self._stalls = self._stalls + 1 if raw.stalled else 0
                if self._stalls >= len(self._clients):
                    self._stopping = True
            if session.warmup and not self._stopping:
                self._warming -= 1
                self._warm_ns = time.monotonic_ns()
        self._close_window()
        client.close()  # an idle connection would hold one of the few threads that some servers have

    def _close_window(self) -> None:
        self._end_ns = self._end_ns or time.monotonic_ns()

    def _window(self) -> tuple[int, int]:
        """From the last warm-up session's end to the first user without work; empty when they come the other way."""
        start_ns = self._end_ns if self._warming else max(self._start_ns, self._warm_ns)
        return start_ns, max(start_ns, self._end_ns)

    async def _read(self) -> None:
        while (answer := await self._answers.get()) is not None:
            raw, sender = answer
            reader = AnswerReader()
            for i, (t_ns, data) in enumerate(raw.pieces, 1):
                reader.feed(t_ns, data)
                if i % _DECODE_SLICE == 0:
                    await asyncio.sleep(0)
            record = reader.record(raw, sender)
            if record.error:
                record = msgspec.structs.replace(record, error=self._endpoint.scrub(record.error))
            self._records.append(record)
            self._tokens += record.output_tokens
            await asyncio.sleep(0)

    def _progress(self, *, last: bool = False) -> None:
        if self._timer is not None:
            self._timer.cancel()
        now = Progress(self._done, self._of, self._tokens)
        if now != self._told:
            self._on_progress(now)
            self._told = now
        if not last:
            self._timer = asyncio.get_running_loop().call_later(_PROGRESS_S, self._progress)


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """A collection stops the loop for milliseconds; what is here now need never be looked at again."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
