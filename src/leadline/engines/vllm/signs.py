"""Lines of vLLM's log that say why it ended or does not serve, as data.

Texts as in the releases 0.9 to 0.33 (vllm/v1/core/kv_cache_planning.py, vllm/v1/worker, vllm/v1/engine,
vllm/config/speculative.py), of PyTorch, of argparse, and of the kernel and systemd where their lines are in the log.
"""

from __future__ import annotations

from leadline.dialect.signs import DEVICE_LOST, START_LIMIT, sign
from leadline.evidence import Failure

MORE_MEMORY = "deeper settings, more requests at once and a larger draft model need at least as much"
_DEEPER = ("depth+", "max_running+")
_EVERY = "no setting starts"
_THIS_VALUE = "every setting with this value fails"

SUPERVISOR = (
    sign(
        r"(?P<unit>\S+\.(?:service|scope)): (?:Failed with result 'oom-kill'"
        r"|A process of this unit has been killed by the OOM killer)",
        Failure.HOST_OOM,
        "the kernel killed it for want of host memory ({unit})",
        "give the unit more memory (MemoryMax), or take less of --cpu-offload-gb, --swap-space or the model",
        MORE_MEMORY,
    ),
    sign(
        r"(?:Out of memory|Memory cgroup out of memory): Killed process (?P<pid>\d+) \((?P<name>[^)]*)\)"
        r"|oom-kill:constraint=CONSTRAINT_\w+,.*?task=(?P<task>[^,]+),pid=\d+",
        Failure.HOST_OOM,
        "the kernel killed one of its processes for want of host memory",
        "give it more memory, or take less of --cpu-offload-gb, --swap-space or the model",
        MORE_MEMORY,
    ),
    DEVICE_LOST,
)
"""Facts of the machine: they count before any line of vLLM's own."""

RESTARTS = (
    sign(
        r"Scheduled restart job, restart counter is at (?P<n>\d+)",
        Failure.RESTARTED,
        "its supervisor started it again by itself",
        "look at the lines before; a restart in the middle of a measurement makes it void",
    ),
    START_LIMIT,
    sign(
        r"\S+\.service: Main process exited, code=(?P<how>exited|dumped), status=(?P<status>\d+\S*)",
        Failure.CRASHED,
        "it ended by itself ({how}, {status})",
        "read the lines before it in the log; when systemd then says `repeated too quickly`, `systemctl reset-failed` "
        "the unit before the next start",
    ),
    sign(
        r"\S+\.service: Main process exited, code=killed, status=9/KILL",
        Failure.KILLED,
        "its main process was killed (signal 9), and the kernel reported no lack of memory",
        "look for a supervisor, a time limit or a person that killed it",
    ),
    sign(
        r"\S+\.(?:service|scope): Failed with result 'watchdog'",
        Failure.WATCHDOG,
        "its supervisor's watchdog ended it",
        "look at WatchdogSec= of the unit",
    ),
)
"""What a supervisor says, when nothing else in the log tells."""

_ONE_REQUEST = (
    r"To serve at least one request with the models?'s max seq len \((?P<length>\d+)\), \(?(?P<need>[\d.]+) Gi?B KV"
    r" cache is needed, which is larger than the available KV cache memory \((?P<have>[\d.]+) Gi?B\)"
)
"""Releases differ in "the model's" and "the models's", and in GB and GiB for 2^30 bytes."""
_SHORTER = (
    "lower --max-model-len, or raise --gpu-memory-utilization; less depth leaves a little more",
    "smaller shares, deeper settings and more requests at once fail too",
    ("memory_fraction-", *_DEEPER),
)

