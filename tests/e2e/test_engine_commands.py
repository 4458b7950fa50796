"""`diagnose`, `parse`, `memory`, `init` and `plan` for every engine, as processes of their own. No server is begun."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support_docs import matches

GOLDEN = Path(__file__).parents[1] / "golden"
TOO_LOW = GOLDEN / "sglang" / "fail-toolow.log"
BAD_COMBINATION = GOLDEN / "sglang" / "fail-badcombo.log"
BIG, SMALL = GOLDEN / "models" / "qwen3-30b-a3b.json", GOLDEN / "models" / "qwen3-8b.json"
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "know-your-engine.md"
Called = subprocess.CompletedProcess[str]


def leadline(*words: str, cwd: Path, stdin: str = "") -> Called:
    """In a bare environment: no engine is installed, so that every version is unknown unless it is given."""
    env = {"PATH": os.path.dirname(sys.executable) + ":/usr/bin:/bin", "HOME": str(cwd), "COLUMNS": "120"}
    return subprocess.run(
        [sys.executable, "-m", "leadline", *words], cwd=cwd, env=env, input=stdin, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip


def told(called: Called) -> dict[str, str]:
    """The labels of a text answer; of a label that comes again, the last."""
    assert called.returncode == 0, called.stderr
    return {line[:10].strip(): line[10:].strip() for line in called.stdout.splitlines() if line[:1].strip()}


def answer(called: Called) -> Any:
    assert called.returncode == 0, called.stderr
    return json.loads(called.stdout)


def depth_of(row: dict[str, Any]) -> int:
    """The depth of a row of a plan."""
    return int(re.findall(r"\bdepth=(\d+)", row["setting"])[0])


def refused(called: Called) -> str:
    """Why, of a call that was refused: one message and no traceback."""
    assert (called.returncode, called.stdout) == (2, "")
    assert "Traceback" not in called.stderr
    return called.stderr


# --- diagnose


def test_diagnose_tells_class_reason_line_and_remedy(tmp_path: Path) -> None:
    said = told(leadline("diagnose", "--engine", "sglang", str(TOO_LOW), cwd=tmp_path))
    assert said["class"] == "weights_leave_no_kv_room"
    assert said["line"].startswith("ValueError: Loaded weights leave no GPU memory")
    assert "raise --mem-fraction-static above 0.007" in said["change"]
    assert said["fails too"] == "memory_fraction- depth+"


def test_diagnose_as_json_from_standard_input_says_the_same(tmp_path: Path) -> None:
    words = ("diagnose", "--engine", "sglang", "--json")
    piped = leadline(*words, "-", cwd=tmp_path, stdin=TOO_LOW.read_text(encoding="utf-8"))
    assert answer(piped) == answer(leadline(*words, str(TOO_LOW), cwd=tmp_path))
    assert answer(piped)["fails_too"] == ["memory_fraction-", "depth+"]


@pytest.mark.parametrize("engine", ["llamacpp", "sglang", "trtllm", "vllm"])
@pytest.mark.parametrize(
    ("words", "failure"),
    [
        (("--exit", "137", "--result", "signal"), "killed"),
        (("--exit", "9", "--result", "signal"), "killed"),  # systemd's ExecMainStatus is the signal itself
        (("--exit", "137", "--result", "oom-kill"), "host_oom"),
        (("--exit", "137", "--result", "exit-code"), "crashed unknown"),  # never a kill, and never a lack of memory
        (("--exit", "137"), "crashed unknown"),
        (("--exit", "134", "--result", "core-dump"), "crashed"),
        ((), "unknown"),
    ],
)
def test_what_the_supervisor_saw_decides_where_the_log_is_silent(
    tmp_path: Path, engine: str, words: tuple[str, ...], failure: str
) -> None:
    called = leadline("diagnose", "--engine", engine, "-", *words, cwd=tmp_path)
    assert told(called)["class"] in failure.split()
    assert ("if it has ended, say how" in called.stdout) == (words == ())


def test_a_log_that_ends_in_a_traceback_says_it_with_or_without_the_exit_code(tmp_path: Path) -> None:
    words = ("diagnose", "--engine", "sglang", str(BAD_COMBINATION))
    assert told(leadline(*words, cwd=tmp_path))["class"] == "flags_do_not_go_together"
    assert told(leadline(*words, "--exit", "1", cwd=tmp_path))["class"] == "flags_do_not_go_together"


def test_diagnose_prints_no_control_characters_of_a_log(tmp_path: Path) -> None:
    log = TOO_LOW.read_text(encoding="utf-8").replace("ValueError: Loaded", "ValueError: \x1b]0;title\x07Loaded")
    called = leadline("diagnose", "--engine", "sglang", "-", cwd=tmp_path, stdin=log)
    assert told(called)["class"] == "weights_leave_no_kv_room"
    assert "\x1b" not in called.stdout


@pytest.mark.parametrize(
    ("words", "told_why"),
    [
        (
            ("--engine", "lmdeploy", "-"),
            "no engines plug-in named 'lmdeploy'; there are llamacpp, sglang, trtllm, vllm",
        ),
        (("--engine", "vllm", "gone.log"), "cannot read gone.log: No such file or directory"),
        (("--engine", "vllm", "."), "cannot read .: Is a directory"),
        (("-",), "Missing option '--engine'"),
        (("--engine", "vllm", "-", "--exit", "256"), "256 is not in the range"),
        (("--engine", "vllm", "-", "--result", "bad"), "'bad' is not one of 'success'"),
    ],
)
def test_diagnose_refuses_what_it_cannot_read(tmp_path: Path, words: tuple[str, ...], told_why: str) -> None:
    assert told_why in refused(leadline("diagnose", *words, cwd=tmp_path))


def test_an_error_of_diagnose_as_json(tmp_path: Path) -> None:
    called = leadline("diagnose", "--engine", "vllm", "gone.log", "--json", cwd=tmp_path)
    assert (called.returncode, json.loads(called.stdout)["exit_code"]) == (2, 2)


# --- parse

EAGLE = (
    "--speculative-algorithm EAGLE3 --speculative-draft-model-path draft --speculative-num-steps 3 "
    "--speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
)
COMMANDS = {
    "sglang": f"python3 -m sglang.launch_server --model-path m --port 30001 --max-running-requests 32 {EAGLE}",
    "vllm": "vllm serve m --port 8001 --max-num-seqs 32",
    "trtllm": "trtllm-serve serve m --port 8001 --max_batch_size 32 --config llm.yaml",
    "llamacpp": "llama-server -m m --port 8001 -np 4",
}
YAML = "speculative_config:\n  decoding_type: NGram\n  max_draft_len: 4\nhf_token: hush-4711\n"
SET = {
    "sglang": ("depth=5", "--speculative-num-steps 5", "--speculative-num-steps 3"),
    "vllm": ("depth=5 spec_method=ngram", '"num_speculative_tokens": 5', ""),
    "trtllm": ("depth=5", "max_draft_len: 5", "max_draft_len: 4"),
    "llamacpp": ("depth=5 spec_method=ngram-simple", "--spec-ngram-simple-size-m 5", ""),
}
TODAY = {
    "sglang": "depth=3 draft_model=draft draft_tokens=4 max_running=32 spec_method=EAGLE3 topk=1",
    "vllm": "depth=0 max_running=32",
    "trtllm": "depth=4 max_running=32 spec_method=NGram",
    "llamacpp": "depth=0 max_running=4",
}


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "llm.yaml").write_text(YAML, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("engine", COMMANDS)
def test_parse_finds_the_engine_and_what_is_in_force(here: Path, engine: str) -> None:
    said = told(leadline("parse", "--", *COMMANDS[engine].split(), cwd=here))
    assert (said["engine"], said["setting"], said["model"]) == (engine, TODAY[engine], "m")
    assert said["address"].endswith(":30001" if engine == "sglang" else ":8001")
    assert "command" not in said


@pytest.mark.parametrize("engine", COMMANDS)
def test_parse_shows_the_command_with_a_setting_in_force(here: Path, engine: str) -> None:
    setting, added, removed = SET[engine]
    called = leadline("parse", "--set", setting, "--", *COMMANDS[engine].split(), cwd=here)
    assert added in called.stdout
    assert re.search(rf"(- +|removed +){re.escape(removed)}", called.stdout) or not removed
    assert sorted(p.name for p in here.iterdir()) == ["llm.yaml"], "nothing is written"


@pytest.mark.parametrize("engine", COMMANDS)
def test_one_quoted_string_is_read_as_a_shell_would(here: Path, engine: str) -> None:
    apart = leadline("parse", "--json", "--", *COMMANDS[engine].split(), cwd=here)
    assert answer(leadline("parse", "--json", "--", COMMANDS[engine], cwd=here)) == answer(apart)


@pytest.mark.parametrize("engine", COMMANDS)
@pytest.mark.parametrize("words", [(), ("--json",), ("--set", "depth=0"), ("--json", "--set", "depth=0")])
def test_parse_shows_no_secret(here: Path, engine: str, words: tuple[str, ...]) -> None:
    command = [*COMMANDS[engine].split(), "--api-key", "hush-4711"]
    called = leadline("parse", "--engine", engine, *words, "--", "env", "HF_TOKEN=hush-4711", *command, cwd=here)
    assert called.returncode == 0, called.stderr
    assert "hush" not in called.stdout + called.stderr
    assert ("<secret:" in called.stdout) == ("--set" in words)


def test_parse_by_version(here: Path) -> None:
    """DSPARK came with SGLang 0.5.16."""
    words = ("parse", "--json", "--set", "depth=3 spec_method=DSPARK draft_model=d max_running=8")
    command = ("--", "sglang", "serve", "--model-path", "m")
    assert "DSPARK" in answer(leadline(*words, "--engine-version", "0.5.16", *command, cwd=here))["command"]
    assert "spec_method of SGLang 0.5.12 is one of" in json.loads(
        leadline(*words, "--engine-version", "0.5.12", *command, cwd=here).stdout
    )["error"]  # fmt: skip
    assert answer(leadline("parse", "--json", "--engine-version", "0.5.16", *command, cwd=here))["version"] == "0.5.16"


@pytest.mark.parametrize(
    ("words", "told_why"),
    [
        (("--", "my-server"), "say --engine with one of llamacpp, sglang, trtllm, vllm"),
        (("--engine", "sglang", "--", "bash", "gone.sh"), "gone.sh"),
        (("--", "vllm", "serve", "m", "--speculative-config", "{not json"), "speculative-config"),
        (("--", "trtllm-serve", "serve", "m", "--config", "gone.yaml"), "there is none at"),
        (("--set", "depth", "--", "vllm", "serve", "m"), "--set 'depth'"),
        (("--set", "depth=3", "--", "vllm", "serve", "m"), "needs a method or a draft model"),
        (("--set", "depth=3 spec_method=NGRAM", "--", "sglang", "serve", "--model-path", "m"), "pin max_running"),
        ((), "Missing argument"),
    ],
)
def test_parse_refuses_with_the_reason(tmp_path: Path, words: tuple[str, ...], told_why: str) -> None:
    assert told_why in refused(leadline("parse", *words, cwd=tmp_path))


# --- init, and plan on what it wrote

DRAFTS_ALONE = {"sglang": "NGRAM", "vllm": "ngram", "trtllm": "NGram", "llamacpp": "ngram-simple"}
PLAIN = {
    "sglang": "python3 -m sglang.launch_server --model-path m --max-running-requests 32",
    "vllm": "vllm serve m --max-num-seqs 32",
    "trtllm": "trtllm-serve serve m --max_batch_size 32",
    "llamacpp": "llama-server -m m -np 4",
}


def begun(folder: Path, command: str, service: str = "", depths: str = "[0, 3]") -> Path:
    """A campaign as `init` writes it, with more lines under [service] and fewer depths."""
    called = leadline("init", "--folder", "house", "--", command, cwd=folder)
    assert called.returncode == 0, called.stderr
    path = folder / "house" / "campaign.toml"
    text = re.sub(r"^depth = .*$", f"depth = {depths}", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    path.write_text(re.sub(r"^(\[service\].*)$", rf"\1\n{service}", text, flags=re.MULTILINE), encoding="utf-8")
    return path


@pytest.mark.parametrize("engine", PLAIN)
def test_init_keeps_a_method_of_the_engine_and_plan_launches_every_depth(tmp_path: Path, engine: str) -> None:
    called = leadline("init", "--json", "--folder", "house", "--", *PLAIN[engine].split(), cwd=tmp_path)
    assert (answer(called)["engine"], answer(called)["refused"]) == (engine, {})
    text = (tmp_path / "house" / "campaign.toml").read_text(encoding="utf-8")
    assert f'spec_method = "{DRAFTS_ALONE[engine]}"' in text
    rows = answer(leadline("plan", "house", "--json", cwd=tmp_path))["settings"]
    assert [(depth_of(r), r["launches"], r["refused"]) for r in rows] == [(d, 2, "") for d in (0, 2, 4, 6, 8)]
    launches = {r["launch"] for r in rows}
    assert len(launches) == 5, "five depths are five launches"


def test_init_keeps_todays_method_and_draft_model(tmp_path: Path) -> None:
    leadline("init", "--folder", "house", "--", *COMMANDS["sglang"].split(), cwd=tmp_path)
    text = (tmp_path / "house" / "campaign.toml").read_text(encoding="utf-8")
    assert 'spec_method = "EAGLE3"' in text
    assert 'draft_model = "draft"' in text


def test_init_says_which_depths_would_be_refused_and_plan_why(tmp_path: Path) -> None:
    called = leadline("init", "--folder", "house", "--", "sglang", "serve", "--model-path", "m", cwd=tmp_path)
    assert called.returncode == 0
    assert "refused as it stands: depth=2, depth=4, depth=6, depth=8: SGLang would silently cap" in called.stderr
    text = leadline("plan", "house", cwd=tmp_path).stdout
    assert "  depth=2                  0x\n      refused: SGLang would silently cap running requests at 48" in text


def test_plan_shows_the_lines_of_a_file_that_it_would_write(here: Path) -> None:
    begun(here, COMMANDS["trtllm"], depths="[0, 4, 6]")
    text = leadline("plan", "house", cwd=here).stdout
    assert re.search(
        r"depth=6 .*\n.*\n.*\n +in .*/launch/\w+\.yaml:\n +-   max_draft_len: 4\n +\+   max_draft_len: 6", text
    )
    assert "hush" not in text + leadline("plan", "house", "--json", cwd=here).stdout


def test_plan_names_the_setting_that_is_the_same_launch(tmp_path: Path) -> None:
    """Without speculation, by which method is no difference."""
    path = begun(tmp_path, COMMANDS["sglang"], depths='[0, 3]\nspec_method = ["EAGLE3", "EAGLE"]')
    path.write_text(re.sub(r"^spec_method = \"EAGLE3\".*$", "", path.read_text(), flags=re.MULTILINE), encoding="utf-8")
    text = leadline("plan", "house", cwd=tmp_path).stdout
    assert "depth=0 spec_method=EAGLE 0x\n      refused: the same launch as depth=0 spec_method=EAGLE3" in text


# --- memory, and what plan says of it


def known(model: Path, gib: float, version: str) -> str:
    return f'model_config = "{model}"\ndevice_gib = {gib}\nengine_version = "{version}"'


FITS = {
    "sglang": (f"{PLAIN['sglang']} --mem-fraction-static 0.75", known(BIG, 139.8, "0.5.16"), (0, 3)),
    "vllm": (PLAIN["vllm"], known(BIG, 139.8, "0.22.1"), (0, 3)),
    "trtllm": (PLAIN["trtllm"], known(BIG, 139.8, "1.2.0"), (0,)),
}


@pytest.mark.parametrize("engine", FITS)
def test_memory_and_plan_foresee_the_same(tmp_path: Path, engine: str) -> None:
    command, service, depths = FITS[engine]
    begun(tmp_path, command, service)
    found = {r["setting"]: r for r in answer(leadline("memory", "house", "--json", cwd=tmp_path))}
    planned = {depth_of(r): r for r in answer(leadline("plan", "house", "--json", cwd=tmp_path))["settings"]}
    plan = leadline("plan", "house", cwd=tmp_path).stdout
    table = leadline("memory", "house", cwd=tmp_path).stdout
    for depth in depths:
        row = found[f"depth={depth}"]
        assert (row["verdict"], row["asked_running"]) == ("fits", row["max_running"])
        assert 400_000 < row["kv_tokens"] < 1_000_000, "48 KiB a token in what 139.8 GiB leave beside 57 GiB of weights"
        assert planned[depth]["memory"]["kv_tokens"] == row["kv_tokens"]
        assert f"memory: {row['kv_tokens']:,} KV tokens, {row['max_running']:,} requests at once, fits" in plan
        assert re.search(rf"^depth={depth} +{row['kv_tokens']:,}.* fits$", table, re.MULTILINE)


def test_memory_of_a_llama_cpp_server_before_its_first_launch_is_not_known(tmp_path: Path) -> None:
    begun(tmp_path, PLAIN["llamacpp"], known(SMALL, 24, "b10434"))
    called = leadline("memory", "house", cwd=tmp_path)
    assert called.returncode == 0
    assert "depth=0 unknown: " in called.stdout
    assert "memory:" not in leadline("plan", "house", cwd=tmp_path).stdout


def test_a_model_that_is_too_large_will_not_start(tmp_path: Path) -> None:
    begun(tmp_path, PLAIN["vllm"], known(BIG, 24, "0.22.1"))
    called = leadline("memory", "house", cwd=tmp_path)
    assert re.search(r"^depth=0 will not start: .* GiB short\)", called.stdout, re.MULTILINE)
    plan = leadline("plan", "house", cwd=tmp_path)
    assert (plan.returncode, plan.stdout.count("memory: will not start: ")) == (0, 2)


@pytest.mark.parametrize("engine", PLAIN)
def test_where_nothing_is_known_memory_says_so_and_plan_says_nothing(tmp_path: Path, engine: str) -> None:
    begun(tmp_path, PLAIN[engine])
    called = leadline("memory", "house", cwd=tmp_path)
    assert called.returncode == 0
    assert len(re.findall(r"^depth=\d unknown: .", called.stdout, re.MULTILINE)) == 2
    rows = answer(leadline("plan", "house", "--json", cwd=tmp_path))["settings"]
    assert [r["memory"] for r in rows] == [None, None]


def test_a_plan_does_not_fail_for_want_of_a_models_config(tmp_path: Path) -> None:
    begun(tmp_path, PLAIN["vllm"], 'model_config = "gone.json"\ndevice_gib = 24')
    assert "gone.json, which [service] names" in refused(leadline("memory", "house", cwd=tmp_path))
    plan = leadline("plan", "house", cwd=tmp_path)
    assert plan.returncode == 0
    assert "  depth=3                  2x" in plan.stdout
    assert "memory:" not in plan.stdout


# --- the page about engines

REST = """
[knobs]
depth = [0, 3, 5]
[workloads.chat]
builtin = "chat"
[goals.one]
weights = { "chat@1" = 1 }
"""


def blocks(info: str) -> list[str]:
    return re.findall(rf"^```{info}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("text", blocks("console engine"), ids=lambda text: text.split()[2])
def test_the_page_about_engines_shows_what_the_commands_say(tmp_path: Path, text: str) -> None:
    shutil.copy(TOO_LOW, tmp_path / "server.log")
    house = tmp_path / "my-campaign"
    house.mkdir()
    (house / "campaign.toml").write_text(blocks("toml")[0] + REST, encoding="utf-8")
    shutil.copy(BIG, house / "model.json")
    shutil.copy(BIG.with_name("qwen3-30b-a3b-vocab49152-eagle3.json"), house / "draft.json")
    command = text.split("\n", 1)[0].removeprefix("$ leadline ")
    called = leadline(*shlex.split(command), cwd=tmp_path)
    assert called.returncode == 0, called.stderr
    assert matches(text, called.stdout), called.stdout


def test_the_page_about_engines_has_all_its_blocks() -> None:
    assert [b.split()[2] for b in blocks("console engine")] == ["parse", "memory", "diagnose"]
