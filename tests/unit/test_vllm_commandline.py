"""vLLM's command lines and configuration files: tables of examples, and the laws of rendering over generated ones."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support_vllm import BASES, FILE, HEAVY, SCRATCH, SETTINGS, YAML, YAML_SHORT, command, configured

from leadline.dialect import yamlfile
from leadline.engines.vllm import VLLM, canonical, engine
from leadline.engines.vllm.flags import OPTIONS
from leadline.engines.vllm.versions import release, without_method
from leadline.errors import InputError
from leadline.launch import LaunchFile, LaunchSpec
from leadline.space import Setting, Value

KNOBS = {k.name for k in engine.knobs()}
SPEC = "--speculative-config"


def spec(launch: LaunchSpec) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(launch.argv[launch.argv.index(SPEC) + 1])
    return value


def rendered(text: str, setting: str, version: str | None = None, **env: str) -> str:
    return shlex.join(VLLM(version).render(command(text, **env), Setting.parse(setting)).argv)


# --- reading


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("vllm serve m", "depth=0"),
        ("vllm serve m --speculative-config None", "depth=0"),
        (f"vllm serve m -sc '{HEAVY}'", "depth=1 spec_method=mtp"),
        (f"vllm serve m -sc='{HEAVY}' --max-num-seqs=8", "depth=1 max_running=8 spec_method=mtp"),
        (f"vllm serve m --speculative_config='{HEAVY}' --max_num_seqs 8", "depth=1 max_running=8 spec_method=mtp"),
        (f"vllm serve m --speculative '{HEAVY}' --gpu 0.8", "depth=1 memory_fraction=0.8 spec_method=mtp"),
        ("vllm serve m --device-memory-utilization .5", "depth=0 memory_fraction=0.5"),
        (f"vllm serve m {SPEC}.method mtp {SPEC}.num_speculative_tokens 3", "depth=3 spec_method=mtp"),
        (f"vllm serve {SPEC}.num-speculative-tokens=3 m {SPEC}.method=mtp", "depth=3 spec_method=mtp"),
        ("vllm serve m -sc.method ngram -sc.num_speculative_tokens 4", "depth=4 spec_method=ngram"),
        (
            f"vllm serve m {SPEC} '{HEAVY}' {SPEC}.method ngram {SPEC}.num_speculative_tokens 7",
            "depth=7 spec_method=ngram",
        ),
        ("vllm serve m --spec-method mtp --spec-tok 2", "depth=2 spec_method=mtp"),
        (f'vllm serve m --spec-tokens 2 {SPEC} \'{{"method":"mtp"}}\'', "depth=2 spec_method=mtp"),
        (f'vllm serve m {SPEC} \'{{"model":"[ngram]","num_speculative_tokens":5}}\'', "depth=5 spec_method=ngram"),
        (f'vllm serve m {SPEC} \'{{"model":"d","num_speculative_tokens":5}}\'', "depth=5 draft_model=d"),
        (
            f'vllm serve m {SPEC} \'{{"method":"qwen3_next_mtp","num_speculative_tokens":2}}\'',
            "depth=2 spec_method=mtp",
        ),
        (f'vllm serve m {SPEC} \'{{"method":"suffix"}}\'', "depth=24 spec_method=suffix"),
        (
            f'vllm serve m {SPEC} \'{{"method":"suffix","suffix_decoding_max_tree_depth":8}}\'',
            "depth=8 spec_method=suffix",
        ),
        ("vllm serve m --max-num-seqs 1 --max-num-seqs 2 --max-num-seqs=3", "depth=0 max_running=3"),
        ("vllm serve m --max-cudagraph-capture-size 512", "depth=0 graph_max_batch=512"),
        ("vllm serve m --cuda-graph-sizes 64", "depth=0 graph_max_batch=64"),
        ("vllm serve m -cc.max_cudagraph_capture_size 512", "depth=0 graph_max_batch=512"),
        ("vllm serve m -O '{\"cudagraph_capture_sizes\":[1,8,64]}'", "depth=0 graph_max_batch=64"),
        (
            "vllm serve m -cc.cudagraph_capture_sizes+ 8 -cc.cudagraph_capture_sizes+=16,32",
            "depth=0 graph_max_batch=32",
        ),
        ("vllm serve -O3 m --kv-cache-dtype fp8 -O 2", "depth=0 kv_dtype=fp8"),
    ],
)
def test_parses(text: str, setting: str) -> None:
    assert str(engine.parse(command(text))) == setting


def test_graphs_hold_tokens_and_the_knob_counts_requests() -> None:
    """vllm-project/vllm#49390: 512 tokens at depth 7 are 64 requests, and not 512."""
    for depth, requests in ((0, 512), (1, 256), (7, 64)):
        base = command(f"vllm serve m --max-cudagraph-capture-size 512 --spec-method mtp --spec-tokens {max(depth, 1)}")
        got = engine.parse(base if depth else command("vllm serve m --max-cudagraph-capture-size 512"))
        assert got["graph_max_batch"] == requests


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("vllm serve org/m --port 1", "org/m"),
        ("vllm serve --enforce-eager --served-model-name a b --port 1 -O3 org/m", "org/m"),
        ("vllm serve --model org/m", "org/m"),
        ("vllm serve --tensor-parallel-size 2 --model=org/m", "org/m"),
        ("python -m vllm.entrypoints.openai.api_server --model org/m", "org/m"),
        ("python3.12 -u -X dev -m vllm.entrypoints.openai.api_server --model org/m", "org/m"),
        ("python /x/vllm/entrypoints/openai/api_server.py --model org/m", "org/m"),
        ("python -m vllm.entrypoints.cli.main serve org/m", "org/m"),
        ("/opt/venv/bin/python /opt/venv/bin/vllm serve org/m", "org/m"),
        ("nice -n 5 env A=b taskset -c 0-7 vllm serve org/m", "org/m"),
        ("docker run --gpus all -p 80:8000 vllm/vllm-openai:v0.33.0 --model org/m --max-num-seqs 4", "org/m"),
        ("/opt/my-vllm-build org/m --max-num-seqs 4", "org/m"),
        ("vllm serve org/m another-word", "org/m"),
        ("vllm serve", None),
    ],
)
def test_the_model_in_all_forms_of_the_command(text: str, model: str | None) -> None:
    assert engine.model(command(text)) == model


