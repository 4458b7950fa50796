"""No secret of a command is shown, wherever an operator wrote it: in a script, behind docker's -e, in JSON, in quotes.

Every secret here has `hush` in it.
"""

from __future__ import annotations

import pytest

from leadline.dialect.signs import LONGEST, masked_line
from leadline.launch import LaunchFile, LaunchSpec, Start, masked

SCRIPTS = {
    "a flag": "exec vllm serve /m --api-key hush --port 1",
    "a flag with =": "exec vllm serve /m --api-key=hush --port 1",
    "in double quotes": 'exec vllm serve /m --api-key "hush hush" --port 1',
    "in single quotes": "exec vllm serve /m --api-key='hush \"hush' --port 1",
    "the flag in quotes too": 'exec vllm serve /m "--api-key" "hush" --port 1',
    "flag and value in one pair of quotes": "exec vllm serve /m '--api-key=hush hush' --port 1",
    "on the next line": "exec vllm serve /m \\\n  --api-key \\\n  hush \\\n  --port 1",
    "several keys": "exec vllm serve /m --api-key hush1 hush2 --port 1",
    "a key that begins with a dash": "exec vllm serve /m --api-key -hush --port 1",
    "the last word": "exec vllm serve /m --port 1 --hf-token hush",
    "in an array": 'a=(--port 1 --api-key hush)\nexec vllm serve /m "${a[@]}"',
    "put together": "exec vllm serve /m --api-key 'hush'\"$X\"hush --port 1",
    "escaped blanks": "exec vllm serve /m --api-key hush\\ hush --port 1",
    "a variable": "HF_TOKEN=hush vllm serve /m --port 1",
    "an exported variable": "export HF_TOKEN='hush hush'; vllm serve /m --port 1",
    "a variable that is added to": "API_KEY=a; API_KEY+=hush; vllm serve /m --port 1",
    "a default": "vllm serve /m --port 1 --served-model-name ${API_KEY:-hush}",
    "a default that stays": ": ${HF_TOKEN:=hush}; vllm serve /m --port 1",
    "docker's -e": "docker run -e API_KEY=hush IMAGE vllm serve /m --port 1",
    "docker's -e, joined": "docker run -eAPI_KEY=hush IMAGE vllm serve /m --port 1",
    "docker's --env": "docker run --env=API_KEY=hush --env 'HF_TOKEN=hush hush' IMAGE vllm serve /m --port 1",
    "env": "exec env HF_TOKEN=hush vllm serve /m --port 1",
    "a script in a script": 'docker run IMAGE bash -c "HF_TOKEN=\\"hush hush\\" vllm --api-key \'hush\' --port 1"',
    "a here-document": "cat > c.yaml <<EOF\napi-key: hush hush\nport: 1\nEOF\nvllm serve /m --config c.yaml --port 1",
    "a header": "curl -H 'Authorization: Bearer hush' localhost; vllm serve /m --port 1",
    "a user's password": "HF_ENDPOINT=https://me:hush@hub.local/ vllm serve /m --port 1",
    "a default of a flag": "vllm serve /m --api-key ${API_KEY:-hush} --port 1",
    "a default in a variable": "A_TOKEN=${HF_TOKEN:-hush}; vllm serve /m --port 1",
    "a command's output": "vllm serve /m --api-key $(echo hush) --port 1",
    "a text over lines": "export HF_TOKEN='hush\nhush'; vllm serve /m --port 1",
    "a list in a here-document": "cat > c <<EOF\napi-key:\n  - hush\n  - hush\nEOF\nvllm serve /m --config c --port 1",
    "YAML in a word": "vllm serve /m --compilation-config '{a: 1, api-key: hush hush}' --port 1",
    "JSON with a quote": 'vllm serve /m --x \'{"api_key": "a\\"hush", "a": 1}\' --port 1',
    "JSON with a list": 'vllm serve /m --x \'{"api_key": ["a", "hush"], "a": 1}\' --port 1',
    "JSON in a script in a script": 'bash -c "vllm --x \\"{\\\\\\"token\\\\\\": \\\\\\"hush\\\\\\"}\\" --port 1"',
    "capitals": "curl -H 'X-API-Key: hush'; vllm serve /m --x '{\"apiKey\": \"hush\"}' --port 1",
    "the form of a token": "vllm serve sk-hush-hush --port 1",
    "JSON": 'vllm serve /m --kv-transfer-config \'{"api_key": "hush hush", "a": 1}\' --port 1',
    "escaped JSON": 'vllm serve /m --kv-transfer-config "{\\"api_key\\":\\"hush\\",\\"a\\":1}" --port 1',
}
ARGV = {
    "docker's -e": ("docker", "run", "-e", "API_KEY=hush", "IMAGE", "--port", "1"),
    "docker's -e, with blanks": ("docker", "run", "-e", "API_KEY=hush hush", "IMAGE", "--port", "1"),
    "docker's -e, quotes": ("docker", "run", "-e", "API_KEY=it's hush", "IMAGE", "--port", "1"),
    "docker's -e, joined": ("docker", "run", "-eAPI_KEY=hush", "IMAGE", "--port", "1"),
    "docker's --env=": ("docker", "run", "--env=API_KEY=hush hush", "IMAGE", "--port", "1"),
    "env": ("env", "HF_TOKEN=hush", "OTHER=x", "vllm", "serve", "/m", "--port", "1"),
    "sudo": ("sudo", "-n", "HF_TOKEN=hush;hush", "vllm", "serve", "/m", "--port", "1"),
    "JSON": ("vllm", "serve", "/m", "--kv-transfer-config", '{"token":"hush"}', "--port", "1"),
    "sudo's environment": (
        "sudo",
        "--preserve-env=A",
        "env",
        "-i",
        "AWS_SECRET_ACCESS_KEY=hush",
        "vllm",
        "--port",
        "1",
    ),
    "docker's --env, apart": ("docker", "run", "--env", "HF_TOKEN=hush", "IMAGE", "--port", "1"),
    "a key that is a list": ("vllm", "serve", "--x", '{"api_keys":["hush"]}', "--port", "1"),
    "a bare token": ("vllm", "serve", "nvapi-hush-hush", "--port", "1"),
    "after a script": ("bash", "-c", 'exec vllm serve "$@"', "--", "/m", "--api-key", "hush", "--port", "1"),
}
PLAIN = (
    'export HF_TOKEN_PATH=/k SSL_KEY_FILE=/k; vllm serve /m --hf_overrides \'{"eos_token": "x"}\' --port 1',
    "exec vllm serve hf_models/sk-1 --max-tokens 5 --tokenizer x --kv-cache-dtype fp8 # draft_tokens: 4",
    ": ${HF_TOKEN:?set it first}; docker run -e HF_TOKEN IMAGE vllm serve /m --max-token-count 3 --port 1",
    "set -euo pipefail\nTOKENS=5; exec vllm serve /m --max-num-batched-tokens 8192 --port 1 > /var/log/x 2>&1",
    "python3 -m sglang.launch_server --speculative-num-draft-tokens 4 --tokenizer-path t --api-key-file /k --port 1",
    "export TOKENIZERS_PARALLELISM=false OMP_NUM_THREADS=8; d=${DEPTH:-3}; vllm serve /m --port 1",
    'vllm serve /m --speculative-config "{\\"method\\":\\"mtp\\",\\"num_speculative_tokens\\":$d}" --port 1',
)


