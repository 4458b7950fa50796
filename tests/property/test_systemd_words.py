"""Words written for a unit read back as they were meant, whatever they are and whatever stood there before."""

from __future__ import annotations

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from leadline.errors import RefusedError
from leadline.launch import LaunchSpec
from leadline.targets.systemd import environment, execline, patch, unitfile
from leadline.targets.systemd.aligned import align
from leadline.targets.systemd.edits import Reading, apply, edited, pieces_of
from leadline.targets.systemd.words import cut, quoted, specified, tame, text_of

PATH = "/etc/systemd/system/llm.service"
FILE = "/etc/default/llm"
VALUES = {"A": "1", "B": "two words", "C": "", "D": "x'y \"z", "E": "$A%n", "F": "a b  c", "KEY": "s3cret-s3cret"}
SPECIFIERS = {"n": "llm.service", "i": "", "H": "gpu-1"}
ODD = "\\'\"$%;#{}:=-@+! \t\n\rabnx01ä漢😀\x01\x7f\u2028\ufeff\uffff"
texts = st.text(st.sampled_from(ODD) | st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
argvs = st.lists(texts, max_size=6)

PARTS = (
    *("a", "--n=", "3", "4", "é", "\\n", "\\x41", "\\d", "\\\\", "\\s", "$$", "%%", "%n", "%i", "%H", "$x", "%-", "{"),
    *("${A}", "${B}", "${C}", "${D}", "${E}", "${KEY}", "${NONE}", "${A:-x}"),
    *('"b c"', "'d e'", '"${B}"', "'f\\'g'", '""'),
)
LONE = ("$A", "$B", "$C", "$F", "$NONE", "\\;", '";"', "''")
raws = st.lists(st.sampled_from(PARTS), min_size=1, max_size=6).map("".join) | st.sampled_from(LONE)
lines = st.lists(raws.filter(lambda raw: raw != ";"), max_size=6)
gaps = st.sampled_from((" ", "  ", " \\\n  ", " \\\n# note\n\t", " \\\r\n "))


@given(argvs, st.booleans())
def test_a_quoted_word_means_itself(words: list[str], dollars: bool) -> None:
    line = " ".join(quoted(word, dollars=dollars) for word in words)
    found: list[str] = []
    at = 0
    while (word := cut(line, at, strict=True)) is not None:
        text = text_of(specified(word.pieces, SPECIFIERS).pieces)
        found += environment.expanded(text, VALUES) if dollars else (text,)
        at = word.next
    assert found == words
    assert not any(c in line for c in "\n\r\0")
    assert unitfile.valid(line)


@given(raws)
def test_a_tame_word_reads_the_same(raw: str) -> None:
    before, after = cut(raw, 0), cut(tame(raw), 0, strict=True)
    assert before is not None
    assert after is not None
    assert text_of(before.pieces) == text_of(after.pieces)


@given(raws, texts, st.booleans())
def test_an_edited_word_means_the_new_text(raw: str, new: str, dollars: bool) -> None:
    reading = Reading(SPECIFIERS, VALUES, dollars)
    pieces = pieces_of(raw, reading)
    assume(pieces is not None)
    try:
        after = apply(raw, edited(raw, new, reading))
    except RefusedError:
        assert any(p.name == "KEY" for p in pieces or ())
        return
    again = pieces_of(after, reading)
    assert again is not None
    assert "".join(p.text for p in again) == new


@settings(suppress_health_check=[HealthCheck.filter_too_much])
@given(raws, st.data())
def test_one_character_less_keeps_every_other_reference(raw: str, data: st.DataObject) -> None:
    reading = Reading(SPECIFIERS, VALUES)
    pieces = pieces_of(raw, reading)
    assume(pieces)
    assert pieces is not None
    plain = [i for i, p in enumerate(pieces) if not p.name and p.text == "-"]
    assume(plain)
    gone = data.draw(st.sampled_from(plain))
    new = "".join(p.text for i, p in enumerate(pieces) if i != gone)
    after = pieces_of(apply(raw, edited(raw, new, reading)), reading)
    assert after is not None
    assert [p.name for p in after if p.name] == [p.name for p in pieces if p.name]


def unit(words: list[str], gaps: list[str], lead: str) -> execline.UnitExec:
    given = "".join(f"Environment={environment.assignment(n, v)}\n" for n, v in VALUES.items())
    command = "".join(gap + word for gap, word in zip(gaps, words, strict=True))
    return execline.read({PATH: f"[Service]\n{given}ExecStart={lead}/x{command}\nRestart=no\n"}, SPECIFIERS, {})


def mutated(data: st.DataObject, argv: tuple[str, ...]) -> tuple[str, ...]:
    out = list(argv)
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(1, len(out)))
        out[at : at + data.draw(st.integers(0, 2))] = data.draw(st.lists(texts | st.sampled_from(out), max_size=2))
    return tuple(out)


