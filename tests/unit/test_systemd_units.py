"""Units as systemd reads them, the words of a drop-in, and the patch of the operator's own files.

cases.json: one unit a row with the words that a real systemd has of it (tests/e2e/test_systemd_cases_real.py holds the
table to that) and that its process gets. shapes.json: units as operators write them, another depth put in by the real
engine plug-in, and every byte that changes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from leadline.build import plugin
from leadline.errors import InputError, RefusedError
from leadline.launch import LaunchSpec
from leadline.space import Setting
from leadline.targets.systemd import execline, patch
from leadline.targets.systemd.execline import UnitExec

GOLDEN = Path(__file__).parents[1] / "golden" / "systemd"
CASES: list[dict[str, Any]] = json.loads((GOLDEN / "cases.json").read_text())
SHAPES: list[dict[str, Any]] = json.loads((GOLDEN / "shapes.json").read_text())
WRITTEN = [row for row in SHAPES if "execstart" in row]
PATH = "/etc/systemd/system/llm.service"
SECRETS = ("sk-verysecret123", "hf_abcdefghijklmnop1")


def named(row: dict[str, Any]) -> str:
    return str(row["name"])


def specifiers(name: str) -> dict[str, str]:
    last = name.split("-")[-1]
    paths = {
        "t": "/run",
        "S": "/var/lib",
        "C": "/var/cache",
        "L": "/var/log",
        "E": "/etc",
        "T": "/tmp",
        "V": "/var/tmp",
    }
    user = {"u": "root", "U": "0", "h": "/root"}
    names = {"n": f"{name}.service", "N": name, "p": name, "i": "", "I": "", "j": last, "J": last}
    return {
        **paths,
        **user,
        **names,
        "P": name.replace("-", "/"),
        "f": "/" + name.replace("-", "/"),
        "Y": "/run/systemd/system",
    }


def case(row: dict[str, Any]) -> UnitExec:
    name = f"case-{row['name'].split()[0]}"
    path = f"/run/systemd/system/{name}.service"
    drop_ins = {f"{path}.d/{file}": text for file, text in row.get("drop_ins", {}).items()}
    return execline.read({path: row["unit"], **drop_ins}, specifiers(name), row.get("files", {}))


def unit(lines: str, files: Mapping[str, str] | None = None, **specifiers: str) -> UnitExec:
    return execline.read({PATH: f"[Service]\n{lines}"}, specifiers, files or {})


def changed(read: UnitExec, *words: str, **env: str) -> LaunchSpec:
    base = execline.launch(read)
    return LaunchSpec(argv=words or base.argv, env=tuple({**dict(base.env), **env}.items()))


@pytest.mark.parametrize("row", CASES, ids=named)
def test_reads_a_unit_as_systemd_does(row: dict[str, Any]) -> None:
    read = case(row)
    assert [list(read.bus(c)) for c in read.commands] == row["bus"]
    assert (not read.fatal) == bool(row["argv"] or "no ExecStart" in row.get("refused", ""))
    if not read.fatal:
        assert [[e.text for e in read.expanded(c)] for c in read.commands] == row["argv"]
    assert list(read.problems) == row.get("problems", [])


@pytest.mark.parametrize("row", CASES, ids=named)
def test_every_word_knows_its_bytes(row: dict[str, Any]) -> None:
    read = case(row)
    for word in (w for c in read.commands for w in c.words):
        data = read.texts[word.path].encode()
        assert word.line == len([e for e in range(word.start) if ends_line(data, e)]) + 1
        for char, at in zip(word.raw, word.offsets, strict=False):
            there = data[at : at + len(char.encode())].decode()
            assert there == char or (char == " " and there == "\\")
        assert word.offsets[0] == word.start
        assert word.offsets[-1] == word.end


def ends_line(data: bytes, at: int) -> bool:
    return data[at : at + 1] in (b"\r", b"\n") and data[at : at + 2] not in (b"\r\n", b"\n\r")


@pytest.mark.parametrize("row", CASES, ids=named)
def test_what_is_refused_is_refused_with_its_reason(row: dict[str, Any]) -> None:
    """All of the table but for Type=oneshot, which each unit has so that its process can be waited for."""
    read = msgspec.structs.replace(case(row), type="exec")
    if "refused" not in row:
        assert list(execline.launch(read).argv) == row["argv"][0]
        return
    with pytest.raises(RefusedError) as refused:
        execline.launch(read)
    assert str(refused.value) == row["refused"]


@pytest.mark.parametrize("row", [r for r in CASES if "refused" not in r], ids=named)
def test_the_present_words_are_written_as_they_stand(row: dict[str, Any]) -> None:
    read = msgspec.structs.replace(case(row), type="exec")
    line = execline.rendered(read, execline.launch(read))
    plain = [w.raw for w in read.commands[0].words if not w.strange]
    at = 0
    for raw in plain:
        at = line.index(raw, at) + len(raw)
    texts = {**read.texts, **read.environment_files}
    assert patch.patched(texts, read, execline.launch(read)) == {}


def shape(row: dict[str, Any]) -> tuple[UnitExec, dict[str, str]]:
    read = execline.read(row["files"], row.get("specifiers", {}), row.get("environment_files", {}))
    return read, {**read.texts, **read.environment_files}


def rendered(row: dict[str, Any], read: UnitExec) -> LaunchSpec:
    launch: LaunchSpec = plugin("engines", row["engine"], "engine").render(
        execline.launch(read), Setting.parse(row["setting"])
    )
    return launch


@pytest.mark.parametrize("row", WRITTEN, ids=named)
def test_a_drop_in_has_the_words_of_the_knobs_anew_and_the_rest_as_written(row: dict[str, Any]) -> None:
    read, _ = shape(row)
    launch = rendered(row, read)
    lines, line = execline.environment_lines(read, launch), execline.rendered(read, launch)
    assert list(lines) == row["environment"]
    assert line == row["execstart"]
    assert not [s for s in SECRETS if s in line]
    drop_in = "\n".join(["[Service]", *lines, "ExecStart=", f"ExecStart={line}", ""])
    again = execline.launch(execline.read({**read.texts, "/x.d/y": drop_in}, read.specifiers, read.environment_files))
    assert again.argv == launch.argv
    assert dict(again.env) == dict(launch.env)


@pytest.mark.parametrize("row", [r for r in SHAPES if "diff" in r], ids=named)
def test_a_patch_changes_the_bytes_of_the_knobs_alone(row: dict[str, Any]) -> None:
    read, texts = shape(row)
    launch = rendered(row, read)
    found = patch.diff(texts, read, launch)
    assert found.split("\n") == row["diff"]
    assert not [s for s in SECRETS if s in found]
    new = {**texts, **patch.patched(texts, read, launch)}
    files = {p: new[p] for p in read.environment_files}
    again = execline.launch(execline.read({p: new[p] for p in read.texts}, read.specifiers, files))
    assert again.argv == launch.argv


@pytest.mark.parametrize("row", [r for r in SHAPES if "refused" in r], ids=named)
def test_a_shape_that_cannot_be_tried_is_refused_with_the_reason(row: dict[str, Any]) -> None:
    read, _ = shape(row)
    with pytest.raises(InputError) as refused:
        execline.rendered(read, rendered(row, read))
    assert str(refused.value) == row["refused"]
    assert not [s for s in SECRETS if s in str(refused.value)]


@pytest.mark.parametrize("row", [r for r in SHAPES if "no_patch" in r], ids=named)
def test_what_cannot_be_patched_says_where_to_look(row: dict[str, Any]) -> None:
    read, texts = shape(row)
    with pytest.raises(RefusedError) as refused:
        patch.patched(texts, read, rendered(row, read))
    assert str(refused.value) == row["no_patch"]


def test_the_tables_have_what_they_promise() -> None:
    assert [r["name"].split()[0] for r in CASES] == [str(i + 1) for i in range(len(CASES))]
    assert len(CASES) >= 80
    assert len(WRITTEN) >= 12
    assert all(("execstart" in r) != ("refused" in r) for r in SHAPES)


def test_what_else_the_unit_says() -> None:
    service = "Type=notify\nUser=llm\nWorkingDirectory=-/srv/%i\nKillMode=mixed\nRestart=always\nTimeoutStopSec=5min\n"
    read = unit(f"{service}ExecStart=/x\n", i="a")
    assert (read.type, read.user, read.working_directory) == ("notify", "llm", "/srv/a")
    assert (read.kill_mode, read.restart, read.timeout_stop) == ("mixed", "always", "5min")
    assert execline.launch(read).cwd == "/srv/a"
    assert unit("WorkingDirectory=~\nExecStart=/x\n").working_directory is None
    assert "secret" not in repr(unit("Environment=API_KEY=secret\nExecStart=/x\n"))


@pytest.mark.parametrize(
    ("lines", "words", "after"),
    [
        ("/x --n 3", ("/x", "--n", "4"), "/x --n 4"),
        ("/x --a=3 'b c'", ("/x", "--a=4", "b c"), "/x --a=4 'b c'"),
        ('/x "--a=3 z" -v', ("/x", "--a=4 z", "-v"), '/x "--a=4 z" -v'),
        ("/x --a ${V} --b $V", ("/x", "--a", "v", "--b", "v", "new word"), '/x --a ${V} --b $V "new word"'),
        ("/x --a=${V}-1", ("/x", "--a=v-2"), "/x --a=${V}-2"),
        ("/x a${V}b", ("/x", "a v b"), '/x "a v b"'),
        ("/x a-${V}-b", ("/x", "a v b"), '/x "a ${V} b"'),
        ("/x --a=${V}", ("/x", "--a=w"), "/x --a=w"),
        ("/x $MANY end", ("/x", "1", "2", "end"), "/x $MANY end"),
        ("/x $MANY end", ("/x", "1", "3", "end"), "/x 1 3 end"),
        ("/x $MANY end", ("/x", "1", "y", "2", "end"), "/x 1 y 2 end"),
        ("/x $NONE end", ("/x", "end", "$5"), '/x $NONE end "$$5"'),
        (":/x $MANY", (":/x"[1:], "$MANY", "$5", "50%"), ':/x $MANY "$5" "50%%"'),
        ("-@/x name 1", ("name", "2"), "-@/x name 2"),
        ("-/x 1", ("/y", "1"), "-/y 1"),
        ("+/x 1", ("nice", "/x", "1"), "+nice /x 1"),
        ("/x \\; 1", ("/x", ";", "2"), "/x \\; 2"),
        ("/x 1", ("/x", ";"), '/x ";"'),
        ("/x \\d+ 1", ("/x", "\\d+", "2"), "/x \\\\d+ 2"),
        ("/x 1 \\", ("/x", "1", "2"), "/x 1 2"),
        ("/x --k ${KEY} 3", ("/x", "--k", "s3cret-s3cret", "4"), "/x --k ${KEY} 4"),
        ("/x --k ${KEY} --n 3", ("/x", "--n", "4", "--k", "s3cret-s3cret"), "/x --n 4 --k ${KEY}"),
        ('/x \'{"k":"${KEY}","n":3}\'', ("/x", '{"k":"s3cret-s3cret","n":4}'), '/x \'{"k":"${KEY}","n":4}\''),
    ],
)
def test_what_does_not_change_keeps_its_raw_form(lines: str, words: tuple[str, ...], after: str) -> None:
    read = unit(f"Environment=V=v MANY='1 2' KEY=s3cret-s3cret\nExecStart={lines}\n")
    assert execline.rendered(read, changed(read, *words)) == after


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("/x --k=${KEY}", ("/x", "--k=s3cret-other")),
        ("/x --k 1 ${KEY}", ("/x", "--k", "x s3cret-s3cret y")),
        ("/x --k=${KEY} --n", ("/x", "--n", "--key", "s3cret-s3cret")),
        ("/x $KEY", ("/x", "s3cret-s3cret!")),
        ("/x ${KEY}-1", ("/x", "other")),
    ],
)
def test_a_secret_is_never_written_out(lines: str, words: tuple[str, ...]) -> None:
    read = unit(f"Environment=KEY=s3cret-s3cret\nExecStart={lines}\n")
    for write in (execline.rendered, lambda u, n: patch.diff(u.texts, u, n)):
        with pytest.raises(RefusedError) as refused:
            write(read, changed(read, *words))
        assert "s3cret-s3cret" not in str(refused.value)


def test_variables_of_a_launch_become_lines_of_the_drop_in() -> None:
    read = unit("Environment=A=1 B=2\nExecStart=/x ${A} $$B\n")
    launch = changed(read, A='3 "%n', C="$x")
    assert execline.environment_lines(read, launch) == ("Environment='A=3 \"%%n'", 'Environment="C=$x"')
    assert execline.rendered(read, launch) == "/x 1 $$B"


def test_a_variable_of_an_environment_file_cannot_be_changed_from_a_unit() -> None:
    read = unit("EnvironmentFile=/e\nUnsetEnvironment=U\nExecStart=/x\n", {"/e": "\nA=1\n"})
    with pytest.raises(RefusedError, match=r"A is set in /e:2, an environment file"):
        execline.environment_lines(read, changed(read, A="2"))
    with pytest.raises(RefusedError, match="UnsetEnvironment="):
        execline.environment_lines(read, changed(read, U="2"))
    with pytest.raises(RefusedError, match="API_KEY is a secret"):
        execline.environment_lines(read, changed(read, API_KEY="s3cret"))


@pytest.mark.parametrize(
    ("before", "words", "after"),
    [
        (
            "ExecStart=/x \\\n  --a 1 \\\n# c\n  --b 2 \\\n  --c 3\n",
            ("/x", "--a", "1", "--b", "9", "--c", "3"),
            "--b 9 \\",
        ),
        ("ExecStart=/x --a 1 \\\n  --c 3\n", ("/x", "--a", "1", "--b", "2", "--c", "3"), "/x --a 1 --b 2 \\\n  --c 3"),
        ("ExecStart=/x --a 1 \\\n  --b 2 \\\n  --c 3\n", ("/x", "--a", "1", "--c", "3"), "/x --a 1 \\\n  --c 3\n"),
        ("ExecStart=/x --a 1 \\\n  --c 3\n", ("/x", "--a", "1"), "/x --a 1\n"),
        ("ExecStart=/x --a 1 \\\n  # c\n  --c 3\n", ("/x", "--a", "1"), "/x --a 1 \\\n  # c\n\n"),
        ("ExecStart=-/x 'a \\\n  b' 1\n", ("/x", "a    c", "1"), "-/x 'a \\\n  c' 1\n"),
        ("ExecStart=/x 'a \\\nb' 1\n", ("/x", "a  -b", "1"), "/x 'a \\\n-b' 1\n"),
        ("ExecStart=/x 'a\\\nb' 1\n", ("/x", "a-c b", "1"), "/x 'a-c\\\nb' 1\n"),
        ("ExecStart=/x 1", ("/x", "2"), "ExecStart=/x 2"),
        ("Environment=N=1\nExecStart=/x ${N} --n=${N}\n", ("/x", "2", "--n=2"), "N=2\nExecStart=/x ${N} --n=${N}\n"),
        ("ExecStart=é 1 ü\n", ("é", "2", "ü"), "ExecStart=é 2 ü\n"),
    ],
)
def test_a_patch_keeps_lines_and_comments(before: str, words: tuple[str, ...], after: str) -> None:
    read = unit(before)
    new = patch.patched(read.texts, read, changed(read, *words))[PATH]
    assert after in new
    crlf = execline.read({PATH: f"[Service]\n{before}".replace("\n", "\r\n")}, {}, {})
    assert patch.patched(crlf.texts, crlf, changed(crlf, *words))[PATH] == new.replace("\n", "\r\n")


@pytest.mark.parametrize(
    ("lines", "words", "reason"),
    [
        ("Environment=N=1\nExecStart=/x ${N} --n=${N}\n", ("/x", "2", "--n=1"), "without changing other words"),
        (
            "ExecStart=/x 1${N}\nEnvironment=N=1\n",
            ("/x", "22"),
            f"{PATH}:2: what changes there comes in part from the variable N",
        ),
        ("Environment='MANY=1 \"a b\"'\nExecStart=/x $MANY\n", ("/x", "2", "a b"), f"come from MANY, set in {PATH}:2"),
    ],
)
def test_a_patch_that_would_change_more_is_refused(lines: str, words: tuple[str, ...], reason: str) -> None:
    read = unit(lines)
    with pytest.raises(RefusedError, match=reason):
        patch.patched(read.texts, read, changed(read, *words))


def test_a_variable_from_a_file_that_is_not_at_hand_is_named_with_its_line() -> None:
    read = unit("EnvironmentFile=/e\nExecStart=/x ${N}\n", {"/e": "A=1\nN=1\n"})
    with pytest.raises(RefusedError, match=r"the variable N, which is set in /e:2: change it there"):
        patch.patched(read.texts, read, changed(read, "/x", "2"))


def test_a_diff_shows_no_secret_of_the_lines_around() -> None:
    text = (
        '# HF_TOKEN=hf_abcdefghijklmnop1\n[Service]\nEnvironment="API_KEY=two words" A=1\n'
        "ExecStartPre=/y --api-key \\\n  plain\nExecStart=/x --api-key 'p w' --n 1"
    )
    read = execline.read({PATH: text}, {}, {})
    found = patch.diff(read.texts, read, changed(read, "/x", "--api-key", "p w", "--n", "2"))
    assert found == (
        "Secrets read <secret:NAME> here: where a changed line has one, make the change by hand.\n"
        f"--- a{PATH}\n+++ b{PATH}\n@@ -3,4 +3,4 @@\n Environment=API_KEY=<secret:API_KEY> A=1\n"
        " ExecStartPre=/y --api-key \\\n   <secret:api-key>\n-ExecStart=/x --api-key <secret:api-key> --n 1\n"
        "\\ No newline at end of file\n+ExecStart=/x --api-key <secret:api-key> --n 2\n\\ No newline at end of file\n"
    )
