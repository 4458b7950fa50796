"""Settings that SGLang refuses at its start, or only after loading, refused before a restart: one line a rule.

A rule sees the command line as it would be launched. It speaks only where the words say so: what depends on the model
or the device (the attention backend that SGLang chooses, a page size that a backend forces) is left to SGLang.
Sources are functions of `sglang/srt/arg_groups/` in 0.5.23 (of `server_args.py` in older releases).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from leadline.dialect.values import whole
from leadline.engines.sglang.methods import DRAFT_TOKENS, METHODS
from leadline.engines.sglang.versions import kv_dtypes, within
from leadline.engines.sglang.words import Words
from leadline.errors import InputError
from leadline.space import Setting

_TRUE = ("1", "true", "yes", "y")
_BACKENDS = ("--attention-backend", "--decode-attention-backend", "--prefill-attention-backend")


@dataclass(frozen=True, slots=True)
class Launch:
    """What a rule looks at: the words, and the setting that they have in force."""

    words: Words
    setting: Setting

    @property
    def method(self) -> str:
        return str(self.setting.get("spec_method") or "")

    @property
    def topk(self) -> int:
        """Branches at each step; NGRAM's are those of its search."""
        if self.method == "NGRAM":
            return self.number("--speculative-ngram-max-bfs-breadth", 10)
        return self.setting.integer("topk") or 1

    @property
    def width(self) -> int:
        """Tokens verified a round."""
        return self.setting.integer("draft_tokens") or self.setting.depth + 1

    @property
    def attention_dp(self) -> bool:
        data = self.number("--data-parallel-size", 1)
        return (self.has("--enable-dp-attention") and data > 1) or self.number("--attn-dp-size", 1) > 1

    @property
    def pages(self) -> bool:
        return self.number("--page-size", 1) > 1

    def has(self, flag: str) -> bool:
        return self.words.has(flag)

    def text(self, flag: str) -> str:
        return self.words.value(flag) or ""

    def number(self, flag: str, default: int) -> int:
        found = whole(flag, self.words.value(flag))
        return default if found is None else found

    def on(self, variable: str) -> bool:
        return self.words.env.get(variable, "").lower() in _TRUE


@dataclass(frozen=True, slots=True)
class Rule:
    """`broken` says whether a launch breaks it, `reason` what SGLang says then, `source` where. It holds from patch
    version `since` on, and before `until`; `always` = at depth 0 too."""

    name: str
    broken: Callable[[Launch], bool]
    reason: str
    source: str
    since: int = 0
    until: int | None = None
    always: bool = False


_PAGED_TREE = "speculative_eagle_topk > 1 with page_size > 1 is only supported on {}; use page size 1 or one of those"
_EAGLE_HOOK, _NGRAM_HOOK = "speculative_hook._handle_eagle_family", "speculative_hook._handle_ngram"
_REJECTS, _WATERMARK = "--speculative-use-rejection-sampling", "--enable-watermark"
_THRESHOLDS = ("--speculative-accept-threshold-single", "--speculative-accept-threshold-acc")
_WINDOW = "--speculative-draft-window-size"


def _steps(launch: Launch) -> bool:
    return launch.method in METHODS and METHODS[launch.method].steps


def _tree_on(*backends: str) -> Callable[[Launch], bool]:
    def broken(launch: Launch) -> bool:
        backend = launch.text(_BACKENDS[0])
        return _steps(launch) and launch.topk > 1 and launch.pages and backend != "" and backend not in backends

    return broken


def _with_dp(*methods: str) -> Callable[[Launch], bool]:
    return lambda launch: launch.method in methods and launch.attention_dp


def _thresholds(launch: Launch) -> bool:
    return any(launch.text(flag) not in ("", "1", "1.0") for flag in _THRESHOLDS)


def _pipeline(launch: Launch) -> bool:
    return launch.number("--pipeline-parallel-size", 1) > 1


