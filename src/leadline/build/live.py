"""A live service without a campaign: what `init` looks at, and what `undo` takes back months later."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import msgspec

from leadline import detect
from leadline.build.plugins import engine_of, plugin
from leadline.clock import SystemClock
from leadline.deploy import Deployer, Rules
from leadline.launch import LaunchSpec
from leadline.load.prober import HttpProber
from leadline.ports import Engine, Host, Observed, Target
from leadline.service import Custody
from leadline.steps import observe

LEASE_S, AWAY_S = 3600.0, 60.0


class Live(msgspec.Struct, frozen=True, kw_only=True):
    """`base` = the launch in force, with its files; `url` = where it answers, as reached from here."""

    host: Host
    target: Target
    observed: Observed
    engine: Engine
    base: LaunchSpec
    url: str

    headers: dict[str, str] = {}

    def deployer(
        self,
        shield: Callable[[], AbstractContextManager[object]] = nullcontext,
        keep_log: Callable[[str, str], None] = lambda path, text: None,
    ) -> Deployer:
        """For what is no trial: it holds no guard."""
        clock = SystemClock()
        custody = Custody(
            host=self.host,
            target=self.target,
            guard=lambda: None,
            clock=clock,
            lease_s=LEASE_S,
            away_s=AWAY_S,
            shield=shield,
        )
        return Deployer(
            engine=self.engine,
            target=self.target,
            host=self.host,
            prober=HttpProber(self.url, self.headers),
            clock=clock,
            rules=Rules(),
            shield=shield,
            custody=custody,
            keep_log=keep_log,
        )


def look_at(target: Target, host: Host, *, headers: dict[str, str] | None = None, engine: str = "") -> Live:
    """Look at a service where it runs; changes nothing. Raises InputError when there is none, or its engine is not
    known."""
    observed = observe(target, host)
    base = observed.launch
    dialect: Engine = plugin("engines", engine or engine_of(base.argv), "engine")
    dialect = dialect.at(detect.version(dialect, host, base))
    base = detect.with_files(dialect, host, base)
    name, port = dialect.address(base)
    near, there = host.forward("127.0.0.1" if name in ("0.0.0.0", "::") else name, port)
    return Live(
        host=host,
        target=target,
        observed=observed,
        engine=dialect,
        base=base,
        url=f"http://{near}:{there}",
        headers=headers or {},
    )
