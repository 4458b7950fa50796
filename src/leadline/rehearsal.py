"""What a rehearsal found, kept beside the campaign: how long the service takes to load, and how fast it is back."""

from __future__ import annotations

from pathlib import Path

import msgspec

from leadline.codec import from_json, to_pretty

NAME = "rehearsal.json"


class Rehearsal(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. `killed_back_s` = from SIGKILL of Leadline in the middle of a load until nothing of the server was
    left; `back_s` = the same in order; `load_s` = from start to a generated token."""

    at: str
    setting: str
    load_s: float
    back_s: float
    killed_back_s: float

    @classmethod
    def read(cls, folder: Path) -> Rehearsal | None:
        """The last rehearsal; None when there was none, or when it cannot be read (it is only an estimate)."""
        try:
            return from_json((folder / NAME).read_bytes(), cls)
        except (OSError, ValueError):
            return None

    def write(self, folder: Path) -> None:
        (folder / NAME).write_text(to_pretty(self) + "\n", encoding="utf-8")
