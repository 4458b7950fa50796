"""llama-server's command line: tables of examples, and the laws of rendering over generated ones."""

from __future__ import annotations

import json
import shlex
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leadline.engines.llamacpp import canonical, engine
from leadline.engines.llamacpp.flags import OPTIONS
from leadline.errors import InputError
from leadline.launch import LaunchSpec
from leadline.space import Setting, Value

GOLDEN = Path(__file__).parents[1] / "golden" / "llamacpp"
RENDER, REFUSED, PARSE = (json.loads((GOLDEN / f"{n}.json").read_text()) for n in ("render", "refused", "parse"))
KNOBS = {k.name for k in engine.knobs()}


def launch(row: dict[str, Any]) -> LaunchSpec:
    return LaunchSpec(argv=tuple(shlex.split(row["base"])), env=tuple(row.get("env", {}).items()))


def setting(row: dict[str, Any]) -> Setting:
    return Setting() if row["setting"] == "(nothing set)" else Setting.parse(row["setting"])


@pytest.mark.parametrize("row", RENDER, ids=lambda r: r["name"])
def test_renders(row: dict[str, Any]) -> None:
    rendered = engine.render(launch(row), setting(row))
    assert shlex.join(rendered.argv) == row["argv"]
    assert dict(rendered.env) == row.get("env_after", {})


@pytest.mark.parametrize("row", REFUSED, ids=lambda r: f"{r['base']} | {r['setting']}")
def test_refuses_and_says_what_to_do(row: dict[str, Any]) -> None:
    with pytest.raises(InputError) as refused:
        engine.render(launch(row), setting(row))
    for words in row["says"]:
        assert words in str(refused.value)


@pytest.mark.parametrize("command", ["llama-server --api-key=wW7-secret", "bash -c x --api-key wW7-secret"])
def test_a_refusal_shows_no_secret(command: str) -> None:
    with pytest.raises(InputError) as refused:
        engine.parse(LaunchSpec(argv=tuple(shlex.split(command))))
    assert "wW7" not in str(refused.value)


@pytest.mark.parametrize("row", PARSE, ids=lambda r: r["base"])
def test_parses(row: dict[str, Any]) -> None:
    assert engine.parse(launch(row)) == setting(row)


@pytest.mark.parametrize(
    ("given_setting", "meant"),
    [
        ("depth=0 spec_method=ngram-simple draft_model=d.gguf max_running=4", "depth=0 max_running=4"),
        ("depth=0 flag:--spec-draft-p-min=0.5 flag:-devd=CUDA1 flag:--threads=2", "depth=0 flag:--threads=2"),
        ("depth=4 spec_method=ngram-mod draft_model=d.gguf", "depth=4 spec_method=ngram-mod"),
        ("depth=4 draft_model=d.gguf", "depth=4 draft_model=d.gguf"),
        ("kv_dtype=q8_0/q8_0", "kv_dtype=q8_0"),
        ("depth=4.0 max_running=2.0", "depth=4 max_running=2"),
    ],
)
def test_canonical_drops_what_has_no_meaning(given_setting: str, meant: str) -> None:
    assert str(canonical(Setting.parse(given_setting))) == meant


@pytest.mark.parametrize(
    ("command", "name", "value"),
    [
        ("llama-server -t 4 --threads 8", "flag:-t", 8),
        ("llama-server --temp 0.25", "flag:--temperature", 0.25),
        ("llama-server -fa on", "flag:--flash-attn", "on"),
        ("llama-server --mlock", "flag:--mlock", True),
        ("llama-server --no-mmap", "flag:--mmap", False),
        ("llama-server --no-mmap", "flag:--no-mmap", True),
        ("llama-server", "flag:--mmap", None),
        ("llama-server --brand-new -3", "flag:--brand-new", -3),
        ("llama-server --brand-new --other", "flag:--brand-new", True),
        ("llama-server", "flag:--brand-new", None),
        ("env LLAMA_ARG_THREADS=3 llama-server", "flag:--threads", 3),
        ("env OMP_NUM_THREADS=3 llama-server", "env:OMP_NUM_THREADS", "3"),
        ("llama-server", "env:OMP_NUM_THREADS", None),
        ("llama-server -np 3", "max_running", 3),
    ],
)
def test_tells_the_value_of_any_knob(command: str, name: str, value: Value | None) -> None:
    found = engine.value(LaunchSpec(argv=tuple(shlex.split(command))), name)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("command", "address"),
    [
        ("llama-server", ("127.0.0.1", 8080)),
        ("llama-server --port 1 --port 9000", ("127.0.0.1", 9000)),
        ("llama-server --host 0.0.0.0 --port 80", ("0.0.0.0", 80)),
        ("env LLAMA_ARG_PORT=81 LLAMA_ARG_HOST=::1 llama-server", ("::1", 81)),
        ("env LLAMA_ARG_PORT=81 llama-server --port 82", ("127.0.0.1", 82)),
    ],
)
def test_address(command: str, address: tuple[str, int]) -> None:
    assert engine.address(LaunchSpec(argv=tuple(shlex.split(command)))) == address


