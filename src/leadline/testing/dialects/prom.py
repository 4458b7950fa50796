"""Prometheus text, as the Python client library writes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


class Page:
    """One scrape in the making: families in the order of their first sample."""

    def __init__(self, **labels: str) -> None:
        self._labels, self._families = labels, dict[str, tuple[str, list[str]]]()

    def gauge(self, name: str, value: float, **labels: str) -> None:
        self._add(name, "gauge", value, labels)

    def counter(self, name: str, value: float, **labels: str) -> None:
        self._add(name, "counter", value, labels)

    def histogram(self, name: str, value: float, count: int, bounds: Iterable[float]) -> None:
        """Sum and count alone are true; every observation is in the last bucket."""
        for bound in bounds:
            self._add(f"{name}_bucket", "histogram", 0, {"le": str(bound)}, name)
        self._add(f"{name}_bucket", "histogram", count, {"le": "+Inf"}, name)
        self._add(f"{name}_count", "histogram", count, {}, name)
        self._add(f"{name}_sum", "histogram", value, {}, name)

    def _add(self, name: str, kind: str, value: float, labels: Mapping[str, str], family: str = "") -> None:
        shown = ",".join(f'{k}="{_escaped(v)}"' for k, v in sorted({**self._labels, **labels}.items()))
        lines = self._families.setdefault(family or name, (kind, []))[1]
        lines.append(f"{name}{{{shown}}} {float(value)!r}" if shown else f"{name} {float(value)!r}")

    def body(self) -> bytes:
        lines: list[str] = []
        for name, (kind, samples) in self._families.items():
            lines += [f"# HELP {name} Lab figure.", f"# TYPE {name} {kind}", *samples]
        return ("\n".join(lines) + "\n").encode()


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