MEMORY = (
    sign(
        r"Free memory on (?P<device>device(?: [^\s(]+)?) \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup is less"
        r" than desired GPU memory utilization \((?P<share>[\d.]+), (?P<want>[\d.]+) GiB\)",
        Failure.DEVICE_OOM_START,
        "{want} GiB of {device} were asked for (share {share}), and {free} of {total} GiB are free",
        "end what else uses the GPU, or lower --gpu-memory-utilization",
        "larger shares fail too",
        ("memory_fraction+",),
    ),
    sign(
        r"No available memory for the cache blocks",
        Failure.NO_KV_ROOM,
        "weights and activations leave no memory for the KV cache",
        "raise --gpu-memory-utilization, or lower --max-num-seqs, --max-num-batched-tokens or the depth",
        "smaller shares, deeper settings and more requests at once fail too",
        ("memory_fraction-", *_DEEPER),
    ),
    sign(
        rf"{_ONE_REQUEST}\..*?estimated maximum model length is (?P<fits>\d+)",
        Failure.KV_STARVED,
        "one request of {length} tokens needs {need} GiB of KV cache, and there are {have} GiB (fits: {fits} tokens)",
        *_SHORTER,
    ),
    sign(
        _ONE_REQUEST,
        Failure.KV_STARVED,
        "one request of {length} tokens needs {need} GiB of KV cache, and there are {have} GiB",
        *_SHORTER,
    ),
    sign(
        r"[Tt]he models?'s max seq len \((?P<length>\d+)\) is larger than the maximum number of tokens that can be"
        r" stored in KV cache \((?P<have>\d+)\)",
        Failure.KV_STARVED,
        "one request may have {length} tokens, and the KV cache holds {have}",
        *_SHORTER,
    ),
    sign(
        r"max_num_seqs \((?P<asked>\d+)\) exceeds available Mamba cache blocks \((?P<blocks>\d+)\)",
        Failure.KV_STARVED,
        "{asked} requests were asked for, and there are state blocks for {blocks}",
        "lower --max-num-seqs to at most {blocks}, raise --gpu-memory-utilization, or take less depth",
        "more requests and deeper settings fail too",
        ("memory_fraction-", *_DEEPER),
    ),
    sign(
        r"Failed to load model - not enough GPU memory",
        Failure.DEVICE_OOM_START,
        "the weights do not fit on the device",
        "use a quantized model, a larger --tensor-parallel-size or a smaller draft model",
        "every setting with these models fails",
        ("draft_model=",),
    ),
    sign(
        r"CUDA out of memory occurred when warming up (?P<what>.+?) with (?P<n>\d+)?",
        Failure.DEVICE_OOM_START,
        "out of memory when warming up the {what} with {n} requests",
        "lower --max-num-seqs or --gpu-memory-utilization",
        "more requests at once and larger shares fail too",
        ("max_running+", "memory_fraction+"),
    ),
    sign(
        r"(?:CUDA|HIP|XPU) out of memory\. Tried to allocate (?P<n>[\d.]+ [KMGT]iB)",
        Failure.DEVICE_OOM_LOAD,
        "out of memory on the device: {n} more were asked for",
        "lower --gpu-memory-utilization, --max-num-seqs or --max-num-batched-tokens",
        MORE_MEMORY,
        ("memory_fraction+", *_DEEPER),
        early=Failure.DEVICE_OOM_START,
    ),
)

