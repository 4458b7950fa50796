"""A service of the lab's supervisor, and the target for it: what a campaign does to a unit, in virtual time.

    lab = Lab(spec)
    service = LabService(lab, "llm.service", launch)      # it runs, and its commands are answered
    target = LabServiceTarget(Site(unit="llm.service"))

`labctl` is the supervisor's one command. What a test does to `service.unit` or `lab.files`, or by `lab.cut` and
`lab.crash`, happens to the service as it would to a real one.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence

import msgspec

from leadline.errors import HostError, InputError, RefusedError
from leadline.evidence import ServiceFacts
from leadline.launch import Halt, LaunchSpec, Put, Remove, Run, Step
from leadline.ports import Completed, Guard, Observed, Site, Terms
from leadline.testing.lab import Lab, LabHeld, completed
from leadline.testing.labguard import LabGuard
from leadline.testing.labunit import LabUnit, definition

CTL = "labctl"
ABSENT = "absent"
_QUICK_S = 30.0


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What `labctl cat` prints."""

    launch: LaunchSpec
    running: bool
    files: dict[str, str]
    texts: dict[str, str]
    held: bool
    holder: str


class LabService:
    """One unit of the lab, its guard, and the answers to `labctl`."""

    def __init__(
        self,
        lab: Lab,
        name: str,
        launch: LaunchSpec,
        *,
        running: bool = True,
        restart: str = "no",
        ready_s: float = 60.0,
    ) -> None:
        """`ready_s` = virtual seconds that pass before anybody looks at it."""
        self.lab = lab
        self.unit = LabUnit(lab, name, launch, restart=restart)
        self.guard = LabGuard(lab, self.unit)
        lab.programs[CTL] = self._answer
        lab.holding[CTL] = self._hold
        if running:
            self.unit.start()
            lab.clock.sleep(ready_s)

    def _answer(self, argv: Sequence[str], stdin: bytes) -> Completed:
        verb, name, *words = argv[1:]
        if name != self.unit.name:
            return completed(argv, 4, stderr=f"Unit {name} could not be found.\n")
        jobs: dict[str, Callable[[], None]] = {
            "daemon-reload": self.unit.reload,
            "reset-failed": self.unit.reset_failed,
            "start": self.unit.start,
            "stop": self.unit.stop,
            "kill": self.unit.kill,
            "untry": lambda: self._remove(self.unit.trial_path),
            "back": self.guard.back,
            "hook": self.guard.hook,
            "disarm": self.guard.disarm,
            "unlock": self.guard.disarm,
        }
        if verb in jobs:
            jobs[verb]()
            return completed(argv, 0)
        says: dict[str, Callable[[], tuple[object, str]]] = {
            "status": lambda: (self.unit.facts(), ""),
            "cat": lambda: (self._seen(), ""),
            "show": lambda: (self.unit.loaded, ""),
            "journal": lambda: (self.unit.journal(words[0] if words else ""), ""),
            "owner": lambda: (self.guard.holder(), ""),
            "verify": lambda: (None, _wrong(stdin.decode())),
            "try": lambda: (None, self._write(self.unit.trial_path, stdin)),
            "arm": lambda: (None, self.guard.arm(msgspec.json.decode(stdin, type=Terms))),
            "renew": lambda: (None, "" if self.guard.renew() else f"{self.unit.name} is not held any more"),
        }
        if verb not in says:
            return completed(argv, 1, stderr=f"Unknown command verb {verb}.\n")
        answer, error = says[verb]()
        if error:
            return completed(argv, 1, stderr=f"{error}\n")
        return completed(argv, 0, stdout="" if answer is None else msgspec.json.encode(answer).decode())

    def _hold(self, argv: Sequence[str]) -> LabHeld:
        if self.guard.terms is None:
            raise HostError(f"{shlex.join(argv)} ended at once: nothing is armed")
        return self.guard.hold()

    def _remove(self, path: str) -> None:
        self.lab.files.pop(path, None)

    def _write(self, path: str, content: bytes) -> str:
        try:
            self.lab.write(path, content, 0o600)
        except HostError as error:
            return str(error)
        return ""

    def _seen(self) -> Seen:
        facts, unit, guard = self.unit.facts(), self.unit, self.guard
        held = guard.terms is not None or facts.trial != ABSENT
        return Seen(
            launch=unit.launch(trial=False),
            running=guard.was_running if guard.terms is not None else not facts.state.at_rest,
            files=facts.files,
            texts={p: text for p, text in unit.files().items() if p != unit.trial_path},
            held=held,
            holder=guard.holder(),
        )


def _wrong(text: str) -> str:
    for line in text.splitlines():
        if line.startswith("ExecStart="):
            try:
                words = shlex.split(line.partition("=")[2])
            except ValueError as error:
                return f"{error}: {line}"
            if words:
                return ""
    return "Service has no ExecStart= setting. Refusing."


