"""Takes the body of a reply out of the bytes of its connection, cut anywhere; pure.

Each read is fed as it came; what it had of the body is returned as one piece.
"""

from __future__ import annotations

from typing import Protocol

from tuner.load.wire.head import Framing, Head, NotHttpError

_CRLF = b"\r\n"
_MAX_LINE_BYTES = 4096  # of a chunk's size with its extensions, and of a trailer
_HEX_DIGITS = 16


class Body(Protocol):
    """A body on its way.

    Attributes:
        is_done: its end has been read.
        rest: what was read behind its end.
    """

    is_done: bool
    rest: bytes

    def feed(self, data: bytes) -> bytes:
        """Take one read; return the body's bytes in it.

        Raises:
            NotHttpError: the framing is broken.
        """

    def end(self) -> str | None:
        """Take the end of the connection; return what the body lacks, None when it is whole."""


class ChunkedBody:
    """A body in chunks; the quick way is for servers that send one chunk at a time."""

    __slots__ = ("_is_last", "_left", "_line", "is_done", "rest")

    def __init__(self) -> None:
        self._line = b""  # of a size or a trailer, unfinished
        self._left = 0  # bytes of the chunk that are missing, its CRLF with them
        self._is_last = False  # the chunk of size 0 came: trailers follow
        self.is_done = False
        self.rest = b""

    def feed(self, data: bytes) -> bytes:
        """Take one read."""
        if not self._left and not self._line:
            end = data.find(_CRLF, 1, 10)
            # int() would take a sign, blanks, _ and 0x too.
            if end > 0 and data[:end].isalnum() and data[1] not in b"xX":
                try:
                    size = int(data[:end], 16)
                except ValueError:
                    return self._feed(data)
                if size and end + size + 4 == len(data) and data[-2:] == _CRLF and not self._is_last:
                    return data[end + 2 : -2]
        return self._feed(data)

    def _feed(self, data: bytes) -> bytes:
        pieces: list[bytes] = []
        at, size = 0, len(data)
        while at < size and not self.is_done:
            at = self._take_chunk(data, at, pieces) if self._left else self._take_line(data, at)
        if self.is_done:
            self.rest += data[at:]
        return b"".join(pieces)

    def _take_chunk(self, data: bytes, at: int, pieces: list[bytes]) -> int:
        """Take what ``data`` has of the chunk and of the CRLF behind it; return where it ends."""
        upto = min(len(data), at + self._left)
        body = max(0, min(upto - at, self._left - 2))
        if body:
            pieces.append(data[at : at + body])
        closing = data[at + body : upto]
        if not _CRLF[2 - min(2, self._left - body) :].startswith(closing):
            raise NotHttpError(f"a chunk of the reply does not end where it said: {closing!r}")
        self._left -= upto - at
        return upto

    def _take_line(self, data: bytes, at: int) -> int:
        end = data.find(b"\n", at)
        line = self._line + data[at : len(data) if end < 0 else end + 1]
        if len(line) > _MAX_LINE_BYTES:
            raise NotHttpError("a chunk's size line is too long")
        if end < 0:
            self._line = line
            return len(data)
        self._line = b""
        text = line.strip(b"\r\n")
        if self._is_last:
            self.is_done = not text
        else:
            self._begin(text)
        return end + 1

    def _begin(self, line: bytes) -> None:
        digits = line.partition(b";")[0].strip()
        if not digits or len(digits) > _HEX_DIGITS or digits.strip(b"0123456789abcdefABCDEF"):
            raise NotHttpError(f"a chunk's size is no number: {line[:40]!r}")
        size = int(digits, 16)
        if size:
            self._left = size + 2
        else:
            self._is_last = True

    def end(self) -> str | None:
        """Take the end of the connection."""
        return None if self.is_done else "the connection ended before the last chunk"


class SizedBody:
    """A body whose length the head said."""

    __slots__ = ("_left", "is_done", "rest")

    def __init__(self, length: int) -> None:
        self._left = length
        self.is_done = length == 0
        self.rest = b""

    def feed(self, data: bytes) -> bytes:
        """Take one read."""
        body = data[: self._left]
        self.rest += data[self._left :]
        self._left -= len(body)
        self.is_done = self._left == 0
        return body

    def end(self) -> str | None:
        """Take the end of the connection."""
        return None if self.is_done else f"the connection ended {self._left} bytes before the body did"


class OpenBody:
    """A body that ends with its connection."""

    __slots__ = ("is_done", "rest")

    def __init__(self) -> None:
        self.is_done = False
        self.rest = b""

    def feed(self, data: bytes) -> bytes:
        """Take one read."""
        return data

    def end(self) -> str | None:
        """Take the end of the connection."""
        self.is_done = True
        return None


def body_of(head: Head, *, is_to_head: bool = False) -> Body:
    """Return what reads the body behind ``head``.

    Args:
        head: of a reply.
        is_to_head: the request was a HEAD, whose reply has none.
    """
    if is_to_head or head.framing is Framing.NONE:
        return SizedBody(0)
    if head.framing is Framing.CHUNKED:
        return ChunkedBody()
    return SizedBody(head.length) if head.framing is Framing.LENGTH else OpenBody()
