"""Where a compose service is, and the words of sh that every script of ours about it begins with."""

from __future__ import annotations

import hashlib
import posixpath
import re
import shlex
from collections.abc import Sequence

import msgspec

from leadline.errors import InputError
from leadline.launch import Run
from leadline.ports import Site

ROLLOUT = "compose.leadline.yaml"
MARK = "@leadline"
_PLAIN = re.compile(r"/[\w./@+-]+", re.ASCII)
_ODD = re.compile(r"[^A-Za-z0-9_.-]")

_ROW = """\
row {{.Id}} {{.State.Running}} {{.State.Pid}} {{range .NetworkSettings.Networks}}{{.IPAddress}} {{end}}
{{json .}}"""
"""Of each container a line for the shell, and one for us."""

_HEAD = """\
service={service}
home={home}
rollout={rollout}
cd {folder} || exit 1
compose() {{ if [ -e "$rollout" ]; then set -- -f "$rollout" "$@"; fi; {compose} "$@"; }}
ours() {{
  ours_ids=$({engine} ps -aq --no-trunc --filter label=com.docker.compose.service={service} {labels}) || return
  if [ -n "$ours_ids" ]; then printf '%s\\n' "$ours_ids"; else {compose} ps -aq "$service" 2>/dev/null; fi
}}
inspect() {{ if [ $# -gt 0 ]; then {engine} inspect -f {row} "$@"; fi; }}
inspect_ours() {{
  for try in 1 2 3 4 5; do
    ids=$(ours) && inspect $ids 2>/dev/null && return
    sleep 0.2
  done
  ids=$(ours) && inspect $ids
}}
say() {{ printf '\\n{mark} %s %s\\n' "$1" "$2"; }}
ask() {{ about=$1; shift; found=$("$@"); say "$about" $?; printf '%s\\n' "$found"; }}
digests() {{
  for path in {files} "$rollout" {folder}/.env; do
    if [ -e "$path" ]; then sum=$(sha256sum <"$path") || sum=unreadable; else sum=absent; fi
    say "digest:${{sum%% *}}" "$path"
  done
  if [ -e "$home/override.yaml" ]; then sum=$(sha256sum <"$home/override.yaml"); else sum=absent; fi
  say trial "${{sum%% *}}"
}}
"""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """`home` holds what is ours on the host, and outlives a boot; `key` names it in units of systemd."""

    files: tuple[str, ...]
    service: str
    project: str
    program: tuple[str, ...]
    sudo: bool
    home: str
    key: str

    @property
    def folder(self) -> str:
        """What compose calls the project's folder."""
        return posixpath.dirname(self.files[0])

    @property
    def rollout(self) -> str:
        return posixpath.join(self.folder, ROLLOUT)

    @property
    def engine(self) -> tuple[str, ...]:
        """The words that reach the containers themselves: `docker`, or `docker --context NAME`."""
        further = self.program[1:-1] if self.program[-1] == "compose" else ()
        return (self.program[0].removesuffix("-compose"), *further)

    @property
    def words(self) -> tuple[str, ...]:
        """The command up to what it is to do, as its operator would write it."""
        named = ("-p", self.project) if self.project else ()
        files = tuple(word for path in self.files for word in ("-f", path))
        return (*self.program, *named, *files)

    def script(self, body: str) -> str:
        """A whole script for `sh -s`: read to its end before any of it runs, and nothing in it reads our input."""
        return f'main() {{\n{self.head()}{body.strip()}\n}}\nmain "$@" </dev/null\n'

    def head(self) -> str:
        labels = [("working_dir", self.folder)]
        filters = [f"--filter label=com.docker.compose.project.{name}={shlex.quote(value)}" for name, value in labels]
        if self.project:
            filters.append(f"--filter label=com.docker.compose.project={shlex.quote(self.project)}")
        return _HEAD.format(
            service=shlex.quote(self.service),
            home=shlex.quote(self.home),
            rollout=shlex.quote(self.rollout if self.rollout not in self.files else "/nonexistent"),
            folder=shlex.quote(self.folder),
            compose=shlex.join(self.words),
            engine=shlex.join(self.engine),
            row=shlex.quote(_ROW),
            labels=" ".join(filters),
            files=shlex.join(self.files),
            mark=MARK,
        )

    def run(self, what: str, body: str, *args: str, timeout_s: float, asked: bool = False) -> Run:
        """`what` and `args` are seen where the Step is printed; the script is what is run."""
        argv = ("sh", "-s", "--", what, self.service, *args)
        return Run(argv=argv, stdin=self.script(body), timeout_s=timeout_s, sudo=self.sudo, asked=asked)


def place_of(site: Site) -> Place:
    """Raises InputError for a site that does not say where its service is."""
    if not site.compose_files or not site.compose_service:
        raise InputError("a compose service needs the paths of its compose files and its name in them")
    relative = [path for path in site.compose_files if not path.startswith("/")]
    if relative or not site.compose_program:
        raise InputError(
            f"compose files are given by whole paths, in the order of docker's -f, not {', '.join(relative)}: the host "
            f"gives the service back from another folder than yours"
        )
    files = tuple(map(posixpath.normpath, site.compose_files))
    project = site.compose_project or posixpath.basename(posixpath.dirname(files[0]))
    mark = hashlib.sha256(shlex.join((*files, site.compose_project, site.compose_service)).encode()).hexdigest()[:6]
    key = f"{_ODD.sub('-', project)}-{_ODD.sub('-', site.compose_service)}-{mark}"
    home = site.home.rstrip("/") or f"/var/lib/leadline/compose-{key}"
    if not _PLAIN.fullmatch(home):
        raise InputError(f"{home!r} cannot hold the way back: a whole path of letters, digits and ./_@+- is needed")
    return Place(
        files=files,
        service=site.compose_service,
        project=site.compose_project,
        program=tuple(site.compose_program),
        sudo=site.sudo,
        home=home,
        key=key,
    )


def by_hand(place: Place) -> Sequence[str]:
    """What gives the service back without Leadline, in words of a shell."""
    up = (*place.words, "up", "-d", "--no-deps", "--force-recreate", place.service)
    return (shlex.join(("rm", "-f", f"{place.home}/override.yaml")), shlex.join(up))
