"""The load worker's closed loop in virtual time: same sessions, same window, same records as the real one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from leadline.errors import InputError
from leadline.evidence import Acceptance
from leadline.metrics import NS_PER_MS, NS_PER_S
from leadline.ports import LoadPlan, PlannedRequest
from leadline.testing.clock import VirtualClock
from leadline.testing.dialects import Answer
from leadline.testing.labprocess import LabProcess
from leadline.testing.physics import Emission, Finish
from leadline.trial import LoadReport, RequestRecord

_POLL_NS = NS_PER_S // 5
_NOTHING = Acceptance(decode_tokens=0, rounds=0, drafting_rounds=0, drafted=0, accepted=0)


class Realised(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine really did in one load, for every request that it ended or gave up in it."""

    warmup: Acceptance = _NOTHING
    measured: Acceptance = _NOTHING

    @property
    def total(self) -> Acceptance:
        """What the server's counters moved by, when nobody else used it."""
        return self.warmup.plus(self.measured)

    def with_one(self, more: Acceptance, warmup: bool) -> Realised:
        if warmup:
            return Realised(warmup=self.warmup.plus(more), measured=self.measured)
        return Realised(warmup=self.warmup, measured=self.measured.plus(more))


class LabLoader:
    """`ports.Loader` of the lab; `at(url)` finds the server. Adds one entry to `realised` for every run. `reachable` =
    whether there is a connection to it at all."""

    def __init__(
        self,
        clock: VirtualClock,
        at: Callable[[str], LabProcess | None],
        realised: list[Realised],
        reachable: Callable[[], bool] = lambda: True,
    ) -> None:
        self._clock, self._at, self._realised, self._reachable = clock, at, realised, reachable

    def run(self, plan: LoadPlan, alive: Callable[[], bool]) -> LoadReport:
        if plan.concurrency < 1:
            raise InputError(f"a load needs at least one user, not {plan.concurrency}")
        load = _Load(self._clock, lambda: self._at(plan.url), plan, self._reachable)
        report = load.run(alive)
        self._realised.append(load.realised)
        return report


@dataclass(slots=True)
class _Session:
    requests: deque[PlannedRequest]
    warmup: bool


@dataclass(slots=True)
class _Flight:
    """A request under way."""

    request: PlannedRequest
    warmup: bool
    start_ns: int
    heard_ns: int
    chunk_ns: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _User:
    number: int
    session: _Session | None = None
    flight: _Flight | None = None
    done: bool = False


