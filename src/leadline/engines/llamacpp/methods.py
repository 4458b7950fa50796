"""How llama-server drafts: the values of `spec_method`, and which option is the depth of each.

Seen on build 10434: the n-gram methods draft `size-m` tokens, but nothing at all when `size-m` is less than `size-n`;
the draft models draft `n-max`, but nothing when `n-min` is more; `ngram-cache` always drafts up to 8 and reads no
option; a method that needs a draft model and has none is dropped in silence, the server runs without.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Method:
    """`depth_flag` None = the depth is `default`, always. `lookup_flag` = the n-gram that is looked up, at most the
    depth; `least_flag` = the least draft, at most the depth, `least` when not given."""

    name: str
    depth_flag: str | None
    default: int
    lookup_flag: str | None = None
    least_flag: str | None = None
    least: int = 0
    needs_draft: bool = False

    @property
    def draft_model(self) -> bool:
        return self.name.startswith("draft-")


def _draft(name: str, needs_draft: bool = True) -> Method:
    return Method(name, "--spec-draft-n-max", 3, least_flag="--spec-draft-n-min", needs_draft=needs_draft)


def _ngram(name: str) -> Method:
    return Method(name, f"--spec-{name}-size-m", 48, lookup_flag=f"--spec-{name}-size-n")


METHODS: dict[str, Method] = {
    m.name: m
    for m in (
        _draft("draft-simple"),
        _draft("draft-eagle3"),
        _draft("draft-mtp", needs_draft=False),
        _draft("draft-dflash"),
        _draft("draft-dspark"),
        _ngram("ngram-simple"),
        _ngram("ngram-map-k"),
        _ngram("ngram-map-k4v"),
        Method("ngram-mod", "--spec-ngram-mod-n-max", 64, least_flag="--spec-ngram-mod-n-min", least=48),
        Method("ngram-cache", None, 8),
    )
}

MOST_DEPTH = 1024
"""The longest n-gram that the server accepts."""

DEPTH_FLAGS = tuple(dict.fromkeys(m.depth_flag for m in METHODS.values() if m.depth_flag))
