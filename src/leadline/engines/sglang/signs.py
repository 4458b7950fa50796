"""Telling lines of SGLang's logs, in the order of telling: of patterns that match a line, the first here counts.

The texts are those of SGLang 0.5.9 to 0.5.23, of PyTorch, Triton, FlashInfer and transformers as they reach its log,
and of systemd and the kernel where a journal holds them.
"""

from __future__ import annotations

from leadline.dialect.signs import DEVICE_LOST, START_LIMIT, Sign, sign
from leadline.evidence import Failure

MORE_HOST_MEMORY = "settings that load more (a draft model, a larger context) need at least as much host memory"
HOST_REMEDY = "give the service more host memory, or load less: no second model, fewer ranks"
GRAPHS = "--cuda-graph-max-bs-decode (--cuda-graph-max-bs before 0.5.14)"

SUPERVISOR = (
    sign(
        r"A process of this unit has been killed by the OOM killer|Failed with result 'oom-kill'"
        r"|(?:Out of memory|Memory cgroup out of memory): Killed process|oom-kill:constraint=CONSTRAINT_\w+",
        Failure.HOST_OOM,
        "the kernel killed it for want of host memory",
        HOST_REMEDY,
        MORE_HOST_MEMORY,
    ),
    DEVICE_LOST,
)
"""What the kernel or systemd say, wherever in the log: these count before the server's own lines."""

