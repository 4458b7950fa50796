"""What can be seen of a server, and what was concluded from it: facts in, values out."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from leadline.launch import LaunchSpec


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """One request to the server's control endpoints. `path` is joined to the service's URL."""

    name: str
    path: str
    method: str = "GET"
    body: bytes = b""
    timeout_s: float = 5.0


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What came back. `status` 0 = no HTTP answer at all; then `error` says why (refused, timed out, reset)."""

    name: str
    status: int
    body: bytes = b""
    error: str = ""

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300


class ProcessFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A process as the host sees it. `start_id` is unequal for two processes that had the same pid."""

    pid: int
    start_id: str
    argv: tuple[str, ...]
    name: str = ""
    rss_bytes: int = 0
    read_bytes: int = 0


class ExitFacts(msgspec.Struct, frozen=True, kw_only=True):
    """How a process ended: exactly one of `code` and `signal` is set, or neither when nobody could see it.

    `asked` = we told it to stop. Exit code 137 is not signal 9: they are kept apart. `host_oom_kills` counts
    out-of-memory kills that the kernel reported for its memory cgroup while it ran. `result` is what its supervisor
    calls it: "oom-kill", "timeout", "watchdog", "start-limit-hit"; "" when there is none or it says no more.
    """

    code: int | None = None
    signal: int | None = None
    asked: bool = False
    host_oom_kills: int = 0
    result: str = ""

    def __str__(self) -> str:
        if self.signal is not None:
            return f"killed by signal {self.signal}"
        return f"exit code {self.code}" if self.code is not None else "ended, nobody saw how"


class ServiceState(StrEnum):
    """What a supervisor says of a service. `STOPPED` = not running, and not expected to."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    RESTARTING = "restarting"
    STOPPED = "stopped"
    FAILED = "failed"
    MISSING = "missing"

    @property
    def at_rest(self) -> bool:
        """Whether it does not run, and will not by itself."""
        return self in (ServiceState.STOPPED, ServiceState.FAILED, ServiceState.MISSING)


class ServiceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A service at one moment, as its supervisor and its kernel see it.

    `process` = its main process, `pids` = all processes that belong to it. `exit` = how its main process ended, None
    while it runs. `incarnation` changes with every start of the service, also one that nobody asked for, and with a
    boot; `restarts` = starts that its supervisor made by itself. `files` maps every file that the service's definition
    is made of to its SHA-256, ours excluded; `trial` = the SHA-256 of our trial's file, or "absent". `lines` = what the
    supervisor and the kernel said of its end.
    """

    state: ServiceState
    process: ProcessFacts | None = None
    pids: tuple[int, ...] = ()
    exit: ExitFacts | None = None
    incarnation: str = ""
    restarts: int = 0
    files: dict[str, str] = {}
    trial: str = "absent"
    memory_peak_bytes: int | None = None
    lines: tuple[str, ...] = ()


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of one launch at one moment: probe replies by name, log since start, process facts."""

    replies: dict[str, Reply] = {}
    log: str = ""
    argv: tuple[str, ...] = ()
    process: ProcessFacts | None = None
    exit: ExitFacts | None = None

    def body(self, name: str) -> bytes | None:
        """The body of a probe that was answered with 2xx."""
        reply = self.replies.get(name)
        return reply.body if reply is not None and reply.ok else None


class Failure(StrEnum):
    """Why a launch cannot be used. Engines map their own failure texts to these."""

    HOST_OOM = "host_oom"
    DEVICE_OOM_START = "device_oom_start"
    DEVICE_OOM_KV = "device_oom_at_kv_allocation"
    DEVICE_OOM_GRAPH = "device_oom_at_graph_capture"
    DEVICE_OOM_LOAD = "device_oom_under_load"
    NO_KV_ROOM = "weights_leave_no_kv_room"
    KV_STARVED = "kv_starved"
    KILLED = "killed"
    CRASHED = "crashed"
    BAD_FLAG = "flag_rejected"
    BAD_COMBINATION = "flags_do_not_go_together"
    ENVIRONMENT = "environment_missing"
    MODEL_MISSING = "model_missing"
    DRAFT_BAD = "draft_incompatible"
    PORT_IN_USE = "port_in_use"
    NO_PROGRESS = "no_progress_at_start"
    NOT_GENERATING = "healthy_but_not_generating"
    ENGINE_DEAD = "engine_dead_process_alive"
    WATCHDOG = "ended_by_its_watchdog"
    NOT_EXECUTED = "supervisor_could_not_execute_it"
    START_TIMEOUT = "start_timed_out"
    STOP_TIMEOUT = "stop_timed_out"
    START_LIMIT = "start_limit_hit"
    RESTART_LOOP = "restarts_again_and_again"
    LEFTOVERS = "processes_left_after_its_stop"
    DEVICE_BUSY = "device_memory_held_by_others"
    TAKEN_BACK = "given_back_by_the_guard"
    CHANGED = "service_changed_by_somebody_else"
    DEVICE_LOST = "device_lost"
    WRONG_DEPTH = "another_depth_in_force"
    NO_SPECULATION = "speculation_did_not_start"
    RESTARTED = "restarted_by_itself"
    FOREIGN = "foreign_requests"
    DEADLINE = "deadline_passed"
    STOPPED_BY_US = "stopped_by_us"
    UNKNOWN = "unknown"


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """Why it failed: the class, one sentence, the telling line, what to change in the engine's own flags, and what it
    says of other settings ("deeper ones too").

    `fails_too` is the same for programs: knobs and the direction in which a setting fails as well, as "depth+" (more of
    it), "memory_fraction-" (less of it) or "draft_model=" (any setting with the same value).
    """

    failure: Failure
    reason: str
    line: str = ""
    remedy: str = ""
    implies: str = ""
    fails_too: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.reason + (f" [{self.line.strip()[:160]}]" if self.line else "")


