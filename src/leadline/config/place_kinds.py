"""Kinds of [service] that say where it is: a host, a systemd unit, compose files."""

from __future__ import annotations

import re

from leadline.config.kinds import Kind, as_text, simple
from leadline.config.review import Review, found

LOCAL = "local"
_NAME = r"(?:[A-Za-z0-9_][\w.-]*|\[[0-9A-Fa-f:.]+(?:%\w+)?\])"
_HOST = re.compile(rf"ssh://(?:[A-Za-z_][\w.-]*\$?@)?{_NAME}(?::(?P<port>\d{{1,5}}))?", re.ASCII)
_WITH_PASSWORD = re.compile(r"[^@]*:[^/@]*@|ssh://[^@]*:[^@]*@")
_UNIT = re.compile(r"(?!-)[A-Za-z0-9:_.\\-]+(?:@[A-Za-z0-9:_.\\-]+)?\.service", re.ASCII)
_COMPOSE_NAME = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)


def _host_problem(value: object) -> str:
    """What is wrong with a host, without showing a password; empty when nothing is."""
    if value == LOCAL:
        return ""
    match = _HOST.fullmatch(value) if isinstance(value, str) else None
    if match and (match["port"] is None or 1 <= int(match["port"]) <= 65535):
        return ""
    if isinstance(value, str) and _WITH_PASSWORD.match(value):
        return "a host with a password (not shown)"
    return found(value)


def _read_host(review: Review, key: str, value: object) -> str | None:
    problem = _host_problem(value)
    if not problem:
        return str(value)
    meant = f"ssh://{value}" if isinstance(value, str) and "://" not in value else ""
    review.wrong(key, problem, HOST.words, f'did you mean "{meant}"?' if meant and not _host_problem(meant) else "")
    return None


HOST = Kind(words='"local" or "ssh://[USER@]NAME[:PORT]", NAME as ssh knows it, no password', read=_read_host)


def _read_unit(review: Review, key: str, value: object) -> str | None:
    if isinstance(value, str) and _UNIT.fullmatch(value):
        return value
    short = isinstance(value, str) and "." not in value and _UNIT.fullmatch(f"{value}.service")
    review.wrong(key, found(value), UNIT.words, f'did you mean "{value}.service"?' if short else "")
    return None


UNIT = Kind(words="a systemd unit, NAME.service or NAME@INSTANCE.service", read=_read_unit)


def _absolute(value: object) -> str | None:
    text = as_text(value)
    return text if text and text.startswith("/") and text.isprintable() else None


def _compose_name(value: object) -> str | None:
    return value if isinstance(value, str) and _COMPOSE_NAME.fullmatch(value) else None


ABSOLUTE = simple("an absolute path on the service's host", _absolute)
COMPOSE_NAME = simple("a name of letters, digits, _, . and -", _compose_name)
