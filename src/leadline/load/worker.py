"""The load worker, a process of its own: `python -m leadline.load.worker`.

Standard input: one line, a LoadPlan as JSON; then it stays open, and its end means that the parent is gone: we stop and
write nothing. Standard output: JSON lines: `{"done": n, "of": m, "tokens": t}` a few times a second, `{"report": ...}`
when the plan names no record file, and `{"end": true}` last. SIGTERM: send nothing more, write what there is, exit 0.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from leadline import codec
from leadline.errors import LeadlineError
from leadline.load.closedloop import ClosedLoop
from leadline.load.records import check_place, write_records
from leadline.ports import LoadPlan

_STDIN, _STDOUT = 0, 1


class _Parent:
    """The process that started us."""

    def __init__(self) -> None:
        self.gone = False
        self._on_gone: Callable[[], None] = lambda: None

    def watch(self, on_gone: Callable[[], None]) -> None:
        self._on_gone = on_gone
        asyncio.get_running_loop().add_reader(_STDIN, self._look)

    def _look(self) -> None:
        if not os.read(_STDIN, 65_536):
            self._lost()

    def say(self, value: object) -> None:
        line = codec.to_json(value) + b"\n"
        try:
            while line:
                line = line[os.write(_STDOUT, line) :]
        except BrokenPipeError:
            self._lost()

    def _lost(self) -> None:
        if not self.gone:
            self.gone = True
            asyncio.get_running_loop().remove_reader(_STDIN)
            self._on_gone()


async def _work(plan: LoadPlan) -> int:
    if plan.records:
        check_place(plan.records)
    parent = _Parent()
    load = ClosedLoop(plan, parent.say)
    parent.watch(load.stop)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, load.stop)
    report = await load.run()
    if parent.gone:
        return 1
    if plan.records:
        write_records(plan.records, report)
    else:
        parent.say({"report": report})
    parent.say({"end": True})
    return 0


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop halves the work per chunk; the loop of the standard library gives the same records."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    uvloop: Any = importlib.import_module("uvloop")
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def main() -> int:
    try:
        plan = codec.from_json(sys.stdin.buffer.readline(), LoadPlan)
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_work(plan))
    except (ValueError, OSError, LeadlineError) as e:
        print(f"load worker: {e}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
