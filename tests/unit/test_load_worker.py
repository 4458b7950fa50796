"""The worker as the process that it is: plan in, record file out, and no orphan."""

import json
import os
import select
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil
import pytest
from load_plans import sessions
from load_server import CHUNKED, Act, Request, ScriptedServer, chunk, head, stream, text

from leadline import codec
from leadline.load.records import read_records
from leadline.ports import LoadPlan
from leadline.trial import LoadReport

KEY = "sk-1234567890abcdef"


@contextmanager
def worker(plan: LoadPlan) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-P", "-m", "leadline.load.worker"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True) as process:
        assert process.stdin is not None
        try:
            process.stdin.write(codec.to_json(plan) + b"\n")
            process.stdin.flush()
            yield process
        finally:
            process.kill()


def finished(process: subprocess.Popen[bytes]) -> list[dict[str, object]]:
    """What it said, once it has ended by itself and well; its input stays open until then."""
    assert process.stdout is not None
    assert process.stderr is not None
    lines = [json.loads(line) for line in process.stdout]
    assert process.wait(20) == 0, process.stderr.read()
    return lines


def run(plan: LoadPlan) -> tuple[list[dict[str, object]], LoadReport]:
    with worker(plan) as process:
        said = finished(process)
    return said, read_records(plan.records)


def test_a_closed_loop_of_64_users_is_steady(tmp_path: Path) -> None:
    def answer(request: Request) -> Iterator[bytes | float | Act]:
        if b'"w7"' in request.body:  # one warm-up session ends when others are long past theirs
            while len(server.requests) < 250:
                yield 0.002
        yield from stream(4, 20, gap_s=0.01)

    with ScriptedServer(answer) as server:
        plan = LoadPlan(
            url=server.url,
            concurrency=64,
            warmup=sessions("w", 64),
            sessions=sessions("s", 320),
            records=str(tmp_path / "r.jsonl"),
        )
        said, report = run(plan)

    assert server.peak == 64
    assert server.connections == 64
    assert Counter(r.error for r in report.records) == {"": 384}
    assert Counter(r.prompt_id for r in report.records) == {
        f"{p}{i}.0": 1 for p, n in (("w", 64), ("s", 320)) for i in range(n)
    }
    assert sorted(r.user for r in report.records if r.warmup) == list(range(64))
    assert said[-1] == {"end": True}
    assert said[-2] == {"done": 384, "of": 384, "tokens": 384 * 20}

    slow = next(r for r in report.records if r.prompt_id == "w7.0")
    assert slow.end_ns == max(r.end_ns for r in report.records if r.warmup)
    assert any(r.end_ns < slow.end_ns for r in report.records if not r.warmup), "a barrier after the warm-up"
    after = [r.intended_ns for r in report.records if r.user == slow.user and r.start_ns > slow.end_ns]
    assert slow.end_ns <= report.window_start_ns <= min(after, default=report.window_end_ns)
    last_of_user = {r.user: r.end_ns for r in sorted(report.records, key=lambda r: r.end_ns)}
    assert max(r.start_ns for r in report.records) <= report.window_end_ns
    assert min(last_of_user.values()) <= report.window_end_ns
    assert report.window_start_ns < report.window_end_ns
    assert report.clock == "monotonic"
    assert report.lag_p99_ms > 0
    assert 0 < report.cpu_share < 1.5


def test_a_secret_that_the_server_repeats_reaches_no_file(tmp_path: Path) -> None:
    body = f'{{"error":{{"message":"wrong key {KEY}, go away"}}}}'.encode()
    with ScriptedServer(lambda request: [head("401 No", Content_Length=str(len(body))) + body]) as server:
        path = tmp_path / "r.jsonl"
        headers = {"Authorization": f"Bearer {KEY}"}
        _, report = run(
            LoadPlan(url=server.url, headers=headers, concurrency=1, sessions=sessions("s", 1), records=str(path))
        )
    assert report.records[0].error == "HTTP 401: wrong key <secret>, go away"
    assert KEY.encode() not in path.read_bytes()
    assert [p.name for p in tmp_path.iterdir()] == ["r.jsonl"]


