"""Where a service is, how it was found, and what its guard is told: the values that targets and hosts pass on."""

from __future__ import annotations

import msgspec

from leadline.launch import LaunchSpec, Run, Step


class Completed(msgspec.Struct, frozen=True, kw_only=True):
    """A command that ended on the host. `code` 128+n = killed by signal n."""

    argv: tuple[str, ...]
    code: int
    stdout: bytes
    stderr: bytes


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """The service before we touch it: the launch in force, the files a way back needs, and who listens.

    `files` maps a path to the SHA-256 of its content, or to "absent". `texts` = the files that its definition is made
    of, in the order in which they hold; they may hold secrets, and are never stored or printed. `held` = a trial of
    ours (perhaps of a process that died) is in force: `launch` and `running` are then those from before it. `shadowed`
    = what an accepted setting of ours has noted of the files under it, path to SHA-256; `previous` = SHA-256 of the
    accepted file that it replaced, or "absent".
    """

    launch: LaunchSpec
    running: bool
    files: dict[str, str] = {}
    texts: dict[str, str] = {}
    held: bool = False
    holder: str = ""
    shadowed: dict[str, str] = {}
    previous: str = "absent"


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """Where a service is, as its operator says: what a target is made from. Each target reads its own part.

    `launch` and `script`: a plain command and the file that a rollout writes. `unit`: a systemd unit. `compose_*`: a
    compose service; `compose_program` = the words before `-f`. `start`, `stop`, `give_back`, `logs`, `status`: the
    operator's own commands. `sudo` = what only root may do goes through `sudo -n`. `home` = an absolute folder on the
    host for what must outlive a boot; "" = the target's own choice.
    """

    launch: LaunchSpec = LaunchSpec(argv=())
    script: str = ""
    grace_s: float = 10.0
    unit: str = ""
    sudo: bool = False
    compose_files: tuple[str, ...] = ()
    compose_service: str = ""
    compose_project: str = ""
    compose_program: tuple[str, ...] = ("docker", "compose")
    start: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()
    give_back: tuple[str, ...] = ()
    logs: tuple[str, ...] = ()
    status: tuple[str, ...] = ()
    home: str = ""


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What a guard is told. Seconds count from now. `owner` and `reason` are for people; `campaign` tells two apart.

    `grace_s` = from the end of our connection to the way back; `lease_s` = from our last sign of life; `end_s` = at the
    latest, whatever we say. `start` and `end` = the operator's hooks, run on the host, once; `end` also when we are
    gone. `port` = where the service listens when it is up.
    """

    owner: str
    reason: str
    campaign: str
    grace_s: float
    lease_s: float
    end_s: float
    start: tuple[str, ...] = ()
    end: tuple[str, ...] = ()
    port: int


class Guard(msgspec.Struct, frozen=True, kw_only=True):
    """What brings the original back without us, as Steps.

    `arm` takes the service's lock (and fails when another campaign holds it), leaves the way back on the host and
    starts the deadlines; it may be repeated by the same campaign. `hold` is a command whose standard input we keep
    open: it says a first line once it holds, and its end by any cause begins the grace; run again within the grace it
    calls that off. `renew` begins the lease anew. `back` gives the service back as it was (once, whoever calls), `hook`
    runs the end hooks (once, whoever calls), `disarm` forgets all of it and lets go of the lock.
    """

    arm: tuple[Step, ...]
    hold: Run
    renew: Run
    back: Run
    hook: Run
    disarm: tuple[Step, ...]
