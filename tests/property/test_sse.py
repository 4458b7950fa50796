import itertools

from hypothesis import given
from hypothesis import strategies as st

from leadline.load.sse import Event, SseDecoder

# Bytes that matter to the parser, and characters that other splitters take for line ends.
ALPHABET = [
    "\r",
    "\n",
    "\r\n",
    "data:",
    "data: ",
    "event: ",
    ":",
    " ",
    "x",
    "\u2028",
    "\u2029",
    "\x85",
    "\x0b",
    "\ufeff",
    "é",
]
EOLS = st.sampled_from([b"\r", b"\n", b"\r\n"])
DATA_LINE = st.text(st.characters(blacklist_characters="\r\n", blacklist_categories=("Cs",)), max_size=8)


def decode(pieces: list[bytes]) -> list[Event]:
    decoder = SseDecoder()
    return [event for piece in pieces for event in decoder.feed(piece)]


def cut(stream: bytes, marks: list[int]) -> list[bytes]:
    at = [0, *sorted(m % (len(stream) + 1) for m in marks), len(stream)]
    return [stream[a:b] for a, b in itertools.pairwise(at)]


@given(st.lists(st.sampled_from(ALPHABET), max_size=40), st.lists(st.integers(0, 1000), max_size=12))
def test_every_way_of_cutting_gives_the_same_events(words: list[str], marks: list[int]) -> None:
    stream = "".join(words).encode()
    whole = decode([stream])
    assert decode(cut(stream, marks)) == whole
    assert decode(cut(stream, list(range(len(stream))))) == whole


@given(st.binary(max_size=60), st.lists(st.integers(0, 1000), max_size=12))
def test_any_bytes_are_accepted(stream: bytes, marks: list[int]) -> None:
    assert decode(cut(stream, marks)) == decode([stream])


@given(st.lists(st.tuples(st.lists(DATA_LINE, min_size=1, max_size=3), EOLS, st.booleans()), max_size=6), st.booleans())
def test_what_was_encoded_comes_out_with_any_line_end(events: list[tuple[list[str], bytes, bool]], bom: bool) -> None:
    stream = b"\xef\xbb\xbf" if bom else b""
    for lines, eol, comment in events:
        stream += b": ping" + eol if comment else b""
        stream += b"".join(b"data: " + line.encode() + eol for line in lines) + eol
    assert decode([stream]) == [Event("\n".join(lines).encode()) for lines, _, _ in events]


def test_a_json_string_with_odd_separators_stays_whole() -> None:
    text = '{"content":"a\u2028b\u2029c\x85d\x0be"}'.encode()
    assert decode([b"data: " + text + b"\n\n"]) == [Event(text)]


def test_a_crlf_cut_in_two_ends_one_line_not_two() -> None:
    assert decode([b"data: a\r", b"\ndata: b\r", b"\n\r", b"\n"]) == [Event(b"a\nb")]


def test_a_cr_ends_the_event_at_once() -> None:
    decoder = SseDecoder()
    assert decoder.feed(b"data: a\r\r") == [Event(b"a")]
    assert decoder.feed(b"\ndata: b\r\r") == [Event(b"b")]


def test_a_byte_order_mark_is_skipped_at_the_start_only() -> None:
    bom = b"\xef\xbb\xbf"
    assert decode([b"\xef", b"\xbb", b"\xbfdata: a\n\n", bom + b"data: b\n\n"]) == [Event(b"a")]


def test_names_comments_and_unknown_fields() -> None:
    stream = b": hi\nid: 7\nretry: 10\nevent: error\ndata:x\n\ndata\n\nevent: lost\n\ndata: y\n\n"
    assert decode([stream]) == [Event(b"x", b"error"), Event(b""), Event(b"y")]


def test_one_space_after_the_colon_belongs_to_the_syntax() -> None:
    assert decode([b"data:  x\n\n"]) == [Event(b" x")]


def test_an_event_without_its_blank_line_is_dropped() -> None:
    assert decode([b"data: a\n\ndata: b\n"]) == [Event(b"a")]
