"""The operator's own commands as the service, for what no other target knows: Kubernetes, Slurm, Proxmox, quadlets.

What each command of [scripts] must do:

- start: begin the launch and return, its output not tied to ours. The launch is appended after `--`. Where a word is
  `{argv}`, its words stand there instead; `{command}` in a word is the same as one text for a shell, a simple command.
  Variables and working folder go before them as `env -C FOLDER NAME=VALUE` (GNU), or the variables alone where a word
  is `{env}`.
- stop: stop what runs of the service, whoever started it; nothing runs: fine. May return before all of it is gone.
- give_back: put the original back, and return once it has begun and the trial is gone. May be repeated.
- status: exit with 0 = running or starting, 3 = stopped, 4 = there is no such service, up to 125 = failed; anything
  else is no answer. It may print lines `pid=N` (of each process, the main one first), `exit=N` or `signal=N`, `oom=1`,
  `restarts=N`, `incarnation=TEXT` (another text after every start). Other lines are kept for the diagnosis.
- logs: print the log since the last start; `{since}` in a word is how many bytes of it we have: skip those.
"""

from __future__ import annotations

import codecs
import hashlib
import re
import shlex
from collections.abc import Sequence

import msgspec

from leadline.errors import HostError, InputError, RefusedError
from leadline.evidence import ExitFacts, ProcessFacts, ServiceFacts, ServiceState
from leadline.launch import Halt, LaunchSpec, Run, Step, masked
from leadline.masking import masked_text, masked_words
from leadline.ports import Completed, Guard, Observed, Site, Terms

LOOK_S, LOGS_S, CHANGE_S, HALT_S = 30.0, 60.0, 600.0, 120.0
MAX_LINES = 20
NO_ANSWER = 126
"""What a shell ends with when a command cannot be run; above that, it was killed or never reached."""
_STATES = {0: ServiceState.RUNNING, 3: ServiceState.STOPPED, 4: ServiceState.MISSING}
_SAID = re.compile(rb"(?P<key>pid|exit|signal|oom|restarts|incarnation|leadline-\w+)=(?P<value>.*)")
_TRUTH = {"": 0, "0": 0, "false": 0, "1": 1, "true": 1}

_FILE = 'f="${1:-${XDG_STATE_HOME:-${HOME:?}/.local/state}/leadline}/$2"; shift 2; '
_LOOK = _FILE + 'if [ -e "$f" ]; then echo leadline-held=1; cat -- "$f" || exit 126; fi; exec "$@"'
_OURS = (
    _FILE + 'if [ -e "$f" ]; then grep -qxF "leadline-holder=$1" "$f" && exit 0; '
    'echo "another campaign holds this service, see leadline unlock:" >&2; cat -- "$f" >&2; exit 1; fi; '
)
_MARK = (
    _OURS + 'umask 077; d=${f%/*}; mkdir -p -- "$d" || exit 1; '
    'printf "%s\\n" "leadline-holder=$1" "leadline-running=$2" "leadline-since=$(date -u +%Y-%m-%dT%H:%M:%SZ)" '
    '>"$f.$$" && sync -- "$f.$$" && ln -- "$f.$$" "$f" && sync -- "$d"; done=$?; rm -f -- "$f.$$"; exit $done'
)
_FORGET = _FILE + 'rm -f -- "$f"'
_WHO = _FILE + '[ ! -e "$f" ] || sed -n "s/^leadline-holder=//p; s/^leadline-since=/since /p" "$f"'
_IF_STOPPED = _FILE + 'if grep -qx leadline-running=0 "$f"; then exec "$@"; fi'
_WRITE = 'umask 077; mkdir -p -- "${1%/*}" && cat >"$1.$$" && mv -- "$1.$$" "$1"'
_LOGS = (
    'echo "$1"; n=$1; skip=$2; shift 2; t=$(mktemp) || exit 1; exec 3>"$t" 4<"$t"; rm -f -- "$t"; "$@" >&3 2>&1 3>&- '
    '4<&-; done=$?; tail -c "+$((skip + 1))" <&4; exit $done'
)


