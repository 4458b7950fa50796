"""What differs between versions of vLLM, and how a version is read.

Read: the releases 0.11.0, 0.11.2, 0.16.0, 0.18.0, 0.22.1, 0.28.0 and 0.33.0. Of what changed between two of them, the
last release without it is given, so that nothing is refused that might be there.
"""

from __future__ import annotations

from leadline.dialect.question import numbers

Release = tuple[int, int, int]

SHORTCUTS: Release = (0, 18, 1)
"""--spec-method, --spec-model, --spec-tokens: in 0.22.1, not in 0.18.0."""
CAPTURE_LIMIT: Release = (0, 11, 1)
"""--max-cudagraph-capture-size, --cudagraph-capture-sizes: in 0.11.2; 0.11.0 has --cuda-graph-sizes alone."""
REQUEST_METRICS: Release = (0, 32, 0)
"""--per-request-spec-decode-metrics: not in 0.28.0."""
FINE_CAPTURE_SIZES: Release = (0, 11, 1)
"""From here on, captured sizes of 256 and more are 16 apart; before, always 8."""

METHODS_SINCE: dict[str, Release] = {
    "draft_model": (0, 11, 3),
    "suffix": (0, 11, 1),
    "ngram_gpu": (0, 16, 1),
    "custom_class": (0, 18, 1),
    "dflash": (0, 18, 1),
    "dspark": (0, 22, 2),
}
"""Earlier releases refuse the method (`SpeculativeConfig` in vllm/config/speculative.py)."""
METHODS_UNTIL: dict[str, Release] = {"medusa": (0, 33, 0), "mlp_speculator": (0, 33, 0)}
"""From this release on the method is refused."""


def release(version: str | None) -> Release | None:
    """Of what `vllm --version` prints, of /version, or of a log; None when no version can be seen in it."""
    return numbers(version)


def has(now: Release | None, since: Release, *, unknown: bool) -> bool:
    """Whether a release has what came with `since`; `unknown` = the answer when the release is not known."""
    return unknown if now is None else now >= since


def without_method(now: Release | None, method: str) -> str:
    """Why a release has no such method; empty when it has, or may have."""
    if now is None:
        return ""
    since, until = METHODS_SINCE.get(method), METHODS_UNTIL.get(method)
    if (since is not None and now < since) or (until is not None and now >= until):
        return f"vLLM {'.'.join(map(str, now))} has no speculative method {method}"
    return ""
