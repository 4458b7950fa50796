"""The lab's supervisor in virtual time: one unit with systemd's manners, so far as a campaign can tell.

A definition is in force from the last reload on; its files may be changed by anybody. A job returns at once, and what
it asks for happens by itself.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable

from leadline.evidence import ExitFacts, ServiceFacts, ServiceState
from leadline.launch import LaunchSpec
from leadline.testing.clock import Alarm
from leadline.testing.lab import Lab
from leadline.testing.labprocess import LabProcess

WATCH_S = 0.1
SIGTERM = 15
TRIAL_FILE = "zzz-leadline.conf"
_CHILD_PID = 9000


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def definition(launch: LaunchSpec, *header: str) -> str:
    """A file of a unit that puts a launch in force."""
    env = (f"Environment={shlex.quote(f'{name}={value}')}" for name, value in launch.env)
    return "\n".join([*(f"# {h}" for h in header), "[Service]", *env, f"ExecStart={shlex.join(launch.argv)}", ""])


class LabUnit:
    """`restart` = "no", "on-failure" or "always", after `restart_s`, at most `burst` starts within `burst_s`. A stop
    takes `stop_s`; None = it hangs, and is killed after `stop_timeout_s`. `spares` = processes beside the main one that
    a stop leaves behind (KillMode=process). `broken` = the exit code of systemd's own with which a start fails.

    A test may change any of them, `enabled` and the files too.
    """

    def __init__(self, lab: Lab, name: str, launch: LaunchSpec, *, restart: str = "no") -> None:
        self.lab, self.name = lab, name
        self.path = f"/etc/systemd/system/{name}"
        self.trial_path = f"/run/systemd/system/{name}.d/{TRIAL_FILE}"
        self.restart_policy, self.restart_s, self.burst, self.burst_s = restart, 0.1, 5, 10.0
        self.stop_s: float | None = 0.05
        self.stop_timeout_s = 90.0
        self.spares = 0
        self.broken: int | None = None
        self.enabled = True
        self.processes: list[LabProcess] = []
        self.state = ServiceState.STOPPED
        self._children: tuple[int, ...] = ()
        self._exit: ExitFacts | None = None
        self._lines: list[str] = []
        self._invocation, self._restarts = 0, 0
        self._starts_ns: list[int] = []
        self._start_next = False
        self._alarms: list[Alarm] = []
        lab.write(self.path, definition(launch).encode(), 0o644)
        self.reload()
        lab.on_crash.append(self._crash)
        lab.on_boot.append(self._boot)

    # --- what can be seen of it

    def files(self) -> dict[str, str]:
        """The files of its definition in the order in which they hold: its own, then drop-ins by file name."""
        folders = tuple(f"/{root}/systemd/system/{self.name}.d/" for root in ("etc", "run"))
        dropped = [p for p in self.lab.files if p.startswith(folders) and p.endswith(".conf")]
        dropped.sort(key=lambda path: path.rpartition("/")[2])
        return {p: self.lab.files[p].content.decode() for p in (self.path, *dropped) if p in self.lab.files}

    def launch(self, *, trial: bool = True) -> LaunchSpec:
        """What its files say; what is in force is what they said at the last reload."""
        argv: tuple[str, ...] = ()
        env: dict[str, str] = {}
        for path, content in self.files().items():
            for line in content.splitlines() if trial or path != self.trial_path else ():
                key, _, value = line.partition("=")
                if key == "ExecStart":
                    argv = tuple(shlex.split(value))
                elif key == "Environment":
                    env.update((name, text) for name, _, text in (w.partition("=") for w in shlex.split(value)))
        return LaunchSpec(argv=argv, env=tuple(env.items()))

    def trial(self) -> str:
        file = self.lab.files.get(self.trial_path)
        return digest(file.content) if file else "absent"

    def facts(self) -> ServiceFacts:
        self._look()
        process = self.processes[-1].facts() if self.processes else None
        return ServiceFacts(
            state=self.state,
            process=process,
            pids=((process.pid,) if process else ()) + self._children,
            exit=self._exit if process is None else None,
            incarnation=f"{self.lab.boot}-{self._invocation}",
            restarts=self._restarts,
            files={p: digest(text.encode()) for p, text in self.files().items() if p != self.trial_path},
            trial=self.trial(),
            lines=tuple(self._lines),
        )

    def journal(self, cursor: str) -> tuple[str, str]:
        """Its servers' output since the cursor; "" = since its present start."""
        at, offset = (int(n) for n in cursor.split(":")) if cursor else (max(0, len(self.processes) - 1), 0)
        texts = [p.log_text() for p in self.processes[at:]]
        if not texts:
            return "", cursor
        end = len(texts[-1])
        texts[0] = texts[0][offset:]
        return "".join(texts), f"{len(self.processes) - 1}:{end}"

    # --- jobs

    def reload(self) -> None:
        self.loaded = self.launch()

    def start(self) -> None:
        """Nothing when it runs; a stop that is under way goes first."""
        self._look()
        if self.state is ServiceState.STOPPING:
            self._start_next = True
        elif self.state is not ServiceState.RUNNING:
            self._cancel()
            self._lines, self._restarts = [], 0
            self._begin()

    def stop(self) -> None:
        self._look()
        self._start_next = False
        if self.state is ServiceState.RESTARTING:
            self._cancel()
            self.state = ServiceState.STOPPED
        elif self.state is ServiceState.RUNNING:
            self._cancel()
            self.state = ServiceState.STOPPING
            self._say(f"Stopping {self.name}...")
            self._after(WATCH_S, self._watch)
            if self.stop_s is not None:
                self._after(self.stop_s, self._terminated)
            self._after(self.stop_timeout_s, self._stop_timed_out)

    def restart(self) -> None:
        self.stop()
        self.start()

    def kill(self) -> None:
        """SIGKILL for every process of it, and for none of anybody else's."""
        self._children = ()
        if self.processes:
            self.processes[-1].kill()
        self._look()

    def reset_failed(self) -> None:
        self._starts_ns.clear()
        if self.state is ServiceState.FAILED:
            self.state = ServiceState.STOPPED

    # --- what happens by itself

    def _begin(self) -> None:
        now_ns = self.lab.clock.now_ns()
        self._starts_ns = [t for t in self._starts_ns if now_ns - t < self.burst_s * 1e9]
        if len(self._starts_ns) >= self.burst:
            self._say("Start request repeated too quickly.")
            self.state = ServiceState.FAILED
            self._exit = self._exit or ExitFacts(result="start-limit-hit")
            return
        self._starts_ns.append(now_ns)
        for pid in self._children:
            self._say(f"Found left-over process {pid} (worker) in control group while starting unit. Ignoring.")
        self._invocation += 1
        self._exit = None
        self.state = ServiceState.RUNNING
        if self.broken is not None:
            self._over(ExitFacts(code=self.broken))
            return
        self.processes.append(self.lab.launch(self.loaded.argv, f"journal:{self.name}", ours=False))
        self._children += tuple(_CHILD_PID + 10 * self._invocation + n for n in range(self.spares))
        self._after(WATCH_S, self._watch)

    def _watch(self) -> None:
        self._look()
        if self.state in (ServiceState.RUNNING, ServiceState.STOPPING):
            self._after(WATCH_S, self._watch)

    def _look(self) -> None:
        if self.state in (ServiceState.RUNNING, ServiceState.STOPPING) and self.processes:
            exit = self.processes[-1].exit()
            if exit is not None:
                self._over(exit)

    def _over(self, exit: ExitFacts, result: str = "") -> None:
        """The main process has ended, and what the unit makes of it."""
        self._cancel()
        asked = self.state is ServiceState.STOPPING
        clean = exit.code == 0 or exit.signal == SIGTERM
        result = result or ("success" if clean else "exit-code" if exit.signal is None else "signal")
        self._exit = ExitFacts(code=exit.code, signal=exit.signal, result=result)
        if not clean:
            self._say(f"Main process exited, code={_how(exit)}")
        self._say("Deactivated successfully." if result == "success" else f"Failed with result '{result}'.")
        for pid in self._children:
            self._say(f"Unit process {pid} (worker) remains running after unit stopped.")
        self.state = ServiceState.STOPPED if result == "success" else ServiceState.FAILED
        again = self.restart_policy == "always" or (self.restart_policy == "on-failure" and not clean)
        if asked and self._start_next:
            self.start()
        elif again and not asked:
            self.state = ServiceState.RESTARTING
            self._after(self.restart_s, self._again)

    def _again(self) -> None:
        self._restarts += 1
        self._say(f"Scheduled restart job, restart counter is at {self._restarts}.")
        self._begin()

    def _terminated(self) -> None:
        self.processes[-1].terminate()
        self._look()

    def _stop_timed_out(self) -> None:
        self._say("State 'stop-sigterm' timed out. Killing.")
        exit = self.processes[-1].kill()
        self._over(exit, "timeout")

    def _crash(self) -> None:
        self._cancel()
        self._children, self._start_next = (), False
        self.state, self._exit, self._lines, self._restarts = ServiceState.STOPPED, None, [], 0
        self._starts_ns.clear()

    def _boot(self) -> None:
        self.reload()
        if self.enabled:
            self.start()

    def _say(self, line: str) -> None:
        self._lines.append(line if line.startswith("Stopping") else f"{self.name}: {line}")

    def _after(self, s: float, action: Callable[[], None]) -> None:
        self._alarms.append(self.lab.clock.after(s, action))

    def _cancel(self) -> None:
        for alarm in self._alarms:
            alarm.cancel()
        self._alarms.clear()


def _how(exit: ExitFacts) -> str:
    if exit.signal is not None:
        return f"killed, status={exit.signal}/{'KILL' if exit.signal == 9 else 'n/a'}"
    return f"exited, status={exit.code}/n/a"
