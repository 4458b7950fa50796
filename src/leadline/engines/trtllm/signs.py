"""Lines of trtllm-serve's log that say why it ended or does not serve. Texts from its source and public reports."""

from __future__ import annotations

from leadline.dialect.signs import DEVICE_LOST, START_LIMIT, sign
from leadline.engines.trtllm.probes import GATE
from leadline.evidence import Failure

_LESS_CACHE = "LOWER --kv_cache_free_gpu_memory_fraction (a share of FREE memory), or --max_batch_size, or the depth"
_MORE_MEMORY = "a higher memory fraction, more requests at once or a greater depth need at least as much"
_MORE = ("memory_fraction+", "max_running+", "depth+")

MACHINE = (
    DEVICE_LOST,
    sign(
        r"(?:Out of memory|Memory cgroup out of memory): Killed process|oom-kill:constraint=CONSTRAINT_"
        r"|killed by the OOM killer|Failed with result 'oom-kill'",
        Failure.HOST_OOM,
        "the kernel killed a process of it for want of host memory",
        "give the service more host memory, or keep less cache there (kv_cache_config.host_cache_size)",
    ),
)
"""What the kernel and systemd say, wherever in the log: these count before the server's own lines."""

KILLED = (
    sign(
        r"Main process exited, code=killed, status=9",
        Failure.KILLED,
        "somebody killed it (signal 9), and the kernel reported no lack of memory",
        "look for a supervisor, a time limit or a person that killed it",
    ),
)

START = (
    sign(
        r"Failed to bind socket to (?P<host>\S+?):(?P<port>\d+):",
        Failure.PORT_IN_USE,
        "port {port} of {host} is in use",
        "give --port another number, or end the process that listens there",
    ),
    sign(
        r"\[Errno (?:98|48)\].*[Aa]ddress already in use",
        Failure.PORT_IN_USE,
        "the port is in use",
        "give --port another number, or end the process that listens there",
    ),
    sign(
        r"^Error: No such option: (?P<flag>[^\s=]+)",
        Failure.BAD_FLAG,
        "this trtllm-serve has no option {flag}",
        "look for it in trtllm-serve --help; names have underscores, and releases differ",
        "every setting that uses it fails",
    ),
    sign(
        r"^Error: (?P<why>(?:Invalid value for|Missing argument|Option|Got unexpected extra argument).+)",
        Failure.BAD_FLAG,
        "trtllm-serve does not accept its command line: {why}",
        "correct the option; trtllm-serve --help says what it takes",
        "every setting with this value fails",
    ),
    sign(
        r"Quota not set\. Check kv_cache_config\.max_tokens",
        Failure.BAD_COMBINATION,
        "a hybrid model wants its KV cache bounded in tokens or bytes",
        "set kv_cache_config.max_tokens or max_gpu_total_bytes in the YAML file",
        "no setting starts without it",
    ),
    sign(
        r"ValueError: (?P<why>.*(?:must be > 0 for \w+|must be provided for|does not support backend|mutually exclusive"
        r"|should be provided|must equal max_draft_len|is incompatible with).*)",
        Failure.BAD_COMBINATION,
        "trtllm-serve refuses the combination: {why}",
        "correct speculative_config in the YAML file",
        "every setting with this combination fails",
    ),
    sign(
        r"Unknown architecture for AutoModelForCausalLM: (?P<arch>\S+)",
        Failure.ENVIRONMENT,
        "this release does not know the model's architecture {arch}",
        "use a release that does",
        "no setting starts",
    ),
    sign(
        r"no config\.json exists in|is not a local folder and is not a valid model identifier"
        r"|RepositoryNotFoundError|GatedRepoError",
        Failure.MODEL_MISSING,
        "a model cannot be found",
        "correct MODEL or speculative_model; a gated one needs HF_TOKEN",
        "no setting with this model starts",
    ),
    sign(
        r"No such file or directory: '(?P<path>[^']+)'",
        Failure.ENVIRONMENT,
        "the file {path} is missing",
        "correct the path: inside a container it may be another one",
    ),
    sign(
        r"No GPU devices found on the node|CUDA driver version is insufficient|no CUDA-capable device is detected",
        Failure.ENVIRONMENT,
        "it finds no GPU that it can use",
        "check the driver, and that this process may see the GPU",
        "no setting starts",
    ),
    sign(
        r"(?:ModuleNotFoundError|ImportError): (?P<what>.+)",
        Failure.ENVIRONMENT,
        "what it needs is not installed: {what}",
        "check the container or the virtual environment",
        "no setting starts",
    ),
)

