"""SGLang's command line: every way to start it, its options by version, settings there and back, what it refuses."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leadline.engines.sglang import SGLang, canonical, engine
from leadline.engines.sglang.methods import METHODS, most_draft_tokens
from leadline.engines.sglang.options import options, windows
from leadline.engines.sglang.programs import starts
from leadline.engines.sglang.rules import RULES
from leadline.engines.sglang.versions import OLDEST, SUCCESSORS, patch_of
from leadline.errors import InputError
from leadline.launch import LaunchFile, LaunchSpec
from leadline.space import Setting, Value

MODULE = "python3 -m sglang.launch_server --model-path /models/qwen3-8b"
EAGLE = "--speculative-algorithm EAGLE3 --speculative-draft-model-path /models/qwen3-8b-eagle3"
CHAIN = f"{EAGLE} --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
TREE = f"{EAGLE} --speculative-num-steps 5 --speculative-eagle-topk 4 --speculative-num-draft-tokens 8"
REAL = (
    "python3 -m sglang.launch_server --port 30000 --model-path /models/qwen3-30b-a3b --load-format dummy "
    "--sampling-backend pytorch --grammar-backend none --attention-backend triton --disable-custom-all-reduce "
    "--disable-prefill-cuda-graph --enable-metrics --speculative-algorithm EAGLE3 "
    "--speculative-draft-model-path /models/qwen3-30b-a3b-eagle3 --speculative-num-steps 3 --speculative-eagle-topk 1 "
    "--speculative-num-draft-tokens 4 --mem-fraction-static 0.75 --max-running-requests 128 --cuda-graph-max-bs 64 "
    "--disable-radix-cache"
)
"""A launch of SGLang 0.5.16 on one H200, whose /server_info said 3 steps, topk 1, 4 draft tokens."""


def launch(text: str, files: dict[str, str] | None = None, scratch: str = "", **env: str) -> LaunchSpec:
    read = tuple(LaunchFile(path, content) for path, content in (files or {}).items())
    return LaunchSpec(argv=tuple(shlex.split(text)), env=tuple(env.items()), files=read, scratch=scratch)


def at(version: str | None = "0.5.16") -> SGLang:
    return engine.at(version)


def rendered(base: str, version: str | None = "0.5.16", /, **values: Value) -> str:
    return " ".join(at(version).render(launch(base), Setting.of(values)).argv)


def refused(text: str, version: str | None = "0.5.16", /, **values: Value) -> str:
    with pytest.raises(InputError) as raised:
        at(version).render(launch(text), Setting.of(values))
    return str(raised.value)


# --- reading ---


def test_the_launch_line_of_a_real_server() -> None:
    assert at().parse(launch(REAL)) == Setting.of(
        depth=3,
        topk=1,
        draft_tokens=4,
        spec_method="EAGLE3",
        draft_model="/models/qwen3-30b-a3b-eagle3",
        memory_fraction=0.75,
        max_running=128,
        graph_max_batch=64,
    )
    assert at().address(launch(REAL)) == ("127.0.0.1", 30000)
    assert at().model(launch(REAL)) == "/models/qwen3-30b-a3b"


@pytest.mark.parametrize(
    "program",
    [
        "python -m sglang.launch_server",
        "/opt/venv/bin/python3.12 -m sglang.launch_server",
        "python3 -u -X faulthandler -W ignore -m sglang.launch_server",
        "python3 -msglang.launch_server",
        "python3 /opt/venv/lib/python3.12/site-packages/sglang/launch_server.py",
        "sglang serve",
        "/opt/venv/bin/sglang serve",
        "python3 /opt/venv/bin/sglang serve",
        "env CUDA_VISIBLE_DEVICES=0 numactl -N 0 python3 -m sglang.launch_server",
        "conda run -n sglang python -m sglang.launch_server",
        "nice -n 5 sglang serve",
        "docker run --rm --gpus all lmsysorg/sglang:v0.5.16 python3 -m sglang.launch_server",
    ],
)
def test_every_way_to_start_it(program: str) -> None:
    base = launch(f"{program} --model-path /m {CHAIN} --max-running-requests 8")
    deeper = at().render(base, Setting.of(depth=5))
    assert any(starts(base.argv, i) for i in range(len(base.argv)))
    assert at().parse(base).depth == 3
    assert at().parse(deeper).depth == 5
    assert " ".join(deeper.argv).startswith(program + " --model-path /m ")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("bash /opt/run.sh --port 1", "a shell starts"),
        ("docker ps", "no SGLang"),
        ("python3 -m vllm.entrypoints.openai.api_server --model /m", "vllm.entrypoints.openai.api_server"),
        ("nice -n 5 llama-server -m x", "no SGLang"),
    ],
)
def test_what_does_not_show_its_options_is_refused(command: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        at().parse(launch(command))


@pytest.mark.parametrize(
    ("words", "knob", "value"),
    [
        ("--mem-fraction-static=0.8", "memory_fraction", 0.8),
        ("--mem-frac 0.8", "memory_fraction", 0.8),
        ("--mem-fraction-static 0.8 --mem-fraction-static 0.7", "memory_fraction", 0.7),
        ("--max-running 12", "max_running", 12),
        ("--kv-cache-dtype fp8_e4m3", "kv_dtype", "fp8_e4m3"),
        ("--cuda-graph-max-bs-decode 96", "graph_max_batch", 96),
        ("--cuda-graph-max-bs 96 --cuda-graph-max-bs-decode 64", "graph_max_batch", 64),
        ("--chunked-prefill-size -1 --max-running-requests 9", "max_running", 9),
        ("--bucket-e2e-request-latency 1 2 3 --max-running-requests 9", "max_running", 9),
        ("--served-model-name --max-running-requests 9", "max_running", None),
    ],
)
def test_options_as_argparse_reads_them(words: str, knob: str, value: Value | None) -> None:
    assert at().value(launch(f"{MODULE} {words}"), knob) == value


@pytest.mark.parametrize("short", ["--speculative-algo", "--speculative-algorithm"])
@pytest.mark.parametrize("draft", ["--speculative-draft-model", "--speculative-draft-model-path"])
def test_short_and_second_names_of_speculation(short: str, draft: str) -> None:
    line = f"{MODULE} {short}=EAGLE3 {draft}=/d --speculative-num-s 2"
    assert at().parse(launch(line)) == canonical(
        Setting.of(depth=2, spec_method="EAGLE3", draft_model="/d", max_running=48)
    )
    assert "--speculative" not in rendered(line, depth=0)


def test_underscores_are_no_dashes_to_argparse() -> None:
    assert "write --mem-fraction-static" in refused(f"{MODULE} --mem_fraction_static 0.8", depth=0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (EAGLE, "model's architecture"),
        (f"{EAGLE} --speculative-eagle-topk 1", "does not start"),
        ("--speculative-algorithm MEDUSA", "is one of EAGLE, EAGLE3"),
        ("--speculative-algorithm DFLASH --speculative-draft-model-path /d", "draft model's own"),
        (f"{CHAIN} --speculative-adaptive", "changes the depth"),
        (f"{EAGLE} --speculative-num-steps x", "no whole number"),
        ("--mem-fraction-static much", "no number"),
        ("--speculative-draft", "could mean"),
        ("--max-running-requests", "has no value"),
    ],
)
def test_what_cannot_be_told_from_the_words_is_said(words: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        at().parse(launch(f"{MODULE} {words}"))


@pytest.mark.parametrize(
    ("words", "depth", "version"),
    [
        ("--speculative-algorithm NGRAM", 11, "0.5.16"),
        ("--speculative-algorithm NGRAM --speculative-num-draft-tokens 9", 8, "0.5.16"),
        (
            "--speculative-algorithm dflash --speculative-draft-model-path /d --speculative-num-draft-tokens 16",
            15,
            None,
        ),
        ("--speculative-algorithm DFLASH --speculative-draft-model-path /d --speculative-dflash-block-size 8", 7, None),
        ("--speculative-algorithm DSPARK --speculative-dspark-block-size 7", 7, "0.5.16"),
        ("--speculative-algorithm DSPARK --speculative-num-draft-tokens 8", 7, "0.5.23"),
        ("--speculative-algorithm UNO --uno-lora-path /l --speculative-num-draft-tokens 5", 4, "0.5.23"),
        ("--speculative-algorithm NEXTN --speculative-num-steps 2", 2, "0.5.9"),
        (f"{EAGLE} --speculative-num-steps 0", 0, "0.5.16"),
    ],
)
def test_the_depth_of_each_method(words: str, depth: int, version: str | None) -> None:
    base = launch(f"{MODULE} {words}")
    assert at(version).parse(base).depth == depth
    if depth:
        again = at(version).render(base, Setting.of(depth=depth))
        assert at(version).parse(again) == at(version).parse(base)
        assert at(version).parse(at(version).render(base, Setting.of(depth=3))).depth == 3
    assert not any("-steps" in w for w in again.argv if "STEPS" in words) if depth else True


def test_words_that_only_a_shell_knows_stay_and_are_not_read() -> None:
    script = f'exec {MODULE} {CHAIN} --max-running-requests 8 --port "$(cat port)"'
    base = LaunchSpec(argv=("bash", "-c", script))
    deeper = at().render(base, Setting.of(depth=5))
    assert at().parse(deeper).depth == 5
    assert '--port "$(cat port)"' in deeper.argv[2]
    with pytest.raises(InputError, match="cannot be known"):
        at().address(base)


def test_the_model_may_be_the_first_word_of_sglang_serve() -> None:
    base = launch("sglang serve Qwen/Qwen3-8B --port 8000")
    assert at().model(base) == "Qwen/Qwen3-8B"
    assert at().address(base) == ("127.0.0.1", 8000)
    assert at().render(base, Setting.of(depth=0)).argv[:3] == ("sglang", "serve", "Qwen/Qwen3-8B")
    assert at().model(launch("sglang serve --model Qwen/Qwen3-8B")) == "Qwen/Qwen3-8B"
    assert at().model(launch("python3 -m sglang.launch_server stray")) is None


# --- the version ---


@pytest.mark.parametrize(
    ("text", "patch"),
    [
        ("0.5.16", 16),
        ("v0.5.13.post1", 13),
        ("0.5.17.dev3+g1a2b", 17),
        ("0.5.99", 23),
        ("0.6", 23),
        ("1.0.0", 23),
        ("0.4.6", 9),
        (None, None),
        ("main", None),
    ],
)
def test_versions_are_read(text: str | None, patch: int | None) -> None:
    assert patch_of(text) == patch


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (MODULE, "env PYTHONPATH=/site python3 -c"),
        ("env A=1 /o/bin/python3.12 -u -m sglang.launch_server", "env PYTHONPATH=/site env A=1 /o/bin/python3.12 -c"),
        ("conda run -n s python -m sglang.launch_server", "env PYTHONPATH=/site conda run -n s python -c"),
        ("uv run sglang serve", None),
        ("/o/bin/sglang serve", "env PYTHONPATH=/site sh -c"),
        ("nsys profile python3 -m sglang.launch_server", None),
        ("bash -c 'sglang serve --port 1'", None),
        ("docker run x sglang serve", None),
        ("/opt/our-own-server --port 1", None),
        ("", None),
    ],
)
def test_the_version_is_asked_of_the_interpreter_that_starts_it(command: str, expected: str | None) -> None:
    asked = engine.version_argv(launch(command, PYTHONPATH="/site", HF_TOKEN="hf_secret"))
    assert (asked is None) == (expected is None)
    assert asked is None or " ".join(asked).startswith(expected or "")
    assert asked is None or not any("secret" in word for word in asked)


def test_the_version_is_asked_where_the_launch_would_start() -> None:
    assert (engine.version_argv(launch(MODULE)) or ())[:2] == ("python3", "-c")
    base = msgspec.structs.replace(launch(".venv/bin/python -m sglang.launch_server"), cwd="/srv/llm")
    assert (engine.version_argv(base) or ())[:4] == ("env", "-C", "/srv/llm", ".venv/bin/python")


@pytest.mark.parametrize("start", ["{0}/bin/python3 -m sglang.launch_server", "{0}/bin/sglang serve"])
def test_the_command_that_asks_prints_the_version(start: str, tmp_path: Path) -> None:
    """As it is when SGLang lies unpacked in a folder on PYTHONPATH, beside nothing but its metadata."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(sys.executable)
    (tmp_path / "bin" / "sglang").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "bin" / "sglang").chmod(0o755)
    meta = tmp_path / "site" / "sglang-0.5.16.dist-info"
    meta.mkdir(parents=True)
    (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.16\n")
    base = launch(start.format(tmp_path) + " --model-path /m", PYTHONPATH=str(tmp_path / "site"))
    asked = engine.version_argv(base)
    assert asked is not None
    done = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "0.5.16\n"


def test_a_flag_that_was_removed_names_its_successor() -> None:
    assert "write --cuda-graph-max-bs-decode" in refused(f"{MODULE} --cuda-graph-max-bs 64", "0.5.20", depth=0)
    assert "write --speculative-ngram-max-trie-depth" in refused(
        f"{MODULE} --speculative-algorithm NGRAM --speculative-ngram-branch-length 18", "0.5.10", depth=3
    )
    assert "leave it out" in refused(f"{MODULE} --torchao-config int4wo", "0.5.18", depth=0)
    later = {"flag:--speculative-draft-kv-cache-dtype": "bf16"}
    assert "came with 0.5.18" in refused(f"{MODULE} {CHAIN}", "0.5.17", **later)
    assert "kv-cache-dtype bf16" in rendered(f"{MODULE} {CHAIN}", "0.5.18", **later)
    for flag, successor in SUCCESSORS.items():
        until = windows()[flag][1]
        assert until is not None
        assert flag in options(until - 1)
        assert flag not in options(until)
        assert successor.split()[0].strip(",") in options(None)


@pytest.mark.parametrize(
    ("version", "flag"),
    [
        ("0.5.9", "--cuda-graph-max-bs"),
        ("0.5.13", "--cuda-graph-max-bs"),
        ("0.5.14", "--cuda-graph-max-bs-decode"),
        ("0.5.20", "--cuda-graph-max-bs-decode"),
        ("0.5.23", "--cuda-graph-max-bs-decode"),
    ],
)
def test_the_graph_batch_is_spelled_as_the_version_has_it(version: str, flag: str) -> None:
    assert rendered(MODULE, version, depth=0, graph_max_batch=32).split()[-3:-1] == [flag, "32"]
    assert {k.name: k.flag for k in at(version).knobs()}["graph_max_batch"] == flag


def test_without_a_version_the_graph_batch_keeps_the_spelling_of_the_base() -> None:
    assert "engine_version" in refused(MODULE, None, depth=0, graph_max_batch=32)
    assert "--cuda-graph-max-bs 32" in rendered(f"{MODULE} --cuda-graph-max-bs 64", None, graph_max_batch=32)
    assert "--cuda-graph-max-bs-decode 32" in rendered(
        f"{MODULE} --cuda-graph-max-bs-decode 9", None, graph_max_batch=32
    )
    assert "--cuda-graph-max-bs 32" in rendered(f"{MODULE} --cuda-graph-max-bs 64", "0.5.16", graph_max_batch=32)


@pytest.mark.parametrize(
    ("method", "version"), [("DFLASH", "0.5.10"), ("DSPARK", "0.5.15"), ("UNO", "0.5.19"), ("MEDUSA", "0.5.23")]
)
def test_a_method_that_the_version_does_not_have(method: str, version: str) -> None:
    said = refused(MODULE, version, depth=3, spec_method=method, draft_model="/d", max_running=8)
    assert f"spec_method of SGLang {version} is one of EAGLE" in said


@pytest.mark.parametrize(("version", "fits"), [("0.5.15", False), ("0.5.16", True), ("0.5.23", True)])
def test_types_of_the_cache_by_version(version: str, fits: bool) -> None:
    if fits:
        assert "--kv-cache-dtype mxfp8" in rendered(MODULE, version, kv_dtype="mxfp8")
    else:
        assert "--kv-cache-dtype is one of" in refused(MODULE, version, kv_dtype="mxfp8")


def test_the_table_of_options_is_that_of_each_release() -> None:
    """Counted from the releases' own parsers."""
    counts = {9: 341, 16: 473, 20: 507, 23: 547}
    for patch, count in counts.items():
        names = {s for s in options(patch) if not s.startswith("--no-")} - {"--help", "-h", "--model-type"}
        assert len(names) == count, patch
    assert options(16)["--tp-size"].values == options(16)["--speculative-num-steps"].values == 1
    assert options(16)["--enable-metrics"].values == 0
    assert options(OLDEST)["--speculative-ngram-branch-length"].values == 1


# --- there and back ---

BASES = (
    REAL,
    f"{MODULE} --max-running-requests 64",
    f"{MODULE} {CHAIN}",
    f"sglang serve Qwen/Qwen3-8B {TREE} --cuda-graph-max-bs-decode=64 --kv-cache-dtype auto",
    f"nice -n 5 {MODULE} --speculative-algo NEXTN --speculative-num-steps 1 --speculative-num-steps 2 --mem-frac 0.7",
    f"{MODULE} --speculative-algorithm NGRAM --speculative-ngram-max-bfs-breadth 1 --max-running=16",
    f"{MODULE} --speculative-algorithm DFLASH --speculative-draft-model /d --speculative-dflash-block-size 16",
    "sglang serve --config /etc/sglang.yaml --max-running-requests 24",
)
FILES = {"/etc/sglang.yaml": "model-path: /m\nspeculative-algorithm: EAGLE\nspeculative-num-steps: 3\nport: 8000\n"}
OTHERS: dict[str, st.SearchStrategy[Value]] = {
    "memory_fraction": st.integers(1, 99).map(lambda n: n / 100),
    "max_running": st.integers(1, 512),
    "graph_max_batch": st.integers(1, 512),
    "kv_dtype": st.sampled_from(["auto", "bf16", "fp8_e4m3"]),
    "flag:--page-size": st.just(1),
    "flag:--chunked-prefill-size": st.integers(512, 9000),
    "flag:--disable-radix-cache": st.booleans(),
    "env:SGLANG_SIMULATE_ACC_LEN": st.sampled_from(["2.5", "3"]),
}


@st.composite
def settings_of_any_method(draw: st.DrawFn) -> Setting:
    values: dict[str, Value] = {n: draw(s) for n, s in OTHERS.items() if draw(st.booleans())}
    depth = values["depth"] = draw(st.integers(0, 9))
    method = draw(st.sampled_from([m for m in METHODS if m != "UNO"]))
    if draw(st.booleans()):
        values |= {"spec_method": draw(st.sampled_from(["NEXTN", "eagle"])) if method == "EAGLE" else method}
        values["draft_model"] = draw(st.sampled_from(["/d", "org/name"]))
        if METHODS[method].steps:
            topk = values["topk"] = draw(st.integers(1, 6))
            values["draft_tokens"] = draw(st.integers(2, max(2, most_draft_tokens(max(1, depth), topk))))
    elif draw(st.booleans()):
        values["flag:--speculative-attention-mode"] = draw(st.sampled_from(["prefill", "decode"]))
    if draw(st.booleans()):
        values["depth"] = float(depth)
    return Setting.of(values)


@settings(max_examples=400, deadline=None)
@given(base=st.sampled_from(BASES), setting=settings_of_any_method(), version=st.sampled_from(["0.5.16", "0.5.19"]))
def test_what_was_written_is_what_was_meant(base: str, setting: Setting, version: str) -> None:
    dialect, start = at(version), launch(base, FILES, scratch="/run/ours")
    if setting.depth and "spec_method" not in setting and dialect.parse(start).depth == 0:
        setting = setting.merged(Setting.of(spec_method="NGRAM"))
    meant = canonical(dialect.parse(start).merged(setting))
    out = dialect.render(start, setting)
    names = {k.name for k in dialect.knobs()}
    assert dialect.parse(out) == meant.only(names)
    assert all(dialect.value(out, n) == v or (v is False and dialect.value(out, n) is None) for n, v in meant)
    assert dialect.render(out, setting) == out
    assert dialect.model(out) == dialect.model(start)
    text = "\n".join(out.argv)
    assert "--enable-metrics" in text
    assert "max_running" not in meant or "--max-running" in text
    if meant.depth == 0:
        assert not any(w.startswith("--speculative") for w in out.argv)


def test_todays_setting_has_todays_words() -> None:
    for base in (REAL, f"{MODULE} {TREE} --max-running-requests 8 --enable-metrics"):
        assert rendered(base) == base
        assert rendered(base, **dict(at().parse(launch(base)))) == base
    kept = "--speculative-algo=nextn --speculative-num-steps 2 --speculative-eagle-topk 1"
    assert kept in rendered(f"{MODULE} {kept} --speculative-num-draft-tokens 3", spec_method="EAGLE")


def test_flags_of_depth_go_together() -> None:
    assert f"{EAGLE} --speculative-num-steps 7 --speculative-eagle-topk 1 --speculative-num-draft-tokens 8" in rendered(
        f"{MODULE} {CHAIN}", depth=7
    )
    repaired = rendered(f"{MODULE} {EAGLE} --speculative-num-steps 3")
    assert "--speculative-eagle-topk 1 --speculative-num-draft-tokens 4" in repaired
    started = rendered(MODULE, depth=5, spec_method="EAGLE", topk=4, max_running=8)
    assert "--speculative-num-steps 5 --speculative-eagle-topk 4 --speculative-num-draft-tokens 8" in started
    assert "--speculative-num-draft-tokens 5" in rendered(f"{MODULE} {TREE}", depth=1)
    assert "--speculative-num-draft-tokens 6" in rendered(f"{MODULE} {TREE}", topk=1, draft_tokens=8)
    assert "the tree has 5 tokens" in refused(f"{MODULE} {TREE}", depth=1, draft_tokens=6)
    assert "how many draft_tokens" in refused(f"{MODULE} {CHAIN}", topk=4)
    assert "--speculative-num-draft-tokens 8" in rendered(f"{MODULE} {CHAIN}", topk=4, draft_tokens=8)


def test_a_flag_given_twice_is_left_once() -> None:
    for flag, value, last in (("--max-running-requests", "8", "9"), ("--speculative-num-steps", "2", "3")):
        out = rendered(f"{MODULE} {flag} {value} --enable-metrics {CHAIN} --max-running {last} {flag} {last}")
        assert out.split().count(flag) == 1
        assert f"{flag} {last}" in out
    both = rendered(f"{MODULE} --cuda-graph-max-bs 96 --port 1 --cuda-graph-max-bs-decode 64", graph_max_batch=32)
    assert both == f"{MODULE} --cuda-graph-max-bs-decode 32 --port 1 --enable-metrics"


def test_a_list_of_graph_sizes_wins_over_the_largest() -> None:
    listed = f"{MODULE} --cuda-graph-max-bs 8 --cuda-graph-bs 1 2 4"
    assert "remove --cuda-graph-bs-decode or --cuda-graph-bs" in refused(listed, graph_max_batch=4)
    assert "--cuda-graph-bs 1 2 4" in rendered(listed, depth=0, graph_max_batch=8)


def test_a_block_method_gets_no_steps_and_its_own_flag() -> None:
    ngram = rendered(f"{MODULE} {CHAIN}", depth=4, spec_method="NGRAM")
    assert ngram.endswith("--speculative-num-draft-tokens 5 --max-running-requests 48 --enable-metrics")
    assert not any(word in ngram for word in ("num-steps", "topk", "draft-model"))
    dspark = rendered(MODULE, depth=4, spec_method="DSPARK", max_running=8)
    assert "--speculative-dspark-block-size 4" in dspark
    assert "num-draft-tokens" not in dspark
    block = "--speculative-algorithm DFLASH --speculative-draft-model-path /d --speculative-dflash-block-size"
    assert f"{block} 5" in rendered(f"{MODULE} {block} 16", depth=4)
    both = f"{MODULE} {block} 16 --speculative-num-draft-tokens 16"
    assert f"{block} 5 --speculative-num-draft-tokens 5" in rendered(both, depth=4)
    back = rendered(f"{MODULE} {block} 16", depth=4, spec_method="EAGLE3", draft_model="/e")
    assert "dflash" not in back.lower()
    assert "--speculative-num-steps 4" in back


def test_the_revision_of_another_draft_model_goes() -> None:
    base = f"{MODULE} {CHAIN} --speculative-draft-model-revision v2"
    assert "v2" in rendered(base, depth=1)
    assert "v2" not in rendered(base, draft_model="/other")


def test_a_method_must_be_known_and_have_its_draft_model() -> None:
    assert "set spec_method" in refused(MODULE, depth=3, max_running=8)
    for method in ("STANDALONE", "DFLASH"):
        assert "set draft_model" in refused(MODULE, depth=3, spec_method=method, max_running=8)
    assert "--speculative-algorithm EAGLE " in rendered(MODULE, depth=3, spec_method="NEXTN", max_running=8)


# --- what must be the same in every arm ---


@pytest.mark.parametrize("depth", [0, 1, 5])
def test_the_silent_cap_is_written_down_in_every_arm(depth: int) -> None:
    assert at().parse(launch(f"{MODULE} {CHAIN}"))["max_running"] == 48
    assert "--max-running-requests 48" in rendered(f"{MODULE} {CHAIN}", depth=depth)
    assert "--max-running-requests 96" in rendered(f"{MODULE} {CHAIN}", depth=depth, max_running=96)


def test_no_arm_gets_the_silent_cap_alone() -> None:
    said = refused(MODULE, depth=3, spec_method="EAGLE")
    assert "cap running requests at 48" in said
    assert "[keep]" in said
    assert "--max-running" not in rendered(MODULE, depth=0)
    uno: dict[str, Value] = {"depth": 3, "spec_method": "UNO", "flag:--uno-lora-path": "/l"}
    assert "--max-running" not in rendered(MODULE, "0.5.23", **uno)


@pytest.mark.parametrize(
    ("words", "version", "expected"),
    [
        ("", "0.5.9", ("max_running", "memory_fraction")),
        ("", "0.5.16", ("max_running",)),
        (CHAIN, "0.5.22", ("max_running", "graph_max_batch")),
        ("--cuda-graph-max-bs-decode 8", "0.5.22", ("max_running",)),
        ("--max-running-requests 8", "0.5.23", ()),
        ("--max-running-requests 8", "0.5.13", ("memory_fraction",)),
        ("--max-running-requests 8 --mem-fraction-static 0.8", "0.5.9", ()),
        ("", None, ("max_running", "memory_fraction", "graph_max_batch")),
    ],
)
def test_what_is_not_pinned(words: str, version: str | None, expected: tuple[str, ...]) -> None:
    assert at(version).unpinned(launch(f"{MODULE} {words}")) == expected


def test_metrics_are_asked_for_once() -> None:
    assert rendered(MODULE, depth=0) == f"{MODULE} --enable-metrics"
    assert rendered(f"{MODULE} --enable-metrics", depth=0) == f"{MODULE} --enable-metrics"


# --- the configuration file ---


def yaml(text: str, words: str = "", scratch: str = "") -> LaunchSpec:
    return launch(f"sglang serve --config /etc/s.yaml {words}", {"/etc/s.yaml": text}, scratch)


SPEC_FILE = "model-path: /m  # ours\nspeculative-algorithm: EAGLE\nspeculative-num-steps: 3\nenable-metrics: true\n"


def test_the_command_line_wins_over_the_file() -> None:
    base = yaml(SPEC_FILE + "mem-fraction-static: 0.80\nmax-running-requests: 8\n", "--max-running-requests 16")
    assert at().files(base) == ("/etc/s.yaml",)
    assert at().model(base) == "/m"
    now = at().parse(base)
    assert (now.depth, now["memory_fraction"], now["max_running"]) == (3, 0.8, 16)
    deeper = at().render(base, Setting.of(depth=5, memory_fraction=0.7))
    assert deeper.argv[:4] == base.argv[:4]
    assert "--enable-metrics" not in deeper.argv
    assert at().parse(deeper) == canonical(now.merged(Setting.of(depth=5, memory_fraction=0.7)))
    assert deeper.files == base.files


def test_speculation_in_the_file_is_taken_away_in_a_copy_or_not_at_all() -> None:
    with pytest.raises(InputError, match=r"/etc/s\.yaml sets speculative-algorithm, speculative-num-steps"):
        at().render(yaml(SPEC_FILE), Setting.of(depth=0))
    base = yaml(SPEC_FILE, scratch="/run/ours")
    off = at().render(base, Setting.of(depth=0))
    (copy,) = off.ours
    assert copy.content == "model-path: /m  # ours\nenable-metrics: true\n"
    assert off.argv == ("sglang", "serve", "--config", copy.path, "--max-running-requests", "48")
    assert base.files[0] in off.files
    assert at().render(off, Setting.of(depth=0)) == off
    assert at().parse(off) == Setting.of(depth=0, max_running=48)


@pytest.mark.parametrize(
    ("base", "said"),
    [
        (launch("sglang serve --config /etc/s.yaml"), "could not be read"),
        (launch("sglang serve --config=/etc/s.yaml", {"/etc/s.yaml": "port: 1\n"}), "two words"),
        (launch("sglang serve --conf /etc/s.yaml", {"/etc/s.yaml": "port: 1\n"}), "two words"),
        (launch("sglang serve --config a --config b"), "several"),
        (yaml("mem_fraction_static: 0.8\n"), "/etc/s.yaml: SGLang does not know --mem_fraction_static"),
        (yaml("- port\n"), "must hold options"),
        (yaml("port: [\n"), "no YAML"),
    ],
)
def test_a_file_that_sglang_would_not_read(base: LaunchSpec, said: str) -> None:
    with pytest.raises(InputError, match=said):
        at().parse(base)


def test_values_of_the_file_are_words_of_the_command_line() -> None:
    base = yaml("enable-lora: false\nlora-paths: [a=/a, b=/b]\njson-model-override-args: {a: 1}\nport: 8000\n")
    assert at().value(base, "flag:--enable-lora") is None
    assert at().value(base, "flag:--lora-paths") == "a=/a b=/b"
    assert at().value(base, "flag:--json-model-override-args") == '{"a": 1}'
    assert at().address(base)[1] == 8000
    assert at().address(at().move(base, 9000))[1] == 9000


# --- what SGLang would refuse ---

NGRAM: dict[str, Value] = {"depth": 3, "spec_method": "NGRAM"}
FLAGS: dict[str, tuple[str, str, dict[str, Value], str]] = {
    "several nodes": ("--nnodes 2", "--nnodes 1", {"depth": 0}, "0.5.16"),
    "prefill and decode apart": ("--disaggregation-mode decode", "--disaggregation-mode null", {"depth": 0}, "0.5.16"),
    "drafter apart": ("--decoupled-spec-role verifier", "--decoupled-spec-role null", {"depth": 0}, "0.5.16"),
    "trtllm_mha is a chain": (
        "--decode-attention-backend trtllm_mha",
        "--decode-attention-backend fa3",
        {"topk": 2, "draft_tokens": 4},
        "0.5.16",
    ),
    "tree on pages, with triton": (
        "--page-size 16 --attention-backend fa4",
        "--page-size 16 --attention-backend triton",
        {"topk": 2, "draft_tokens": 4},
        "0.5.16",
    ),
    "tree on pages": (
        "--page-size 16 --attention-backend triton",
        "--page-size 16 --attention-backend fa3",
        {"topk": 2, "draft_tokens": 4},
        "0.5.9",
    ),
    "ngram tree on pages": (
        "--page-size 16 --attention-backend fa3",
        "--page-size 16 --attention-backend fa3 --speculative-ngram-max-bfs-breadth 1",
        NGRAM,
        "0.5.16",
    ),
    "standalone with dp attention": (
        "--dp-size 2 --enable-dp-attention",
        "--dp-size 1 --enable-dp-attention",
        {"spec_method": "STANDALONE"},
        "0.5.16",
    ),
    "ngram with dp attention": ("--attn-dp-size 2", "--attn-dp-size 1", NGRAM, "0.5.23"),
    "dflash with dp attention": ("--dp 2 --enable-dp-attention", "--dp 2", {"spec_method": "DFLASH"}, "0.5.16"),
    "dflash with dp attention needs the head": (
        "--attn-dp-size 2",
        "--attn-dp-size 2 --enable-dp-lm-head",
        {"spec_method": "DFLASH"},
        "0.5.23",
    ),
    "dspark with dp attention needs the head": (
        "--dp-size 2 --enable-dp-attention",
        "--dp-size 2 --enable-dp-attention --enable-dp-lm-head",
        {"spec_method": "DSPARK"},
        "0.5.16",
    ),
    "uno alone": (
        "--uno-lora-path /l --tp 2",
        "--uno-lora-path /l --tp 1",
        {"spec_method": "UNO"},
        "0.5.23",
    ),
    "uno needs its lora": ("", "--uno-lora-path /l", {"spec_method": "UNO"}, "0.5.23"),
    "rejection sampling is of eagle": (
        "--speculative-use-rejection-sampling",
        "",
        {"spec_method": "STANDALONE"},
        "0.5.16",
    ),
    "rejection sampling is a chain": (
        "--speculative-use-rejection-sampling",
        "",
        {"topk": 2, "draft_tokens": 4},
        "0.5.16",
    ),
    "rejection sampling has no thresholds": (
        "--speculative-use-rejection-sampling --speculative-accept-threshold-acc 0.9",
        "--speculative-use-rejection-sampling --speculative-accept-threshold-acc 1.0",
        {"depth": 2},
        "0.5.16",
    ),
    "rejection sampling is not deterministic": (
        "--speculative-use-rejection-sampling --enable-deterministic-inference",
        "--enable-deterministic-inference",
        {"depth": 2},
        "0.5.16",
    ),
    "block verification": (
        "--speculative-use-block-verification",
        "",
        {"topk": 2, "draft_tokens": 4},
        "0.5.23",
    ),
    "pipeline": ("--pp-size 2", "--pp-size 1", {"depth": 2}, "0.5.23"),
    "pipeline, older": ("--pp-size 2", "--pp-size 1", {"depth": 2}, "0.5.16"),
    "mamba states": ("--mamba-track-interval 4", "--mamba-track-interval 8", {"depth": 6}, "0.5.16"),
    "window of the draft": (
        "--speculative-draft-window-size 4",
        "--speculative-draft-window-size 5",
        {"spec_method": "DFLASH", "depth": 4},
        "0.5.16",
    ),
    "corpus of ngram": (
        "--speculative-ngram-external-corpus-path /c --speculative-ngram-external-sam-budget 4",
        "--speculative-ngram-external-corpus-path /c --speculative-ngram-external-sam-budget 3",
        NGRAM,
        "0.5.16",
    ),
    "no accelerator": ("--device cpu", "--device cuda", {"spec_method": "DFLASH"}, "0.5.16"),
    "watermark": ("--enable-watermark", "", {"spec_method": "STANDALONE"}, "0.5.23"),
    "dwdp": ("--dwdp-size 2", "--dwdp-size 1", {"depth": 2}, "0.5.23"),
}


@pytest.mark.parametrize("name", sorted(FLAGS))
def test_each_rule_both_ways(name: str) -> None:
    broken, kept, values, version = FLAGS[name]
    rule = next(r for r in RULES if r.name == name)
    base = f"{MODULE} {CHAIN} --max-running-requests 8"
    assert rule.reason in refused(f"{base} {broken}", version, **values)
    assert rendered(f"{base} {kept}", version, **values)
    if not rule.always:
        assert rendered(f"{base} {broken}", version, **{**values, "depth": 0})


def test_no_rule_is_untried() -> None:
    elsewhere = {"adaptive", "spec v2 is a chain"}
    assert {r.name for r in RULES} == set(FLAGS) | elsewhere
    flags = {w for b, k, _, _ in FLAGS.values() for w in f"{b} {k}".split() if w.startswith("--")}
    assert flags - {"--dp", "--tp"} <= set(options(None))


def test_an_adaptive_depth_is_none_to_tune() -> None:
    base = f"{MODULE} --speculative-adaptive"
    assert "changes the depth" in refused(base, depth=2, spec_method="NGRAM", max_running=8)
    assert "adaptive" not in rendered(base, depth=0)


def test_rules_that_the_environment_decides() -> None:
    base = launch(f"{MODULE} {CHAIN} --pp-size 2", SGLANG_ENABLE_PP_SPEC="1")
    with pytest.raises(InputError, match="SGLANG_ENABLE_PP_SPEC=1"):
        at("0.5.23").render(base, Setting.of(depth=2))
    assert at("0.5.23").render(base, Setting.of(depth=2, spec_method="EAGLE"))
    v2 = launch(f"{MODULE} {TREE}", SGLANG_ENABLE_SPEC_V2="True")
    with pytest.raises(InputError, match="Spec v2 currently only supports topk = 1"):
        at("0.5.9").render(v2, Setting.of(depth=5))
    assert at("0.5.16").render(v2, Setting.of(depth=5))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("flag:--speculative-num-steps", 3, "is the knob depth"),
        ("flag:--mem-frac", 0.8, "is the knob memory_fraction"),
        ("flag:--cuda_graph_max_bs", 8, "is the knob graph_max_batch"),
        ("flag:--api-key", "x", "secret"),
        ("flag:--admin-api-key", "x", "secret"),
        ("flag:--port", 1, "belongs to the service"),
        ("flag:--config", "x", "configuration itself"),
        ("flag:--speculative-adaptive", True, "changes the depth"),
        ("flag:--lora-paths", "a", "several values"),
        ("flag:--enable-lora", 3, "true or false"),
        ("flag:--page-size", True, "followed by a value"),
        ("flag:--cuda-graph", "x", "could mean"),
        ("env:1A", "x", "named with letters"),
        ("depth", 1.5, "whole number"),
        ("depth", True, "whole number"),
        ("topk", 0, "whole number"),
        ("memory_fraction", 1, "between 0 and 1"),
        ("memory_fraction", 1.0, "between 0 and 1"),
        ("draft_model", "", "is a text"),
        ("threads", 3, "no knob threads"),
    ],
)
def test_settings_that_are_no_settings(name: str, value: Value, said: str) -> None:
    with pytest.raises(InputError, match=said):
        at().render(launch(REAL), Setting((("depth", 1), (name, value)) if name != "depth" else ((name, value),)))


def test_two_names_of_one_flag() -> None:
    with pytest.raises(InputError, match="same option"):
        at().render(launch(REAL), Setting.of({"flag:--tp-size": 2, "flag:--tensor-parallel-size": 2}))
