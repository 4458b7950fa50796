"""The lab server: a real HTTP process over lab physics. `python -m leadline.testing.labserver ENGINE-FLAGS...`

Also takes `--lab-spec FILE` (a LabSpec as JSON) and `--lab-dialect NAME` (before the one that the spec names). Speaks
the OpenAI API and its dialect's probes, runs in real time, and commits the spec's faults on itself. `--port 0` picks a
port; the log tells which. Its model and build name say "lab".
"""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import shlex
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from leadline import codec
from leadline.testing.dialects import Boot, Dialect, End, Exit, Flags, View, lab_flags
from leadline.testing.dialects.registry import named
from leadline.testing.faults import active
from leadline.testing.labhttp import Front, claim, serve
from leadline.testing.model import Fatal, LabModel
from leadline.testing.physics import Emission, LabSpec

_STUCK_POLL_S = 0.02
_LAG_LIMIT_S = 0.05  # what a late step may catch up; more is lost, as on a busy machine


def main(argv: Sequence[str]) -> int:
    own, flags = lab_flags(argv)
    spec = LabSpec()
    if "--lab-spec" in own:
        spec = codec.from_json(Path(own["--lab-spec"]).read_bytes(), LabSpec)
    dialect = named(own.get("--lab-dialect", spec.dialect), spec.version)
    asked = dialect.parse(flags, _read)
    if isinstance(asked, Exit):
        print(*asked.lines, sep="\n", file=sys.stdout if asked.stdout else sys.stderr, flush=True)
        return asked.code
    boot = int(own.get("--lab-boot", "0"))
    launch = count_launch(spec.launch_counter, again=boot > 0)
    return asyncio.run(LabServer(spec, dialect, asked, launch=launch, boot=boot).run())


def install(folder: Path, spec: LabSpec, name: str = "") -> Path:
    """An executable in `folder` that is this server with that spec, under an engine's name (by default its own)."""
    name = name or named(spec.dialect, spec.version).process_name
    described = folder / f"{name}.lab.json"
    described.write_bytes(codec.to_json(spec))
    command = shlex.join([sys.executable, "-m", "leadline.testing.labserver", "--lab-spec", str(described)])
    script = folder / name
    script.write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    return script


def count_launch(counter: str, *, again: bool) -> int:
    """The number of this launch, kept in a file; `again` = the same launch as before. 1 without a file's name."""
    if not counter:
        return 1
    path = Path(counter)
    before = int(path.read_text(encoding="utf-8")) if path.exists() else 0
    if again:
        return before
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.write_text(str(before + 1), encoding="utf-8")
    fresh.replace(path)
    return before + 1


