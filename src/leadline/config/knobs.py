"""[knobs] and [keep]: which names mean something, and the values that each may have."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from leadline.config.keys import read_keys
from leadline.config.kinds import SCALAR, Kind, distinct
from leadline.config.review import OUTSIDE, Review, dotted, found, listed, looks_secret, meant
from leadline.config.table import KNOBS, RANGE
from leadline.space import Value

MAX_VALUES = 1000
_OTHER = re.compile(r"flag:--[A-Za-z0-9][\w.-]*|env:[A-Za-z_]\w*", re.ASCII)
_KINDS = {key.name: key.kind for key in KNOBS.keys}
_LIST = "a list of values, at least one, or { from = 1, to = 8 }"


def check_name(review: Review, key: str, name: str, engine: str | None, what: str = "an unknown name") -> bool:
    """Whether it is a knob of this engine, a flag or a variable. Without a known engine, any engine's knobs are."""
    if looks_secret(name):
        review.wrong(key, "a secret in clear (not shown)", "values that anybody may see", OUTSIDE)
        return False
    if _OTHER.fullmatch(name):
        return True
    own = review.names.knobs.get(engine or "")
    known = own if own is not None else tuple(dict.fromkeys(k for ks in review.names.knobs.values() for k in ks))
    if name not in known:
        review.wrong(key, what, listed([*known, '"flag:--NAME"', '"env:NAME"']), _meant(name, known))
    return name in known


def _meant(name: str, known: Iterable[str]) -> str:
    """`flag:threads`, `--threads`, `env:MY-VAR`: the spelling of other flags and variables is easily missed."""
    flag = re.fullmatch(r"(?:flag:)?-{0,2}([A-Za-z0-9][\w.-]*)", name)
    if flag and (name.startswith(("flag:", "-"))):
        return f'did you mean "flag:--{flag[1]}"?'
    return meant(name, known)


def read_knobs(review: Review, table: dict[str, Any], service: object) -> dict[str, tuple[Value, ...]]:
    """Name -> values; empty for a knob whose name or values are wrong."""
    good: dict[str, tuple[Value, ...]] = {}
    for name, raw in table.items():
        at = dotted("knobs", name)
        known = check_name(review, at, name, _engine(service))
        good[name] = _values(review, at, _KINDS.get(name, SCALAR), raw) if known else ()
    return good


def read_keep(review: Review, table: dict[str, Any], service: object) -> dict[str, Value | None]:
    """Name -> value; None for a knob whose name or value is wrong."""
    good: dict[str, Value | None] = {}
    for name, raw in table.items():
        at = dotted("keep", name)
        known = check_name(review, at, name, _engine(service))
        good[name] = _KINDS.get(name, SCALAR).read(review, at, raw) if known else None
    return good


def _engine(service: object) -> str | None:
    engine = service.get("engine") if isinstance(service, dict) else None
    return engine if isinstance(engine, str) else None


def _values(review: Review, at: str, kind: Kind, raw: object) -> tuple[Value, ...]:
    if isinstance(raw, dict):
        return _range(review, at, kind, raw)
    if not isinstance(raw, list) or not raw:
        scalar = isinstance(raw, int | float | str)
        review.wrong(at, found(raw), _LIST, f"did you mean [{found(raw)}], or [keep]?" if scalar else "")
        return ()
    return distinct(review, at, raw, [kind.read(review, f"{at}[{i}]", value) for i, value in enumerate(raw)])


def _range(review: Review, at: str, kind: Kind, raw: dict[str, Any]) -> tuple[Value, ...]:
    before = len(review.problems)
    good = read_keys(review, RANGE, at, raw)
    if len(review.problems) > before:
        return ()
    first, last, step = good["from"], good["to"], good.get("step", 1)
    if first > last:
        review.wrong(
            at, f"from = {first}, to = {last}", "from no larger than to", f"did you mean from = {last}, to = {first}?"
        )
        return ()
    values = range(first, last + 1, step)
    if len(values) > MAX_VALUES:
        review.wrong(at, f"{len(values)} values", f"at most {MAX_VALUES}", "use a larger step")
        return ()
    ends = [kind.read(review, f"{at}.{end}", raw[end]) for end in ("from", "to")]
    return () if None in ends else tuple(kind.read(review, at, value) for value in values)
