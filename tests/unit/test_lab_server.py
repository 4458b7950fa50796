"""The lab server as a real process over real HTTP: what it streams, what it counts, and the twelve faults."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from leadline import codec
from leadline.testing.faults import Fault, FaultKind
from leadline.testing.labserver import count_launch, install
from leadline.testing.physics import LabSpec

FAST = LabSpec(
    base_step_ms=0.3, token_ms=0.01, request_ms=0.01, jump_ms=0.05, draft_step_ms=0.01, load_s=0.0, progress_lines=2
)
PATIENCE_S = 20.0


class Server:
    """A lab server on a port of its own choice; its log is read line by line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self.port = 0

    def read_until(self, word: str) -> str:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if word in line:
                return line
        raise AssertionError(f"it ended without {word!r}: {self.lines}")

    def until_ready(self) -> Server:
        self.port = int(self.read_until("listening on").rsplit(":", 1)[1])
        return self

    def rest(self) -> tuple[int, str]:
        """Its exit code, and all that it wrote."""
        self.lines += self.process.communicate(timeout=PATIENCE_S)[1].splitlines(keepends=True)
        return self.process.returncode, "".join(self.lines)

    @contextlib.contextmanager
    def connection(self, timeout_s: float = PATIENCE_S) -> Iterator[http.client.HTTPConnection]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            yield connection
        finally:
            connection.close()

    def get(self, path: str) -> tuple[int, bytes]:
        with self.connection() as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()

    def post(self, body: dict[str, Any], timeout_s: float = PATIENCE_S) -> tuple[int, bytes]:
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        with self.connection(timeout_s) as connection:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()

    def counters(self) -> dict[str, float]:
        text = self.get("/metrics")[1].decode()
        return {name: float(value) for name, value in re.findall(r"^llamacpp:(\S+) (\S+)$", text, re.MULTILINE)}

    def idle_counters(self) -> dict[str, float]:
        """Once nothing runs any more."""
        give_up = time.monotonic() + PATIENCE_S
        while time.monotonic() < give_up:
            found = self.counters()
            if found["requests_processing"] + found["requests_deferred"] == 0:
                return found
        raise AssertionError("it never became idle")


