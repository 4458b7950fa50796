"""Scripts of a shell: their words, as a real bash sees them too, and edits that change nothing but what they should."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leadline.dialect.opaque import is_opaque, known, text_of
from leadline.dialect.source import Source, base_name, contained, find
from leadline.errors import InputError
from leadline.launch import LaunchSpec


def starts(words: Sequence[str], at: int) -> int:
    if base_name(words[at]) == "python3" and list(words[at + 1 : at + 3]) == ["-m", "serve"]:
        return 3
    return 1 if base_name(words[at]) == "serve" else 0


def read(script: str, *args: str, shell: str = "bash", **env: str) -> Source:
    return find(LaunchSpec(argv=(shell, "-c", script, *args), env=tuple(env.items())), "serve", starts)


def words(script: str, *args: str, **env: str) -> list[str | None]:
    """None for a word that cannot be known."""
    return [None if is_opaque(w) else w for w in read(script, *args, **env).words]


def rewritten(script: str, *new: str, **env: str) -> str:
    """The script alone, after an edit that needs nothing else."""
    found = read(script, **env)
    after = found.written(new)
    assert after.env == found.launch.env
    assert find(after, "serve", starts).words == new
    return after.argv[2]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("serve --a 1", ["--a", "1"]),
        ("set -euo pipefail\ncd /x\nexec serve \\\n  --a 1 \\\n  --b '2 3'  # end\n", ["--a", "1", "--b", "2 3"]),
        ("A=1 B='2' nice -n 5 /opt/serve --a > log 2>&1 &", ["--a"]),
        ("serve 2>&1 --a | tee log", ["--a"]),
        ("cd /x && env A=b python3 -m serve --a || exit 1", ["--a"]),
        ("serve --first; serve --last", ["--last"]),
        ("exec serve --first\nserve --never", ["--first"]),
        ('serve "a\\"b" \'c"d\' e\\ f "g\\\nh" $\'i\' "" x"y"\'z\'', ['a"b', 'c"d', "e f", "gh", "i", "", "xyz"]),
        ("N=3\nserve $N ${N} \"$N\" --n=$N x${N}y '$N' \\$N", ["3", "3", "3", "--n=3", "x3y", "$N", "$N"]),
        ('serve ${U:-3} ${U-4} "${U:-5 6}" ${U:-} x${U:-}', ["3", "4", "5 6", "x"]),
        ("serve ${U:---flag} ${U:-${V:-${W:-9}}} ${U:-'a b'c}", ["--flag", "9", "a", "bc"]),
        ("E=''\nserve ${E:-3} ${E-4} $E \"$E\"", ["3", ""]),
        ("X='--a 1  --b 2'\nserve $X --c", ["--a", "1", "--b", "2", "--c"]),
        ("a=(--a 1 # one\n --b '2 3')\na+=(--c)\nserve \"${a[@]}\" --d", ["--a", "1", "--b", "2 3", "--c", "--d"]),
        ("export N=3; readonly M=4; declare -i K=5\nserve $N $M $K", ["3", "4", "5"]),
        ("if [ -z '' ]; then N=1; else N=2; fi; serve $N", ["1"]),
        ("N=2; if [ $N -lt 2 ]; then M=a; elif [[ $N == 2 ]]; then M=b; else M=c; fi; serve $M", ["b"]),
        ("N=x; case $N in a|b) M=1 ;; x*) M=2 ;; *) M=3 ;; esac; serve $M", ["2"]),
        ('N=; [ -n "$N" ] && M=1 || M=2; serve $M', ["2"]),
        ("false || N=1; true && N=2; serve $N", ["2"]),
        ("main() { exec serve --a $N; }\nN=1\nN=2\nmain", ["--a", "2"]),
        ("while true; do serve --a; sleep 1; done", ["--a"]),
        ("cat > f <<EOF\nserve --wrong\nEOF\ncat <<-'END'\n\tserve --wrong\n\tEND\nserve --a", ["--a"]),
        ("(cd /x; serve --a) >log", ["--a"]),
        ("for i in 1 2; do echo $i; done; { serve --a; } ", ["--a"]),
        ("source venv/bin/activate; N=1; serve $N", ["1"]),
        ("echo 'it''s' # don't\nserve --a#b", ["--a#b"]),
    ],
)
def test_reads(script: str, expected: list[str]) -> None:
    assert words(script) == expected


@pytest.mark.parametrize(
    "script",
    [
        "serve $(cat n)",
        "serve `cat n`",
        "serve $((1 + 2))",
        "serve $UNSET",
        "serve ${UNSET:?needed}",
        "N=abc; serve ${N#a}",
        "serve *.gguf",
        "serve ~/model",
        "serve {a,b}",
        "serve <(cat n)",
        "N=$(cat n); serve $N",
        "if [ -f x ]; then N=1; fi; serve $N",
        "N=1; if test-it; then N=2; fi; serve $N",
        "test-it || N=1; serve $N",
        "for N in 1 2; do serve $N; done",
        "N=1; while read -r M; do serve $N; N=$M; done",
        "read N; serve $N",
        "N=1; source ./settings.sh; serve $N",
        "source ./settings.sh; serve ${N:-1}",
        'N=1; eval "$(settings)"; serve $N',
        "N=1; N+=2; serve $N",
        "a[0]=1; serve ${a[0]}",
        "set -- x; serve $1",
        "N=1; (( N += 1 )); serve $N",
        "X='*.gguf'; serve $X",
    ],
)
def test_what_only_the_running_shell_knows_is_opaque_and_keeps_its_bytes(script: str) -> None:
    found = read(script)
    assert [is_opaque(w) for w in found.words] == [True]
    after = found.written((*found.words, "--new"))
    assert after.argv[2].count(text_of(found.words[0])) == script.count(text_of(found.words[0]))
    with pytest.raises(InputError, match=r"(?s)cannot be known before the command runs.*Write the value itself there"):
        known(found.words[0])


def test_an_opaque_word_is_no_flag_and_keeps_what_is_known_of_its_beginning() -> None:
    (word,) = read("serve --key=$(cat /k)").words
    assert word.startswith("--key=")
    assert word not in ("--key=", "--key")
    with pytest.raises(InputError, match="--key=\\$\\(cat /k\\)"):
        known(word)


def test_the_environment_comes_from_the_launch_the_wrappers_and_the_script() -> None:
    script = "export A=1\nB=2\nC=3\nD=4 exec env E=5 serve $C ${F:-0}"
    found = read(script, B="x", F="6")
    assert dict(found.env) == {"A": "1", "B": "2", "C": "3", "D": "4", "E": "5", "F": "6"}
    assert found.words == ("3", "6")


@pytest.mark.parametrize(
    ("script", "name", "expected"),
    [
        ("export A=1\nexec serve", "A", "export A='x y'\nexec serve"),
        ("A=1 serve", "A", "A='x y' serve"),
        ("exec env A=1 serve", "A", "exec env 'A=x y' serve"),
        ('N=1; serve --n "$N"', "N", "N='x y'; serve --n \"$N\""),
        ("export A=$(cat k); serve", "A", "export A='x y'; serve"),
    ],
)
def test_a_variable_is_assigned_where_it_would_win(script: str, name: str, expected: str) -> None:
    found = read(script).assign(name, "x y")
    assert (found.launch.argv[2], found.launch.env) == (expected, ())
    assert found.env[name] == "x y"


def test_any_other_variable_is_assigned_in_the_launch_or_in_the_container() -> None:
    assert read("serve").assign("A", "1").launch.env == (("A", "1"),)
    inside = find(LaunchSpec(argv=("docker", "run", "-it", "image", "serve"), env=(("H", "1"),)), "serve", starts)
    assert dict(inside.env) == {}
    assert inside.assign("A", "1").launch.argv == ("docker", "run", "-e", "A=1", "-it", "image", "serve")
    script = read("exec docker run -it image serve").assign("A", "1")
    assert script.launch.argv[2] == "exec docker run -e A=1 -it image serve"


def test_an_assignment_that_was_begun_keeps_the_words_to_be_written() -> None:
    found = read("serve --a 1").assign("A", "1")
    assert found.written(["--a", "2"]) == LaunchSpec(argv=("bash", "-c", "serve --a 2"), env=(("A", "1"),))


@pytest.mark.parametrize(
    ("script", "new", "expected"),
    [
        ("serve  --a 1  --b 2 # c", ["--a", "3", "--b", "2"], "serve  --a 3  --b 2 # c"),
        ("serve --a 1 \\\n  --b 2 \\\n  --c 3\n", ["--a", "1", "--c", "3"], "serve --a 1 \\\n  --c 3\n"),
        ("serve --a 1 \\\n  --b 2 > log &", ["--a", "1"], "serve --a 1 > log &"),
        ("serve --a 1 | tee log", ["--a", "1", "--b", "x y"], "serve --a 1 --b 'x y' | tee log"),
        ("serve --a 1\\\n  --b 2", ["--a", "3", "--b", "2"], "serve --a 3\\\n  --b 2"),
        ("a=(--a --c)\nserve \"${a[@]}\"", ["--a", "--b", "--c"], "a=(--a --b --c)\nserve \"${a[@]}\""),
        ("X='--a --c'; serve $X", ["--a", "--b", "--c"], "X='--a --b --c'; serve $X"),
        ("serve 2>log", ["--a"], "serve --a 2>log"),
        ("serve --a '1' \"--b\" 2", ["--a", "1", "--b", "4"], "serve --a '1' \"--b\" 4"),
        ("N=1\nserve --a $N\n", ["--a", "2"], "N=2\nserve --a $N\n"),
        ("N=1\nserve --a=${N}\n", ["--a=2"], "N=2\nserve --a=${N}\n"),
        ("export N='1'; M=$N; serve --a \"$M\"", ["--a", "x y"], "export N='x y'; M=$N; serve --a \"$M\""),
        ("N=1; serve --a $N --b 2", ["--b", "2"], "N=1; serve --b 2"),
        ("N=1; serve --a $N", ["--c"], "N=1; serve --c"),
        ("X='--a 1 --b 2'; serve $X", ["--a", "3", "--b", "2"], "X='--a 3 --b 2'; serve $X"),
        ("X='--a 1 --b 2'; serve $X", ["--b", "2", "--c"], "X=' --b 2'; serve $X --c"),
        ("a=(--a 1\n  --b 2\n)\nserve \"${a[@]}\"", ["--a", "1", "--c"], "a=(--a 1\n  --c\n)\nserve \"${a[@]}\""),
        ("a=(--a 1\n  # b\n  --b\n)\nserve \"${a[@]}\"", ["--a", "1"], "a=(--a 1\n  # b\n)\nserve \"${a[@]}\""),
        ("serve ${U:---a 1} --b", ["--b"], "serve --b"),
        ("echo --a 1; serve --a 1", ["--a", "2"], "echo --a 1; serve --a 2"),
        ("serve --k \"$(cat k)\" --a 1", ["--a", "1", "--k"], "serve --a 1 --k"),
    ],
)  # fmt: skip
def test_writes(script: str, new: list[str], expected: str) -> None:
    assert rewritten(script, *new) == expected


@pytest.mark.parametrize(
    ("script", "new", "env"),
    [
        ("serve --a ${N:-1}", ["--a", "2"], {"N": "2"}),
        ("serve --a $N --b $M", ["--a", "2", "--b", "8"], {"N": "2", "M": "8"}),
        ('d=${N:-1}; serve --a="$d"', ["--a=2"], {"N": "2", "M": "8"}),
    ],
)
def test_a_value_from_the_environment_is_changed_there(script: str, new: list[str], env: dict[str, str]) -> None:
    given = {k: "8" for k in ("N", "M")} if "$N" in script else {"M": "8"} if "d=" in script else {}
    after = read(script, **given).written(new)
    assert (after.argv[2], dict(after.env)) == (script, env)


@pytest.mark.parametrize(
    ("script", "new", "says"),
    [
        ("N=1; serve --a $N --b $N", ["--a", "2", "--b", "1"], "two different values|share a variable"),
        ("N=1; serve --a $N --b x$N", ["--a", "2", "--b", "x1"], "share a variable"),
        ("X='--a 1'; serve $X", ["--a", "1 2"], "cannot hold this value"),
        ("serve ${U:---a 1}", ["--a", "2"], "write them out by hand"),
    ],
)
def test_refuses_what_would_change_more(script: str, new: list[str], says: str) -> None:
    with pytest.raises(InputError, match=says):
        read(script).written(new)


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("serve 'a", "' is not closed .line 1"),
        ("x\nserve $(a", "\\( is not closed .line 2"),
        ("if true; then serve", "something is missing or too much before its end"),
        ("serve)", "too much before line 1"),
        ("serve --a\n--b", "separate commands as pasted"),
        ("serve --a \\ \n  --b", "separate commands as pasted"),
        ("serve --a \\\n  # --c \\\n  --b", "separate commands as pasted"),
        ("serve --a ^\n --b", "joined by \\^ or `"),
        ("serve --a\r\n", "line ends of Windows"),
        ("echo serve-it", "no serve in this command"),
        ("main() { serve \"$@\"; }; main \"$@\"", "options of the serve come from \"\\$@\""),
        ("if [ -f x ]; then serve --a; else serve --b; fi", "in several branches"),
        ("if [ -f x ]; then X='--spec-n 3'; fi; serve $X", "X may hold options of the speculation"),
        ("if [ -f x ]; then a=(--spec-n $D); fi; serve \"${a[@]}\"", "Set in the launch what it depends on, D,"),
        ("serve ${a[@]+\"${a[@]}\"}", "cannot be followed"),
        ("docker exec c bash -c \"cd $DIR; serve\"", "DIR is set neither in the script nor in the launch"),
    ],
)  # fmt: skip
def test_refuses_what_cannot_be_read_safely(script: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        read(script)


def test_what_another_command_would_be_refused_for_does_not_matter() -> None:
    def choosy(words: Sequence[str], at: int) -> int:
        if list(words[at : at + 2]) == ["python3", "-m"]:
            raise InputError("python does not start it here")
        return starts(words, at)

    def find_in(script: str) -> Source:
        return find(LaunchSpec(argv=("bash", "-c", script)), "serve", choosy)

    assert find_in('python3 -m pip install x; serve --a; docker exec c bash -c "$CHECK"').words == ("--a",)
    with pytest.raises(InputError, match="python does not start it here"):
        find_in("python3 -m pip install x")


def test_a_refusal_shows_no_secret() -> None:
    for script in ("echo --api-key wW7; nothing", "KEY=wW7 ./run.sh", "serve --api-key wW7 &\n--b 2"):
        with pytest.raises(InputError) as refused:
            read(script)
        assert "wW7" not in str(refused.value)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["bash", "-lc", "serve --a"], ["--a"]),
        (["/bin/sh", "-eu", "-o", "pipefail", "-c", "serve --a"], ["--a"]),
        (["busybox", "sh", "-c", "serve --a"], ["--a"]),
        (["nice", "-n", "5", "env", "A=b", "bash", "--norc", "-c", "serve --a"], ["--a"]),
        (["bash", "-c", "exec \"$@\"", "--", "serve", "--a", "x y"], ["--a", "x y"]),
        (["bash", "-c", "serve $1 \"${2:-z}\" ${3:-w}", "n", "--a", "b"], ["--a", "b", "w"]),
        (["bash", "-c", "bash -c 'serve --a 1'"], ["--a", "1"]),
        (["docker", "run", "--rm", "-e", "A=b", "-p", "1:1", "--gpus=all", "-it", "serve", "serve", "--a"], ["--a"]),
        (["docker", "run", "--name", "serve", "img", "--a"], ["--a"]),
        (["docker", "run", "--entrypoint", "python3", "img", "-m", "serve", "--a"], ["--a"]),
        (["docker", "--context", "x", "container", "run", "-d", "img", "nice", "serve", "--a"], ["--a"]),
        (["podman", "exec", "-w", "/x", "c", "sh", "-c", "exec serve --a"], ["--a"]),
        (["sh", "-c", "docker run $OPTIONS \"$IMAGE\" serve --a"], ["--a"]),
        (["my-server", "--a"], ["--a"]),
        (["env", "A=b", "my-server", "--a"], ["--a"]),
        (["A=b", "serve", "--a"], ["--a"]),
        (["A=b", "my-server", "--a"], ["--a"]),
    ],
)  # fmt: skip
def test_finds_the_server_behind_wrappers_shells_and_containers(argv: list[str], expected: list[str]) -> None:
    launch = LaunchSpec(argv=tuple(argv))
    found = find(launch, "serve", starts)
    assert list(found.words) == expected
    assert found.contained is contained(launch) is any("docker" in w or "podman" in w for w in argv)
    after = found.written((*expected, "--new", "x"))
    assert find(after, "serve", starts).words == (*expected, "--new", "x")


@pytest.mark.parametrize(
    "argv",
    [
        ["docker", "compose", "up"],
        ["docker", "rm", "serve"],
        ["sh", "-c", "docker rm serve"],
        ["kubectl", "exec", "p", "--", "serve"],
        ["bash", "run.sh"],
        ["sudo", "bash", "-s"],
        ["fish", "-c", "serve"],
        ["bash"],
        [],
    ],
)
def test_refuses_what_starts_no_server_that_can_be_seen(argv: list[str]) -> None:
    with pytest.raises(InputError):
        find(LaunchSpec(argv=tuple(argv)), "serve", starts)
    assert not contained(LaunchSpec(argv=tuple(argv)))


# Laws over scripts that are put together at random

LINES = (
    "set -euo pipefail", "# serve --no 'comment", "N=3", 'N="3"', "export N='4'", "M=${N:-1}", "echo done >&2",
    'if [ "${N:-}" = 3 ]; then K=1; else K=2; fi', "L=(--l 1 'x y')", "L=()", "cat >/dev/null <<EOF\nserve $\nEOF",
    "S='--s 1'", "cd . && true", "for i in 1 2; do : $i; done", "case ${N:-} in 3) J=a ;; *) J=b ;; esac",
)  # fmt: skip
LITERALS = ("--a", "1", "'x y'", '"d \\"q\\""', "e\\ f", "''", "--g=h", "$'k'", "'{\"n\": 3}'")
EXPANSIONS = ("${U:-5}", '"${U:-6 7}"', "--m=${U:-8}", "${U:-${V-9}}", '"$(printf k)"', "$((1 + 1))", "${GIVEN}")
FROM_LINES = ("${N:-0}", '"${M-}"', "-x${K-2}", '"${L[@]}"', "${S-}", "${J:-c}")
JOINTS = (" ", "  ", " \\\n    ", "\t")
TAILS = ("", " 2>/dev/null", " &\nwait", " | cat", "\n", " # end")
NEW = ("--new", "2", "x y", "it's", "$N", "-5", "--o=1", "")


@st.composite
def scripts(draw: st.DrawFn, pieces: tuple[str, ...]) -> str:
    lines = draw(st.lists(st.sampled_from(LINES), max_size=5))
    if '"${L[@]}"' in pieces:
        lines.insert(0, "L=(--p '2 3')")
    head = draw(st.sampled_from(("serve", "exec serve", "A=1 serve", "env B=2 nice -n 0 serve")))
    parts = draw(st.lists(st.tuples(st.sampled_from(JOINTS), st.sampled_from(pieces)), max_size=7))
    return "\n".join((*lines, head + "".join(a + b for a, b in parts) + draw(st.sampled_from(TAILS))))


@st.composite
def edited(draw: st.DrawFn, old: Sequence[str]) -> list[str]:
    new = list(old)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(new)))
        what = draw(st.sampled_from(("put", "insert", "remove")))
        if what == "insert" or at == len(new):
            new.insert(at, draw(st.sampled_from(NEW)))
        elif what == "put":
            new[at] = draw(st.sampled_from(NEW))
        else:
            del new[at]
    return new


@settings(max_examples=300, deadline=None)
@given(scripts(LITERALS + EXPANSIONS + FROM_LINES))
def test_writing_what_was_read_changes_no_byte(script: str) -> None:
    found = read(script, GIVEN="g")
    assert found.place.write((*found.head, *found.words), {}) == found.launch


@settings(max_examples=300, deadline=None)
@given(st.data(), scripts(LITERALS))
def test_words_without_variables_can_always_be_changed(data: st.DataObject, script: str) -> None:
    found = read(script)
    new = data.draw(edited(found.words))
    after = found.written(new)
    assert find(after, "serve", starts).words == tuple(new)
    assert after.argv[2].startswith(script[: script.rindex("serve")])


@settings(max_examples=400, deadline=None)
@given(st.data(), scripts(LITERALS + EXPANSIONS + FROM_LINES))
def test_an_edit_is_exact_or_refused(data: st.DataObject, script: str) -> None:
    found = read(script, GIVEN="g")
    new = data.draw(edited(found.words))
    try:
        after = found.written(new)
    except InputError:
        return
    assert find(after, "serve", starts).words == tuple(new)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a `serve` that prints its words, each ended by a NUL."""
    folder: Path = tmp_path_factory.mktemp("bin")
    program = folder / "serve"
    program.write_text("#!/bin/sh\nfor w; do printf '%s\\0' \"$w\"; done\n")
    program.chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), script=scripts(LITERALS + EXPANSIONS + FROM_LINES))
def test_bash_gives_the_server_the_same_words_before_and_after_an_edit(
    path: str, data: st.DataObject, script: str
) -> None:
    found = read(script, GIVEN="g")
    assert agrees(found.words, ran(found.launch, path))
    new = data.draw(edited(found.words))
    try:
        after = found.written(new)
    except InputError:
        return
    assert agrees(new, ran(after, path))


def ran(launch: LaunchSpec, path: str) -> list[str]:
    env = {"PATH": path, **dict(launch.env)}
    done = subprocess.run(launch.argv, env=env, capture_output=True, text=True, timeout=30, check=True)
    return done.stdout.split("\0")[:-1]


def agrees(ours: Sequence[str], theirs: list[str]) -> bool:
    return len(ours) == len(theirs) and all(is_opaque(a) or a == b for a, b in zip(ours, theirs, strict=True))
