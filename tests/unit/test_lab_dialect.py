"""llama-server's manners as the lab knows them: its command line, and words that regexes for the real one must find."""

from __future__ import annotations

import msgspec
import pytest

from leadline.testing.dialects import Answer, Ask, Exit, Flags, View, lab_flags, words
from leadline.testing.dialects.llamacpp import LlamaCpp, stamp
from leadline.testing.model import LabModel
from leadline.testing.physics import LabSpec

DIALECT = LlamaCpp()


def flags(line: str) -> Flags:
    found = DIALECT.parse(line.split())
    assert isinstance(found, Flags), found
    return found


def view(*, loading: bool = False, **fields: object) -> View:
    asked = msgspec.structs.replace(Flags(host="127.0.0.1", port=8080), **fields)
    model = LabModel(LabSpec(), depth=asked.depth, max_running=asked.max_running or 4, launch=1)
    return View(flags=asked, model=model, loading=loading, boot_id="1-0")


@pytest.mark.parametrize(
    ("line", "depth", "drafts"),
    [
        ("", 0, True),
        ("--spec-type none", 0, True),
        ("--spec-type ngram-simple --spec-ngram-simple-size-n 2 --spec-ngram-simple-size-m 6", 6, True),
        ("--spec-type ngram-simple --spec-ngram-simple-size-n 7 --spec-ngram-simple-size-m 6", 6, False),
        ("--spec-type ngram-simple --spec-ngram-simple-size-m 6", 6, False),
        ("--spec-type none,ngram-map-k --spec-ngram-map-k-size-m 5", 5, True),
        ("--spec-type ngram-mod --spec-ngram-mod-n-max 9", 9, True),
        ("--spec-type draft-mtp --spec-draft-n-max 4", 4, True),
        ("-md draft.gguf", 3, True),
        ("--spec-default", 64, True),
        ("--spec-default --spec-type none", 0, True),
        ("--spec-type draft-mtp --spec-draft-n-max 4 --spec-draft-n-max 2", 2, True),
    ],
)
def test_the_depth_that_a_command_line_asks_for(line: str, depth: int, drafts: bool) -> None:
    found = flags(line)
    assert (found.depth, found.drafts) == (depth, drafts)


def test_the_rest_of_a_command_line() -> None:
    found = flags("-m /a/b.gguf -c 4096 -np 2 --host 0.0.0.0 --port 9 --metrics --no-slots -a lab-x --api-key a,b -t 2")
    assert found == Flags(
        host="0.0.0.0",
        port=9,
        max_running=2,
        context=4096,
        model="/a/b.gguf",
        alias="lab-x",
        metrics=True,
        slots=False,
        api_keys=("a", "b"),
    )
    assert flags("--parallel -1").max_running is None


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--bogus 1", "error: invalid argument: --bogus"),
        ("--draft-max 3", "the argument has been removed. use --spec-draft-n-max"),
        ("--port", 'error while handling argument "--port": expected value for argument'),
        ("-np many", 'error while handling argument "--parallel": stoi'),
        ("--spec-type warp", "unknown speculative type: warp"),
    ],
)
def test_a_command_line_that_it_refuses(line: str, said: str) -> None:
    found = DIALECT.parse(line.split())
    assert isinstance(found, Exit)
    assert found.code == 1
    assert said in found.lines[0]


def test_version_says_lab() -> None:
    assert DIALECT.parse(["--version"]) == Exit(("version: leadline-lab",), 0)


def test_the_labs_own_flags_are_kept_apart() -> None:
    assert lab_flags(["-m", "x", "--lab-spec", "s.json", "--port", "1"]) == (
        {"--lab-spec": "s.json"},
        ["-m", "x", "--port", "1"],
    )


def test_stamps_are_minutes_seconds_milli_and_microseconds() -> None:
    assert [stamp(0.0), stamp(1.42709), stamp(125.000004)] == ["0.00.000.000", "0.01.427.090", "2.05.000.004"]


def test_every_prompt_has_its_own_filler_and_a_word_a_token() -> None:
    whole = words("coding:1", 0, 40)
    assert whole == words("coding:1", 0, 7) + words("coding:1", 7, 33)
    assert len(whole.split(" ")) == 40
    assert whole != words("coding:2", 0, 40)


def ask(body: object, *, path: str = "/v1/chat/completions", on: View | None = None) -> Ask | Answer:
    return DIALECT.ask(path, msgspec.json.encode(body), on or view())


def test_a_request_is_recognised_by_its_user_field() -> None:
    body = {"messages": [{"role": "user", "content": "x" * 40}], "max_tokens": 9}
    marked, named, bare = (ask({**body, **extra}) for extra in ({"user": "coding:17"}, {"user": "coding"}, {}))
    assert isinstance(marked, Ask)
    assert isinstance(named, Ask)
    assert isinstance(bare, Ask)
    assert (marked.request.prompt_id, marked.request.prompt_tokens, marked.request.max_tokens) == ("coding:17", 10, 9)
    assert named.request.prompt_id.startswith("coding:")
    assert bare.request.prompt_id.startswith("other:")


def test_a_request_without_a_limit_may_fill_its_slot() -> None:
    found = ask({"prompt": "x" * 400}, path="/v1/completions", on=view(context=2048, max_running=2))
    assert isinstance(found, Ask)
    assert found.request.max_tokens == 1024 - 100


@pytest.mark.parametrize(
    ("body", "path", "status"),
    [
        ({"prompt": "x" * 9000}, "/v1/completions", 400),
        ({}, "/v1/completions", 400),
        ({"messages": []}, "/v1/chat/completions", 400),
        ([1], "/v1/completions", 500),
        ({"prompt": "x"}, "/v1/embeddings", 404),
    ],
)
def test_requests_that_it_refuses(body: object, path: str, status: int) -> None:
    found = ask(body, path=path, on=view(context=4096, max_running=2))
    assert isinstance(found, Answer)
    assert found.status == status
    assert msgspec.json.decode(found.body)["error"]["code"] == status


def test_while_loading_everything_says_so() -> None:
    loading = view(loading=True)
    found: list[Ask | Answer] = [DIALECT.get(path, loading) for path in ("/health", "/props", "/metrics")]
    found.append(DIALECT.ask("/v1/completions", b'{"prompt":"x"}', loading))
    for answer in found:
        assert isinstance(answer, Answer)
        assert answer.status == 503
        assert msgspec.json.decode(answer.body)["error"]["message"] == "Loading model"


def test_endpoints_that_are_switched_off_or_unknown() -> None:
    off = view(metrics=False, slots=False)
    assert [DIALECT.get(path, off).status for path in ("/metrics", "/slots", "/nope")] == [501, 501, 404]
