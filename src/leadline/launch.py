"""How a server is started, and the printable Steps that a Target makes of it."""

from __future__ import annotations

import re
import shlex

import msgspec

_SECRET_NAME = re.compile(r"KEY|SECRET|PASSW|PASSPHRASE|CREDENTIAL|TOKEN(?!S|IZ)", re.IGNORECASE)
_SECRET_FLAG = re.compile(
    r"--(?P<name>(?:[a-z0-9]+[-_])*(?:api[-_]?key|token|secret|password))(?P<value>=.*)?", re.DOTALL
)
_NAMED = r"(?P<name>(?:[a-z0-9]+[-_])*(?:api[-_]?key|token|secret|password))"
_GAP = r"(?:[ \t]|\\\n)+"
_TEXT = r"""(?!\\\n|<secret:)(?:\\"(?:(?!\\").)*\\"|"(?:[^"\\]|\\.)*"|'[^']*'|\\[^"\n]|[^\s'"\\;&|<>(){}])+"""
_IN_SCRIPT = tuple(
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        rf"(?P<head>(?P<quote>[\"'])--{_NAMED}=)(?!<secret:)(?:(?!(?P=quote)).)+",
        rf"(?P<head>--{_NAMED}\\?[\"']?(?:=|{_GAP}(?!--)))(?:{_TEXT})(?:{_GAP}(?!-){_TEXT})*",
        rf"(?P<head>(?:-e|--env)(?:=|{_GAP})?(?P<quote>[\"'])(?P<name>[A-Za-z_]\w*)=)(?!<secret:)(?:(?!(?P=quote)).)+",
        rf"(?P<head>(?:(?<![\w-])|(?<=\s-e))(?P<name>[A-Za-z_]\w*)\+?=){_TEXT}",
        r"(?P<head>\$\{(?P<name>[A-Za-z_]\w*):?[-=?+])(?!<secret:)[^}]+",
        rf"(?P<head>(?P<quote>\\?[\"']){_NAMED}(?P=quote)\s*:\s*(?P=quote))(?!<secret:)(?:(?!(?P=quote)).)+",
        r"(?i:(?P<head>(?<![\w-])(?P<name>authorization|(?:[a-z]+-)*(?:api-key|token))[ \t]*:[ \t]*))"
        r"(?![ \t]|<secret:)[^'\"\n\\]+",
        r"(?P<head>(?<!\w)(?P<name>[a-z]{2,9})://[^\s/@:]*:)(?!<secret:)[^\s/@]+(?=@)",
    )
)
_SET = re.compile(r"(?P<head>(?:-e|--env=)?(?P<name>[A-Za-z_]\w*)=)(?P<value>.*)", re.DOTALL)
_SCRIPT_FOLLOWS = re.compile(r"-[a-z]*c[a-z]*")
_SECRET_KEY = re.compile(
    rf"(?P<head>^[ \t-]*[\"']?{_NAMED}[\"']?[ \t]*:[ \t]+)\S.*$",
    re.IGNORECASE | re.MULTILINE,
)


class LaunchFile(msgspec.Struct, frozen=True):
    """A configuration file that a launch names, and its content."""

    path: str
    content: str


class LaunchSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What to execute: argv with the program first; `env` holds only what we add; `cwd` None = the host's default.

    `files` are the configuration files that argv names. Those under the folder `scratch` are ours: they are written
    before the launch, under names made from their content. All others are the operator's, and only read.
    As text it is a command line without secrets; `argv` and `env` hold them in clear.
    """

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    cwd: str | None = None
    files: tuple[LaunchFile, ...] = ()
    scratch: str = ""

    @property
    def ours(self) -> tuple[LaunchFile, ...]:
        """The files that must be written before the launch."""
        return tuple(f for f in self.files if self.scratch and f.path.startswith(self.scratch.rstrip("/") + "/"))

    def __str__(self) -> str:
        shown = masked(self)
        return " ".join([*(f"{k}={shlex.quote(v)}" for k, v in shown.env), shlex.join(shown.argv)])


def masked(launch: LaunchSpec) -> LaunchSpec:
    """The launch with `<secret:NAME>` for each value that looks like a secret, for printing and storing.

    Secret are: the value of an environment variable with KEY, TOKEN, SECRET, PASSWORD or the like in its name; the
    words after `--api-key`, `--hf-token` and the like up to the next flag (vLLM takes several keys). Judged by name
    alone, so a secret under an innocent name stays. In files, the value of a key with such a name. May be repeated.
    """
    files = tuple(LaunchFile(f.path, _SECRET_KEY.sub(r"\g<head><secret:\g<name>>", f.content)) for f in launch.files)
    env = tuple((name, f"<secret:{name}>" if _SECRET_NAME.search(name) else value) for name, value in launch.env)
    argv: list[str] = []
    hiding = ""
    for i, word in enumerate(launch.argv):
        flag = _SECRET_FLAG.fullmatch(word)
        just_after = i > 0 and hiding != "" and argv[-1].startswith("--")
        if hiding and (just_after or not word.startswith("-")):
            argv.append(f"<secret:{hiding}>")
        elif flag and flag["value"] is not None:
            argv.append(f"--{flag['name']}=<secret:{flag['name']}>")
            hiding = ""
        else:
            argv.append(_masked_word(word, launch.argv[i - 1] if i else ""))
            hiding = flag["name"] if flag else ""
    return msgspec.structs.replace(launch, argv=tuple(argv), env=env, files=files)


def _masked_word(word: str, before: str) -> str:
    """A word that is a script, or sets a variable (`env HF_TOKEN=...`), without the secrets in it.

    In a script rather too much is hidden than too little.
    """
    whole = _SET.fullmatch(word)
    if whole and _SECRET_NAME.search(whole["name"]) and not _SCRIPT_FOLLOWS.fullmatch(before):
        return f"{whole['head']}<secret:{whole['name']}>"
    for pattern in _IN_SCRIPT:
        word = pattern.sub(_hidden, word)
    return _SECRET_KEY.sub(r"\g<head><secret:\g<name>>", word)


def _hidden(found: re.Match[str]) -> str:
    name = found["name"]
    secret = _SECRET_NAME.search(name) or name.lower() == "authorization" or "://" in found["head"]
    return f"{found['head']}<secret:{name}>" if secret else found[0]


class Run(msgspec.Struct, frozen=True, kw_only=True, tag="run"):
    """Execute a command on the host and wait for it."""

    argv: tuple[str, ...]
    timeout_s: float
    sudo: bool = False

    def __str__(self) -> str:
        return f"run     {'sudo -n ' if self.sudo else ''}{shlex.join(self.argv)}"


class Put(msgspec.Struct, frozen=True, kw_only=True, tag="put"):
    """Write a whole file atomically. `expect` is the SHA-256 that the present file must have, or "absent".

    An `expect` that does not hold means that somebody else changed it: refuse, never overwrite.
    """

    path: str
    content: str
    mode: int
    expect: str
    sudo: bool = False

    def __str__(self) -> str:
        return f"put     {self.path} (mode {self.mode:04o}, {len(self.content.encode())} bytes, was {self.expect[:12]})"


class Remove(msgspec.Struct, frozen=True, kw_only=True, tag="remove"):
    """Remove a file that must still have the SHA-256 `expect`."""

    path: str
    expect: str
    sudo: bool = False

    def __str__(self) -> str:
        return f"remove  {self.path} (was {self.expect[:12]})"


class Start(msgspec.Struct, frozen=True, kw_only=True, tag="start"):
    """Start a server of our own under the supervisor, which ends it when our connection closes."""

    launch: LaunchSpec
    log: str
    grace_s: float = 10.0

    def __str__(self) -> str:
        written = "".join(f" (writes {f.path})" for f in self.launch.ours)
        return f"start   {self.launch}{written}"


class Stop(msgspec.Struct, frozen=True, kw_only=True, tag="stop"):
    """End what our Start began: its whole process group, nothing else."""

    grace_s: float = 10.0

    def __str__(self) -> str:
        return f"stop    the server that we started (SIGTERM, SIGKILL after {self.grace_s:g} s)"


Step = Run | Put | Remove | Start | Stop
