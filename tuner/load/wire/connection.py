"""One HTTP/1.1 connection: a request out in one send, its reply read as it arrives."""

from __future__ import annotations

import select
import socket
from time import perf_counter

from tuner.load.stream import ReadCounts
from tuner.load.wire.exchange import CutError, Exchange
from tuner.load.wire.poller import Poller
from tuner.load.wire.stamps import ANCILLARY_BYTES, asks_kernel, unpack_stamp

_READ_BYTES = 16384
_LATE_S = 1e-3
_HELD_BYTES = 1 << 20  # of a body that nobody reads; then the socket is not read either


class Connection:
    """An open socket; one request at a time.

    Args:
        sock: connected and not blocking; it is closed with the connection.
        poller: of the running loop.
        counts: to be added to.
        uses_kernel_stamps: if the platform gives them.

    Attributes:
        idle_since_s: when its last reply ended; of a new one, when it was made.
        is_closed: it is of no more use.
        last_s: when the last byte read arrived.
    """

    def __init__(
        self, sock: socket.socket, poller: Poller, counts: ReadCounts, *, uses_kernel_stamps: bool = True
    ) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
        self._fd = sock.fileno()
        self._poller = poller
        self._clock = poller.clock
        self._counts = counts
        self._recvmsg = sock.recvmsg
        self._unsent = memoryview(b"")
        self._exchange: Exchange | None = None
        self._is_kept = True  # it may carry another request
        self._is_paused = False
        self.is_closed = False
        self.idle_since_s = self.last_s = perf_counter()
        self._ancillary_bytes = ANCILLARY_BYTES if uses_kernel_stamps and asks_kernel(sock) else 0
        poller.add(self._fd, self)

    @property
    def is_idle(self) -> bool:
        """Whether it can take a request."""
        return self._exchange is None and not self.is_closed

    def send(self, request: bytes, exchange: Exchange) -> None:
        """Write a request whose reply goes to ``exchange``."""
        if self._exchange is not None or self.is_closed:
            raise RuntimeError("a connection carries one request at a time")
        self._exchange = exchange
        self._poller.busy += 1
        if exchange.push is not None:
            exchange.push.sent(perf_counter())
        self._unsent = memoryview(request)
        self._write()
        if self._unsent:
            self._poller.watch(self._fd, writes=True)

    def _write(self) -> None:
        try:
            sent = self._sock.send(self._unsent)
        except BlockingIOError:
            return
        except OSError:
            # The server does not want the rest. It may have said why: the reply, or its lack, is read next.
            sent = len(self._unsent)
            self._is_kept = False
        self._unsent = self._unsent[sent:]

    def ready(self, mask: int) -> None:
        """Read or write as far as it goes."""
        if mask & select.EPOLLOUT and self._unsent:
            self._write()
            if not self._unsent:
                self._poller.watch(self._fd)
        if mask & ~select.EPOLLOUT and not self.is_closed:
            self._read()

    def _read(self) -> None:
        at_s = begun_s = perf_counter()
        try:
            data, ancillary, _, _ = self._recvmsg(_READ_BYTES, self._ancillary_bytes)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(CutError(f"the connection broke: {error.strerror or error}"))
            return
        counts, clock = self._counts, self._clock
        counts.reads += 1
        if ancillary:
            seconds, nanoseconds = unpack_stamp(ancillary[0][2])
            stamp_s = (seconds - clock.base_s) + nanoseconds * 1e-9 + clock.shift_s
            if clock.is_steady or clock.is_credible(stamp_s, begun_s):
                at_s = stamp_s
                counts.stamped += 1
                if begun_s - at_s > _LATE_S:
                    counts.late += 1
        self.last_s = at_s
        try:
            self._take(data, at_s)
        except Exception as error:  # noqa: BLE001 - bad framing, or a fault of the sink: its request's end
            self._end(error)

    def _take(self, data: bytes, at_s: float) -> None:
        exchange = self._exchange
        if exchange is None or not data:
            self._close_of_peer()
            return
        body = exchange.body
        if body is None:
            self._begin(exchange, data, at_s)
        else:
            piece = body.feed(data)
            if piece:
                exchange.feed(piece, at_s)
            if body.is_done:
                self._finish()
        if exchange.held_bytes > _HELD_BYTES and not self.is_closed:
            self._is_paused = True
            self._poller.watch(self._fd, reads=False, writes=bool(self._unsent))

    def _begin(self, exchange: Exchange, data: bytes, at_s: float) -> None:
        taken = exchange.take_head(data)
        if taken is None or exchange.body is None:
            return
        head, rest = taken
        self._is_kept = self._is_kept and head.is_kept
        if rest and (piece := exchange.body.feed(rest)):
            exchange.feed(piece, at_s)
        if exchange.body.is_done:
            self._finish()

    def _close_of_peer(self) -> None:
        exchange = self._exchange
        self._is_kept = False
        if exchange is None:
            self.close()  # it goes, or talks unasked
        elif exchange.body is None:
            self._end(CutError("the server closed the connection without a reply"))
        elif (missing := exchange.body.end()) is not None:
            self._end(CutError(missing))
        else:
            self._finish()

    def _finish(self) -> None:
        exchange = self._exchange
        is_clean = not self._unsent and exchange is not None and exchange.body is not None and not exchange.body.rest
        self._is_kept = self._is_kept and is_clean
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        exchange, self._exchange = self._exchange, None
        self.idle_since_s = perf_counter()
        if exchange is not None:
            self._poller.busy -= 1
        if error is not None or not self._is_kept:
            self.close()
        if exchange is not None:
            exchange.end(error)

    def resume(self) -> None:
        """Read on after a body that had not been read was."""
        if self._is_paused and not self.is_closed:
            self._is_paused = False
            self._poller.watch(self._fd, writes=bool(self._unsent))

    def close(self) -> None:
        """Close the socket; a request under way fails as cut."""
        if self.is_closed:
            return
        self.is_closed = True
        self._poller.remove(self._fd)
        self._sock.close()
        if self._exchange is not None:
            self._end(CutError("the connection was closed by us"))
