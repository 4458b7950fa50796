"""The loader with real workers: what it hands back, and that no worker is ever left."""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import psutil
import pytest
from load_plans import sessions
from load_server import CHUNKED, Act, Request, ScriptedServer, chunk, stream, text

from leadline.errors import HostError, InputError, InterruptedRun
from leadline.load.loader import ProcessLoader
from leadline.load.records import FORMAT, read_records, write_records
from leadline.ports import Loader, LoadPlan
from leadline.trial import LoadReport, RequestRecord


def workers() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def always() -> bool:
    return True


def hang(request: Request) -> Iterable[bytes | float | Act]:
    return [CHUNKED + chunk(text("a")), Act.HANG]


def plan(server: ScriptedServer, path: Path | None = None, n: int = 6) -> LoadPlan:
    return LoadPlan(
        url=server.url,
        concurrency=2,
        warmup=sessions("w", 2),
        sessions=sessions("s", n),
        records=str(path / "r.jsonl") if path else "",
    )


def test_records_and_progress(tmp_path: Path) -> None:
    seen: list[tuple[int, int, int]] = []
    loader: Loader = ProcessLoader(lambda done, of, tokens: seen.append((done, of, tokens)))
    with ScriptedServer(lambda request: stream()) as server:
        report = loader.run(plan(server, tmp_path), always)
    assert [r.output_tokens for r in report.records] == [12] * 8
    assert report == read_records(str(tmp_path / "r.jsonl"))
    assert seen[-1] == (8, 8, 96)
    assert seen == sorted(seen)
    assert workers() == []


def test_without_a_record_file(tmp_path: Path) -> None:
    with ScriptedServer(lambda request: stream()) as server:
        report = ProcessLoader().run(plan(server, n=300), always)
    assert len(report.records) == 302  # a report of many pipe buffers


def test_a_server_that_is_gone_ends_the_load_early(tmp_path: Path) -> None:
    with ScriptedServer(hang) as server:

        def alive() -> bool:
            server.wait_for(2)
            return False

        report = ProcessLoader().run(plan(server, tmp_path), alive)
    assert Counter(r.error for r in report.records) == {"stopped": 2}
    assert report == read_records(str(tmp_path / "r.jsonl"))
    assert workers() == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, InterruptedRun(15)])
def test_a_worker_never_outlives_an_exception(error: type[BaseException] | BaseException) -> None:
    def alive() -> bool:
        server.wait_for(2)
        assert len(workers()) == 1
        raise error

    with ScriptedServer(hang) as server:
        with pytest.raises((KeyboardInterrupt, InterruptedRun)):
            ProcessLoader().run(plan(server), alive)
        assert workers() == []


def test_a_worker_that_dies_is_our_own_failure() -> None:
    def alive() -> bool:
        server.wait_for(2)
        for process in workers():
            process.kill()
        return True

    with ScriptedServer(hang) as server, pytest.raises(HostError, match="code -9"):
        ProcessLoader().run(plan(server), alive)


def test_a_worker_that_does_not_stop_is_killed() -> None:
    def alive() -> bool:
        server.wait_for(2)
        workers()[0].suspend()
        return False

    with ScriptedServer(hang) as server, pytest.raises(HostError, match="did not end"):
        ProcessLoader(grace_s=0.1, exit_s=0.1).run(plan(server), alive)
    assert workers() == []


def test_the_workers_last_words_are_told() -> None:
    with pytest.raises(HostError, match="at least one user"):
        ProcessLoader().run(LoadPlan(url="http://127.0.0.1:1", concurrency=0), always)
    with pytest.raises(HostError, match="the request records cannot be written"):
        ProcessLoader().run(LoadPlan(url="http://127.0.0.1:1", concurrency=1, records="/does/not/exist/r"), always)


GOOD = RequestRecord(
    prompt_id="a", user=0, intended_ns=1, start_ns=2, chunk_ns=(3, 5), chunk_tokens=(1.5, 1.5), end_ns=6
)
BAD = RequestRecord(prompt_id="b\u2028", user=1, warmup=True, intended_ns=1, start_ns=2, end_ns=6, error="HTTP 500: x")
REPORT = LoadReport(records=(GOOD, BAD), window_start_ns=1, window_end_ns=9, lag_p99_ms=0.25, cpu_share=0.5)


def test_a_record_file_is_json_lines_under_a_header(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    write_records(str(path), REPORT)
    header, *records = path.read_bytes().splitlines()
    assert json.loads(header) == {
        "format": FORMAT,
        "window_start_ns": 1,
        "window_end_ns": 9,
        "clock": "monotonic",
        "lag_p99_ms": 0.25,
        "cpu_share": 0.5,
    }
    assert [json.loads(r)["prompt_id"] for r in records] == ["a", "b\u2028"]
    assert read_records(str(path)) == REPORT
    assert list(tmp_path.iterdir()) == [path]


def test_a_record_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(b"old")
    write_records(str(path), REPORT)
    assert read_records(str(path)) == REPORT


HEADER = b'{"format":"%s","window_start_ns":1,"window_end_ns":1,"clock":"","lag_p99_ms":0,"cpu_share":0}\n'


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot be read: No such file"),
        (b"", "empty file"),
        (b"{}\n", "line 1"),
        (HEADER % b"leadline-records-9", "leadline-records-9"),
        (HEADER % b"leadline-records-1" + b'{"prompt', "line 2"),
    ],
)
def test_a_record_file_that_cannot_be_used_is_refused(tmp_path: Path, content: bytes | None, says: str) -> None:
    path = tmp_path / "r.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=says):
        read_records(str(path))
