"""The closed loop in this process, on asyncio's own event loop: what is sent, by whom, and what is recorded."""

import asyncio
from collections.abc import Iterable

import pytest
from load_plans import session, sessions
from load_server import CHUNKED, LAST_CHUNK, ROLE, Act, Request, ScriptedServer, chunk, finish, head, stream, text

from leadline.errors import InputError
from leadline.load.closedloop import ClosedLoop, Progress
from leadline.ports import LoadPlan, PlannedRequest
from leadline.trial import LoadReport

KEY = "sk-1234567890abcdef"


def run(plan: LoadPlan) -> LoadReport:
    said: list[Progress] = []

    async def go() -> LoadReport:
        return await ClosedLoop(plan, said.append).run()

    report = asyncio.run(go())
    n = len(report.records)
    assert said[-1] == Progress(n, n, sum(r.output_tokens for r in report.records))
    return report


def test_each_user_sends_the_turns_of_a_session_in_order() -> None:
    with ScriptedServer(lambda request: stream()) as server:
        report = run(LoadPlan(url=server.url, concurrency=3, sessions=sessions("s", 9, turns=4)))
    by_session: dict[str, list[tuple[int, int]]] = {}
    for r in report.records:  # in order of sending
        by_session.setdefault(r.prompt_id.split(".")[0], []).append((r.turn, r.user))
    assert len(by_session) == 9
    for turns in by_session.values():
        assert [t for t, _ in turns] == [0, 1, 2, 3]
        assert len({user for _, user in turns}) == 1
    assert server.connections == 3


def test_fewer_warm_up_sessions_than_users_go_to_the_first_users() -> None:
    with ScriptedServer(lambda request: stream(2, 8, gap_s=0.01)) as server:
        report = run(LoadPlan(url=server.url, concurrency=4, warmup=sessions("w", 2), sessions=sessions("s", 12)))
    assert sorted(r.user for r in report.records if r.warmup) == [0, 1]
    assert report.window_start_ns >= max(r.end_ns for r in report.records if r.warmup)


def test_without_warm_up_the_window_opens_at_the_start() -> None:
    with ScriptedServer(lambda request: stream()) as server:
        report = run(LoadPlan(url=server.url, concurrency=1, sessions=sessions("s", 3)))
    assert 0 < report.window_start_ns <= report.records[0].start_ns
    assert report.records[-1].end_ns <= report.window_end_ns


def test_more_users_than_sessions_have_no_steady_window() -> None:
    with ScriptedServer(lambda request: stream(2, 8, gap_s=0.02)) as server:
        report = run(LoadPlan(url=server.url, concurrency=4, warmup=sessions("w", 2), sessions=()))
    assert len(report.records) == 2
    assert report.window_start_ns == report.window_end_ns > 0


def test_what_is_sent() -> None:
    plan = (
        session("chat", temperature=0.5, stream_options={"continuous_usage_stats": True}),
        (PlannedRequest(prompt_id="text", body={"prompt": "once", "max_tokens": 4}),),
    )
    with ScriptedServer(lambda request: stream()) as server:
        run(
            LoadPlan(
                url=server.url + "/base/", headers={"Authorization": f"Bearer {KEY}"}, concurrency=1, sessions=plan
            )
        )
    chat, completion = server.requests
    assert chat.target == "/base/v1/chat/completions"
    assert completion.target == "/base/v1/completions"
    assert chat.json == {
        "messages": [{"role": "user", "content": "chat"}],
        "temperature": 0.5,
        "stream": True,
        "stream_options": {"continuous_usage_stats": True, "include_usage": True},
    }
    assert completion.json["prompt"] == "once"
    assert chat.headers["authorization"] == f"Bearer {KEY}"
    assert chat.headers["host"] == f"127.0.0.1:{server.port}"


def test_whatever_a_server_does_is_a_record() -> None:
    troubles: list[tuple[list[bytes | float | Act], str]] = [
        ([head("500 Oops", Content_Length="4") + b"oops"], "HTTP 500: oops"),
        ([CHUNKED + chunk(text("a")), Act.CLOSE], "stream cut after 1 chunks"),
        ([CHUNKED + chunk(text("a")), Act.HANG], "no byte for 0.3 s"),
        ([CHUNKED + chunk(text("a") + b"data: [DONE]\n\n") + LAST_CHUNK], "no usage in the stream"),
        ([CHUNKED + chunk(b'data: {"error":"full"}\n\n') + LAST_CHUNK], "error in the stream: full"),
        ([b"nonsense\r\n\r\n"], "the answer is not HTTP"),
        ([CHUNKED + chunk(ROLE + text("a b c") + finish(30)) + LAST_CHUNK], ""),
    ]

    def answer(request: Request) -> Iterable[bytes | float | Act]:
        messages = request.json["messages"]
        assert isinstance(messages, list)
        return troubles[int(messages[0]["content"][1:])][0]

    with ScriptedServer(answer) as server:
        report = run(LoadPlan(url=server.url, concurrency=2, sessions=sessions("s", len(troubles)), stall_s=0.3))
    found = {int(r.prompt_id[1:].split(".")[0]): r.error for r in report.records}
    assert set(found) == set(range(len(troubles)))
    for i, (_, says) in enumerate(troubles):
        assert found[i].startswith(says), (i, found[i])
        assert bool(found[i]) == bool(says)


def test_a_server_that_is_not_there_gives_records_too() -> None:
    with ScriptedServer(lambda request: ()) as gone:
        url = gone.url
    report = run(LoadPlan(url=url, concurrency=2, sessions=sessions("s", 5)))
    assert [r.error for r in report.records] == ["connection refused"] * 5


def test_stop_before_the_start_sends_nothing() -> None:
    async def go(url: str) -> LoadReport:
        load = ClosedLoop(LoadPlan(url=url, concurrency=2, sessions=sessions("s", 4)), lambda p: None)
        load.stop()
        return await load.run()

    with ScriptedServer(lambda request: stream()) as server:
        report = asyncio.run(go(server.url))
    assert (report.records, server.requests) == ((), [])
    assert report.window_start_ns == report.window_end_ns


@pytest.mark.parametrize("loops", range(6))
def test_stop_at_any_moment_leaves_a_record_for_every_request_that_was_sent(loops: int) -> None:
    async def go(url: str) -> LoadReport:
        load = ClosedLoop(LoadPlan(url=url, concurrency=2, sessions=sessions("s", 4)), lambda p: None)
        running = asyncio.create_task(load.run())
        for _ in range(loops):
            await asyncio.sleep(0)
        load.stop()
        return await running

    with ScriptedServer(lambda request: [CHUNKED, Act.HANG]) as server:
        report = asyncio.run(go(server.url))
    assert all(r.error == "stopped" for r in report.records)
    assert len(server.requests) <= len(report.records) <= 2


@pytest.mark.parametrize(
    "plan",
    [
        LoadPlan(url="http://h", concurrency=0),
        LoadPlan(url="h:80", concurrency=1),
        LoadPlan(url="https://h", ca="/does/not/exist.pem", concurrency=1),
    ],
)
def test_a_plan_that_cannot_be_carried_out_is_refused_before_anything_is_sent(plan: LoadPlan) -> None:
    async def go() -> None:
        ClosedLoop(plan, lambda p: None)

    with pytest.raises(InputError):
        asyncio.run(go())
