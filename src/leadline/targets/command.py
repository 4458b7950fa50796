"""A plain command as the service: ours for the length of a trial; a launch script when it is rolled out."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from leadline.errors import InputError, RefusedError
from leadline.launch import LaunchSpec, Put, Remove, Run, Start, Step, Stop, masked
from leadline.masking import masked_words
from leadline.ports import Completed, Observed, Service, Site

ABSENT = "absent"
KEPT = ".leadline-previous"
_SHELL_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_MASK = re.compile(r"<secret:([^>]+)>")
_LOOK_S = 30.0


class CommandTarget:
    """ports.Target for a command line: `launch`, `script` and `grace_s` of its site. The script that a rollout replaces
    is kept beside it under a name that ends in KEPT."""

    name = "command"
    guarantee = (
        "disconnect revert: a supervisor ends the server's whole process group when our connection closes, also when "
        "Leadline is killed; there was no service running before, so nothing is started afterwards"
    )

    service: Service | None = None

    def __init__(self, site: Site) -> None:
        self._launch = site.launch
        self._script = site.script
        self._kept = site.script + KEPT
        self._grace_s = site.grace_s

    def observe(self) -> Sequence[Run]:
        """For the script and the kept one: its digest, and whether there is a file at all."""
        looks = (("sha256sum", "--"), ("test", "-e"))
        return [Run(argv=(*look, path), timeout_s=_LOOK_S) for path in (self._script, self._kept) for look in looks]

    def interpret(self, completed: Sequence[Completed]) -> Observed:
        """Raises InputError for a file that is there but cannot be read."""
        digests = {c.argv[-1]: c for c in completed if c.argv[0] == "sha256sum"}
        there = {c.argv[-1] for c in completed if c.argv[0] == "test" and c.code == 0}
        files: dict[str, str] = {}
        for path, answer in digests.items():
            if answer.code == 0:
                files[path] = answer.stdout.lstrip(b"\\")[:64].decode("ascii", errors="replace")
            elif path in there:
                why = answer.stderr.decode(errors="replace").strip()
                raise InputError(f"cannot read the launch script {path} ({why}); make it readable for this user")
            else:
                files[path] = ABSENT
        return Observed(launch=self._launch, running=False, files=files)

    def plan(self, launch: LaunchSpec, observed: Observed, log: str) -> Sequence[Step]:
        return (Start(launch=launch, log=log, grace_s=self._grace_s),)

    def confirm(self, launch: LaunchSpec, answers: Sequence[Completed]) -> None:
        """No Step of ours asks."""

    def restore(self, observed: Observed) -> Sequence[Step]:
        return (Stop(grace_s=self._grace_s),)

    def rollout(self, launch: LaunchSpec, observed: Observed, present: str, note: str) -> Sequence[Step]:
        """Write the launch script. `note` (when, which setting, which campaign) goes into its header.

        The script that was there is kept by a hard link, which fails when one is kept already. Raises InputError for a
        launch that /bin/sh cannot start.
        """
        keep = Run(argv=("ln", "-P", "--", self._script, self._kept), timeout_s=_LOOK_S)
        by_hand = shlex.join(("rm", self._script) if present == ABSENT else ("mv", self._kept, self._script))
        put = Put(path=self._script, content=script(launch, note, by_hand), mode=0o755, expect=present)
        return (put,) if present == ABSENT else (keep, put)

    def patch(self, launch: LaunchSpec, observed: Observed) -> str:
        raise RefusedError(
            "the command stands in campaign.toml alone, so there is no file of yours to patch; `leadline plan` shows "
            "the words that change, and `leadline apply` writes a launch script"
        )

    def rollout_path(self) -> str:
        return self._script

    def undo(self, observed: Observed, written: str, previous: str) -> Sequence[Step]:
        """By what is at the two paths now. For a moment there may be no script; one that somebody puts there then is
        not overwritten."""
        now, kept = (observed.files.get(path, ABSENT) for path in (self._script, self._kept))
        drop = Remove(path=self._script, expect=written)
        link = Run(argv=("ln", "-P", "--", self._kept, self._script), timeout_s=_LOOK_S)
        forget = Remove(path=self._kept, expect=previous)
        ways: dict[str, tuple[Step, ...]] = {}
        if previous == ABSENT:
            ways = {ABSENT: (), written: (drop,)}
        elif kept == previous:
            ways = {written: (drop, link, forget), ABSENT: (link, forget), previous: (forget,)}
        elif kept == ABSENT:
            ways = {previous: ()}
        if now not in ways:
            raise RefusedError(
                f"somebody else changed {self._script} (now {now[:12]}, written {written[:12]}) or {self._kept} (now "
                f"{kept[:12]}, was {previous[:12]}). Nothing was changed; look at both and put the right one in place."
            )
        return ways[now]


def script(launch: LaunchSpec, note: str, by_hand: str) -> str:
    """An executable for /bin/sh that becomes the server. Holds no secret: those are taken from its environment.

    Raises InputError when a variable's name is not one that a shell can export.
    """
    wrong = [name for name, _ in launch.env if not _SHELL_NAME.fullmatch(name)]
    if wrong:
        raise InputError(f"a shell script cannot export {', '.join(map(repr, wrong))}; rename it in service.env")
    shown = masked(launch)
    if shown.ours != launch.ours:
        raise InputError(
            "the configuration file that this setting changes holds a secret, which a launch script must not. Give the "
            "secret by the command line or the environment, then apply again."
        )
    taken = {name for name, _ in launch.env}
    secrets = [name for name, value in shown.env if _MASK.search(value)]
    words: list[str] = []
    for word in masked_words(launch.argv, references=False):
        hidden = _MASK.search(word)
        if hidden and word[hidden.end() :]:
            raise InputError(
                "a script in the command holds a secret in clear, which a launch script must not: let it read the "
                "secret from a file or from a variable, then apply again"
            )
        if hidden:
            variable = _free_name(hidden[1], taken)
            taken.add(variable)
            secrets.append(variable)
            words.append((shlex.quote(word[: hidden.start()]) if hidden.start() else "") + f'"${variable}"')
        else:
            words.append(shlex.quote(word))
    lines = [
        "#!/bin/sh",
        "# Written by `leadline apply`. Once it is edited, `leadline undo` no longer replaces it.",
        *(f"# {line}" for line in note.splitlines()),
        "# Undo: leadline undo CAMPAIGN",
        *(f"# {line}" for line in f"By hand: {by_hand}".splitlines()),
        *(f': "${{{name}:?is a secret and not written here: set it in the environment}}"' for name in secrets),
        *(f"export {n}" if n in secrets else f"export {n}={shlex.quote(v)}" for n, v in shown.env),
        *(f"printf %s {shlex.quote(f.content)} > {shlex.quote(f.path)} || exit 1" for f in launch.ours),
        *([f"cd {shlex.quote(_plain(launch.cwd))} || exit 1"] if launch.cwd else []),
        f"exec {' '.join(words)}",
    ]
    return "\n".join(lines) + "\n"


def _free_name(flag: str, taken: set[str]) -> str:
    """A variable for the secret of a flag: API_KEY, then API_KEY_2, ..."""
    name = re.sub(r"\W", "_", flag).upper()
    return next(n for n in (name, *(f"{name}_{i}" for i in range(2, len(taken) + 3))) if n not in taken)


def _plain(folder: str) -> str:
    """A folder that `cd` takes for neither an option, nor the previous folder, nor one to look for in CDPATH."""
    return folder if folder.startswith("/") else f"./{folder}"


target = CommandTarget
