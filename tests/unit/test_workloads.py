from __future__ import annotations

import importlib
import itertools
import json
import re
import sqlite3
from collections.abc import Iterator

import pytest

from leadline.errors import InputError
from leadline.ports import PlannedRequest, Workload
from leadline.workloads._material import Source, Sources, read
from leadline.workloads.file import FileWorkload

NAMES = ("agent", "chat", "coding", "extract", "summarize")
SINGLE_TURN = tuple(name for name in NAMES if name != "agent")


def built_in(workload: str, body: dict[str, object] | None = None, name: str | None = None) -> Workload:
    made: Workload = importlib.import_module(f"leadline.workloads.{workload}").workload(body or {}, name)
    return made


def in_file_order(workload: Workload) -> list[PlannedRequest]:
    found = [r for session in workload.sessions(workload.available, 0) for r in session]
    return sorted(found, key=lambda r: [int(n) for n in re.findall(r"\d+", r.prompt_id)])


def messages(request: PlannedRequest) -> list[dict[str, str]]:
    found = request.body["messages"]
    assert isinstance(found, list)
    return found


def text(request: PlannedRequest) -> str:
    return "\n\n".join(m["content"] for m in messages(request) if m["role"] != "system")


def five_grams(prompt: str) -> set[tuple[str, ...]]:
    words = prompt.split()
    return {tuple(words[i : i + 5]) for i in range(len(words) - 4)}


# --- every built-in


@pytest.mark.parametrize("name", NAMES)
def test_there_are_at_least_40_distinct_requests(name: str) -> None:
    assert len({text(r) for r in in_file_order(built_in(name))}) >= 40


def test_the_agent_has_at_least_14_sessions_of_3_or_4_requests() -> None:
    agent = built_in("agent")
    assert agent.available >= 14
    assert {len(session) for session in agent.sessions(agent.available, 0)} == {3, 4}


@pytest.mark.parametrize("name", NAMES)
def test_requests_look_like_real_traffic(name: str) -> None:
    temperature = {"agent": 0.2, "chat": 0.7, "coding": 0.2, "extract": 0.0, "summarize": 0.3}[name]
    for request in in_file_order(built_in(name)):
        body = request.body
        assert set(body) == {"messages", "temperature", "max_tokens", "seed", "user"}  # no ignore_eos among them
        assert body["temperature"] == temperature
        assert body["max_tokens"] in range(200, 500)
        assert body["user"] == request.prompt_id
        assert messages(request)[-1]["role"] == "user"


@pytest.mark.parametrize("name", NAMES)
def test_each_prompt_has_a_sampling_seed_of_its_own(name: str) -> None:
    seeds = [r.body["seed"] for r in in_file_order(built_in(name))]
    assert len(set(seeds)) == len(seeds)
    assert all(isinstance(seed, int) and 0 <= seed < 2**31 for seed in seeds)


def test_sampling_seeds_never_change() -> None:
    assert in_file_order(built_in("coding"))[0].body["seed"] == 70044129


@pytest.mark.parametrize("name", SINGLE_TURN)
def test_prompt_ids_follow_the_order_of_the_material(name: str) -> None:
    requests = in_file_order(built_in(name))
    assert [r.prompt_id for r in requests] == [f"{name}:{i}" for i in range(len(requests))]


def test_agent_prompt_ids_are_session_and_turn() -> None:
    agent = built_in("agent")
    for session in agent.sessions(agent.available, 0):
        number = session[0].prompt_id.split(":")[1].split(".")[0]
        assert [r.prompt_id for r in session] == [f"agent:{number}.{turn}" for turn in range(len(session))]


@pytest.mark.parametrize("name", NAMES)
def test_another_name_shows_in_prompt_ids_and_digest(name: str) -> None:
    other = built_in(name, name="mine")
    assert other.name == "mine"
    assert {r.prompt_id.split(":")[0] for r in in_file_order(other)} == {"mine"}
    assert other.digest != built_in(name).digest


