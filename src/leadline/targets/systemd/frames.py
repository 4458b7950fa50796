"""What `observe.sh` prints, read: a unit as systemd has loaded it, its files' texts, what specifiers stand for."""

from __future__ import annotations

import base64
import binascii
import json
import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence

import msgspec

from leadline.errors import HostError, InputError
from leadline.ports import Completed
from leadline.targets.systemd.place import ABSENT, Place

_ARCHITECTURE = {"x86_64": "x86-64", "aarch64": "arm64", "i686": "x86", "ppc64le": "ppc64-le", "armv7l": "arm"}


class Frames(msgspec.Struct, frozen=True, kw_only=True):
    """`texts` = unit file and drop-ins in the order in which they hold, ours of a trial excluded; `environment_files` =
    their texts; `trial` = ours, or None. `exec` = the words of each ExecStart= as systemd has them, variables not
    replaced. `before` = what a guard of ours noted of the service before its trial."""

    show: Mapping[str, str]
    texts: Mapping[str, str]
    environment_files: Mapping[str, str]
    digests: Mapping[str, str]
    exec: tuple[tuple[str, ...], ...] = ()
    cmdline: tuple[str, ...] = ()
    trial: str | None = None
    begun: bool = False
    undoing: bool = False
    owner: Mapping[str, str] = {}
    before: Mapping[str, str] = {}
    specifiers: Mapping[str, str] = {}

    @property
    def running(self) -> bool:
        """Whether it runs or is meant to, before any trial of ours."""
        state = self.before.get("ActiveState") if self.begun or self.trial is not None else None
        return (state or self.show.get("ActiveState", "")) in ("active", "activating", "reloading")

    def with_trial(self, place: Place) -> Mapping[str, str]:
        """The texts with our drop-in, as they are in force."""
        return {**self.texts, place.trial: self.trial} if self.trial is not None else self.texts

    def without(self, path: str) -> Mapping[str, str]:
        return {p: text for p, text in self.texts.items() if p != path}


def read(place: Place, completed: Completed) -> Frames:
    """Raises HostError when the host has no systemd or its answer makes no sense, InputError for a unit that it does
    not have."""
    found = _frames(place, completed)
    show: dict[str, list[str]] = {}
    for line in found.get(("show", ""), "").splitlines():
        key, _, value = line.partition("=")
        show.setdefault(key, []).append(value)
    flat = {key: values[-1] for key, values in show.items()}
    _refuse(place, flat)
    texts = {name: text for (kind, name), text in found.items() if kind == "text"}
    named = [flat.get("FragmentPath", ""), flat.get("SourcePath", ""), *flat.get("DropInPaths", "").split(" ")]
    definition = [p for p in dict.fromkeys(named) if p in texts]
    digests = digests_of(found.get(("digests", ""), ""))
    patterns = [value.rsplit(" (ignore_errors=", 1)[0] for value in show.get("EnvironmentFiles", [])]
    environment = {p: t for p, t in texts.items() if p not in definition and _matches(p, patterns)}
    unreadable = [
        p for p, sum in digests.items() if sum == "unreadable" or (sum != ABSENT and p in named and p not in texts)
    ]
    if unreadable:
        raise InputError(
            f"{', '.join(unreadable)} of {place.unit} cannot be read by this user: set service.sudo, or log in as root"
        )
    return Frames(
        show=flat,
        texts={p: texts[p] for p in definition},
        environment_files=environment,
        digests=digests,
        exec=_exec(found.get(("exec", ""), "")),
        cmdline=_cmdline(found),
        trial=found.get(("trial", place.trial)),
        begun=("begun", "") in found,
        undoing=("undoing", "") in found,
        owner=_pairs(found.get(("owner", ""), "")),
        before=_pairs(found.get(("original", ""), "")),
        specifiers=_specifiers(place, flat, _pairs(found.get(("facts", ""), ""))),
    )


def digests_of(text: str) -> dict[str, str]:
    """Lines "DIGEST PATH", as path to digest."""
    pairs = (line.partition(" ") for line in text.splitlines())
    return {path: digest for digest, _, path in pairs}


def _frames(place: Place, completed: Completed) -> dict[tuple[str, str], str]:
    if completed.code != 0:
        why = completed.stderr.decode(errors="replace").strip() or f"exit code {completed.code}"
        raise HostError(
            f"cannot look at {place.unit}: {why}. Is this the host where it runs, with systemd, and may this user look?"
        )
    out: dict[tuple[str, str], str] = {}
    try:
        for line in completed.stdout.decode("ascii").splitlines():
            kind, name, content = line.split(" ", 2)
            text = base64.b64decode(content, validate=True).decode(errors="surrogateescape")
            out[kind, base64.b64decode(name, validate=True).decode(errors="surrogateescape")] = text
    except (ValueError, binascii.Error) as error:
        raise HostError(f"the answer of the host about {place.unit} makes no sense: {error}") from error
    return out


