"""What the laws of every target do not cover: the launch script itself, and what `observe` makes of odd files."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from leadline.errors import InputError, RefusedError
from leadline.hosts.local import LocalHost
from leadline.launch import LaunchFile, LaunchSpec, Put, Remove, Run, Start, Stop
from leadline.ports import Completed, Observed, Site
from leadline.targets.command import ABSENT, KEPT, CommandTarget, script

TODAY = LaunchSpec(argv=("llama-server", "-m", "m.gguf"))
HOST = LocalHost()
SEEN = Observed(launch=TODAY, running=False)
ECHO = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]))"


def execute(path: Path, env: dict[str, str] | None = None, cwd: str = "/") -> tuple[list[str], dict[str, str], str]:
    """Run a script as an operator would: the words, the environment and the folder that its program saw."""
    done = subprocess.run(
        [path], env={"PATH": os.environ["PATH"], **(env or {})}, cwd=cwd, capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stderr
    words, environ, folder = json.loads(done.stdout)
    return words, environ, folder


def written(folder: Path, launch: LaunchSpec, note: str = "note") -> Path:
    path = folder / "serve.sh"
    (put,) = CommandTarget(Site(launch=TODAY, script=str(path))).rollout(launch, SEEN, ABSENT, note)
    assert isinstance(put, Put)
    HOST.write(put.path, put.content.encode(), put.mode)
    return path


def echo(*words: str) -> tuple[str, ...]:
    return (sys.executable, "-c", ECHO, *words)


@pytest.mark.parametrize(
    "word", ["plain", "two words", "", "it's", '"', "$HOME `id` $(id)", "a\nb", "*", "~", "#", "a=b", "größe", "\\"]
)
def test_the_script_starts_the_program_with_the_very_words(tmp_path: Path, word: str) -> None:
    launch = LaunchSpec(argv=echo("--name", word), env=(("EXTRA", word),), cwd=str(tmp_path))
    words, environ, folder = execute(written(tmp_path, launch))
    assert words == ["--name", word]
    assert environ["EXTRA"] == word
    assert folder == str(tmp_path)


@pytest.mark.parametrize("folder", ["sub", "-", "-P"])
def test_a_folder_is_taken_literally(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir()
    launch = LaunchSpec(argv=echo(), cwd=folder)
    env = {"CDPATH": "/usr", "OLDPWD": "/usr"}
    assert execute(written(tmp_path, launch), env, cwd=str(tmp_path))[2] == str(tmp_path / folder)


def test_the_script_stops_when_its_folder_is_gone(tmp_path: Path) -> None:
    path = written(tmp_path, LaunchSpec(argv=echo(), cwd="/no-such-folder"))
    done = subprocess.run([path], capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert done.stdout == ""


def test_the_script_becomes_the_server(tmp_path: Path) -> None:
    """The pid that a service manager started is the server's."""
    path = written(tmp_path, LaunchSpec(argv=(sys.executable, "-c", "import os; print(os.getpid())")))
    with subprocess.Popen([path], stdout=subprocess.PIPE, text=True) as child:
        out, _ = child.communicate(timeout=30)
    assert int(out) == child.pid


def test_secrets_are_taken_from_the_environment(tmp_path: Path) -> None:
    launch = LaunchSpec(
        argv=echo("--api-key", "k1", "k2", "--hf-token=t", "--port", "1"), env=(("API_KEY", "e"), ("HF_HOME", "/h"))
    )
    path = written(tmp_path, launch)
    text = path.read_text()
    assert "<secret" not in text
    names = ["API_KEY", "API_KEY_2", "API_KEY_3", "HF_TOKEN"]
    done = subprocess.run([path], env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, timeout=30)
    assert done.returncode != 0
    assert "API_KEY" in done.stderr
    assert "set it in the environment" in done.stderr
    words, environ, _ = execute(path, {name: f"value of {name}" for name in names})
    assert words == ["--api-key", *(f"value of {n}" for n in names[1:3]), "--hf-token=value of HF_TOKEN", "--port", "1"]
    assert (environ["API_KEY"], environ["HF_HOME"]) == ("value of API_KEY", "/h")


def test_the_header_says_who_when_what_and_how_to_undo(tmp_path: Path) -> None:
    note = "2026-11-30T15:53:00Z\ncampaign demo\rdepth=4\u2028exec rm -rf /\x0bid"
    (put,) = CommandTarget(Site(launch=TODAY, script="/srv/serve.sh")).rollout(TODAY, SEEN, ABSENT, note)
    assert isinstance(put, Put)
    lines = put.content.splitlines()
    assert lines[0] == "#!/bin/sh"
    header = [line for line in lines[1:] if line.startswith("#")]
    assert lines[1 + len(header) :] == ["exec llama-server -m m.gguf"], "no line of the note gets out of the header"
    for part in ("leadline apply", "2026-11-30T15:53:00Z", "campaign demo", "depth=4", "leadline undo CAMPAIGN"):
        assert any(part in line for line in header), part
    assert "# By hand: rm /srv/serve.sh" in header
    *_, put = CommandTarget(Site(launch=TODAY, script="/srv/my serve.sh")).rollout(TODAY, SEEN, "0" * 64, note)
    assert isinstance(put, Put)
    assert "# By hand: mv '/srv/my serve.sh.leadline-previous' '/srv/my serve.sh'" in put.content


