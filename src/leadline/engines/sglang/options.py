"""The options of SGLang 0.5.9 to 0.5.23: spellings, how many values follow, and in which versions they are there.

From the argument parsers of those releases: `srt/server_args.py` (`ServerArgs.add_cli_args`), from 0.5.20 on also
`srt/arg_groups/fields/`; `--model-type` is of `sglang serve` alone (`cli/serve.py`).
`name:14-20` = from 0.5.14 on and no more in 0.5.20; `name:14-` = from 0.5.14 on; `name:-20` = from the beginning.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from leadline.dialect.options import Option, table

_WINDOW = re.compile(r"(?P<word>-[^:\s]*)(?::(?P<since>\d*)-(?P<until>\d*))?")

_SPECIAL = """
--allowed-media-domains:18- N*
--attention-context-parallel-size --attn-cp-size N
--attn-dp-size:22- --attention-data-parallel-size:22- N
--bucket-e2e-request-latency N*
--bucket-inter-token-latency N*
--bucket-time-to-first-token N*
--cuda-graph-bs-decode:14- N*
--cuda-graph-bs-prefill:14- N*
--cuda-graph-bs:-20 N*
--cuda-graph-prefill-max-context:21- --context-bucket:21- N
--custom-weight-loader N*
--data-parallel-size --dp-size N
--dcp-replicate-q-proj:17- / --no-dcp-replicate-q-proj
--dcp-size:15- --decode-context-parallel-size:15- N
--debug-tensor-dump-layers N*
--dist-init-addr --nccl-init-addr N
--dllm-fdfo:16- / --no-dllm-fdfo
--enable-decoder-swa-bounded-replay:21- / --no-enable-decoder-swa-bounded-replay
--enable-dsa-fused-indexer:22- / --no-enable-dsa-fused-indexer
--enable-fused-qk-norm-rope / --no-enable-fused-qk-norm-rope
--enable-hierarchical-cache --enable-hicache:23-
--enable-tf32-matmul:15- / --no-enable-tf32-matmul
--enable-tp-lm-head-all-to-all:18- / --no-enable-tp-lm-head-all-to-all
--encoder-register-urls:13- N*
--encoder-urls N*
--expert-parallel-size --ep-size --ep N
--experts-shared-outer-loras:10- / --no-experts-shared-outer-loras
--flashinfer-autotune-skip-ops:17- N*
--gc-threshold:10- N*
--generation-tokens-buckets N*
--grpc-http-sidecar-port:11- --smg-http-sidecar-port:16- N
--help -h
--hierarchical-sparse-attention-extra-config --hisparse-config:12- N
--log-requests-target N*
--lora-paths N*
--lora-strict-loading:11- / --no-lora-strict-loading
--lora-target-modules N*
--mm-enable-dp-encoder / --no-mm-enable-dp-encoder
--model-checksum N*
--model-path --model N
--model-type:10- N
--moe-data-parallel-size --moe-dp-size N
--numa-node N*
--piecewise-cuda-graph-tokens:-20 N*
--pipeline-parallel-size --pp-size N
--ple-offload-embedding:20- / --no-ple-offload-embedding
--prefill-delayer-forward-passes-buckets N*
--prefill-delayer-wait-seconds-buckets N*
--prompt-tokens-buckets N*
--record-nolora-graph:11-13 / --no-record-nolora-graph
--return-aux-hidden-state-layer-ids:23- N*
--speculative-draft-window-size:12- --speculative-dflash-draft-window-size:11-20 N
--speculative-draft-model-path --speculative-draft-model N
--speculative-enable-w4a4-mxfp4-megamoe:22- / --no-speculative-enable-w4a4-mxfp4-megamoe
--tensor-parallel-size --tp-size N
--tokenizer-metrics-allowed-custom-labels N*
--uvicorn-access-log-exclude-prefixes N*
"""
"""With other spellings, an opposite, or any number of values."""

_SWITCHES = """
abort-on-priority-when-disabled allow-auto-truncate checkpoint-engine-wait-weights-before-ready
collect-tokens-histogram:-20 constrained-json-disable-any-whitespace debug-cuda-graph:11- delete-ckpt-after-loading
disable-aiter-allreduce-fusion-in-decode:21- disable-aiter-allreduce-fusion-in-prefill:21- disable-attn-tp-gather:13-
disable-chunked-prefix-cache disable-cuda-graph disable-cuda-graph-padding disable-custom-all-reduce
disable-decode-cuda-graph:14- disable-fast-image-processor disable-flashinfer-autotune
disable-flashinfer-cutlass-moe-fp4-allgather disable-hicache-numa-detect:-10 disable-hybrid-swa-memory
disable-outlines-disk-cache disable-overlap-schedule disable-piecewise-cuda-graph:10-20 disable-prefill-cuda-graph:14-
disable-priority-preemption:10- disable-radix-cache disable-shared-experts-fusion disable-tokenizer-batch-decode
disaggregation-decode-enable-offload-kvcache disaggregation-decode-enable-radix-cache:11-
disaggregation-enable-kv-checksum:21- elastic-ep-rejoin:11-21 enable-adaptive-dispatch-to-encoder:10-
enable-aiter-allreduce-fusion:10- enable-amd-monokernel:23- enable-attn-tp-input-scattered
enable-breakable-cuda-graph:11-20 enable-broadcast-mm-inputs-process enable-cache-report enable-cp-decode-attn-tp:17-
enable-cudagraph-gc enable-custom-logit-processor enable-deepep-waterfill:12-16 enable-deepseek-v4-fp4-indexer:13-
enable-dense-mlp-attn-tp:19- enable-deterministic-inference enable-double-sparsity:-11 enable-dp-attention
enable-dp-attention-local-control-broadcast:11- enable-dp-lm-head enable-draft-weights-cpu-backup
enable-dsa-cache-layer-split:16- enable-dsa-prefill-context-parallel:13-20 enable-dynamic-batch-tokenizer
enable-dynamic-chunking enable-elastic-expert-backup:10- enable-encoder-swa-bounded-replay:21- enable-eplb
enable-expert-distribution-metrics:-20 enable-flashinfer-allreduce-fusion enable-flexkv:16-
enable-forward-pass-metrics:12- enable-fp32-lm-head enable-fused-moe-sum-all-reduce:10-
enable-gdn-replayssm-spec:16-20 enable-hisparse:10- enable-http-worker-reuseport:23- enable-http2:11-
enable-int8-mamba-checkpoint:14- enable-kv-cache-sharding:22- enable-layernorm-sp:19- enable-layerwise-nvtx-marker
enable-lean-attention:19- enable-linear-replayssm:15- enable-linear-replayssm-spec:17- enable-linker-mla-dedup:21-
enable-lmcache enable-lora enable-lora-overlap-loading enable-mamba-cache-stochastic-rounding:15-
enable-megamoe-for-layernorm-sp:23- enable-memory-saver enable-metrics enable-metrics-for-all-schedulers
enable-mfu-metrics:10- enable-mis:11- enable-mixed-chunk enable-mm-global-cache:10- enable-mscclpp
enable-multi-layer-eagle enable-multimodal enable-nan-detection:-13 enable-nccl-nvls
enable-nsa-prefill-context-parallel:-20 enable-nvidia-megakernel:23- enable-p2p-check enable-page-major-kv-layout:15-
enable-paged-experts:23- enable-pd-role-switch:21- enable-pdmux enable-piecewise-cuda-graph:-14
enable-precise-embedding-interpolation enable-prefill-context-parallel:10-20 enable-prefill-cp:14-
enable-prefill-delayer enable-prefix-mm-cache enable-priority-scheduling enable-profile-cuda-graph
enable-quant-communications:11- enable-request-time-stats-logging enable-response-store:20-
enable-return-aux-hidden-states:23- enable-return-hidden-states enable-return-indexer-topk:12-
enable-return-routed-experts enable-scattered-sconv:16- enable-session-radix-cache:15-
enable-shared-experts-attn-tp:19- enable-single-batch-overlap enable-ssl-refresh:10- enable-streaming-session:10-
enable-strict-thinking:12- enable-symm-mem enable-tokenizer-batch-encode enable-torch-compile
enable-torch-compile-debug-mode enable-torch-symm-mem enable-trace enable-two-batch-overlap
enable-unified-cache-external-linker:20- enable-unified-memory:15- enable-w4a4-mxfp4-megamoe:19- enable-waterfill:16-
enable-watermark:22- enable-weights-cpu-backup encoder-only enforce-disable-flashinfer-allreduce-fusion:10-
enforce-piecewise-cuda-graph:10-20 enforce-shared-experts-fusion:11- export-metrics-to-file
flashinfer-mla-disable-ragged grpc-mode hybrid-kvcache-ratio:-14 incremental-streaming-output:10- is-embedding
keep-mm-feature-on-device:-21 language-model-only:18- language-only log-requests lora-use-virtual-experts:11-
mlx-enable-sampling:18- pre-warm-nccl:10- prefill-only-disable-kv-cache:12- prefill-round-robin-balance:-20
quantize-and-serve remote-instance-weight-loader-start-seed-via-transfer-engine return-input-ids:20-
return-output-ids:20- schedule-low-priority-values-first show-time-cost skip-server-warmup skip-tokenizer-init
sleep-on-idle smg-grpc-mode:16- speculative-adaptive:11- speculative-dspark-align-verify-tokens-to-graph-tier:16-
speculative-skip-dp-mlp-sync:11-23 speculative-use-block-verification:22- speculative-use-rejection-sampling:14-
stream-output:-20 stream-response-default-include-usage:10- strip-thinking-cache:11- triton-attention-reduce-in-fp32
trust-mm-content-hashes:18- trust-remote-code trust-request-chat-template:21- use-ray:10- weight-loader-disable-mmap
weight-loader-drop-cache-after-load:12- weight-loader-prefetch-checkpoints:11-
"""
"""Without a value; the leading dashes are left out."""

_VALUES = """
admin-api-key api-key asr-max-buffer-seconds:13- asr-max-concurrent-sessions:13- attention-backend base-gpu-id
batch-notify-size:11- bf16-gemm-backend:15- boundary-reduction:21- c128-page-size:18- chat-template
chunked-prefill-size completion-template config constrained-json-max-whitespace-cnt:21-
constrained-json-whitespace-pattern context-length cp-strategy:14- cpu-offload-gb crash-dump-folder
cuda-graph-backend-decode:14- cuda-graph-backend-prefill:14- cuda-graph-config:14- cuda-graph-max-bs:-20
cuda-graph-max-bs-decode:14- cuda-graph-max-bs-prefill:14- cuda-graph-max-seq-len-prefill:21-
cuda-graph-tc-compiler:14-22 custom-sigquit-handler:-14 dcp-comm-backend:17- debug-tensor-dump-inject:-14
debug-tensor-dump-input-file debug-tensor-dump-output-folder decode-attention-backend decode-log-interval
decoupled-spec-bind-endpoint:15- decoupled-spec-connect-endpoints:15- decoupled-spec-rank:15- decoupled-spec-role:15-
decrypted-config-file decrypted-draft-config-file deepep-config deepep-dispatcher-output-dtype:13- deepep-mode
deepep-v2-mode:19- default-chat-template-kwargs:16- default-priority-value:10- detokenizer-worker-num:12- device
disaggregation-bootstrap-port disaggregation-decode-allocation-policy:22- disaggregation-decode-dp:-10
disaggregation-decode-extra-slots:14- disaggregation-decode-host-receive-threshold:21-
disaggregation-decode-polling-interval disaggregation-decode-retraction-backup:18- disaggregation-decode-tp:-10
disaggregation-ib-device disaggregation-mode disaggregation-prefill-pp:-10 disaggregation-transfer-backend
dist-timeout dllm-algorithm dllm-algorithm-config download-dir ds-channel-config-path:-11 ds-heavy-channel-num:-11
ds-heavy-channel-type:-11 ds-heavy-token-num:-11 ds-sparse-decode-threshold:-11 dsa-decode-backend:13-
dsa-paged-mqa-logits-backend:15- dsa-prefill-backend:13- dsa-prefill-cp-mode:13-20 dsa-topk-backend:13-
dsa-triton-union:22- dsv4-attn-backend:20- dsv4-prefill-backend:19- dtype dwdp-size:17-
dynamic-batch-tokenizer-batch-size dynamic-batch-tokenizer-batch-timeout elastic-ep-backend
elastic-ep-initial-size:16- elastic-ep-join-mode:16- elastic-ep-join-rank-offset:16- elastic-ep-scale-timeout:16-
encoder-bootstrap-port:13- encoder-transfer-backend engine-info-bootstrap-port:10- ep-dispatch-algorithm
ep-num-redundant-experts eplb-algorithm eplb-min-rebalancing-utilization-threshold eplb-rebalance-layers-per-chunk
eplb-rebalance-num-iterations expert-balancedness-report-mode:18- expert-distribution-recorder-buffer-size
expert-distribution-recorder-mode export-metrics-to-file-dir extra-metric-labels fastapi-root-path file-storage-path
flashinfer-a2a-dispatch-type:20- flashinfer-allreduce-fusion-backend:14- flashinfer-mxfp4-moe-precision
flexkv-config-file:16- forward-hooks forward-pass-metrics-ipc-name:12- forward-pass-metrics-worker-id:12-
fp4-gemm-backend fp8-gemm-backend fuseep-mode:16- gated-launch-port:19- gc-warning-threshold-secs gpu-id-step
grammar-backend grpc-port:16- grpc-response-timeout-secs:21- hf-chat-template-name hicache-host-memory-fraction:21-
hicache-host-memory-mode:19- hicache-io-backend hicache-mem-layout hicache-ratio hicache-size hicache-storage-backend
hicache-storage-backend-extra-config hicache-storage-prefetch-policy hicache-storage-prefetch-retry-max-attempts:19-
hicache-storage-prefetch-retry-poll-interval:19- hicache-write-policy host http2-initial-connection-window-size:19-
http2-max-concurrent-streams:18- image-processor-backend:18- init-expert-location int8-mamba-ckpt-size:14-
json-model-override-args kt-cpuinfer kt-max-deferred-experts-per-token kt-method kt-num-gpu-experts
kt-threadpool-count kt-weight-path kv-cache-dtype kv-canary:13- kv-canary-real-data:13- kv-canary-sweep-interval:13-
kv-events-config limit-mm-data-per-request linear-attn-backend:10- linear-attn-decode-backend:10-
linear-attn-prefill-backend:10- linear-attn-verify-backend:17- linear-replayssm-cache-len:15- lmcache-config-file:13-
load-balance-method load-format load-publish-endpoint:19- load-snapshot-publish-interval:13- log-level log-level-http
log-requests-format log-requests-level lora-backend lora-drain-wait-threshold:12- lora-eviction-policy mamba-backend
mamba-cache-philox-rounds:15- mamba-full-memory-ratio mamba-max-states-per-path:17- mamba-radix-cache-strategy:14-
mamba-scheduler-strategy:-20 mamba-ssm-dtype mamba-track-interval max-ep-size:16- max-loaded-loras max-lora-chunk-size
max-lora-rank max-loras-per-batch max-mamba-cache-size max-prefill-tokens max-queued-requests max-running-requests
max-total-tokens media-url-max-file-size-mb:18- mem-fraction-static min-free-slots-delay:15- mm-attention-backend
mm-feature-transport:16- mm-global-cache-backend:18- mm-io-worker-num:17- mm-max-concurrent-calls:-10
mm-per-request-timeout:-10 mm-preprocess-cache-size-mb:18- mm-process-config mm-processor-worker-num:17-
model-config-parser:12- model-impl model-loader-extra-config modelexpress-config:10- modelopt-checkpoint-restore-path
modelopt-checkpoint-save-path modelopt-export-path modelopt-quant moe-a2a-backend moe-dense-tp-size moe-runner-backend
monokernel-backend:23- mooncake-ib-device msprobe-dump-config:11- multi-item-scoring-delimiter:-11 nccl-port nnodes
node-rank nsa-decode-backend:-20 nsa-prefill-backend:-20 nsa-prefill-cp-mode:-20 num-continuous-decode-steps
num-reserved-decode-tokens offload-group-size offload-mode offload-num-in-group offload-prefetch-step
optimistic-prefill-attempts:16- optimistic-prefill-retries:13-16 otlp-service-name:21- otlp-traces-endpoint page-size
paged-experts-num-resident:23- pdmux-config-path piecewise-cuda-graph-compiler:-20 piecewise-cuda-graph-max-tokens:-20
ple-offload-backend:20- ple-offload-dir:20- port pp-async-batch-depth pp-max-micro-batch-size
preferred-sampling-params prefill-attention-backend prefill-cp-mode:10-20 prefill-decode-interval:19-
prefill-decode-interval-min-bs:23- prefill-delayer-max-delay-ms:12- prefill-delayer-max-delay-passes
prefill-delayer-queue-min-ratio:12- prefill-delayer-token-usage-low-watermark prefill-kv-cache-dequant-dtype:21-
prefill-max-requests priority-scheduling-preemption-threshold qsa-indexer-dtype:22- quantization
quantization-param-path radix-cache-backend:13- radix-eviction-policy radix-eviction-policy-config:20- random-seed
reasoning-parser remote-instance-weight-loader-backend remote-instance-weight-loader-seed-instance-ip
remote-instance-weight-loader-seed-instance-service-port remote-instance-weight-loader-send-weights-group-ports
retraction-policy:16- return-hidden-states-mode:17- revision rl-on-policy-target rl-quant-profile sampling-backend
sampling-defaults sampling-mask-max-tokens:20- schedule-conservativeness schedule-policy scheduler-recv-interval
served-model-name shared-experts-tp-size:21- sidecar:16- sidecar-args:16- sm-group-num soft-watchdog-timeout
spec-trace-dir:15- speculative-accept-threshold-acc speculative-accept-threshold-single
speculative-adaptive-config:11- speculative-algorithm speculative-attention-mode speculative-dflash-block-size:11-
speculative-domino-candidate-pool-size:20- speculative-draft-attention-backend speculative-draft-kv-cache-dtype:18-
speculative-draft-load-format speculative-draft-model-quantization speculative-draft-model-revision
speculative-draft-sink-size:21- speculative-dsa-topk-backend:19- speculative-dspark-block-size:16-
speculative-dspark-confidence-sts-path:16- speculative-dspark-sps-table-path:16- speculative-eagle-topk
speculative-moe-a2a-backend speculative-moe-runner-backend speculative-ngram-branch-length:-10
speculative-ngram-capacity speculative-ngram-external-corpus-max-tokens:11- speculative-ngram-external-corpus-path:11-
speculative-ngram-external-sam-budget:11- speculative-ngram-match-type speculative-ngram-max-bfs-breadth
speculative-ngram-max-match-window-size:-10 speculative-ngram-max-trie-depth:10- speculative-ngram-min-bfs-breadth
speculative-ngram-min-match-window-size:-10 speculative-num-draft-tokens speculative-num-steps speculative-token-map
ssl-ca-certs:10- ssl-certfile:10- ssl-keyfile:10- ssl-keyfile-password:10- startup-weight-load-mode:18-
stream-interval swa-full-tokens-ratio swa-prefix-tails:21- tbo-token-distribution-threshold tokenizer-backend:11-
tokenizer-metrics-custom-labels-header tokenizer-mode tokenizer-path tokenizer-worker-num tool-call-parser tool-server
torch-compile-max-bs torchao-config:-18 trace-modules:13- triton-attention-num-kv-splits
triton-attention-split-tile-size unified-cache-external-linker-backend:20- unified-cache-external-linker-config:23-
uno-lora-path:20- warmups watchdog-timeout watermark-config:22- weight-cache-mode:17- weight-cache-socket:17-
weight-cache-timeout:17- weight-loader-prefetch-num-threads:11- weight-version
"""
"""Followed by one value; the leading dashes are left out."""


@cache
def options(patch: int | None) -> Mapping[str, Option]:
    """The options of version 0.5.`patch` by every spelling; those of all versions when it is None."""
    lines = (_of_version(line, patch) for line in _lines())
    return table("\n".join(line for line in lines if line.startswith("-")))


@cache
def windows() -> Mapping[str, tuple[int, int | None]]:
    """For every spelling the first patch version that has it, and the first one that has it no more."""
    found = (_WINDOW.fullmatch(word) for line in _lines() for word in line.split())
    return {
        m["word"]: (int(m["since"] or 0), int(m["until"]) if m["until"] else None)
        for m in found
        if m is not None and m["word"] != "-"
    }


def _lines() -> list[str]:
    switches = [f"--{word}" for word in _SWITCHES.split()]
    return [*_SPECIAL.strip().splitlines(), *switches, *(f"--{word} N" for word in _VALUES.split())]


def _of_version(line: str, patch: int | None) -> str:
    """The line without windows, and without the spellings that this version does not have."""
    kept = []
    for word in line.split():
        m = _WINDOW.fullmatch(word)
        if m is None:
            kept.append(word)
        elif patch is None or int(m["since"] or 0) <= patch < int(m["until"] or patch + 1):
            kept.append(m["word"])
    return " ".join(kept)