UNIT = (
    sign(
        r"Main process exited, code=(?P<how>exited|dumped), status=(?P<status>\d+\S*)",
        Failure.CRASHED,
        "it ended by itself ({how}, {status})",
        "read the lines before it in the log; when systemd then says `repeated too quickly`, `systemctl reset-failed` "
        "the unit before the next start",
    ),
    START_LIMIT,
)
"""What systemd says of the unit, when nothing of the server's own tells."""

MEMORY = (
    sign(
        r"CUDA out of memory\. Tried to allocate (?P<size>[\d.]+ [KMGT]iB)"
        r".*?of which (?P<free>[\d.]+ [KMGT]iB) is free",
        Failure.DEVICE_OOM_LOAD,
        "out of GPU memory: {size} more were asked for, and {free} were free",
        _LESS_CACHE,
        _MORE_MEMORY,
        _MORE,
        early=Failure.DEVICE_OOM_START,
    ),
    sign(
        r"CUDA out of memory\. Tried to allocate (?P<size>[\d.]+ [KMGT]iB)",
        Failure.DEVICE_OOM_LOAD,
        "out of GPU memory: {size} more were asked for",
        _LESS_CACHE,
        _MORE_MEMORY,
        _MORE,
        early=Failure.DEVICE_OOM_START,
    ),
    sign(
        r"CUDA error: CUBLAS_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)",
        Failure.DEVICE_OOM_LOAD,
        "cuBLAS could not be set up: too little GPU memory was left for it",
        _LESS_CACHE,
        _MORE_MEMORY,
        _MORE,
        early=Failure.DEVICE_OOM_START,
    ),
    sign(
        r"CUDA (?:runtime )?error(?: in [^:]*)?: out of memory|CUDA out of memory|torch\.(?:cuda\.)?OutOfMemoryError"
        r"|cuda\w* ?failed.*out of memory|The GPU ran out of memory",
        Failure.DEVICE_OOM_LOAD,
        "out of GPU memory",
        _LESS_CACHE,
        _MORE_MEMORY,
        _MORE,
        early=Failure.DEVICE_OOM_START,
    ),
)

CRASH = (
    sign(
        r"Hang detected (?:after \d+ seconds|on rank)",
        Failure.WATCHDOG,
        "its own watchdog saw no progress and ended it",
        "look at the stacks that it printed; a collective call may wait for a dead rank",
    ),
    sign(
        r"Executor loop crashed on this rank",
        Failure.CRASHED,
        "the loop of one rank crashed, and all others are killed with it",
        "the lines before it in the log say why",
    ),
    sign(
        r"Executor creation failed with NCCL error: (?P<why>.+)",
        Failure.CRASHED,
        "NCCL failed while the executor was made: {why}",
        "run it with NCCL_DEBUG=INFO; too little shared memory (--shm-size) is a common cause",
    ),
    sign(
        r"CUDA error: (?P<why>an illegal memory access|device-side assert|unspecified launch failure).*",
        Failure.CRASHED,
        "the GPU reported an error: {why}",
        "look at the log around this line and at the kernel's messages of the device",
    ),
    sign(
        r"MPI_ABORT was invoked|mpirun (?:has exited|noticed)|prterun noticed",
        Failure.CRASHED,
        "MPI ended its processes after one of them had died",
        "the lines before it in the log say why",
    ),
    sign(
        r"Executor worker (?:returned error|died)",
        Failure.CRASHED,
        "a worker of the server failed",
        "the lines before it in the log say why",
    ),
)

ENDING = (*KILLED, *START, *MEMORY, *CRASH)
"""In the order of telling: of lines that match, the first in the log counts, and of patterns the first here."""

LIVING = (
    sign(
        GATE.pattern,
        Failure.NO_SPECULATION,
        "speculation has been switched off for good: {avg} tokens were accepted on average, and the gate wants {least}",
        "remove acceptance_window (acceptance_rate_window_size) from speculative_config, or use less depth",
        "what is measured from here on is depth 0",
    ),
    sign(
        r"KV_CACHE_MANAGER requires (?P<need>\d+) KV cache blocks.*capacity of (?P<have>\d+)",
        Failure.KV_STARVED,
        "one request needs {need} blocks of KV cache, and there are {have}",
        "give the KV cache more memory, or lower --max_seq_len",
        "a lower memory fraction holds less still",
        ("memory_fraction-",),
    ),
)
"""The server goes on after these, so they do not say why it ended."""
