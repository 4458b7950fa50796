"""How numbers, settings and verdicts are worded, the same in every format.

A difference that was not shown is never worded as a gain: its percentage is not printed at all.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence

from leadline import metrics
from leadline.answer import Ratio, Verdict
from leadline.goal import Goal
from leadline.space import Setting, Space

NO_DIFFERENCE = str(Verdict.NO_DIFFERENCE)
LEGEND = f'"~" = {NO_DIFFERENCE}: the interval holds 1'
NONE = "-"


def clean(text: str) -> str:
    """Text from settings, logs and servers with control and invisible characters made visible; newlines stay.

    An escape sequence in a log line must not reach a terminal, nor a direction override a reader.
    """
    return "".join(
        c if c == "\n" or unicodedata.category(c) not in ("Cc", "Cf", "Cs") else ascii(c)[1:-1] for c in text
    )


def number(value: float | None, like: float | None = None) -> str:
    """Four significant digits at most; `like` gives the decimals of another number, for the bounds beside it."""
    if value is None:
        return NONE
    size = abs(value if like is None else like)
    decimals = next((d for limit, d in ((1000, 0), (10, 1), (1, 2), (0.1, 3)) if size >= limit), 4)
    return f"{value:.{decimals if size else 0}f}"


def count(value: int) -> str:
    return f"{value:,}"


def bounds(lo: float, hi: float, like: float) -> str:
    return f"[{number(lo, like)}, {number(hi, like)}]"


def ratio(value: Ratio | None) -> str:
    """`1.253 [1.214, 1.291]`, with "~" when no difference was shown."""
    if value is None or value.pairs == 0:
        return "not comparable"
    return str(value) + (" ~" if value.verdict is Verdict.NO_DIFFERENCE else "")


def gain(value: Ratio | None) -> str:
    """`+25.3 %`, only for a difference that was shown."""
    if value is None or value.pairs == 0:
        return "not comparable"
    return NO_DIFFERENCE if value.verdict is Verdict.NO_DIFFERENCE else f"{100 * (value.ratio - 1):+.1f} %"


def verdict(value: Ratio | None) -> str:
    return "not comparable" if value is None or value.pairs == 0 else str(value.verdict)


def interval(value: Ratio) -> str:
    """`95 % interval 1.214 to 1.291, 4 launch pairs`."""
    pairs = "1 launch pair" if value.pairs == 1 else f"{value.pairs} launch pairs"
    return f"{100 * value.confidence:.0f} % interval {value.lo:.3f} to {value.hi:.3f}, {pairs}"


def flag(space: Space, name: str) -> str:
    return next((k.flag for k in space.knobs if k.name == name), "")


def knob(space: Space, name: str) -> str:
    """`depth (--spec-draft-n-max)`: the engine's own flag beside the name; alone when the name is the flag."""
    own = flag(space, name)
    return f"{name} ({own})" if own and own not in name else name


def knobs(space: Space) -> str:
    return ", ".join(knob(space, name) for name in space.names())


def setting(value: Setting | None, space: Space) -> str:
    """`depth=6 (--spec-draft-n-max)`: a setting for a sentence, with the engine's flag beside each knob."""
    if value is None:
        return "no setting"
    words = []
    for name, one in value:
        own = flag(space, name)
        word = str(Setting(((name, one),)))
        words.append(f"{word} ({own})" if own and own not in name else word)
    return " ".join(words) or str(value)


def metric(name: str) -> str:
    """`output_tok_s (tok/s, higher is better)`."""
    better = metrics.better(name)
    parts = [p for p in (metrics.unit(name), f"{better} is better" if better else "") if p]
    return f"{name} ({', '.join(parts)})" if parts else name


def weights(goal: Goal) -> str:
    """`coding@1` or `coding@4 x 0.7, chat@32 x 0.3`."""
    if len({w.weight for w in goal.weights}) == 1:
        return ", ".join(str(w.cell) for w in goal.weights)
    return ", ".join(f"{w.cell} x {w.weight:g}" for w in goal.weights)


def prose(parts: Iterable[str]) -> str:
    """Sentences in a row; those that lack a full stop get one, empty ones go."""
    return " ".join(p if p.endswith((".", "!", "?", "]", ")")) else f"{p}." for p in parts if p)


def listed(items: Sequence[str]) -> str:
    """`a, b and c`."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}" if items else ""
