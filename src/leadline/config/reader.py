"""campaign.toml -> CampaignSpec, or every problem of it at once."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from typing import Any

from leadline.config.checks import cross_check, goal_of
from leadline.config.keys import meant_key, read_keys
from leadline.config.kinds import NAME
from leadline.config.knobs import read_keep, read_knobs
from leadline.config.review import Review, dotted, listed, unshown
from leadline.config.spec import (
    BudgetSpec,
    CampaignSpec,
    CanarySpec,
    KnobSpec,
    LoadSpec,
    Names,
    SafetySpec,
    ScriptsSpec,
    ServiceSpec,
    TrafficSpec,
    WindowSpec,
    WorkloadSpec,
)
from leadline.config.table import SECTIONS, Section
from leadline.space import Setting

_WHERE = re.compile(r"(?P<what>.*) \(at (line (?P<line>\d+), column (?P<column>\d+)|end of document)\)", re.DOTALL)
_SECTION_NAMES = tuple(s.name for s in SECTIONS)
Good = dict[str, dict[str, Any]]


def parse_campaign(text: str, path: str, names: Names) -> CampaignSpec:
    """The text of a campaign file, checked as a whole.

    Raises ConfigError with all problems, one line each. Opens no file that the text names and fetches no secret.
    """
    review = Review(path, names)
    document = _toml(text, review)
    for name in document:
        if name not in _SECTION_NAMES:
            review.unknown(dotted("", name), _SECTION_NAMES, meant_key(name, "", _SECTION_NAMES))
    good = {s.name: _section(review, s, document) for s in SECTIONS}
    cross_check(review, document, good)
    review.done()
    return _build(good, path, config_digest(text))


def config_digest(text: str) -> str:
    """SHA-256 of what the file means: comments and layout do not count. Raises ValueError when it is not TOML."""
    return hashlib.sha256(json.dumps(tomllib.loads(text), default=str).encode()).hexdigest()


def _toml(text: str, review: Review) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except RecursionError:
        review.wrong("line 1, column 1", "brackets nested too deep to read", "the sections of a campaign")
    except ValueError as error:
        match = _WHERE.fullmatch(str(error))
        lines = text.splitlines() or [""]
        line, column = len(lines), len(lines[-1]) + 1
        if match and match["line"]:
            line, column = int(match["line"]), int(match["column"])
        what = json.dumps(match["what"] if match else str(error))[1:-1]
        allowed = 'TOML: [section], then KEY = VALUE, with texts (and keys that hold @ or :) in "quotes"'
        review.wrong(f"line {line}, column {column}", f"what is not TOML ({what})", allowed)
    review.done()
    return {}


def _section(review: Review, section: Section, document: dict[str, Any]) -> dict[str, Any]:
    """The good values of a section. A workload, goal or knob with problems keeps its name: others may refer to it."""
    table = document.get(section.name, {})
    shape = f"a section [{section.name}]" if section.shape == "one" else f"[{section.name}] with one or more names"
    if section.shape == "named":
        shape = f"one or more sections [{section.name}.NAME]"
    if section.must_have():
        shape += f" with {listed(section.must_have())}"
    if not isinstance(table, dict):
        review.wrong(section.name, unshown(table), shape)
        return {}
    if section.required and not table:
        review.wrong(section.name, "nothing", shape)
        return {}
    if section.shape == "named":
        return {name: _named(review, section, name, inner) for name, inner in table.items()}
    if section.shape == "knobs":
        return (read_knobs if section.name == "knobs" else read_keep)(review, table, document.get("service"))
    return read_keys(review, section, section.name, table)


def _named(review: Review, section: Section, name: str, table: object) -> dict[str, Any]:
    at = dotted(section.name, name)
    if not NAME.fullmatch(name):
        review.wrong(at, "a name with other characters", "letters, digits, _ and -, a letter first")
    if not isinstance(table, dict):
        review.wrong(at, unshown(table), f"a section [{at}] with {listed(k.name for k in section.keys)}")
        return {}
    return read_keys(review, section, at, table)


def _build(good: Good, path: str, digest: str) -> CampaignSpec:
    load = LoadSpec(**good["load"])
    return CampaignSpec(
        path=path,
        digest=digest,
        service=ServiceSpec(**good["service"]),
        scripts=ScriptsSpec(**good["scripts"]),
        window=WindowSpec(**good["window"]),
        traffic=TrafficSpec(**good["traffic"]),
        safety=SafetySpec(**good["safety"]),
        knobs=tuple(KnobSpec(name, values) for name, values in good["knobs"].items()),
        keep=Setting.of(good["keep"]),
        load=load,
        workloads=tuple(WorkloadSpec(name=name, **keys) for name, keys in good["workloads"].items()),
        goals=tuple(goal_of(name, keys, load.concurrency) for name, keys in good["goals"].items()),
        budget=BudgetSpec(**good["budget"]),
        canary=CanarySpec(**good["canary"]),
    )
