"""HTTP over httpx: with its transport for streams the only module that knows it. Its exceptions end here.

Each slot of the closed loop has a transport with one connection: the pool that httpx
shares between requests is scanned at every request and costs 10 ms of CPU a request at
64 streams. For http:// it is our own, which pushes what the kernel received with its time; https://
goes over the stock one, whose chunks are timed when our process gets to them. Proxies and other
settings of the environment are never used, and there is no read time-out: a slow first token is a
measurement, the call's deadline ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import time
from collections.abc import Mapping
from functools import cache

import httpx
import orjson

from tuner.errors import MeasurementFault, TunerError, UsageError
from tuner.load.stream import Failure, ReadCounts, StreamEnd, StreamSink
from tuner.load.wire.exchange import Push
from tuner.load.wire.head import Head
from tuner.load.wire.transport import EpollTransport
from tuner.model.http import HttpCall, HttpReply

# SGLang closes idle connections after 5 s; ours go first, so that no request meets the close.
_KEEPALIVE_S = 2.0
CERTIFICATES = "SSL_CERT_FILE"
"""Variable that names a file of further certificates to trust, as OpenSSL's own programs read it."""
_OPEN_S = 5.0
_CONTROL_CONNECTIONS = 8  # control calls that may wait at the same time: health, counters, abort
_DETAIL_BYTES = 200
_HEADERS = {"accept": "*/*", "accept-encoding": "identity", "content-type": "application/json", "user-agent": "tuner"}

_FOREIGN = (httpx.HTTPError, httpx.InvalidURL, httpx.CookieConflict, httpx.StreamError)
_MEANING: Mapping[type[Exception], Failure | type[TunerError]] = {
    httpx.ConnectError: Failure.REFUSED,
    httpx.ConnectTimeout: Failure.REFUSED,
    httpx.ProxyError: Failure.REFUSED,
    httpx.ReadTimeout: Failure.TIMED_OUT,
    httpx.WriteTimeout: Failure.TIMED_OUT,
    httpx.TimeoutException: Failure.TIMED_OUT,
    httpx.ReadError: Failure.CUT,
    httpx.WriteError: Failure.CUT,
    httpx.CloseError: Failure.CUT,
    httpx.NetworkError: Failure.CUT,
    httpx.RemoteProtocolError: Failure.CUT,
    httpx.ProtocolError: Failure.CUT,
    httpx.DecodingError: Failure.CUT,
    httpx.TransportError: Failure.CUT,
    httpx.RequestError: Failure.CUT,
    httpx.HTTPError: Failure.CUT,
    httpx.InvalidURL: UsageError,
    httpx.UnsupportedProtocol: UsageError,
    # The rest is our own fault: a slot has one connection for one request, follows no
    # redirect, keeps no cookie and reads a body once.
    httpx.LocalProtocolError: MeasurementFault,
    httpx.PoolTimeout: MeasurementFault,
    httpx.TooManyRedirects: MeasurementFault,
    httpx.HTTPStatusError: MeasurementFault,
    httpx.CookieConflict: MeasurementFault,
    httpx.StreamError: MeasurementFault,
    httpx.StreamConsumed: MeasurementFault,
    httpx.StreamClosed: MeasurementFault,
    httpx.ResponseNotRead: MeasurementFault,
    httpx.RequestNotRead: MeasurementFault,
}


def meaning(error: Exception) -> Failure | type[TunerError]:
    """Say what an httpx exception means: a request's failure, or an error of ours.

    Raises:
        KeyError: it is not an exception of httpx.
    """
    for kind in type(error).__mro__:
        if kind in _MEANING:
            return _MEANING[kind]
    raise KeyError(type(error))


def failure_of(error: Exception, url: str) -> tuple[Failure, str]:
    """Return an httpx exception as a value, with its one-line text.

    Raises:
        UsageError: ``url`` cannot be used.
        MeasurementFault: the client broke its own rules.
    """
    what = meaning(error)
    text = f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(": ")
    if isinstance(what, Failure):
        return what, text
    raise what(f"{url}: {text}") from error