@pytest.mark.parametrize("name", ["my-name", "1ST", "A B", ""])
def test_a_name_that_a_shell_cannot_export_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"cannot export .*rename it"):
        script(LaunchSpec(argv=("x",), env=((name, "1"),)), "", "")


def test_a_trial_is_one_start_and_its_way_back_one_stop() -> None:
    target = CommandTarget(Site(launch=TODAY, script="serve.sh", grace_s=3.0))
    observed = Observed(launch=TODAY, running=False)
    launch = LaunchSpec(argv=("llama-server", "--draft-max", "4"))
    assert list(target.plan(launch, observed, "log")) == [Start(launch=launch, log="log", grace_s=3.0)]
    assert list(target.restore(observed)) == [Stop(grace_s=3.0)]


def observe(path: Path) -> Observed:
    target = CommandTarget(Site(launch=TODAY, script=str(path)))
    steps = target.observe()
    assert all(isinstance(step, Run) for step in steps)
    return target.interpret([HOST.run(step.argv) for step in steps if isinstance(step, Run)])


def test_observing_tells_absent_from_there(tmp_path: Path) -> None:
    """A backslash in the name makes sha256sum write its line in another way."""
    for name in ("serve.sh", "-serve.sh", "back\\slash", "new\nline"):
        path = tmp_path / name
        assert observe(path).files == {str(path): ABSENT, f"{path}{KEPT}": ABSENT}
        path.write_text("theirs")
        assert observe(path).files[str(path)] == hashlib.sha256(b"theirs").hexdigest()


def test_a_script_that_cannot_be_read_is_not_absent(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read the launch script"):
        observe(tmp_path)


def test_an_answer_of_any_bytes_is_read() -> None:
    target = CommandTarget(Site(launch=TODAY, script="serve.sh"))
    argv = ("sha256sum", "--", "serve.sh")
    for stdout in (b"", b"\xff\xfe" * 50):
        seen = target.interpret([Completed(argv=argv, code=0, stdout=stdout, stderr=b"\xff")])
        assert set(seen.files) == {"serve.sh"}


W, P, X = "a" * 64, "b" * 64, "c" * 64


@pytest.mark.parametrize(
    ("previous", "now", "kept", "steps"),
    [
        (ABSENT, ABSENT, ABSENT, []),
        (ABSENT, W, ABSENT, [Remove]),
        (ABSENT, W, X, [Remove]),
        (ABSENT, X, ABSENT, None),
        (P, P, ABSENT, []),
        (P, P, P, [Remove]),
        (P, W, P, [Remove, Run, Remove]),
        (P, ABSENT, P, [Run, Remove]),
        (P, W, ABSENT, None),
        (P, W, X, None),
        (P, X, P, None),
        (P, P, X, None),
        (P, ABSENT, ABSENT, None),
    ],
)
def test_undo_goes_by_what_is_there(previous: str, now: str, kept: str, steps: list[type] | None) -> None:
    target = CommandTarget(Site(launch=TODAY, script="serve.sh"))
    observed = Observed(launch=TODAY, running=False, files={"serve.sh": now, f"serve.sh{KEPT}": kept})
    if steps is None:
        with pytest.raises(RefusedError, match="Nothing was changed"):
            target.undo(observed, W, previous)
    else:
        assert [type(step) for step in target.undo(observed, W, previous)] == steps


def test_a_launch_script_brings_the_files_that_the_launch_names(tmp_path: Path) -> None:
    file = LaunchFile(str(tmp_path / "c-1a2b.yaml"), "depth: 3\nname: it's\n")
    launch = LaunchSpec(argv=("cat", file.path), files=(file,), scratch=str(tmp_path))
    written = tmp_path / "serve.sh"
    written.write_text(script(launch, "note", "rm serve.sh"))
    done = subprocess.run(["sh", str(written)], capture_output=True, text=True, check=True)
    assert done.stdout == file.content


def test_a_launch_script_holds_no_secret_of_a_file(tmp_path: Path) -> None:
    file = LaunchFile(str(tmp_path / "c.yaml"), "api-key: K1\n")
    launch = LaunchSpec(argv=("serve",), files=(file,), scratch=str(tmp_path))
    with pytest.raises(InputError, match="holds a secret"):
        script(launch, "note", "rm serve.sh")


def test_a_launch_script_keeps_a_script_that_only_refers_to_its_secret() -> None:
    word = 'exec serve --api-key "$KEY" --port 1'
    assert f"exec bash -c {shlex.quote(word)}" in script(LaunchSpec(argv=("bash", "-c", word)), "note", "rm x")


def test_a_launch_script_holds_no_secret_of_a_script() -> None:
    with pytest.raises(InputError, match="a script in the command holds a secret"):
        script(LaunchSpec(argv=("bash", "-c", "exec serve --api-key sk-12345678 --port 1")), "note", "rm x")
