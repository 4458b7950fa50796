"""The documentation is fresh and complete, its links resolve, and what it shows runs."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import click
import pytest
from support_docs import LabShell, matches

from leadline.analysis import stats
from leadline.build import names, plugin
from leadline.cli.main import COMMANDS, cli
from leadline.config import parse_campaign
from leadline.config.table import SECTIONS
from leadline.errors import LeadlineError
from leadline.evidence import Failure
from leadline.journal import events
from leadline.metrics import METRICS
from leadline.testing import strategy_suite, workload_suite

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
GENERATE = DOCS / "generate.py"


class Block(NamedTuple):
    """A fenced block: where it stands, the words after the fence, its text."""

    page: Path
    line: int
    info: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path, info: str) -> Iterator[Block]:
    fence, start, lines = "", 0, []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if not fence and (match := re.match(r"(```+)(.*)", line)):
            fence, start, lines, words = match[1], number, [], match[2].strip()
        elif fence and line.startswith(fence):
            if words == info:
                yield Block(page, start, words, "\n".join(lines))
            fence = ""
        elif fence:
            lines.append(line)


def every(info: str) -> list[Block]:
    return [b for page in PAGES for b in blocks(page, info)]


def prose(page: Path) -> str:
    """A page without its fenced blocks and code spans: what links are looked for in."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^(```+).*?^\1", "", page.read_text(encoding="utf-8"), flags=re.M | re.S))


