"""llama-server's command-line options: spellings, how many values follow, and the environment name.

One line an option: the canonical spelling first, then its other spellings; spellings after `/` switch it off; each `N`
is one value that follows; `$NAME` is the environment variable, which the command line overrides. Read from
`llama-server --help` of build 10434, with the speculation options that build 11434 added (`ADDED`). The server takes no
positional words and no `--name=value`; it reads `_` as `-` in words that begin with `--`.
"""

from __future__ import annotations

from leadline.dialect.options import Option, by_env, table
from leadline.errors import InputError

_TABLE = """
--adaptive-decay N
--adaptive-target N
--agent -ag / -no-ag --no-agent $LLAMA_ARG_AGENT
--alias -a N $LLAMA_ARG_ALIAS
--api-key N $LLAMA_API_KEY
--api-key-file N $LLAMA_ARG_API_KEY_FILE
--api-prefix N $LLAMA_ARG_API_PREFIX
--backend-sampling -bs $LLAMA_ARG_BACKEND_SAMPLING
--batch-size -b N $LLAMA_ARG_BATCH
--cache-idle-slots / --no-cache-idle-slots $LLAMA_ARG_CACHE_IDLE_SLOTS
--cache-list -cl
--cache-prompt / --no-cache-prompt $LLAMA_ARG_CACHE_PROMPT
--cache-ram -cram N $LLAMA_ARG_CACHE_RAM
--cache-reuse N $LLAMA_ARG_CACHE_REUSE
--cache-type-k -ctk N $LLAMA_ARG_CACHE_TYPE_K
--cache-type-v -ctv N $LLAMA_ARG_CACHE_TYPE_V
--chat-template N $LLAMA_ARG_CHAT_TEMPLATE
--chat-template-file N $LLAMA_ARG_CHAT_TEMPLATE_FILE
--chat-template-kwargs N $LLAMA_ARG_CHAT_TEMPLATE_KWARGS
--check-tensors
--checkpoint-min-step -cms N $LLAMA_ARG_CHECKPOINT_MIN_SPACING_NT
--completion-bash
--cont-batching -cb / -nocb --no-cont-batching $LLAMA_ARG_CONT_BATCHING
--context-shift / --no-context-shift $LLAMA_ARG_CONTEXT_SHIFT
--control-vector N
--control-vector-layer-range N N
--control-vector-scaled N
--cors-credentials / --no-cors-credentials $LLAMA_ARG_CORS_CREDENTIALS
--cors-headers N $LLAMA_ARG_CORS_HEADERS
--cors-methods N $LLAMA_ARG_CORS_METHODS
--cors-origins N $LLAMA_ARG_CORS_ORIGINS
--cpu-mask -C N
--cpu-mask-batch -Cb N
--cpu-moe -cmoe $LLAMA_ARG_CPU_MOE
--cpu-range -Cr N
--cpu-range-batch -Crb N
--cpu-strict N
--cpu-strict-batch N
--ctx-checkpoints -ctxcp --swa-checkpoints N $LLAMA_ARG_CTX_CHECKPOINTS
--ctx-size -c N $LLAMA_ARG_CTX_SIZE
--defrag-thold -dt N $LLAMA_ARG_DEFRAG_THOLD
--device -dev N $LLAMA_ARG_DEVICE
--direct-io -dio / -ndio --no-direct-io $LLAMA_ARG_DIO
--docker-repo -dr N $LLAMA_ARG_DOCKER_REPO
--dry-allowed-length N
--dry-base N
--dry-multiplier N
--dry-penalty-last-n N
--dry-sequence-breaker N
--dynatemp-exp N
--dynatemp-range N
--embd-normalize N
--embedding --embeddings $LLAMA_ARG_EMBEDDINGS
--escape -e / --no-escape
--file -f N
--fit -fit N $LLAMA_ARG_FIT
--fit-ctx -fitc N $LLAMA_ARG_FIT_CTX
--fit-target -fitt N $LLAMA_ARG_FIT_TARGET
--flash-attn -fa N $LLAMA_ARG_FLASH_ATTN
--frequency-penalty N
--gpu-layers -ngl --n-gpu-layers N $LLAMA_ARG_N_GPU_LAYERS
--grammar N
--grammar-file N
--help -h --usage
--hf-file -hff N $LLAMA_ARG_HF_FILE
--hf-repo -hf -hfr N $LLAMA_ARG_HF_REPO
--hf-token -hft N $HF_TOKEN
--host N $LLAMA_ARG_HOST
--ignore-eos
--image-max-tokens N $LLAMA_ARG_IMAGE_MAX_TOKENS
--image-min-tokens N $LLAMA_ARG_IMAGE_MIN_TOKENS
--jinja / --no-jinja $LLAMA_ARG_JINJA
--json-schema -j N
--json-schema-file -jf N
--keep N
--kv-offload -kvo / -nkvo --no-kv-offload $LLAMA_ARG_KV_OFFLOAD
--kv-unified -kvu / -no-kvu --no-kv-unified $LLAMA_ARG_KV_UNIFIED
--list-devices
--load-mode -lm N $LLAMA_ARG_LOAD_MODE
--log-colors N $LLAMA_ARG_LOG_COLORS
--log-disable
--log-file N $LLAMA_ARG_LOG_FILE
--log-prefix / --no-log-prefix $LLAMA_ARG_LOG_PREFIX
--log-prompts-dir N
--log-timestamps / --no-log-timestamps $LLAMA_ARG_LOG_TIMESTAMPS
--logit-bias -l N
--lookup-cache-dynamic -lcd N
--lookup-cache-static -lcs N
--lora N
--lora-init-without-apply
--lora-scaled N
--main-gpu -mg N $LLAMA_ARG_MAIN_GPU
--mcp-servers-config N $LLAMA_ARG_MCP_SERVERS_CONFIG
--mcp-servers-json N $LLAMA_ARG_MCP_SERVERS_JSON
--media-path N
--metrics $LLAMA_ARG_ENDPOINT_METRICS
--min-p N
--mirostat N
--mirostat-ent N
--mirostat-lr N
--mlock $LLAMA_ARG_MLOCK
--mmap / --no-mmap $LLAMA_ARG_MMAP
--mmproj -mm N $LLAMA_ARG_MMPROJ
--mmproj-auto / --no-mmproj --no-mmproj-auto $LLAMA_ARG_MMPROJ_AUTO
--mmproj-offload / --no-mmproj-offload $LLAMA_ARG_MMPROJ_OFFLOAD
--mmproj-url -mmu N $LLAMA_ARG_MMPROJ_URL
--model -m N $LLAMA_ARG_MODEL
--model-url -mu N $LLAMA_ARG_MODEL_URL
--models-autoload / --no-models-autoload $LLAMA_ARG_MODELS_AUTOLOAD
--models-dir N $LLAMA_ARG_MODELS_DIR
--models-max N $LLAMA_ARG_MODELS_MAX
--models-preset N $LLAMA_ARG_MODELS_PRESET
--mtmd-batch-max-tokens N $LLAMA_ARG_MTMD_BATCH_MAX_TOKENS
--n-cpu-moe -ncmoe N $LLAMA_ARG_N_CPU_MOE
--no-host $LLAMA_ARG_NO_HOST
--numa N $LLAMA_ARG_NUMA
--offline $LLAMA_ARG_OFFLINE
--op-offload / --no-op-offload
--override-kv N
--override-tensor -ot N $LLAMA_ARG_OVERRIDE_TENSOR
--parallel -np N $LLAMA_ARG_N_PARALLEL
--path N $LLAMA_ARG_STATIC_PATH
--perf / --no-perf $LLAMA_ARG_PERF
--poll N
--poll-batch N
--pooling N $LLAMA_ARG_POOLING
--port N $LLAMA_ARG_PORT
--predict -n --n-predict N $LLAMA_ARG_N_PREDICT
--prefill-assistant / --no-prefill-assistant $LLAMA_ARG_PREFILL_ASSISTANT
--presence-penalty N
--prio N
--prio-batch N
--prompt -p N
--props $LLAMA_ARG_ENDPOINT_PROPS
--reasoning -rea N $LLAMA_ARG_REASONING
--reasoning-budget N $LLAMA_ARG_THINK_BUDGET
--reasoning-budget-message N $LLAMA_ARG_THINK_BUDGET_MESSAGE
--reasoning-effort N $LLAMA_ARG_REASONING_EFFORT
--reasoning-format N $LLAMA_ARG_THINK
--reasoning-preserve / --no-reasoning-preserve $LLAMA_ARG_REASONING_PRESERVE
--repack / -nr --no-repack $LLAMA_ARG_REPACK
--repeat-last-n N
--repeat-penalty N
--rerank --reranking $LLAMA_ARG_RERANKING
--reuse-port $LLAMA_ARG_REUSE_PORT
--reverse-prompt -r N
--rope-freq-base N $LLAMA_ARG_ROPE_FREQ_BASE
--rope-freq-scale N $LLAMA_ARG_ROPE_FREQ_SCALE
--rope-scale N $LLAMA_ARG_ROPE_SCALE
--rope-scaling N $LLAMA_ARG_ROPE_SCALING_TYPE
--rpc N $LLAMA_ARG_RPC
--sampler-seq --sampling-seq N
--samplers N
--seed -s N
--skip-chat-parsing / --no-skip-chat-parsing $LLAMA_ARG_SKIP_CHAT_PARSING
--sleep-idle-seconds N
--slot-prompt-similarity -sps N
--slot-save-path N
--slots / --no-slots $LLAMA_ARG_ENDPOINT_SLOTS
--spec-default
--spec-draft-backend-sampling / --no-spec-draft-backend-sampling $LLAMA_ARG_SPEC_DRAFT_BACKEND_SAMPLING
--spec-draft-conf-min N
--spec-draft-cpu-mask -Cd --cpu-mask-draft N
--spec-draft-cpu-mask-batch -Cbd --cpu-mask-batch-draft N
--spec-draft-cpu-moe -cmoed --cpu-moe-draft $LLAMA_ARG_SPEC_DRAFT_CPU_MOE
--spec-draft-cpu-range -Crd --cpu-range-draft N
--spec-draft-cpu-strict --cpu-strict-draft N
--spec-draft-cpu-strict-batch --cpu-strict-batch-draft N
--spec-draft-device -devd --device-draft N
--spec-draft-hf -hfd -hfrd --hf-repo-draft N $LLAMA_ARG_SPEC_DRAFT_HF_REPO
--spec-draft-model -md --model-draft N $LLAMA_ARG_SPEC_DRAFT_MODEL
--spec-draft-n-cpu-moe --spec-draft-ncmoe -ncmoed --n-cpu-moe-draft N $LLAMA_ARG_SPEC_DRAFT_N_CPU_MOE
--spec-draft-n-max N $LLAMA_ARG_SPEC_DRAFT_N_MAX
--spec-draft-n-min N $LLAMA_ARG_SPEC_DRAFT_N_MIN
--spec-draft-ngl -ngld --gpu-layers-draft --n-gpu-layers-draft N $LLAMA_ARG_N_GPU_LAYERS_DRAFT
--spec-draft-override-tensor -otd --override-tensor-draft N
--spec-draft-p-min --draft-p-min N $LLAMA_ARG_SPEC_DRAFT_P_MIN
--spec-draft-p-split --draft-p-split N $LLAMA_ARG_SPEC_DRAFT_P_SPLIT
--spec-draft-poll --poll-draft N
--spec-draft-poll-batch --poll-batch-draft N
--spec-draft-prio --prio-draft N
--spec-draft-prio-batch --prio-batch-draft N
--spec-draft-sampling N
--spec-draft-threads -td --threads-draft N
--spec-draft-threads-batch -tbd --threads-batch-draft N
--spec-draft-type-k -ctkd --cache-type-k-draft N $LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_K
--spec-draft-type-v -ctvd --cache-type-v-draft N $LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_V
--spec-ngram-map-k-min-hits N
--spec-ngram-map-k-size-m N
--spec-ngram-map-k-size-n N
--spec-ngram-map-k4v-min-hits N
--spec-ngram-map-k4v-size-m N
--spec-ngram-map-k4v-size-n N
--spec-ngram-mod-n-match N
--spec-ngram-mod-n-max N
--spec-ngram-mod-n-min N
--spec-ngram-simple-min-hits N
--spec-ngram-simple-size-m N
--spec-ngram-simple-size-n N
--spec-synth-len N $LLAMA_ARG_SPEC_SYNTH_LEN
--spec-synth-rates N $LLAMA_ARG_SPEC_SYNTH_RATES
--spec-type N $LLAMA_ARG_SPEC_TYPE
--special -sp
--split-mode -sm N $LLAMA_ARG_SPLIT_MODE
--spm-infill
--sse-ping-interval N $LLAMA_ARG_SSE_PING_INTERVAL
--ssl-cert-file N $LLAMA_ARG_SSL_CERT_FILE
--ssl-key-file N $LLAMA_ARG_SSL_KEY_FILE
--swa-full $LLAMA_ARG_SWA_FULL
--tags N $LLAMA_ARG_TAGS
--temp --temperature N
--tensor-split -ts N $LLAMA_ARG_TENSOR_SPLIT
--threads -t N $LLAMA_ARG_THREADS
--threads-batch -tb N
--threads-http N $LLAMA_ARG_THREADS_HTTP
--timeout -to N $LLAMA_ARG_TIMEOUT
--tools N $LLAMA_ARG_TOOLS
--tools-runtime N $LLAMA_ARG_TOOLS_RUNTIME
--top-k N $LLAMA_ARG_TOP_K
--top-nsigma --top-n-sigma N
--top-p N
--typical --typical-p N
--ubatch-size -ub N $LLAMA_ARG_UBATCH
--ui --webui / --no-ui --no-webui $LLAMA_ARG_UI
--ui-config --webui-config N $LLAMA_ARG_UI_CONFIG
--ui-config-file --webui-config-file N $LLAMA_ARG_UI_CONFIG_FILE
--ui-mcp-proxy --webui-mcp-proxy / --no-ui-mcp-proxy --no-webui-mcp-proxy $LLAMA_ARG_UI_MCP_PROXY
--verbose -v --log-verbose
--verbosity -lv --log-verbosity N $LLAMA_ARG_LOG_VERBOSITY
--version
--warmup / --no-warmup
--xtc-probability N
--xtc-threshold N
--yarn-attn-factor N $LLAMA_ARG_YARN_ATTN_FACTOR
--yarn-beta-fast N $LLAMA_ARG_YARN_BETA_FAST
--yarn-beta-slow N $LLAMA_ARG_YARN_BETA_SLOW
--yarn-ext-factor N $LLAMA_ARG_YARN_EXT_FACTOR
--yarn-orig-ctx N $LLAMA_ARG_YARN_ORIG_CTX
"""

