"""One server process of the lab in virtual time: its start, its answers, its steps and its end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from leadline.evidence import ExitFacts, ProcessFacts
from leadline.metrics import NS_PER_S
from leadline.testing.clock import VirtualClock
from leadline.testing.dialects import (
    Answer,
    Ask,
    Boot,
    Dialect,
    End,
    Exit,
    Flags,
    Read,
    View,
    lab_flags,
    nothing,
    words,
)
from leadline.testing.faults import active
from leadline.testing.model import Admission, Fatal, LabModel
from leadline.testing.physics import Emission, Finish, LabSpec

_FIRST_PID = 4000
_MODEL_BYTES = 270 << 20
_STOP_S = 0.05


class LabProcess:
    """`taken(port)` tells whether somebody else has that port; `read` gives the files that its command line names."""

    def __init__(
        self,
        *,
        spec: LabSpec,
        dialect: Dialect,
        clock: VirtualClock,
        argv: tuple[str, ...],
        log: str,
        launch: int,
        taken: Callable[[int], bool],
        read: Read = nothing,
    ) -> None:
        self.argv, self.log, self.launch = argv, log, launch
        self.pid = _FIRST_PID + launch
        self._spec, self._dialect, self._clock = spec, dialect, clock
        self._lines: list[str] = []
        self._due: deque[tuple[float, str]] = deque()
        self._exit: ExitFacts | None = None
        self._boots = -1
        self._taken, self._claiming = taken, False
        asked = dialect.parse(lab_flags(argv[1:])[1], read)
        self.flags = asked if isinstance(asked, Flags) else Flags(host="", port=-1)
        self._begin()
        if isinstance(asked, Exit):
            self._due.clear()
            self._lines += asked.lines
            self._exit = ExitFacts(code=asked.code)
        self._settle()

    def _begin(self) -> None:
        """A fresh start of the same command line under the same pid."""
        self._boots += 1
        self._began_ns = self._at_ns = self._clock.now_ns()
        faults = active(self._spec.faults, self.flags.depth, self.launch)
        self._boot: Boot = self._dialect.boot(self._spec, self.flags, faults)
        self._due.extend(self._boot.lines)
        self._claimed, self._scribe = False, self._dialect.scribe()
        self.model = LabModel(
            self._spec,
            depth=self.flags.depth,
            max_running=self.flags.max_running or self._spec.max_running,
            launch=self.launch,
            boot=self._boots,
            drafts=self.flags.drafts,
        )

    # --- what can be seen of it

    def exit(self) -> ExitFacts | None:
        self._settle()
        return self._exit

    def facts(self) -> ProcessFacts | None:
        if self.exit() is not None:
            return None
        return ProcessFacts(
            pid=self.pid,
            start_id=f"{self.pid}-{self._boots}",
            argv=self.argv,
            name=self._dialect.process_name,
            rss_bytes=self._read_bytes(),
            read_bytes=self._read_bytes(),
        )

    def listens(self, port: int) -> bool:
        """Whether it has that port; a connection may be refused all the same (`answers`)."""
        return self.exit() is None and self._claimed and self.flags.port == port

    def answers(self, port: int) -> bool:
        since = self._boot.listens_s
        return self.listens(port) and since is not None and self._uptime_s() >= since

    def log_text(self) -> str:
        self._settle()
        return "".join(f"{line}\n" for line in self._lines)

    def get(self, path: str) -> Answer:
        self._catch_up()
        return self._dialect.get(path, self._view())

    # --- using it

    def ask(self, path: str, body: bytes) -> tuple[Ask, Admission] | Answer:
        """Send it a request for text; its emissions come from `step`."""
        asked = self._dialect.ask(path, body, self._view())
        if isinstance(asked, Answer):
            return asked
        admission = self.model.admit(asked.request)
        return self._dialect.refusal(admission) if admission.id is None else (asked, admission)

    def complete(self, path: str, body: bytes, timeout_s: float) -> Answer | str:
        """A whole answer, in the time that it takes; a text says why there is none."""
        until_ns = self._clock.now_ns() + round(timeout_s * NS_PER_S)
        asked = self.ask(path, body)
        if isinstance(asked, Answer):
            return asked
        ask, admission = asked
        tokens = 0
        self._wait_until_ready(until_ns)
        while self._clock.now_ns() < until_ns and not self.stuck():
            for emission in self.step():
                if emission.id == admission.id:
                    tokens += emission.tokens
                    if emission.finish:
                        text = words(ask.request.prompt_id, 0, tokens)
                        return self._dialect.whole(ask, text, emission.finish, self._view())
            if self.exit() is not None:
                return "connection reset"
        self._clock.advance_ns(max(0, until_ns - self._clock.now_ns()))
        self.cancel(admission.id or 0)
        return f"no answer within {timeout_s:g} s"

    def _wait_until_ready(self, until_ns: int) -> None:
        """It may take requests while it warms up."""
        if self._boot.ready_s is not None:
            ready_ns = self._began_ns + round(self._boot.ready_s * NS_PER_S)
            self._clock.advance_ns(max(0, min(until_ns, ready_ns) - self._clock.now_ns()))

    def stuck(self) -> bool:
        """Whether no step will come: hung, mute, loading or gone."""
        return self.exit() is not None or not self._ready() or self.model.stuck(self._ready_for_s())

    def step(self) -> tuple[Emission, ...]:
        """One step of the engine; the clock moves to its end. It may be the process's last."""
        self._clock.advance_ns(max(0, self._at_ns - self._clock.now_ns()))
        if self._exit is not None:
            return ()
        emissions, took_ns = self._step()
        self._clock.advance_ns(took_ns)
        self._at_ns = self._clock.now_ns()
        self._die()
        return emissions

    def cancel(self, number: int) -> Finish | None:
        return self.model.cancel(number)

    def end(self) -> ExitFacts:
        """SIGTERM, and its end. May be repeated."""
        if self.exit() is None:
            self.terminate()
            self._clock.sleep(_STOP_S)
        return self._exit or ExitFacts()

    def terminate(self) -> ExitFacts:
        """SIGTERM, and its end at that very moment."""
        if self.exit() is None:
            end = self._dialect.stopped(self._uptime_s())
            self._lines += end.lines
            self._exit = msgspec.structs.replace(_exit(end.code), asked=True)
        return self._exit or ExitFacts()

    def kill(self) -> ExitFacts:
        """SIGKILL."""
        if self.exit() is None:
            self._exit = ExitFacts(signal=9)
        return self._exit or ExitFacts()

    # --- inside

    def _uptime_s(self) -> float:
        return (self._clock.now_ns() - self._began_ns) / NS_PER_S

    def _ready(self) -> bool:
        return self._boot.ready_s is not None and self._uptime_s() >= self._boot.ready_s

    def _ready_for_s(self) -> float:
        return self._uptime_s() - (self._boot.ready_s or 0.0)

    def _read_bytes(self) -> int:
        if not self._boot.progress:
            return 4096
        share = min(1.0, self._uptime_s() / self._boot.ready_s) if self._boot.ready_s else 1.0
        return round(_MODEL_BYTES * share)

    def _view(self) -> View:
        boot_id = f"{self.pid}-{self._boots}"
        return View(flags=self.flags, model=self.model, loading=not self._ready(), boot_id=boot_id)

    def _settle(self) -> None:
        """Write the log lines that are due, and end a start that was to fail by now."""
        uptime_s = self._uptime_s()
        claims_s = self._boot.claims_s
        if self._exit is not None or self._claiming:
            return
        if not self._claimed and claims_s is not None and uptime_s >= claims_s:
            self._write(claims_s, own=False)
            self._claim()
            if self._exit is not None:
                return
        self._write(uptime_s)
        if self._boot.exit_s is not None and uptime_s >= self._boot.exit_s:
            self._exit = _exit(self._boot.exit_code)

    def _claim(self) -> None:
        self._claiming = True  # whoever looks for the port's owner asks us too
        taken = self._taken(self.flags.port)
        self._claiming = False
        if taken:
            refused = self._dialect.port_in_use(self.flags)
            self._lines += refused.lines
            self._exit = ExitFacts(code=refused.code)
        self._claimed = not taken

    def _write(self, until_s: float, *, own: bool = True) -> None:
        """The lines due by then; `own` = those of that very moment too."""
        while self._due and (self._due[0][0] < until_s or (own and self._due[0][0] == until_s)):
            self._lines.append(self._due.popleft()[1])

    def _catch_up(self) -> None:
        """Steps for requests that nobody waits for, up to now."""
        engine = self.model.engine
        while engine.running + engine.queued and self._at_ns < self._clock.now_ns() and not self.stuck():
            self._at_ns += self._step()[1]
            self._die()
        self._at_ns = max(self._at_ns, self._clock.now_ns())

    def _step(self) -> tuple[tuple[Emission, ...], int]:
        step = self.model.step()
        for emission in step.emissions:
            if emission.finish and not emission.cut:
                self._lines += self._dialect.served(self._uptime_s(), emission.id, emission.finish)
        self._lines += self._scribe.stepped(self._uptime_s() + step.duration_s, self._view())
        return step.emissions, round(step.duration_s * NS_PER_S)

    def _die(self) -> None:
        how = self.model.fatal
        if self._exit is not None:
            return
        if how is Fatal.RESTART:
            self._begin()
        elif how is not None:
            end = self._dialect.died(how, self._uptime_s()) if how is not Fatal.KILL else End((), -9)
            self._lines += end.lines
            self._exit = _exit(end.code)


def _exit(code: int) -> ExitFacts:
    return ExitFacts(signal=-code) if code < 0 else ExitFacts(code=code)