class LabServer:
    """One launch: binds, loads, generates, and ends as the spec says or when it is told to."""

    def __init__(self, spec: LabSpec, dialect: Dialect, flags: Flags, *, launch: int, boot: int) -> None:
        self._spec, self._dialect, self._flags = spec, dialect, flags
        self._launch, self._boots = launch, boot
        self._faults = active(spec.faults, flags.depth, launch)
        self._model = LabModel(
            spec,
            depth=flags.depth,
            max_running=flags.max_running or spec.max_running,
            launch=launch,
            boot=boot,
            drafts=flags.drafts,
        )
        self._front = Front(dialect=dialect, model=self._model, view=self._view, ended=self._ended)
        self._scribe = dialect.scribe()
        self._ready_s: float | None = None
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._end: End | None = None
        self._over = asyncio.Event()

    async def run(self) -> int:
        """Returns the exit code, when it lives to."""
        loop = asyncio.get_running_loop()
        self._began = loop.time()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, self._over.set)
        tasks = [asyncio.create_task(self._load()), asyncio.create_task(self._generate())]
        over = asyncio.create_task(self._over.wait())
        await asyncio.wait([over, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
        end = self._end or self._dialect.stopped(self._uptime_s())
        _log(end.lines)
        if self._server is not None:
            self._server.close()
        await self._front.close()
        return _leave(end.code)

    def _timetable(self) -> Boot:
        return self._dialect.boot(self._spec, self._flags, self._faults)

    def _claim(self) -> None:
        """Take the port. The number 0 becomes a free one."""
        try:
            self._socket = claim(self._flags.host, self._flags.port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            refused = self._dialect.port_in_use(self._flags)
            self._end = End(refused.lines, refused.code)
            self._over.set()
            return
        self._flags = msgspec.structs.replace(self._flags, port=int(self._socket.getsockname()[1]))

    def _uptime_s(self) -> float:
        return asyncio.get_running_loop().time() - self._began

    def _view(self) -> View:
        boot_id = f"{os.getpid()}-{self._launch}-{self._boots}"
        return View(flags=self._flags, model=self._model, loading=self._ready_for_s() < 0, boot_id=boot_id)

    def _ready_for_s(self) -> float:
        """Time since it was ready; negative before, and for ever when it never will be."""
        return -1.0 if self._ready_s is None else self._uptime_s() - self._ready_s

    async def _load(self) -> None:
        """Follow the timetable of the start, then wait for the end. A port of our own choice is taken at once."""
        timetable = self._timetable()
        claims_s, listens_s = timetable.claims_s, timetable.listens_s
        if self._flags.port == 0 and claims_s is not None:
            self._claim()
            timetable = self._timetable()
        self._ready_s = timetable.ready_s
        told = 0
        for at_s in sorted({t for t in (claims_s, listens_s, timetable.exit_s) if t is not None} | _times(timetable)):
            await asyncio.sleep(at_s - self._uptime_s())
            if at_s == claims_s and self._socket is None:
                self._claim()
                if self._socket is None:
                    return
            if at_s == listens_s and self._socket is not None:
                self._server = await serve(self._front, self._socket)
            due = [line for t, line in timetable.lines if t <= at_s]
            _log(due[told:])
            told = len(due)
            if at_s == timetable.exit_s:
                self._end = End((), timetable.exit_code)
                self._over.set()
        await self._over.wait()

    async def _generate(self) -> None:
        """Step the engine while it has work. Each step ends when it is due, so that small delays do not add up."""
        clock = asyncio.get_running_loop().time
        due = clock()
        while True:
            if not self._front.busy():
                idle_since = clock()
                await self._front.wait_for_work()
                due = clock()
                if due - idle_since > self._spec.point_gap_s:
                    self._model.engine.new_point()
            if self._model.stuck(self._ready_for_s()):
                await asyncio.sleep(_STUCK_POLL_S)
                due = clock()
                continue
            self._front.drop_gone()
            step = self._model.step()
            due = max(due, clock() - _LAG_LIMIT_S) + step.duration_s
            await asyncio.sleep(due - clock())
            self._front.deliver(step.emissions)
            _log(self._scribe.stepped(self._uptime_s(), self._view()))
            if self._model.fatal is not None:
                self._die(self._model.fatal)

    def _ended(self, emission: Emission) -> None:
        if emission.finish is not None and not emission.cut:
            _log(self._dialect.served(self._uptime_s(), emission.id, emission.finish))

    def _die(self, how: Fatal) -> None:
        if how is Fatal.RESTART:
            again = ["--port", str(self._flags.port), "--lab-boot", str(self._boots + 1)]
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:], *again])
        end = End((), -9) if how is Fatal.KILL else self._dialect.died(how, self._uptime_s())
        _log(end.lines)
        os._exit(_leave(end.code))


def _leave(code: int) -> int:
    """The exit code; below 0 it is a signal, which does not return."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def _times(timetable: Boot) -> set[float]:
    return {at_s for at_s, _ in timetable.lines}


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return None


def _log(lines: Sequence[str]) -> None:
    sys.stderr.write("".join(f"{line}\n" for line in lines))
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
