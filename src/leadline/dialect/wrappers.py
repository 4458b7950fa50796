"""Which word of a command starts the server, behind wrappers (`env`, `nice`, `conda run`) and containers.

Options of docker: https://docs.docker.com/reference/cli/docker/container/run/; of podman: podman-run(1).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from leadline.dialect.opaque import is_opaque

Starts = Callable[[Sequence[str], int], int]
"""How many words, from that index on, start the server (`python3 -m sglang.launch_server` = 3); 0 = they do not."""

SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh", "fish", "busybox"})
CONTAINERS = frozenset({"docker", "podman", "nerdctl"})
WRAPPERS = frozenset(
    {"env", "nice", "ionice", "taskset", "numactl", "chrt", "stdbuf", "setsid", "nohup", "prlimit", "sudo", "exec"}
    | {"timeout", "conda", "mamba", "micromamba", "uv", "poetry", "pixi", "tini", "dumb-init", "catchsegv", "nsys"}
    | {"command", "time", "systemd-run", "gosu", "mpirun", "trtllm-llmapi-launch", "doas", "systemd-inhibit"}
)
OTHER_USERS = frozenset({"sudo", "doas", "su", "runuser"})
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_GLOBAL_VALUES = frozenset({"--context", "-c", "-H", "--host", "--config", "-l", "--log-level", "--url", "--namespace"})
_SWITCHES = frozenset(
    {"--rm", "--init", "--detach", "--interactive", "--tty", "--privileged", "--read-only", "--publish-all", "--quiet"}
    | {"--no-healthcheck", "--replace", "--oom-kill-disable", "--sig-proxy", "--disable-content-trust", "--tls-verify"}
    | {"--rmi", "--no-hosts", "--no-hostname", "--read-only-tmpfs", "--env-host", "--http-proxy", "--use-api-socket"}
)
_SWITCH_LETTERS = "ditPq"


@dataclass(frozen=True, slots=True)
class Container:
    """Places in the command: `verb` (run, exec), `image` (or the name of the container)."""

    at: int
    verb: int
    image: int
    entrypoint: str | None


@dataclass(frozen=True, slots=True)
class Located:
    """What the command comes to at `at`: the server (`count` words start it), or a shell with its `script`.

    A shell without a script reads a file, or its input.
    """

    at: int
    count: int = 0
    shell: bool = False
    script: int | None = None
    container: Container | None = None


def base_name(word: str) -> str:
    return word.rsplit("/", 1)[-1].rsplit("\\", 1)[-1]


def is_assignment(word: str) -> bool:
    return _ASSIGNMENT.fullmatch(word) is not None


def locate(words: Sequence[str], starts: Starts, images: bool = True) -> Located | None:
    """`images`: an image with nothing or options behind it is taken for the server that it starts by itself."""
    for at in range(len(words)):
        if count := starts(words, at):
            return Located(at, count)
        name = base_name(words[at])
        if name in SHELLS:
            return _shell(words, at)
        if name in CONTAINERS:
            return _contained(words, at, starts, images)
        # `$PREFIX` may be `env A=b`, and `A=b serve` is what a shell makes of it
        if base_name(words[0]) not in WRAPPERS and not is_opaque(words[0]) and not is_assignment(words[0]):
            return None
    return None


def container(words: Sequence[str], at: int) -> Container | None:
    """The `docker run` or `docker exec` that begins there; None when it is another command of docker's."""
    verb = at + 1
    while verb < len(words) and (words[verb].startswith("-") or words[verb] == "container"):
        verb += 2 if words[verb] in _GLOBAL_VALUES else 1
    if verb >= len(words) or words[verb] not in ("run", "exec"):
        return None
    entrypoint = None
    image = verb + 1
    for i, end in _options(words, verb + 1):
        if words[i].startswith("--entrypoint"):
            entrypoint = words[end - 1].removeprefix("--entrypoint=")
        image = end
    if words[image : image + 1] == ["--"] or words[image : image + 1] == ("--",):
        image += 1
    return Container(at, verb, image, entrypoint or None) if image < len(words) else None