ENDING = (
    sign(
        r"Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=(?P<now>[\d.]+\d)"
        r".*Raise --mem-fraction-static above (?P<least>[\d.]+\d)",
        Failure.NO_KV_ROOM,
        "the weights leave no room for the KV cache under --mem-fraction-static={now}",
        "raise --mem-fraction-static above {least}, or use a smaller draft model or more GPUs (--tp-size)",
        "a smaller fraction fails too, and so does a deeper draft",
        ("memory_fraction-", "depth+"),
    ),
    sign(
        r"Loaded weights leave no GPU memory for the KV cache|Not enough memory\. Please try to increase --mem",
        Failure.NO_KV_ROOM,
        "the weights leave no room for the KV cache under this --mem-fraction-static",
        "raise --mem-fraction-static, or use a smaller draft model or more GPUs (--tp-size)",
        "a smaller fraction fails too, and so does a deeper draft",
        ("memory_fraction-", "depth+"),
    ),
    sign(
        r"Hybrid \(mamba/linear-attention\) state cache is too small to serve"
        r"|Not enough GPU memory for hybrid \(mamba/linear-attention\) state cache",
        Failure.NO_KV_ROOM,
        "no room for the state cache of this hybrid model: each draft token keeps a state of its own",
        "lower --speculative-num-steps or --max-running-requests, raise --mem-fraction-static, or use "
        "--mamba-ssm-dtype bfloat16",
        "a deeper draft, more requests at once or a smaller fraction fails too",
        ("depth+", "draft_tokens+", "max_running+", "memory_fraction-"),
    ),
    sign(
        r"Can not alloc mamba cache|Not enough space for mamba ping pong idx",
        Failure.DEVICE_OOM_LOAD,
        "the state cache of this hybrid model ran out under load",
        "lower --max-running-requests, or raise --mamba-full-memory-ratio or --mem-fraction-static",
        "more requests at once, or a deeper draft, fail too",
        ("max_running+", "depth+", "memory_fraction-"),
    ),
    sign(
        r"(?:(?P<phase>Prefill|Decode) o|\bO)ut of memory\. Try to lower your batch size",
        Failure.DEVICE_OOM_LOAD,
        "the KV cache ran out under load, and SGLang found no request to put back",
        "lower --max-running-requests, or raise --mem-fraction-static or --schedule-conservativeness",
        "more requests at once, a deeper draft or a smaller fraction fails too",
        ("max_running+", "depth+", "memory_fraction-"),
    ),
    sign(
        r"error: (?P<what>(?:unrecognized arguments|ambiguous option|the following arguments are required"
        r"|argument \S.*?: (?:invalid|expected|not allowed)).*)",
        Failure.BAD_FLAG,
        "SGLang does not accept its command line: {what}",
        "correct the flag; `sglang serve --help` says what this version takes",
        "every setting that uses it fails",
    ),
    sign(
        r"\[Errno (?:98|48)\].*[Aa]ddress already in use|errno: 98 - Address already in use|EADDRINUSE",
        Failure.PORT_IN_USE,
        "another process listens on a port that SGLang needs",
        "end the process that listens there, or give --port another number",
    ),
    sign(
        r"(?P<name>\S{1,80}) at (?P<port>\d+) is not available in (?P<wait>\d+) seconds"
        r"|Port is already in use\.|engine_info_bootstrap_port (?P<boot>\d+) is already in use",
        Failure.PORT_IN_USE,
        "another process holds a port that SGLang needs between its own processes",
        "wait until an earlier server has ended, or give --port or --nccl-port another number",
    ),
    sign(
        r"Could not find nvcc|No such file or directory: '(?:[^'\s]*/)?(?:nvcc|ninja|g\+\+|gcc|cc|c\+\+)'"
        r"|(?:nvcc|ninja|g\+\+|gcc): (?:command )?not found|Ninja is required to load C\+\+ extensions"
        r"|Error: .*CUDA_HOME (?:environment variable )?is not set|Failed to find C compiler"
        r"|fatal error: (?:Python|cuda_runtime|cuda|curand_kernel)\.h: No such file",
        Failure.ENVIRONMENT,
        "a compiler that SGLang needs for its kernels is not found in the service's environment",
        "set PATH and CUDA_HOME as in the shell where it works (systemd: Environment=CUDA_HOME=/usr/local/cuda "
        "PATH=...), or install what is missing",
        "says nothing of any setting",
    ),
    sign(
        r"Error: (?:No CUDA GPUs are available|Found no NVIDIA driver)|CUDA driver version is insufficient"
        r"|ImportError: .*cannot open shared object file|ModuleNotFoundError: No module named",
        Failure.ENVIRONMENT,
        "something that SGLang needs is missing on the machine or in its environment",
        "compare the service's environment (CUDA_VISIBLE_DEVICES, LD_LIBRARY_PATH, driver, packages) with a good one",
        "says nothing of any setting",
    ),
    sign(
        r"Error: (?P<model>\S{1,400}) (?:is not a local folder and is not a valid model identifier"
        r"|does not appear to have a file named config\.json)"
        r"|Can't load the configuration of '(?P<name>[^']+)'|Cannot find any model weights with `(?P<weights>[^`]+)`"
        r"|Unrecognized model in (?P<shape>\S+?)\.? |Repo id must be in the form [^:]*: '(?P<path>[^']+)'"
        r"|(?:RepositoryNotFoundError|GatedRepoError)\b",
        Failure.MODEL_MISSING,
        "a model is not where the launch says",
        "correct --model-path (or --speculative-draft-model-path), or give access to it",
        "no setting starts",
    ),
    sign(
        r"[Dd]raft vocab \(\d+\) != target vocab|(?:target|draft)=\d+, (?:target|draft)=\d+.*vocab",
        Failure.DRAFT_BAD,
        "the draft model has another vocabulary than the target",
        "use a draft model that was made for this target",
        "every depth above 0 fails with this draft model",
        ("depth+", "draft_model="),
    ),
    sign(
        r"(?i)\bwatchdog timeout \(self\.watchdog_timeout=(?P<limit>[\d.]+)(?:, self\.soft=False)?\)",
        Failure.WATCHDOG,
        "one step took longer than its watchdog allows ({limit} s), and SGLang ended itself",
        "look for what hung (py-spy dump, dmesg); raise --watchdog-timeout if it only compiled",
    ),
    sign(
        r"SIGTERM received\.",
        Failure.KILLED,
        "somebody told it to stop (SIGTERM)",
        "look for a supervisor, a time limit or a person that stopped it",
        "says nothing of the setting",
    ),
)
"""The server does not survive these."""