class ScriptTarget:
    """ports.Target by `start`, `stop`, `give_back`, `logs`, `status` of its site; `launch` = the original.

    While a trial is in force, a mark lies in a file on the host: whose trial it is, and whether the service ran before.
    `home` = its folder, "" = the user's own for such state.
    """

    name = "script"
    guarantee = (
        "none: when Leadline is killed or cut off, the trial stays in force until `leadline run` goes on or somebody "
        "runs the give_back command; no deadline and no grace hold here"
    )

    def __init__(self, site: Site) -> None:
        self._site = site
        self._service = ScriptService(site)

    @property
    def service(self) -> ScriptService:
        return self._service

    def observe(self) -> Sequence[Run]:
        return (self._service.look(),)

    def interpret(self, completed: Sequence[Completed]) -> Observed:
        """`running` during a trial = whether the service ran before it. Files of the service are unknown here."""
        try:
            facts = self._service.facts(completed[0])
        except HostError as error:
            raise InputError(str(error)) from None
        if facts.state is ServiceState.MISSING:
            raise InputError(f"{_shown(self._site.status)} says that there is no such service (exit code 4)")
        said = dict(_said(completed[0].stdout))
        held = "leadline-held" in said
        running = said.get("leadline-running") != "0" if held else not facts.state.at_rest
        holder = f"{said.get('leadline-holder', '')} since {said.get('leadline-since', '?')}" if held else ""
        return Observed(launch=self._site.launch, running=running, held=held, holder=holder)

    def plan(self, launch: LaunchSpec, observed: Observed, log: str) -> Sequence[Step]:
        """Raises InputError for a launch with a secret in clear: its words are printed."""
        _refuse_secrets(launch)
        return (
            _marked(self._site, _MARK, self._holder(), str(int(observed.running))),
            *(_sh(_WRITE, file.path, stdin=file.content) for file in launch.ours),
            self._halt(),
            Run(argv=started(self._site.start, launch), timeout_s=CHANGE_S),
        )

    def _holder(self) -> str:
        """Who holds the service: a campaign, by the folder that is its own."""
        return self._site.launch.scratch or "a campaign"

    def _halt(self) -> Halt:
        stop = Run(argv=self._site.stop, timeout_s=CHANGE_S)
        return Halt(stop=stop, kill=stop, timeout_s=HALT_S)

    def confirm(self, launch: LaunchSpec, answers: Sequence[Completed]) -> None:
        """No Step of ours asks."""

    def restore(self, observed: Observed) -> Sequence[Step]:
        """A service that was stopped is stopped again, once the original is in place. Raises RefusedError while another
        campaign holds it."""
        if observed.held and not observed.holder.startswith(f"{self._holder()} since "):
            raise RefusedError(
                f"another campaign holds this service: {observed.holder}. Let it end; `leadline unlock` is for one "
                "that is gone."
            )
        ours = _marked(self._site, _OURS, self._holder())
        back = Run(argv=self._site.give_back, timeout_s=CHANGE_S)
        forget = _marked(self._site, _FORGET)
        return (ours, back, forget) if observed.running else (ours, back, self._halt(), forget)

    def rollout(self, launch: LaunchSpec, observed: Observed, present: str, note: str) -> Sequence[Step]:
        """Always refused, with the command line that the operator puts in place."""
        raise _unknown_files(launch)

    def patch(self, launch: LaunchSpec, observed: Observed) -> str:
        raise _unknown_files(launch)

    def rollout_path(self) -> str:
        """Where nothing is ever written."""
        return self._site.script

    def undo(self, observed: Observed, written: str, previous: str) -> Sequence[Step]:
        """There is never anything to take back."""
        return ()


