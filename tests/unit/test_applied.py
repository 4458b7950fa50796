"""The note of what is applied, which `undo` rests on."""

from __future__ import annotations

from pathlib import Path

import pytest

from leadline.applied import NAME, Applied
from leadline.errors import InputError

NOTE = Applied(
    path="/srv/serve.sh", setting="depth=4", at="2026-11-30T12:00:00.000Z", written="a" * 64, previous="absent"
)


def test_what_is_written_is_read_back_and_forgotten(tmp_path: Path) -> None:
    assert Applied.read(tmp_path) is None
    NOTE.write(tmp_path)
    assert Applied.read(tmp_path) == NOTE
    assert [p.name for p in tmp_path.iterdir()] == [NAME]
    Applied.forget(tmp_path)
    assert Applied.read(tmp_path) is None
    Applied.forget(tmp_path)


@pytest.mark.parametrize("damaged", [b"", b"{}", b"\xff", b'{"path": 1}'])
def test_a_damaged_note_is_refused_since_guessing_could_overwrite(tmp_path: Path, damaged: bytes) -> None:
    (tmp_path / NAME).write_bytes(damaged)
    with pytest.raises(InputError, match=r"applied\.json cannot be read.*by hand"):
        Applied.read(tmp_path)
