"""The guard of a unit: a leash, a lease and a last hour, which all call one script on the host."""

from __future__ import annotations

import shlex
from datetime import timedelta

from leadline.launch import Run
from leadline.ports import Guard, Terms
from leadline.targets.systemd.place import ASK_S, Place, assignments

HOOK_S = 330.0


def guard(place: Place, terms: Terms) -> Guard:
    """Everything of it lies in /run, so a boot leaves the original and nothing of ours."""
    text = place.text("guard")
    before = assignments(
        guard=text,
        campaign=_line(terms.campaign),
        owner=_line(terms.owner),
        reason=_line(terms.reason),
        grace=_duration(terms.grace_s),
        lease=_duration(terms.lease_s),
        end=_duration(terms.end_s),
        port=str(terms.port),
        start_hook=shlex.join(terms.start),
        end_hook=shlex.join(terms.end),
    )
    # The host's clock says until when, not ours.
    before += f"until=$(date -u -d '+{int(terms.end_s)} seconds' +%Y-%m-%dT%H:%M:%SZ)\n"
    length = str(timedelta(seconds=int(terms.end_s)))
    hold = ("sh", f"{place.state}/guard", "hold", place.unit)
    return Guard(
        arm=(_run(place, "arm", _line(terms.campaign), f"for {length}", before=before, timeout_s=ASK_S + HOOK_S),),
        hold=Run(argv=hold, timeout_s=ASK_S, sudo=place.sudo),
        renew=place.systemctl("restart", f"leadline-lease@{place.name}.timer"),
        back=back(place),
        hook=_run(place, "hook", timeout_s=HOOK_S),
        disarm=(_run(place, "disarm", _line(terms.campaign)),),
    )


def back(place: Place) -> Run:
    """The service as it was, also when no guard stands; nothing happens when no trial is in force."""
    return _run(place, "back")


def unlock(place: Place) -> tuple[Run, ...]:
    return (place.run("who", of=("guard",), asked=True), _run(place, "unlock"))


def _run(place: Place, verb: str, *args: str, before: str = "", timeout_s: float = ASK_S) -> Run:
    return place.run(verb, *args, of=("guard",), before=before, timeout_s=timeout_s)


def _line(text: str) -> str:
    return " ".join(text.split())


def _duration(seconds: float) -> str:
    return f"{max(1, int(seconds * 1000))}ms"