def environment(words: Sequence[str], found: Located, env: Mapping[str, str]) -> dict[str, str]:
    """What is known of the environment behind the wrappers. A container has only what it is given."""
    box = found.container
    seen = dict(env)
    if box is not None:
        seen.update(_assigned(words, 0, box.at))
        outside, seen = seen, {}
        for i, prefix in _given(words, box):
            name, eq, text = words[i].removeprefix(prefix).partition("=")
            if eq or name in outside:
                seen[name] = text if eq else outside[name]
    seen.update(_assigned(words, 0 if box is None else box.image, found.at))
    return {n: v for n, v in seen.items() if not is_opaque(v) and not is_opaque(n)}


def assigned(words: Sequence[str], found: Located, name: str, text: str) -> tuple[str, ...] | None:
    """The command with a variable set by its wrappers; None when it must be set outside of them."""
    box = found.container
    out = list(words)
    new = f"{name}={text}"
    done = False
    start = 0 if box is None else box.image
    for i in _assignments(words, start, found.at):
        if words[i].startswith(f"{name}="):
            out[i], done = new, True
    if done or box is None:
        return tuple(out) if done else None
    for i, prefix in _given(words, box):
        if words[i].removeprefix(prefix).partition("=")[0] == name:
            out[i], done = prefix + new, True
    if not done:
        out[box.verb + 1 : box.verb + 1] = ["-e", new]
    return tuple(out)


def _shell(words: Sequence[str], at: int) -> Located:
    i = at + 2 if base_name(words[at]) == "busybox" else at + 1
    script = False
    while i < len(words) and words[i][:1] in "-+" and words[i] not in ("-", "--", ""):
        word = words[i]
        letters = "" if word.startswith("--") else word[1:]
        script = script or ("c" in letters and word[0] == "-")
        i += 2 if "o" in letters or "O" in letters or word in ("--rcfile", "--init-file") else 1
    if words[i : i + 1] in (["--"], ("--",)):
        i += 1
    runs = script and i < len(words) and base_name(words[at]) != "fish"
    return Located(at, shell=True, script=i if runs else None)


def _contained(words: Sequence[str], at: int, starts: Starts, images: bool) -> Located | None:
    box = container(words, at)
    if box is None:
        return None
    shift = box.image + 1 if box.entrypoint is None else box.image
    behind = tuple(words[box.image + 1 :])
    inner = behind if box.entrypoint is None else (box.entrypoint, *behind)
    found = locate(inner, starts, images)
    if found is None:  # a word before the image may be a variable that holds options
        starting = (Located(i, n) for i in range(len(inner)) if is_opaque(words[box.image]) and (n := starts(inner, i)))
        found = next(starting, None)
    if found is not None:
        script = None if found.script is None else found.script + shift
        return replace(found, at=found.at + shift, script=script, container=box)
    own = box.entrypoint is None and words[box.verb] == "run" and (not behind or behind[0].startswith("-"))
    return Located(box.image, 1, container=box) if own and images else None


def _options(words: Sequence[str], at: int) -> Iterator[tuple[int, int]]:
    """The options of docker from there on: where each begins and ends."""
    while at < len(words) and words[at].startswith("-") and words[at] not in ("-", "--"):
        word = words[at]
        if word.startswith("--"):
            alone = "=" in word or word in _SWITCHES
        else:
            valued = word[1:].lstrip(_SWITCH_LETTERS)
            alone = len(valued) != 1
        yield at, at + (1 if alone else 2)
        at += 1 if alone else 2


def _given(words: Sequence[str], box: Container) -> Iterator[tuple[int, str]]:
    """The words of docker's options that name a variable, and what stands before the name."""
    for i, end in _options(words, box.verb + 1):
        if words[i] in ("-e", "--env") and end == i + 2 and end <= len(words):
            yield i + 1, ""
        elif words[i].startswith("--env="):
            yield i, "--env="
        elif words[i].startswith("-e") and len(words[i]) > 2:
            yield i, "-e"


def _assignments(words: Sequence[str], start: int, end: int) -> Iterator[int]:
    """The words `A=b` behind an `env`, or at the very beginning, as in a shell."""
    leading = start == 0 and is_assignment(words[0])
    first = 0 if leading else next((i for i in range(start, end) if base_name(words[i]) == "env"), end)
    return (i for i in range(first, end) if _ASSIGNMENT.fullmatch(words[i]))


def _assigned(words: Sequence[str], start: int, end: int) -> dict[str, str]:
    return {m[1]: m[2] for i in _assignments(words, start, end) if (m := _ASSIGNMENT.fullmatch(words[i]))}