def test_the_model_of_the_file() -> None:
    assert engine.model(configured()) == "org/model"
    assert engine.model(configured(f"vllm serve org/other --config {FILE}")) == "org/other"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("vllm bench serve --model m", "starts no server"),
        ("python -m vllm.entrypoints.llm", "does not start vLLM"),
        ("python serve.py --model m --max-num-seqs 2", "does not start vLLM"),
        (f"vllm serve m {SPEC} '{{nonsense'", "no JSON"),
        (f"vllm serve m {SPEC} '[1]'", "no JSON object"),
        (f'vllm serve m {SPEC} \'{{"method":"mtp","num_speculative_tokens":0}}\'', "at least 1"),
        (f'vllm serve m {SPEC} \'{{"method":"mtp","num_speculative_tokens":"3"}}\'', "whole number"),
        (f'vllm serve m {SPEC} \'{{"method":"mtp"}}\'', "num_speculative_tokens is not given"),
        (f"vllm serve m --spec-tokens 2 {SPEC} '{HEAVY}'", "mutually exclusive"),
        (f"vllm serve m -sc.method mtp {SPEC}.num_speculative_tokens 2", "two of its names"),
        ("vllm serve m --max-num-seqs many", "no whole number"),
        ("vllm serve m --gpu-memory-utilization most", "no share"),
        ("vllm serve m --config=x.yaml", "two words"),
        ("vllm serve m --config x.yaml --config y.yaml", "given twice"),
        ("vllm serve m --config gone.yaml", "could not be read"),
        ("vllm serve m --max-num-seqs", "has no value"),
        (
            'vllm serve m -sc \'{"method":"mtp","num_speculative_tokens":3,'
            '"num_speculative_tokens_per_batch_size":[[1,4,2],[5,512,0]]}\'',
            "chooses the depth by the number of requests",
        ),
    ],
)
def test_what_no_server_would_start_with_cannot_be_read(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        engine.parse(command(text))


def test_a_schedule_is_taken_out_when_that_is_asked_for() -> None:
    """vllm-project/vllm#49548: [[1,4,2],[5,512,0]]."""
    base = command(
        f"vllm serve m {SPEC} "
        '\'{"method":"mtp","num_speculative_tokens":3,"num_speculative_tokens_per_batch_size":[[1,4,2],[5,512,0]]}\''
    )
    asked = Setting.of({"depth": 2, f"flag:{SPEC}.num_speculative_tokens_per_batch_size": False})
    assert spec(engine.render(base, asked)) == {"method": "mtp", "num_speculative_tokens": 2}


# --- writing


@pytest.mark.parametrize(
    ("base", "setting", "argv"),
    [
        (
            "vllm serve m",
            "depth=3 spec_method=mtp",
            f'vllm serve m {SPEC} \'{{"method": "mtp", "num_speculative_tokens": 3}}\'',
        ),
        (
            "vllm serve m --port 1",
            "depth=3 spec_method=eagle3 draft_model=org/head max_running=8",
            f"vllm serve m --port 1 {SPEC} "
            '\'{"method": "eagle3", "model": "org/head", "num_speculative_tokens": 3}\' --max-num-seqs 8',
        ),
        (f"vllm serve m -sc '{HEAVY}' --seed 1", "depth=0", "vllm serve m --seed 1"),
        ("vllm serve m --spec-method ngram --spec-tokens 4 -tp 2", "depth=0", "vllm serve m -tp 2"),
        (
            "vllm serve m --spec-method ngram --spec-tokens=4 -tp 2",
            "depth=6",
            "vllm serve m --spec-method ngram --spec-tokens=6 -tp 2",
        ),
        (
            f"vllm serve m {SPEC}.method mtp -tp 2 --speculative_config.num_speculative_tokens=3",
            "depth=5",
            f"vllm serve m {SPEC}.method mtp -tp 2 --speculative_config.num_speculative_tokens=5",
        ),
        (f"vllm serve m {SPEC}.method mtp {SPEC}.num_speculative_tokens 3 -tp 2", "depth=0", "vllm serve m -tp 2"),
        (
            f'vllm serve m {SPEC} \'{{"model":"d","num_speculative_tokens":3}}\'',
            "depth=4",
            f'vllm serve m {SPEC} \'{{"model":"d","num_speculative_tokens":4}}\'',
        ),
        (
            f'vllm serve m {SPEC} \'{{"method": "deepseek_mtp", "num_speculative_tokens": 3}}\'',
            "depth=1",
            f'vllm serve m {SPEC} \'{{"method": "deepseek_mtp", "num_speculative_tokens": 1}}\'',
        ),
        (
            f'vllm serve m {SPEC} \'{{"method":"eagle3","model":"d","num_speculative_tokens":3,"quantization":null}}\'',
            "depth=3 spec_method=ngram",
            f'vllm serve m {SPEC} \'{{"method":"ngram","num_speculative_tokens":3,"quantization":null}}\'',
        ),
        (
            "vllm serve m --gpu-memory-utilization=0.90 --kv_cache_dtype auto",
            "memory_fraction=0.85 kv_dtype=fp8",
            "vllm serve m --gpu-memory-utilization=0.85 --kv_cache_dtype fp8",
        ),
        (
            "vllm serve m --gpu-memory-utilization 0.90",
            "memory_fraction=0.9",
            "vllm serve m --gpu-memory-utilization 0.90",
        ),
        (
            "vllm serve m --disable-log-stats --max-num-seqs 2 --max-num-seqs 4",
            "depth=0",
            "vllm serve m --max-num-seqs 4",
        ),
        (
            "vllm serve m --spec-method mtp --spec-tokens 3 --max-cudagraph-capture-size 256",
            "depth=1",
            "vllm serve m --spec-method mtp --spec-tokens 1 --max-cudagraph-capture-size 128",
        ),
        (
            "vllm serve m --spec-method mtp --spec-tokens 3 --cudagraph-capture-sizes 4 8 64 --seed 2",
            "depth=7 graph_max_batch=32",
            "vllm serve m --spec-method mtp --spec-tokens 7 --cudagraph-capture-sizes 8 16 128 256 --seed 2",
        ),
        ("vllm serve m", "graph_max_batch=64", "vllm serve m --max-cudagraph-capture-size 64"),
        (
            'vllm serve m -cc \'{"mode":3,"max_cudagraph_capture_size":64}\'',
            "graph_max_batch=32",
            'vllm serve m -cc \'{"mode":3,"max_cudagraph_capture_size":32}\'',
        ),
        (
            "vllm serve m -cc '{\"mode\": 3}'",
            "flag:--compilation-config.cudagraph_mode=FULL flag:-cc.pass_config.fuse_allreduce_rms=true",
            'vllm serve m -cc \'{"mode": 3, "cudagraph_mode": "FULL", "pass_config": {"fuse_allreduce_rms": true}}\'',
        ),
        (
            "vllm serve m --enable-prefix-caching",
            "flag:--enable-prefix-caching=false",
            "vllm serve m --no-enable-prefix-caching",
        ),
        ("vllm serve m", "flag:--no-enable-prefix-caching=true", "vllm serve m --no-enable-prefix-caching"),
        ("vllm serve m --swap-space 4", "flag:--swap-space=false", "vllm serve m"),
    ],
)
def test_renders(base: str, setting: str, argv: str) -> None:
    assert rendered(base, setting) == argv


def test_unknown_keys_stay_in_place_when_the_depth_changes() -> None:
    """vllm-project/vllm-ascend#14440: `enforce_eager` inside the configuration, and the spacing that it had."""
    got = engine.render(BASES[1], Setting.of(depth=2))
    assert spec(got) == {"num_speculative_tokens": 2, "method": "mtp", "enforce_eager": True}
    assert list(spec(got)) == ["num_speculative_tokens", "method", "enforce_eager"]


def test_each_answer_tells_its_acceptance_where_the_release_can() -> None:
    flag = "--per-request-spec-decode-metrics"
    assert flag not in rendered("vllm serve m", "depth=1 spec_method=mtp")
    assert flag not in rendered("vllm serve m", "depth=1 spec_method=mtp", "0.28.0")
    assert f"{flag} summary" in rendered("vllm serve m", "depth=1 spec_method=mtp", "0.33.0")
    assert f"{flag} detailed" in rendered(
        f"vllm serve m --spec-method mtp --spec-tokens 1 {flag} detailed", "depth=2", "0.33.0"
    )
    # vLLM refuses it while speculation is off
    assert flag not in rendered(f"vllm serve m --spec-method mtp --spec-tokens 1 {flag} summary", "depth=0", "0.33.0")


def test_the_oldest_release_has_another_flag_for_graphs() -> None:
    assert rendered("vllm serve m", "graph_max_batch=64", "0.11.0") == "vllm serve m --cuda-graph-sizes 64"
    assert rendered("vllm serve m", "graph_max_batch=64", "0.11.2") == "vllm serve m --max-cudagraph-capture-size 64"


@pytest.mark.parametrize(
    ("base", "setting", "says"),
    [
        (
            "vllm serve m",
            "depth=3",
            r"a method or a draft model: set spec_method under \[keep\] or \[knobs\], to one of",
        ),
        (
            "vllm serve m",
            "depth=3 spec_method=eagle3",
            r"eagle3 needs a draft model.* set draft_model under \[keep\] or \[knobs\]",
        ),
        ("vllm serve m", "depth=3 spec_method=mtp topk=2", "one chain"),
        ("vllm serve m", "depth=3 spec_method=mtp draft_tokens=4", "depth \\+ 1"),
        ("vllm serve m", "depth=2000 spec_method=mtp", "from 0 to 1024"),
        ("vllm serve m", "memory_fraction=1.2", "at most 1"),
        ("vllm serve m", "max_running=0", "from 1"),
        ("vllm serve m", "kv_dtype=8", "a type like"),
        ("vllm serve m", "flag:--spec-tokens=3", "is the knob depth"),
        ("vllm serve m", f"flag:{SPEC}.model=x", "is the knob draft_model"),
        ("vllm serve m", "flag:--cudagraph-capture-sizes=8", "is the knob graph_max_batch"),
        ("vllm serve m", "flag:--port=3", "belongs to the service"),
        ("vllm serve m", "flag:--api-key=x", "secret"),
        ("vllm serve m", "env:HF_TOKEN=x", "secret"),
        ("vllm serve m", "flag:--enforce-eager=3", "true or false"),
        ("vllm serve m", "flag:--seed=true", "followed by a value"),
        ("vllm serve m", "flag:-tp=1 flag:--tensor_parallel_size=2", "same option"),
        ("vllm serve m --enforce-eager", "graph_max_batch=8", "no graph is captured"),
        ("vllm serve m", "graph_max_batch=5 depth=3 spec_method=mtp", "20 tokens.* 4, 6, 8"),
        ("vllm serve m --max-num-batched-tokens 1k", "graph_max_batch=1024", "more than --max-num-batched-tokens"),
        ("vllm serve m --kv-cache-memory-bytes 8g", "memory_fraction=0.5", "would change nothing"),
        ("vllm serve m --nnodes 2", "depth=0", "several machines"),
        ("vllm serve m --headless -dpl 4 -dp 8", "depth=0", "headless"),
        ("vllm serve m -dp 8 -dpl 4", "depth=0", "4 of 8 ranks"),
        ("vllm serve m --data-parallel-hybrid-lb -dp 8", "depth=0", "data-parallel-hybrid-lb"),
        ("vllm serve m --data-parallel-rank 1", "depth=0", "data-parallel-rank"),
        (
            'vllm serve m --kv-transfer-config \'{"kv_connector":"N","kv_role":"kv_producer"}\'',
            "depth=0",
            "kv_producer",
        ),
        ("vllm serve m --kv-transfer-config.kv_role kv_consumer", "depth=0", "kv_consumer"),
        ("vllm serve m --grpc", "depth=0", "gRPC"),
        ("vllm serve m --model n", "depth=0", "given twice"),
        (
            'vllm serve m -tp 4 -sc \'{"tensor_parallel_size":1,"method":"mtp","num_speculative_tokens":1}\'',
            "depth=2",
            "draft_tensor",
        ),
        (
            "vllm serve m -tp 4 --spec-method mtp --spec-tokens 1",
            f"flag:{SPEC}.draft_tensor_parallel_size=2",
            "can only be 1",
        ),
        (
            "vllm serve m",
            f"depth=2 spec_method=ngram flag:{SPEC}.prompt_lookup_min=6 flag:{SPEC}.prompt_lookup_max=5",
            "at most",
        ),
        (
            'vllm serve m -sc \'{"method":"mtp","num_speculative_tokens":2,"rejection_sample_method":"synthetic",'
            '"synthetic_acceptance_rates":[0.9,0.5]}\'',
            "depth=3",
            "2 entries",
        ),
        (
            'vllm serve m -sc \'{"method":"mtp","num_speculative_tokens":3,"rejection_sample_method":"synthetic",'
            '"synthetic_acceptance_length":3.24}\'',
            "depth=2",
            "from 1 to depth",
        ),
        (
            "vllm serve m --spec-method mtp --spec-tokens 3",
            f"depth=1 flag:{SPEC}.rejection_sample_method=fly",
            "at least 2",
        ),
        ("vllm serve m --logits-processors a:B", "depth=1 spec_method=mtp", "not supported"),
        (
            "vllm serve m --enable-lora --max-num-batched-tokens 2048 --max-num-seqs 256",
            "depth=8 spec_method=mtp",
            "2304",
        ),
        ("vllm serve m --max-num-batched-tokens 64", "max_running=128", "at least --max-num-seqs"),
    ],
)
def test_refuses_what_vllm_would_refuse_and_says_why(base: str, setting: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        engine.render(command(base), Setting.parse(setting))


def test_both_roles_in_one_server_are_fine() -> None:
    base = 'vllm serve m --kv-transfer-config \'{"kv_connector":"L","kv_role":"kv_both"}\' -dp 8 -dpl 8'
    assert rendered(base, "depth=0") == base


def test_methods_come_and_go_with_releases() -> None:
    with pytest.raises(InputError, match=r"0\.22\.1 has no speculative method dspark"):
        rendered("vllm serve m", "depth=3 spec_method=dspark", "0.22.1")
    with pytest.raises(InputError, match="medusa"):
        rendered("vllm serve m", "depth=3 spec_method=medusa draft_model=d", "0.33.0")
    assert "dspark" in rendered("vllm serve m", "depth=3 spec_method=dspark", "0.33.0")
    assert "brand_new" in rendered("vllm serve m", "depth=3 spec_method=brand_new", "0.33.0")
    assert not without_method(None, "medusa")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("0.33.0", (0, 33, 0)),
        ("0.33.0rc2.dev7+g123456.cu129", (0, 33, 0)),
        ("INFO 11-30 12:00:00 [x.py:1] hello\n0.11.2", (0, 11, 2)),
        ("v0.9", (0, 9, 0)),
        ("", None),
        (None, None),
        ("dev", None),
    ],
)
def test_reads_a_release(text: str | None, meant: tuple[int, int, int] | None) -> None:
    assert release(text) == meant


