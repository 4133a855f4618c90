"""What a paced server keeps of a stream and of a connection."""

from __future__ import annotations

import socket
import struct
import time
from array import array
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

_RECV_BYTES = 1 << 16
_SO_TIMESTAMPNS = 35  # of Linux on all but three architectures; Python has no name for it
_TIMESPEC = struct.Struct("@qq")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How streams are paced.

    Attributes:
        interval_s: between the chunks of a stream; 0: as fast as the client reads (flood).
        ttft_s: from a request's last byte to its first chunk, at least.
        in_step: all streams send at the same moments, as from one batch.
        first_tokens, tokens_per_chunk: as in :class:`Shape`.
        flood_chunks: sent at once in a flood.
    """

    interval_s: float = 0.0036
    ttft_s: float = 0.02
    in_step: bool = True
    first_tokens: int = 1
    tokens_per_chunk: int = 1
    flood_chunks: int = 64


@dataclass(slots=True, kw_only=True, eq=False)
class Stream:
    """One streamed reply: what is left to be sent, and the truth about what was.

    Attributes:
        number: of the request, from 0.
        name: the end of its prompt.
        read_ns: when its last byte arrived.
        sent_ns: of each chunk, or of each block of a flood.
    """

    number: int
    name: str
    read_ns: int
    tokens: int
    pieces: tuple[tuple[bytes, int], ...]
    tail: bytes
    connection: Connection
    due_ns: int = 0
    next: int = 0
    chunks: int = 0
    sent_ns: array[int] = field(default_factory=lambda: array("q"))

    def truth(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "number": self.number,
            "name": self.name,
            "read_ns": self.read_ns,
            "tokens": self.tokens,
            "chunks": self.chunks,
            "sent_ns": self.sent_ns.tolist(),
        }


class Connection:
    """A client's connection: what it asked so far, and what it has not yet taken."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with suppress(OSError):  # a kernel without it: requests arrive when they are read
            sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self.sock = sock
        self.fd = sock.fileno()
        self.inbox = b""
        self.backlog = b""
        self.stream: Stream | None = None
        self.is_closing = False  # after the reply

    def read(self) -> tuple[bytes, int]:
        """Return the next bytes, none at the end, and when the last of them arrived, on CLOCK_MONOTONIC.

        Raises:
            BlockingIOError: there are none yet.
            OSError: the connection broke.
        """
        piece, more, _, _ = self.sock.recvmsg(_RECV_BYTES, socket.CMSG_SPACE(_TIMESPEC.size))
        for level, kind, stamp in more:
            if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS) and len(stamp) == _TIMESPEC.size:
                seconds, nanoseconds = _TIMESPEC.unpack(stamp)
                age_ns = time.time_ns() - (seconds * 10**9 + nanoseconds)
                return piece, time.monotonic_ns() - max(0, age_ns)
        return piece, time.monotonic_ns()
