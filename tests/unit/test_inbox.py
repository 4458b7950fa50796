"""Settings queued by hand: one file each, safe to add while a campaign reads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from leadline.errors import InputError
from leadline.inbox import Inbox
from leadline.space import Setting

SIX, TEN = Setting.of(depth=6), Setting.of(depth=10, draft_model='a "model" with\nblanks')


def test_without_a_folder_nothing_is_queued_and_none_is_made(tmp_path: Path) -> None:
    assert Inbox(tmp_path / "queue").settings() == []
    assert list(tmp_path.iterdir()) == []


def test_queued_settings_come_back_oldest_first(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path / "queue")
    assert inbox.add(SIX)
    (first,) = inbox.folder.iterdir()
    assert inbox.add(TEN)
    (second,) = set(inbox.folder.iterdir()) - {first}
    for path, age_ns in ((first, 2), (second, 1)):
        os.utime(path, ns=(age_ns, age_ns))
    assert inbox.settings() == [TEN, SIX]


def test_the_same_setting_is_queued_once(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    assert [inbox.add(SIX), inbox.add(Setting.of(depth=6))] == [True, False]
    assert inbox.settings() == [SIX]


def test_a_reader_never_sees_a_half_written_one(tmp_path: Path) -> None:
    """What is being written has another name; only a whole file is renamed into place."""
    (tmp_path / "0123456789ab.part").write_text("dep")
    assert Inbox(tmp_path).settings() == []


def test_one_that_cannot_be_read_is_named_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "0123456789ab.setting").write_text("depth\n")
    with pytest.raises(InputError, match=r"0123456789ab\.setting: .*'depth'.*leadline try"):
        Inbox(tmp_path).settings()
