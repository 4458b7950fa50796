"""The option names of `vllm serve`, without their dashes: with one value, with several, and switches."""

from __future__ import annotations

VALUED = """
additional-config all2all-backend allowed-headers allowed-local-media-path allowed-media-domains allowed-methods
allowed-origins api-server-count attention-backend attention-config aux-output-config block-size chat-template
chat-template-content-format code-revision collect-detailed-traces compilation-config config config-format convert
cp-kv-cache-interleave-size cpu-distributed-timeout-seconds cpu-offload-gb cpu-offload-params custom-histogram-buckets
data-parallel-address data-parallel-backend data-parallel-external-lb data-parallel-hybrid-lb
data-parallel-multi-port-external-lb data-parallel-rank data-parallel-rpc-port data-parallel-size
data-parallel-size-local data-parallel-start-rank dbo-decode-token-threshold dbo-prefill-token-threshold
dcp-comm-backend dcp-kv-cache-interleave-size dcp-q-replicate decode-context-parallel-size
default-chat-template-kwargs default-mm-loras device-memory-utilization diffusion-config distributed-executor-backend
distributed-timeout-seconds download-dir dp-sync-interval dtype ec-manager-config ec-transfer-config
elastic-ep-max-dp-size engram-config eplb-config expert-placement-strategy fault-tolerance-config gdn-prefill-backend
generation-config gpu-memory-utilization h11-max-header-count h11-max-incomplete-event-size hf-config-path
hf-overrides hf-token host io-processor-plugin ir-op-priority jit-monitor-mode jit-monitor-verbose kda-decode-backend
kda-prefill-backend kernel-config kv-cache-dtype kv-cache-memory-bytes kv-cache-metrics-sample kv-events-config
kv-offloading-backend kv-offloading-size kv-transfer-config limit-mm-per-prompt linear-backend load-format
log-config-file log-level logging-config logprobs-mode long-prefill-token-threshold
long-prefill-token-threshold-adaptive lora-dtype mamba-backend mamba-block-size mamba-cache-dtype mamba-cache-mode
mamba-cache-philox-rounds mamba-ssm-cache-dtype mamba-ssu-algorithm master-addr master-port max-cpu-loras
max-cudagraph-capture-size max-log-len max-logprobs max-lora-cls-labels max-lora-rank max-loras max-model-len
max-num-active-seqs max-num-batched-tokens max-num-queued-reqs max-num-queued-tokens max-num-scheduled-tokens
max-num-seqs max-parallel-loading-workers media-io-kwargs mm-device-do-normalize mm-encoder-attn-backend
mm-encoder-attn-dtype mm-encoder-fp8-scale-path mm-encoder-fp8-scale-save-margin mm-encoder-fp8-scale-save-path
mm-encoder-tp-mode mm-hasher-algorithm mm-ipc-gpu-memory-gb mm-processor-cache-gb mm-processor-cache-type
mm-processor-device mm-processor-kwargs mm-shm-cache-max-object-size-mb mm-tensor-ipc model model-class-overrides
model-impl model-loader-extra-config moe-backend monokernel nnodes node-rank num-gpu-blocks-override numa-bind-cpus
numa-bind-nodes offload-backend offload-group-size offload-num-in-group offload-params offload-prefetch-step
optimization-level otlp-traces-endpoint override-generation-config per-request-spec-decode-metrics performance-mode
pipeline-parallel-size pooler-config port prefill-context-parallel-size prefill-schedule-interval
prefix-cache-retention-interval prefix-caching-hash-algo prefix-match-unit profiler-config pt-load-map-location
quantization quantization-config reasoning-config reasoning-parser reasoning-parser-plugin renderer-num-workers
replayssm-buffer-len response-role revision root-path runner safetensors-load-strategy safetensors-prefetch-block-size
safetensors-prefetch-num-threads scheduler-cls scheduling-policy seed show-hidden-metrics-for-version shutdown-timeout
sleep-mode-backend sleep-mode-offload-cudagraph sleep-preserve-parameter-names sparse-indexer-topk-backend spec-method
spec-model spec-tokens speculative-config ssl-ca-certs ssl-cert-reqs ssl-certfile ssl-keyfile stream-interval
structured-outputs-config swa-bounded-replay tensor-parallel-size tokenizer tokenizer-mode tokenizer-revision
tool-call-parser tool-parser-plugin tool-server ubatch-size uds uvicorn-log-level video-pruning-method
video-pruning-rate watchdog-config watermark watermark-config weight-cache-draft-master-port weight-cache-health-host
weight-cache-health-port weight-cache-master-port weight-cache-socket-dir weight-transfer-config worker-cls
worker-extension-cls
"""
MANY = """
api-key cudagraph-capture-sizes device-ids ignore-patterns kv-cache-dtype-skip-layers logits-processors lora-modules
lora-target-modules middleware served-model-name
"""
SWITCHES = """
aggregate-engine-logging allow-credentials allow-deprecated-quantization async-scheduling cudagraph-metrics
disable-cascade-attn disable-chunked-mm-input disable-custom-all-reduce disable-fastapi-docs
disable-hybrid-kv-cache-manager disable-log-stats disable-nccl-for-dp-synchronization disable-sliding-window
disable-uvicorn-access-log enable-auto-tool-choice enable-batch-sharded-sampling enable-chunked-prefill
enable-cumem-allocator enable-dbo enable-elastic-ep enable-ep-weight-filter enable-eplb enable-expert-parallel
enable-fault-tolerance enable-flashinfer-autotune enable-force-include-usage enable-hc-sp
enable-layerwise-nvtx-tracing enable-log-outputs enable-log-requests enable-logging-iteration-details enable-lora
enable-mamba-cache-stochastic-rounding enable-mamba-shared-prefix-checkpoint enable-mfu-metrics
enable-mixed-moe-lora-format enable-mm-embeds enable-moe-shared-loras enable-nccl-comm-suspend
enable-per-request-metrics enable-prefix-caching enable-prompt-embeds enable-prompt-tokens-details
enable-request-id-headers enable-return-routed-experts enable-server-load-tracking enable-shm-tensor-arena
enable-sleep-mode enable-ssl-refresh enable-tokenizer-info-endpoint enable-tower-connector-lora enable-trace-replay
enforce-eager exclude-tools-when-tool-choice-none fail-on-environ-validation fully-sharded-loras headless help
interleave-mm-strings kv-cache-metrics kv-sharing-fast-prefill language-model-only log-error-stack mm-encoder-only
numa-bind ray-workers-use-nsight return-sampling-mask return-tokens-as-token-ids scheduler-reserve-full-isl
skip-mm-profiling skip-tokenizer-init specialize-active-lora trust-remote-code trust-request-chat-template
use-fp64-gumbel use-replayssm use-tqdm-on-load version
"""
