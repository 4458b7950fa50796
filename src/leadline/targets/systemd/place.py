"""Which unit, where our files of it lie on its host, and how a script of ours becomes a printable Step."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from importlib.resources import files

import msgspec

from leadline.errors import InputError
from leadline.launch import Run
from leadline.ports import Site

ABSENT = "absent"
ASK_S = 60.0
_UNIT = re.compile(r"[A-Za-z0-9:_.\\-]+(@[A-Za-z0-9:_.\\@-]+)?\.service", re.ASCII)
_SUFFIX = re.compile(r"\.(service|socket|device|mount|automount|swap|target|path|timer|slice|scope)\Z")
_HOME = re.compile(r"/[\w./@\\+:-]+", re.ASCII)


def script(*names: str) -> str:
    """The functions of these scripts of ours, `common.sh` first; calling one is the caller's last line."""
    folder = files("leadline.targets.systemd")
    return "".join((folder / f"{name}.sh").read_text(encoding="utf-8") for name in ("common", *names))


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """`unit` with its suffix; `home` = the folder on the host for what outlives a boot."""

    unit: str
    home: str
    sudo: bool

    @property
    def name(self) -> str:
        return self.unit.removesuffix(".service")

    @property
    def state(self) -> str:
        return f"/run/leadline/{self.unit}"

    @property
    def candidate(self) -> str:
        return f"{self.state}/candidate.conf"

    @property
    def undoing(self) -> str:
        """Is there from the first Step of an undo to its last."""
        return f"{self.state}/undoing"

    @property
    def trial(self) -> str:
        return f"/run/systemd/system/{self.unit}.d/zzz-leadline.conf"

    @property
    def accepted(self) -> str:
        return f"/etc/systemd/system/{self.unit}.d/zz-leadline.conf"

    @property
    def previous(self) -> str:
        """The accepted setting that the present one replaced."""
        return f"{self.home}/previous.conf"

    @property
    def files(self) -> str:
        """The folder of configuration files that our settings name."""
        return f"{self.home}/files"

    @property
    def bus_path(self) -> str:
        escaped = "".join(c if c.isascii() and c.isalnum() else f"_{ord(c):02x}" for c in self.unit)
        return f"/org/freedesktop/systemd1/unit/{escaped}"

    @property
    def by_hand(self) -> str:
        """What gives the service back without Leadline."""
        return shlex.join(("systemctl", "start", f"leadline-restore@{self.unit}"))

    def text(self, *names: str) -> str:
        """A whole script: `sh SCRIPT VERB UNIT [ARGUMENT...]`."""
        return f'home={shlex.quote(self.home)}\n{script(*names)}main "$@"\n'

    def run(
        self,
        verb: str,
        *args: str,
        of: Sequence[str],
        timeout_s: float = ASK_S,
        asked: bool = False,
        before: str = "",
    ) -> Run:
        """`verb` and `args` are seen where the Step is printed; `before` = assignments that the script goes by."""
        argv = ("sh", "-s", "--", verb, self.unit, *args)
        return Run(argv=argv, stdin=before + self.text(*of), timeout_s=timeout_s, sudo=self.sudo, asked=asked)

    def systemctl(self, *words: str, timeout_s: float = ASK_S) -> Run:
        return Run(argv=("systemctl", *words), timeout_s=timeout_s, sudo=self.sudo)


def assignments(**values: str) -> str:
    """Variables of sh, each on lines of its own."""
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())


def place_of(site: Site) -> Place:
    """Raises InputError for what is not one service unit."""
    given = site.unit
    if not given:
        raise InputError("a systemd service needs the name of its unit, as `systemctl status` shows it")
    unit = given if _SUFFIX.search(given) else f"{given}.service"
    if not unit.endswith(".service"):
        raise InputError(f"{unit} is not a service unit: name the .service that it starts")
    if unit.split("@", 1)[-1] == ".service":
        raise InputError(f"{unit} is a template: name one instance of it, as {unit[:-8]}NAME.service")
    if not _UNIT.fullmatch(unit) or len(unit) > 200:
        raise InputError(f"{given!r} is no name of a unit")
    home = site.home.rstrip("/") or f"/var/lib/leadline/{unit}"
    if not _HOME.fullmatch(home):
        raise InputError(
            f"{home!r} cannot be our folder on the host: a whole path of letters, digits and ./_@+:- is needed"
        )
    return Place(unit=unit, home=home, sudo=site.sudo)