def test_asks_for_the_version_without_importing_vllm() -> None:
    ask = engine.version_argv(command("nice -n 5 /venv/bin/python -u -m vllm.entrypoints.openai.api_server --model m"))
    assert ask is not None
    assert ask[:5] == ("nice", "-n", "5", "/venv/bin/python", "-c")
    beside = engine.version_argv(command("/venv/bin/vllm serve m", PATH="/venv/bin"))
    assert beside is not None
    assert beside[:4] == ("env", "PATH=/venv/bin", "sh", "-c")
    assert beside[-2:] == ("/venv/bin/vllm", "--version")
    assert engine.version_argv(command("docker run vllm/vllm-openai --model m")) is None


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("vllm serve m -tp 4", "flag:--tensor-parallel-size", 4),
        ("vllm serve m --tensor_parallel_size=4", "flag:-tp", 4),
        ("vllm serve m --enforce-eager", "flag:--enforce-eager", True),
        ("vllm serve m --no-enforce-eager", "flag:--enforce-eager", False),
        ("vllm serve m --disable-prefix-caching", "flag:--enable-prefix-caching", False),
        ("vllm serve m", "flag:--enforce-eager", None),
        ("vllm serve m --lora-modules a=b c=d --port 1", "flag:--lora-modules", "a=b c=d"),
        ("vllm serve m --brand-new", "flag:--brand-new", True),
        ("vllm serve m --brand-new 0.5", "flag:--brand-new", 0.5),
        ("vllm serve m -cc.cudagraph_mode NONE", "flag:--compilation-config.cudagraph_mode", "NONE"),
        ('vllm serve m -cc \'{"pass-config":{"x":7}}\'', "flag:-cc.pass_config.x", 7),
        (f"vllm serve m -sc '{HEAVY}'", f"flag:{SPEC}.enforce_eager", True),
        ("env VLLM_X=1 vllm serve m", "env:VLLM_X", "1"),
        ("vllm serve m --max-num-seqs 3", "max_running", 3),
    ],
)
def test_tells_the_value_of_any_knob(text: str, name: str, value: Value | None) -> None:
    found = engine.value(command(text), name)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("vllm serve m", ("0.0.0.0", 8000)),
        ("vllm serve m --port 1 --port 9000 --host 127.0.0.1", ("127.0.0.1", 9000)),
        ("python -m vllm.entrypoints.openai.api_server --host=::1 --port=81", ("::1", 81)),
    ],
)
def test_address(text: str, address: tuple[str, int]) -> None:
    assert engine.address(command(text)) == address