@pytest.mark.parametrize("command", ["llama-server --host /run/llama.sock", "llama-server --port http"])
def test_address_that_is_no_host_and_port_is_refused(command: str) -> None:
    with pytest.raises(InputError):
        engine.address(LaunchSpec(argv=tuple(shlex.split(command))))


@pytest.mark.parametrize(
    ("command", "moved"),
    [
        ("llama-server --port 1 -c 9 --port 2", "llama-server --port 9001 -c 9"),
        ("env LLAMA_ARG_PORT=81 llama-server", "env LLAMA_ARG_PORT=81 llama-server --port 9001"),
        ("llama-server -m --port", "llama-server -m --port --port 9001"),
    ],
)
def test_moves_the_port_and_nothing_else(command: str, moved: str) -> None:
    assert shlex.join(engine.move(LaunchSpec(argv=tuple(shlex.split(command))), 9001).argv) == moved


def test_every_spelling_belongs_to_one_option() -> None:
    assert {OPTIONS[s].name for s in ("-np", "--parallel")} == {"--parallel"}
    assert {OPTIONS[s].name for s in ("-md", "--model-draft", "--spec-draft-model")} == {"--spec-draft-model"}
    for spelling, option in OPTIONS.items():
        assert spelling in option.spellings
        assert all(OPTIONS[other] is option for other in option.spellings)


# --- builds, model, version


SYNTHETIC = "llama-server -m m.gguf --spec-type ngram-mod --spec-synth-len 3"


def words(text: str) -> LaunchSpec:
    return LaunchSpec(argv=tuple(shlex.split(text)))


def test_an_option_that_a_build_does_not_have_is_refused_by_name() -> None:
    old, new = engine.at("b10434-abc"), engine.at("version: 0.1.0-dev (build 11434, commit abc)")
    assert (
        engine.parse(words(SYNTHETIC)) == new.parse(words(SYNTHETIC)) == Setting.of(depth=64, spec_method="ngram-mod")
    )
    with pytest.raises(InputError, match="build 10434 has no --spec-synth-len: build 11434 has it"):
        old.parse(words(SYNTHETIC))
    for name in ("flag:--spec-synth-rates", "flag:--spec_synth_rates", "env:LLAMA_ARG_SPEC_SYNTH_RATES"):
        asked_for = Setting.of({"depth": 4, "spec_method": "ngram-mod", name: "0.9,0.8"})
        assert new.value(new.render(words("llama-server -m m.gguf"), asked_for), name) == "0.9,0.8"
        with pytest.raises(InputError, match="has no --spec-synth-rates"):
            old.render(words("llama-server -m m.gguf"), asked_for)


def test_a_build_between_those_that_were_read_may_have_it() -> None:
    assert engine.at("b11000").parse(words(SYNTHETIC)).depth == 64


def test_a_draft_model_without_a_method_is_read_as_its_build_does() -> None:
    launch = words("llama-server -m m.gguf -md d.gguf")
    assert engine.at("b10434").parse(launch) == Setting.of(depth=0)
    assert "-md" not in engine.at("b10434").render(launch, Setting.of(depth=0)).argv, "it would be loaded for nothing"
    for version, says in (("b11434", "speculates as the file says"), (None, "may speculate or not, by its build")):
        with pytest.raises(InputError, match=says):
            engine.at(version).parse(launch)