@pytest.mark.parametrize("key", ["messages", "prompt", "stream"])
@pytest.mark.parametrize("name", NAMES)
def test_a_body_that_would_replace_the_prompt_is_refused(name: str, key: str) -> None:
    with pytest.raises(InputError, match=f"workload {name}: body sets {key};.*Allowed"):
        built_in(name, {key: "x"})


def test_too_many_sessions_are_refused_with_how_many_there_are() -> None:
    chat = built_in("chat")
    with pytest.raises(InputError, match=rf"chat \(built in\) has {chat.available} distinct sessions and 5000 were"):
        chat.sessions(5000, 0)


def test_a_smaller_sample_is_the_beginning_of_a_larger_one() -> None:
    coding = built_in("coding")
    assert coding.sessions(5, 3) == coding.sessions(40, 3)[:5]


def test_another_seed_gives_another_sample() -> None:
    coding = built_in("coding")
    assert {r.prompt_id for s in coding.sessions(10, 1) for r in s} != {
        r.prompt_id for s in coding.sessions(10, 2) for r in s
    }


# --- the material


@pytest.mark.parametrize("name", SINGLE_TURN)
def test_no_two_prompts_are_nearly_the_same(name: str) -> None:
    """Prompts on one source share its text; then their tasks must differ."""
    prompts = [text(r) for r in in_file_order(built_in(name))]
    for a, b in itertools.combinations(prompts, 2):
        (task_a, _, source_a), (task_b, _, source_b) = a.partition("\n\n"), b.partition("\n\n")
        if source_a and source_a == source_b:
            a, b = task_a, task_b
        shared = five_grams(a) & five_grams(b)
        assert len(shared) <= 0.85 * min(len(five_grams(a)), len(five_grams(b))), f"{a[:80]!r} and {b[:80]!r}"


def test_no_two_agent_sessions_are_nearly_the_same() -> None:
    agent = built_in("agent")
    last = [five_grams(text(session[-1])) for session in agent.sessions(agent.available, 0)]
    for a, b in itertools.combinations(last, 2):
        assert len(a & b) <= 0.3 * min(len(a), len(b))


@pytest.mark.parametrize("name", SINGLE_TURN)
def test_no_prompt_is_the_beginning_of_another(name: str) -> None:
    prompts = sorted(text(r) for r in in_file_order(built_in(name)))
    assert not [a[:60] for a, b in itertools.pairwise(prompts) if b.startswith(a)]


@pytest.mark.parametrize("name", ["coding", "summarize", "extract"])
def test_prompts_on_one_source_share_no_long_prefix_that_a_cache_could_keep(name: str) -> None:
    prompts = sorted(text(r) for r in in_file_order(built_in(name)))
    for a, b in itertools.pairwise(prompts):
        shared = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(a))
        assert shared < 80, a[:shared]


def characters(requests: list[PlannedRequest]) -> Iterator[int]:
    return (sum(len(m["content"]) for m in messages(r)) for r in requests)


@pytest.mark.parametrize("name", SINGLE_TURN)
def test_prompts_stay_short_enough_for_a_small_model(name: str) -> None:
    """700 tokens at most, counted as two characters each, which is fewer than any prompt here has."""
    assert max(characters(in_file_order(built_in(name)))) <= 1400


def test_an_agents_last_turn_stays_under_1200_tokens() -> None:
    """Its text has 2.9 characters a token or more, with a tokenizer of 49,000 words."""
    assert max(characters(in_file_order(built_in("agent")))) <= 3480


def test_each_agent_request_holds_the_one_before_and_all_share_the_system_prompt() -> None:
    agent = built_in("agent")
    sessions = agent.sessions(agent.available, 0)
    for session in sessions:
        for before, after in itertools.pairwise(session):
            assert messages(after)[: len(messages(before))] == messages(before)
            assert [m["role"] for m in messages(after)[len(messages(before)) :]] == ["assistant", "user"]
    assert len({messages(r)[0]["content"] for session in sessions for r in session}) == 1
    assert all(messages(r)[0]["role"] == "system" for session in sessions for r in session)


