"""Where the service is: its host and its target, as campaign.toml says; and the terms of its guard."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Callable, Sequence

from leadline.build.plugins import plugin
from leadline.config import CampaignSpec, Hours, window_allows
from leadline.dialect.source import contained
from leadline.errors import InputError
from leadline.launch import LaunchSpec
from leadline.ports import Host, Site, Target, Terms

LOCAL = "local"
DAY_MIN = 24 * 60
WEEK_S = 7 * 86400.0
SERVICES = frozenset({"systemd", "compose", "script"})
"""Targets whose server belongs to a supervisor."""


def host_of(spec: CampaignSpec) -> Host:
    """Connects to nothing yet."""
    service = spec.service
    return make_host(service.host, spec.beside(service.ssh_config) if service.ssh_config else "", service.through)


def make_host(name: str = LOCAL, ssh_config: str = "", through: Sequence[str] = ()) -> Host:
    """ "local" or "ssh://[user@]name[:port]"; `through` = words before every command there."""
    host: Host
    host = plugin("hosts", "local", "host")() if name == LOCAL else plugin("hosts", "ssh", "host")(name, ssh_config)
    return plugin("hosts", "wrapped", "host")(host, tuple(through)) if through else host


def target_of(spec: CampaignSpec, base: LaunchSpec) -> Target:
    service, scripts = spec.service, spec.scripts
    site = Site(
        launch=base,
        script=spec.beside(service.launch_script),
        grace_s=spec.safety.grace_s,
        unit=service.unit or "",
        sudo=service.sudo,
        compose_files=tuple(service.compose_files),
        compose_service=service.compose_service or "",
        compose_project=service.compose_project or "",
        compose_program=tuple(service.compose_program),
        start=scripts.start,
        stop=scripts.stop,
        give_back=scripts.give_back,
        logs=scripts.logs,
        status=scripts.status,
    )
    return make_target(service.target, site)


def make_target(name: str, site: Site) -> Target:
    target: Target = plugin("targets", name, "target")(site)
    return target


def terms_of(spec: CampaignSpec, name: str, port: int, minute_of_day: Callable[[], int], load_s: float) -> Terms:
    """What the guard of a stay that begins now is told. `load_s` = how long the original may take to be back: the
    window's end is for that too."""
    left = minutes_left(spec.window.hours, minute_of_day())
    most = WEEK_S if spec.budget.max_minutes is None else spec.budget.max_minutes * 60 + spec.safety.deadline_s
    end_s = most if left is None else min(most, left * 60 - load_s)
    user, here = getpass.getuser(), socket.gethostname()
    return Terms(
        owner=f"{user}@{here}",
        reason=f"campaign {os.path.basename(name)}",
        campaign=f"{here}:{name}",
        grace_s=spec.safety.disconnect_grace_s,
        lease_s=spec.safety.lease_s,
        end_s=max(1.0, end_s),
        start=spec.traffic.drain,
        end=spec.traffic.undrain,
        port=port,
    )


def minutes_left(hours: Sequence[Hours], now: int) -> int | None:
    """Whole minutes until the present span of the hours ends; None = they set no end, or it is none of them."""
    if not hours or not window_allows(hours, now, 1):
        return None
    return next((m - 1 for m in range(1, DAY_MIN) if not window_allows(hours, now, m)), None)


def refuse_container(launch: LaunchSpec) -> None:
    """Raises InputError for a launch that the target command could start and not end."""
    if contained(launch):
        raise InputError(
            "this command starts a container, which would go on without us when we are killed: the target command can "
            "hold processes only. Give the server's own command."
        )