REMOVED: dict[str, str] = {
    "--draft": "--spec-draft-n-max or --spec-ngram-mod-n-max",
    "--draft-n": "--spec-draft-n-max or --spec-ngram-mod-n-max",
    "--draft-max": "--spec-draft-n-max or --spec-ngram-mod-n-max",
    "--draft-min": "--spec-draft-n-min or --spec-ngram-mod-n-min",
    "--draft-n-min": "--spec-draft-n-min or --spec-ngram-mod-n-min",
    "--spec-ngram-size-n": "--spec-ngram-simple-size-n (or -map-k-size-n, -map-k4v-size-n, -mod-n-match)",
    "--spec-ngram-size-m": "--spec-ngram-simple-size-m (or -map-k-size-m, -map-k4v-size-m)",
    "--spec-ngram-min-hits": "--spec-ngram-simple-min-hits (or -map-k-min-hits, -map-k4v-min-hits)",
    "LLAMA_ARG_DRAFT_MAX": "LLAMA_ARG_SPEC_DRAFT_N_MAX",
    "LLAMA_ARG_DRAFT_MIN": "LLAMA_ARG_SPEC_DRAFT_N_MIN",
}
"""Spellings that the server refuses to start with, and what took their place."""

PRESETS = frozenset(
    {
        "--embd-gemma-default",
        "--fim-qwen-1.5b-default",
        "--fim-qwen-3b-default",
        "--fim-qwen-7b-default",
        "--fim-qwen-7b-spec",
        "--fim-qwen-14b-spec",
        "--fim-qwen-30b-default",
        "--gpt-oss-20b-default",
        "--gpt-oss-120b-default",
        "--vision-gemma-4b-default",
        "--vision-gemma-12b-default",
    }
)
"""Words that each set a model, a port and more, unseen."""


OPTIONS: dict[str, Option] = table(_TABLE)
"""Every known spelling, of either build."""

BY_ENV: dict[str, Option] = by_env(OPTIONS)

OLDER, NEWER = 10434, 11434
"""The builds that were looked at. Of one between them it is not known which it is like."""

ADDED = frozenset({"--spec-draft-conf-min", "--spec-draft-sampling", "--spec-synth-len", "--spec-synth-rates"})
"""What the --help of the newer build lists and that of the older does not."""


def speculative(option: str) -> bool:
    """Whether an option, by its canonical name, belongs to the speculation group."""
    return option.startswith("--spec-")


def refuse(word: str) -> None:
    """Raises InputError for a word or variable that no server starts with, or that says too much at once."""
    if word in REMOVED:
        raise InputError(f"llama-server has removed {word}: use {REMOVED[word]}")
    if word in PRESETS:
        raise InputError(f"{word} sets a model, a port and more at once: write out what it stands for")


def missing(word: str, build: int | None) -> bool:
    """Whether a build is known not to have a flag."""
    option = OPTIONS.get(word)
    return build is not None and build <= OLDER and option is not None and option.name in ADDED
