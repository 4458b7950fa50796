"""`leadline stop`."""

from __future__ import annotations

import os
import signal
import socket
import time
from typing import TYPE_CHECKING

import click

from leadline.cli.common import campaign_argument, emit, json_option

if TYPE_CHECKING:
    from pathlib import Path

    from leadline.journal.file import Owner

PATIENCE_S = 120.0


@click.command("stop", epilog="Example: leadline stop ./my-campaign")
@campaign_argument
@json_option
def command(campaign: str, as_json: bool) -> None:
    """End a running campaign in order: the server that it started is ended, the service is as before.

    Finished trials are kept; `leadline run` goes on with the others.
    """
    from leadline.errors import NotGivenBackError, RefusedError
    from leadline.folder import Folder
    from leadline.journal.file import owner_of, replay

    folder = Folder.of(campaign)
    owner = owner_of(folder.journal)
    if owner is not None:
        if owner.host != socket.gethostname():
            raise RefusedError(f"the campaign is run from another machine: {owner}. Stop it there.")
        _tell(folder.journal, owner)
        until = time.monotonic() + PATIENCE_S
        while owner_of(folder.journal) is not None:
            if time.monotonic() > until:
                raise NotGivenBackError(f"{owner} did not end within {PATIENCE_S:.0f} s; look at it, then kill it")
            time.sleep(0.1)
    ledger = replay(folder.journal).ledger
    message = f"stopped: {owner}" if owner else "nothing is running"
    if as_json:
        emit({"stopped": owner is not None, "message": message, "trials": len(ledger.history().trials)})
    else:
        click.echo(message)


def _tell(journal: Path, owner: Owner) -> None:
    """SIGTERM to the owner and nobody else: a pid that was given to another process meanwhile does not get it."""
    from leadline.errors import RefusedError
    from leadline.journal.file import owner_of

    try:
        process = os.pidfd_open(owner.pid)
    except ProcessLookupError:
        return  # it ended by itself in this moment
    try:
        if owner_of(journal) == owner:
            signal.pidfd_send_signal(process, signal.SIGTERM)
    except ProcessLookupError:
        return
    except PermissionError as error:
        raise RefusedError(f"we may not stop {owner}: do it as {owner.user}, or as root") from error
    finally:
        os.close(process)
