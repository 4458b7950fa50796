"""The reference page of campaign.toml, made from the table of keys."""

from __future__ import annotations

import msgspec

from leadline.config.table import SECTIONS, Key, Section
from leadline.config.target_rules import BY_TARGET, RULES, takes
from leadline.config.toml import toml_key, toml_text
from leadline.metrics import METRICS, STATS

_HEAD = """# campaign.toml

Every key that a campaign file may have. Sections marked *required* must be there; all others may be left out.
An unknown key, a wrong type or an impossible value is refused before anything starts, and all problems of the file are
shown at once. Paths are relative to the file's folder.
"""


def reference() -> str:
    """Markdown: a table for each section with type, default, meaning and example of every key; then the targets' keys,
    and the metrics."""
    return "\n".join([_HEAD, *(_section(s) for s in SECTIONS), _targets(), _metrics()])


def _section(section: Section) -> str:
    title = f"{section.name}.NAME" if section.shape == "named" else section.name
    required = " (required)" if section.required else ""
    lines = [f"## [{title}]{required}", "", f"{section.help[0].upper()}{section.help[1:]}.", ""]
    lines += ["| key | type | default | meaning | example |", "|---|---|---|---|---|"]
    lines += [_row(section, key) for key in section.keys]
    return "\n".join([*lines, ""])


def _row(section: Section, key: Key) -> str:
    name = toml_key(key.name)
    default = default_text(section, key.name)
    shown = "required" if key.name in section.must_have() else default and f"`{default}`"
    return _cells(f"`{name}`", key.kind.words, shown, key.help, f"`{name} = {key.example}`")


def _cells(*texts: str) -> str:
    return f"| {' | '.join(text.replace('|', chr(92) + '|') for text in texts)} |"


def _targets() -> str:
    lines = ["## Keys by target", "", "Keys that are not named here go with every target.", ""]
    lines += ["| target | needs | may have | has no use for |", "|---|---|---|---|"]
    for name, rule in RULES.items():
        no_use = (key for key in BY_TARGET if not takes(name, key))
        lines.append(
            _cells(f"`{name}`", *(", ".join(f"`{k}`" for k in keys) for keys in (rule.needs, rule.takes, no_use)))
        )
    return "\n".join([*lines, ""])


def _metrics() -> str:
    lines = ["## Metrics", "", "What an objective or a requirement may name.", ""]
    lines += ["| metric | unit | better | what it is |", "|---|---|---|---|"]
    for metric in METRICS.values():
        name = f"`{metric.name}.`{'/'.join(STATS)}" if metric.per_request else f"`{metric.name}`"
        lines.append(_cells(name, metric.unit, metric.better or "no objective", metric.formula))
    return "\n".join([*lines, ""])


def default_text(section: Section, key: str) -> str:
    """A key's default as TOML; empty when it has none, since it is required or may be left out."""
    default = section.default(key)
    if default is msgspec.NODEFAULT or default in (None, (), {}):
        return ""
    return toml_text(int(default) if isinstance(default, float) and default.is_integer() else default)