def test_a_socket_file_is_no_address() -> None:
    with pytest.raises(InputError, match="uds"):
        engine.address(command("vllm serve m --uds /run/v.sock"))


def test_moves_the_port_and_nothing_else() -> None:
    assert (
        shlex.join(engine.move(command("vllm serve m --port 1 -tp 2 --port=2"), 9001).argv)
        == "vllm serve m --port=9001 -tp 2"
    )
    moved = engine.move(configured(), 9001)
    assert moved.argv == ("vllm", "serve", "--config", FILE, "--port", "9001")
    assert moved.files == configured().files


# --- the configuration file


def test_the_command_line_wins_over_the_file() -> None:
    assert str(engine.parse(configured())) == "depth=3 max_running=64 spec_method=mtp"
    over = configured(f"vllm serve --config {FILE} --max-num-seqs 8 -sc.method ngram -sc.num_speculative_tokens 2")
    assert str(engine.parse(over)) == "depth=2 max_running=8 spec_method=ngram"
    assert engine.address(configured()) == ("0.0.0.0", 8100)
    assert engine.files(configured()) == (FILE,)
    assert engine.value(configured(), "flag:--enable-prefix-caching") is True
    assert engine.value(configured(), "flag:--served-model-name") == "chat chat-large"


def test_another_depth_is_a_changed_copy_with_all_comments() -> None:
    got = engine.render(configured(), Setting.of(depth=5))
    (ours,) = got.ours
    assert ours.content == YAML.replace("num_speculative_tokens: 3", "num_speculative_tokens: 5")
    assert got.argv == ("vllm", "serve", "--config", ours.path)
    assert ours.path.startswith(f"{SCRATCH}/")
    assert str(engine.parse(got)) == "depth=5 max_running=64 spec_method=mtp"
    assert engine.render(configured(), Setting.of(depth=5)) == got
    again = engine.render(got, Setting.of(depth=3))
    assert again.ours[0].content == YAML


