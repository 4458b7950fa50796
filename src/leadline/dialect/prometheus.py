"""Prometheus' text format, as far as counters and gauges of a server need it."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from leadline.dialect.answers import MOST

_SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(\{.*\})?\s+(\S+)(?:\s+-?\d+)?\s*")
_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')


class Sample(msgspec.Struct, frozen=True):
    name: str
    labels: dict[str, str]
    value: float


class Samples(msgspec.Struct, frozen=True):
    """All readable samples of one scrape, by name. An absent series is absent, not 0."""

    by_name: Mapping[str, tuple[Sample, ...]]

    def has(self, name: str) -> bool:
        return name in self.by_name

    def total(self, name: str, **labels: str) -> float | None:
        """The sum over all series of that name that carry the labels (several ranks); None when there is none."""
        values = [s.value for s in self.by_name.get(name, ()) if labels.items() <= s.labels.items()]
        return sum(values) if values else None

    def most(self, name: str, **labels: str) -> float | None:
        """The largest of them: for what each rank repeats."""
        values = [s.value for s in self.by_name.get(name, ()) if labels.items() <= s.labels.items()]
        return max(values) if values else None

    def count(self, name: str, **labels: str) -> int | None:
        """`total` as a count; None when it is absent or no count."""
        total = self.total(name, **labels)
        return None if total is None or not 0 <= total <= MOST else int(total)

    def by_label(self, name: str, label: str) -> dict[str, float]:
        """Sums over the series of each value of a label."""
        sums: dict[str, float] = {}
        for sample in self.by_name.get(name, ()):
            if label in sample.labels:
                sums[sample.labels[label]] = sums.get(sample.labels[label], 0.0) + sample.value
        return sums


def parse(body: bytes | None) -> Samples:
    """Any bytes; lines that are no sample, and values that are no finite number, are passed over."""
    found: dict[str, list[Sample]] = {}
    for line in (body or b"").decode(errors="replace").splitlines():
        sample = None if line.startswith("#") else _sample(line)
        if sample is not None:
            found.setdefault(sample.name, []).append(sample)
    return Samples({name: tuple(samples) for name, samples in found.items()})


def _sample(line: str) -> Sample | None:
    match = _SAMPLE.fullmatch(line)
    if match is None:
        return None
    try:
        value = float(match[3])
    except ValueError:
        return None
    if not abs(value) <= MOST:
        return None
    return Sample(match[1], {m[1]: m[2] for m in _LABEL.finditer(match[2] or "")}, value)