def _refuse(place: Place, show: Mapping[str, str]) -> None:
    unit, why = place.unit, show.get("LoadError", "").strip('" ')
    match show.get("LoadState"):
        case "not-found":
            raise InputError(f"there is no unit {unit} on this host; `systemctl list-units --type=service` shows them")
        case "masked":
            raise InputError(f"{unit} is masked, so it cannot be started: `systemctl unmask` it first")
        case "loaded":
            pass
        case state if show.get("FragmentPath"):
            raise InputError(f"systemd cannot use {unit} as it is ({state}: {why}); see `systemctl status {unit}`")
        case _:
            raise HostError(f"systemd says nothing of {unit} that we understand")
    if show.get("Id", unit) != unit:
        raise InputError(f"{unit} is another name of {show['Id']}: name that one")
    if show.get("Transient") == "yes":
        raise InputError(f"{unit} was made by systemd-run and is gone once it stops, so it could not be given back")
    if "yes" in (show.get("RefuseManualStart"), show.get("RefuseManualStop")):
        raise InputError(f"{unit} refuses to be started or stopped by hand (RefuseManualStart=, RefuseManualStop=)")


def _matches(path: str, patterns: Sequence[str]) -> bool:
    for pattern in patterns:
        parts = re.split(r"(\*|\?|\[[^]]*\])", pattern)
        expression = "".join(
            {"*": "[^/]*", "?": "[^/]"}.get(p, p if i % 2 else re.escape(p)) for i, p in enumerate(parts)
        )
        if re.fullmatch(expression, path):
            return True
    return False


def _exec(text: str) -> tuple[tuple[str, ...], ...]:
    """`a(sasbttttuii)`: path, words, ..."""
    try:
        entries = json.loads(text or "{}").get("data", [])
        return tuple(tuple(str(word) for word in entry[1]) for entry in entries)
    except (ValueError, TypeError, LookupError, AttributeError):
        return ()


def _cmdline(found: Mapping[tuple[str, str], str]) -> tuple[str, ...]:
    texts = [text for (kind, _), text in found.items() if kind == "cmdline"]
    return tuple(texts[0].split("\0")[:-1]) if texts else ()


def _pairs(text: str) -> dict[str, str]:
    return {key: value for key, _, value in (line.partition("=") for line in text.splitlines())}


def unescaped(text: str) -> str:
    """As `systemd-escape --unescape` does."""
    return re.sub(r"\\x([0-9a-f]{2})|-", lambda m: chr(int(m[1], 16)) if m[1] else "/", text)


def _specifiers(place: Place, show: Mapping[str, str], facts: Mapping[str, str]) -> dict[str, str]:
    """Those of systemd's system manager."""
    prefix, _, instance = place.name.partition("@")
    last = prefix.rsplit("-", 1)[-1]
    fragment = show.get("FragmentPath", "")
    system = {
        key.removeprefix("os."): "".join(shlex.split(value)) for key, value in facts.items() if key.startswith("os.")
    }
    host = facts.get("H", "")
    return {
        "n": place.unit,
        "N": place.name,
        "p": prefix,
        "P": unescaped(prefix),
        "i": instance,
        "I": unescaped(instance),
        "j": last,
        "J": unescaped(last),
        "f": "/" + unescaped(instance or prefix).lstrip("/"),
        "y": fragment,
        "Y": posixpath.dirname(fragment),
        "H": host,
        "l": host.split(".", 1)[0],
        "q": host,
        "v": facts.get("v", ""),
        "m": facts.get("m", ""),
        "b": facts.get("b", ""),
        "a": _ARCHITECTURE.get(facts.get("a", ""), facts.get("a", "")),
        "u": "root",
        "U": "0",
        "g": "root",
        "G": "0",
        "h": "/root",
        "s": facts.get("s") or "/bin/sh",
        "t": "/run",
        "T": "/tmp",
        "V": "/var/tmp",
        "S": "/var/lib",
        "C": "/var/cache",
        "L": "/var/log",
        "E": "/etc",
        "d": f"/run/credentials/{place.unit}",
        "o": system.get("ID", ""),
        "w": system.get("VERSION_ID", ""),
        "B": system.get("BUILD_ID", ""),
        "W": system.get("VARIANT_ID", ""),
        "M": system.get("IMAGE_ID", ""),
        "A": system.get("IMAGE_VERSION", ""),
    }