class Effective(msgspec.Struct, frozen=True, kw_only=True):
    """What the live server really runs. None = the engine does not tell (yet), never a guess.

    `context` and `kv_tokens` in tokens; `max_running` = requests decoded at once; `topk`, `draft_tokens` as the knobs;
    `graphs` = whether decode steps run as captured graphs, `graph_max_batch` = the largest batch that does;
    `moe_tuned` = whether the fused-MoE kernels found a tuned configuration; `weights_bytes` of one device.
    """

    depth: int | None = None
    speculating: bool | None = None
    topk: int | None = None
    draft_tokens: int | None = None
    max_running: int | None = None
    context: int | None = None
    kv_tokens: int | None = None
    memory_fraction: float | None = None
    graphs: bool | None = None
    graph_max_batch: int | None = None
    moe_tuned: bool | None = None
    weights_bytes: int | None = None
    model: str | None = None
    version: str | None = None


class Busy(msgspec.Struct, frozen=True, kw_only=True):
    """How busy the server is at one moment: requests being decoded, requests that wait. None = it does not tell."""

    running: int
    waiting: int | None = None
    kv_usage: float | None = None


class Acceptance(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of speculative decoding over exactly one window.

    `rounds` = verification or plain decode steps, one per request in the batch; `drafting_rounds` = those that had a
    draft; `per_position[i]` = times that draft position i was accepted.
    """

    decode_tokens: int
    rounds: int
    drafting_rounds: int
    drafted: int
    accepted: int
    per_position: tuple[int, ...] = ()

    @property
    def acceptance_length(self) -> float | None:
        """Decode tokens per round, bonus token included; None without a round."""
        return self.decode_tokens / self.rounds if self.rounds else None

    @property
    def drafted_acceptance_length(self) -> float | None:
        """1 + accepted per drafting round: what the drafter achieves when it drafts at all."""
        return 1 + self.accepted / self.drafting_rounds if self.drafting_rounds else None

    def plus(self, other: Acceptance) -> Acceptance:
        width = max(len(self.per_position), len(other.per_position))

        def pad(counts: tuple[int, ...]) -> tuple[int, ...]:
            return counts + (0,) * (width - len(counts))

        return Acceptance(
            decode_tokens=self.decode_tokens + other.decode_tokens,
            rounds=self.rounds + other.rounds,
            drafting_rounds=self.drafting_rounds + other.drafting_rounds,
            drafted=self.drafted + other.drafted,
            accepted=self.accepted + other.accepted,
            per_position=tuple(a + b for a, b in zip(pad(self.per_position), pad(other.per_position), strict=True)),
        )


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """What a memory law needs to know of a model: the object of its config.json, or its GGUF fields, as read."""

    name: str
    fields: dict[str, Any] = {}


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """One accelerator, or the host when there is none: its memory in bytes. `count` = how many alike there are."""

    name: str
    total_bytes: int
    count: int = 1


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """An earlier launch on the same machine, and what it said: better than any formula for what does not change."""

    launch: LaunchSpec
    log: str = ""


class Ground(msgspec.Struct, frozen=True, kw_only=True):
    """What is known before a launch: the models' configurations, the device, earlier launches. Each may be missing."""

    model: Model | None = None
    draft: Model | None = None
    device: Device | None = None
    seen: tuple[Seen, ...] = ()


class Verdict(StrEnum):
    """What memory allows: `STARVED` = it starts, but holds fewer requests or tokens than were asked for."""

    FITS = "fits"
    STARVED = "starved"
    WILL_NOT_START = "will not start"
    UNKNOWN = "unknown"


class Footprint(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one launch on one device, foreseen. Unknown terms are None.

    `parts` = where each byte goes, in the order of a table that explains it; `kv_tokens` and `max_running` = what is
    left for. `asked_running` = what the launch asks for. `basis` says what the figures come from ("config.json and the
    first launch's log"), `error_frac` how far off such figures were on public data.
    """

    verdict: Verdict = Verdict.UNKNOWN
    reason: str = ""
    kv_tokens: int | None = None
    max_running: int | None = None
    asked_running: int | None = None
    parts: dict[str, int] = {}
    basis: str = ""
    error_frac: float | None = None
