from __future__ import annotations

import msgspec
import pytest

from leadline.dialect.signs import masked_line
from leadline.launch import LaunchFile, LaunchSpec, Start, masked


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        ("s --api-key K --port 1", "s --api-key <secret:api-key> --port 1"),
        ("s --api-key=K --port 1", "s --api-key=<secret:api-key> --port 1"),
        ("s --api-key K1 K2 --port 1", "s --api-key <secret:api-key> <secret:api-key> --port 1"),
        ("s --api-key -K --port 1", "s --api-key <secret:api-key> --port 1"),
        ("s --api-key --K --port 1", "s --api-key <secret:api-key> --port 1"),
        ("s --admin-api-key K -x", "s --admin-api-key <secret:admin-api-key> -x"),
        ("s --api_key K", "s --api_key <secret:api_key>"),
        ("s --hf-token K", "s --hf-token <secret:hf-token>"),
        ("s --ssl-keyfile-password K", "s --ssl-keyfile-password <secret:ssl-keyfile-password>"),
        ("s --api-key A --token B", "s --api-key <secret:api-key> --token <secret:token>"),
        ("s --api-key", "s --api-key"),
        ("s --api-key= --port 1", "s --api-key=<secret:api-key> --port 1"),
        ("s --api-key-file f --max-tokens 5 --tokenizer t", "s --api-key-file f --max-tokens 5 --tokenizer t"),
        ("s --speculative-num-draft-tokens 4 -k 1", "s --speculative-num-draft-tokens 4 -k 1"),
    ],
)
def test_secret_words_are_masked_and_others_stay(argv: str, shown: str) -> None:
    hidden = masked(LaunchSpec(argv=tuple(argv.split())))
    assert " ".join(hidden.argv) == shown
    assert masked(hidden) == hidden


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "OPENAI_API_KEY", "apikey", "MY_SECRET", "DB_PASSWORD", "AWS_CREDENTIALS"]
)
def test_secret_variables_are_masked(name: str) -> None:
    assert masked(LaunchSpec(argv=("s",), env=((name, "v"),))).env == ((name, f"<secret:{name}>"),)


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "MAX_TOKENS", "TOKENIZERS_PARALLELISM", "HOME"])
def test_other_variables_stay(name: str) -> None:
    assert masked(LaunchSpec(argv=("s",), env=((name, "v"),))).env == ((name, "v"),)


def test_nothing_printed_shows_a_secret_and_the_launch_itself_keeps_it() -> None:
    launch = LaunchSpec(argv=("s", "--api-key", "hush-1"), env=(("HF_TOKEN", "hush-2"), ("A", "b c")), cwd="/")
    for text in (str(launch), f"{launch}", str(Start(launch=launch, log="l"))):
        assert "hush" not in text
        assert "A='b c'" in text
        assert "--api-key" in text
    assert launch.argv[2] == "hush-1"
    assert msgspec.structs.replace(masked(launch), argv=launch.argv, env=launch.env) == launch