class LabServiceTarget:
    """ports.Target and ports.Service of a lab unit: `unit` and `sudo` of its site."""

    name = "lab"
    guarantee = "the lab's guard puts the original back when our connection ends, our lease or the time is over"

    def __init__(self, site: Site, *, guarded: bool = True) -> None:
        self._unit, self._sudo, self._guarded = site.unit, site.sudo, guarded
        self._accepted = f"/etc/systemd/system/{site.unit}.d/zz-leadline.conf"

    @property
    def service(self) -> LabServiceTarget:
        return self

    def _ctl(self, verb: str, *words: str, stdin: str = "", asked: bool = False) -> Run:
        argv = (CTL, verb, self._unit, *words)
        return Run(argv=argv, timeout_s=_QUICK_S, sudo=self._sudo, stdin=stdin, asked=asked)

    # --- Target

    def observe(self) -> Sequence[Run]:
        return (self._ctl("cat"),)

    def interpret(self, completed: Sequence[Completed]) -> Observed:
        (answer,) = completed
        if answer.code != 0:
            raise InputError(answer.stderr.decode().strip())
        seen = msgspec.json.decode(answer.stdout, type=Seen)
        files = {self._accepted: ABSENT, **seen.files}
        return Observed(
            launch=seen.launch,
            running=seen.running,
            files=files,
            texts=seen.texts,
            held=seen.held,
            holder=seen.holder,
        )

    def plan(self, launch: LaunchSpec, observed: Observed, log: str) -> Sequence[Step]:
        text = definition(launch, f"A trial. By hand: {CTL} back {self._unit}")
        return (
            self._ctl("verify", stdin=text, asked=True),
            self._halt(),
            self._ctl("try", stdin=text),
            self._ctl("daemon-reload"),
            self._ctl("show", asked=True),
            self._ctl("reset-failed"),
            self._ctl("start"),
        )

    def _halt(self) -> Halt:
        return Halt(stop=self._ctl("stop"), kill=self._ctl("kill"), timeout_s=30.0)

    def confirm(self, launch: LaunchSpec, answers: Sequence[Completed]) -> None:
        answer = answers[-1]
        if answer.code != 0:
            raise InputError(f"the supervisor refuses the trial: {answer.stderr.decode().strip()}")
        if answer.argv[-2] == "show":
            understood = msgspec.json.decode(answer.stdout, type=LaunchSpec)
            if (understood.argv, set(understood.env)) != (launch.argv, set(understood.env) | set(launch.env)):
                raise InputError(f"the supervisor has understood {understood}, and {launch} was meant")

    def restore(self, observed: Observed) -> Sequence[Step]:
        away = (self._halt(), self._ctl("untry"), self._ctl("daemon-reload"), self._ctl("reset-failed"))
        return (*away, self._ctl("start")) if observed.running else away

    def rollout(self, launch: LaunchSpec, observed: Observed, present: str, note: str) -> Sequence[Step]:
        """One accepted setting at a time: take an earlier one back first."""
        text = definition(launch, *note.splitlines())
        return (
            Put(path=self._accepted, content=text, mode=0o600, expect=ABSENT, sudo=self._sudo),
            self._ctl("daemon-reload"),
        )

    def rollout_path(self) -> str:
        return self._accepted

    def undo(self, observed: Observed, written: str, previous: str) -> Sequence[Step]:
        now = observed.files.get(self._accepted, ABSENT)
        if now == previous:
            return ()
        if now != written:
            raise RefusedError(f"somebody else changed {self._accepted}; look at it, then remove it by hand")
        return (Remove(path=self._accepted, expect=written, sudo=self._sudo), self._ctl("daemon-reload"))

    # --- Service

    def look(self) -> Run:
        return self._ctl("status")

    def facts(self, completed: Completed) -> ServiceFacts:
        try:
            return msgspec.json.decode(completed.stdout, type=ServiceFacts)
        except msgspec.DecodeError as error:
            raise HostError(f"{CTL} status makes no sense: {error}") from error

    def log(self, cursor: str) -> Run:
        return self._ctl("journal", *([cursor] if cursor else []))

    def logged(self, completed: Completed) -> tuple[str, str]:
        return msgspec.json.decode(completed.stdout, type=tuple[str, str])

    def guard(self, terms: Terms) -> Guard | None:
        if not self._guarded:
            return None
        return Guard(
            arm=(self._ctl("arm", stdin=msgspec.json.encode(terms).decode()),),
            hold=self._ctl("hold"),
            renew=self._ctl("renew"),
            back=self._ctl("back"),
            hook=self._ctl("hook"),
            disarm=(self._ctl("disarm"),),
        )

    def unlock(self) -> Sequence[Run]:
        return (self._ctl("owner", asked=True), self._ctl("unlock"))


target = LabServiceTarget
