"""Splits the bytes of a server-sent event stream into the payloads of its events.

The rules are those of the HTML standard, section 9.2.6: lines end in LF or CRLF, an empty
line ends an event, its ``data:`` lines are joined by LF, other fields and comments are
skipped, and an event that the end of the stream cuts off is dropped. A lone CR as line
end, which no known server sends, is not one here.
"""

from __future__ import annotations


class EventSplitter:
    """Remembers the unfinished line and event between two pieces."""

    __slots__ = ("_data", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """Take the next bytes, cut anywhere; return the payloads of the events they complete."""
        # Nearly every piece is one whole event of one line.
        if (
            piece[:6] == b"data: "
            and piece.find(b"\n") == len(piece) - 2
            and piece[-1:] == b"\n"
            and piece[-3] not in b" \r"
            and not self._rest
            and not self._data
        ):
            return [piece[6:-2]]
        return self._feed(piece)

    def _feed(self, piece: bytes) -> list[bytes]:
        lines = (self._rest + piece).split(b"\n")
        self._rest = lines.pop()
        events: list[bytes] = []
        for raw in lines:
            line = raw[:-1] if raw.endswith(b"\r") else raw
            if not line:
                payload = b"\n".join(self._data)
                self._data.clear()
                if payload:
                    events.append(payload)
            elif line.startswith(b"data:"):
                self._data.append(line[6:] if line[5:6] == b" " else line[5:])
        return events
