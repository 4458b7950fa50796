"""trtllm-serve's own options, and the words that start it.

Read from `commands/serve.py` of releases 1.1 to 1.3rc. A click program: `--name value` or `--name=value`, the last one
counts, names are never completed, and each is spelled with underscores only. Values come from the command line or the
YAML file, never from the environment.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from leadline.dialect.commandline import CommandLine, Grammar
from leadline.dialect.commandline import read as read_line
from leadline.dialect.options import table
from leadline.dialect.source import base_name
from leadline.errors import InputError
from leadline.launch import LaunchSpec

SERVER = "trtllm-serve"
HOST, PORT, BACKEND, CONFIG = "--host", "--port", "--backend", "--config"
FRACTION, BATCH, KV_DTYPE = "--free-gpu-memory-fraction", "--max-batch-size", "--kv-cache-dtype"
ROLES = ("--server-role", "--disagg-cluster-uri", "--metadata-server-config-file")
OVERRIDE = "--set"

OPTIONS = table(
    """
    --tokenizer N
    --custom-tokenizer N
    --host N
    --port N
    --backend N
    --custom-module-dirs N
    --log-level N
    --max-beam-width N
    --max-batch-size N
    --max-num-tokens N
    --max-seq-len N
    --max-input-len N
    --tensor-parallel-size --tp-size --tp N
    --pipeline-parallel-size --pp-size --pp N
    --context-parallel-size --cp-size N
    --moe-expert-parallel-size --ep-size --ep N
    --moe-cluster-parallel-size --cluster-size N
    --gpus-per-node N
    --free-gpu-memory-fraction --kv-cache-free-gpu-memory-fraction --kv-cache-free-gpu-mem-fraction N
    --kv-cache-dtype N
    --num-postprocess-workers N
    --trust-remote-code
    --revision N
    --config --extra-llm-api-options N
    --set N
    --reasoning-parser N
    --tool-parser N
    --metadata-server-config-file N
    --server-role N
    --fail-fast-on-attention-window-too-large
    --otlp-traces-endpoint N
    --disagg-cluster-uri N
    --enable-chunked-prefill
    --media-io-kwargs N
    --chat-template N
    """
)

_OTHER_COMMANDS = {
    "disaggregated": "it passes requests on to other servers: tune those, one at a time",
    "disaggregated_mpi_worker": "it is one of several servers of a disaggregated service",
    "mm_embedding_serve": "it makes embeddings and generates nothing",
    "embedding_serve": "it makes embeddings and generates nothing",
    "grpc": "it speaks gRPC, and requests are sent over HTTP",
}
_PYTHON = re.compile(r"python[\d.]*")
_MODULE = "tensorrt_llm.commands.serve"
_MPI = frozenset({"mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun"})
_PROXY = "trtllm-llmapi-launch"
_OTHER_HOSTS = frozenset({"-H", "-host", "--host", "-hosts", "-hostfile", "--hostfile", "-machinefile"})
_RANKS = frozenset({"-n", "-np", "--np", "-c", "--n"})
_NODES = frozenset({"--nnodes", "--nodes", "--node-rank", "--num-nodes"})


def starts(argv: Sequence[str], at: int) -> int:
    """Words from `at` on that start the server, wrappers of MPI included; 0 = they do not.

    Raises InputError for what may start it on several hosts, for a script, and for another command of trtllm-serve.
    """
    name = base_name(argv[at])
    if name == "srun":
        raise InputError(
            "srun starts the server's processes under Slurm, maybe on several hosts: nothing here could end them all. "
            f"Give a {SERVER} command for one host."
        )
    if name in _MPI or name == _PROXY:
        return _behind(argv, at)
    return _with_command(argv, at, _program(argv, at))


def _with_command(argv: Sequence[str], at: int, count: int) -> int:
    """The program's words, and `serve` when it is said."""
    if not count or at + count >= len(argv):
        return count
    command = argv[at + count]
    if command in _OTHER_COMMANDS:
        raise InputError(f"{SERVER} {command} is not tuned: {_OTHER_COMMANDS[command]}")
    return count + (command == "serve")


def _program(argv: Sequence[str], at: int) -> int:
    name = base_name(argv[at])
    if name == SERVER:
        return 1
    if not _PYTHON.fullmatch(name):
        return 0
    after = at + 1
    while after < len(argv) and argv[after].startswith("-") and argv[after] != "-m":
        after += 1
    if after < len(argv) and base_name(argv[after]) == SERVER:
        return after + 1 - at
    return after + 2 - at if tuple(argv[after : after + 2]) == ("-m", _MODULE) else 0


def _behind(argv: Sequence[str], at: int) -> int:
    """The words up to and with the server that MPI starts on this host; 0 = it is not among them, but in a script."""
    for here in range(at + 1, len(argv)):
        if count := _program(argv, here):
            _one_host(argv[at:here])
            return here - at + _with_command(argv, here, count)
    hosts = next((w for w in argv[at:] if w.partition("=")[0] in _OTHER_HOSTS), None)
    if hosts is not None:
        raise InputError(f"{argv[at]} {hosts} names hosts: a server that spans hosts cannot be tuned")
    return 0


def _one_host(words: Sequence[str]) -> None:
    if base_name(words[0]) == _PROXY:
        return
    for i, word in enumerate(words):
        if word.partition("=")[0] in _OTHER_HOSTS:
            raise InputError(f"{words[0]} {word} names hosts: a server that spans hosts cannot be tuned")
        ranks = words[i + 1] if word in _RANKS and i + 1 < len(words) else "1"
        if ranks != "1" and not any(base_name(w) == _PROXY for w in words):
            raise InputError(
                f"{words[0]} {word} {ranks} would start {SERVER} {ranks} times on one port: put {_PROXY} before it"
            )


def _refuse(word: str) -> None:
    if word in _NODES:
        raise InputError(f"{word}: a server that spans hosts cannot be tuned")


GRAMMAR = Grammar(SERVER, OPTIONS, starts, equals=True, abbreviates=False, refuse=_refuse)


def read(launch: LaunchSpec) -> CommandLine:
    """Raises InputError for what cannot be read, for a spelling that click would not know, and for a server that is a
    part of a disaggregated service."""
    line = read_line(launch, GRAMMAR)
    for item in line.items:
        if item.name in OPTIONS and "-" in item.spelling[2:]:
            raise InputError(f"{SERVER} has no option {item.spelling}: it is written {own_spelling(item.spelling)}")
        if item.name in ROLES:
            raise InputError(f"{item.spelling} makes the server a part of a disaggregated service, which is not tuned")
    return line


def own_spelling(word: str) -> str:
    """`--max-batch-size` as trtllm-serve spells it: `--max_batch_size`."""
    return "--" + word[2:].replace("-", "_")
