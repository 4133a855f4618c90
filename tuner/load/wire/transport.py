"""An httpx transport for plain HTTP/1.1 streams, cheap enough to drive a whole ladder from one core.

It has no pool limit, resolves a host once, and sends a request in one piece. With
``request.extensions["sink"]``, a :class:`~tuner.load.wire.exchange.Push`, a body that the sink accepts
is pushed into it while the socket is read, and the response comes when it has ended, with an empty
body; without, it is an ordinary transport. TLS, proxies and HTTP/2 are for others.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx

from tuner.load.stream import ReadCounts
from tuner.load.wire.connection import Connection
from tuner.load.wire.exchange import CutError, Exchange
from tuner.load.wire.head import NotHttpError
from tuner.load.wire.poller import Poller

_IDLE_S = 3.0  # servers close idle connections after 5 s; ours go first, so that no request meets the close
_Key = tuple[str, int]


class EpollTransport(httpx.AsyncBaseTransport):
    """Plain HTTP/1.1 over an epoll of its own.

    Args:
        uses_kernel_stamps: time reads by the kernel's receive time where the platform gives it.

    Attributes:
        counts: how its reads fared.
        address: the numeric address of the last connection; empty before.
    """

    def __init__(self, *, uses_kernel_stamps: bool = True) -> None:
        self._uses_kernel_stamps = uses_kernel_stamps
        self._idle: dict[_Key, list[Connection]] = {}
        self._busy: set[Connection] = set()
        self._resolved: dict[_Key, list[tuple[socket.AddressFamily, tuple[Any, ...]]]] = {}
        self.counts = ReadCounts()
        self.address = ""

    async def open(self, url: httpx.URL, timeout_s: float | None = None) -> None:
        """Make a connection before it is needed.

        Raises:
            httpx.ConnectError, httpx.ConnectTimeout: there is none to be had.
        """
        self._keep(_key(url), await self._connect(_key(url), timeout_s))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send ``request``; see the module for what ``extensions["sink"]`` does.

        Raises:
            httpx.TransportError: as any transport.
        """
        if request.url.scheme != "http":
            raise httpx.UnsupportedProtocol(f"{request.url.scheme}:// is not plain HTTP")
        timeout = request.extensions.get("timeout", {})
        written = _written(request, await request.aread())
        key = _key(request.url)
        connection = self._take(key) or await self._connect(key, timeout.get("connect"))
        self._busy.add(connection)
        exchange = Exchange(request.extensions.get("sink"), is_head=request.method == "HEAD")
        try:
            connection.send(written, exchange)
            async with _deadline(timeout.get("read"), f"no reply within {timeout.get('read')} s"):
                found = await exchange.answer
        except BaseException as error:
            self._release(key, connection, is_whole=False)
            raise _as_httpx(error) from error
        if exchange.is_over:
            self._release(key, connection, is_whole=True)
        return httpx.Response(
            found.status,
            headers=list(found.headers),
            stream=_Stream(exchange, connection, timeout.get("read"), lambda: self._release(key, connection)),
            extensions={"ended_s": connection.last_s, "server_address": self.address},
            request=request,
        )

    async def aclose(self) -> None:
        """Close every connection."""
        for connection in [*self._busy, *(each for some in self._idle.values() for each in some)]:
            connection.close()
        self._busy.clear()
        self._idle.clear()

    # ------------------------------------------------------------------ connections

    def _take(self, key: _Key) -> Connection | None:
        """Return an idle connection that the server still has; the last used first."""
        idle = self._idle.get(key, [])
        while idle:
            connection = idle.pop()
            if connection.is_closed:
                continue
            if time.perf_counter() - connection.idle_since_s < _IDLE_S:
                return connection
            connection.close()
        return None

    def _keep(self, key: _Key, connection: Connection) -> None:
        if not connection.is_closed:
            self._idle.setdefault(key, []).append(connection)

    def _release(self, key: _Key, connection: Connection, *, is_whole: bool = False) -> None:
        if connection not in self._busy:
            return
        self._busy.discard(connection)
        if not (is_whole or connection.is_idle):
            connection.close()
        self._keep(key, connection)

    async def _connect(self, key: _Key, timeout_s: float | None) -> Connection:
        host, port = key
        loop = asyncio.get_running_loop()
        refusals: list[str] = []
        async with _deadline(timeout_s, f"{host}:{port} did not answer within {timeout_s} s", httpx.ConnectTimeout):
            for family, address in await self._resolve(key):
                sock = socket.socket(family, socket.SOCK_STREAM)
                sock.setblocking(False)
                try:
                    await loop.sock_connect(sock, address)
                except OSError as error:
                    sock.close()
                    refusals.append(f"{address[0]}: {error.strerror or error}")
                    continue
                except BaseException:
                    sock.close()
                    raise
                self.address = address[0]
                self._resolved[key] = [(family, address)]
                return Connection(sock, Poller.of(loop), self.counts, uses_kernel_stamps=self._uses_kernel_stamps)
        self._resolved.pop(key, None)  # a name may lead elsewhere the next time
        raise httpx.ConnectError(f"port {port} of {host}: {'; '.join(refusals)}")

    async def _resolve(self, key: _Key) -> list[tuple[socket.AddressFamily, tuple[Any, ...]]]:
        """Return the numeric addresses of a host, in the system's order, each once."""
        if key not in self._resolved:
            try:
                found = await asyncio.get_running_loop().getaddrinfo(*key, type=socket.SOCK_STREAM)
            except OSError as error:
                raise httpx.ConnectError(f"{key[0]} cannot be resolved: {error.strerror or error}") from error
            self._resolved[key] = list(dict.fromkeys((family, address) for family, _, _, _, address in found))
        return self._resolved[key]


