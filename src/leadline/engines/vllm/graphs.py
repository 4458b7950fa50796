"""The captured CUDA graphs of a launch: `graph_max_batch` counts requests, vLLM counts tokens.

A decode step of a request with depth K runs 1 + K tokens, so that graphs up to T tokens hold T // (1 + K) requests
(`_set_cudagraph_sizes` and `adjust_cudagraph_sizes_for_spec_decode` in vllm/config; what a batch beyond them costs is
seen in vllm-project/vllm#49390). A limit below one request's tokens reads as one request.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from leadline.engines.vllm import nested
from leadline.engines.vllm.reading import Options
from leadline.engines.vllm.values import whole
from leadline.engines.vllm.versions import CAPTURE_LIMIT, FINE_CAPTURE_SIZES, Release, has
from leadline.errors import InputError

SIZES, LIMIT, OLD_SIZES = "--cudagraph-capture-sizes", "--max-cudagraph-capture-size", "--cuda-graph-sizes"
COMPILATION, SHORT_COMPILATION = "--compilation-config", "-O"
SIZES_KEY, LIMIT_KEY = "cudagraph_capture_sizes", "max_cudagraph_capture_size"


def in_force(options: Options, depth: int) -> int | None:
    """The most requests in a captured decode step, where the launch limits it."""
    tokens = max_tokens(options)
    return None if tokens is None else max(1, tokens // (1 + depth))


def max_tokens(options: Options) -> int | None:
    sizes = _sizes(options)
    if sizes:
        return max(sizes)
    if (limit := whole(LIMIT, options.text(LIMIT))) is not None:
        return limit
    old = _numbers(OLD_SIZES, options.words(OLD_SIZES))
    if len(old) == 1:
        return old[0]
    limit_key = _compiled(options).get(LIMIT_KEY)
    return limit_key if isinstance(limit_key, int) and not isinstance(limit_key, bool) else None


def put_in_force(
    options: Options, now: tuple[int, int | None], full: tuple[int, int | None], release: Release | None
) -> Options:
    """`now` and `full` are depth and requests. A list of sizes keeps the requests of each of them."""
    (old_depth, _), (depth, requests) = now, full
    if requests is None or now == full:
        return options
    most = requests * (1 + depth)
    sizes = _sizes(options)
    if sizes:
        held = {max(1, size // (1 + old_depth)) for size in sizes}
        return _put_sizes(options, sorted({n * (1 + depth) for n in held if n <= requests} | {most}), most)
    _check_size(requests, depth, release)
    if LIMIT_KEY in _compiled(options):
        return nested.put(options, COMPILATION, LIMIT_KEY, most)
    if options.has(OLD_SIZES) or not (options.has(LIMIT) or has(release, CAPTURE_LIMIT, unknown=True)):
        return options.set(OLD_SIZES, most)
    return options.set(LIMIT, most)


def _put_sizes(options: Options, sizes: Sequence[int], most: int) -> Options:
    if options.has(LIMIT):  # vLLM refuses a limit that is not the largest size
        options = options.set(LIMIT, most)
    if LIMIT_KEY in _compiled(options):
        options = nested.put(options, COMPILATION, LIMIT_KEY, most)
    for flag in (SIZES, OLD_SIZES):
        if options.has(flag):
            return options.set(flag, *sizes)
    if options.has(SHORT_COMPILATION):
        raise InputError(f"{SIZES_KEY} stands in {SHORT_COMPILATION} here: give it under {COMPILATION}")
    return nested.put(options, COMPILATION, SIZES_KEY, list(sizes))


def _check_size(requests: int, depth: int, release: Release | None) -> None:
    """A limit that is no captured size is lowered to the next one in silence."""
    if _captured(requests * (1 + depth), release):
        return
    near = [n for n in range(max(1, requests - 16), requests + 17) if _captured(n * (1 + depth), release)]
    raise InputError(
        f"graph_max_batch={requests} at depth {depth} is {requests * (1 + depth)} tokens, and vLLM captures graphs of "
        "1, 2, 4, multiples of 8, and from 256 on multiples of 16 tokens: set graph_max_batch to one of "
        f"{', '.join(map(str, near)) or 'those'}"
    )


def _captured(tokens: int, release: Release | None) -> bool:
    fine = has(release, FINE_CAPTURE_SIZES, unknown=True)
    return tokens in (1, 2, 4) or tokens % (16 if fine and tokens >= 256 else 8) == 0


def _sizes(options: Options) -> tuple[int, ...]:
    """The sizes where the launch lists them."""
    listed = _numbers(SIZES, options.words(SIZES))
    old = _numbers(OLD_SIZES, options.words(OLD_SIZES))
    compiled = _compiled(options).get(SIZES_KEY)
    if isinstance(compiled, list):
        if not all(isinstance(n, int) and not isinstance(n, bool) for n in compiled):
            raise InputError(f"{SIZES_KEY} is a list of whole numbers: vLLM would not start")
        if listed:
            raise InputError(f"{SIZES_KEY} is given twice, which vLLM refuses: keep {SIZES}")
        return tuple(compiled)
    return listed or (old if len(old) > 1 else ())


def _compiled(options: Options) -> dict[str, Any]:
    given = nested.given(options, COMPILATION)
    short = options.text(SHORT_COMPILATION)
    if given is None and short is not None and short.startswith("{"):
        try:
            value = json.loads(short)
        except ValueError:
            raise InputError(f"the value of {SHORT_COMPILATION} is no JSON, and vLLM would not start") from None
        return value if isinstance(value, dict) else {}
    return given or {}


def _numbers(flag: str, words: Sequence[str]) -> tuple[int, ...]:
    return tuple(n for n in (whole(flag, word) for word in words) if n is not None)