def test_depth_0_takes_speculation_out_of_the_copy() -> None:
    got = engine.render(configured(), Setting.of(depth=0))
    assert "speculative" not in got.ours[0].content
    assert "# the night shift's setting" in got.ours[0].content
    short = engine.render(configured(f"vllm serve m --config {FILE}", YAML_SHORT), Setting.of(depth=0))
    assert yamlfile.load(short.ours[0]) == {"gpu-memory-utilization": 0.85}


def test_what_can_stand_on_the_command_line_needs_no_copy() -> None:
    got = engine.render(configured(scratch=""), Setting.of(max_running=8, memory_fraction=0.8))
    assert got.files == configured().files
    assert got.argv[4:] == ("--gpu-memory-utilization", "0.8", "--max-num-seqs", "8")


def test_without_a_folder_a_copy_is_refused() -> None:
    with pytest.raises(InputError, match=r"serve\.yaml.*no folder"):
        engine.render(configured(scratch=""), Setting.of(depth=5))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("model: m\nmax-num-seqs: [1,\n", r"serve\.yaml, line \d: "),
        ("speculative-config: {method: mtp, num_speculative_tokens: 0}\n", "at least 1"),
        ("speculative-config: '{nonsense'\n", "no JSON"),
    ],
)
def test_a_file_that_vllm_could_not_use(content: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        engine.parse(configured(content=content))


def test_json_in_the_file_and_keys_with_points() -> None:
    text = 'speculative-config: \'{"method": "mtp", "num_speculative_tokens": 2}\'\n'
    assert str(engine.parse(configured(content=text))) == "depth=2 spec_method=mtp"
    points = "speculative_config.method: ngram\nspeculative_config.num_speculative_tokens: 2\n"
    assert str(engine.parse(configured(content=points))) == "depth=2 spec_method=ngram"
    for content in (text, points):
        deeper = engine.render(configured(content=content), Setting.of(depth=6))
        assert engine.parse(deeper).depth == 6


# --- shells


def test_a_script_that_decides_by_a_variable() -> None:
    """A compose file's `bash -c` that makes the configuration from a variable: its value is seen through it."""
    script = 'd=${DEPTH:-3}; exec vllm serve org/m -sc "{\\"method\\":\\"mtp\\",\\"num_speculative_tokens\\":$d}"'
    base = LaunchSpec(argv=("bash", "-c", script), env=(("DEPTH", "5"),))
    assert engine.parse(base).depth == 5
    assert engine.parse(engine.render(base, Setting.of(depth=2))).depth == 2


def test_a_script_that_decides_by_a_variable_whether_to_speculate() -> None:
    """The shape of noonghunna/club-3090's mtp.yml: the depth is a variable, and is changed there."""
    script = (
        'd=${DEPTH:-3}; args=(); if [ $d -gt 0 ]; then args=(--speculative-config "{\\"method\\":\\"mtp\\",'
        '\\"num_speculative_tokens\\":$d}"); fi; exec vllm serve "$@" "${args[@]}"'
    )
    base = LaunchSpec(argv=("bash", "-c", script, "--", "org/m"), env=(("DEPTH", "4"),))
    assert str(engine.parse(base)) == "depth=4 spec_method=mtp"
    got = engine.render(base, Setting.of(depth=2))
    assert (got.argv, got.env) == (base.argv, (("DEPTH", "2"),))


def test_a_value_that_only_the_shell_knows_is_refused_by_name() -> None:
    base = LaunchSpec(argv=("bash", "-c", "exec vllm serve m --max-num-seqs $(nproc) --api-key $(cat key)"))
    with pytest.raises(InputError, match="nproc"):
        engine.parse(base)


def test_a_secret_is_in_no_refusal() -> None:
    for text in ("vllm serve m --api-key=wW7-secret --max-num-seqs x", "vllm bench --api-key wW7-secret"):
        with pytest.raises(InputError) as refused:
            engine.parse(command(text))
        assert "wW7" not in str(refused.value)


# --- the laws


def test_every_spelling_belongs_to_one_option() -> None:
    for spelling, option in OPTIONS.items():
        assert spelling in option.spellings
        assert all(OPTIONS[other] is option for other in option.spellings)
    assert OPTIONS["-sc"].name == SPEC
    assert OPTIONS["--no-enforce-eager"].name == "--enforce-eager"


@pytest.mark.parametrize(
    ("setting", "meant"),
    [
        ("depth=0 spec_method=mtp draft_model=d max_running=4", "depth=0 max_running=4"),
        (f"depth=0 flag:{SPEC}.quantization=fp8 flag:-sc.revision=x flag:--seed=2", "depth=0 flag:--seed=2"),
        ("depth=4 spec_method=ngram draft_model=d", "depth=4 spec_method=ngram"),
        ("depth=4 spec_method=longcat_flash_mtp draft_model=d", "depth=4 draft_model=d spec_method=mtp"),
        ("depth=4.0 max_running=2.0 memory_fraction=1", "depth=4 max_running=2 memory_fraction=1.0"),
    ],
)
def test_canonical_drops_what_has_no_meaning(setting: str, meant: str) -> None:
    assert str(canonical(Setting.parse(setting))) == meant


METHODS = st.sampled_from(
    [
        {},
        {"spec_method": "mtp"},
        {"spec_method": "ernie_mtp"},
        {"spec_method": "ngram"},
        {"spec_method": "suffix"},
        {"spec_method": "eagle3", "draft_model": "org/head"},
        {"draft_model": "/models/a b"},
    ]
)
OTHERS = st.fixed_dictionaries(
    {},
    optional={
        "depth": st.integers(0, 12),
        "max_running": st.integers(1, 512),
        "graph_max_batch": st.sampled_from([1, 2, 5, 16, 32, 64, 256]),
        "memory_fraction": st.sampled_from([0.5, 0.9, 0.923, 1, 1e-05]),
        "kv_dtype": st.sampled_from(["auto", "fp8"]),
        "flag:--max-model-len": st.sampled_from([-1, 4096, "32k"]),
        "flag:--enforce-eager": st.booleans(),
        "flag:--no-enable-chunked-prefill": st.booleans(),
        "flag:--attention-config.backend": st.sampled_from(["FLASHINFER", "3", "true", ""]),
        f"flag:{SPEC}.draft_sample_method": st.sampled_from(["greedy", "probabilistic"]),
        f"flag:{SPEC}.disable-padded-drafter-batch": st.booleans(),
        f"flag:{SPEC}.suffix_decoding_min_token_prob": st.sampled_from([0.1, 1, 1e-05]),
        "env:VLLM_ATTENTION_BACKEND": st.sampled_from(["TRITON", "a b"]),
    },
)
VERSIONS = st.sampled_from([None, "0.11.0", "0.16.0", "0.22.1", "0.33.0"])


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(BASES), METHODS, OTHERS, VERSIONS)
def test_reads_what_it_wrote(
    base: LaunchSpec, method: dict[str, Value], others: dict[str, Value], version: str | None
) -> None:
    one = VLLM(version)
    setting = Setting.of({**method, **others})
    try:
        launch = one.render(base, setting)
    except InputError:
        return
    meant = canonical(one.parse(base).merged(setting))
    assert one.parse(launch) == meant.only(KNOBS)
    for name, value in meant:
        got = one.value(launch, name)
        assert got == value or (value is False and got is None), name
    assert one.render(launch, setting) == launch
    assert all(f.path.startswith(SCRATCH) or f in base.files for f in launch.files)


def test_most_of_those_settings_are_not_refused() -> None:
    for base in BASES:
        for setting in SETTINGS:
            engine.render(base, setting)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                "--seed",
                "-tp",
                "2",
                "--enforce-eager",
                "m",
                "--x.y",
                "-O3",
                "--lora-modules",
                "a=b",
                "-1",
                "--port=1",
                "-",
            ]
        )
    )
)
def test_any_words_are_read_without_loss(words: list[str]) -> None:
    base = LaunchSpec(argv=("vllm", "serve", *words))
    try:
        launch = engine.render(base, Setting())
    except InputError:
        return
    assert sorted(launch.argv) == sorted(base.argv)


def test_a_file_of_ours_is_replaced_and_not_piled_up() -> None:
    launch = configured()
    for depth in (1, 2, 3, 4):
        launch = engine.render(launch, Setting.of(depth=depth))
        assert [type(f) for f in launch.files] == [LaunchFile]
