"""What SGLang called things in which version: spellings that were renamed or removed, and where a value began.

Patch numbers of 0.5.x, from the argument parsers of the releases 0.5.9 to 0.5.23. A later version is read as 0.5.23, an
earlier one as 0.5.9; a build between two releases as the release that it is made from.
"""

from __future__ import annotations

from leadline.dialect.question import numbers
from leadline.engines.sglang.options import options, windows
from leadline.errors import InputError

OLDEST, NEWEST = 9, 23

GRAPH_BATCH, GRAPH_BATCH_OLD = "--cuda-graph-max-bs-decode", "--cuda-graph-max-bs"
"""The new one from 0.5.14 on; the old one until 0.5.19. From 0.5.20 on the old one is ambiguous, and refused."""

GRAPH_BATCH_NEW_SINCE = 14

SUCCESSORS = {
    GRAPH_BATCH_OLD: GRAPH_BATCH,
    "--cuda-graph-bs": "--cuda-graph-bs-decode",
    "--cuda-graph-tc-compiler": "--cuda-graph-config",
    "--dsa-prefill-cp-mode": "--cp-strategy",
    "--enable-breakable-cuda-graph": "--cuda-graph-backend-prefill breakable",
    "--enable-dsa-prefill-context-parallel": "--enable-prefill-cp",
    "--enable-expert-distribution-metrics": "--expert-balancedness-report-mode",
    "--enable-gdn-replayssm-spec": "--enable-linear-replayssm-spec",
    "--enable-nsa-prefill-context-parallel": "--enable-prefill-cp",
    "--enable-piecewise-cuda-graph": "--enforce-piecewise-cuda-graph, or --cuda-graph-backend-prefill tc_piecewise",
    "--enable-prefill-context-parallel": "--enable-prefill-cp",
    "--disable-piecewise-cuda-graph": "--cuda-graph-backend-prefill disabled",
    "--enforce-piecewise-cuda-graph": "--cuda-graph-backend-prefill tc_piecewise",
    "--hybrid-kvcache-ratio": "--swa-full-tokens-ratio",
    "--mamba-scheduler-strategy": "--mamba-radix-cache-strategy",
    "--nsa-decode-backend": "--dsa-decode-backend",
    "--nsa-prefill-backend": "--dsa-prefill-backend",
    "--nsa-prefill-cp-mode": "--cp-strategy",
    "--piecewise-cuda-graph-compiler": "--cuda-graph-backend-prefill",
    "--piecewise-cuda-graph-max-tokens": "--cuda-graph-max-bs-prefill",
    "--piecewise-cuda-graph-tokens": "--cuda-graph-bs-prefill",
    "--prefill-cp-mode": "--cp-strategy",
    "--speculative-dflash-draft-window-size": "--speculative-draft-window-size",
    "--speculative-ngram-branch-length": "--speculative-ngram-max-trie-depth",
    "--speculative-ngram-max-match-window-size": "--speculative-ngram-max-trie-depth",
    "--speculative-ngram-min-match-window-size": "--speculative-ngram-max-trie-depth",
    "--stream-output": "--incremental-streaming-output",
}
"""By a spelling that was removed: what took its place, where something did."""

_KV_DTYPES = (
    ("auto", 0, None),
    ("fp8_e5m2", 0, None),
    ("fp8_e4m3", 0, None),
    ("bf16", 0, None),
    ("bfloat16", 0, None),
    ("fp4_e2m1", 0, 21),
    ("mxfp8", 16, None),
    ("nvfp4", 16, None),
    ("fp4_mx_block16", 16, None),
)
"""Values of `--kv-cache-dtype`: the first version with it, and the first without it again."""


def patch_of(version: str | None) -> int | None:
    """The patch number of `0.5.16`, `v0.5.13.post1` or `0.5.17.dev3+g1a2b3c`, 9 to 23; None when it is not known."""
    found = numbers(version)
    if found is None:
        return None
    series, patch = found[:2], found[2]
    if series != (0, 5):
        return NEWEST if series > (0, 5) else OLDEST
    return min(max(patch, OLDEST), NEWEST)


def said(patch: int | None) -> str:
    """The version in a message."""
    return "SGLang" if patch is None else f"SGLang 0.5.{patch}"


def refuse(word: str, patch: int | None) -> None:
    """Raises InputError for a flag that this version has no more, or takes for several."""
    if not word.startswith("--"):
        return
    _, until = windows().get(word, (0, None))
    if patch is not None and until is not None and until <= patch:
        successor = SUCCESSORS.get(word)
        hint = f"write {successor} instead" if successor else "nothing took its place: leave it out"
        raise InputError(f"{said(patch)} has no {word} (removed in 0.5.{until}): {hint}")
    if word in windows():
        return  # not there yet, if the version is right: the server that runs knows better
    several = sorted(s for s in options(patch) if s.startswith(word))
    if len(several) > 1:
        raise InputError(f"{said(patch)} refuses {word}: it could mean {', '.join(several[:4])}; write it in full")


def refuse_early(word: str, patch: int | None) -> None:
    """Raises InputError for a flag that came later than this version."""
    since = windows().get(word, (0, None))[0]
    if patch is not None and since > patch:
        raise InputError(f"{said(patch)} has no {word} yet: it came with 0.5.{since}")


def graph_batch_flag(patch: int | None, present: str | None) -> str:
    """The spelling of `graph_max_batch`: the one that the command has (`present`), if this version takes it.

    Raises InputError when neither the version nor the command says which.
    """
    if present is not None:
        return present
    if patch is None:
        raise InputError(
            f"graph_max_batch is {GRAPH_BATCH_OLD} in SGLang before 0.5.{GRAPH_BATCH_NEW_SINCE} and {GRAPH_BATCH} "
            "since, and the server's version is not known: set engine_version under [service]"
        )
    return GRAPH_BATCH if patch >= GRAPH_BATCH_NEW_SINCE else GRAPH_BATCH_OLD


def kv_dtypes(patch: int | None) -> tuple[str, ...]:
    """What `--kv-cache-dtype` takes; of any version when it is not known."""
    return tuple(name for name, since, until in _KV_DTYPES if within(patch, since, until))


def within(patch: int | None, since: int, until: int | None) -> bool:
    """Whether something that began with one patch version and ended before another is there; True when unknown."""
    return patch is None or since <= patch < (until or patch + 1)