AFTERMATH = (
    sign(
        r"Rank (?P<rank>\d+) scheduler died during initialization \(exit code: -9\)",
        Failure.KILLED,
        "somebody killed its scheduler of rank {rank} while it started (signal 9); SGLang names the kernel's "
        "out-of-memory killer as the common cause",
        "look into dmesg for an out-of-memory kill, then for a supervisor or a limit",
    ),
    sign(
        r"Subprocess (?P<name>\S+) \(pid=(?P<pid>\d+)\) crashed with exit code -9\b",
        Failure.KILLED,
        "somebody killed its process {name} (signal 9)",
        "look into dmesg for an out-of-memory kill, then for a supervisor or a limit",
    ),
    sign(
        r"Subprocess (?P<name>\S+) \(pid=(?P<pid>\d+)\) crashed with exit code -15\b",
        Failure.KILLED,
        "somebody told its process {name} to stop (SIGTERM)",
        "look for a supervisor, a time limit or a person that stopped it",
    ),
    sign(
        r"Rank (?P<rank>\d+) scheduler died during initialization \(exit code: (?P<code>-?\d+)\)",
        Failure.CRASHED,
        "its scheduler of rank {rank} ended while it started (exit code {code})",
        "read the lines before it in the log",
    ),
    sign(
        r"Subprocess (?P<name>\S+) \(pid=(?P<pid>\d+)\) crashed with exit code (?P<code>-?\d+)",
        Failure.CRASHED,
        "its process {name} ended (exit code {code})",
        "read the lines before it in the log",
    ),
    sign(
        r"Initialization failed\. warmup error: ",
        Failure.CRASHED,
        "its own warm-up request failed",
        "read the lines before it in the log",
    ),
    sign(
        r"Received sigquit from a child process|SIGQUIT received\.",
        Failure.CRASHED,
        "one of its processes ended",
        "read the lines before it in the log",
    ),
    START_LIMIT,
    sign(
        r"Main process exited, code=killed, status=9/KILL",
        Failure.KILLED,
        "somebody killed it (signal 9), or it killed itself after one of its processes had ended",
        "look into dmesg for an out-of-memory kill, then for a supervisor or a limit",
    ),
    sign(
        r"Main process exited, code=(?P<how>exited|killed|dumped), status=(?P<status>\d+\S*)",
        Failure.CRASHED,
        "it ended by itself ({how}, {status})",
        "read the lines before it in the log; when systemd then says `repeated too quickly`, `systemctl reset-failed` "
        "the unit before the next start",
    ),
    sign(
        r"NVRM: Xid \([^)]*\): (?P<xid>\d+)",
        Failure.CRASHED,
        "the driver reported an error of the program on the GPU (Xid {xid})",
        "look for the message among SGLang's issues; try without the last flag that was added",
    ),
)
"""What follows from something else: they tell only when nothing before them does."""

LIVING = (
    sign(
        r"KV cache pool is full\. Retract requests\. #retracted_reqs: (?P<n>\d+)",
        Failure.KV_STARVED,
        "the KV cache is too small for the requests in flight: SGLang puts running ones back ({n} at once) and "
        "computes them again",
        "lower --max-running-requests, or give the KV cache more: a shallower draft, a higher --mem-fraction-static",
        "more requests at once, a deeper draft or a smaller fraction is starved too",
        ("max_running+", "depth+", "memory_fraction-"),
    ),
    sign(
        r"max_running_requests was reduced from the requested (?P<asked>\d+) to (?P<now>\d+)",
        Failure.KV_STARVED,
        "the KV cache holds {now} requests at once, and {asked} were asked for",
        "give the KV cache more: a shallower draft, a higher --mem-fraction-static; or ask for {now}",
        "a deeper draft or a smaller fraction holds no more",
        ("max_running+", "depth+", "memory_fraction-"),
    ),
    sign(
        r"max_running_requests is capped to (?P<now>\d+) by the mamba state cache",
        Failure.KV_STARVED,
        "the state cache of this hybrid model holds {now} requests at once",
        "use a shallower draft, --mamba-ssm-dtype bfloat16, a higher --mamba-full-memory-ratio, or ask for {now}",
        "a deeper draft or a smaller fraction holds no more",
        ("max_running+", "depth+", "memory_fraction-"),
    ),
)
"""The server goes on after these, so they do not say why it ended."""

ALL: tuple[Sign, ...] = (*SUPERVISOR, *ENDING, *AFTERMATH, *LIVING)
