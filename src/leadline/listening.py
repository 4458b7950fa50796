"""Who listens where a server of ours does, or would."""

from __future__ import annotations

from leadline.evidence import Diagnosis, Failure
from leadline.launch import LaunchSpec
from leadline.ports import Engine, Host, Session


def in_the_way(engine: Engine, host: Host, launch: LaunchSpec) -> str:
    """Who listens where this launch would, and what to do about it; "" = nobody."""
    name, port = engine.address(launch)
    owner = host.listener(name, port)
    if owner is None:
        return ""
    return (
        f"port {port} is in use by {owner.name or 'a process'} (pid {owner.pid}). Leadline never stops what it did not "
        f"start: stop it yourself, or set traffic.private_port to a free port."
    )


def stranger(
    engine: Engine, host: Host, session: Session, launch: LaunchSpec, *, answered: bool = False
) -> Diagnosis | None:
    """Why it is not the session's server that answers there; `answered` = the service's URL just did. None = it is."""
    name, port = engine.address(launch)
    owner = host.listener(name, port)
    if owner is None and answered and not session.owns(0):
        return Diagnosis(
            failure=Failure.PORT_IN_USE,
            reason=f"the service's URL answers, but nobody listens on port {port}, where our server will",
            remedy="service.url leads to another server: leave it out, or make it lead to the trial's own port",
        )
    if owner is None or session.owns(owner.pid):
        return None
    return Diagnosis(
        failure=Failure.PORT_IN_USE,
        reason=f"port {port} is answered by {owner.name} (pid {owner.pid}), not by the server that we started",
        remedy="stop it, or set traffic.private_port",
    )