class _Load:
    def __init__(
        self,
        clock: VirtualClock,
        find: Callable[[], LabProcess | None],
        plan: LoadPlan,
        reachable: Callable[[], bool],
    ) -> None:
        self._clock, self._find, self._plan, self._reachable = clock, find, plan, reachable
        self._todo = deque(
            [
                *(_Session(deque(s), True) for s in plan.warmup),
                *(_Session(deque(s), False) for s in plan.sessions),
            ]
        )
        self._warming = len(plan.warmup)
        self._users = [_User(i) for i in range(plan.concurrency)]
        self._flying: dict[int, _User] = {}
        self._process: LabProcess | None = None
        self._records: list[RequestRecord] = []
        self._start_ns = self._warm_ns = clock.now_ns()
        self._end_ns = 0
        self._asked_ns = clock.now_ns()
        self.realised = Realised()

    def run(self, alive: Callable[[], bool]) -> LoadReport:
        process = self._find()
        if process is not None:
            process.model.engine.new_point()
        while True:
            for user in self._users:
                self._go_on(user)
            if not self._flying:
                break
            self._advance()
            if self._clock.now_ns() - self._asked_ns >= _POLL_NS:
                self._asked_ns = self._clock.now_ns()
                if not alive():
                    self._stop()
                    break
                self._hang_up()
        return self._report()

    def _go_on(self, user: _User) -> None:
        """Give an idle user its next request; requests that fail at once take no time."""
        while user.flight is None and not user.done:
            if user.session is not None and not user.session.requests:
                self._end_session(user)
            if user.session is None:
                if not self._todo:
                    user.done = True
                    self._close_window()
                    return
                user.session = self._todo.popleft()
                continue
            self._send(user, user.session.requests.popleft(), user.session.warmup)

    def _end_session(self, user: _User) -> None:
        if user.session is not None and user.session.warmup:
            self._warming -= 1
            self._warm_ns = self._clock.now_ns()
        user.session = None

    def _send(self, user: _User, request: PlannedRequest, warmup: bool) -> None:
        now = self._clock.now_ns()
        user.flight = _Flight(request, warmup, now, now)
        self._process = self._find()
        if self._process is None:
            self._fail(user, "connection refused")
            return
        body = {"user": request.prompt_id, **request.body, "stream": True, "stream_options": {"include_usage": True}}
        path = "/v1/completions" if "prompt" in body and "messages" not in body else "/v1/chat/completions"
        asked = self._process.ask(path, msgspec.json.encode(body))
        if isinstance(asked, Answer):
            said = msgspec.json.decode(asked.body)
            said = said["error"]["message"] if "error" in said else said["message"]
            self._fail(user, f"HTTP {asked.status}: {said}", asked.status)
        elif asked[1].id is not None:
            self._flying[asked[1].id] = user

    def _advance(self) -> None:
        """One step of the server, or a short wait when none comes."""
        process = self._process
        if process is None or process.exit() is not None:
            self._drop("connection reset")
        elif not self._reachable():
            for number, user in list(self._flying.items()):
                self._cancel(number, user, "connection reset")
        elif process.stuck():
            self._clock.advance_ns(_POLL_NS)
        else:
            model = process.model
            for emission in process.step():
                if emission.id in self._flying:
                    self._hear(self._flying[emission.id], emission)
            if process.exit() is not None or process.model is not model:
                self._drop("connection reset")

    def _hear(self, user: _User, emission: Emission) -> None:
        flight = user.flight
        if flight is None:
            return
        flight.heard_ns = self._clock.now_ns()
        flight.chunk_ns.append(flight.heard_ns)
        if emission.finish is None:
            return
        del self._flying[emission.id]
        self.realised = self.realised.with_one(emission.finish.acceptance, flight.warmup)
        if emission.cut:
            self._fail(user, f"stream cut after {len(flight.chunk_ns)} chunks: the connection closed", 200)
        else:
            self._record(user, emission.finish)

    def _hang_up(self) -> None:
        """Give up what has been silent for too long."""
        limit_ns = self._clock.now_ns() - round(self._plan.stall_s * NS_PER_S)
        for number, user in list(self._flying.items()):
            if user.flight is not None and user.flight.heard_ns <= limit_ns:
                self._cancel(number, user, f"no byte for {self._plan.stall_s:g} s")

    def _stop(self) -> None:
        self._close_window()
        for number, user in list(self._flying.items()):
            self._cancel(number, user, "stopped")

    def _cancel(self, number: int, user: _User, error: str) -> None:
        finish = self._process.cancel(number) if self._process is not None else None
        if finish is not None and user.flight is not None:
            self.realised = self.realised.with_one(finish.acceptance, user.flight.warmup)
        del self._flying[number]
        self._fail(user, error, 200 if user.flight and user.flight.chunk_ns else 0)

    def _drop(self, error: str) -> None:
        """The process is gone, and its counters with it."""
        for user in self._flying.values():
            self._fail(user, error)
        self._flying.clear()

    def _fail(self, user: _User, error: str, status: int = 0) -> None:
        self._record(user, None, error, status)

    def _record(self, user: _User, finish: Finish | None, error: str = "", status: int = 200) -> None:
        flight, user.flight = user.flight, None
        if flight is None:
            return
        tokens = finish.output_tokens if finish else 0
        chunks = len(flight.chunk_ns)
        self._records.append(
            RequestRecord(
                prompt_id=flight.request.prompt_id,
                user=user.number,
                turn=flight.request.turn,
                warmup=flight.warmup,
                intended_ns=flight.start_ns,
                start_ns=flight.start_ns,
                chunk_ns=tuple(flight.chunk_ns),
                chunk_tokens=(tokens / chunks,) * chunks if chunks else (),
                end_ns=self._clock.now_ns(),
                prompt_tokens=finish.prompt_tokens if finish else 0,
                output_tokens=tokens,
                drafted=finish.acceptance.drafted if finish else 0,
                accepted=finish.acceptance.accepted if finish else 0,
                engine_decode_ms=finish.decode_s * NS_PER_S / NS_PER_MS if finish else 0.0,
                finish_reason=finish.reason if finish else "",
                status=status,
                error=error,
            )
        )

    def _close_window(self) -> None:
        self._end_ns = self._end_ns or self._clock.now_ns()

    def _report(self) -> LoadReport:
        start_ns = self._end_ns if self._warming else max(self._start_ns, self._warm_ns)
        return LoadReport(
            records=tuple(sorted(self._records, key=lambda r: (r.start_ns, r.user))),
            window_start_ns=start_ns,
            window_end_ns=max(start_ns, self._end_ns),
            clock="virtual",
        )