class ScriptService:
    """ports.Service by the same site."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def look(self) -> Run:
        """The mark and the status command, in one command."""
        return _marked(self._site, _LOOK, *self._site.status, timeout_s=LOOK_S)

    def facts(self, completed: Completed) -> ServiceFacts:
        """What the status command cannot tell is unknown: without `pid` the process has pid 0 and no listener can be
        proved to be it. Raises HostError when it was not run, was killed, or says what is no number."""
        if completed.code >= NO_ANSWER:
            why = completed.stderr.decode(errors="replace").strip()
            raise HostError(
                f"{_shown(self._site.status)} gave no answer (exit code {completed.code}): {masked_text(why)}. It must "
                "exit with 0 = running, 3 = stopped, or less than 126 = failed."
            )
        pairs = _said(completed.stdout)
        said, state = dict(pairs), _STATES.get(completed.code, ServiceState.FAILED)
        pids = tuple(pid for key, text in pairs if key == "pid" and (pid := self._number(key, text)))
        incarnation = said.get("incarnation") or (f"pid {pids[0]}" if pids else "")
        mark = "\n".join(f"{key}={text}" for key, text in pairs if key.startswith("leadline-"))
        process = ProcessFacts(pid=pids[0] if pids else 0, start_id=incarnation, argv=())
        return ServiceFacts(
            state=state,
            process=None if state.at_rest else process,
            pids=pids,
            exit=self._exit(said) if state.at_rest else None,
            incarnation=incarnation,
            restarts=self._number("restarts", said.get("restarts", "")),
            trial=hashlib.sha256(mark.encode()).hexdigest() if mark else "absent",
            lines=_other_lines(completed),
        )

    def _exit(self, said: dict[str, str]) -> ExitFacts | None:
        """An exit code of 137 is no signal: whoever knows of one says so."""
        code, signal, oom = (said.get(key, "") for key in ("exit", "signal", "oom"))
        killed = self._number("signal", signal)
        if oom not in _TRUTH:
            raise self._nonsense("oom", oom)
        facts = ExitFacts(
            code=self._number("exit", code) if code and not killed else None,
            signal=killed or None,
            host_oom_kills=_TRUTH[oom],
            result="oom-kill" if _TRUTH[oom] else "",
        )
        return facts if facts != ExitFacts() else None

    def _number(self, key: str, text: str) -> int:
        """An empty text is 0."""
        if text and not (text.isascii() and text.isdigit()):
            raise self._nonsense(key, text)
        return int(text or "0")

    def _nonsense(self, key: str, text: str) -> HostError:
        shown = masked_text(text)[:60]
        return HostError(f"{_shown(self._site.status)} says {key}={shown!r}, which is no number: correct it")

    def log(self, cursor: str) -> Run:
        """`cursor` = bytes that we have."""
        have = cursor or "0"
        skips = any("{since}" in word for word in self._site.logs)
        words = (word.replace("{since}", have) for word in self._site.logs)
        return _sh(_LOGS, have, "0" if skips else have, *words, timeout_s=LOGS_S)

    def logged(self, completed: Completed) -> tuple[str, str]:
        """Nothing new where the logs command failed: there may be no log yet. A character that is not complete yet is
        left for the next time."""
        first, _, new = completed.stdout.partition(b"\n")
        have = int(first) if first.isdigit() else 0
        if completed.code != 0:
            return "", str(have)
        text, used = codecs.utf_8_decode(new, "replace", False)
        return text, str(have + used)

    def guard(self, terms: Terms) -> Guard | None:
        """None: commands that we do not know cannot be left behind on a host that we do not know."""
        return None

    def unlock(self) -> Sequence[Run]:
        """The original first; then the mark is forgotten."""
        return (
            msgspec.structs.replace(_marked(self._site, _WHO, timeout_s=LOOK_S), asked=True),
            Run(argv=self._site.give_back, timeout_s=CHANGE_S),
            _marked(self._site, _IF_STOPPED, *self._site.stop),
            _marked(self._site, _FORGET),
        )


def started(start: Sequence[str], launch: LaunchSpec) -> tuple[str, ...]:
    """The start command with a launch in it."""
    env = tuple(f"{name}={value}" for name, value in launch.env)
    folder = ("-C", launch.cwd) if launch.cwd else ()
    inside = () if "{env}" in start else env
    words = ("env", *folder, *inside, *launch.argv) if folder or inside else launch.argv
    if "{argv}" not in start and not any("{command}" in word for word in start):
        start = (*start, "--", "{argv}")
    spliced = {"{argv}": words, "{env}": env}
    command = shlex.join(words)
    return tuple(new for word in start for new in spliced.get(word, (word.replace("{command}", command),)))


def _words(launch: LaunchSpec) -> tuple[str, ...]:
    return (*(f"{name}={value}" for name, value in launch.env), *launch.argv)


def _unknown_files(launch: LaunchSpec) -> RefusedError:
    return RefusedError(
        "nothing is known of what your own scripts read, so nothing there can be changed for good. Put this command "
        f"line where the original is, then run your give_back command: {shlex.join(masked_words(_words(launch)))}"
    )


def _refuse_secrets(launch: LaunchSpec) -> None:
    words = _words(launch)
    if masked_words(words, references=False) != words or masked(launch).ours != launch.ours:
        raise InputError(
            "this launch holds a secret in clear, and your start command would be given it where anybody can read it: "
            f"{shlex.join(masked_words(words))}. Let the start command itself add the secret, and leave it out of "
            "service.command."
        )


def _sh(script: str, *words: str, stdin: str = "", timeout_s: float = CHANGE_S) -> Run:
    return Run(argv=("sh", "-c", script, "sh", *words), stdin=stdin, timeout_s=timeout_s)


def _marked(site: Site, script: str, *words: str, timeout_s: float = LOOK_S) -> Run:
    """A script that finds the mark's file in `$f`, and the words in "$@". The status command names the service."""
    name = "script-" + hashlib.sha256("\0".join(site.status).encode()).hexdigest()[:16]
    return _sh(script, site.home, name, *words, timeout_s=timeout_s)


def _said(stdout: bytes) -> list[tuple[str, str]]:
    matches = (_SAID.fullmatch(line.strip()) for line in stdout.splitlines())
    return [(m["key"].decode(), m["value"].decode(errors="replace").strip()) for m in matches if m]


def _other_lines(completed: Completed) -> tuple[str, ...]:
    """What else it says, the last of it."""
    lines = (line.strip() for line in (*completed.stdout.splitlines(), *completed.stderr.splitlines()))
    kept = [line.decode(errors="replace") for line in lines if line and not _SAID.fullmatch(line)]
    return tuple(masked_text(masked_words((line,))[0]) for line in kept[-MAX_LINES:])


def _shown(words: Sequence[str]) -> str:
    return f"the status command {shlex.join(masked_words(words))}"


target = ScriptTarget
