"""A campaign's folder: what lies where in it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from leadline.errors import InputError
from leadline.inbox import Inbox

CAMPAIGN_FILE = "campaign.toml"


class Folder(msgspec.Struct, frozen=True):
    """A campaign's folder and the names in it."""

    path: Path

    @classmethod
    def of(cls, campaign: str) -> Folder:
        """A folder that holds a campaign.toml, or that file itself. Raises InputError."""
        path = Path(campaign)
        folder = path.parent if path.name == CAMPAIGN_FILE else path
        if not (folder / CAMPAIGN_FILE).is_file():
            raise InputError(
                f"no {CAMPAIGN_FILE} in {folder}: write one with `leadline init -- <your server's command line>`, or "
                f"name the folder of a campaign."
            )
        return cls(folder.resolve())

    @property
    def config(self) -> Path:
        return self.path / CAMPAIGN_FILE

    @property
    def journal(self) -> Path:
        return self.path / "journal.jsonl"

    @property
    def records(self) -> Path:
        return self.path / "records"

    @property
    def inbox(self) -> Inbox:
        return Inbox(self.path / "queue")

    def prepare(self) -> None:
        """The folders that a launch writes into."""
        for folder in (self.records, self.path / "logs"):
            folder.mkdir(exist_ok=True)
        (self.path / "launch").mkdir(mode=0o700, exist_ok=True)  # copies of files that may hold secrets

    def log(self, trial: int, attempt: int) -> str:
        return str(self.path / "logs" / f"trial-{trial:03d}-{attempt}.log")
