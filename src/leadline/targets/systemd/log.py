"""A unit's output since its present start: from the journal, and from the file that it logs to."""

from __future__ import annotations

import re

from leadline.errors import HostError
from leadline.launch import Run
from leadline.ports import Completed
from leadline.targets.systemd.place import Place

_CURSOR = re.compile(r"(?:\A|\n)-- cursor: (\S+)\n?\Z")
_MARK = "|"


def log(place: Place, cursor: str) -> Run:
    """A cursor is INVOCATION|OFFSET|CURSOR-OF-THE-JOURNAL."""
    invocation, offset, journal = cursor.split(_MARK, 2) if cursor else ("", "", "")
    args = (invocation, journal, offset) if cursor else ()
    return place.run("log", *args, of=("log",))


def logged(place: Place, completed: Completed) -> tuple[str, str]:
    """Raises HostError for an answer that makes no sense."""
    answer = completed.stdout
    found = re.match(rb"invocation ([0-9a-f]*)\nfile (\d+) (\d+)\n", answer)
    if completed.code != 0 or found is None:
        why = completed.stderr.decode(errors="replace").strip() or f"exit code {completed.code}"
        raise HostError(f"cannot read the log of {place.unit}: {why}")
    invocation, offset, count = found[1].decode(), int(found[2]), int(found[3])
    file, journal = answer[found.end() : found.end() + count], answer[found.end() + count :].decode(errors="replace")
    asked = completed.argv[completed.argv.index("log") + 2 :]
    cursor = asked[1] if len(asked) > 1 else ""
    if last := _CURSOR.search(journal):
        journal, cursor = journal[: last.start()] + ("\n" if last.start() else ""), last[1]
    text = journal + file.decode(errors="replace")
    return text, f"{invocation}{_MARK}{offset + len(file)}{_MARK}{cursor}"
