"""A streaming server that is exact: every chunk carries the time at which it was sent.

One process, one thread, an epoll of its own and prebuilt bytes, so that it can pace more chunks a
second than a client can take. It speaks what SGLang speaks to a client: completions, chat
completions and ``/generate`` as streams of server-sent events that honour ``max_tokens``, and the
calls that tools make around them. Each event has ``sent_ns`` (CLOCK_MONOTONIC, taken just before
its send); ``/truth`` tells afterwards when each request was read and when each chunk was sent.

    python -m tuner.testing.paced_server [--port 8000] [--interval-ms 3.6 --in-step | --flood] …

The first line of its output is its address.
"""

from __future__ import annotations

import argparse
import errno
import gc
import heapq
import os
import select
import signal
import socket
import sys
import time
from collections import deque
from contextlib import suppress
from typing import Any

import orjson

from tuner.testing.paced_events import HEAD, Route, blocks, tail, whole_reply
from tuner.testing.paced_http import BadRequestError, Generation, Request, generation, reply, side_reply, take_request
from tuner.testing.paced_stream import Connection, Pace, Stream

_ROUTES = {route.value: route for route in Route}
_FIRST_WAIT_NS = 10**10  # while nothing is due


class PacedServer:
    """The server; ``run`` serves until a signal or the end of standard input.

    Args:
        pace: of all streams.
        host: address to listen on.
        port: 0: a free one.
    """

    def __init__(self, pace: Pace, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self._pace = pace
        self._listener = socket.create_server((host, port), backlog=1024)
        self._listener.setblocking(False)
        self._epoll = select.epoll()
        self._epoll.register(self._listener.fileno(), select.EPOLLIN)
        self._connections: dict[int, Connection] = {}
        self._due: list[tuple[int, int, Stream]] = []
        self._flood: deque[Stream] = deque()
        self._interval_ns = round(pace.interval_s * 1e9)
        self._ttft_ns = round(pace.ttft_s * 1e9)
        self._origin_ns = time.monotonic_ns()
        self._streams: list[Stream] = []
        self._running = 0
        self._most_running = 0
        self._tokens = 0

    @property
    def address(self) -> str:
        """The base URL."""
        host, port = self._listener.getsockname()[:2]
        return f"http://{host}:{port}"

    def run(self, *, until_stdin_closes: bool = False) -> None:
        """Serve; returns when standard input ends, if that is asked for."""
        if until_stdin_closes:
            self._epoll.register(sys.stdin.fileno(), select.EPOLLIN | select.EPOLLHUP)
        listener, stdin = self._listener.fileno(), sys.stdin.fileno() if until_stdin_closes else -1
        while True:
            self._wait()
            for fd, events in self._epoll.poll(0):
                if fd == listener:
                    self._accept()
                elif fd == stdin:
                    if not os.read(stdin, 4096):
                        return
                else:
                    self._serve(self._connections[fd], events)
            self._send_due()
            for _ in range(len(self._flood)):
                self._send(self._flood.popleft())

    def truth(self, first: int = 0) -> dict[str, Any]:
        """Return what was read and sent of the requests from number ``first`` on."""
        return {
            "most_running": self._most_running,
            "requests": [stream.truth() for stream in self._streams[first:]],
        }

    def _wait(self) -> None:
        # epoll's own time-out is in whole milliseconds.
        if self._flood:
            return
        now_ns = time.monotonic_ns()
        wait_ns = self._due[0][0] - now_ns if self._due else _FIRST_WAIT_NS
        if wait_ns > 0:
            select.select([self._epoll.fileno()], (), (), wait_ns / 1e9)

    def _send_due(self) -> None:
        due = self._due
        now_ns = time.monotonic_ns()
        while due and due[0][0] <= now_ns:
            _, number, stream = due[0]
            if self._send(stream) and self._interval_ns:
                stream.due_ns = self._next_due_ns(stream.due_ns, now_ns)
                heapq.heapreplace(due, (stream.due_ns, number, stream))
            else:
                heapq.heappop(due)

    def _next_due_ns(self, due_ns: int, now_ns: int) -> int:
        """Return the next moment of a stream's grid; those that were missed are left out.

        A server that made up for them would send several chunks at once, as no GPU does, and the
        client that reads them together would be blamed for it.
        """
        due_ns += self._interval_ns
        late_ns = now_ns - due_ns
        return due_ns if late_ns < 0 else due_ns + (late_ns // self._interval_ns + 1) * self._interval_ns

    def _send(self, stream: Stream) -> bool:
        """Send the next piece; return whether another one is to be paced."""
        connection = stream.connection
        if connection.stream is not stream:
            return False  # the client has gone
        template, chunks = stream.pieces[stream.next]
        first = stream.next == 0
        stream.next += 1
        is_last = stream.next == len(stream.pieces)
        now_ns = time.monotonic_ns()
        piece = template % ((stream.number, now_ns) * chunks)
        if first or is_last:
            piece = (HEAD if first else b"") + piece + (stream.tail if is_last else b"")
        stream.sent_ns.append(now_ns)
        stream.chunks += chunks
        is_taken = self._write(connection, piece)
        if is_last:
            self._end(stream)
            return False
        if is_taken and not self._interval_ns:
            self._flood.append(stream)
        return is_taken  # else it goes on when the client has read

    def _write(self, connection: Connection, piece: bytes) -> bool:
        try:
            sent = connection.sock.send(piece)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._drop(connection)
            return False
        if sent == len(piece):
            return True
        connection.backlog += piece[sent:]
        self._epoll.modify(connection.fd, select.EPOLLIN | select.EPOLLOUT)
        return False

    def _end(self, stream: Stream) -> None:
        connection = stream.connection
        connection.stream = None
        self._running -= 1
        self._tokens += stream.tokens
        if connection.is_closing and not connection.backlog:
            self._drop(connection)

    def _accept(self) -> None:
        with suppress(BlockingIOError):
            while True:
                sock, _ = self._listener.accept()
                connection = Connection(sock)
                self._connections[connection.fd] = connection
                self._epoll.register(connection.fd, select.EPOLLIN)

    def _drop(self, connection: Connection) -> None:
        if connection.stream is not None:
            self._running -= 1
            connection.stream = None
        if self._connections.pop(connection.fd, None) is not None:
            self._epoll.unregister(connection.fd)
            connection.sock.close()

    def _serve(self, connection: Connection, events: int) -> None:
        if events & select.EPOLLOUT:
            self._flush(connection)
        if not events & ~select.EPOLLOUT or connection.fd not in self._connections:
            return
        try:
            piece, arrived_ns = connection.read()
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno not in (errno.ECONNRESET, errno.EPIPE, errno.ETIMEDOUT):
                raise
            piece, arrived_ns = b"", 0
        if not piece:
            self._drop(connection)
            return
        connection.inbox += piece
        try:
            while connection.stream is None and (taken := take_request(connection.inbox)) is not None:
                request, connection.inbox = taken
                self._answer(connection, request, arrived_ns)
        except BadRequestError as error:
            self._reply(connection, reply(400, str(error).encode(), kind="text/plain", is_closing=True), is_last=True)

    def _answer(self, connection: Connection, request: Request, read_ns: int) -> None:
        route = _ROUTES.get(request.path)
        if route is None:
            self._reply(connection, self._side_reply(request), is_last=request.is_closing)
            return
        pace = self._pace
        asked = generation(route, request.body, first_tokens=pace.first_tokens, tokens_per_chunk=pace.tokens_per_chunk)
        if not asked.is_stream:
            self._tokens += asked.shape.tokens
            body = orjson.dumps(whole_reply(asked.shape, len(self._streams)))
            self._reply(connection, reply(200, body, is_closing=request.is_closing), is_last=request.is_closing)
            return
        connection.is_closing = request.is_closing
        self._begin(connection, asked, read_ns)

    def _begin(self, connection: Connection, asked: Generation, read_ns: int) -> None:
        number, pace = len(self._streams), self._pace
        stream = Stream(
            number=number,
            name=asked.name,
            read_ns=read_ns,
            tokens=asked.shape.tokens,
            pieces=blocks(asked.shape, 1 if self._interval_ns else pace.flood_chunks),
            tail=tail(asked.shape, number),
            connection=connection,
            due_ns=self._first_due_ns(read_ns),
        )
        self._streams.append(stream)
        connection.stream = stream
        self._running += 1
        self._most_running = max(self._most_running, self._running)
        heapq.heappush(self._due, (stream.due_ns, number, stream))

    def _first_due_ns(self, read_ns: int) -> int:
        due_ns = read_ns + self._ttft_ns
        if not (self._pace.in_step and self._interval_ns):
            return due_ns
        past_ns = due_ns - self._origin_ns
        return self._origin_ns + -(-past_ns // self._interval_ns) * self._interval_ns

    def _side_reply(self, request: Request) -> bytes:
        if request.path == "/truth":
            first = int(request.query.partition("first=")[2] or "0")
            return reply(200, orjson.dumps(self.truth(first)))
        found = side_reply(request.path, tokens=self._tokens, running=self._running)
        return found or reply(404, f"no {request.path} here".encode(), kind="text/plain")

    def _reply(self, connection: Connection, whole: bytes, *, is_last: bool) -> None:
        connection.is_closing = is_last
        if self._write(connection, whole) and is_last:
            self._drop(connection)

    def _flush(self, connection: Connection) -> None:
        backlog, connection.backlog = connection.backlog, b""
        if not self._write(connection, backlog):
            return
        self._epoll.modify(connection.fd, select.EPOLLIN)
        stream = connection.stream
        if stream is None:
            if connection.is_closing:
                self._drop(connection)
        elif self._interval_ns:
            stream.due_ns = self._next_due_ns(stream.due_ns, time.monotonic_ns())
            heapq.heappush(self._due, (stream.due_ns, stream.number, stream))
        else:
            self._flood.append(stream)


def main() -> None:
    """Serve with the pace of the command line."""
    parser = argparse.ArgumentParser(prog="python -m tuner.testing.paced_server", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--interval-ms", type=float, default=3.6, help="between the chunks of a stream")
    parser.add_argument("--flood", action="store_true", help="as fast as the client reads, 64 chunks a send")
    parser.add_argument("--in-step", action=argparse.BooleanOptionalAction, default=True, help="as from one batch")
    parser.add_argument("--ttft-ms", type=float, default=20.0)
    parser.add_argument("--first-tokens", type=int, default=1)
    parser.add_argument("--tokens-per-chunk", type=int, default=1)
    parser.add_argument("--core", type=int, help="stay on this one")
    parser.add_argument("--until-stdin-closes", action="store_true", help="end with the process that started it")
    options = parser.parse_args()
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    pace = Pace(
        interval_s=0.0 if options.flood else options.interval_ms / 1e3,
        ttft_s=options.ttft_ms / 1e3,
        in_step=options.in_step,
        first_tokens=options.first_tokens,
        tokens_per_chunk=options.tokens_per_chunk,
    )
    server = PacedServer(pace, host=options.host, port=options.port)
    sys.stdout.write(f"{server.address}\n")
    sys.stdout.flush()
    gc.freeze()
    with suppress(KeyboardInterrupt):
        server.run(until_stdin_closes=options.until_stdin_closes)


if __name__ == "__main__":
    main()
