"""Which folders of this machine a host shows inside: the running Python works there with all that it imports."""

from __future__ import annotations

import os
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[2]


def folders() -> tuple[str, ...]:
    """The interpreter and its library, the virtual environment, the project's src and tests: outer ones first."""
    wanted = {Path(sys.base_prefix), Path(sys.prefix), PROJECT / "src", PROJECT / "tests"} - {Path("/usr")}
    return tuple(str(f) for f in sorted(wanted) if not any(o in f.parents for o in wanted))


def python() -> str:
    """A Python inside. One of /usr is the root's own: the same where this machine has the same Debian release."""
    return os.path.abspath(sys.executable)
