"""The ports: small protocols with written guarantees. Plug-ins implement them; the core knows nothing else.

A fake implements a port; it never patches one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from leadline.evidence import (
    Acceptance,
    Busy,
    Diagnosis,
    Effective,
    Evidence,
    ExitFacts,
    Footprint,
    Ground,
    Probe,
    ProcessFacts,
    Reply,
    ServiceFacts,
)
from leadline.goal import Problem
from leadline.launch import LaunchSpec, Run, Start, Step
from leadline.site import Completed as Completed
from leadline.site import Guard as Guard
from leadline.site import Observed as Observed
from leadline.site import Site as Site
from leadline.site import Terms as Terms
from leadline.space import Knob, Setting, Value
from leadline.trial import History, LoadReport, Proposal, RequestRecord


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """A strategy has nothing more to ask for."""

    reason: str


class Engine(Protocol):
    """An inference server's dialect. Pure: no I/O, no clock, no state.

    Laws. For every setting s of its knobs that it accepts, `parse(render(base, s)) == canonical(parse(base) + s)`,
    where canonical drops what has no meaning (a `spec_method` at depth 0). `render` never drops a word of the base
    that it does not own. `effective` and `diagnose` accept any bytes a server may send and never raise.
    """

    name: str
    default_port: int
    programs: tuple[str, ...]
    """File names of the programs that start it, to tell the engine from a command line."""
    drafts_alone: str
    """The `spec_method` that needs no draft model and no layers of the served model: the first to try anywhere."""

    def at(self, version: str | None) -> Engine:
        """The dialect of that version of the server; None = not known, and what holds for all versions is said."""

    def version_argv(self, launch: LaunchSpec) -> tuple[str, ...] | None:
        """A quick command that prints the version of the server that the launch would start; None = there is none.

        It loads no model and touches no accelerator. The version is a line of its output that is nothing else, or
        what follows the word "version".
        """

    def files(self, launch: LaunchSpec) -> tuple[str, ...]:
        """Paths of configuration files that the launch names: whoever can read puts them into `launch.files`."""

    def model(self, launch: LaunchSpec) -> str | None:
        """The model as the launch names it: a path, or an identifier of a hub."""

    def knobs(self) -> Sequence[Knob]:
        """Canonical knobs of this version, with the engine's flag beside each name; `values` is empty."""

    def render(self, base: LaunchSpec, setting: Setting) -> LaunchSpec:
        """The base with the setting in force. Raises InputError with the engine's reason when it cannot be: what the
        engine would refuse at its start is refused here."""

    def parse(self, launch: LaunchSpec) -> Setting:
        """The canonical setting that a command line has in force, defaults included where they are known."""

    def value(self, launch: LaunchSpec, name: str) -> Value | None:
        """What a launch has in force for one knob, `flag:--NAME` and `env:NAME` included; None = it does not say."""

    def address(self, launch: LaunchSpec) -> tuple[str, int]:
        """Host and port that the launch will listen on."""

    def move(self, launch: LaunchSpec, port: int) -> LaunchSpec:
        """The same launch on another port (trials out of the routers' reach)."""

    def probes(self) -> Sequence[Probe]:
        """What to fetch from a running server; one is named "health" and one "ready": a one-token completion."""

    def effective(self, evidence: Evidence) -> Effective:
        """What really runs."""

    def loading(self, reply: Reply) -> bool:
        """Whether this answer to "health" means: alive, still loading."""

    def diagnose(self, evidence: Evidence) -> Diagnosis:
        """Why it ended or does not serve; supervisor facts first, then the first telling line."""

    def acceptance(self, before: Evidence, after: Evidence, records: Sequence[RequestRecord]) -> Acceptance | None:
        """Counts over exactly the window between two probes; None when the engine does not count."""

    def foreign_tokens(self, before: Evidence, after: Evidence, records: Sequence[RequestRecord]) -> int:
        """Tokens that the server generated in between for somebody else, as far as its counters can tell; else 0."""

    def restarted(self, before: Evidence, after: Evidence) -> bool:
        """Whether the server's counters ran backwards in between: another process answers under the same address."""

    def busy(self, reply: Reply) -> Busy | None:
        """How busy the server is, from an answer to the probe "metrics"."""

    def body_fields(self) -> dict[str, object]:
        """Fields of a request's body that make the server tell its speculation figures with every answer."""

    def memory(self, launch: LaunchSpec, ground: Ground) -> Footprint:
        """The memory of a launch before it is made. Unknown terms are None, never a guess."""