def test_agent_turns_call_one_tool_that_the_system_prompt_describes() -> None:
    requests = in_file_order(built_in("agent"))
    tools = set(re.findall(r"^- (\w+) \{", messages(requests[0])[0]["content"], re.MULTILINE))
    assert len(tools) == 6
    turns = [m["content"] for r in requests for m in messages(r) if m["role"] == "assistant"]
    for turn in turns:
        (call,) = re.findall(r"```json\n(.*?)\n```", turn, re.DOTALL)
        assert json.loads(call)["tool"] in tools


def sources(name: str) -> tuple[Source, ...]:
    return read(f"{name}.toml", Sources).source


def test_articles_have_120_to_250_words() -> None:
    assert [s.text[:40] for s in sources("summarize") if not 120 <= len(s.text.split()) <= 250] == []


def test_most_summaries_must_quote_or_copy_their_source() -> None:
    tasks = [task for s in sources("summarize") for task in s.tasks]
    copies = [
        t
        for t in tasks
        if re.search(r"quot|cop[yi]|exact|word for word|words of|phrases|as it is written|own words", t)
    ]
    assert len(copies) >= 0.8 * len(tasks)


def test_at_least_half_of_the_coding_tasks_ask_for_the_whole_code_back() -> None:
    tasks = [task for s in sources("coding") for task in s.tasks]
    back = [t for t in tasks if re.search(r"([Rr]eturn|[Gg]ive|[Pp]rint)[^.]*(whole|full|complete|everything|file)", t)]
    assert len(back) >= len(tasks) / 2


def test_code_comes_in_many_languages() -> None:
    assert len({s.language for s in sources("coding")}) >= 8


def test_python_and_sql_sources_compile() -> None:
    for source in sources("coding"):
        if source.language == "python":
            compile(source.text, "source", "exec")
        if source.language == "sql":
            database = sqlite3.connect(":memory:")
            database.executescript(source.text)
            database.close()


# --- file


def from_lines(*lines: object, body: dict[str, object] | None = None) -> FileWorkload:
    shown = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    return FileWorkload("mine", shown, "mine.jsonl", body or {})


