"""The head of an HTTP/1 reply, and what it says of the body behind it (RFC 9112); pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

MAX_HEAD_BYTES = 1 << 16
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: |$)")
_NO_BODY = frozenset({204, 304})


class NotHttpError(ValueError):
    """What came is no HTTP/1 reply that we can read; the message says why."""


class Framing(Enum):
    """How the end of a body is told."""

    NONE = "none"  # there is no body
    LENGTH = "length"
    CHUNKED = "chunked"
    UNTIL_CLOSE = "until_close"


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A reply's head.

    Attributes:
        status: from 100 to 599.
        headers: as they came, names in lower case.
        framing: of the body.
        length: of the body in bytes, where ``framing`` is LENGTH.
        is_kept: the connection may carry another request afterwards.
    """

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    framing: Framing
    length: int
    is_kept: bool

    def value(self, name: bytes) -> bytes:
        """Return the value of header ``name`` (lower case), several joined by commas; empty without."""
        return b", ".join(value for found, value in self.headers if found == name)

    @property
    def is_interim(self) -> bool:
        """Whether the real reply is still to come (100 Continue, 103 Early Hints)."""
        return self.status < 200 and self.status != 101


def split_head(data: bytes) -> tuple[Head, bytes] | None:
    """Take a head from the start of ``data``; return it and what follows, None while it is not whole.

    Raises:
        NotHttpError: it never will be one.
    """
    end, skip = data.find(b"\r\n\r\n"), 4
    bare = data.find(b"\n\n")  # bare LF is not allowed and sent by hand-made servers
    if bare >= 0 and (end < 0 or bare < end):
        end, skip = bare, 2
    if end < 0:
        if len(data) > MAX_HEAD_BYTES:
            raise NotHttpError(f"the head of the reply is longer than {MAX_HEAD_BYTES} bytes")
        if not b"HTTP/1.".startswith(data[:7]):
            raise NotHttpError(f"the reply is not HTTP/1: {data[:40]!r}")
        return None
    return _head(data[:end]), data[end + skip :]


def _head(text: bytes) -> Head:
    first, *lines = text.split(b"\n")
    match = _STATUS.match(first.rstrip(b"\r"))
    if match is None:
        raise NotHttpError(f"the reply is not HTTP/1: {first[:40]!r}")
    headers: list[tuple[bytes, bytes]] = []
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not name or name != name.strip():
            raise NotHttpError(f"a line of the reply's head is no header: {line[:40]!r}")
        headers.append((name.lower(), value.strip()))
    status = int(match[2])
    framing, length = _framing(status, headers)
    return Head(
        status=status,
        headers=tuple(headers),
        framing=framing,
        length=length,
        is_kept=framing is not Framing.UNTIL_CLOSE and _is_kept(match[1] == b"1", headers),
    )


def _framing(status: int, headers: list[tuple[bytes, bytes]]) -> tuple[Framing, int]:
    if status < 200 or status in _NO_BODY:
        return Framing.NONE, 0
    codings = [value.lower() for name, value in headers if name == b"transfer-encoding"]
    if codings:
        if codings != [b"chunked"]:
            raise NotHttpError(f"transfer-encoding {codings!r} cannot be read")
        return Framing.CHUNKED, 0
    lengths = {value for name, value in headers if name == b"content-length"}
    if not lengths:
        return Framing.UNTIL_CLOSE, 0
    (length,) = lengths if len(lengths) == 1 else (b"",)
    if not (length.isascii() and length.isdigit()):
        raise NotHttpError(f"content-length {sorted(lengths)!r} is not a number")
    return Framing.LENGTH, int(length)


def _is_kept(is_1_1: bool, headers: list[tuple[bytes, bytes]]) -> bool:
    wishes = {wish.strip().lower() for name, value in headers if name == b"connection" for wish in value.split(b",")}
    return b"close" not in wishes and (is_1_1 or b"keep-alive" in wishes)
