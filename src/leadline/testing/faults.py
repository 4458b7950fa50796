"""The faults of the lab, as data: the same plan misleads the virtual world and the real lab server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

import msgspec


class FaultKind(StrEnum):
    """What goes wrong. The number is the one in the table of expected outcomes.

    From 13 on they are what Python engines do; another engine fails in the nearest way that it has.
    """

    KILLED_UNDER_LOAD = "killed_under_load"  # 1 SIGKILL after `after_tokens`
    OOM_AT_START = "oom_at_start"  # 2 out of memory while loading, exit 1
    OOM_UNDER_LOAD = "oom_under_load"  # 3 aborts as soon as more than `above_running` requests run at once
    HANG = "hang"  # 4 generates nothing more after `after_tokens`; health stays 200
    MUTE = "mute"  # 5 health 200, but no completion is answered for `seconds` (None: ever)
    RESTART = "restart"  # 6 starts itself again after `after_tokens`, once a launch
    TRUNCATED = "truncated"  # 7 a `share` of the streams is cut half way
    HTTP_500 = "http_500"  # 8 a `share` of the requests is answered with 500
    SLOW_START = "slow_start"  # 9 loads for `seconds`, and the log keeps growing
    SILENT_START = "silent_start"  # 10 never gets ready and says nothing; health 503, or refused
    WRONG_DEPTH = "wrong_depth"  # 11 runs at `depth`, whatever was asked
    FOREIGN = "foreign"  # 12 one request of `tokens` by somebody else for every `after_tokens`
    OOM_AT_KV = "oom_at_kv"  # 13 out of memory while the KV pool is allocated
    OOM_AT_GRAPHS = "oom_at_graphs"  # 14 out of memory while graphs are captured
    WATCHDOG = "watchdog"  # 15 hangs after `after_tokens`, and its own watchdog ends it
    RETRACTIONS = "retractions"  # 16 one request is taken back for want of KV tokens for every `after_tokens`
    CUT_RUNNING = "cut_running"  # 17 runs at most `above_running` requests at once, whatever was asked
    NO_DRAFTS = "no_drafts"  # 18 speculation is on, and its drafter never finds anything
    CRASH = "crash"  # 19 an error of its own after `after_tokens`
    CHILD_KILLED = "child_killed"  # 20 a process of its own is killed by SIGKILL after `after_tokens`


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One fault and where it strikes. Empty `depths` or `launches` = everywhere.

    `launches` are numbers of launches since the world (or the launch counter file) began, the first being 1.
    """

    kind: FaultKind
    depths: tuple[int, ...] = ()
    launches: tuple[int, ...] = ()
    after_tokens: int = 50
    above_running: int = 16
    share: float = 0.1
    seconds: float | None = None
    refused: bool = False
    depth: int = 1
    tokens: int = 16

    def strikes(self, depth: int, launch: int) -> bool:
        return (not self.depths or depth in self.depths) and (not self.launches or launch in self.launches)


def active(faults: Iterable[Fault], depth: int, launch: int) -> dict[FaultKind, Fault]:
    """The faults of one launch; of two of one kind the later counts."""
    return {f.kind: f for f in faults if f.strikes(depth, launch)}


def hits(share: float, number: int) -> bool:
    """Whether request `number` (1, 2, ...) belongs to the share: evenly spread, so exact after 1/share requests."""
    return int(number * share + 1e-9) > int((number - 1) * share + 1e-9)


def depth_in_force(asked: int, faults: Mapping[FaultKind, Fault]) -> int:
    """The depth that a launch with these faults runs at."""
    wrong = faults.get(FaultKind.WRONG_DEPTH)
    return wrong.depth if wrong else asked


def cap(asked: int, faults: Mapping[FaultKind, Fault]) -> int:
    """How many requests such a launch decodes at once, when its pool does not allow fewer."""
    cut = faults.get(FaultKind.CUT_RUNNING)
    return min(asked, cut.above_running) if cut else asked
