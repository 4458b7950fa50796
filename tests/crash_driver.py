"""`leadline run FOLDER --yes` that kills itself, SIGKILL, at event number N of the journal: crash_driver.py FOLDER N.

The event is on disk by then; whatever it announces has not been done.
"""

from __future__ import annotations

import os
import signal
import sys

from leadline.build import wire
from leadline.cli.run_command import sail
from leadline.journal.events import AnyEvent


def main(folder: str, number: int) -> None:
    def watch(event: AnyEvent) -> None:
        if event.seq == number:
            os.kill(os.getpid(), signal.SIGKILL)

    sail(wire(folder), also=watch)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
