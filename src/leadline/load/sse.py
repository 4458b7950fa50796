"""Server-sent events out of bytes, without I/O.

Follows "Parsing an event stream" of the WHATWG HTML standard: a line ends in CR, LF or CRLF and in nothing else, so a
JSON string that holds U+2028, U+2029 or U+0085 stays whole. `id` and `retry` are skipped: a stream is never resumed.
"""

from __future__ import annotations

from typing import NamedTuple

_BOM = b"\xef\xbb\xbf"


class Event(NamedTuple):
    """One dispatched event. `data` is UTF-8 as it came; lines of data are joined with LF."""

    data: bytes
    name: bytes = b"message"


class SseDecoder:
    """Gives the same events for every way of cutting the stream into pieces, each with the piece that completes it.

    An event is complete at its blank line; one without it when the stream ends is dropped, as the standard says.
    """

    def __init__(self) -> None:
        self._head: bytes | None = b""  # what may be the start of a byte order mark; None once that is decided
        self._after_cr = False
        self._rest = b""
        self._data: list[bytes] = []
        self._name = b""

    def feed(self, data: bytes) -> list[Event]:
        """The events that `data` completes, in order."""
        if self._head is not None:
            data = self._skip_bom(self._head + data)
        if not data:
            return []
        if self._after_cr and data[0] == 0x0A:  # the second half of a CRLF that was cut between two pieces
            data = data[1:]
        self._after_cr = data.endswith(b"\r")
        data = self._rest + data
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, self._rest = data.split(b"\n")
        return self._dispatch(lines)

    def _skip_bom(self, head: bytes) -> bytes:
        if len(head) < len(_BOM) and _BOM.startswith(head):
            self._head = head
            return b""
        self._head = None
        return head.removeprefix(_BOM)

    def _dispatch(self, lines: list[bytes]) -> list[Event]:
        events: list[Event] = []
        for line in lines:
            if line:
                field, _, value = line.partition(b":")
                if field == b"data":
                    self._data.append(value.removeprefix(b" "))
                elif field == b"event":
                    self._name = value.removeprefix(b" ")
                continue
            if self._data:
                events.append(Event(b"\n".join(self._data), self._name or b"message"))
                self._data = []
            self._name = b""
        return events