HOSTILE = (
    "a-", "--a-a", '--token "', "--token '", "--token $(", "--token ${", "$(", "${A_KEY:-", "{api-key: ",
    '"api_key": [', '{"api_key":"', "api-key:\n", 'api-key: "x\n', "- ", "? token\n", ", ", "a://a:",
    "authorization: ", "sk-", "-e '",
)  # fmt: skip
"""What makes a careless pattern go back and forth."""


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_a_script_is_shown_without_its_secrets(script: str) -> None:
    check(LaunchSpec(argv=("bash", "-c", script)))


@pytest.mark.parametrize("argv", ARGV.values(), ids=ARGV)
def test_a_command_is_shown_without_its_secrets(argv: tuple[str, ...]) -> None:
    check(LaunchSpec(argv=argv))


def check(launch: LaunchSpec) -> None:
    for text in (str(launch), str(Start(launch=launch, log="l")), repr(masked(launch))):
        assert "hush" not in text
        assert "<secret:" in text
        assert "--port" in text
    assert masked(masked(launch)) == masked(launch)
    assert len(masked(launch).argv) == len(launch.argv)


@pytest.mark.parametrize("script", PLAIN)
def test_what_is_no_secret_stays(script: str) -> None:
    launch = LaunchSpec(argv=("bash", "-c", script))
    assert masked(launch) == launch


def test_only_the_secret_is_hidden() -> None:
    script = (
        'set -e\ncd "/a b"  # it\'s ours\nHF_TOKEN="hush" exec vllm serve /m --api-key hush \\\n  --port ${PORT:-1}'
    )
    shown = masked(LaunchSpec(argv=("sh", "-c", script))).argv[2]
    assert shown == script.replace('"hush"', "<secret:HF_TOKEN>").replace(" hush ", " <secret:api-key> ")


def test_a_long_word_is_no_trouble() -> None:
    for text in ("a", "-", "--a-", "A=", "\n", " ", "'", '"', "\\", "api-key", "--api-key ", "{", "a_", *HOSTILE):
        word = text * (100_000 // len(text))
        launch = LaunchSpec(argv=("sh", "-c", word), files=(LaunchFile("c.yaml", word),))
        assert len(masked(launch).argv) == 3
        assert masked(masked(launch)) == masked(launch)
        assert len(masked_line(word)) <= LONGEST