class Target(Protocol):
    """How the service is launched. Pure: turns a LaunchSpec into Steps and reads evidence.

    Laws. The user's file is never written. `restore(observed)` undoes any prefix of `plan(launch, observed)`; both may
    be repeated. `undo` takes back any prefix of a `rollout`, also after an undo that was interrupted. No Step prints a
    secret in clear, and no file that a Step writes holds one.
    """

    name: str
    guarantee: str
    """What brings the original back without us, in one line."""

    def observe(self) -> Sequence[Run]:
        """Commands whose results `interpret` reads; they change nothing. A service target has exactly one."""

    def interpret(self, completed: Sequence[Completed]) -> Observed:
        """The service as it is, or was before a trial that is in force. Raises InputError when there is none."""

    def plan(self, launch: LaunchSpec, observed: Observed, log: str) -> Sequence[Step]:
        """Steps that put the launch in force, also while another trial is."""

    def confirm(self, launch: LaunchSpec, answers: Sequence[Completed]) -> None:
        """Judge the answers to the `asked` Runs so far: the check of the candidate, the words that the supervisor has
        understood. Raises InputError with the difference or the supervisor's own words."""

    def restore(self, observed: Observed) -> Sequence[Step]:
        """Steps that give the service back as observed."""

    def rollout(self, launch: LaunchSpec, observed: Observed, present: str, note: str) -> Sequence[Step]:
        """Steps that make a launch the permanent one; `present` = SHA-256 of the file they replace, or "absent".

        They fail rather than overwrite what an earlier rollout kept: take that one back first.
        """

    def rollout_path(self) -> str:
        """The file that a rollout writes."""

    def undo(self, observed: Observed, written: str, previous: str) -> Sequence[Step]:
        """Steps that take a rollout back, from wherever it or an earlier undo stopped; none when nothing is left to do.

        `written` = SHA-256 of what the rollout put at `rollout_path()`, `previous` = its `present`; both are journaled
        before the rollout. Raises RefusedError when somebody else changed a file since.
        """

    def patch(self, launch: LaunchSpec, observed: Observed) -> str:
        """A unified diff of the operator's own files that makes a launch the permanent one, secrets masked. Raises
        RefusedError with the reason when the words do not stand in a file of theirs."""

    @property
    def service(self) -> Service | None:
        """What only a service of a supervisor's can do; None = the server is ours, begun by a Start."""


class Service(Protocol):
    """The part of a Target whose server belongs to a supervisor: it outlives us, so trials follow one another without
    going back in between, and a guard on the host brings the original back. Pure, like its Target."""

    def look(self) -> Run:
        """One quick command, answered at any time, that changes nothing."""

    def facts(self, completed: Completed) -> ServiceFacts:
        """What it says. Raises HostError for an answer that makes no sense."""

    def log(self, cursor: str) -> Run:
        """The server's output since `cursor`; "" = since the present start of the service."""

    def logged(self, completed: Completed) -> tuple[str, str]:
        """The lines and the next cursor."""

    def guard(self, terms: Terms) -> Guard | None:
        """None = this target has none: the operator must have said that he does without."""

    def unlock(self) -> Sequence[Run]:
        """Who holds the lock (asked), and how it is broken."""


class Session(Protocol):
    """A server that we put in force and hold. When the holder dies, the host goes back without us."""

    def process(self) -> ProcessFacts | None:
        """The server's main process; None when it is gone."""

    def exit(self) -> ExitFacts | None:
        """How it ended; None while it runs."""

    def owns(self, pid: int) -> bool:
        """Whether that process is the server or one of its descendants; of pid 0, whether nobody can tell."""

    def log(self) -> str:
        """Its output so far, undecodable bytes replaced."""

    def doubt(self) -> Diagnosis | None:
        """Why this is no longer the launch that we made: restarted, given back by its guard, changed
        by somebody else; or, once it has ended, why, as far as its supervisor can tell. None = nothing is known."""

    def blips(self) -> int:
        """How often the host could not be reached so far: what was measured meanwhile does not count."""

    def end(self, grace_s: float) -> ExitFacts:
        """End the whole process group: SIGTERM, after the grace SIGKILL. Returns when nothing of it is left.

        May be repeated.
        """


