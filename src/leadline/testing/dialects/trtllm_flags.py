"""trtllm-serve's command line and YAML file, for the lab: what it knows and what it refuses (1.2 to 1.3rc)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from leadline.testing.dialects import Exit, Flags, Read

_VALUED = """
tokenizer custom_tokenizer host port backend custom_module_dirs log_level max_beam_width max_batch_size max_num_tokens
max_seq_len max_input_len tensor_parallel_size tp_size tp pipeline_parallel_size pp_size pp context_parallel_size
cp_size moe_expert_parallel_size ep_size ep moe_cluster_parallel_size cluster_size gpus_per_node chat_template
free_gpu_memory_fraction kv_cache_free_gpu_memory_fraction kv_cache_dtype num_postprocess_workers revision config
extra_llm_api_options reasoning_parser tool_parser metadata_server_config_file server_role otlp_traces_endpoint
disagg_cluster_uri media_io_kwargs
"""
_BARE = "trust_remote_code fail_fast_on_attention_window_too_large enable_chunked_prefill help"
_ALIASES = {"extra_llm_api_options": "config", "kv_cache_free_gpu_memory_fraction": "free_gpu_memory_fraction"}
_NEEDS_DRAFT = ("Eagle", "Eagle3", "Draft_Target", "PARD", "DFlash")
_TYPES = (*_NEEDS_DRAFT, "MTP", "NGram", "SA", "DSpark", "AUTO", "User_Provided", "SaveState", "Medusa", "Lookahead")
_USAGE = ("Usage: trtllm-serve serve [OPTIONS] MODEL", "Try 'trtllm-serve serve --help' for help.", "")


class _ClickError(ValueError):
    """What click says. The program ends with exit code 2."""


class _Refused(ValueError):
    """What the checks of the configuration say. The program ends with exit code 1."""


def parse(argv: Sequence[str], read: Read, *, default_port: int) -> Flags | Exit:
    """A command line without its program; the word `serve` may stand before it."""
    try:
        model, given = _split(argv[1:] if list(argv[:1]) == ["serve"] else argv)
        if "help" in given:
            return Exit((_USAGE[0],), 0, stdout=True)
        if model is None:
            raise _ClickError("Missing argument 'MODEL'.")
        return _flags(model, given, _config(given.get("config"), read), default_port)
    except _ClickError as exc:
        return Exit((*_USAGE, f"Error: {exc}"), 2)
    except _Refused as exc:
        return Exit(("Traceback (most recent call last):", *str(exc).splitlines()), 1)


def _split(argv: Sequence[str]) -> tuple[str | None, dict[str, str]]:
    """click's way: names are never completed, the last one counts."""
    valued, bare = set(_VALUED.split()), set(_BARE.split())
    given: dict[str, str] = {}
    model: str | None = None
    words = list(argv)
    while words:
        word = words.pop(0)
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--"):
            if model is not None:
                raise _ClickError(f"Got unexpected extra argument ({word})")
            model = word
        elif name in bare:
            given[name] = ""
        elif name not in valued:
            raise _ClickError(f"No such option: --{name}")
        elif not equals and not words:
            raise _ClickError(f"Option '--{name}' requires an argument.")
        else:
            given[_ALIASES.get(name, name)] = value if equals else words.pop(0)
    return model, given


def _config(path: str | None, read: Read) -> Mapping[str, Any]:
    if path is None:
        return {}
    text = read(path)
    if text is None:
        raise _Refused(f"FileNotFoundError: [Errno 2] No such file or directory: '{path}'")
    try:
        found = YAML(typ="safe", pure=True).load(text)
    except YAMLError as exc:
        raise _Refused(f"yaml.scanner.ScannerError: {exc}") from None
    if found is not None and not isinstance(found, dict):
        raise _Refused("TypeError: 'str' object is not a mapping")
    return found or {}


def _flags(model: str, given: Mapping[str, str], config: Mapping[str, Any], default_port: int) -> Flags:
    method, depth, draft = _speculation(config.get("speculative_config"))
    cache = config.get("kv_cache_config") or {}
    seats = _whole(given, "max_batch_size")
    port = _whole(given, "port")
    fraction = _number(given, "free_gpu_memory_fraction")
    fraction = cache.get("free_gpu_memory_fraction", 0.9) if fraction is None else fraction
    return Flags(
        host=given.get("host", "localhost"),
        port=default_port if port is None else port,
        depth=depth,
        method=method,
        max_running=config.get("max_batch_size") if seats is None else seats,
        context=_whole(given, "max_seq_len") or config.get("max_seq_len") or 0,
        model=model,
        metrics=bool(config.get("return_perf_metrics")),
        draft_model=draft,
        memory_fraction=float(fraction),
        told={
            "max_num_tokens": _whole(given, "max_num_tokens") or 8192,
            "iter_stats": bool(config.get("enable_iter_perf_stats")),
            "print_iter_log": bool(config.get("print_iter_log")),
            "cuda_graphs": "cuda_graph_config" not in config or config["cuda_graph_config"] is not None,
            "dtype": str(cache.get("dtype") or given.get("kv_cache_dtype") or "auto"),
            "backend": given.get("backend", "pytorch"),
        },
    )


def _speculation(block: Any) -> tuple[str, int, str]:
    """Method, depth and draft model, as `llmapi/llm_args.py` resolves them."""
    if not block:
        return "none", 0, ""
    if not isinstance(block, dict):
        raise _Refused("ValueError: speculative_config must be a mapping")
    method = block.get("decoding_type")
    if method not in _TYPES:
        raise _Refused(f"ValueError: Invalid decoding type: {method}")
    draft = block.get("speculative_model", block.get("speculative_model_dir")) or ""
    if method in _NEEDS_DRAFT and not draft:
        raise _Refused(f"ValueError: Draft model must be provided for {str(method).upper()}")
    depth = block.get("max_draft_len") or block.get("num_nextn_predict_layers") or 0
    if not isinstance(depth, int) or isinstance(depth, bool) or depth <= 0:
        raise _Refused(f"ValueError: max_draft_len must be > 0 for {method}")
    return str(method), depth, str(draft)


def _whole(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise _ClickError(f"Invalid value for '--{name}': {text!r} is not a valid integer.") from None


def _number(given: Mapping[str, str], name: str) -> float | None:
    text = given.get(name)
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        raise _ClickError(f"Invalid value for '--{name}': {text!r} is not a valid float.") from None