@pytest.mark.parametrize(
    ("command", "model", "version"),
    [
        ("llama-server -m m.gguf", "m.gguf", "llama-server --version"),
        (
            "env A=b nice -n 5 /opt/llama-server -hf org/m:Q4_K_M",
            "org/m:Q4_K_M",
            "env A=b nice -n 5 /opt/llama-server --version",
        ),
        ("env LLAMA_ARG_MODEL=e.gguf llama-server", "e.gguf", "env LLAMA_ARG_MODEL=e.gguf llama-server --version"),
        ("llama-server -np 2", None, "llama-server --version"),
        ("bash -c 'rm -f x; llama-server -m m.gguf'", "m.gguf", None),
        ("docker run --name a ghcr.io/x/llama.cpp:server -m m.gguf", "m.gguf", None),
    ],
)
def test_model_and_version(command: str, model: str | None, version: str | None) -> None:
    assert engine.model(words(command)) == model
    argv = engine.version_argv(words(command))
    assert (None if argv is None else shlex.join(argv)) == version
    assert engine.files(words(command)) == ()


def test_a_variable_that_words_of_a_script_depend_on_changes_them_too() -> None:
    script = LaunchSpec(argv=("bash", "-c", "T=4; export T; llama-server -m m.gguf -t $T -np 2"))
    rendered = engine.render(script, Setting.of({"env:T": "6", "max_running": 3}))
    assert engine.value(rendered, "flag:--threads") == 6
    assert engine.value(rendered, "max_running") == 3
    assert engine.value(rendered, "env:T") == "6"


# --- the laws, over generated command lines

FOREIGN = [
    ["-m", "m.gguf"],
    ["--alias", "-np"],
    ["--prompt", "--spec-type"],
    ["-t", "2"],
    ["--seed", "-1"],
    ["--chat-template", "--port"],
    ["--mlock"],
    ["--brand-new"],
    ["--brand-new", "7"],
    ["-ngl", "99"],
    ["--override-kv", "a=int:1"],
]
SPECULATING = [
    ["--spec-type", "ngram-simple"],
    ["--spec-type", "ngram-simple", "--spec-ngram-simple-size-m", "9"],
    ["--spec_type", "ngram-mod", "--spec-ngram-mod-n-min", "3", "--spec-ngram-mod-n-max", "7"],
    ["--spec-type", "draft-simple", "-md", "base.gguf", "--spec-draft-n-max", "2", "-ngld", "9"],
    ["--spec-type", "draft-eagle3", "-hfd", "org/draft"],
    ["--spec-type", "ngram-cache"],
    ["--spec-type", "ngram-map-k", "--model-draft", "unused.gguf", "--spec-ngram-map-k-size-n", "6"],
    ["--spec-default"],
    ["--spec-type", "none", "-md", "base.gguf"],
    ["--spec-ngram-simple-size-n", "3"],
    [],
]
OTHER_OURS = [
    ["-np", "3"],
    ["--parallel", "4"],
    ["-ctk", "q8_0"],
    ["--cache-type-v", "q4_0"],
    ["--metrics"],
    ["--no-slots"],
]
HEADS = [["llama-server"], ["/opt/bin/llama-server"], ["env", "A=b", "LLAMA_ARG_N_PARALLEL=6", "llama-server"]]
ENVS = [
    (),
    (("LLAMA_ARG_N_PARALLEL", "2"), ("X", "y")),
    (("LLAMA_ARG_SPEC_TYPE", "ngram-simple"),),
    (("LLAMA_ARG_SPEC_TYPE", "draft-simple"), ("LLAMA_ARG_SPEC_DRAFT_MODEL", "env.gguf")),
]


@st.composite
def bases(draw: st.DrawFn) -> LaunchSpec:
    foreign = draw(st.lists(st.sampled_from(FOREIGN), max_size=4))
    ours = draw(st.lists(st.sampled_from(OTHER_OURS), max_size=4))
    groups = draw(st.permutations([*foreign, *ours, draw(st.sampled_from(SPECULATING))]))
    words = (*draw(st.sampled_from(HEADS)), *(w for g in groups for w in g))
    return LaunchSpec(argv=words, env=draw(st.sampled_from(ENVS)), cwd=draw(st.sampled_from([None, "/srv"])))


