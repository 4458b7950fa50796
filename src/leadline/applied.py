"""What `apply` has put in place, so that `undo` can take it back: a small file beside the campaign."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from leadline.codec import from_json, to_pretty
from leadline.errors import InputError

NAME = "applied.json"


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """`written` and `previous` are SHA-256 of the file as we wrote it and as it was before, or "absent". `shadowed` =
    the service's own files, as they were when the setting was put over them."""

    path: str
    setting: str
    at: str
    written: str
    previous: str
    shadowed: dict[str, str] = {}

    @classmethod
    def read(cls, folder: Path) -> Applied | None:
        """None when nothing is applied. Raises InputError when the file cannot be read: guessing could overwrite."""
        path = folder / NAME
        if not path.exists():
            return None
        try:
            return from_json(path.read_bytes(), cls)
        except ValueError as error:
            raise InputError(
                f"{path} cannot be read: {error}. Put the launch script back by hand; its header says how."
            ) from error

    def write(self, folder: Path) -> None:
        """Durable before it returns: it is the intent of what follows."""
        part = folder / f"{NAME}.part"
        with part.open("w", encoding="utf-8") as file:
            file.write(to_pretty(self) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, folder / NAME)

    @staticmethod
    def forget(folder: Path) -> None:
        (folder / NAME).unlink(missing_ok=True)