class _Stream(httpx.AsyncByteStream):
    """The body of a reply that was not pushed."""

    def __init__(
        self, exchange: Exchange, connection: Connection, timeout_s: float | None, release: Callable[[], None]
    ) -> None:
        self._exchange = exchange
        self._connection = connection
        self._timeout_s = timeout_s
        self._release = release

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            try:
                async with _deadline(self._timeout_s, f"no more of the reply within {self._timeout_s} s"):
                    piece = await self._exchange.piece()
            except (CutError, NotHttpError) as error:
                raise _as_httpx(error) from error
            if piece is None:
                return
            if not self._exchange.held_bytes:
                self._connection.resume()
            yield piece

    async def aclose(self) -> None:
        """Let the connection go; one whose reply was not read to its end is closed."""
        self._release()


@contextlib.asynccontextmanager
async def _deadline(
    timeout_s: float | None, why: str, kind: type[httpx.TimeoutException] = httpx.ReadTimeout
) -> AsyncIterator[None]:
    """``asyncio.timeout`` whose end is an exception of httpx."""
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError as expired:
        raise kind(why) from expired


def _key(url: httpx.URL) -> _Key:
    return url.host, url.port or 80


def _as_httpx(error: BaseException) -> BaseException:
    """Return what httpx calls an error of the wire; others stay what they are."""
    return httpx.RemoteProtocolError(str(error)) if isinstance(error, (CutError, NotHttpError)) else error


def _written(request: httpx.Request, body: bytes) -> bytes:
    lines = [b"%s %s HTTP/1.1\r\n" % (request.method.encode(), request.url.raw_path)]
    is_sized = "transfer-encoding" not in request.headers
    lines += [
        b"%s: %s\r\n" % (name, value)
        for name, value in request.headers.raw
        if is_sized or name.lower() != b"transfer-encoding"
    ]
    if not is_sized:  # a body from a generator, which is whole by now
        lines.append(b"Content-Length: %d\r\n" % len(body))
    return b"".join([*lines, b"\r\n", body])