@st.composite
def asked(draw: st.DrawFn) -> Setting:
    """A setting that every base accepts."""
    values: dict[str, Any] = {}
    match draw(st.integers(0, 3)):
        case 0:
            values["depth"] = 0
        case 1:
            values["spec_method"] = draw(st.sampled_from(["ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod"]))
            values["depth"] = draw(st.integers(1, 70))
        case 2:
            values |= {"spec_method": draw(st.sampled_from(["draft-simple", "draft-dflash"])), "draft_model": "d.gguf"}
            values["depth"] = draw(st.integers(1, 70))
        case _:
            pass
    optional: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
        {},
        optional={
            "max_running": st.integers(1, 64),
            "kv_dtype": st.sampled_from(["f16", "q8_0", "q8_0/f16"]),
            "flag:--threads-http": st.integers(1, 8),
            "flag:--swa-full": st.booleans(),
            "flag:--unheard-of": st.sampled_from([True, False, 5, "text", 0.5]),
            "env:LLAMA_SUITE": st.sampled_from(["1", "a b"]),
        },
    )
    return Setting.of({**values, **draw(optional)})


@given(bases(), asked())
@settings(max_examples=250, deadline=None)
def test_reads_what_it_wrote(base: LaunchSpec, wanted: Setting) -> None:
    rendered = engine.render(base, wanted)
    assert engine.parse(rendered) == canonical(engine.parse(base).merged(wanted)).only(KNOBS)
    for name, value in wanted:
        if name.startswith(("flag:", "env:")):
            assert engine.value(rendered, name) == (None if value is False else value)
    assert engine.render(rendered, wanted) == rendered


@given(bases(), asked())
@settings(max_examples=80, deadline=None)
def test_loses_no_word_that_is_not_its_own(base: LaunchSpec, wanted: Setting) -> None:
    rendered = engine.render(base, wanted)
    there = iter(rendered.argv)
    for group in foreign_groups(base.argv):
        assert all(word in there for word in group), f"{group} is gone or out of order in {rendered}"
    assert rendered.cwd == base.cwd
    assert set(base.env) <= set(rendered.env)


@given(bases(), asked())
@settings(max_examples=200, deadline=None)
def test_in_a_script_it_is_the_same_command(base: LaunchSpec, wanted: Setting) -> None:
    script = LaunchSpec(argv=("bash", "-c", f"cd /srv && exec {shlex.join(base.argv)}"), env=base.env)
    rendered = engine.render(script, wanted)
    plain = engine.render(base, wanted)
    assert rendered.argv[2].startswith("cd /srv && exec ")
    assert engine.parse(rendered) == engine.parse(plain)
    if not any(name.startswith("env:") for name in wanted.names()):
        assert shlex.split(rendered.argv[2])[4:] == list(plain.argv)


def foreign_groups(argv: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The groups of FOREIGN in a generated command line, in order, and what is before them."""
    found = []
    at = 0
    longest_first = sorted(FOREIGN, key=len, reverse=True)
    while at < len(argv):
        group = next((g for g in longest_first if list(argv[at : at + len(g)]) == g), None)
        if group is not None:
            found.append(tuple(group))
        at += len(group) if group else 1
    return found


@given(bases(), asked())
@settings(max_examples=80, deadline=None)
def test_leaves_each_of_its_words_once(base: LaunchSpec, wanted: Setting) -> None:
    rendered = engine.render(base, wanted)
    names = [OPTIONS[w.replace("_", "-")].name for w in without_values(rendered.argv) if w.replace("_", "-") in OPTIONS]
    for name in ("--parallel", "--cache-type-k", "--cache-type-v", "--metrics", "--slots", "--spec-type"):
        assert names.count(name) <= 1, f"{name} is there {names.count(name)} times: {rendered}"
    assert names.count("--metrics") == names.count("--slots") == 1


def without_values(argv: tuple[str, ...]) -> list[str]:
    out = []
    words = iter(argv)
    for word in words:
        out.append(word)
        option = OPTIONS.get(word.replace("_", "-") if word.startswith("--") else word)
        for _ in range(option.values if option else 0):
            next(words, None)
    return out


@given(st.lists(st.text(max_size=12), max_size=8), asked())
@settings(max_examples=80, deadline=None)
def test_any_words_are_read_or_refused(words: list[str], wanted: Setting) -> None:
    base = LaunchSpec(argv=("llama-server", *words))
    with suppress(InputError):
        assert engine.render(base, wanted).argv[0] == "llama-server"
