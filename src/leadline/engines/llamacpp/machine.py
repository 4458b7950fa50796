"""What the kernel and systemd say of llama-server, where their lines are in its log (a journal)."""

from __future__ import annotations

from leadline.dialect.signs import START_LIMIT, sign
from leadline.evidence import Failure

KERNEL = (
    sign(
        r"\S+\.(?:service|scope): (?:Failed with result 'oom-kill'"
        r"|A process of this unit has been killed by the OOM killer)"
        r"|(?:Out of memory|Memory cgroup out of memory): Killed process \d+"
        r"|oom-kill:constraint=CONSTRAINT_\w+,.*task=",
        Failure.HOST_OOM,
        "the kernel killed it for want of host memory",
        "use a smaller -c, -np or --cache-ram, or a smaller model or draft model",
        "deeper settings, more slots, a longer context or a larger draft model need at least as much",
        ("depth+", "max_running+", "flag:--ctx-size+"),
    ),
)
"""These count before the server's own lines."""

UNIT = (
    sign(
        r"Main process exited, code=killed, status=9/KILL",
        Failure.KILLED,
        "somebody killed it (signal 9), and the kernel reported no lack of memory",
        "look into dmesg for an out-of-memory kill, then for a supervisor or a person that killed it",
    ),
    sign(
        r"Main process exited, code=(?P<how>exited|killed|dumped), status=(?P<status>\d+\S*)",
        Failure.CRASHED,
        "it ended by itself ({how}, {status})",
        "read the lines before it in the log; when systemd then says `repeated too quickly`, `systemctl reset-failed` "
        "the unit before the next start",
    ),
    START_LIMIT,
)
"""These count when nothing of the server's own tells."""
