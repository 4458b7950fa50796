"""Wrong campaign files: each is refused with every problem and its remedy, word for word."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from leadline.config import Names, parse_campaign
from leadline.errors import ConfigError

FOLDER = Path(__file__).parents[1] / "golden" / "config"
FILES = sorted(FOLDER.glob("*.toml"))
NAMES = Names(
    engines=("llamacpp",),
    targets=("command", "compose", "script", "systemd"),
    strategies=("grid", "random"),
    workloads=("coding", "chat", "summarize", "extract", "agent"),
    knobs={"llamacpp": ("depth", "spec_method", "draft_model", "topk", "max_running", "kv_dtype")},
    changes_output=("kv_dtype",),
)
LINE = re.compile(r"(?P<file>\S+\.toml): (?P<key>\S.*?): found (?P<found>\S.*?); allowed: (?P<allowed>\S.*)")


def problems_of(text: str, name: str = "campaign.toml") -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_campaign(text, name, NAMES)
    assert caught.value.exit_code == 2
    return caught.value.problems


def test_there_are_many_wrong_files_and_each_has_its_messages() -> None:
    assert len(FILES) >= 20
    assert {f.stem for f in FILES} == {f.stem for f in FOLDER.glob("*.txt")}


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_every_problem_of_a_wrong_file_is_reported_word_for_word(file: Path) -> None:
    """With LEADLINE_GOLDEN=write the messages are stored first, for a person to read the difference."""
    problems = problems_of(file.read_text(encoding="utf-8"), file.name)
    stored = file.with_suffix(".txt")
    if os.environ.get("LEADLINE_GOLDEN") == "write":
        stored.write_text("\n".join(problems) + "\n", encoding="utf-8")
    assert problems == stored.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_every_problem_names_file_key_what_was_found_and_what_is_allowed(file: Path) -> None:
    for line in problems_of(file.read_text(encoding="utf-8"), file.name):
        match = LINE.fullmatch(line)
        assert match, line
        assert match["file"] == file.name


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_no_message_shows_a_secret(file: Path) -> None:
    assert "do-not-show" not in "\n".join(problems_of(file.read_text(encoding="utf-8"), file.name))


SECRET = "sk-do-not-show-me"
SERVICE = '[service]\nengine = "llamacpp"\ntarget = "command"\ncommand = ["llama-server"]\n'
REST = '[knobs]\ndepth = [2]\n[workloads.coding]\nbuiltin = "coding"\n[goals.fast]\nweights = { coding = 1 }\n'


@pytest.mark.parametrize(
    "line",
    [
        f'api_key = "{SECRET}"',
        f'api_key = {{ env = "{SECRET}" }}',
        f'api_key = ["{SECRET}"]',
        f'api_kee = "{SECRET}"',
        f'headers = "Authorization: Bearer {SECRET}"',
        f'headers = {{ Authorization = ["{SECRET}"] }}',
        f'headers = {{ X-Api-Key = "{SECRET}" }}',
        f'headers = {{ Cookie = "{SECRET}" }}',
        f'env = "HF_TOKEN={SECRET}"',
        f'env = {{ OPENAI_API_KEY = "{SECRET}" }}',
        f'url = "http://me:{SECRET}@host:8080"',
        f'url = "http://[{SECRET}@host"',
        f'proxy = "{SECRET}@proxy"',
        f'[keep]\n"env:HF_TOKEN" = "{SECRET}"',
        f'[keep]\napi_key = "{SECRET}"',
        f'[safety]\napi_key = "{SECRET}"',
        f'[other]\napi_key = "{SECRET}"',
        f'model = "{SECRET}',
        f'host = "ssh://me:{SECRET}@host"',
        f'host = "me:{SECRET}@host"',
        f'through = ["env", "HF_TOKEN={SECRET}"]',
        f'unit = {{ token = "{SECRET}" }}',
        f'[scripts]\nstart = ["start", "--api-key", "{SECRET}"]',
        f"[scripts]\nstatus = \"curl -H 'Authorization: Bearer {SECRET}' http://host/status\"",
        f'[scripts]\napi_key = "{SECRET}"',
    ],
)
def test_a_secret_in_the_wrong_place_is_refused_and_not_shown(line: str) -> None:
    text = SERVICE + line + "\n" + REST
    assert SECRET not in "\n".join(problems_of(text))


def test_a_command_with_a_secret_is_refused_with_the_way_out() -> None:
    text = SERVICE.replace('"llama-server"', f'"llama-server", "--api-key={SECRET}"') + REST
    (line,) = problems_of(text)
    assert "--api-key" in line
    assert "from a file, or from a variable" in line
    assert SECRET not in line


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (f'["env", "HF_TOKEN={SECRET}", "llama-server"]', "HF_TOKEN, which"),
        ('["env", "AWS_SECRET_ACCESS_KEY=x y", "llama-server"]', "AWS_SECRET_ACCESS_KEY, which"),
        (f'["docker", "run", "-e", "API_KEY={SECRET}", "IMAGE"]', "API_KEY, which"),
        (f'["docker", "run", "-eAPI_KEY={SECRET}", "IMAGE"]', "API_KEY, which"),
        (f'["bash", "-c", "exec llama-server --api-key {SECRET}"]', "api-key, which"),
        (f'["bash", "-c", "HF_TOKEN={SECRET} exec llama-server"]', "HF_TOKEN, which"),
        (f'["bash", "-c", "exec llama-server --api-key ${{KEY:-{SECRET}}}"]', "api-key, which"),
        (f'["llama-server", "--grammar", "{{\\"token\\": \\"{SECRET}\\"}}"]', "a secret in clear"),
        (f'["llama-server", "--hf-repo", "{SECRET}"]', "what looks like a secret"),
        (f'["env", "HF_ENDPOINT=https://me:{SECRET}@hub", "llama-server"]', "an address with a password"),
    ],
)
def test_a_secret_in_any_word_of_the_command_is_refused_and_not_shown(command: str, named: str) -> None:
    (line,) = problems_of(SERVICE.replace('["llama-server"]', command) + REST)
    assert LINE.fullmatch(line)
    assert named in line.partition("; allowed")[0]
    assert "from a file, or from a variable" in line
    assert SECRET not in line
    assert "x y" not in line


@pytest.mark.parametrize(
    "script",
    [
        "exec llama-server --api-key $KEY",
        'exec llama-server --api-key "$KEY" --port 1',
        'exec llama-server --api-key="${KEY:?is not set}"',
        'exec llama-server --api-key "$(cat /run/key)" --port 1',
        'HF_TOKEN=$(cat "$HOME/key") exec llama-server',
        "HF_TOKEN=${HF_TOKEN:-} HF_TOKEN_PATH=/k exec llama-server",
        'docker run -e HF_TOKEN -e "API_KEY=$API_KEY" IMAGE --max-tokens 5',
    ],
)
def test_a_script_that_takes_its_secrets_from_elsewhere_is_allowed(script: str) -> None:
    words = json.dumps(["bash", "-c", script])
    parse_campaign(SERVICE.replace('["llama-server"]', words) + REST, "campaign.toml", NAMES)


def test_brackets_nested_beyond_reading_are_a_problem_not_a_crash() -> None:
    (line,) = problems_of("x = " + "[" * 100_000)
    assert LINE.fullmatch(line)


def test_a_syntax_error_at_the_end_names_the_last_line() -> None:
    (line,) = problems_of('[service]\nengine = "llamacpp')
    assert line.startswith("campaign.toml: line 2, column ")


def test_a_knob_of_another_engine_is_unknown_here_but_not_when_the_engine_is_unknown_too() -> None:
    names = Names(
        engines=("llamacpp", "sglang"),
        targets=("command",),
        strategies=("grid",),
        workloads=("coding",),
        knobs={"llamacpp": ("depth",), "sglang": ("depth", "topk")},
    )
    text = (SERVICE + REST).replace("depth = [2]", "topk = [2]")
    with pytest.raises(ConfigError, match=r"knobs\.topk: found an unknown name; allowed: depth, "):
        parse_campaign(text, "campaign.toml", names)
    with pytest.raises(ConfigError) as caught:
        parse_campaign(text.replace('"llamacpp"', '"sglan"'), "campaign.toml", names)
    assert len(caught.value.problems) == 1
    assert parse_campaign(text.replace('"llamacpp"', '"sglang"'), "campaign.toml", names).knobs[0].name == "topk"


@pytest.mark.parametrize(
    ("load", "weights"),
    [("concurrency = [4, 0]", "{ coding = 1 }"), ("concurrency = [4]", '{ coding = 1, "coding@x" = 1 }')],
)
def test_a_cell_is_not_called_unmeasured_while_a_problem_hides_what_is_measured(load: str, weights: str) -> None:
    text = f"{SERVICE}[load]\n{load}\n{REST}require = ['error_frac < 1 at coding@16']\n"
    lines = problems_of(text.replace("weights = { coding = 1 }", f"weights = {weights}"))
    assert len(lines) == 1
    assert "coding@16" not in lines[0]
