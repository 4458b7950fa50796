"""The question for a server's version: what it runs, what it never runs, and what a version says."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from leadline.dialect.question import numbers
from leadline.engines import llamacpp, sglang, trtllm, vllm
from leadline.engines.llamacpp.reading import build_of
from leadline.engines.sglang.versions import patch_of
from leadline.engines.trtllm.site import release as trtllm_release
from leadline.engines.vllm.versions import release as vllm_release
from leadline.errors import InputError
from leadline.launch import LaunchSpec
from leadline.ports import Engine

SERVERS: dict[str, tuple[Engine, str]] = {
    "llamacpp": (llamacpp.engine, "/o/llama-server -m m.gguf"),
    "sglang": (sglang.engine, "/o/bin/python3 -u -m sglang.launch_server --model-path /m"),
    "vllm": (vllm.engine, "/o/bin/vllm serve /m"),
    "trtllm": (trtllm.engine, "/o/bin/trtllm-serve /m"),
}


def launch(text: str, **env: str) -> LaunchSpec:
    return LaunchSpec(argv=tuple(shlex.split(text)), env=tuple(env.items()))


@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.parametrize(
    "command",
    [
        "/opt/start.sh --port 1",
        "env A=b /opt/start.sh --port 1",
        "/opt/our-own-server --port 1",
        "nice -n 5 /opt/our-own-server --port 1",
        "A=b /opt/start.sh --port 1",
        "systemd-run --scope {0}",
        "systemd-inhibit {0}",
        "nsys profile {0}",
        "mpirun -x A {0}",
        "uv run --with x {0}",
        "poetry run {0}",
        "pixi run {0}",
        "conda create -n x {0}",
        "conda run --no-such {0}",
        "env -S 'A=b touch x' {0}",
        "numactl --touch {0}",
        "taskset -p 1 {0}",
        "nice -n 5 systemd-run {0}",
        "time -o FILE systemd-run {0}",
        "sudo {0}",
        "bash -c 'touch x; {0}'",
        "docker run image {0}",
    ],
)
def test_nothing_is_asked_where_more_than_the_server_would_run(name: str, command: str) -> None:
    engine, start = SERVERS[name]
    if name == "trtllm" and command.startswith("mpirun"):
        return  # only the interpreter beside the server is asked there, and MPI is left out
    assert engine.version_argv(launch(command.format(start))) is None


@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.parametrize(
    ("wrappers", "kept"),
    [
        ("", ""),
        ("env -u B A=b", "env -u B A=b"),
        ("A=b", "env A=b"),
        ("nice -n 5 ionice -c2 -n 7", "nice -n 5 ionice -c2 -n 7"),
        ("nice -5 taskset -c 0-3", "nice -5 taskset -c 0-3"),
        ("numactl --cpunodebind=0 -m 0 --", "numactl --cpunodebind=0 -m 0 --"),
        ("chrt -f 50 stdbuf -oL -e L", "chrt -f 50 stdbuf -oL -e L"),
        ("/c/bin/conda run --no-capture-output -n s", "/c/bin/conda run --no-capture-output -n s"),
        ("time -o FILE nice", "nice"),
        ("setsid -w nohup timeout -k 5 9h", ""),
    ],
)
def test_wrappers_that_may_choose_the_program_stay(name: str, wrappers: str, kept: str) -> None:
    engine, start = SERVERS[name]
    bare = engine.version_argv(launch(start))
    assert bare
    assert engine.version_argv(launch(f"{wrappers} {start}")) == (*shlex.split(kept), *bare)


@pytest.mark.parametrize("name", SERVERS)
def test_it_is_asked_in_the_folder_and_environment_of_the_launch(name: str) -> None:
    engine, start = SERVERS[name]
    base = LaunchSpec(argv=tuple(shlex.split(start)), env=(("PATH", "/p"), ("HF_TOKEN", "hush")), cwd="/srv")
    asked, bare = engine.version_argv(base), engine.version_argv(launch(start))
    assert bare
    assert asked == ("env", "-C", "/srv", "PATH=/p", *bare)


@pytest.mark.parametrize(
    ("program", "asked"),
    [
        ("/o/llama-server", True),
        ("llama-server-cuda", True),
        ("llama-server.exe", True),
        ("/o/llama-server.sh", False),
        ("llama-server-start", False),
        ("/o/start.sh", False),
    ],
)
def test_llama_server_is_asked_by_its_own_name_alone(program: str, asked: bool) -> None:
    said = llamacpp.engine.version_argv(launch(f"{program} -m m.gguf"))
    assert said == ((program, "--version") if asked else None)


def test_behind_mpi_the_interpreter_beside_the_server_is_asked() -> None:
    said = trtllm.engine.version_argv(launch("nice mpirun -n 1 /o/bin/trtllm-serve /m"))
    assert said is not None
    assert said[:3] == ("nice", "sh", "-c")
    assert "/o/bin/trtllm-serve" in said
    assert "mpirun" not in said


@pytest.mark.parametrize("name", ["sglang", "vllm", "trtllm"])
def test_without_an_interpreter_beside_it_the_program_says_it(name: str, tmp_path: Path) -> None:
    program = {"sglang": "sglang", "vllm": "vllm", "trtllm": "trtllm-serve"}[name]
    (tmp_path / program).write_text('#!/bin/sh\necho "said $*"\n')
    (tmp_path / "python").mkdir()
    (tmp_path / "python" / "python3").write_text('#!/bin/sh\necho "python of PATH"\n')
    for path in (tmp_path / program, tmp_path / "python" / "python3"):
        path.chmod(0o755)
    search = f"{tmp_path}:{tmp_path}/python:/usr/bin:/bin"
    asked = SERVERS[name][0].version_argv(launch(f"{program} serve /m", PATH=search))
    assert asked
    done = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == {"sglang": "said version\n", "vllm": "said --version\n"}.get(name, "python of PATH\n")


@pytest.mark.parametrize(("name", "package"), [("vllm", "vllm"), ("trtllm", "tensorrt_llm")])
def test_the_interpreter_beside_the_program_reads_the_metadata(name: str, package: str, tmp_path: Path) -> None:
    program = tmp_path / "bin" / {"vllm": "vllm", "trtllm": "trtllm-serve"}[name]
    meta = tmp_path / "site" / f"{package}-1.2.3.dist-info"
    meta.mkdir(parents=True)
    (meta / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2.3\n")
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    (program.parent / "python3").symlink_to(sys.executable)
    asked = SERVERS[name][0].version_argv(launch(f"{program} serve /m", PYTHONPATH=str(tmp_path / "site")))
    assert asked
    assert subprocess.run(asked, capture_output=True, text=True, timeout=60, check=True).stdout == "1.2.3\n"


def test_a_program_that_is_not_there_runs_nothing(tmp_path: Path) -> None:
    (tmp_path / "python3").write_text("#!/bin/sh\necho wrong\n")
    (tmp_path / "python3").chmod(0o755)
    asked = vllm.engine.version_argv(launch("no-such-dir/vllm serve /m"))
    assert asked
    done = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (127, "")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("0.5.16", (0, 5, 16)),
        ("v0.5.16", (0, 5, 16)),
        ("0.22.1+12.8", (0, 22, 1)),
        ("0.22.1+cu128", (0, 22, 1)),
        ("0.5.17.dev3+g1a2b3c", (0, 5, 17)),
        ("0.33.0rc2.dev7+g123456.cu129", (0, 33, 0)),
        ("1.3.0rc25", (1, 3, 0)),
        ("0.1.3", (0, 1, 3)),
        ("0.6", (0, 6, 0)),
        ("0.22.1 with torch 2.9.0", (0, 22, 1)),
        ("0.0.0", None),
        ("0.0.0+unknown", None),
        ("0.0.0.dev1+g123", None),
        ("0.1.dev1+gabc", None),
        ("0.1.dev12345+g1a2b.d20260101", None),
        ("banana", None),
        ("main+12.8", None),
        ("", None),
        (None, None),
    ],
)
def test_what_a_version_says(text: str | None, meant: tuple[int, int, int] | None) -> None:
    assert numbers(text) == meant
    assert vllm_release(text) == meant
    assert trtllm_release(text) == (meant and meant[:2])
    assert (patch_of(text) is None) == (meant is None)
    assert meant is None or meant[:2] != (0, 5) or patch_of(text) == meant[2]
    assert build_of(text) is None


@pytest.mark.parametrize("text", ["0.0.0.dev1+g123", "0.1.dev1+gabc", "banana"])
@pytest.mark.parametrize("name", SERVERS)
def test_a_version_that_says_nothing_is_an_unknown_one(name: str, text: str) -> None:
    engine, start = SERVERS[name]
    assert engine.at(text).knobs() == engine.at(None).knobs()
    assert engine.at(text).parse(launch(start)) == engine.at(None).parse(launch(start))


@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.parametrize(
    "command",
    [
        "sudo {0}",
        "sudo -u vllm {0}",
        "/usr/bin/sudo -E env A=b {0}",
        "doas {0}",
        "su -c '{0}' vllm",
        "runuser -u vllm -- {0}",
        "nice sudo -n {0}",
        "A=b sudo -u vllm {0}",
        "sudo bash -c '{0}'",
        "sudo /opt/start.sh",
        "bash -c 'sudo -u vllm {0}'",
        "sudo docker run image {0}",
    ],
)
def test_a_server_of_another_user_is_refused_by_the_name_of_what_starts_it(name: str, command: str) -> None:
    engine, start = SERVERS[name]
    with pytest.raises(InputError, match="run Leadline as the user that runs the server, and give the command without"):
        engine.parse(launch(command.format(start)))


@pytest.mark.parametrize("name", SERVERS)
def test_other_commands_of_a_script_may_run_as_root(name: str) -> None:
    engine, start = SERVERS[name]
    base = launch(f"bash -c 'sudo sysctl -w vm.x=1; {start} --port 7'")
    assert engine.address(base)[1] == 7
    with pytest.raises(InputError) as refused:
        engine.parse(launch("bash -c 'sudo sysctl -w vm.x=1; ./other'"))
    assert "sudo" not in str(refused.value).splitlines()[-1]


@pytest.mark.parametrize("name", SERVERS)
def test_variables_before_the_command_are_its_environment(name: str) -> None:
    engine, start = SERVERS[name]
    base = launch(f"A=1 B='x y' nice {start} --port 7")
    assert engine.model(base) == engine.model(launch(start))
    assert engine.address(base)[1] == 7
    assert engine.value(base, "env:B") == "x y"
    assert engine.move(base, 9).argv[:3] == ("A=1", "B=x y", "nice")
    assert engine.address(engine.move(base, 9))[1] == 9