CONFIGURATION = (
    sign(
        r"^(?P<program>\S.*?): error: (?P<why>(?:unrecognized arguments|argument .*?: (?:invalid|expected|not allowed)"
        r"|ambiguous option|the following arguments are required).*)$",
        Failure.BAD_FLAG,
        "vLLM does not accept its command line: {why}",
        "look for the option in vllm serve --help=all; the version may be older or newer than the option",
        "every setting that uses it fails",
    ),
    sign(
        r"\[Errno (?:98|48)\].*?[Aa]ddress already in use",
        Failure.PORT_IN_USE,
        "its port is in use",
        "give --port another number, or end the process that listens there",
    ),
    sign(
        r"num_speculative_tokens:(?P<n>\d+) must be divisible by n_predict=(?P<predict>\d+)",
        Failure.BAD_COMBINATION,
        "the model drafts {predict} tokens at a time, and a depth of {n} is no multiple of that",
        "take a depth of at most {predict}, or a multiple of it",
        "other depths that are no multiple fail too",
        ("depth=",),
    ),
    sign(
        r"(?P<why>num_speculative_tokens must be provided|num_speculative_tokens was provided but without speculative"
        r" model|'tensor_parallel_size' is not a valid argument|are mutually exclusive|prompt_lookup_min=\d+ must be"
        r"|--per-request-spec-decode-metrics requires|synthetic_acceptance_\w+ (?:must|entries)"
        r"|Custom logits processors are not supported|should be consistent with the max value of"
        r"|Unsupported speculative method|Dynamic speculative decoding is not supported)",
        Failure.BAD_COMBINATION,
        "these options of speculation do not go together: {why}",
        "correct --speculative-config",
        "every depth above 0 fails with them",
    ),
    sign(
        r"Consider increasing max_num_batched_tokens or decreasing num_speculative_tokens",
        Failure.BAD_COMBINATION,
        "with LoRA, --max-num-batched-tokens must be at least --max-num-seqs * (depth + 1)",
        "raise --max-num-batched-tokens, or take less of depth or max_running",
        "deeper settings and more requests fail too",
        _DEEPER,
    ),
    sign(
        r"No valid cudagraph sizes after rounding to multiple of (?P<n>\d+)",
        Failure.BAD_COMBINATION,
        "no graph of {n} tokens (depth + 1) is among the sizes to capture",
        "raise --max-cudagraph-capture-size, or take less depth",
        "deeper settings fail too",
        ("depth+",),
    ),
    sign(
        r"Target and draft model should have the same vocabulary size.*?vocab_size=(?P<target>\d+)"
        r".*?vocab_size=(?P<draft>\d+)",
        Failure.DRAFT_BAD,
        "the draft model has another vocabulary ({draft}) than the model ({target})",
        "use a draft model of the same family",
        "every depth above 0 fails with this draft model",
        ("draft_model=",),
    ),
    sign(
        r"Selected backend (?P<what>\S+) is not valid for this configuration\. Reason: (?P<why>.+)",
        Failure.BAD_COMBINATION,
        "the attention backend {what} cannot run this model: {why}",
        "choose another --attention-backend, or leave it to vLLM",
        _EVERY,
    ),
    sign(
        r"No valid attention backend|User-specified max_model_len \(\d+\) is greater than the derived"
        r"|max_num_batched_tokens \(\d+\) (?:must|is)|ValueError: .*?tensor.parallel.size",
        Failure.BAD_COMBINATION,
        "these options do not go together",
        "the line says which",
    ),
)

_MISSING = (
    Failure.MODEL_MISSING,
    "the model cannot be found or read: {model}",
    "correct its name or path, or give the token that may read it",
    _EVERY,
)
MODELS = (
    sign(
        r"(?:Repository Not Found for url: |Cannot access gated repo for url |Can't load the configuration of '"
        r"|Invalid repository ID or local directory specified: ?'?|Cannot find any model weights with `"
        r"|Incorrect path_or_model_id: '|Repo id must be in the form .*?: '|Access to model )(?P<model>[^\s'`]*)",
        *_MISSING,
    ),
    sign(
        r"(?P<model>\S+) (?:is not a local folder and is not a valid model identifier"
        r"|does not appear to have a file named)",
        *_MISSING,
    ),
    sign(
        r"Model architectures (?P<what>\[.*?\]) are not supported",
        Failure.MODEL_MISSING,
        "this version of vLLM does not know the architecture {what}",
        "use a newer vLLM, or another model",
        _EVERY,
    ),
)

