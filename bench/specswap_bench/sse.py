"""Incremental parser for server-sent events over raw bytes.

Lines are split here and not by the HTTP library: line iterators of HTTP libraries wait for full read buffers and so
delay events (by the whole reply on a body without chunked encoding), which would be measured as server latency.
"""

from __future__ import annotations

from dataclasses import dataclass

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class SseEvent:
    """One dispatched event: `data` (lines joined by a newline), `event` (its type, "message" by default)."""

    data: str
    event: str = "message"


class SseParser:
    """Feed bytes as they arrive, split anywhere; get the events that became complete.

    Lines end with LF, CR or CRLF; comments (":...") and unknown fields are ignored; an event is dispatched at its empty
    line and only when it has data. Invalid UTF-8 becomes U+FFFD, it never raises.
    """

    def __init__(self) -> None:
        self._line = bytearray()
        self._data: list[str] = []
        self._event = ""
        self._skip_lf = False  # the last byte seen was a CR: a following LF belongs to it
        self._first = True

    @property
    def pending(self) -> bool:
        """True when bytes of an undispatched event are held: at the end of a stream that means truncation."""
        return bool(self._line) or bool(self._data)

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Events completed by `chunk`, in order."""
        events: list[SseEvent] = []
        position, end = 0, len(chunk)
        while position < end:
            if self._skip_lf:
                self._skip_lf = False
                if chunk[position] == 0x0A:
                    position += 1
                    continue
            lf = chunk.find(b"\n", position)
            cr = chunk.find(b"\r", position, end if lf < 0 else lf)
            stop = cr if cr >= 0 else lf
            if stop < 0:
                self._line += chunk[position:]
                break
            self._line += chunk[position:stop]
            self._skip_lf = cr >= 0
            position = stop + 1
            line = bytes(self._line)
            self._line.clear()
            event = self._take_line(line)
            if event is not None:
                events.append(event)
        return events

    def _take_line(self, line: bytes) -> SseEvent | None:
        if self._first:
            self._first = False
            if line.startswith(_BOM):
                line = line[len(_BOM) :]
        if not line:
            event = SseEvent("\n".join(self._data), self._event or "message") if self._data else None
            self._data, self._event = [], ""
            return event
        name, colon, value = line.partition(b":")
        if not name and colon:
            return None  # a comment
        if value.startswith(b" "):
            value = value[1:]
        if name == b"data":
            self._data.append(value.decode("utf-8", "replace"))
        elif name == b"event":
            self._event = value.decode("utf-8", "replace")
        return None
