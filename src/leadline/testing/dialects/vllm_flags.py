"""`vllm serve`'s command line, for the lab: the options that matter, and what it refuses (as of 0.33)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from leadline.testing.dialects import Exit, Flags
from leadline.testing.dialects.arguments import ArgumentError, Given, Grammar, read
from leadline.testing.dialects.vllm_words import MANY, SWITCHES, VALUED

_ALIASES = {
    "-sc": "--speculative-config",
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-q": "--quantization",
    "-cc": "--compilation-config",
    "-h": "--help",
    "-v": "--version",
    "--device-memory-utilization": "--gpu-memory-utilization",
}
_SHORTCUTS = {"--spec-method": "method", "--spec-model": "model", "--spec-tokens": "num_speculative_tokens"}
_SPEC = "--speculative-config"
_ALONE = ("ngram", "ngram_gpu", "suffix", "mtp")  # need no draft model
_METHODS = (*_ALONE, "draft_model", "eagle", "eagle3", "dflash", "dspark", "custom_class", "extract_hidden_states")
_LEVELS = ("none", "summary", "detailed")
_USAGE = "usage: vllm [-h] [-v] {chat,complete,serve,launch,bench,collect-env,run-batch} ..."


class _Refused(ValueError):
    """What the configuration's own checks refuse. The server ends with exit code 1."""


def parse(argv: Sequence[str], *, default_port: int, version: str) -> Flags | Exit:
    """A command line without its program; the words that choose `serve` may stand before it."""
    words = list(argv)
    if words[:2] == ["-m", "vllm.entrypoints.openai.api_server"]:
        words = words[2:]
    if words[:1] == ["serve"]:
        words = words[1:]
    try:
        spec, rest = _dotted([_dashed(w) for w in words])
        given = read(rest, _grammar(), positionals=1)
        if given.has("--version"):
            return Exit((version,), 0, stdout=True)
        if given.has("--help"):
            return Exit(("usage: vllm serve [model_tag] [options]",), 0, stdout=True)
        return _flags(given, {**_speculation(given), **spec}, default_port)
    except ArgumentError as exc:
        return Exit((_USAGE, f"vllm: error: {exc}"), 2)
    except _Refused as exc:
        return Exit(("(APIServer pid=1) Traceback (most recent call last):", f"(APIServer pid=1) {exc}"), 1)


def _grammar() -> Grammar:
    valued, many, switches = ({f"--{n}" for n in words.split()} for words in (VALUED, MANY, SWITCHES))
    opposite = {f"--no-{n[2:]}" for n in switches}
    known = valued | many | switches | opposite | set(_ALIASES)
    bare = switches | opposite | {"-h", "-v"}
    return Grammar(frozenset(known), frozenset(bare), frozenset(many), _ALIASES)


def _dashed(word: str) -> str:
    """vLLM takes underscores in the names of options."""
    name, equals, value = word.partition("=")
    if not name.startswith("--"):
        return word
    head, dot, key = name.partition(".")
    return head.replace("_", "-") + dot + key + equals + value


def _dotted(words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """`--speculative-config.method ngram` and the like, apart from the rest."""
    spec: dict[str, Any] = {}
    rest: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        name, equals, value = word.partition("=")
        head, dot, key = name.partition(".")
        if dot and head in (_SPEC, "-sc"):
            text = value if equals else left.pop(0) if left else ""
            spec[key] = _value(text)
        else:
            rest.append(word)
    return spec, rest


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _speculation(given: Given) -> dict[str, Any]:
    text = given.text(_SPEC)
    found: Any = {}
    if text is not None:
        try:
            found = msgspec.json.decode(text)
        except msgspec.DecodeError:
            raise ArgumentError(
                f"argument {_SPEC}/-sc: Value {text} cannot be converted to <function loads>."
            ) from None
    if not isinstance(found, dict):
        raise _Refused("TypeError: vllm.config.speculative.SpeculativeConfig() argument after ** must be a mapping")
    for flag, key in _SHORTCUTS.items():
        short = given.integer(flag) if key == "num_speculative_tokens" else given.text(flag)
        if short is not None and key in found:
            raise _Refused(f"ValueError: {flag} and {_SPEC}['{key}'] are mutually exclusive")
        found = found if short is None else {**found, key: short}
    return dict(found)


def _flags(given: Given, spec: dict[str, Any], default_port: int) -> Flags:
    method, depth = _resolved(spec)
    level = given.text("--per-request-spec-decode-metrics") or "none"
    if level not in _LEVELS:
        raise ArgumentError(
            f"argument --per-request-spec-decode-metrics: invalid choice: {level!r} (choose from {_LEVELS})"
        )
    if level != "none" and not depth:
        raise _Refused(
            "ValueError: --per-request-spec-decode-metrics requires speculative decoding to be enabled (via "
            "--speculative-config)."
        )
    port, seats = given.integer("--port"), given.integer("--max-num-seqs")
    fraction = given.number("--gpu-memory-utilization")
    model = given.positional[0] if given.positional else given.text("--model")
    return Flags(
        host=given.text("--host") or "0.0.0.0",
        port=default_port if port is None else port,
        depth=depth,
        method=method,
        max_running=seats,
        context=given.integer("--max-model-len") or 0,
        model=model or "lab",
        alias=given.text("--served-model-name") or "",
        metrics=True,
        api_keys=given.words("--api-key"),
        draft_model=str(spec.get("model") or ""),
        memory_fraction=0.92 if fraction is None else fraction,
        per_request=level != "none",
        told={
            "enforce_eager": given.has("--enforce-eager"),
            "cache_dtype": given.text("--kv-cache-dtype") or "auto",
            "tensor_parallel_size": given.integer("--tensor-parallel-size") or 1,
            "enable_prefix_caching": not given.has("--no-enable-prefix-caching"),
            "disable_log_stats": given.has("--disable-log-stats"),
        },
    )


def _resolved(spec: dict[str, Any]) -> tuple[str, int]:
    """Method and depth, as `SpeculativeConfig` resolves them."""
    if not spec:
        return "none", 0
    method, model, tokens = spec.get("method"), spec.get("model"), spec.get("num_speculative_tokens")
    if isinstance(tokens, bool) or not isinstance(tokens, int | None):
        raise _Refused(_invalid("num_speculative_tokens", "Input should be a valid integer"))
    if tokens is not None and tokens <= 0:
        raise _Refused(_invalid("num_speculative_tokens", "Input should be greater than 0"))
    if method is None:
        method = "eagle3" if "eagle3" in str(model) else "draft_model"
    if method not in _METHODS:
        raise _Refused(_invalid("method", f"Input should be one of {', '.join(_METHODS)}"))
    if model is None and method not in _ALONE:
        raise _Refused(_invalid("", "num_speculative_tokens was provided but without speculative model."))
    if tokens is None and method != "suffix":
        raise _Refused(
            _invalid(
                "",
                "num_speculative_tokens must be provided with speculative model unless the draft model config contains "
                "an n_predict parameter.",
            )
        )
    return str(method), tokens or 24


def _invalid(field: str, why: str) -> str:
    said = f"{field}\n  {why}" if field else f"  Value error, {why}"
    return f"pydantic_core._pydantic_core.ValidationError: 1 validation error for SpeculativeConfig\n{said}"