Start = Callable[..., Server]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts lab servers; whatever happens, none is left."""
    processes: list[subprocess.Popen[str]] = []

    def begin(*faults: Fault, spec: LabSpec = FAST, depth: int = 4, slots: int = 4, more: Sequence[str] = ()) -> Server:
        program = install(tmp_path, msgspec.structs.replace(spec, faults=faults))
        speculation = ("--spec-type", "draft-mtp", "--spec-draft-n-max", str(depth)) if depth else ()
        argv = [str(program), "--port", "0", "--metrics", "-np", str(slots), *speculation, *more]
        processes.append(subprocess.Popen(argv, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True))
        return Server(processes[-1])

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def chat(user: str, *, tokens: int = 40, stream: bool = False) -> dict[str, Any]:
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    message = {"role": "user", "content": f"Say something about {user}"}
    return {"messages": [message], "user": user, "max_tokens": tokens, "ignore_eos": True, **options}


def events(body: bytes) -> list[dict[str, Any]]:
    *parts, last, rest = body.decode().split("\n\n")
    assert (last, rest) == ("data: [DONE]", "")
    return [json.loads(part.removeprefix("data: ")) for part in parts]


def fetches(call: Callable[[], object]) -> bool:
    try:
        call()
    except (OSError, http.client.HTTPException):
        return False
    return True


# --- a healthy server


def test_a_stream_holds_several_tokens_a_chunk_and_ends_with_usage_and_timings(start: Start) -> None:
    server = start().until_ready()
    status, body = server.post(chat("coding:1", stream=True))
    found = events(body)
    texts = [c["delta"]["content"] for e in found for c in e["choices"] if c["delta"].get("content")]
    last = found[-1]
    assert status == 200
    assert found[0]["choices"][0]["delta"] == {"role": "assistant", "content": None}
    assert found[-2]["choices"][0]["finish_reason"] == "length"
    assert (last["choices"], last["usage"]["completion_tokens"], last["timings"]["predicted_n"]) == ([], 40, 40)
    assert len("".join(texts).split(" ")) == 40
    rounds = len(texts) - 1
    assert rounds + last["timings"]["draft_n_accepted"] == 39
    assert last["timings"]["draft_n"] > last["timings"]["draft_n_accepted"] > 0


def test_text_completions_stream_too_and_one_connection_serves_many(start: Start) -> None:
    server = start(depth=0).until_ready()
    with server.connection() as connection:
        for i in range(3):
            body = {"prompt": "x", "max_tokens": 5, "user": f"chat:{i}", "stream": True, "ignore_eos": True}
            connection.request("POST", "/v1/completions", json.dumps(body))
            found = events(connection.getresponse().read())
            assert "".join(e["choices"][0]["text"] for e in found).count(" ") == 4
            assert "usage" not in found[-1]
            assert not {"draft_n", "draft_n_accepted"} & set(found[-1]["timings"])
            assert connection.sock is not None


def test_realised_counts_are_exactly_what_metrics_moved_by(start: Start) -> None:
    server = start(depth=3, slots=2).until_ready()
    assert not [name for name in server.counters() if "per_pos" in name]
    server.post({"prompt": "x", "max_tokens": 20, "user": "chat:0"})
    before = server.counters()
    with ThreadPoolExecutor(6) as pool:
        answers = [json.loads(b) for _, b in pool.map(server.post, [chat(f"coding:{i}") for i in range(12)])]
    after = server.counters()
    moved = {name: after[name] - before[name] for name in after}
    timings = [a["timings"] for a in answers]
    accepted = sum(t["draft_n_accepted"] for t in timings)
    by_position = [moved[f'spec_decode_num_accepted_tokens_per_pos_total{{position="{i}"}}'] for i in range(3)]
    assert moved["tokens_predicted_total"] == sum(a["usage"]["completion_tokens"] for a in answers) == 12 * 40
    assert moved["prompt_tokens_total"] == sum(t["prompt_n"] for t in timings)
    assert moved["spec_decode_num_draft_tokens_total"] == sum(t["draft_n"] for t in timings)
    assert moved["spec_decode_num_accepted_tokens_total"] == accepted == sum(by_position)
    assert by_position == sorted(by_position, reverse=True)
    assert by_position[0] <= moved["spec_decode_num_drafts_total"] <= 12 * 39 - accepted
    assert (after["requests_processing"], after["requests_deferred"]) == (0, 0)


def test_a_client_that_leaves_frees_its_slot_and_its_tokens_still_count(start: Start) -> None:
    server = start(slots=1).until_ready()
    with server.connection() as connection:
        connection.request("POST", "/v1/chat/completions", json.dumps(chat("coding:1", tokens=4000, stream=True)))
        connection.getresponse().read(2000)
    found = server.idle_counters()
    assert 0 < found["tokens_predicted_total"] < 4000


def test_probes_say_lab_and_what_is_in_force(start: Start) -> None:
    server = start(depth=2, slots=3, more=("-c", "6000", "-m", "model.gguf")).until_ready()
    props = json.loads(server.get("/props")[1])
    assert (props["total_slots"], props["default_generation_settings"]["n_ctx"]) == (3, 2000)
    assert (props["build_info"], props["model_path"]) == ("leadline-lab", "model.gguf")
    assert [m["id"] for m in json.loads(server.get("/v1/models")[1])["data"]] == ["lab:model.gguf"]
    assert "params" not in json.loads(server.get("/slots")[1])[0]
    server.post(chat("coding:1"))
    slots = json.loads(server.get("/slots")[1])
    assert [s["speculative"] for s in slots] == [True] * 3
    assert slots[0]["params"]["speculative.types"] == "none,draft-mtp"
    assert [server.get(path)[0] for path in ("/health", "/nope")] == [200, 404]


def test_a_key_is_asked_for_except_for_health(start: Start) -> None:
    server = start(more=("--api-key", "sesame")).until_ready()
    assert [server.get(path)[0] for path in ("/health", "/props")] == [200, 401]
    with server.connection() as connection:
        connection.request("GET", "/props", headers={"Authorization": "Bearer sesame"})
        assert connection.getresponse().status == 200


def test_sigterm_ends_it_with_0_even_with_clients_connected(start: Start) -> None:
    server = start(Fault(kind=FaultKind.MUTE)).until_ready()
    with server.connection() as idle, server.connection() as waiting:
        idle.request("GET", "/health")
        idle.getresponse().read()
        waiting.request("POST", "/v1/chat/completions", json.dumps(chat("coding:1")))
        server.process.send_signal(signal.SIGTERM)
        code, log = server.rest()
    assert (code, "Traceback" in log) == (0, False)
    assert log.endswith("cleaning up before exit...\n")


def test_a_port_in_use_and_a_bad_flag_are_refused(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as owner:
        port = owner.getsockname()[1]
        code, log = start(more=("--port", str(port))).rest()
    assert (code, f"couldn't bind HTTP server socket, hostname: 127.0.0.1, port: {port}" in log) == (1, True)
    assert start(more=("--bogus",)).rest() == (1, "error: invalid argument: --bogus\n")


def test_launches_are_counted_in_a_file(tmp_path: Path) -> None:
    counter = str(tmp_path / "launches")
    assert [count_launch(counter, again=again) for again in (False, False, True, False)] == [1, 2, 2, 3]
    assert count_launch("", again=False) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["launches"]


def test_a_spec_that_cannot_be_read_ends_it(tmp_path: Path) -> None:
    wrong = tmp_path / "spec.json"
    wrong.write_bytes(codec.to_json({"load_s": "soon"}))
    argv = [sys.executable, "-m", "leadline.testing.labserver", "--lab-spec", str(wrong)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 1
    assert "$.load_s" in done.stderr


# --- the faults


def test_fault_1_killed_under_load(start: Start) -> None:
    server = start(Fault(kind=FaultKind.KILLED_UNDER_LOAD, after_tokens=30)).until_ready()
    assert not fetches(lambda: server.post(chat("coding:1", tokens=500, stream=True)))
    assert server.rest()[0] == -signal.SIGKILL


def test_fault_2_out_of_memory_at_start(start: Start) -> None:
    code, log = start(Fault(kind=FaultKind.OOM_AT_START, depths=(4,))).rest()
    assert code == 1
    assert "cudaMalloc failed: out of memory" in log
    assert "exiting due to model loading error" in log


def test_fault_3_out_of_memory_above_c_16(start: Start) -> None:
    server = start(Fault(kind=FaultKind.OOM_UNDER_LOAD), slots=20).until_ready()
    with ThreadPoolExecutor(17) as pool:
        sixteen = list(pool.map(server.post, [chat(f"coding:{i}", tokens=300) for i in range(16)]))
        assert {status for status, _ in sixteen} == {200}
        bodies = [chat(f"coding:{i}", tokens=4000) for i in range(17)]
        assert not any(pool.map(fetches, [partial(server.post, body) for body in bodies]))
    code, log = server.rest()
    assert code == -signal.SIGABRT
    assert "cudaMalloc failed: out of memory" in log
    assert "CUDA error: out of memory" in log


def test_fault_4_hangs_while_health_answers(start: Start) -> None:
    server = start(Fault(kind=FaultKind.HANG, after_tokens=30)).until_ready()
    with server.connection(timeout_s=0.3) as connection:
        connection.request("POST", "/v1/chat/completions", json.dumps(chat("coding:1", tokens=500, stream=True)))
        answer = connection.getresponse()
        with pytest.raises(TimeoutError):
            answer.read()
    assert server.get("/health")[0] == 200
    assert not fetches(lambda: server.post(chat("coding:2"), timeout_s=0.2))
    server.process.terminate()
    assert server.rest()[0] == 0


def test_fault_5_healthy_before_it_generates(start: Start) -> None:
    server = start(Fault(kind=FaultKind.MUTE, seconds=1.5)).until_ready()
    assert server.get("/health")[0] == 200
    assert not fetches(lambda: server.post({"prompt": "x", "max_tokens": 1}, timeout_s=0.2))
    assert server.get("/health")[0] == 200
    assert server.post({"prompt": "x", "max_tokens": 1})[0] == 200


def test_fault_6_restarts_itself_once(start: Start, tmp_path: Path) -> None:
    counter = tmp_path / "launches"
    spec = msgspec.structs.replace(FAST, launch_counter=str(counter))
    server = start(Fault(kind=FaultKind.RESTART, after_tokens=30), spec=spec).until_ready()
    port, mark = server.port, json.loads(server.get("/props")[1])["media_marker"]
    server.post({"prompt": "x", "max_tokens": 1})
    assert not fetches(lambda: server.post(chat("coding:1", tokens=500, stream=True)))
    assert server.until_ready().port == port
    assert server.counters()["tokens_predicted_total"] == 0
    assert json.loads(server.get("/props")[1])["media_marker"] != mark
    assert server.post(chat("coding:1", tokens=100))[0] == 200
    assert counter.read_text() == "1"


def test_fault_7_truncated_streams(start: Start) -> None:
    server = start(Fault(kind=FaultKind.TRUNCATED, share=0.5)).until_ready()
    whole = [fetches(partial(server.post, chat(f"coding:{i}", stream=True))) for i in range(6)]
    assert whole == [True, False] * 3
    assert 3 * 40 < server.idle_counters()["tokens_predicted_total"] < 6 * 40


def test_fault_8_one_request_in_ten_is_answered_with_500(start: Start) -> None:
    server = start(Fault(kind=FaultKind.HTTP_500)).until_ready()
    for _ in range(3):
        assert server.post({"prompt": "x", "max_tokens": 1})[0] == 200
    found = [server.post(chat(f"coding:{i}", tokens=2))[0] for i in range(20)]
    assert found == ([200] * 9 + [500]) * 2


def test_fault_9_a_slow_start_keeps_writing(start: Start) -> None:
    spec = msgspec.structs.replace(FAST, progress_lines=10)
    server = start(Fault(kind=FaultKind.SLOW_START, seconds=0.5), spec=spec)
    began = time.monotonic()
    server.until_ready()
    assert sum("lab tensors" in line for line in server.lines) == 9
    assert time.monotonic() - began >= 0.5
    assert server.post(chat("coding:1"))[0] == 200


def test_a_server_that_loads_says_503(start: Start) -> None:
    port = free_port()
    server = start(Fault(kind=FaultKind.SLOW_START, seconds=60.0), more=("--port", str(port)))
    server.read_until("loading model")
    server.port = port
    status, body = server.get("/health")
    assert (status, json.loads(body)["error"]["message"]) == (503, "Loading model")
    assert server.post(chat("coding:1"))[0] == 503


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@pytest.mark.parametrize("refused", [False, True])
def test_fault_10_a_start_without_progress(start: Start, refused: bool) -> None:
    port = free_port()
    server = start(Fault(kind=FaultKind.SILENT_START, refused=refused), more=("--port", str(port)))
    server.read_until("loading model")
    server.port = port
    if refused:
        with pytest.raises(ConnectionRefusedError):
            server.get("/health")
    else:
        assert server.get("/health")[0] == 503
    server.process.terminate()
    code, log = server.rest()
    assert (code, len(log.splitlines())) == (0, 3)


def test_fault_11_another_depth_in_force(start: Start) -> None:
    server = start(Fault(kind=FaultKind.WRONG_DEPTH, depth=2)).until_ready()
    server.post(chat("coding:1"))
    assert sum("per_pos" in name for name in server.counters()) == 2


def test_fault_12_foreign_requests_in_the_window(start: Start) -> None:
    server = start(Fault(kind=FaultKind.FOREIGN, after_tokens=50, tokens=16)).until_ready()
    for i in range(4):
        server.post(chat(f"coding:{i}", tokens=50))
    assert server.idle_counters()["tokens_predicted_total"] == 4 * 50 + 4 * 16


def test_a_fault_of_one_launch_spares_the_next(start: Start, tmp_path: Path) -> None:
    spec = msgspec.structs.replace(FAST, launch_counter=str(tmp_path / "launches"))
    fault = Fault(kind=FaultKind.OOM_AT_START, launches=(1,))
    assert start(fault, spec=spec).rest()[0] == 1
    assert start(fault, spec=spec).until_ready().get("/health")[0] == 200
