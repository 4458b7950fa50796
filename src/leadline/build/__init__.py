"""The composition root: finds plug-ins by name and wires a campaign's folder into objects. The only place that may."""

from leadline.build.live import Live, look_at
from leadline.build.place import SERVICES, make_host, make_target, refuse_container
from leadline.build.plugins import engine_of, found, names, plugin
from leadline.build.secrets import resolve
from leadline.build.wiring import Reach, Wired, reach, wire

__all__ = [
    "SERVICES",
    "Live",
    "Reach",
    "Wired",
    "engine_of",
    "found",
    "look_at",
    "make_host",
    "make_target",
    "names",
    "plugin",
    "reach",
    "refuse_container",
    "resolve",
    "wire",
]
