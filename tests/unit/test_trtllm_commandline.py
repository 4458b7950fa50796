"""Settings to launches of trtllm-serve and back: its words, and a changed copy of its YAML file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support_trtllm import BASES, EVERYTHING_YAML, FILE, MTP_YAML, NGRAM_YAML, SCRATCH, command, reason

from leadline.dialect import yamlfile
from leadline.engines.trtllm import TensorRTLLM, canonical, engine
from leadline.errors import InputError
from leadline.launch import LaunchFile, LaunchSpec
from leadline.space import Setting, Value

VERSIONS = (None, "1.2.1", "1.3.0rc9", "1.4.0")
DRAFTED = ("Eagle", "Eagle3", "Draft_Target", "PARD", "DFlash")


def config(launch: LaunchSpec) -> dict[str, Any]:
    """What the server would read from its file; {} when it has none."""
    paths = engine.files(launch)
    return yamlfile.load(yamlfile.find(launch, paths[0])) if paths else {}


def spec(launch: LaunchSpec) -> Mapping[str, Any]:
    found = config(launch).get("speculative_config")
    return found if isinstance(found, dict) else {}


# --- what the server would say to a file: keys that it forbids, and the rules of llm_args.py, written down once more

ALL = {"decoding_type", "max_draft_len", "max_total_draft_tokens"}
OWN = {
    "Eagle": {"use_dynamic_tree", "dynamic_tree_max_topK", "eagle3_layers_to_capture"},
    "Eagle3": {"use_dynamic_tree", "dynamic_tree_max_topK", "eagle3_layers_to_capture"},
    "MTP": {"num_nextn_predict_layers"},
    "NGram": {"max_matching_ngram_size"},
    "Draft_Target": set(),
    "PARD": set(),
    "DFlash": set(),
    "SA": {"max_matching_ngram_size"},
}


def accepts(block: Mapping[str, Any]) -> None:
    method = block["decoding_type"]
    keys = ALL | OWN[method] | ({"speculative_model", "speculative_model_dir"} if method in DRAFTED else set())
    assert set(block) <= keys
    depth = block.get("max_draft_len", block.get("num_nextn_predict_layers"))
    assert isinstance(depth, int)
    assert depth > 0
    if method in DRAFTED:
        assert ("speculative_model" in block) != ("speculative_model_dir" in block)
    total = block.get("max_total_draft_tokens", depth)
    if block.get("use_dynamic_tree") or "dynamic_tree_max_topK" in block:
        assert depth <= total <= block["dynamic_tree_max_topK"] * depth
    else:
        assert total == depth


@st.composite
def wanted(draw: st.DrawFn) -> Setting:
    values: dict[str, Value] = {"depth": draw(st.integers(0, 9))}
    if values["depth"] or draw(st.booleans()):
        method = draw(st.sampled_from(sorted(OWN)))
        values["spec_method"] = method
        if method in DRAFTED or draw(st.booleans()):
            values["draft_model"] = draw(st.sampled_from(["/models/d", "org/eagle", "1.5", "null"]))
        if method.startswith("Eagle") and values["depth"] and draw(st.booleans()):
            topk = values["topk"] = draw(st.integers(1, 5))
            if topk > 1:
                values["draft_tokens"] = draw(st.integers(int(values["depth"]), topk * int(values["depth"])))
    optional: dict[str, st.SearchStrategy[Value]] = {
        "memory_fraction": st.sampled_from([0.5, 0.75, 0.8, 0.95, 1, 0.123456789]),
        "max_running": st.integers(1, 4096),
        "graph_max_batch": st.integers(0, 512),
        "kv_dtype": st.sampled_from(["auto", "fp8", "nvfp4"]),
        "flag:--max_num_tokens": st.integers(1, 9999),
        "flag:--enable_chunked_prefill": st.booleans(),
        "env:TRTLLM_ENABLE_PDL": st.sampled_from(["0", "1", "x y"]),
    }
    for name in draw(st.lists(st.sampled_from(sorted(optional)), unique=True)):
        values[name] = draw(optional[name])
    return Setting.of(values)


def rendered(server: TensorRTLLM, base: LaunchSpec, setting: Setting) -> LaunchSpec | None:
    """None when it is rightly refused: the tree that stays in force does not go with the new depth."""
    full = canonical(server.parse(base).merged(setting))
    topk, total = full.integer("topk"), full.integer("draft_tokens")
    if topk is None or total is None or full.depth <= total <= topk * full.depth:
        return server.render(base, setting)
    with pytest.raises(InputError, match="a tree holds at least"):
        server.render(base, setting)
    return None


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(BASES), wanted(), wanted(), st.sampled_from(VERSIONS))
def test_what_is_rendered_reads_back_and_is_what_the_server_takes(
    base: LaunchSpec, setting: Setting, second: Setting, version: str | None
) -> None:
    server = engine.at(version)
    knobs = {k.name for k in server.knobs()}
    once = rendered(server, base, setting)
    if once is None:
        return
    assert server.parse(once) == canonical(server.parse(base).merged(setting)).only(knobs)
    assert server.render(once, setting) == once
    assert config(once)["return_perf_metrics"] is True
    if spec(once):
        accepts(spec(once))
    # Not only from the operator's own launch, but from any that we made.
    twice = rendered(server, once, second)
    if twice is None:
        return
    assert server.parse(twice) == canonical(server.parse(once).merged(second)).only(knobs)
    assert len(twice.files) == 1
    for name, value in setting:
        if name.startswith(("flag:", "env:")):
            assert server.value(once, name) == (None if value is False else value)


def test_the_file_is_copied_with_comments_and_order_and_the_operators_stays() -> None:
    base = BASES[1]
    new = engine.render(base, Setting.of(depth=5))
    content = new.ours[0].content
    path = new.ours[0].path
    assert path.startswith(SCRATCH + "/")
    assert hashlib.sha256(content.encode()).hexdigest().startswith(path.rsplit("/", 1)[1].removesuffix(".yaml"))
    assert content == MTP_YAML.replace("predict_layers: 3", "predict_layers: 5") + "return_perf_metrics: true\n"
    assert base.files == (LaunchFile(FILE, MTP_YAML),)
    assert new.argv == (*base.argv[:-1], path)
    assert engine.files(new) == (path,)


@pytest.mark.parametrize("given", ["--config=X", "--config X", "--extra_llm_api_options X"])
def test_the_spelling_of_the_option_is_kept(given: str) -> None:
    base = command(f"trtllm-serve m {given.replace('X', FILE)} --port 1", NGRAM_YAML)
    new = engine.render(base, Setting.of(depth=2))
    assert new.argv == tuple(w.replace(FILE, new.ours[0].path) for w in base.argv)


@pytest.mark.parametrize(
    ("version", "flag"),
    [(None, "--extra_llm_api_options"), ("1.1.0", "--extra_llm_api_options"), ("1.2.0", "--config")],
)
def test_without_a_file_one_is_made_and_named_as_the_release_knows_it(version: str | None, flag: str) -> None:
    new = engine.at(version).render(command("trtllm-serve m"), Setting.of(depth=4, spec_method="NGram"))
    assert new.argv == ("trtllm-serve", "m", flag, new.ours[0].path)
    assert config(new) == {
        "speculative_config": {"decoding_type": "NGram", "max_draft_len": 4},
        "return_perf_metrics": True,
    }


def test_nothing_is_written_when_all_is_there() -> None:
    base = BASES[2]
    assert engine.render(base, Setting.of(depth=4, memory_fraction=0.8, max_running=64)) == base
    assert engine.parse(base) == Setting.of(
        depth=4,
        spec_method="Eagle3",
        draft_model="/models/eagle3",
        topk=4,
        draft_tokens=12,
        memory_fraction=0.8,
        max_running=64,
        graph_max_batch=64,
        kv_dtype="auto",
    )


def test_depth_0_takes_the_whole_block_away() -> None:
    off = engine.render(BASES[2], Setting.of(depth=0))
    assert off.ours[0].content == EVERYTHING_YAML.partition("speculative_config")[0]
    assert engine.parse(off).names() == ("depth", "graph_max_batch", "kv_dtype", "max_running", "memory_fraction")


def test_a_value_is_set_wherever_it_stands() -> None:
    """Releases differ in which of the two wins."""
    new = engine.render(BASES[2], Setting.of(max_running=32, memory_fraction=0.5))
    assert "--max_batch_size=32" in new.argv
    assert config(new)["max_batch_size"] == 32
    assert config(new)["kv_cache_config"] == {"free_gpu_memory_fraction": 0.5, "dtype": "auto"}
    assert not any("fraction" in word for word in new.argv)
    # A block of the file may replace what the command line says, so it must say it too.
    both = command(f"trtllm-serve m --config {FILE} --free_gpu_memory_fraction 0.9", "kv_cache_config: {dtype: fp8}\n")
    new = engine.render(both, Setting.of(memory_fraction=0.4))
    assert new.argv[-2:] == ("--free_gpu_memory_fraction", "0.4")
    assert config(new)["kv_cache_config"]["free_gpu_memory_fraction"] == 0.4


def test_two_values_that_disagree() -> None:
    base = command(f"trtllm-serve m --max_batch_size 16 --config {FILE}", "max_batch_size: 64\n")
    assert engine.at("1.2.1").parse(base)["max_running"] == 64
    for version in (None, "1.3.0rc9"):
        with pytest.raises(InputError, match=r"says 16 for max_running, and /srv/llm\.yaml says 64"):
            engine.at(version).parse(base)
    assert engine.at("1.2.1").parse(engine.at("1.2.1").render(base, Setting.of(max_running=8)))["max_running"] == 8


@pytest.mark.parametrize(
    ("version", "keys"),
    [
        (None, {"max_draft_len": 3, "num_nextn_predict_layers": 3}),
        ("1.2.1", {"max_draft_len": 3, "num_nextn_predict_layers": 3}),
        ("1.4.0", {"max_draft_len": 3}),
    ],
)
def test_the_depth_of_mtp_has_two_names(version: str | None, keys: dict[str, int]) -> None:
    new = engine.at(version).render(BASES[3], Setting.of(depth=3, spec_method="MTP"))
    assert spec(new) == {"decoding_type": "MTP", **keys}


def mtp(**keys: int) -> LaunchSpec:
    lines = "".join(f"\n  {k}: {v}" for k, v in keys.items())
    return command(f"trtllm-serve m --config {FILE}", "speculative_config:\n  decoding_type: MTP" + lines)


def test_the_name_of_mtps_depth_that_stands_there_is_kept_and_read_as_the_release_reads_it() -> None:
    assert spec(engine.render(mtp(max_draft_len=1), Setting.of(depth=2)))["max_draft_len"] == 2
    assert "num_nextn_predict_layers" not in spec(engine.render(mtp(max_draft_len=1), Setting.of(depth=2)))
    both = mtp(max_draft_len=1, num_nextn_predict_layers=2)
    assert engine.at("1.2.1").parse(both).depth == 2
    with pytest.raises(InputError, match="disagree"):
        engine.parse(both)
    with pytest.raises(InputError, match="ignores max_draft_len"):
        engine.at("1.2.1").parse(mtp(max_draft_len=1))
    with pytest.raises(InputError, match="takes its depth from the model"):
        engine.parse(mtp())


def test_another_method_takes_only_the_keys_that_it_knows() -> None:
    new = engine.render(BASES[2], Setting.of(depth=3, spec_method="NGram"))
    assert spec(new) == {"decoding_type": "NGram", "max_draft_len": 3, "max_total_draft_tokens": 3}
    new = engine.render(BASES[2], Setting.of(spec_method="Eagle"))
    assert spec(new)["eagle3_layers_to_capture"] == [1, 15, 28]
    odd = command(f"trtllm-serve m --config {FILE}", NGRAM_YAML.replace("max_matching_ngram_size", "new_key"))
    assert spec(engine.render(odd, Setting.of(depth=2)))["new_key"] == 3
    assert "new_key goes with MTP is not known" in reason(engine, odd, depth=1, spec_method="MTP")


def test_a_tree_keeps_its_size_or_its_default() -> None:
    tree = EVERYTHING_YAML
    deeper = engine.render(BASES[2], Setting.of(depth=6))
    assert spec(deeper)["max_total_draft_tokens"] == 12
    assert "draft_tokens=12: a tree holds at least depth=13" in reason(engine, BASES[2], depth=13)
    full = command(f"trtllm-serve m --config {FILE}", tree.replace("tokens: 12", "tokens: 16"))
    assert "draft_tokens" not in engine.parse(full)
    assert spec(engine.render(full, Setting.of(depth=3)))["max_total_draft_tokens"] == 12
    chain = engine.render(full, Setting.of(topk=1, depth=2))
    assert {k: v for k, v in spec(chain).items() if "draft" in k or "tree" in k} == {
        "max_draft_len": 2,
        "max_total_draft_tokens": 2,
    }


def test_captured_batches_are_cut_or_extended_to_the_largest() -> None:
    graphs = config(engine.render(BASES[1], Setting.of(graph_max_batch=24)))["cuda_graph_config"]
    assert graphs == {"enable_padding": True, "batch_sizes": [1, 2, 4, 8, 16, 24]}
    assert engine.parse(BASES[3])["graph_max_batch"] == 0
    assert config(engine.render(BASES[3], Setting.of(graph_max_batch=8)))["cuda_graph_config"] == {"max_batch_size": 8}
    off = engine.render(BASES[0], Setting.of(graph_max_batch=0))
    assert config(off)["cuda_graph_config"] is None
    assert "cuda_graph_config" in config(off)


# --- field reports


def test_a_file_that_a_script_writes_from_its_variables() -> None:
    """InferenceX dsr1_fp4_b200_trt_mtp.sh: a heredoc; its content is read as the server does, variables filled in."""
    heredoc = (
        "cuda_graph_config:\n    enable_padding: true\n    max_batch_size: 128\n"
        "speculative_config:\n    decoding_type: MTP\n    num_nextn_predict_layers: ${MTP}\nstream_interval: 10\n"
    )
    text = f"mpirun -n 1 --oversubscribe --allow-run-as-root trtllm-serve m --port=8888 --tp_size=8 --config={FILE}"
    with pytest.raises(InputError, match="with its variables filled in"):
        engine.parse(command(text, heredoc))
    base = command(text, heredoc.replace("${MTP}", "1"))
    assert engine.parse(base) == Setting.of(depth=1, spec_method="MTP", graph_max_batch=128)
    new = engine.render(base, Setting.of(depth=3))
    expected = heredoc.replace("${MTP}", "3") + "return_perf_metrics: true\n"
    assert new.ours[0].content == expected
    assert engine.address(new) == ("localhost", 8888)


def test_the_launch_of_issue_9628() -> None:
    text = (
        "trtllm-serve serve nvidia/DeepSeek-V3-0324-FP4 --host 0.0.0.0 --port 8000 --tp_size 8 --gpus_per_node 8 "
        "--backend pytorch --extra_llm_api_options /config/extra-llm-api-config.yml --max_batch_size 16 --max_seq_len "
        "32768 --max_num_tokens 32768 --ep_size 2 --kv_cache_free_gpu_memory_fraction 0.8"
    )
    path = "/config/extra-llm-api-config.yml"
    base = command(text, "    cuda_graph_config:\n      batch_sizes:\n      - 1\n      - 2\n      - 16\n", path)
    assert engine.parse(base) == Setting.of(depth=0, max_running=16, memory_fraction=0.8, graph_max_batch=16)
    assert engine.model(base) == "nvidia/DeepSeek-V3-0324-FP4"
    new = engine.render(base, Setting.of(depth=2, spec_method="MTP", memory_fraction=0.6))
    assert engine.parse(new)["memory_fraction"] == 0.6
    assert new.argv[:3] == base.argv[:3]
    assert len(new.argv) == len(base.argv)


# --- what is refused, with the server's reason


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("trtllm-serve disaggregated -c f.yaml", "passes requests on"),
        ("trtllm-serve mm_embedding_serve m", "generates nothing"),
        ("trtllm-serve m --server_role CONTEXT", "--server_role makes the server a part of a disaggregated"),
        ("trtllm-serve m --disagg_cluster_uri http://x", "disaggregated"),
        ("srun -N 2 trtllm-llmapi-launch trtllm-serve m", "Slurm"),
        ("mpirun -n 16 -H a:8,b:8 trtllm-llmapi-launch trtllm-serve m", "-H names hosts"),
        ("mpirun --hostfile h -n 2 trtllm-llmapi-launch trtllm-serve m", "--hostfile names hosts"),
        ("mpirun -np 4 trtllm-serve m", "start trtllm-serve 4 times"),
        ("mpirun -n 1 bash run.sh", "a shell starts the server"),
        ("mpirun --host a,b bash -c 'trtllm-serve m'", "--host names hosts"),
        ("trtllm-serve m --nnodes 2", "--nnodes: a server that spans hosts"),
        ("trtllm-serve m --max-batch-size 4", "it is written --max_batch_size"),
        ("trtllm-serve m --backend tensorrt", "built for one way of speculating"),
        ("trtllm-serve m --set speculative_config.max_draft_len=3", "overrules the YAML file"),
        ("bash run.sh", "a shell starts the server"),
        ("trtllm-serve m --config /srv/gone.yaml", "could not be read"),
        ("trtllm-serve m --max_batch_size $B", "no whole number"),
    ],
)
def test_a_launch_that_cannot_be_tuned_is_refused_by_name(text: str, why: str) -> None:
    with pytest.raises(InputError) as error:
        engine.parse(command(text))
    assert why in str(error.value)


@pytest.mark.parametrize(
    ("block", "why"),
    [
        ("decoding_type: NGram, max_draft_len: 0", "max_draft_len must be > 0 for NGram"),
        ("decoding_type: NGram", "must be > 0 for NGram"),
        ("decoding_type: NGram, max_draft_len: 4, draft_len_schedule: {4: 4, 8: 2}", "depend on the batch"),
        ("decoding_type: NGram, max_draft_len: 4, max_concurrency: 8", "switches speculation off above a batch size"),
        ("decoding_type: NGram, max_draft_len: 4, max_concurrency: 8, draft_len_schedule: {4: 4}", "exclusive"),
        ("decoding_type: NGram, max_draft_len: 4, acceptance_window: 20", "off for good"),
        ("decoding_type: NGram, max_draft_len: 4, acceptance_rate_window_size: 20", "off for good"),
        ("decoding_type: AUTO", "chooses method and depth itself"),
        ("decoding_type: SaveState, output_directory: /x", "drafts nothing"),
        ("decoding_type: Eagle3, max_draft_len: 2, speculative_model: a, eagle_choices: [[0]]", "eagle_choices fixes"),
        ("decoding_type: Eagle, max_draft_len: 2, speculative_model: a, speculative_model_dir: b", "the same option"),
        ("decoding_type: Eagle, max_draft_len: 2, speculative_model: a, use_dynamic_tree: true", "should be provided"),
        ("max_draft_len: 2", "decoding_type is None"),
    ],
)
def test_a_file_without_one_fixed_depth_is_refused_by_name(block: str, why: str) -> None:
    base = command(f"trtllm-serve m --config {FILE}", f"speculative_config: {{{block}}}\n")
    with pytest.raises(InputError) as error:
        engine.parse(base)
    assert why in str(error.value)
    assert FILE in str(error.value)


@pytest.mark.parametrize(
    ("base", "values", "why"),
    [
        (0, {"depth": 3}, "depth=3 needs a method: set spec_method under [keep] or [knobs]"),
        (
            0,
            {"depth": 3, "spec_method": "Eagle3"},
            "Eagle3 needs a draft model: set draft_model under [keep] or [knobs]",
        ),
        (0, {"depth": 3, "spec_method": "ngram"}, "upper and lower case count"),
        (1, {"topk": 2}, "topk=2 needs Eagle"),
        (1, {"draft_tokens": 4}, "a chain drafts exactly"),
        (2, {"draft_tokens": 17}, "at most topk * depth = 16"),
        (2, {"draft_tokens": 3}, "at least depth=4"),
        (0, {"memory_fraction": 0}, "more than 0 and at most 1"),
        (0, {"max_running": 0}, "from 1 to"),
        (0, {"depth": 2.5}, "whole number"),
        (0, {"flag:--free_gpu_memory_fraction": 0.5}, "is the knob memory_fraction"),
        (0, {"flag:--extra_llm_api_options": "x"}, "a changed copy"),
        (0, {"flag:--trust_remote_code": "yes"}, "is true or false"),
        (0, {"flag:--max_num_tokens": True}, "followed by a value"),
        (0, {"flag:--tp_size": 2, "flag:--tensor_parallel_size": 2}, "the same option"),
        (0, {"env:TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS": "2"}, "makes acceptance up"),
    ],
)
def test_a_setting_that_the_server_would_refuse(base: int, values: dict[str, Value], why: str) -> None:
    assert why in reason(engine, BASES[base], **values)


def test_a_method_that_the_backend_does_not_run() -> None:
    base = command("trtllm-serve m --backend _autodeploy")
    assert "NGram does not support the backend _autodeploy" in reason(engine, base, depth=2, spec_method="NGram")
    assert engine.parse(engine.render(base, Setting.of(depth=2, spec_method="MTP"))).depth == 2


def test_no_folder_for_a_copy() -> None:
    base = LaunchSpec(argv=("trtllm-serve", "m"))
    with pytest.raises(InputError, match="no folder"):
        engine.render(base, Setting.of(depth=0))


def test_a_container_must_see_the_copy() -> None:
    asked = Setting.of(depth=2, spec_method="MTP")
    with pytest.raises(InputError, match="mount /run/leadline/trial there"):
        engine.render(command("docker run -v /models:/models nvcr.io/trt trtllm-serve /models/m"), asked)
    for folder in (SCRATCH, "/run/leadline"):
        base = command(f"docker run -v {folder}:{folder}:ro nvcr.io/trt trtllm-serve /models/m")
        assert engine.parse(engine.render(base, asked)).depth == 2
    assert engine.version_argv(base) is None


def test_the_command_may_stand_in_a_script() -> None:
    base = command(f"bash -c 'export A=b; exec trtllm-serve m --config {FILE} --port 9'", NGRAM_YAML)
    new = engine.render(base, Setting.of(depth=2))
    assert new.argv[2] == base.argv[2].replace(FILE, new.ours[0].path)
    assert engine.parse(new).depth == 2
    assert engine.version_argv(base) is None


def test_a_text_that_yaml_would_take_for_a_switch_is_not_written() -> None:
    said = reason(engine, BASES[0], depth=2, spec_method="Draft_Target", draft_model="yes")
    assert "reads as something else" in said


# --- the rest of the port


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("trtllm-serve m", "sh"),
        ("env A=b nice trtllm-serve serve m", "env A=b nice sh"),
        ("/opt/venv/bin/trtllm-serve m", "sh"),
        ("/opt/venv/bin/python3.12 -u -m tensorrt_llm.commands.serve serve m", "/opt/venv/bin/python3.12"),
    ],
)
def test_the_version_is_asked_of_the_python_beside_it(text: str, start: str) -> None:
    argv = engine.version_argv(command(text))
    assert argv is not None
    assert " ".join(argv).startswith(f"{start} -c ")
    assert ("trtllm-serve" in " ".join(argv)) == ("trtllm-serve" in text)


def test_words_that_say_where_and_what() -> None:
    assert engine.address(BASES[0]) == ("localhost", 8000)
    assert engine.address(engine.move(BASES[1], 9)) == ("localhost", 9)
    assert engine.move(BASES[1], 9).argv[3:5] == ("--port", "9")
    assert engine.files(BASES[2]) == (FILE,)
    assert engine.files(BASES[0]) == ()
    assert [engine.model(base) for base in BASES] == ["Qwen/Qwen3-8B", "/models/dsr1", "/models/q", "m", "m", "m"]
    assert engine.value(BASES[1], "flag:--tp_size") == 8
    assert engine.value(BASES[1], "flag:--tensor_parallel_size") == 8
    assert engine.value(BASES[4], "flag:--trust_remote_code") is True
    assert engine.value(BASES[2], "env:HF_HUB_OFFLINE") == "1"
    assert engine.at("1.2").version == "1.2"
    assert TensorRTLLM() == engine