def test_secrets_of_a_configuration_file_are_masked_and_other_lines_stay() -> None:
    content = (
        "port: 1\napi-key: K1\nhf_token: 'K2' # mine\nnested:\n  - admin_api_key: K3\nmax-tokens: 5\ntokenizer: t\n"
    )
    launch = LaunchSpec(argv=("s",), files=(LaunchFile("c.yaml", content),))
    hidden = masked(launch).files[0].content
    assert not any(k in hidden for k in ("K1", "K2", "K3"))
    assert hidden.splitlines()[::3] == content.splitlines()[::3]
    assert "max-tokens: 5\ntokenizer: t\n" in hidden


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        ("api-key:\n  - hush\n  - hush\n", "api-key: <secret:api-key>\n"),
        ("api-key:\n- hush\n-\n  hush\n", "api-key: <secret:api-key>\n"),
        ("- api-key:\n  - hush\n- a: 1\n", "- api-key: <secret:api-key>\n- a: 1\n"),
        ("api-key: |\n  hush\n\n  hush\n", "api-key: <secret:api-key>\n"),
        ("a:\n  hf_token: >-\n    hush\n  b: 1\n", "a:\n  hf_token: <secret:hf_token>\n  b: 1\n"),
        ("api-key: hush\n  hush\n", "api-key: <secret:api-key>\n"),
        ('api-key: "hush\nhush"\n', "api-key: <secret:api-key>\n"),
        ("api-key: [hush,\nhush\n]\n", "api-key: <secret:api-key>\n"),
        ("api-key: !!str\n  hush\n", "api-key: <secret:api-key>\n"),
        ("? api-key\n: - hush\n  - hush\n", "? api-key\n: <secret:api-key>\n"),
        ("{model: x, api-key: hush hush, a: 1}\n", "{model: x, api-key: <secret:api-key>, a: 1}\n"),
        ("{model: x, api-key: [a, {b: hush}], a: 1}\n", "{model: x, api-key: <secret:api-key>, a: 1}\n"),
        ("a: {api-key: hush\n hush}\n", "a: {api-key: <secret:api-key>}\n"),
        ("a: {api-key:\n 'hush, hush'}\n", "a: {api-key:\n <secret:api-key>}\n"),
        ('[{\'api-key\': "hush, \\" hush"}]\n', "[{'api-key': <secret:api-key>}]\n"),
        ('{"a":1,"api_key":"hush","b":2}\n', '{"a":1,"api_key":<secret:api_key>,"b":2}\n'),
        ('{\n"api_key":\n"hush"\n}\n', '{\n"api_key":\n<secret:api_key>\n}\n'),
        ("url: http://me:hush@host/\n", "url: http://me:<secret:http>@host/\n"),
        ("model: sk-hush-hush\n", "model: <secret:token>\n"),
    ],
)
def test_a_secret_of_a_file_is_hidden_however_it_is_written(content: str, shown: str) -> None:
    launch = LaunchSpec(argv=("s",), files=(LaunchFile("c.yaml", f"port: 1\n{content}max-tokens: 5\n"),))
    hidden = masked(launch)
    assert "hush" not in hidden.files[0].content
    assert hidden.files[0].content == f"port: 1\n{shown}max-tokens: 5\n"
    assert masked(hidden) == hidden


def test_what_is_no_secret_of_a_file_stays() -> None:
    content = (
        "api-key:\nmax_tokens: 5\ntokenizer: {a: b, draft_tokens: 4}\nhf_token: # none\nkv_cache_config:\n"
        "  free_gpu_memory_fraction: 0.9\nspeculative_config: {decoding_type: MTP, num_nextn_predict_layers: 3}\n"
    )
    launch = LaunchSpec(argv=("s",), files=(LaunchFile("c.yaml", content),))
    assert masked(launch) == launch


@pytest.mark.parametrize(
    "line",
    [
        "ServerArgs(api_key='hush', port=1)",
        "non-default args: {'api_key': ['hush', 'hush hush'], 'port': 1}",
        "['vllm', 'serve', '--api-key', 'hush', '--port']",
        "vllm serve --api-key hush --port 1",
        'vllm serve --api-key "hush hush" --port 1',
        "HF_TOKEN=hush vllm",
        "Authorization: Bearer hush",
        "headers {'authorization': 'Bearer hush'}",
        '{"password": "hush"}',
        "http://me:hush@host/v1",
        "no model sk-hush-hush here",
    ],
)
def test_a_log_line_shows_no_secret(line: str) -> None:
    shown = masked_line(line)
    assert "hush" not in shown
    assert "<secret>" in shown
    assert masked_line(shown) == shown


@pytest.mark.parametrize(
    "line",
    [
        "error: unrecognized arguments: --max-tokens 5 --tokenizer x --speculative-num-draft-tokens 4",
        "api_key=None, token=151643, eos_token='<|im_end|>', hf_overrides={}, num_draft_tokens=4",
        "jinja2.exceptions.TemplateSyntaxError: expected token 'end of print statement', got ':'",
    ],
)
def test_a_log_line_without_a_secret_stays(line: str) -> None:
    assert masked_line(line) == line
