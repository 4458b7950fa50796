"""`vllm serve`'s command-line options: spellings and how many values follow.

Read from `vllm/engine/arg_utils.py` and `vllm/entrypoints/.../cli_args.py` of the releases 0.11.0, 0.16.0, 0.22.1,
0.28.0 and 0.33.0, all of them together: what a version lacks its own parser refuses. A bare option has an opposite
`--no-NAME` (argparse's BooleanOptionalAction); from 0.33 on, `--enable-NAME` has `--disable-NAME` besides.
"""

from __future__ import annotations

from leadline.dialect.options import Option, table

_BARE = """
aggregate-engine-logging allow-credentials allow-deprecated-quantization async-scheduling calculate-kv-scales
cohere-is-reasoning-model cudagraph-metrics dcp-q-replicate disable-cascade-attn
disable-chunked-mm-input disable-custom-all-reduce disable-fastapi-docs
disable-hybrid-kv-cache-manager disable-log-stats disable-mm-preprocessor-cache
disable-nccl-for-dp-synchronization disable-sliding-window disable-uvicorn-access-log enable-auto-tool-choice
enable-batch-sharded-sampling enable-bf16x3-router-gemm enable-chunked-prefill enable-cumem-allocator enable-dbo
enable-elastic-ep enable-ep-weight-filter enable-eplb enable-fault-tolerance
enable-flash-late-interaction enable-flashinfer-autotune enable-force-include-usage enable-hc-sp
enable-layerwise-nvtx-tracing enable-log-deltas enable-log-outputs enable-log-requests
enable-logging-iteration-details enable-lora enable-lora-bias enable-mamba-cache-stochastic-rounding
enable-mamba-shared-prefix-checkpoint enable-mfu-metrics enable-mixed-moe-lora-format enable-mm-embeds
enable-moe-shared-loras enable-multimodal-encoder-data-parallel enable-nccl-comm-suspend enable-offline-docs
enable-per-request-metrics enable-prefix-caching enable-prompt-embeds enable-prompt-tokens-details
enable-request-id-headers enable-return-routed-experts enable-scale-out enable-server-load-tracking
enable-shm-tensor-arena enable-sleep-mode enable-ssl-refresh enable-tokenizer-info-endpoint
enable-tower-connector-lora enable-trace-replay enforce-eager eplb-log-balancedness
exclude-tools-when-tool-choice-none fail-on-environ-validation fully-sharded-loras interleave-mm-strings
jit-monitor-verbose kv-cache-metrics kv-sharing-fast-prefill language-model-only log-error-stack
long-prefill-token-threshold-adaptive mm-encoder-only monokernel numa-bind ray-workers-use-nsight return-sampling-mask
return-tokens-as-token-ids scheduler-reserve-full-isl skip-mm-profiling skip-tokenizer-init
sleep-mode-offload-cudagraph specialize-active-lora swa-bounded-replay tokens-only trust-remote-code
trust-request-chat-template trust-request-mm-kwargs use-fp64-gumbel use-replayssm use-tqdm-on-load
"""
_ONE = """
additional-config all2all-backend allowed-headers allowed-local-media-path allowed-methods allowed-origins
anthropic-disabled-thinking-effort attention-backend aux-output-config block-size chat-template
chat-template-content-format code-revision cohere-format config config-format convert cp-kv-cache-interleave-size
cpu-distributed-timeout-seconds cpu-offload-gb custom-histogram-buckets data-parallel-supervisor-port
dbo-decode-token-threshold dbo-prefill-token-threshold dcp-comm-backend dcp-kv-cache-interleave-size
default-chat-template-kwargs default-mm-loras device-ids disable-access-log-for-endpoints distributed-executor-backend
distributed-timeout-seconds download-dir dp-supervisor-probe-failure-threshold dp-supervisor-probe-interval-s
dp-supervisor-probe-timeout-s dp-sync-interval dtype ec-manager-config ec-transfer-config elastic-ep-max-dp-size
engram-config eplb-config eplb-step-interval eplb-window-size expert-placement-strategy fault-tolerance-config
fingerprint-mode fingerprint-value gdn-prefill-backend generation-config grpc-port
h11-max-header-count h11-max-incomplete-event-size hf-config-path hf-overrides host io-processor-plugin ir-op-priority
jit-monitor-mode kda-decode-backend kda-prefill-backend kernel-config kv-cache-dtype kv-cache-memory-bytes
kv-cache-metrics-sample kv-events-config kv-offloading-backend kv-offloading-size kv-transfer-config
limit-mm-per-prompt linear-backend load-format log-config-file log-level logging-config logits-processor-pattern
logprobs-mode long-prefill-token-threshold lora-dtype lora-extra-vocab-size mamba-backend mamba-block-size
mamba-cache-dtype mamba-cache-mode mamba-cache-philox-rounds mamba-ssm-cache-dtype mamba-ssu-algorithm master-addr
master-port max-cpu-loras max-cudagraph-capture-size max-log-len max-logprobs max-long-partial-prefills
max-lora-cls-labels max-lora-rank max-loras max-model-len max-num-active-seqs max-num-batched-tokens
max-num-partial-prefills max-num-queued-reqs max-num-queued-tokens max-num-scheduled-tokens max-num-seqs
max-parallel-loading-workers media-io-kwargs mm-device-do-normalize mm-encoder-attn-backend mm-encoder-attn-dtype
mm-encoder-fp8-scale-path mm-encoder-fp8-scale-save-margin mm-encoder-fp8-scale-save-path mm-encoder-tp-mode
mm-hasher-algorithm mm-ipc-gpu-memory-gb mm-processor-cache-gb mm-processor-cache-type mm-processor-device
mm-processor-kwargs mm-shm-cache-max-object-size-mb mm-tensor-ipc model model-class-overrides model-impl
model-loader-extra-config moe-backend num-gpu-blocks-override num-lookahead-slots num-redundant-experts
offload-backend offload-group-size offload-num-in-group offload-prefetch-step optimization-level otlp-traces-endpoint
override-attention-dtype override-generation-config override-pooler-config per-request-spec-decode-metrics
performance-mode pooler-config port prefill-schedule-interval prefix-cache-retention-interval prefix-caching-hash-algo
prefix-match-unit profiler-config pt-load-map-location quantization-config reasoning-config reasoning-effort-map
reasoning-parser reasoning-parser-plugin renderer-num-workers replayssm-buffer-len response-role revision root-path
rope-scaling rope-theta runner safetensors-load-strategy safetensors-prefetch-block-size
safetensors-prefetch-num-threads scheduler-cls scheduling-policy seed show-hidden-metrics-for-version shutdown-timeout
sleep-mode-backend sparse-indexer-topk-backend spec-method spec-model spec-tokens
sse-keep-alive-interval ssl-ca-certs ssl-cert-reqs ssl-certfile ssl-ciphers ssl-keyfile stream-interval
structured-outputs-config swap-space task tokenizer tokenizer-mode tokenizer-revision tool-call-parser
tool-parser-plugin tool-server tool-strict-level ubatch-size uds uvicorn-log-level video-pruning-method
video-pruning-rate watchdog-config watermark watermark-config weight-transfer-config worker-cls worker-extension-cls
"""
_MANY = """
allowed-media-domains api-key collect-detailed-traces cpu-offload-params cuda-graph-sizes cudagraph-capture-sizes
hf-token ignore-patterns kv-cache-dtype-skip-layers logits-processors lora-modules lora-target-modules middleware
numa-bind-cpus numa-bind-nodes offload-params served-model-name sleep-preserve-parameter-names
"""
_MORE_SPELLINGS = """
--api-server-count -asc N
--attention-config -ac N
--compilation-config -cc N
-O N
--data-parallel-address -dpa N
--data-parallel-backend -dpb N
--data-parallel-external-lb -dpe / --no-data-parallel-external-lb
--data-parallel-hybrid-lb -dph / --no-data-parallel-hybrid-lb
--data-parallel-multi-port-external-lb -dpm
--data-parallel-rank -dpn N
--data-parallel-rpc-port -dpp N
--data-parallel-size -dp N
--data-parallel-size-local -dpl N
--data-parallel-start-rank -dpr N
--decode-context-parallel-size -dcp N
--diffusion-config -dc N
--disable-frontend-multiprocessing
--disable-log-requests
--enable-expert-parallel -ep / --no-enable-expert-parallel --disable-expert-parallel
--gpu-memory-utilization --device-memory-utilization N
--grpc
--headless
--help -h
--nnodes -n N
--node-rank -r N
--pipeline-parallel-size -pp N
--prefill-context-parallel-size -pcp N
--quantization -q N
--speculative-config -sc N
--tensor-parallel-size -tp N
"""


def _bare(name: str) -> str:
    opposites = [f"--no-{name}"]
    disabled = "disable-" + name.removeprefix("enable-")
    if name.startswith("enable-") and f"--{disabled}\n" not in _MORE_SPELLINGS:
        opposites.append(f"--{disabled}")
    return f"--{name} / {' '.join(opposites)}"


OPTIONS: dict[str, Option] = table(
    "\n".join(
        [
            *(_bare(name) for name in _BARE.split()),
            *(f"--{name} N" for name in _ONE.split()),
            *(f"--{name} N*" for name in _MANY.split()),
            *_MORE_SPELLINGS.strip().splitlines(),
        ]
    )
)
"""By every spelling."""

JSON_HEADS = frozenset(
    {name for name in OPTIONS if name.endswith("-config") and name.startswith("--")}
    - {"--config", "--generation-config"}
    | {"--hf-overrides", "--limit-mm-per-prompt", "--mm-processor-kwargs", "--model-loader-extra-config"}
)
"""Options whose value is a JSON object, the keys of which `--NAME.key value` gives one by one."""
