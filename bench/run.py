"""`make bench`: figures measured side by side in one run, as a table. Nothing here is asserted; tests count instead."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from support_journal import opening, trial
from support_sshd import SSHD, sshd

from leadline.codec import to_json
from leadline.hosts.ssh import SshHost
from leadline.journal.file import replay
from leadline.load.sse import SseDecoder

EVENTS = 10_000
REPEATS = 7


def main() -> None:
    rows = [*cli_start(), *journal(), *sse(), *ssh()]
    width = max(len(r[0]) for r in rows)
    print(f"{'what':<{width}}  {'median':>12}  {'against':>10}")
    for what, value, against in rows:
        print(f"{what:<{width}}  {value:>12}  {against:>10}")


def median_s(work: Callable[[], object], repeats: int = REPEATS) -> float:
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def cli_start() -> list[tuple[str, str, str]]:
    """Starting the command line, against an empty Python in the same minute."""

    def call(*argv: str) -> float:
        return median_s(lambda: subprocess.run([sys.executable, *argv], check=True, capture_output=True))

    bare = call("-c", "pass")
    rows = [("python -c pass", f"{bare * 1e3:.0f} ms", "1.0 x")]
    for words in (["version"], ["--help"], ["plan", "--help"], ["run", "--help"]):
        took = call("-m", "leadline", *words)
        rows.append((f"leadline {' '.join(words)}", f"{took * 1e3:.0f} ms", f"{took / bare:.1f} x"))
    return rows


def journal() -> list[tuple[str, str, str]]:
    """Replaying a journal of 10,000 events, against reading the same lines with json alone."""
    events = list(opening())
    number = 1
    while len(events) < EVENTS:
        events += trial(number, 2 * (number % 4))
        number += 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.jsonl"
        lines = [to_json(_numbered(e, i)) for i, e in enumerate(events[:EVENTS], 1)]
        path.write_bytes(b"\n".join(lines) + b"\n")
        plain = median_s(lambda: [json.loads(line) for line in path.read_bytes().splitlines()], 3)
        whole = median_s(lambda: replay(path), 3)
        assert replay(path).ledger.events == EVENTS
    size = sum(len(line) + 1 for line in lines) / 1e6
    return [
        (f"json.loads of {EVENTS} journal lines ({size:.1f} MB)", f"{plain * 1e3:.0f} ms", "1.0 x"),
        (f"replay of {EVENTS} journal events", f"{whole * 1e3:.0f} ms", f"{whole / plain:.1f} x"),
    ]


def _numbered(event: msgspec.Struct, seq: int) -> msgspec.Struct:
    return msgspec.structs.replace(event, seq=seq, at="2026-11-30T12:00:00.000Z")


def sse() -> list[tuple[str, str, str]]:
    """Decoding a stream of events, against splitting the same bytes at newlines."""
    chunk = b'data: {"choices":[{"delta":{"content":"tok"},"index":0}],"object":"chat.completion.chunk"}\n\n'
    data = chunk * 20_000
    pieces = [data[i : i + 1460] for i in range(0, len(data), 1460)]

    def decode() -> None:
        decoder = SseDecoder()
        for piece in pieces:
            decoder.feed(piece)

    plain = median_s(lambda: [piece.split(b"\n") for piece in pieces])
    took = median_s(decode)
    return [
        ("bytes.split of 20000 events", f"{plain * 1e3:.1f} ms", "1.0 x"),
        ("SSE decoding of 20000 events", f"{took * 1e3:.1f} ms", f"{took / plain:.1f} x"),
    ]


def ssh() -> list[tuple[str, str, str]]:
    """One command over ssh once connected, against a new connection for each; the server is on this machine."""
    if not SSHD:
        return [("ssh", "no sshd here", "")]
    with tempfile.TemporaryDirectory() as folder, sshd(Path(folder)) as server:
        plain = median_s(lambda: subprocess.run(["ssh", "-F", server.config, "box", "true"], check=True))
        host = SshHost("box", str(server.config))
        host.run(("true",))
        once = median_s(lambda: host.run(("true",)), 30)
        host.close()
    return [
        ("ssh box true", f"{plain * 1e3:.0f} ms", "1.0 x"),
        ("one command over ssh, connected", f"{once * 1e3:.0f} ms", f"{once / plain:.1f} x"),
    ]


if __name__ == "__main__":
    main()
