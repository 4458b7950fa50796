"""The program behind `support_docker.FakeDocker`: `support_docker_program.py HOME REAL-COMPOSE WORDS-OF-DOCKER...`"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

STOP_S = 10.0


def read(path: Path, default: Any) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return default


def write(path: Path, value: object) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(value))
    draft.replace(path)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{time.time_ns() % 10**9:09d}Z"


class Engine:
    """Containers: one file each, which their keepers write too."""

    def __init__(self, home: Path, real: str) -> None:
        self.home, self.real = home, real

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        with open(self.home / "lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def path(self, identity: str) -> Path:
        return self.home / "containers" / f"{identity}.json"

    def all(self) -> list[dict[str, Any]]:
        found = [read(p, None) for p in sorted((self.home / "containers").glob("[0-9a-f]*.json"))]
        return [f for f in found if f is not None]

    def get(self, identity: str) -> dict[str, Any]:
        found = [c for c in self.all() if c["Id"].startswith(identity)]
        if not found:
            sys.exit(f"Error: No such object: {identity}")
        return found[0]

    def state(self, identity: str, **changes: object) -> None:
        with self.lock():
            one = read(self.path(identity), None)
            if one is not None:
                one["State"].update(changes)
                if "restarts" in changes:
                    one["RestartCount"] = one["State"].pop("restarts")
                write(self.path(identity), one)

    def create(self, entry: dict[str, Any], labels: dict[str, str]) -> str:
        images = read(self.home / "images.json", {})
        image = images.get(entry["image"])
        if image is None:
            sys.exit(f"Error response from daemon: No such image: {entry['image']}")
        given, command = entry.get("entrypoint"), entry.get("command")
        entrypoint = given if given is not None else image["Config"]["Entrypoint"]
        if command is None:
            command = image["Config"]["Cmd"] if given is None else []
        words = [*entrypoint, *command]
        identity = hashlib.sha256(os.urandom(16)).hexdigest()
        env = [f"{k}={v}" for k, v in (entry.get("environment") or {}).items() if v is not None]
        one = {
            "Id": identity,
            "Created": _now(),
            "Path": words[0] if words else "",
            "Args": words[1:],
            "Image": image["Id"],
            "RestartCount": 0,
            "Config": {"Labels": labels, "Env": env},
            "HostConfig": {"RestartPolicy": {"Name": entry.get("restart", "no")}},
            "NetworkSettings": {"Networks": {}},
            "State": {"Status": "created", "Running": False, "Restarting": False, "OOMKilled": False, "Pid": 0}
            | {"ExitCode": 0, "Error": "", "StartedAt": "0001-01-01T00:00:00Z"},
        }
        write(self.path(identity), one)
        return identity

    def start(self, identity: str) -> None:
        one = self.get(identity)
        program = shutil.which(one["Path"])
        if program is None:
            why = f'OCI runtime create failed: exec: "{one["Path"]}": executable file not found in $PATH'
            self.state(identity, ExitCode=127, Error=why)
            sys.exit(f"Error response from daemon: {why}")
        keeper = [sys.executable, __file__, str(self.home), self.real, "keep", identity]
        if "INVOCATION_ID" in os.environ:  # as with the real daemon, a unit's end is not its containers' end
            keeper = ["systemd-run", "--quiet", "--collect", *keeper]
        with open(self.home / "keepers.log", "ab") as errors:
            none = subprocess.DEVNULL
            subprocess.Popen(keeper, stdin=none, stdout=none, stderr=errors, start_new_session=True, cwd="/")
        self.await_that(identity, lambda c: c["State"]["Status"] != "created")

    def await_that(self, identity: str, holds: Any) -> None:
        until = time.monotonic() + 30
        while (one := read(self.path(identity), None)) is not None and not holds(one):
            if time.monotonic() > until:
                sys.exit(f"container {identity} stays as it is")
            time.sleep(0.01)

    def keep(self, identity: str) -> None:
        """What runs a container: its words, again as its policy says."""
        one = self.get(identity)
        policy, restarts = one["HostConfig"]["RestartPolicy"]["Name"], 0
        env = dict(line.split("=", 1) for line in one["Config"]["Env"])
        halt = self.path(identity).with_suffix(".halt")
        while True:
            with open(self.path(identity).with_suffix(".log"), "a") as log:
                child = subprocess.Popen(
                    [one["Path"], *one["Args"]],
                    env={"PATH": os.environ["PATH"], **env},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    errors="replace",
                    start_new_session=True,
                )
                alive = {"Status": "running", "Running": True, "Restarting": False, "Pid": child.pid, "ExitCode": 0}
                self.state(identity, **alive, StartedAt=_now(), restarts=restarts)
                assert child.stdout is not None
                for line in child.stdout:
                    log.write(f"{_now()} {line.rstrip()}\n")
                    log.flush()
                code = child.wait()
            killed = code == -signal.SIGKILL and not halt.exists()
            ended = {"ExitCode": 128 - code if code < 0 else code, "OOMKilled": killed and "OUT_OF_MEMORY" in env}
            again = not halt.exists() and (policy in ("always", "unless-stopped") or (policy == "on-failure" and code))
            if not again:
                self.state(identity, Status="exited", Running=False, Restarting=False, Pid=0, **ended)
                return
            restarts += 1
            self.state(identity, Status="restarting", Running=True, Restarting=True, Pid=0, **ended)
            time.sleep(0.2)

    def end(self, identity: str, signum: int, patience_s: float) -> None:
        one = self.get(identity)
        if not one["State"]["Running"]:
            return
        self.path(one["Id"]).with_suffix(".halt").touch()
        until, gone = time.monotonic() + patience_s, 0
        while self.get(one["Id"])["State"]["Running"]:
            pid = self.get(one["Id"])["State"]["Pid"]
            if time.monotonic() > until:
                signum = signal.SIGKILL
            if time.monotonic() > until + STOP_S:
                sys.exit(f"container {identity} does not end")
            try:
                if pid:
                    os.killpg(pid, signum)
            except ProcessLookupError:
                gone += 1
            if gone > 50:  # its keeper is gone too: a power cut
                self.state(one["Id"], Status="exited", Running=False, Restarting=False, Pid=0)
            time.sleep(0.02)

    def remove(self, identity: str) -> None:
        self.end(identity, signal.SIGTERM, STOP_S)
        for suffix in (".json", ".log", ".halt"):
            self.path(identity).with_suffix(suffix).unlink(missing_ok=True)


def _flags(words: list[str], valued: str) -> tuple[dict[str, list[str]], list[str]]:
    """Options by name, and what is none. `valued` = those that take the next word."""
    given: dict[str, list[str]] = {}
    left: list[str] = []
    while words:
        word = words.pop(0)
        if word in valued.split():
            given.setdefault(word, []).append(words.pop(0))
        elif word.startswith("-"):
            given.setdefault(word, [])
        else:
            left.append(word)
    return given, left


def _docker(engine: Engine, words: list[str]) -> None:
    verbs = {"compose": _compose, "ps": _ps, "inspect": _inspect, "image": _image, "logs": _logs, "top": _top}
    verb, rest = words[0], words[1:]
    if verb in verbs:
        verbs[verb](engine, rest)
    elif verb in ("stop", "kill"):
        for identity in rest:
            engine.end(identity, *((signal.SIGTERM, STOP_S) if verb == "stop" else (signal.SIGKILL, 0)))
    else:
        sys.exit(f"docker: unknown command: docker {verb}")


def _ps(engine: Engine, rest: list[str]) -> None:
    given, _ = _flags(rest, "--filter")
    wanted = dict(f.removeprefix("label=").split("=", 1) for f in given["--filter"])
    for one in engine.all():
        if wanted.items() <= one["Config"]["Labels"].items():
            print(one["Id"])


def _inspect(engine: Engine, rest: list[str]) -> None:
    given, ids = _flags(rest, "-f")
    for identity in ids:
        print(_formatted(given["-f"][0], engine.get(identity)))


def _image(engine: Engine, rest: list[str]) -> None:
    images = read(engine.home / "images.json", {})
    if rest[-1] not in images:
        sys.exit(f"Error: No such image: {rest[-1]}")
    print(json.dumps([images[rest[-1]]]))


def _logs(engine: Engine, rest: list[str]) -> None:
    given, ids = _flags(rest, "--since")
    path = engine.path(engine.get(ids[0])["Id"]).with_suffix(".log")
    lines = path.read_text().splitlines() if path.exists() else []
    print("".join(f"{line}\n" for line in lines if line.split(" ")[0] >= given["--since"][0]), end="")


def _top(engine: Engine, rest: list[str]) -> None:
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    family = [engine.get(rest[0])["State"]["Pid"]]
    for pid in family:
        family += [child for child, parent in parents.items() if parent == pid]
    print("PID", *family, sep="\n")


def _formatted(template: str, one: dict[str, Any]) -> str:
    def value(found: re.Match[str]) -> str:
        at: Any = one
        for name in found[1].split("."):
            at = at[name]
        return str(at).lower() if isinstance(at, bool) else str(at)

    text = re.sub(r"\{\{\.([\w.]+)\}\}", value, re.sub(r"\{\{range.*?\{\{end\}\}", "", template))
    return text.replace("{{json .}}", json.dumps(one))


def _compose(engine: Engine, words: list[str]) -> None:
    before: list[str] = []
    while words[0] in ("-f", "-p"):
        before += [words.pop(0), words.pop(0)]
    verb, rest = words[0], words[1:]
    if verb == "config":
        _config(engine, before, rest)
        return
    given, services = _flags(rest, "-t --pull")
    service = services[0]
    document = json.loads(_resolved(engine, before, service))
    folder = os.path.dirname(before[before.index("-f") + 1])
    entry = json.loads(json.dumps(document["services"][service]).replace("$$", "$"))
    labels = {"project": document["name"], "service": service, "oneoff": "False", "project.working_dir": folder}
    labels = {f"com.docker.compose.{name}": text for name, text in labels.items()}
    mine = [c["Id"] for c in engine.all() if labels.items() <= c["Config"]["Labels"].items()]
    if verb == "ps":
        print("\n".join(mine))
    elif verb == "up":
        image = read(engine.home / "images.json", {}).get(entry["image"])
        made_of = hashlib.sha256(json.dumps([entry, image]).encode()).hexdigest()
        labels["com.docker.compose.config-hash"] = made_of
        old = [engine.get(i)["Config"]["Labels"]["com.docker.compose.config-hash"] for i in mine]
        fresh = old != [made_of] or "--force-recreate" in given
        for identity in mine if fresh else ():
            engine.remove(identity)
        identity = engine.create(entry, labels) if fresh else mine[0]
        if "--no-start" not in given and not engine.get(identity)["State"]["Running"]:
            engine.start(identity)
    elif verb in ("stop", "rm"):
        for identity in mine:
            engine.end(identity, signal.SIGTERM, STOP_S)
            if verb == "rm":
                engine.remove(identity)
    else:
        sys.exit(f"unknown docker command: compose {verb}")


def _resolved(engine: Engine, before: list[str], service: str) -> str:
    words = [sys.executable, __file__, str(engine.home), engine.real, "compose", *before]
    return subprocess.run(
        [*words, "config", "--format", "json", service], stdout=subprocess.PIPE, text=True, check=True
    ).stdout


def _config(engine: Engine, before: list[str], rest: list[str]) -> None:
    if engine.real:
        sys.stdout.flush()
        os.execv(engine.real, [engine.real, *before, "config", *rest])
    given, services = _flags(list(rest), "--format --hash")
    paths = [before[i + 1] for i, word in enumerate(before) if word == "-f"]
    document = merged(paths, raw="--no-interpolate" in given)
    if "-p" in before:
        document["name"] = before[before.index("-p") + 1]
    for service in (*services, *given.get("--hash", ())):
        if service not in document["services"]:
            sys.exit(f"no such service: {service}")
    if "--hash" in given:
        name = given["--hash"][0]
        print(name, hashlib.sha256(json.dumps(document["services"][name]).encode()).hexdigest())
    elif "--images" in given:
        print(document["services"][services[0]]["image"])
    else:
        print(json.dumps(document))


def merged(paths: Sequence[str], *, raw: bool = False) -> dict[str, Any]:
    """What `config` prints of these files, in small: services with words, environment, image, ports, restart."""
    from ruamel.yaml import YAML

    folder = Path(paths[0]).parent
    env = {**_env_file(folder / ".env", {}), **os.environ}
    services: dict[str, Any] = {}
    name = folder.name
    for path in paths:
        document = YAML(typ="safe", pure=True).load(Path(path).read_text()) or {}
        name = document.get("name", name)
        for service, entry in (document.get("services") or {}).items():
            entry = entry or {}
            new = entry if raw else _whole(entry, env, folder)
            old = services.setdefault(service, {} if raw else {"command": None, "entrypoint": None})
            both = {**old.get("environment", {}), **new.get("environment", {})} if not raw else {}
            services[service] = {**old, **new, **({"environment": both} if both else {})}
    return {"name": name if raw else interpolated(name, env), "services": services}


def _whole(entry: dict[str, Any], env: dict[str, str], folder: Path) -> dict[str, Any]:
    entry = _deep(entry, env)
    files = entry.pop("env_file", [])
    given: dict[str, str | None] = {}
    for path in [files] if isinstance(files, str) else files:
        given.update(_env_file(folder / path, env))
    own = entry.get("environment") or {}
    if isinstance(own, list):
        own = {line.partition("=")[0]: line.partition("=")[2] if "=" in line else env.get(line) for line in own}
    given.update({k: v if v is None else str(v).lower() if isinstance(v, bool) else str(v) for k, v in own.items()})
    out: dict[str, Any] = {**entry, **({"environment": given} if given else {})}
    for key in ("command", "entrypoint"):
        if isinstance(entry.get(key), str):
            out[key] = shlex.split(entry[key])
        if key in out and out[key] is not None:
            out[key] = [word.replace("$", "$$") for word in out[key]]
    if given:
        out["environment"] = {k: v if v is None else v.replace("$", "$$") for k, v in given.items()}
    ports = entry.get("ports")
    if ports:
        cut = [str(port).split(":") for port in ports]
        out["ports"] = [{"target": int(parts[-1]), "published": parts[-2]} for parts in cut]
    return out


def _deep(value: Any, env: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {k: _deep(v, env) for k, v in value.items()}
    if isinstance(value, list):
        return [_deep(v, env) for v in value]
    return interpolated(value, env) if isinstance(value, str) else value


def _env_file(path: Path, env: dict[str, str]) -> dict[str, str]:
    lines = path.read_text().splitlines() if path.exists() else []
    cut = [line.split("=", 1) for line in lines if "=" in line and not line.startswith("#")]
    return {name: interpolated(text.strip("'\""), env) for name, text in cut}


def interpolated(text: str, env: dict[str, str]) -> str:
    """`$$`, `$NAME`, `${NAME}`, `${NAME:-default}`, `${NAME:?message}`, nested."""
    out, at = "", 0
    while at < len(text):
        if text.startswith("$$", at):
            out, at = out + "$", at + 2
        elif text.startswith("${", at):
            depth, end = 1, at + 2
            while depth:
                depth += {"{": text[end - 1] == "$", "}": -1}.get(text[end], 0)
                end += 1
            m = re.fullmatch(r"(\w+)(?:(:?[-?+])(.*))?", text[at + 2 : end - 1], re.DOTALL)
            assert m is not None, text
            value = env.get(m[1])
            missing = value is None or (value == "" and (m[2] or "").startswith(":"))
            if missing and (m[2] or "").endswith("?"):
                sys.exit(f"required variable {m[1]} is missing a value: {m[3]}")
            default = interpolated(m[3], env) if (m[2] or "").endswith("-") else ""
            out, at = out + (default if missing else value or ""), end
        elif (m := re.compile(r"\$(\w+)").match(text, at)) is not None:
            out, at = out + env.get(m[1], ""), m.end()
        else:
            out, at = out + text[at], at + 1
    return out


def main(home: str, real: str, *words: str) -> None:
    engine = Engine(Path(home), real)
    if words[0] == "keep":
        engine.keep(words[1])
        return
    with open(engine.home / "calls", "a") as file:
        file.write(json.dumps(words) + "\n")
    _docker(engine, list(words))


if __name__ == "__main__":
    main(*sys.argv[1:])