def test_without_a_record_file_the_report_is_said() -> None:
    with (
        ScriptedServer(lambda request: stream()) as server,
        worker(LoadPlan(url=server.url, concurrency=2, sessions=sessions("s", 4))) as process,
    ):
        said = finished(process)
    report = msgspec.convert(said[-2]["report"], LoadReport)
    assert [r.output_tokens for r in report.records] == [12] * 4
    assert said[-1] == {"end": True}


def test_sigterm_writes_what_there_is(tmp_path: Path) -> None:
    served = iter(range(100))

    def answer(request: Request) -> Iterable[bytes | float | Act]:
        return stream() if next(served) < 4 else [CHUNKED + chunk(text("a")), Act.HANG]

    with ScriptedServer(answer) as server:
        plan = LoadPlan(
            url=server.url,
            concurrency=3,
            warmup=sessions("w", 3),
            sessions=sessions("s", 50, turns=2),
            records=str(tmp_path / "r.jsonl"),
        )
        with worker(plan) as process:
            server.wait_for(7)
            process.send_signal(signal.SIGTERM)
            said = finished(process)
        report = read_records(plan.records)
    assert said[-1] == {"end": True}
    assert Counter(r.error for r in report.records) == {"": 4, "stopped": 3}
    assert len(server.requests) == 7
    assert report.window_start_ns <= report.window_end_ns


@pytest.mark.parametrize("moment", ["while it waits", "at once"])
def test_the_end_of_its_input_ends_it_without_a_file(tmp_path: Path, moment: str) -> None:
    with ScriptedServer(lambda request: [CHUNKED, Act.HANG]) as server:
        plan = LoadPlan(url=server.url, concurrency=2, sessions=sessions("s", 4), records=str(tmp_path / "r.jsonl"))
        with worker(plan) as process:
            assert process.stdin is not None
            if moment == "while it waits":
                server.wait_for(2)
            process.stdin.close()
            assert process.wait(20) != 0
    assert list(tmp_path.iterdir()) == []


def test_it_dies_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    program = (
        "import sys; from leadline import codec, ports; from leadline.load.loader import ProcessLoader\n"
        "plan = codec.from_json(open(sys.argv[1]).read(), ports.LoadPlan)\n"
        "ProcessLoader().run(plan, lambda: True)\n"
    )
    with ScriptedServer(lambda request: [CHUNKED, Act.HANG]) as server:
        plan.write_bytes(codec.to_json(LoadPlan(url=server.url, concurrency=2, sessions=sessions("s", 4))))
        with subprocess.Popen([sys.executable, "-c", program, str(plan)]) as parent:
            try:
                server.wait_for(2)
                (child,) = psutil.Process(parent.pid).children()
                ended = os.pidfd_open(child.pid)  # readable once the process has ended, whoever reaps it
                session = os.getsid(child.pid)
            finally:
                parent.kill()
        assert session == child.pid, "a terminal's Ctrl-C would reach the worker"
        assert select.select([ended], [], [], 20)[0]
        os.close(ended)


@pytest.mark.parametrize(
    "line",
    [
        b"not json\n",
        b"",
        b'{"url":"http://h"}\n',
        b'{"url":"ftp://h","concurrency":1}\n',
        b'{"url":"http://h","concurrency":0}\n',
    ],
)
def test_a_plan_that_cannot_be_used_is_refused_in_words(line: bytes) -> None:
    command = [sys.executable, "-P", "-m", "leadline.load.worker"]
    ended = subprocess.run(command, input=line, capture_output=True, timeout=20, check=False)
    assert ended.returncode == 2
    assert ended.stderr.startswith(b"load worker: ")
    assert b"Traceback" not in ended.stderr


def test_it_imports_nothing_heavy() -> None:
    program = "import sys, leadline.load.worker; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout.decode().split()
    assert "httptools" in loaded
    assert not {"numpy", "scipy", "rich", "click", "uvloop", "psutil", "requests", "urllib3"} & set(loaded)
