"""What an engine is put to the test with: command lines, settings, windows of a real server, and spoilt answers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import product

import msgspec

from leadline.evidence import Acceptance, Busy, Evidence, ExitFacts, Reply, Seen
from leadline.launch import LaunchSpec
from leadline.ports import Engine
from leadline.space import Setting
from leadline.trial import RequestRecord

SHAPES = (
    b"",
    b"\x00\xff\xfe",
    b"null",
    b"[]",
    b"[[]]",
    b"[null]",
    b"{}",
    b'"text"',
    b"-1",
    b"1e999",
    b'{"data":{}}',
    b'{"data":[7]}',
    b"[" * 100_000,
    b'{"a":' * 50_000,
)
"""Answers that are no answer, or not of the shape that was expected."""


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """Two looks at a real server with `records` between them, and what they amount to."""

    before: Evidence
    after: Evidence
    records: tuple[RequestRecord, ...]
    acceptance: Acceptance


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """`bases` are command lines of the engine, with speculation on and off; each accepts each of `settings`.

    `canonical` is the engine's own: what a setting means, and no more. `foreign` are words that the engine does not
    own, as they may stand at the end of a command line. `refused` are pairs that cannot be rendered. `windows` hold
    more accepted tokens than none in one of them. `telling` are lines of a log that say why a server failed.
    `versions` are of servers that may refuse some of the pairs. `named` are launches with the configuration files that
    the engine must read; those of every other base are its `files`. `busy` are answers to "metrics", one of a server
    at work.
    `seen` are earlier launches that told how much memory they took. `bare` starts the server without an option; None =
    the first word of the first base does. `loading` = what "health" says while the model loads; None when the engine
    does not listen then.
    """

    engine: Engine
    canonical: Callable[[Setting], Setting]
    bases: tuple[LaunchSpec, ...]
    settings: tuple[Setting, ...]
    foreign: tuple[str, ...]
    refused: tuple[tuple[LaunchSpec, Setting], ...]
    windows: tuple[Window, ...]
    telling: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    named: tuple[tuple[LaunchSpec, tuple[str, ...]], ...] = ()
    busy: tuple[tuple[Reply, Busy], ...] = ()
    seen: tuple[Seen, ...] = ()
    bare: LaunchSpec | None = None
    loading: Reply | None = None

    def pairs(self) -> Iterator[tuple[LaunchSpec, Setting]]:
        return product(self.bases, self.settings)


def spoilt(rng: random.Random, window: Window) -> Evidence:
    replies = {
        name: Reply(name=name, status=rng.choice((0, 200, 200, 200, 500, 503)), body=spoilt_body(rng, reply.body))
        for name, reply in window.after.replies.items()
    }
    log = spoilt_body(rng, window.after.log.encode()).decode(errors="replace")
    exit = rng.choice((None, None, ExitFacts(code=rng.randrange(256)), ExitFacts(signal=rng.randrange(1, 64))))
    return Evidence(replies=replies, log=log, exit=exit, argv=window.after.argv[: rng.randrange(8)])


def spoilt_body(rng: random.Random, body: bytes) -> bytes:
    match rng.randrange(5):
        case 0:
            return rng.choice(SHAPES)
        case 1:
            return rng.randbytes(rng.randrange(200))
        case 2:
            return body[: rng.randrange(len(body) + 1)]
        case 3:  # digits become other digits, so that the answer can still be read
            return bytes(rng.choice(b"0123456789") if 48 <= b <= 57 and rng.random() < 0.3 else b for b in body)
        case _:
            return bytes(rng.randrange(256) if rng.random() < 0.02 else b for b in body)