@settings(max_examples=300)
@given(lines, st.sampled_from(("", ":", "-")), st.data())
def test_a_drop_in_starts_what_was_meant(words: list[str], lead: str, data: st.DataObject) -> None:
    read = unit(words, [" "] * len(words), lead)
    base = execline.launch(read)
    launch = LaunchSpec(argv=mutated(data, base.argv), env=base.env)
    try:
        line = execline.rendered(read, launch)
    except RefusedError:
        assert any("KEY" in word for word in words)
        return
    assert "\n" not in line
    again = execline.read({**read.texts, "/x.d/y": f"[Service]\nExecStart=\nExecStart={line}\n"}, SPECIFIERS, {})
    assert execline.launch(again).argv == launch.argv
    assert VALUES["KEY"] not in line or VALUES["KEY"] in "".join(words)
    assert not [p for p in again.problems if "escapes" in p and "/x.d/y" in p]


@settings(max_examples=300)
@given(lines, st.data())
def test_a_patch_starts_what_was_meant_and_leaves_the_lines_around(words: list[str], data: st.DataObject) -> None:
    read = unit(words, [data.draw(gaps) for _ in words], "")
    base = execline.launch(read)
    launch = LaunchSpec(argv=mutated(data, base.argv), env=base.env)
    try:
        new = patch.patched(read.texts, read, launch)
    except RefusedError:
        return
    if launch.argv == base.argv:
        assert new == {}
        return
    again = execline.launch(execline.read(new, SPECIFIERS, {}))
    assert again.argv == launch.argv
    assert new[PATH].endswith("\nRestart=no\n")
    assert new[PATH].count("# note") == read.texts[PATH].count("# note")
    assert VALUES["KEY"] not in patch.diff(read.texts, read, launch)


@given(texts, texts.filter(bool))
def test_the_bytes_of_a_value_are_where_they_are_said_to_be(before: str, value: str) -> None:
    text = f"[Service]\n{before}\n\nA={value}"
    data = text.encode()
    for entry in unitfile.parse(PATH, text).entries:
        for char, at in zip(entry.value, entry.offsets, strict=False):
            there = data[at : at + len(char.encode())].decode()
            assert there == char or (char == " " and there == "\\")


@given(st.dictionaries(st.from_regex(r"[A-Z_][A-Z0-9_]{0,5}", fullmatch=True), texts, max_size=4), st.data())
def test_a_value_written_into_an_environment_file_reads_back(values: dict[str, str], data: st.DataObject) -> None:
    styles = {name: data.draw(st.sampled_from(("a b", "'a b'", '"a b"', "a\\ b"))) for name in values}
    text = "".join(f"# {name}\n{name}={style}\n" for name, style in styles.items())
    found, _ = environment.of_file(FILE, text)
    for assigned in sorted(found, key=lambda a: a.start, reverse=True):
        new = values[assigned.name]
        assume(unitfile.valid(new) and "\0" not in new)
        text = text[: assigned.start] + assigned.written(new) + text[assigned.end :]
    again, problems = environment.of_file(FILE, text)
    assert {a.name: a.value for a in again} == values
    assert problems == []


@given(st.lists(st.sampled_from("abc-"), max_size=8), st.lists(st.sampled_from("abc-"), max_size=8))
def test_an_alignment_is_in_order_and_whole(old: list[str], new: list[str]) -> None:
    pairs = align(old, new)
    assert [i for i, _ in pairs if i is not None] == list(range(len(old)))
    assert [j for _, j in pairs if j is not None] == list(range(len(new)))
    if old == new:
        assert all(i == j for i, j in pairs)


@given(st.text(max_size=60), st.text(max_size=40))
def test_no_text_is_too_strange_to_read(text: str, file: str) -> None:
    for head in ("", "[Service]\nExecStart=/x ", "[Service]\nEnvironment="):
        execline.read({PATH: head + text}, {}, {FILE: file})
    execline.read({PATH: f"[Service]\nEnvironmentFile={FILE}\nExecStart=/x\n"}, {}, {FILE: file})