SURROUNDINGS = (
    sign(
        r"Error in memory profiling\. Initial free memory",
        Failure.ENVIRONMENT,
        "another process of the GPU freed memory while vLLM measured what it needs itself",
        "try again; if it comes back, wait until what ran on the GPU before has ended, or end it",
        "says nothing of any setting",
    ),
    sign(
        r"No CUDA GPUs are available|Failed to infer device type|CUDA driver version is insufficient"
        r"|libcuda\.so\S*: cannot open|no NVIDIA driver",
        Failure.ENVIRONMENT,
        "no device that it can use",
        "look at CUDA_VISIBLE_DEVICES and the driver",
        _EVERY,
    ),
    sign(
        r"Arctic Inference is required",
        Failure.ENVIRONMENT,
        "the method suffix needs the package arctic-inference",
        "install it beside vLLM, in the version that the line says",
        _THIS_VALUE,
    ),
    sign(
        r"ModuleNotFoundError: No module named (?P<what>\S+)",
        Failure.ENVIRONMENT,
        "the package {what} is missing",
        "install it beside vLLM",
        _THIS_VALUE,
    ),
)

DYING = (
    sign(
        r"Failed core proc\(s\): \{[^}]*: -9\b|Worker proc \S+ died unexpectedly \(exit code: -9\)",
        Failure.KILLED,
        "one of its processes was killed (signal 9)",
        "look at the kernel's log: it kills so for want of host memory",
        MORE_MEMORY,
    ),
    sign(
        r"RPC call to (?P<what>\w+) timed out",
        Failure.WATCHDOG,
        "a step hung, and vLLM gave it up ({what})",
        "look at the device and its driver; a depth of 0 tells whether speculation is the cause",
    ),
    sign(
        r"(?P<why>(?:CUDA|HIP) error: .+|NCCL (?:error|Error)|device-side assert)",
        Failure.CRASHED,
        "the device reported an error: {why}",
        "look at the log and at the kernel's messages of the device",
    ),
)
REFUSED = (
    sign(
        r"(?P<why>\d+ validation errors? for \w+)",
        Failure.BAD_COMBINATION,
        "vLLM refuses its configuration: {why}",
        "the lines after it say what",
    ),
    sign(
        r"^(?:\(.*?\) )?(?:ERROR .*?)?(?:Value|NotImplemented|Assertion)Error: (?P<why>\S.*)$",
        Failure.BAD_COMBINATION,
        "vLLM refuses its configuration: {why}",
        "the line says what",
    ),
)
"""What any check of vLLM says: counted at the start only, when no line tells more."""

DEAD = (
    sign(
        r"EngineDeadError|EngineCore encountered (?:an issue|a fatal error)"
        r"|[Ee]ngine core (?:process )?\S* ?(?:exited|died) unexpectedly",
        Failure.ENGINE_DEAD,
        "its engine has died",
        "the lines before it in the log say why",
    ),
    sign(
        r"Engine core initialization failed|EngineCore failed to start|died unexpectedly \(exit code",
        Failure.CRASHED,
        "its engine could not start",
        "the lines before it in the log say why",
    ),
)
"""What says that it ended, and not why: it counts when nothing else tells."""

LIVING = (
    sign(
        r"Running: \d+ reqs, Waiting: \d+ reqs,.*?\bPreemptions: (?P<n>0*[1-9]\d*)\b",
        Failure.KV_STARVED,
        "the KV cache is too small for the requests in flight: vLLM puts running ones back ({n} between two reports) "
        "and computes them again",
        "lower --max-num-seqs, or give the KV cache more: a higher --gpu-memory-utilization, less depth",
        "more requests at once, a deeper draft or a smaller share is starved too",
        ("max_running+", "depth+", "memory_fraction-"),
    ),
)
"""The server goes on after these, so they do not say why it ended (`vllm/v1/metrics/loggers.py`)."""

STOPPED = (
    sign(
        r"Shutting down FastAPI HTTP server\.|Shutdown initiated \(timeout=\d+\)",
        Failure.KILLED,
        "somebody told it to stop, and it ended in order",
        "look for a supervisor, a time limit or a person that stopped it",
        "says nothing of the setting",
    ),
)
"""Written on SIGTERM or SIGINT only (`entrypoints/launcher.py`, `v1/engine/core.py`); a dead engine, which ends the
server as well, has said so before."""

TELLING = (*MEMORY, *CONFIGURATION, *MODELS, *SURROUNDINGS, *DYING)
