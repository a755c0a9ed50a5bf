"""The parser gives the same events however the bytes are cut."""

from __future__ import annotations

import pytest
from specswap_bench.sse import SseEvent, SseParser

STREAM = (
    "\ufeffdata: one\n\n"
    ": a comment\n"
    "data: two\r\ndata:  lines\r\n\r\n"
    "event: tick\rdata: three\r\r"
    "id: 7\nretry: 10\n\n"
    'data: {"text": "größer €"}\n\n'
    "data\n\n"
    "data: [DONE]\n\n"
).encode()
EXPECTED = [
    SseEvent("one"),
    SseEvent("two\n lines"),
    SseEvent("three", "tick"),
    SseEvent('{"text": "größer €"}'),
    SseEvent(""),
    SseEvent("[DONE]"),
]


def _parse(pieces: list[bytes]) -> tuple[list[SseEvent], bool]:
    parser = SseParser()
    events = [event for piece in pieces for event in parser.feed(piece)]
    return events, parser.pending


def test_whole_stream() -> None:
    assert _parse([STREAM]) == (EXPECTED, False)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 16, 64])
def test_pieces_of_any_size(size: int) -> None:
    assert _parse([STREAM[i : i + size] for i in range(0, len(STREAM), size)]) == (EXPECTED, False)


def test_cut_at_every_byte() -> None:
    for cut in range(len(STREAM)):
        assert _parse([STREAM[:cut], STREAM[cut:]]) == (EXPECTED, False), cut


def test_an_event_comes_with_its_empty_line_and_not_later() -> None:
    parser = SseParser()
    assert parser.feed(b"data: a\n") == []
    assert parser.pending
    assert parser.feed(b"\r") == [SseEvent("a")]
    assert parser.feed(b"\ndata: b\n\n") == [SseEvent("b")]


def test_a_torn_event_is_pending_and_bad_utf8_is_no_error() -> None:
    assert _parse([b"data: half"]) == ([], True)
    assert _parse([b"data: \xff\n\n"]) == ([SseEvent("\ufffd")], False)
