"""Settings queued by hand: one small file each, so that another process may add one while a campaign runs."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec

from leadline.errors import InputError
from leadline.space import Setting


class Inbox(msgspec.Struct, frozen=True):
    folder: Path

    def add(self, setting: Setting) -> bool:
        """Queue a setting, durably; False when it is queued already."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{hashlib.sha256(str(setting).encode()).hexdigest()[:12]}.setting"
        if path.exists():
            return False
        part = path.with_suffix(".part")
        part.write_text(f"{setting}\n", encoding="utf-8")
        os.replace(part, path)
        return True

    def settings(self) -> list[Setting]:
        """All that were ever queued, oldest first; the journal knows which it has taken in."""
        if not self.folder.is_dir():
            return []
        files = sorted(self.folder.glob("*.setting"), key=lambda p: (p.stat().st_mtime_ns, p.name))
        return [_read(p) for p in files]


def _read(path: Path) -> Setting:
    try:
        return Setting.parse(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(
            f"{path}: {error}. Remove the file, or queue the setting again with `leadline try`."
        ) from error
