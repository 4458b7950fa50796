"""How `init` writes a campaign.toml from a live service: it looks, and asks nothing that it can find out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from leadline.build import look_at, make_host, make_target, names
from leadline.cli.common import emit
from leadline.cli.init_command import depths_of, kept_of, refused, write
from leadline.config import parse_campaign, template
from leadline.errors import LeadlineError
from leadline.evidence import Effective, Evidence
from leadline.launch import masked
from leadline.load.prober import HttpProber
from leadline.ports import Site
from leadline.verdict import differences

if TYPE_CHECKING:
    from leadline.build import Live
    from leadline.space import Setting


def init_service(
    site: Site, target: str, host: str, ssh_config: str, *, folder: str, engine: str, as_json: bool
) -> None:
    """Read only: looks at the unit, its process and its endpoints."""
    where = {
        "unit": site.unit if "." in site.unit or not site.unit else f"{site.unit}.service",
        "host": host if host != "local" else "",
        "ssh_config": str(Path(ssh_config).resolve()) if ssh_config else "",
        "sudo": site.sudo,
        "compose_files": list(site.compose_files),
        "compose_service": site.compose_service,
    }
    live = look_at(make_target(target, site), make_host(host, ssh_config), engine=engine)
    today = live.engine.parse(live.base)
    live.engine.render(live.base, today)
    effective = _effective(live) if live.observed.running else None
    depths, keep = depths_of(today), kept_of(live.engine, today)
    port = live.engine.address(live.base)[1]
    told = {key: value for key, value in where.items() if value}
    text = template([], today.only(["depth"]), live.engine.name, port, depths, keep, target=target, where=told)
    path = Path(folder) / "campaign.toml"
    parse_campaign(text, str(path), names())
    write(path, text)
    seen = _seen(live, today, effective)
    reasons = refused(live.engine, live.base, keep, depths)
    if as_json:
        emit({"written": str(path), "engine": live.engine.name, "today": today, "seen": seen, "refused": reasons})
        return
    for label, text in seen.items():
        click.echo(f"{label:<10} {text}")
    click.echo(f"written: {path} (today: {today}). Read it, then: leadline plan {path.parent}")
    for reason, settings in reasons.items():
        click.echo(f"refused as it stands: {', '.join(settings)}: {reason}", err=True)


def _effective(live: Live) -> Effective | None:
    """What the live server says of itself; None when it does not answer."""
    prober = HttpProber(live.url)
    replies = {p.name: prober.fetch(p) for p in live.engine.probes() if p.name != "ready"}
    log = ""
    if live.target.service is not None:
        try:
            run = live.target.service.log("")
            argv = ("sudo", "-n", *run.argv) if run.sudo else run.argv
            done = live.host.run(argv, stdin=run.stdin.encode(), timeout_s=run.timeout_s)
            log, _ = live.target.service.logged(done)
        except LeadlineError:  # what a log says is a help, no more
            log = ""
    if not any(r.ok for r in replies.values()):
        return None
    return live.engine.effective(Evidence(replies=replies, log=log, argv=live.base.argv))


def _seen(live: Live, today: Setting, effective: Effective | None) -> dict[str, str]:
    """What there is to know before anything is tried, line by line."""
    identity = live.host.identity()
    seen = {
        "service": f"{'running' if live.observed.running else 'not running'}, {live.url}",
        "command": str(masked(live.base)),
        "engine": f"{live.engine.name} {effective.version or '' if effective else ''}".strip(),
        "machine": ", ".join(f"{k} {v}" for k, v in identity.items()),
    }
    if effective is None:
        seen["answers"] = "nothing: what really runs is not known yet"
        return seen
    if effective.model:
        seen["model"] = effective.model
    caps = {
        "depth": effective.depth,
        "requests at once": effective.max_running,
        "KV tokens": effective.kv_tokens,
        "context": effective.context,
    }
    seen["runs"] = ", ".join(f"{name} {value:,}" for name, value in caps.items() if value is not None)
    wrong, findings = differences(today, effective)
    said = [*([wrong.reason] if wrong else []), *(str(f) for f in findings)]
    for number, text in enumerate(said, 1):
        seen[f"notice {number}"] = text
    return seen