@cache
def _tls() -> ssl.SSLContext:
    # Made once: reading the CA bundle costs 50 ms.
    context = httpx.create_ssl_context(trust_env=False)
    own = os.environ.get(CERTIFICATES)
    if own:
        try:
            context.load_verify_locations(own)
        except OSError as error:  # ssl.SSLError is one
            raise UsageError(
                f"{CERTIFICATES}={own}: {error.strerror or error}; name a file of PEM certificates"
            ) from error
    return context


@cache
def _no_tls() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def base_address(base_url: str) -> str:
    """Return ``base_url`` without its trailing slash.

    Raises:
        UsageError: it is not an http or https address.
    """
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL as error:
        raise UsageError(f"server address {base_url!r}: {error}; write http://host:port") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise UsageError(f"server address {base_url!r} is not an http address; write http://host:port")
    return base_url.rstrip("/")


def _transport(base_url: str, connections: int) -> httpx.AsyncHTTPTransport:
    return httpx.AsyncHTTPTransport(
        verify=_tls() if base_url.startswith("https:") else _no_tls(),
        trust_env=False,
        limits=httpx.Limits(
            max_connections=connections, max_keepalive_connections=connections, keepalive_expiry=_KEEPALIVE_S
        ),
    )


class _Push:
    """A stream's sink as the transport sees it.

    Attributes:
        status: of the reply; None while none has come.
    """

    __slots__ = ("feed", "sent", "status")

    def __init__(self, sink: StreamSink) -> None:
        self.sent = sink.sent
        self.feed = sink.feed
        self.status: int | None = None

    def accepts(self, head: Head) -> bool:
        """Whether the reply is the stream that was asked for."""
        self.status = head.status
        return _refusal(head.status, head.value(b"content-encoding"), head.value(b"content-type")) is None


class _Wire:
    """Sends prepared requests over one transport."""

    def __init__(self, base_url: str, connections: int, transport: httpx.AsyncBaseTransport | None) -> None:
        self._base = base_address(base_url)
        self._transport = transport or _transport(self._base, connections)

    def url(self, path: str) -> str:
        return self._base + path

    async def open(
        self, call: HttpCall, content: bytes | None, push: Push | None = None
    ) -> tuple[httpx.Response, httpx.AsyncByteStream]:
        request = httpx.Request(
            "GET" if content is None else "POST",
            self.url(call.path),
            headers={**_HEADERS, **dict(call.headers)},
            content=content,
            extensions={
                "timeout": {"connect": call.timeout_s, "read": None, "write": None, "pool": None},
                "sink": push,
            },
        )
        response = await self._transport.handle_async_request(request)
        stream = response.stream
        if not isinstance(stream, httpx.AsyncByteStream):
            raise MeasurementFault(f"{self.url(call.path)}: the transport gave a body that cannot be streamed")
        return response, stream

    async def close(self) -> None:
        await self._transport.aclose()


