"""A lab server as a process, asked by its engine's own probes and loaded over real HTTP."""

from __future__ import annotations

import http.client
import json
import subprocess
import threading
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
from support_lab_engines import FAST, words

from leadline.build import plugin
from leadline.evidence import Evidence, ExitFacts, Reply
from leadline.launch import LaunchFile, LaunchSpec
from leadline.load.decode import Raw, Sender, decode
from leadline.load.prober import HttpProber
from leadline.ports import Engine
from leadline.testing.dialects.registry import named
from leadline.testing.faults import Fault
from leadline.testing.labserver import install
from leadline.testing.physics import LabSpec
from leadline.trial import RequestRecord

UP = {"sglang": "fired up and ready", "vllm": "Application startup complete", "trtllm": "Uvicorn running on"}
PATIENCE_S = 30.0


class LabRun:
    """One launch of a lab server. Its log is read as it comes, so that it never blocks on it."""

    def __init__(
        self,
        folder: Path,
        name: str,
        *faults: Fault,
        port: int,
        depth: int = 3,
        running: int = 4,
        spec: LabSpec = FAST,
        more: Sequence[str] = (),
    ) -> None:
        self.name, self.port = name, port
        dialect = named(name)
        program = install(folder, msgspec.structs.replace(spec, dialect=name, faults=faults))
        argv, files = words(name, depth, port=port, running=running, folder=str(folder))
        for path, content in files.items():
            Path(path).write_text(content, encoding="utf-8")
        named_files = tuple(LaunchFile(path, content) for path, content in files.items())
        self.launch = LaunchSpec(argv=(str(program), *argv, *more), files=named_files)
        self.engine: Engine = plugin("engines", name, "engine").at(getattr(dialect, "version", None))
        self._lines: list[str] = []
        self._up, self._again = threading.Event(), threading.Event()
        self._process = subprocess.Popen(
            self.launch.argv, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, encoding="utf-8"
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._lines.append(line)
            if UP[self.name] in line:
                (self._again if self._up.is_set() else self._up).set()
        self._up.set()

    def until_up(self) -> LabRun:
        """Up, or gone."""
        assert self._up.wait(PATIENCE_S), self.log
        if UP[self.name] not in self.log:
            self.ended()
        return self

    def until_up_again(self) -> None:
        """After it started itself anew."""
        assert self._again.wait(PATIENCE_S), self.log

    @property
    def log(self) -> str:
        return "".join(self._lines)

    def ended(self) -> ExitFacts:
        code = self._process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return ExitFacts(signal=-code) if code < 0 else ExitFacts(code=code)

    def evidence(self, *, ready: bool = True, timeout_s: float = 5.0) -> Evidence:
        """What a look at it tells; `ready` = with a generated token."""
        code = self._process.poll()
        prober = HttpProber(f"http://127.0.0.1:{self.port}")
        replies: dict[str, Reply] = {}
        for probe in self.engine.probes() if code is None else ():
            if ready or probe.name != "ready":
                replies[probe.name] = prober.fetch(msgspec.structs.replace(probe, timeout_s=timeout_s))
        exit = None if code is None else self.ended()
        return Evidence(replies=replies, log=self.log, argv=self.launch.argv, exit=exit)

    def load(self, users: int, requests: int, tokens: int = 40) -> list[RequestRecord]:
        with ThreadPoolExecutor(users) as pool:
            return list(pool.map(lambda i: self._ask(i, tokens), range(requests)))

    def _ask(self, number: int, tokens: int) -> RequestRecord:
        body = {
            "model": "lab",
            "messages": [{"role": "user", "content": f"coding {number} " * 20}],
            "user": f"coding:{number}",
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.engine.body_fields(),
        }
        raw = Raw(intended_ns=0, start_ns=0, content_type="text/event-stream")
        url = f"http://127.0.0.1:{self.port}/v1/chat/completions"
        asked = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(asked, timeout=PATIENCE_S) as answer:
                raw.status = answer.status
                raw.pieces.append((1, answer.read()))
        except (OSError, http.client.HTTPException) as error:
            raw.error = str(error)
        return decode(raw, Sender(f"coding:{number}", number))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join(PATIENCE_S)
        if self._process.stderr is not None:
            self._process.stderr.close()
