"""Every host obeys the laws of its port, and each law catches a host that breaks it."""

from __future__ import annotations

import itertools
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

import msgspec
import psutil
import pytest
from support_sshd import SUDO, Sshd, fake, needs_sshd, sshd

from leadline.errors import HostError, RefusedError
from leadline.evidence import Diagnosis, ExitFacts, ProcessFacts
from leadline.hosts._child import HeldCommand
from leadline.hosts.local import LocalHost
from leadline.hosts.ssh import SshHost
from leadline.hosts.wrapped import WrappedHost
from leadline.launch import LaunchSpec, Start
from leadline.ports import Completed, Held, Host, Session
from leadline.testing.host_suite import HOST_LAWS, LAWS, Ground


@pytest.fixture(scope="module")
def sudo(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH with a sudo that lets us."""
    return fake(tmp_path_factory.mktemp("bin"), "sudo", SUDO)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, sudo: str) -> Iterator[Sshd]:
    with sshd(tmp_path_factory.mktemp("sshd"), path=sudo) as server:
        yield server


@pytest.fixture(scope="module")
def ssh(server: Sshd) -> Iterator[SshHost]:
    host = SshHost(server.name, str(server.config))
    yield host
    host.close()


def ground(host: Host, folder: Path) -> Ground:
    return Ground(host=host, folder=str(folder), python=sys.executable, sudo=True)


@pytest.mark.parametrize("law", LAWS)
def test_the_local_host_obeys_the_law(law: str, tmp_path: Path, sudo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", sudo)
    LAWS[law](ground(LocalHost(), tmp_path))


@needs_sshd
@pytest.mark.parametrize("law", HOST_LAWS)
def test_a_host_over_ssh_obeys_the_law(law: str, tmp_path: Path, ssh: SshHost) -> None:
    HOST_LAWS[law](ground(ssh, tmp_path))


@pytest.mark.parametrize("law", HOST_LAWS)
def test_a_wrapped_host_obeys_the_law(law: str, tmp_path: Path, sudo: str) -> None:
    words = ("sh", "-c", 'PATH=$0 exec "$@"', sudo)
    HOST_LAWS[law](ground(WrappedHost(LocalHost(), words), tmp_path))


@needs_sshd
@pytest.mark.parametrize("law", HOST_LAWS)
def test_a_wrapped_host_over_ssh_obeys_the_law(law: str, tmp_path: Path, ssh: SshHost) -> None:
    HOST_LAWS[law](ground(WrappedHost(ssh, ("env", "WRAPPED=1")), tmp_path))


@needs_sshd
def test_servers_of_our_own_run_on_this_machine_only(tmp_path: Path, ssh: SshHost) -> None:
    for host in (ssh, WrappedHost(LocalHost(), ("env",))):
        step = Start(launch=LaunchSpec(argv=("touch", str(tmp_path / "started"))), log=str(tmp_path / "log"))
        with pytest.raises(RefusedError, match="systemd, compose or script"):
            host.start(step)
    assert not list(tmp_path.iterdir())


class Wrapped:
    """A lawful session; what breaks a law derives from it."""

    def __init__(self, session: Session, host: Kept) -> None:
        self.session = session
        self.host = host

    def process(self) -> ProcessFacts | None:
        return self.session.process()

    def exit(self) -> ExitFacts | None:
        return self.session.exit()

    def owns(self, pid: int) -> bool:
        return self.session.owns(pid)

    def log(self) -> str:
        return self.session.log()

    def doubt(self) -> Diagnosis | None:
        return self.session.doubt()

    def blips(self) -> int:
        return self.session.blips()

    def end(self, grace_s: float) -> ExitFacts:
        return self.session.end(grace_s)


class Lasting:
    """A lawful held command; what breaks a law derives from it."""

    def __init__(self, held: Held) -> None:
        self.held = held

    def alive(self) -> bool:
        return self.held.alive()

    def end(self) -> None:
        self.held.end()


class Kept(LocalHost):
    """A lawful host that remembers what it started, so that a broken one leaves nothing behind either."""

    wrap: type[Wrapped] = Wrapped
    last: type[Lasting] = Lasting

    def __init__(self) -> None:
        self.sessions: list[Session] = []
        self.held: list[Held] = []
        self.groups: list[subprocess.Popen[bytes]] = []

    def start(self, step: Start) -> Session:
        session = super().start(step)
        self.sessions.append(session)
        return self.wrap(session, self)

    def hold(self, argv: Sequence[str], *, timeout_s: float = 60.0) -> HeldCommand:
        held = super().hold(argv, timeout_s=timeout_s)
        self.held.append(held)
        return cast("HeldCommand", self.last(held))

    def clean(self) -> None:
        for held in self.held:
            cast("HeldCommand", held)._child.kill()
            held.end()
        for session in self.sessions:
            session.end(0)
        for child in self.groups:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


class WritesText(Kept):
    def write(self, path: str, content: bytes, mode: int, *, sudo: bool = False) -> None:
        super().write(path, content.decode(errors="replace").encode(), mode, sudo=sudo)


class MindsTheUmask(Kept):
    def write(self, path: str, content: bytes, mode: int, *, sudo: bool = False) -> None:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            file.write(content)


class WritesInPlace(Kept):
    def write(self, path: str, content: bytes, mode: int, *, sudo: bool = False) -> None:
        try:
            Path(path).write_bytes(content)
        except OSError as error:
            raise HostError("disk full") from error
        os.chmod(path, mode)


class LeavesItsDraft(Kept):
    def write(self, path: str, content: bytes, mode: int, *, sudo: bool = False) -> None:
        try:
            Path(f"{path}.draft").write_bytes(content)
        except OSError as error:
            raise HostError("disk full") from error
        os.chmod(f"{path}.draft", mode)
        os.rename(f"{path}.draft", path)


class FailsQuietly(Kept):
    def write(self, path: str, content: bytes, mode: int, *, sudo: bool = False) -> None:
        with suppress(HostError):
            super().write(path, content, mode, sudo=sudo)


class NamesNoFile(Kept):
    def write(self, path: str, content: bytes, mode: int, *, sudo: bool = False) -> None:
        try:
            super().write(path, content, mode, sudo=sudo)
        except HostError:
            raise HostError("cannot write") from None


class RemovesNothing(Kept):
    def remove(self, path: str, *, sudo: bool = False) -> None:
        return


class RemovesOnce(Kept):
    def remove(self, path: str, *, sudo: bool = False) -> None:
        if self.read(path) is None:
            raise HostError(path)
        super().remove(path, sudo=sudo)


class DropsWhatIsNoText(Kept):
    def log(self, path: str) -> str:
        return (self.read(path) or b"").decode(errors="ignore")


class ReadsLatin(Kept):
    def log(self, path: str) -> str:
        return (self.read(path) or b"").decode("latin-1")


class UsesAShell(Kept):
    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0) -> Completed:
        done = super().run(("sh", "-c", f"{shlex.join(argv[:3])} {' '.join(argv[3:])}"), stdin=stdin)
        return msgspec.structs.replace(done, argv=tuple(argv))


class HidesWhatItRan(Kept):
    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0) -> Completed:
        return msgspec.structs.replace(super().run(argv, stdin=stdin, timeout_s=timeout_s), argv=())


class ReturnsText(Kept):
    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0) -> Completed:
        done = super().run(argv, stdin=stdin, timeout_s=timeout_s)
        return msgspec.structs.replace(done, stdout=done.stdout.decode(errors="replace").encode())


class MixesOutputs(Kept):
    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0) -> Completed:
        done = super().run(argv, stdin=stdin, timeout_s=timeout_s)
        return msgspec.structs.replace(done, stdout=done.stdout + done.stderr)


class CountsSignalsDownwards(Kept):
    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0) -> Completed:
        done = super().run(argv, stdin=stdin, timeout_s=timeout_s)
        return msgspec.structs.replace(done, code=done.code if done.code <= 128 else 128 - done.code)


class NamesNoLimit(Kept):
    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0) -> Completed:
        try:
            return super().run(argv, stdin=stdin, timeout_s=timeout_s)
        except HostError:
            raise HostError(f"{shlex.join(argv)} is slow") from None


class KillsTheCommandAlone(Kept):
    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0) -> Completed:
        child = subprocess.Popen(argv, stdout=subprocess.PIPE, process_group=0)
        assert child.stdout is not None
        self.groups.append(child)
        try:
            out, _ = child.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            child.kill()
            child.stdout.close()
            raise HostError(f"{shlex.join(argv)} took longer than {timeout_s} s") from None
        return Completed(argv=tuple(argv), code=child.returncode, stdout=out, stderr=b"")


class AnswersForTheMissing(Kept):
    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0) -> Completed:
        try:
            return super().run(argv, stdin=stdin, timeout_s=timeout_s)
        except HostError:
            return Completed(argv=tuple(argv), code=127, stdout=b"", stderr=b"not found")


class EmptiesTheLog(Kept):
    def start(self, step: Start) -> Session:
        self.write(step.log, b"", 0o600)
        return super().start(step)


class StartsAnything(Kept):
    def start(self, step: Start) -> Session:
        try:
            return super().start(step)
        except HostError:
            return super().start(msgspec.structs.replace(step, launch=LaunchSpec(argv=("true",))))


class NamesNoProgram(Kept):
    def start(self, step: Start) -> Session:
        try:
            return super().start(step)
        except HostError:
            raise HostError("cannot start") from None


class Plain(Wrapped):
    """A server without a supervisor."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self.child = child

    def process(self) -> ProcessFacts | None:
        return None

    def exit(self) -> ExitFacts | None:
        return None

    def end(self, grace_s: float) -> ExitFacts:
        self.child.kill()
        self.child.wait()
        return ExitFacts(signal=9, asked=True)


class HasNoSupervisor(Kept):
    def start(self, step: Start) -> Session:
        child = subprocess.Popen(step.launch.argv, start_new_session=True, stdin=subprocess.DEVNULL)
        self.groups.append(child)
        return Plain(child)


def host_whose_sessions(wrap: type[Wrapped]) -> type[Kept]:
    return type(wrap.__name__, (Kept,), {"wrap": wrap})


class OwnsEverything(Wrapped):
    def owns(self, pid: int) -> bool:
        return True


class OwnsTheMainAlone(Wrapped):
    def owns(self, pid: int) -> bool:
        main = self.process()
        return main is not None and main.pid == pid


class OwnsByParent(Wrapped):
    """A grandchild that lost its parent slips away."""

    def owns(self, pid: int) -> bool:
        main = self.process()
        return main is not None and main.pid in [pid, *(p.pid for p in psutil.Process(pid).parents())]


class RemembersTheDead(Wrapped):
    def process(self) -> ProcessFacts | None:
        self.known = self.session.process() or self.known
        return self.known


class ForgetsStartIds(Wrapped):
    count = itertools.count()

    def process(self) -> ProcessFacts | None:
        facts = self.session.process()
        return facts and msgspec.structs.replace(facts, start_id=str(next(self.count)))


class ClaimsEveryEnd(Wrapped):
    def end(self, grace_s: float) -> ExitFacts:
        return msgspec.structs.replace(self.session.end(grace_s), asked=True)


class TakesSignalsForCodes(Wrapped):
    def end(self, grace_s: float) -> ExitFacts:
        facts = self.session.end(grace_s)
        return ExitFacts(code=128 + facts.signal, asked=facts.asked) if facts.signal else facts


class KillsAtOnce(Wrapped):
    def end(self, grace_s: float) -> ExitFacts:
        return self.session.end(0)


class KillsTheMainAlone(Wrapped):
    def end(self, grace_s: float) -> ExitFacts:
        main = self.process()
        assert main is not None
        os.kill(main.pid, signal.SIGKILL)
        return ExitFacts(signal=9, asked=True)


class ForgetsHowItEnded(Wrapped):
    ended = False

    def end(self, grace_s: float) -> ExitFacts:
        facts = ExitFacts() if self.ended else self.session.end(grace_s)
        self.ended = True
        return facts


class EndsThemAll(Wrapped):
    def end(self, grace_s: float) -> ExitFacts:
        for session in self.host.sessions:
            session.end(grace_s)
        return self.session.end(grace_s)


class SeesExactAddressesOnly(Kept):
    def listener(self, host: str, port: int) -> ProcessFacts | None:
        listening = (c for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN)
        found = any((c.laddr.ip, c.laddr.port) == (host, port) for c in listening)
        return super().listener(host, port) if found else None


class NamesItself(Kept):
    def listener(self, host: str, port: int) -> ProcessFacts | None:
        owner = super().listener(host, port)
        return owner and msgspec.structs.replace(owner, pid=os.getpid())


class IgnoresTheAddress(Kept):
    def listener(self, host: str, port: int) -> ProcessFacts | None:
        return super().listener("0.0.0.0", port)


class RemembersListeners(Kept):
    def listener(self, host: str, port: int) -> ProcessFacts | None:
        return super().listener(host, port) or ProcessFacts(pid=1, start_id="1", argv=())


class ForgetsModesWithSudo(Kept):
    def write(self, path: str, content: bytes, mode: int, *, sudo: bool = False) -> None:
        super().write(path, content, 0o600 if sudo else mode, sudo=sudo)


class HoldsWithoutInput(Kept):
    def hold(self, argv: Sequence[str], *, timeout_s: float = 60.0) -> HeldCommand:
        return super().hold(("sh", "-c", '"$@" </dev/null', "sh", *argv), timeout_s=timeout_s)


class HoldsWhatSaysNothing(Kept):
    def hold(self, argv: Sequence[str], *, timeout_s: float = 60.0) -> HeldCommand:
        return super().hold(("sh", "-c", 'echo; exec "$@"', "sh", *argv), timeout_s=timeout_s)


class NeverEnds(Lasting):
    def end(self) -> None:
        return


class LivesForEver(Lasting):
    def alive(self) -> bool:
        return True


class ReadsNothing(Lasting):
    def alive(self) -> bool:
        return cast("HeldCommand", self.held)._child.poll() is None


def host_that_holds(last: type[Lasting]) -> type[Kept]:
    return type(last.__name__, (Kept,), {"last": last})


class ForwardsNext(Kept):
    def forward(self, host: str, port: int) -> tuple[str, int]:
        return host, port + 1


class OwesMemory(Kept):
    def device_used_bytes(self) -> tuple[int, ...] | None:
        return (-1,)


class HasNoMemory(Kept):
    def free_memory_bytes(self) -> int:
        return 0


class TellsTheHour(Kept):
    count = itertools.count()

    def identity(self) -> dict[str, str]:
        return {**super().identity(), "load": str(next(self.count))}


class TellsNothing(Kept):
    def identity(self) -> dict[str, str]:
        return {}


BROKEN: list[tuple[str, type[Kept]]] = [
    ("reads_back_what_it_wrote", WritesText),
    ("writes_with_the_mode_asked_for", MindsTheUmask),
    ("keeps_the_old_file_when_a_write_fails", WritesInPlace),
    ("keeps_the_old_file_when_a_write_fails", LeavesItsDraft),
    ("says_what_it_could_not_write", FailsQuietly),
    ("says_what_it_could_not_write", NamesNoFile),
    ("removes_a_file", RemovesNothing),
    ("removes_a_file", RemovesOnce),
    ("shows_a_log_that_is_no_text", DropsWhatIsNoText),
    ("shows_a_log_that_is_no_text", ReadsLatin),
    ("passes_words_as_they_are", UsesAShell),
    ("passes_words_as_they_are", HidesWhatItRan),
    ("passes_bytes_in_and_out", ReturnsText),
    ("passes_bytes_in_and_out", MixesOutputs),
    ("tells_how_a_command_ended", CountsSignalsDownwards),
    ("limits_the_time_of_a_command", NamesNoLimit),
    ("limits_the_time_of_a_command", KillsTheCommandAlone),
    ("says_which_program_is_missing", AnswersForTheMissing),
    ("sends_a_servers_output_to_its_log", EmptiesTheLog),
    ("says_which_server_it_cannot_start", StartsAnything),
    ("says_which_server_it_cannot_start", NamesNoProgram),
    ("knows_its_server_and_what_that_started", host_whose_sessions(OwnsEverything)),
    ("knows_its_server_and_what_that_started", host_whose_sessions(OwnsTheMainAlone)),
    ("knows_its_server_and_what_that_started", host_whose_sessions(OwnsByParent)),
    ("knows_its_server_and_what_that_started", host_whose_sessions(RemembersTheDead)),
    ("knows_its_server_and_what_that_started", host_whose_sessions(ForgetsStartIds)),
    ("tells_how_a_server_ended_by_itself", host_whose_sessions(ClaimsEveryEnd)),
    ("tells_how_a_server_ended_by_itself", host_whose_sessions(TakesSignalsForCodes)),
    ("asks_before_it_kills", host_whose_sessions(KillsAtOnce)),
    ("leaves_nothing_of_a_server", host_whose_sessions(KillsTheMainAlone)),
    ("leaves_nothing_of_a_server_that_ended_by_itself", HasNoSupervisor),
    ("ends_a_server_once", host_whose_sessions(ForgetsHowItEnded)),
    ("touches_no_other_server", host_whose_sessions(EndsThemAll)),
    ("does_with_sudo_what_it_does_without", ForgetsModesWithSudo),
    ("holds_a_command", HoldsWithoutInput),
    ("holds_a_command", host_that_holds(NeverEnds)),
    ("notices_that_a_held_command_ended", host_that_holds(LivesForEver)),
    ("notices_that_a_held_command_ended", host_that_holds(ReadsNothing)),
    ("says_why_it_cannot_hold", HoldsWhatSaysNothing),
    ("forwards_to_an_address", ForwardsNext),
    ("tells_the_memory_of_its_devices", OwesMemory),
    ("finds_its_own_server_listening", NamesItself),
    ("finds_who_listens", SeesExactAddressesOnly),
    ("finds_who_listens", NamesItself),
    ("finds_nobody_where_nobody_listens", IgnoresTheAddress),
    ("finds_nobody_where_nobody_listens", RemembersListeners),
    ("tells_its_free_memory", HasNoMemory),
    ("has_a_lasting_identity", TellsTheHour),
    ("has_a_lasting_identity", TellsNothing),
]


@pytest.fixture
def broken_host(request: pytest.FixtureRequest) -> Iterator[Kept]:
    host: Kept = request.param()
    yield host
    host.clean()


@pytest.mark.parametrize(
    ("law", "broken_host"), BROKEN, ids=[broken.__name__ for _, broken in BROKEN], indirect=["broken_host"]
)
def test_the_law_catches_who_breaks_it(
    law: str, broken_host: Kept, tmp_path: Path, sudo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", sudo)
    with pytest.raises((AssertionError, OSError, HostError)):
        LAWS[law](Ground(host=broken_host, folder=str(tmp_path), python=sys.executable, sudo=True, limit_s=3))


def test_every_law_has_somebody_who_breaks_it() -> None:
    assert {law for law, _ in BROKEN} == set(LAWS)
