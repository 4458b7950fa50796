"""Which keys a target needs, which it may have, and why it has no use for the others."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from leadline.config.place_kinds import LOCAL
from leadline.config.review import Review, found, listed
from leadline.config.table import SCRIPTS, SERVICE

_AWAY = ("service.host", "service.ssh_config", "service.through")
_TODAY = ("service.command", "service.env", "service.cwd")
_LIVE = dict.fromkeys(_TODAY, "nothing, since what runs today is read from the live service")
_SCRIPT = {"service.launch_script": "only with target command, where `leadline apply` writes it"}
_HELD = "with target command: a supervisor on this machine holds a plain command, and ends it when we are gone"


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """Keys as SECTION.KEY. `why` = what is allowed instead of a key that the target does not take."""

    needs: tuple[str, ...]
    takes: tuple[str, ...]
    why: dict[str, str]


RULES = {
    "command": Rule(
        needs=("service.command",),
        takes=("service.env", "service.cwd", "service.launch_script"),
        why={
            "service.host": f'"{LOCAL}" {_HELD}',
            "service.ssh_config": f"nothing {_HELD}",
            "service.through": f"nothing {_HELD}",
            "service.sudo": "nothing with target command: the server is started by the user who runs leadline",
        },
    ),
    "systemd": Rule(needs=("service.unit",), takes=(*_AWAY, "service.sudo"), why=_LIVE | _SCRIPT),
    "compose": Rule(
        needs=("service.compose_files", "service.compose_service"),
        takes=("service.compose_project", "service.compose_program", *_AWAY, "service.sudo"),
        why=_LIVE | _SCRIPT,
    ),
    "script": Rule(
        needs=("service.command", *(f"scripts.{k.name}" for k in SCRIPTS.keys)),
        takes=("service.env", "service.cwd", *_AWAY),
        why=_SCRIPT | {"service.sudo": "nothing with target script: write sudo -n into the commands of [scripts]"},
    ),
}
"""Of our own targets. A target of somebody else's needs nothing, and takes everything."""
BY_TARGET = tuple(dict.fromkeys(key for rule in RULES.values() for key in (*rule.needs, *rule.takes)))
"""Keys that not every target takes."""
_KINDS = {f"{s.name}.{key.name}": key.kind for s in (SERVICE, SCRIPTS) for key in s.keys}
_PLACEHOLDER = re.compile(r"\{(?:argv|command|env|since)\}")
_PLACEHOLDERS = {"start": ("{argv}", "{command}", "{env}"), "logs": ("{since}",)}
_WHOLE_WORDS = ("{argv}", "{env}")


def takes(target: str, key: str) -> bool:
    """Whether a target has a use for a key, SECTION.KEY."""
    rule = RULES.get(target)
    return rule is None or key not in BY_TARGET or key in rule.needs or key in rule.takes


def check_target(review: Review, service: dict[str, Any], scripts: dict[str, Any], good: dict[str, Any]) -> None:
    """What is given must be of use to the target, and what it needs must be given."""
    target = good["service"].get("target")
    rule = RULES.get(target) if isinstance(target, str) else None
    given = [f"service.{name}" for name in service] + [f"scripts.{name}" for name in scripts]
    for key in BY_TARGET if rule else ():
        if key in given and not takes(target, key) and not (key == "service.host" and service["host"] == LOCAL):
            _refuse(review, target, key)
        elif rule and key in rule.needs and key not in given:
            review.wrong(key, "nothing", f"{_KINDS[key].allowed(review.names)}, since target {target} needs it")
    if "ssh_config" in service and service.get("host", LOCAL) == LOCAL and takes(target, "service.ssh_config"):
        review.wrong("service.ssh_config", "a file for ssh, and no host", 'a host "ssh://NAME" with it')
    for name, words in good["scripts"].items():
        _placeholders(review, f"scripts.{name}", words, _PLACEHOLDERS.get(name, ()))


def _refuse(review: Review, target: str, key: str) -> None:
    """Its value is not shown: it has not to be read."""
    others = listed(name for name, rule in RULES.items() if takes(name, key))
    allowed = RULES[target].why.get(key, f"only with target {others}")
    hint = f"for a server elsewhere choose target {others}" if key in _AWAY else "remove it"
    review.wrong(key, f"a key that target {target} does not take", allowed, hint)


def _placeholders(review: Review, key: str, words: Iterable[str], allowed: tuple[str, ...]) -> None:
    for word in words:
        for placeholder in _PLACEHOLDER.findall(word):
            if placeholder not in allowed:
                review.wrong(key, placeholder, f"of such words here: {', '.join(allowed) or 'none'}")
            elif placeholder in _WHOLE_WORDS and word != placeholder:
                review.wrong(key, found(word), f"{placeholder} as a word of its own, since it becomes many")
