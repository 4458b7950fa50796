"""A systemd unit as the service: tried through a drop-in under /run, and given back by its own host.

Whatever we do there is done by the scripts `*.sh` beside this file, in POSIX sh: `common.sh` begins each of them,
`guard.sh` stays on the host while we are at work. All else is pure.
"""

from leadline.targets.systemd.target import target

__all__ = ["target"]
