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
)
from leadline.goal import Problem
from leadline.launch import LaunchSpec, Start, Step
from leadline.space import Knob, Setting, Value
from leadline.trial import History, LoadReport, Proposal, RequestRecord


class Completed(msgspec.Struct, frozen=True, kw_only=True):
    """A command that ended on the host. `code` 128+n = killed by signal n."""

    argv: tuple[str, ...]
    code: int
    stdout: bytes
    stderr: bytes


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """The service before we touch it: the launch in force, the files a way back needs, and who listens.

    `files` maps a path to the SHA-256 of its content, or to "absent".
    """

    launch: LaunchSpec
    running: bool
    files: dict[str, str] = {}


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

    def observe(self) -> Sequence[Step]:
        """Commands whose results `interpret` reads; they change nothing."""

    def interpret(self, completed: Sequence[Completed]) -> Observed:
        """The service as it is."""

    def plan(self, launch: LaunchSpec, observed: Observed, log: str) -> Sequence[Step]:
        """Steps that put the launch in force."""

    def restore(self, observed: Observed) -> Sequence[Step]:
        """Steps that give the service back as observed."""

    def rollout(self, launch: LaunchSpec, present: str, note: str) -> Sequence[Step]:
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


class Session(Protocol):
    """A server that we started and hold. When the holder dies, the host ends the server without us."""

    def process(self) -> ProcessFacts | None:
        """The server's main process; None when it is gone."""

    def exit(self) -> ExitFacts | None:
        """How it ended; None while it runs."""

    def owns(self, pid: int) -> bool:
        """Whether that process is the server or one of its descendants."""

    def end(self, grace_s: float) -> ExitFacts:
        """End the whole process group: SIGTERM, after the grace SIGKILL. Returns when nothing of it is left.

        May be repeated.
        """


class Host(Protocol):
    """Where the service runs: the only side effects on it. Raises HostError when the host itself fails.

    Guarantees: `write` is atomic (complete or not at all, also after a power cut) and keeps the mode; nothing that we
    did not start is ever signalled.
    """

    name: str

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0) -> Completed: ...

    def start(self, step: Start) -> Session:
        """Start a server under a supervisor; its output goes to `step.log`."""

    def read(self, path: str) -> bytes | None:
        """The file's content; None when there is none."""

    def write(self, path: str, content: bytes, mode: int) -> None: ...

    def remove(self, path: str) -> None:
        """Remove a file; absent is fine."""

    def log(self, path: str) -> str:
        """A server's output so far, undecodable bytes replaced."""

    def listener(self, host: str, port: int) -> ProcessFacts | None:
        """Who listens there; None when nobody does."""

    def free_memory_bytes(self) -> int: ...

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