RULES = (
    Rule(
        "several nodes",
        lambda s: s.number("--nnodes", 1) > 1,
        "--nnodes above 1: each node has a command line of its own, and Leadline rewrites one",
        "Leadline",
        always=True,
    ),
    Rule(
        "prefill and decode apart",
        lambda s: s.text("--disaggregation-mode") in ("prefill", "decode"),
        "--disaggregation-mode prefill or decode: the servers of a pair must be changed together, and a decode server "
        "answers nobody by itself",
        "Leadline",
        always=True,
    ),
    Rule(
        "drafter apart",
        lambda s: s.text("--decoupled-spec-role") not in ("", "null"),
        "--decoupled-spec-role: drafter and verifier are servers that must be changed together",
        "Leadline",
        always=True,
    ),
    Rule(
        "adaptive",
        lambda s: s.has("--speculative-adaptive"),
        "--speculative-adaptive changes the depth while the server runs: remove it to tune the depth",
        "speculative_hook._init_adaptive_speculative_params",
    ),
    Rule(
        "trtllm_mha is a chain",
        lambda s: _steps(s) and s.topk > 1 and any(s.text(flag) == "trtllm_mha" for flag in _BACKENDS),
        "trtllm_mha backend only supports topk = 1 for speculative decoding.",
        _EAGLE_HOOK,
    ),
    Rule(
        "tree on pages, with triton",
        _tree_on("flashinfer", "fa3", "triton"),
        _PAGED_TREE.format("flashinfer, fa3 and triton"),
        _EAGLE_HOOK,
        since=13,
    ),
    Rule(
        "tree on pages",
        _tree_on("flashinfer", "fa3"),
        _PAGED_TREE.format("flashinfer and fa3"),
        "ServerArgs._handle_speculative_decoding",
        until=13,
    ),
    Rule(
        "spec v2 is a chain",
        lambda s: _steps(s) and s.topk > 1 and s.on("SGLANG_ENABLE_SPEC_V2"),
        "Spec v2 currently only supports topk = 1 for speculative decoding.",
        "ServerArgs._handle_speculative_decoding",
        until=11,
    ),
    Rule(
        "ngram tree on pages",
        lambda s: s.method == "NGRAM" and s.topk > 1 and s.pages and s.text(_BACKENDS[0]) not in ("", "flashinfer"),
        "ngram with --speculative-ngram-max-bfs-breadth > 1 and page_size > 1 is only supported for the 'flashinfer' "
        "backend.",
        _NGRAM_HOOK,
    ),
    Rule(
        "standalone with dp attention",
        _with_dp("STANDALONE"),
        "Currently standalone speculative decoding does not support dp attention.",
        _EAGLE_HOOK,
    ),
    Rule(
        "ngram with dp attention",
        _with_dp("NGRAM"),
        "Currently ngram speculative decoding does not support dp attention.",
        _NGRAM_HOOK,
    ),
    Rule(
        "dflash with dp attention",
        _with_dp("DFLASH"),
        "Currently DFLASH speculative decoding does not support dp attention.",
        "speculative_hook._handle_dflash",
        until=23,
    ),
    Rule(
        "dflash with dp attention needs the head",
        lambda s: s.method == "DFLASH" and s.attention_dp and not s.has("--enable-dp-lm-head"),
        "DFLASH with dp attention requires --enable-dp-lm-head.",
        "speculative_hook._handle_dflash",
        since=23,
    ),
    Rule(
        "dspark with dp attention needs the head",
        lambda s: s.method == "DSPARK" and s.attention_dp and not s.has("--enable-dp-lm-head"),
        "DSpark with dp attention requires --enable-dp-lm-head.",
        "speculative_hook._handle_dspark",
    ),
    Rule(
        "uno alone",
        lambda s: (
            s.method == "UNO"
            and (s.attention_dp or s.has("--enable-lora") or _pipeline(s) or s.number("--tensor-parallel-size", 1) > 1)
        ),
        "UNO requires TP=PP=1, and supports neither DP attention nor public Multi-LoRA serving.",
        "speculative_hook._handle_uno",
    ),
    Rule(
        "uno needs its lora",
        lambda s: s.method == "UNO" and not s.has("--uno-lora-path"),
        "UNO requires --uno-lora-path.",
        "speculative_hook._handle_uno",
    ),
    Rule(
        "rejection sampling is of eagle",
        lambda s: s.has(_REJECTS) and s.method not in ("EAGLE", "EAGLE3") and (_steps(s) or s.method == "UNO"),
        "--speculative-use-rejection-sampling is only supported for EAGLE / EAGLE3 / NEXTN.",
        _EAGLE_HOOK,
    ),
    Rule(
        "rejection sampling is a chain",
        lambda s: s.has(_REJECTS) and _steps(s) and s.topk > 1,
        "--speculative-use-rejection-sampling requires --speculative-eagle-topk=1.",
        _EAGLE_HOOK,
    ),
    Rule(
        "rejection sampling has no thresholds",
        lambda s: s.has(_REJECTS) and _steps(s) and _thresholds(s),
        "--speculative-use-rejection-sampling is incompatible with --speculative-accept-threshold-single and "
        "--speculative-accept-threshold-acc; rejection sampling ignores the accept thresholds.",
        _EAGLE_HOOK,
    ),
    Rule(
        "rejection sampling is not deterministic",
        lambda s: s.has(_REJECTS) and _steps(s) and s.has("--enable-deterministic-inference"),
        "--speculative-use-rejection-sampling is incompatible with --enable-deterministic-inference.",
        _EAGLE_HOOK,
        since=14,
        until=23,
    ),
    Rule(
        "block verification",
        lambda s: (
            s.has("--speculative-use-block-verification")
            and (s.method not in ("EAGLE", "EAGLE3", "DFLASH", "DSPARK") or (_steps(s) and s.topk > 1))
        ),
        "--speculative-use-block-verification only supports EAGLE / EAGLE3 / NEXTN / DFLASH / DSPARK, with topk 1.",
        "speculative_hook.handle_speculative_decoding",
    ),
    Rule(
        "pipeline",
        lambda s: _pipeline(s) and not (s.method == "EAGLE" and s.on("SGLANG_ENABLE_PP_SPEC")),
        "PP + speculative decoding is only supported for EAGLE with SGLANG_ENABLE_PP_SPEC=1, or on prefill nodes.",
        "validation_hook.check_pipeline_parallel_compat",
        since=21,
    ),
    Rule(
        "pipeline, older",
        _pipeline,
        "Pipeline parallelism is not compatible with overlap schedule, speculative decoding",
        "ServerArgs.check_server_args",
        until=21,
    ),
    Rule(
        "mamba states",
        lambda s: 0 < s.number("--mamba-track-interval", 0) < s.width,
        "mamba_track_interval must be at least speculative_num_draft_tokens",
        "mamba_hook (assert mamba_track_interval >= speculative_num_draft_tokens)",
    ),
    Rule(
        "window of the draft",
        lambda s: s.method == "DFLASH" and 0 < s.number(_WINDOW, 0) < s.width,
        f"{_WINDOW} must be >= {DRAFT_TOKENS} (block_size).",
        "speculative_hook._handle_dflash",
    ),
    Rule(
        "corpus of ngram",
        lambda s: (
            s.method == "NGRAM"
            and s.has("--speculative-ngram-external-corpus-path")
            and not 0 < s.number("--speculative-ngram-external-sam-budget", 0) < s.width
        ),
        "--speculative-ngram-external-sam-budget must be positive and less than or equal to "
        "speculative_num_draft_tokens - 1 when --speculative-ngram-external-corpus-path is set.",
        _NGRAM_HOOK,
    ),
    Rule(
        "no accelerator",
        lambda s: s.text("--device") == "cpu" and s.method in ("DFLASH", "DSPARK", "UNO"),
        "DFLASH, DSPARK and UNO speculative decoding is not supported on device 'cpu'.",
        "speculative_hook._handle_dflash, _handle_dspark, _handle_uno",
    ),
    Rule(
        "watermark",
        lambda s: s.has(_WATERMARK) and (s.method not in ("NGRAM", "EAGLE", "EAGLE3") or s.has(_REJECTS)),
        "--enable-watermark supports speculative algorithms NGRAM, EAGLE, and EAGLE3, without rejection sampling.",
        "validation_hook",
    ),
    Rule(
        "dwdp",
        lambda s: s.number("--dwdp-size", 1) > 1,
        "DWDP does not support speculative decoding (MTP/draft workers)",
        "parallel_hook",
    ),
)


def obey(words: Words, setting: Setting) -> None:
    """Raises InputError with SGLang's reason for the first rule that the launch breaks."""
    launch = Launch(words, setting)
    for rule in RULES:
        applies = within(words.patch, rule.since, rule.until) and (rule.always or setting.depth > 0)
        if applies and rule.broken(launch):
            where = "" if rule.source == "Leadline" else f" [{rule.source}]"
            raise InputError(f"{rule.reason}{where}")
    dtype = setting.get("kv_dtype")
    if dtype is not None and dtype not in kv_dtypes(words.patch):
        raise InputError(f"--kv-cache-dtype is one of {', '.join(kv_dtypes(words.patch))}, not {dtype!r}")