class HttpSlot:
    """One connection of the closed loop over httpx (``StreamSlot``).

    Args:
        base_url: ``http://host:port``.
        transport: instead of a real one; it is closed with the slot.
    """

    def __init__(self, base_url: str, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        if transport is None and base_address(base_url).startswith("http:"):
            transport = EpollTransport()
        self._push = transport if isinstance(transport, EpollTransport) else None
        self._wire = _Wire(base_url, 1, transport)
        self._is_reused = False  # the connection was idle and may have been closed by the server
        self.counts = ReadCounts() if self._push is None else self._push.counts

    async def open(self) -> None:
        """Connect; that nobody listens, the first request tells."""
        if self._push is not None:
            with contextlib.suppress(httpx.TransportError):
                await self._push.open(httpx.URL(self._wire.url("/")), _OPEN_S)
                self._is_reused = True

    async def stream(self, call: HttpCall, sink: StreamSink) -> StreamEnd:
        """Send ``call``, push its reply into ``sink``.

        A request that finds its kept connection closed before one byte came back is sent
        once more on a new one; the record says so.
        """
        content = None if call.body is None else orjson.dumps(call.body)
        try:
            async with asyncio.timeout(call.timeout_s):
                was_reused, self._is_reused = self._is_reused, False
                end = await self._once(call, content, sink)
                if was_reused and end.status is None and end.failure is Failure.CUT:
                    end = await self._once(call, content, sink)
                    end = StreamEnd(
                        ended_s=end.ended_s,
                        status=end.status,
                        failure=end.failure,
                        detail=end.detail or "sent again: the server had closed the idle connection",
                    )
        except TimeoutError:
            detail = f"no end after {call.timeout_s:g} s"
            return StreamEnd(ended_s=time.perf_counter(), status=None, failure=Failure.TIMED_OUT, detail=detail)
        self._is_reused = end.failure in (None, Failure.REJECTED)
        return end

    async def _once(self, call: HttpCall, content: bytes | None, sink: StreamSink) -> StreamEnd:
        status: int | None = None
        push = None if self._push is None else _Push(sink)
        if push is None:
            sink.sent(time.perf_counter())
        try:
            response, stream = await self._wire.open(call, content, push)
            status = response.status_code
            headers = response.headers
            refusal = _refusal(
                status, headers.get("content-encoding", "").encode(), headers.get("content-type", "").encode()
            )
            body = bytearray()
            try:
                async for piece in stream:
                    if refusal is None:
                        sink.feed(piece, time.perf_counter())
                    elif len(body) < _DETAIL_BYTES:
                        body += piece
            finally:
                await stream.aclose()
        except _FOREIGN as error:
            failure, text = failure_of(error, self._wire.url(call.path))
            status = push.status if push is not None else status
            return StreamEnd(ended_s=time.perf_counter(), status=status, failure=failure, detail=text)
        ended_s = response.extensions.get("ended_s", time.perf_counter())
        if refusal is None:
            return StreamEnd(ended_s=ended_s, status=status)
        text = " ".join(bytes(body[:_DETAIL_BYTES]).decode(errors="replace").split())
        detail = f"{refusal}: {text}".rstrip(": ")
        return StreamEnd(ended_s=ended_s, status=status, failure=Failure.REJECTED, detail=detail)

    async def close(self) -> None:
        """Close the connection."""
        await self._wire.close()


def _refusal(status: int, encoding: bytes, kind: bytes) -> str | None:
    """Say why a reply is not a stream of ours; None when it is."""
    if status != 200:
        return f"HTTP {status}"
    # A proxy that compresses merges events: the stamps would be its own.
    if encoding not in (b"", b"identity"):
        return f"content-encoding {encoding.decode(errors='replace')} although identity was asked for"
    if kind and kind.partition(b";")[0].strip().lower() != b"text/event-stream":
        return f"content-type {kind.decode(errors='replace')} and no stream of events"
    return None


class HttpControlClient:
    """``ControlClient`` over httpx.

    Args:
        base_url: ``http://host:port``.
        transport: instead of a real one; it is closed with the client.
    """

    def __init__(self, base_url: str, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._wire = _Wire(base_url, _CONTROL_CONNECTIONS, transport)

    async def call(self, call: HttpCall) -> HttpReply:
        """Send one request; a reply that did not come whole is a value with ``error``."""
        content = None if call.body is None else orjson.dumps(call.body)
        try:
            async with asyncio.timeout(call.timeout_s):
                response, stream = await self._wire.open(call, content)
                try:
                    body = b"".join([piece async for piece in stream])
                finally:
                    await stream.aclose()
        except TimeoutError:
            return HttpReply(status=None, body=b"", error=Failure.TIMED_OUT.value)
        except _FOREIGN as error:
            failure, text = failure_of(error, self._wire.url(call.path))
            return HttpReply(status=None, body=b"", error=failure.value, detail=text)
        return HttpReply(status=response.status_code, body=body)

    async def close(self) -> None:
        """Close its connections."""
        await self._wire.close()
