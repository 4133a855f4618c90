"""The seam between the closed loop and whatever carries its requests.

A transport pushes what arrives into a sink and returns how the request ended; a failed
request is a value. Stamps are seconds on ``time.perf_counter``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from tuner.model.http import HttpCall


class Failure(Enum):
    """Why no whole reply came."""

    REFUSED = "refused"  # no connection could be made
    CUT = "cut"  # the connection ended before the reply did
    TIMED_OUT = "timed_out"  # the call's deadline passed
    REJECTED = "rejected"  # a whole reply came, and it is not the stream asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEnd:
    """How one streamed request ended.

    Attributes:
        ended_s: when the reply's last byte was read, or it failed.
        status: of the reply; None when none came.
        failure: None when the reply is a stream and was read to its end.
        detail: one line for the record; None when there is nothing to say.
    """

    ended_s: float
    status: int | None
    failure: Failure | None = None
    detail: str | None = None


@dataclass(slots=True, kw_only=True)
class ReadCounts:
    """How the reads of a connection fared.

    Attributes:
        reads: of the socket.
        stamped: of these, with a kernel stamp that could be used.
        late: of these, more than a millisecond after it.
    """

    reads: int = 0
    stamped: int = 0
    late: int = 0


class StreamSink(Protocol):
    """Takes what happens on the wire, as it happens."""

    def sent(self, at_s: float) -> None:
        """Take the moment just before the request is written; again when it is replayed."""

    def feed(self, piece: bytes, at_s: float) -> None:
        """Take the next bytes of a 200 reply's body; pieces may end anywhere.

        Pieces of one read have the same ``at_s``: when its last byte arrived.
        """


class StreamSlot(Protocol):
    """One connection of the closed loop; one request at a time.

    Attributes:
        counts: how its reads fared so far.
    """

    counts: ReadCounts

    async def open(self) -> None:
        """Connect before the first request; that nobody listens, the request will tell."""

    async def stream(self, call: HttpCall, sink: StreamSink) -> StreamEnd:
        """Send ``call`` and push its reply into ``sink`` until its end or ``call.timeout_s``.

        Raises:
            UsageError: the address cannot be used at all.
            MeasurementFault: the client broke its own rules.
        """

    async def close(self) -> None:
        """Close the connection."""
