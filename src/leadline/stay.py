"""What of the service is in our hands, from a launch to its return. Every intent is in the journal before its effect.

A server of our own is returned after each launch. A supervisor's service stays in our hands from the first launch to
the last, so that no restart is spent on going back in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import msgspec

from leadline.deploy import Deployer, Running, StartFailed
from leadline.errors import HostError, NotGivenBackError
from leadline.journal.events import DeployStarted, Hooked, Returned, Returning
from leadline.journal.file import Journal
from leadline.launch import LaunchSpec, masked
from leadline.ports import Observed
from leadline.service import changed

HOOK_S = 300.0


class Stay(msgspec.Struct, kw_only=True):
    """`public` = users reach the servers of our launches. `drain` and `undrain` are the operator's hooks; where a guard
    stands on the service's host, that one runs them. `log_of(trial, attempt)` = where a server's log goes."""

    journal: Journal
    deployer: Deployer
    log_of: Callable[[int, int], str]
    shield: Callable[[], AbstractContextManager[object]] = nullcontext
    public: bool = False
    drain: tuple[str, ...] = ()
    undrain: tuple[str, ...] = ()
    hooks_by_guard: bool = False
    running: Running | None = None
    original: Observed | None = None  # what is given back
    gave_up: bool = False

    def launch(self, trial: int, attempt: int, launch: LaunchSpec) -> Running:
        """Put a launch in force. Raises StartFailed, and what a Deployer raises."""
        deployer = self.deployer
        observed = deployer.observe()
        self._refuse_changed(observed)
        self.journal.append(
            DeployStarted(
                trial=trial,
                attempt=attempt,
                launch=str(masked(launch)),
                undo=tuple(str(s) for s in deployer.target.restore(observed)),
                files=observed.files,
                public=self.public,
            )
        )
        self.original = observed
        self.running = None
        self.running = deployer.start(launch, observed, self.log_of(trial, attempt))
        return self.running

    def _refuse_changed(self, observed: Observed) -> None:
        """Raises StartFailed when the service is no longer the one that this stay began with."""
        if self.deployer.stays and self.original is not None:
            other = changed(self.original.files, observed.files)
            if other is not None:
                raise StartFailed(other)

    def between(self, trial: int) -> None:
        """A launch is over: what is ours alone is returned."""
        if not self.deployer.stays:
            self.give_back(trial)

    def leave(self) -> None:
        """Whatever is in force is returned, whichever process put it there; users are called back. Raises
        NotGivenBackError, and then once only."""
        left = None if self.gave_up else self.journal.ledger.in_force
        if left is not None and (self.deployer.stays or left.seq > self.journal.ledger.sessions[-1].seq):
            self.give_back(left.trial)
        self._undrain()

    def give_back(self, trial: int) -> None:
        """Also when the journal can no longer be written: the service comes first. Raises NotGivenBackError."""
        clock = self.deployer.clock
        began, ended = clock.now_ns(), "did not become ready"
        try:
            self.journal.append(Returning(trial=trial))
        finally:
            if self.deployer.stays:
                ended = self._return_service(trial)
            elif self.running is not None and self.original is not None:
                running, self.running = self.running, None
                ended = str(self.deployer.give_back(running, self.original))
        self.journal.append(Returned(trial=trial, took_s=(clock.now_ns() - began) / 1e9, ended=ended))

    def _return_service(self, trial: int) -> str:
        """From here on the service is its owner's: what somebody changes in it is no longer our affair."""
        observed = self.original or self.deployer.observe()
        self.running = self.original = None
        try:
            return self.deployer.return_service(observed, self.log_of(trial, 0))
        except NotGivenBackError:
            self.gave_up = True
            raise

    def pick_up(self, incumbent: LaunchSpec) -> None:
        """What a process that died had in force: a server of its own ends with it, and we wait for that; a service is
        still in force, or its guard has taken it back."""
        left = self.journal.ledger.in_force
        if left is None:
            return
        if self.deployer.stays:
            if not self.deployer.observe().held:
                self.journal.append(Returned(trial=left.trial, took_s=0.0, ended="the guard gave it back meanwhile"))
        elif self.deployer.await_gone(incumbent):
            self.journal.append(Returned(trial=left.trial, took_s=0.0, ended="with the process that had started it"))

    # --- the operator's hooks

    def send_away(self) -> None:
        """Drain, before the first launch."""
        if self.drain and not self.hooks_by_guard and not self.journal.ledger.drained:
            self.journal.append(Hooked(hook="drain"))
            self._hook(self.drain)

    def _undrain(self) -> None:
        """Also what a process that was killed has drained: the journal remembers."""
        if not self.journal.ledger.drained:
            return
        try:
            self._hook(self.undrain)
            self.journal.append(Hooked(hook="undrain"))
        except HostError as error:
            raise NotGivenBackError(f"users do not reach the service: {error}") from error

    def _hook(self, argv: Sequence[str]) -> None:
        if argv:
            done = self.deployer.host.run(argv, timeout_s=HOOK_S)
            if done.code != 0:
                raise HostError(f"the hook {argv[0]} ended with {done.code}; run it by hand to see why")