def chat_line(content: str, **fields: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": content}], **fields}


def test_a_line_is_sent_as_it_is_but_for_our_own_fields() -> None:
    tools = [{"type": "function", "function": {"name": "look"}}]
    ours = {"id": 7, "session": "a", "stream": False}
    (session,) = from_lines(chat_line("hi", tools=tools, top_k=5, ignore_eos=True, **ours)).sessions(1, 0)
    assert session[0].body == {
        "messages": [{"role": "user", "content": "hi"}],
        "tools": tools,
        "top_k": 5,
        "ignore_eos": True,
        "user": "mine:7",
    }


def test_a_lines_own_user_field_is_kept_and_the_body_is_on_top() -> None:
    workload = from_lines({"prompt": "hi", "user": "ada", "max_tokens": 9}, body={"max_tokens": 3})
    assert workload.sessions(1, 0)[0][0].body == {"prompt": "hi", "user": "ada", "max_tokens": 3}


def test_ids_come_from_the_line_its_session_or_its_number() -> None:
    workload = from_lines(
        {"prompt": "a"}, "", {"prompt": "b", "id": "x9"}, {"prompt": "c", "session": 4}, {"prompt": "d", "session": "4"}
    )
    ids = sorted(r.prompt_id for s in workload.sessions(3, 0) for r in s)
    assert ids == ["mine:4.0", "mine:4.1", "mine:line1", "mine:x9"]


def test_lines_of_a_session_keep_their_order_even_with_others_between() -> None:
    workload = from_lines(chat_line("one", session="s"), chat_line("else", session="t"), chat_line("two", session="s"))
    by_length = sorted(workload.sessions(2, 0), key=len)
    assert [[(messages(r)[0]["content"], r.turn) for r in s] for s in by_length] == [
        [("else", 0)],
        [("one", 0), ("two", 1)],
    ]


def test_a_session_named_like_a_line_number_stays_apart() -> None:
    assert from_lines({"prompt": "a", "session": 2}, {"prompt": "b"}).available == 2


def test_repeated_prompts_are_left_out_and_counted() -> None:
    workload = from_lines(
        {"prompt": "a"},
        {"prompt": "a", "temperature": 1},
        chat_line("a"),
        chat_line("b", session="s"),
        chat_line("b", session="s"),
    )
    assert (workload.available, workload.repeated) == (2, 2)
    with pytest.raises(InputError, match=r"mine\.jsonl\) has 2 distinct sessions and 3 .* \(2 more repeat a prompt"):
        workload.sessions(3, 0)


def test_origin_is_the_files_name() -> None:
    assert from_lines({"prompt": "a"}).origin == "mine.jsonl"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("{", "found '{', which is not JSON"),
        ("[1]", "found a list; allowed: a JSON object"),
        ("3", "found 3; allowed"),
        ("{}", "found the keys (none); allowed"),
        ({"message": []}, "found the keys message; allowed"),
        (chat_line("a", prompt="b"), "found both; allowed"),
        ({"messages": []}, 'found an empty list as "messages"; allowed'),
        ({"messages": "hi"}, "found 'hi' as \"messages\"; allowed"),
        ({"messages": ["hi"]}, "found 'hi' as message 1; allowed"),
        ({"messages": [{"role": "user"}]}, "found message 1 with the keys role; allowed"),
        ({"messages": [{"role": 1, "content": "a"}]}, "found message 1 with the keys role, content; allowed"),
        ({"prompt": ""}, "found '' as \"prompt\"; allowed"),
        ({"prompt": ["a", "b"]}, 'found a list as "prompt"; allowed'),
        ({"prompt": None}, 'found null as "prompt"; allowed'),
        ({"prompt": "a", "id": True}, 'found true as "id"; allowed'),
        ({"prompt": "a", "session": {"a": 1}}, 'found an object as "session"; allowed'),
    ],
)
def test_a_bad_line_is_named_with_what_was_found_and_what_is_allowed(line: object, found: str) -> None:
    with pytest.raises(InputError, match="allowed") as caught:
        from_lines({"prompt": "fine"}, "", line)
    assert str(caught.value).startswith(f"mine.jsonl, line 3: {found}")


@pytest.mark.parametrize(
    "line",
    [
        {"prompt": [1, 2, 3]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]},
        {"messages": [{"role": "assistant", "tool_calls": []}, {"role": "tool", "content": "x"}]},
        {"prompt": "a line separator \u2028 and a next line \u0085 are text"},
    ],
)
def test_requests_of_every_legal_shape_are_accepted(line: dict[str, object]) -> None:
    assert from_lines(line).available == 1


def test_all_bad_lines_are_reported_at_once_in_order() -> None:
    with pytest.raises(InputError) as caught:
        from_lines({"prompt": "a", "id": 1}, "nonsense", {"prompt": "b", "id": "1"}, "{}")
    lines = str(caught.value).splitlines()
    assert [line.split(":")[0] for line in lines] == [f"mine.jsonl, line {n}" for n in (2, 3, 4)]
    assert 'found the id "mine:1" of line 1; allowed: each id once' in lines[1]


def test_a_flood_of_bad_lines_ends_with_their_count() -> None:
    with pytest.raises(InputError) as caught:
        from_lines(*["{}"] * 200)
    assert str(caught.value).endswith("mine.jsonl: and 150 more bad lines")
    assert len(str(caught.value).splitlines()) == 51


@pytest.mark.parametrize("lines", [[], ["", "  "]])
def test_a_file_without_a_request_is_refused(lines: list[str]) -> None:
    with pytest.raises(InputError, match=r"mine\.jsonl: found no request; allowed"):
        from_lines(*lines)


def test_undecodable_bytes_are_a_bad_line() -> None:
    line = b'{"prompt": "\xff"}'.decode("utf-8", "surrogateescape")
    with pytest.raises(InputError, match=r"line 1: .* which is not JSON"):
        from_lines(line)