class Held(Protocol):
    """A command on the host whose standard input we keep open: its end is how the host learns that we are gone."""

    def alive(self) -> bool: ...

    def end(self) -> None:
        """Close its input and wait until it has ended. May be repeated."""


class Host(Protocol):
    """Where the service runs: the only side effects on it. Raises HostError when the host itself fails, HostLost when
    it cannot be reached (any more).

    Guarantees: `write` is atomic (complete or not at all, also after a power cut) and keeps the mode; nothing that we
    did not start is ever signalled. `sudo` = through `sudo -n`, for what only root may do; never asks for a password.
    """

    name: str

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0) -> Completed: ...

    def start(self, step: Start) -> Session:
        """Start a server under a supervisor; its output goes to `step.log`."""

    def hold(self, argv: Sequence[str], *, timeout_s: float = 60.0) -> Held:
        """Start a command and keep its standard input open; returns once it has written its first line."""

    def read(self, path: str, *, sudo: bool = False) -> bytes | None:
        """The file's content; None when there is none."""

    def write(self, path: str, content: bytes, mode: int, *, sudo: bool = False) -> None: ...

    def remove(self, path: str, *, sudo: bool = False) -> None:
        """Remove a file; absent is fine."""

    def log(self, path: str) -> str:
        """A server's output so far, undecodable bytes replaced."""

    def listener(self, host: str, port: int) -> ProcessFacts | None:
        """Who listens there; None when nobody does."""

    def forward(self, host: str, port: int) -> tuple[str, int]:
        """An address of this machine that leads to that address of the host, for as long as we live."""

    def free_memory_bytes(self) -> int: ...

    def device_used_bytes(self) -> tuple[int, ...] | None:
        """Memory in use on each accelerator, whoever uses it; None when nothing tells."""

    def identity(self) -> dict[str, str]:
        """What makes measurements on this machine comparable: processor, accelerators, driver."""


class Prober(Protocol):
    def fetch(self, probe: Probe) -> Reply:
        """Never raises: what went wrong is in the Reply."""


class Strategy(Protocol):
    """Chooses what to launch next. Pure: a function of its arguments, no saved state.

    `history` includes live trials; `rng` is freshly seeded by the campaign for every call. Proposes only settings of
    the space or queued by hand, and none that `problem.refused` names; always includes the incumbent and depth 0; never
    repeats an INFEASIBLE setting; asks again for an INTERRUPTED one; and ends.
    """

    name: str

    def propose(self, problem: Problem, history: History, n: int, rng: random.Random) -> Sequence[Proposal] | Done: ...


class PlannedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request to send. `body` is the OpenAI-style JSON object, without `stream`."""

    prompt_id: str
    body: dict[str, object]
    turn: int = 0


class Workload(Protocol):
    """What requests look like. Pure: the same seed gives the same requests.

    A session is a list of requests that one user sends in order; no prompt repeats within one call's result.
    `digest` changes whenever any request would.
    """

    name: str
    digest: str
    origin: str
    available: int
    """How many distinct sessions there are."""

    def sessions(self, n: int, seed: int) -> Sequence[Sequence[PlannedRequest]]:
        """`n` sessions; raises InputError when there are fewer distinct ones."""


class LoadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a load worker needs; it goes over a pipe, never to disk, since `headers` may hold a secret.

    `concurrency` users each take the next session, send its requests in order and come back: a closed loop. The first
    `warmup` sessions are sent first and marked. `stall_s` = longest silence of a request before it counts as failed.
    """

    url: str
    headers: dict[str, str] = {}
    ca: str | None = None
    proxy: str | None = None
    concurrency: int
    warmup: tuple[tuple[PlannedRequest, ...], ...] = ()
    sessions: tuple[tuple[PlannedRequest, ...], ...] = ()
    stall_s: float = 60.0
    records: str = ""


class Loader(Protocol):
    """Runs a LoadPlan in a process of its own."""

    def run(self, plan: LoadPlan, alive: Callable[[], bool]) -> LoadReport:
        """Send everything and wait. Errors of requests are records. `alive` is asked a few times a second; when it says
        no, the load ends early and what was recorded is returned. Raises HostError when the worker itself fails."""


class Clock(Protocol):
    def now_ns(self) -> int:
        """Monotonic nanoseconds."""

    def utc(self) -> str:
        """The time of day as 2026-11-30T15:53:00Z."""

    def sleep(self, s: float) -> None: ...
