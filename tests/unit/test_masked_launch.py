from __future__ import annotations

import msgspec
import pytest

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
