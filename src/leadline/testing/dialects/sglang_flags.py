"""`sglang serve`'s command line, for the lab: the options that matter, and what it refuses (as of 0.5.16 to 0.5.23)."""

from __future__ import annotations

from collections.abc import Sequence

from leadline.testing.dialects import Exit, Flags
from leadline.testing.dialects.arguments import ArgumentError, Given, Grammar, read
from leadline.testing.dialects.sglang_words import BARE, MANY, VALUED

_PROGRAM = "sglang serve"
_ALIASES = {
    "--model": "--model-path",
    "--tp": "--tp-size",
    "--tensor-parallel-size": "--tp-size",
    "--speculative-draft-model": "--speculative-draft-model-path",
}
_OLD = {"cuda-graph-max-bs", "cuda-graph-bs"}  # until 0.5.19
_SPECULATING_MAX_RUNNING = 48
_CHAINS = ("EAGLE", "EAGLE3", "STANDALONE")
_ALGORITHMS = (*_CHAINS, "NEXTN", "NGRAM", "DFLASH", "DSPARK", "UNO")
_RESET = (
    "Max running requests is reset to 48 for speculative decoding. You can override this by explicitly setting "
    "--max-running-requests."
)
_ADJUSTED = "speculative_num_draft_tokens is adjusted to speculative_num_steps + 1 when speculative_eagle_topk == 1"
_NO_TOPK = (
    "Traceback (most recent call last):",
    '  File "sglang/srt/arg_groups/speculative_hook.py", line 640, in _handle_eagle_family',
    "    server_args.speculative_eagle_topk > 1",
    "TypeError: '>' not supported between instances of 'NoneType' and 'int'",
)


class _Refused(ValueError):
    """A combination that the server's own checks refuse; the lines that it prints. It ends with exit code 1."""

    def __init__(self, *lines: str) -> None:
        super().__init__(lines[-1])
        self.lines = lines


def parse(argv: Sequence[str], *, default_port: int, version: str) -> Flags | Exit:
    """A command line without its program; the words `serve` and `-m sglang.launch_server` may stand before it."""
    if argv[:1] == ["version"]:
        return Exit((f"sglang version: {version}", "git revision: leadlin"), 0, stdout=True)
    words = list(argv[1:] if argv[:1] == ["serve"] else argv)
    try:
        given = read(words[2:] if words[:2] == ["-m", "sglang.launch_server"] else words, _grammar(version))
        if given.has("--help"):
            return Exit((f"usage: {_PROGRAM} [-h] --model-path MODEL_PATH ...",), 0, stdout=True)
        if given.text("--model-path") is None:
            raise ArgumentError("the following arguments are required: --model-path/--model")
        return _flags(given, default_port)
    except ArgumentError as exc:
        return Exit((f"usage: {_PROGRAM} [-h] --model-path MODEL_PATH", f"{_PROGRAM}: error: {exc}"), 2)
    except _Refused as exc:
        return Exit(exc.lines, 1)


def _grammar(version: str) -> Grammar:
    old = _OLD if _release(version) < (0, 5, 20) else set[str]()
    valued, many, bare = ({f"--{n}" for n in words.split()} for words in (VALUED, MANY, BARE))
    known = valued | many | bare | {f"--{n}" for n in old}
    return Grammar(frozenset(known), frozenset(bare), frozenset(many), {**_ALIASES, **_old_names(old)})


def _old_names(old: set[str]) -> dict[str, str]:
    return {f"--{n}": f"--{n}-decode" for n in old}


def _release(version: str) -> tuple[int, ...]:
    numbers = version.partition("+")[0].split(".")[:3]
    return tuple(int(n) for n in numbers if n.isdigit())


def _flags(given: Given, default_port: int) -> Flags:
    method, steps, topk, width, warnings = _speculation(given)
    asked = given.integer("--max-running-requests")
    if method != "none" and asked is None:
        asked = _SPECULATING_MAX_RUNNING
        warnings = (_RESET, *warnings)
    host, port = given.text("--host") or "127.0.0.1", given.integer("--port")
    model = given.text("--model-path") or "lab"
    key, metrics = given.text("--api-key"), given.has("--enable-metrics")
    fraction, context = given.number("--mem-fraction-static"), given.integer("--context-length")
    return Flags(
        host=host,
        port=default_port if port is None else port,
        depth=0 if method == "none" else steps if method in _CHAINS else width - 1,
        method=method,
        max_running=asked,
        context=context or 0,
        model=model,
        alias=given.text("--served-model-name") or "",
        metrics=metrics,
        api_keys=(key,) if key else (),
        topk=topk,
        draft_tokens=width,
        draft_model=given.text("--speculative-draft-model-path") or "",
        memory_fraction=0.75 if fraction is None else fraction,
        decode_log_interval=given.integer("--decode-log-interval") or 40,
        warnings=warnings,
        told={
            "kv_cache_dtype": given.text("--kv-cache-dtype") or "auto",
            "tp_size": given.integer("--tp-size") or 1,
            "cuda_graph_max_bs_decode": given.integer("--cuda-graph-max-bs-decode") or min(asked or 256, 256),
            "disable_cuda_graph": given.has("--disable-cuda-graph"),
            "disable_radix_cache": given.has("--disable-radix-cache"),
            "chunked_prefill_size": given.integer("--chunked-prefill-size") or 8192,
            "page_size": given.integer("--page-size") or 1,
            "watchdog_timeout": given.integer("--watchdog-timeout") or 300,
            "schedule_conservativeness": given.number("--schedule-conservativeness") or 1.0,
        },
    )


def _speculation(given: Given) -> tuple[str, int, int, int, tuple[str, ...]]:
    """Algorithm, steps, topk, width of a verification and warnings, as `handle_speculative_decoding` resolves them."""
    named = given.text("--speculative-algorithm")
    if named is None:
        return "none", 0, 1, 0, ()
    method = named.upper()
    if method not in _ALGORITHMS:
        raise _Refused(f"ValueError: Unknown speculative algorithm name: {named}")
    method = "EAGLE" if method == "NEXTN" else method
    steps = given.integer("--speculative-num-steps")
    topk = given.integer("--speculative-eagle-topk")
    width = given.integer("--speculative-num-draft-tokens")
    if method == "NGRAM":
        return method, 0, 10, width or 12, ()
    if method not in _CHAINS:
        return method, 0, 1, width or 8, ()
    return (method, *_chain(steps, topk, width))


def _chain(steps: int | None, topk: int | None, width: int | None) -> tuple[int, int, int, tuple[str, ...]]:
    if steps is None:
        if topk is not None or width is not None:
            raise _Refused("Traceback (most recent call last):", "AssertionError")
        return 3, 1, 4, ()
    if topk is None:
        raise _Refused(_RESET, *_NO_TOPK)
    if topk == 1 and width != steps + 1:
        return steps, topk, steps + 1, (_ADJUSTED,)
    return steps, topk, width or steps + 1, ()