# --- the reference


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("leadline_docs_generate", GENERATE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_is_fresh_whatever_the_terminal_is() -> None:
    env = {**os.environ, "COLUMNS": "43", "LC_ALL": "C", "TERM": "dumb"}
    argv = [sys.executable, str(GENERATE), "--check"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, cwd="/")
    assert done.returncode == 0, done.stderr


def test_a_stale_missing_or_left_over_page_is_named_and_written_again(
    generate: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for page in REFERENCE.glob("*.md"):
        shutil.copy(page, tmp_path)
    (tmp_path / "metrics.md").write_text("changed", encoding="utf-8")
    (tmp_path / "knobs.md").unlink()
    (tmp_path / "gone.md").write_text("left over", encoding="utf-8")
    assert generate.main(["--check", "--folder", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert [name for name in ("gone.md", "knobs.md", "metrics.md", "journal.md") if name in said] == [
        "gone.md", "knobs.md", "metrics.md",
    ]  # fmt: skip
    assert generate.main(["--folder", str(tmp_path)]) == 0
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {p.name: p.read_text() for p in REFERENCE.iterdir()}


def codes_in_the_source() -> list[str]:
    source = ROOT / "src" / "leadline"
    texts = (p.read_text(encoding="utf-8") for p in source.rglob("*.py") if "testing" not in p.parts)
    return sorted({code for text in texts for code in re.findall(r"Finding\(\s*code=\"(\w+)\"", text)})


def subclasses(kind: type) -> Iterator[type[LeadlineError]]:
    for sub in kind.__subclasses__():
        if sub.__module__ == "leadline.errors":
            yield sub
            yield from subclasses(sub)


MENTIONED: dict[str, tuple[str, Callable[[], list[str]]]] = {
    "commands": ("commands.md", lambda: [f"## leadline {name}\n" for name in COMMANDS]),
    "options": ("commands.md", lambda: [word for name in COMMANDS for word in _options(name)]),
    "knobs": ("knobs.md", lambda: [f"`{k.name}`" for k in plugin("engines", "llamacpp", "engine").knobs()]),
    "metrics": ("metrics.md", lambda: [f"`{name}`" for name in METRICS]),
    "sections": ("campaign-toml.md", lambda: [f"[{s.name}" for s in SECTIONS]),
    "keys": ("campaign-toml.md", lambda: [f"| `{k.name}" for s in SECTIONS for k in s.keys if ":" not in k.name]),
    "findings": ("findings.md", lambda: [f"`{code}`" for code in codes_in_the_source()]),
    "failures": ("failures.md", lambda: [f"`{f}`" for f in Failure]),
    "errors": ("exit-codes.md", lambda: [e.__name__ for e in subclasses(LeadlineError)]),
    "exit codes": ("exit-codes.md", lambda: [f"| `{e.exit_code}` |" for e in subclasses(LeadlineError)] + ["`128+n`"]),
    "events": ("journal.md", lambda: [f"### {kind.__struct_config__.tag}\n" for kind in _event_kinds()]),
}


def _options(name: str) -> list[str]:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    return [word for p in command.params if isinstance(p, click.Option) and not p.hidden for word in p.opts]


def _event_kinds() -> list[Any]:
    return [k for k in vars(events).values() if isinstance(k, type) and issubclass(k, events.Event)][1:]


@pytest.mark.parametrize("what", MENTIONED)
def test_the_reference_mentions_every_one_of(what: str) -> None:
    page, wanted = MENTIONED[what]
    text = (REFERENCE / page).read_text(encoding="utf-8")
    assert len(wanted()) > 1 or what == "sections"
    assert [w for w in wanted() if w not in text] == []


def test_the_page_on_failing_explains_every_exit_code() -> None:
    text = (DOCS / "how-to" / "when-something-fails.md").read_text(encoding="utf-8")
    codes = {e.exit_code for e in subclasses(LeadlineError)} | {130, 143, 129}
    assert [c for c in sorted(codes) if not re.search(rf"^\| .*\b{c}\b.* \|", text, re.MULTILINE)] == []


# --- pages


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_relative_links_resolve(page: Path) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", t.lower()).strip().replace(" ", "-") for t in titles}


def test_every_page_can_be_found_from_the_index() -> None:
    linked = {
        (page.parent / link.partition("#")[0]).resolve()
        for page in (DOCS / "README.md", REFERENCE / "README.md")
        for link in re.findall(r"\]\(([^)\s]+)\)", prose(page))
    }
    decisions = set((DOCS / "decisions").glob("*.md"))
    pages = set(DOCS.rglob("*.md")) - decisions - {DOCS / "README.md"}
    assert {str(p) for p in pages} <= {str(p) for p in linked}


def test_decisions_are_numbered_without_a_gap_and_have_the_same_parts() -> None:
    records = sorted((DOCS / "decisions").glob("*.md"))
    assert [p.name[:4] for p in records] == [f"{n:04}" for n in range(1, len(records) + 1)]
    for number, record in enumerate(records, 1):
        text = record.read_text(encoding="utf-8")
        assert text.startswith(f"# {number}. ")
        parts = re.findall(r"^## (.+)$", text, re.MULTILINE)
        assert (parts[:2], parts[-2:]) == (["Question", "Decision"], ["What we give up", "When to look again"]), record


def test_the_readme_is_short_and_holds_the_demo() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 200
    assert re.search(r"<!-- demo output -->\n.+\n<!-- end -->", text, re.DOTALL)
    assert "make demo" in text
    assert "make test" in text


def test_no_page_names_a_place_of_the_machine_it_was_written_on() -> None:
    places = re.compile(r"/work\b|/tmp/|\.\./shared|/root\b")
    assert [str(p) for p in PAGES if places.search(p.read_text(encoding="utf-8"))] == []


def test_the_table_of_smallest_differences_is_what_the_statistics_say() -> None:
    text = (DOCS / "explanation" / "honest-numbers.md").read_text(encoding="utf-8")
    rounds = [int(n) for n in re.findall(r"\d+", re.search(r"^\| rounds .*$", text, re.MULTILINE)[0])]
    shown = re.findall(r"[\d.]+(?= %)", re.search(r"^\| smallest difference shown .*$", text, re.MULTILINE)[0])
    noises = [stats.Noise(sd=stats.prior_noise().sd, df=4 * (n - 1)) for n in rounds]  # five settings
    assert shown == [f"{100 * stats.detectable(noise, n):.1f}" for noise, n in zip(noises, rounds, strict=True)]


# --- what is shown is so

BASE = {
    "service": '[service]\nengine = "llamacpp"\ntarget = "command"\ncommand = "llama-server -m model.gguf -np 4"\n',
    "knobs": "[knobs]\ndepth = [0, 4]\n",
    "workloads": '[workloads.coding]\nbuiltin = "coding"\n[workloads.chat]\nbuiltin = "chat"\n',
    "goals": '[goals.one]\nweights = { "chat@1" = 1 }\n',
}


@pytest.mark.parametrize("block", every("toml"), ids=str)
def test_pieces_of_campaign_toml_are_accepted(block: Block) -> None:
    given = tomllib.loads(block.text)
    rest = "\n".join(text for section, text in BASE.items() if section not in given)
    parse_campaign(f"{block.text}\n{rest}", str(block), names())


def test_the_example_of_a_traffic_file_is_accepted() -> None:
    (block,) = blocks(DOCS / "how-to" / "use-your-own-traffic.md", "json")
    workload = plugin("workloads", "file", "FileWorkload")("mine", block.text.split("\n"), str(block), {})
    assert workload.available == 3


def example(page: str) -> dict[str, Any]:
    (block,) = blocks(DOCS / "how-to" / page, "python run")
    namespace: dict[str, Any] = {"__name__": page}
    exec(compile(block.text, str(block), "exec"), namespace)
    return namespace


@pytest.mark.parametrize("law", workload_suite.LAWS)
def test_the_example_of_a_workload_obeys(law: str) -> None:
    workload_suite.LAWS[law](example("add-a-workload.md")["workload"])


@pytest.mark.parametrize("law", strategy_suite.LAWS)
def test_the_example_of_a_strategy_obeys(law: str) -> None:
    strategy_suite.LAWS[law](example("add-a-strategy.md")["Ends"])


RUN = [ROOT / "README.md", DOCS / "tutorial.md"]


@pytest.fixture(scope="module", params=RUN, ids=lambda p: p.name)
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[tuple[Block, str]]]:
    """A page's runnable blocks with what their commands really printed, run in order in one folder."""
    shell = LabShell(tmp_path_factory.mktemp("page"))
    yield [(block, shell.run(block.text)) for block in blocks(request.param, "console run")]
    assert not shell.listening()


def test_the_commands_of_a_page_run_and_say_what_the_page_shows(told: list[tuple[Block, str]]) -> None:
    assert told
    for block, output in told:
        assert matches(block.text, output), f"{block} shows\n{block.text}\n--- but it is\n{output}"


def test_a_page_shows_no_output_that_is_not_there() -> None:
    assert matches("$ one\na 1.5 b\n...\nend", "a 2.75 b\nx\ny\nend\n")
    assert not matches("$ one\na 1.5 b\nend", "a 2.75 b\nx\nend\n")
    assert not matches("$ one\nother", "a\n")
    assert matches("$ one", "whatever\n")


def test_every_runnable_block_is_on_a_page_that_is_run() -> None:
    assert {b.page for b in every("console run")} == set(RUN)
