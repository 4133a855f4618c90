"""What the way to the server takes and carries: round trip, and small replies a second.

Sockets and not an HTTP library: a library takes a millisecond of CPU a request, and would be what is measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from tuner.hosts.checks.row import Row, ok, warning

PATH = "/v1/models"
"""Cheap, and spoken by every engine; what it answers does not matter."""
TRIPS = 20
CHUNKS_OF_A_STREAM = 50.0
"""A stream of 200 tok/s and more sends about this many chunks a second, several tokens in each."""
_CONNECTIONS = 8
_AHEAD = 32
"""Requests under way on one connection: the round trip must not be what limits the count."""
_LONGEST_S = 2.0
_ENOUGH_S = 0.5
_PATIENCE_S = 10.0
_LARGEST_REPLY = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteReading:
    """What was measured.

    Attributes:
        trip_s: median round trip of one small request.
        replies_per_s: small replies carried with many requests under way; None: not measured.
        problem: why there is nothing; empty when there is.
    """

    trip_s: float | None = None
    replies_per_s: float | None = None
    problem: str = ""


class _Broken(Exception):
    """The other side said something that is not HTTP, or ended in the middle of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Where small requests go, and the request itself, ready to be sent."""

    host: str
    port: int
    tls: bool
    request: bytes

    @classmethod
    def of(cls, base_url: str, headers: Sequence[tuple[str, str]]) -> Server:
        """Prepare requests to ``base_url``."""
        url = urlsplit(base_url)
        host, tls = url.hostname or "", url.scheme == "https"
        extra = "".join(f"{name}: {value}\r\n" for name, value in headers)
        text = f"GET {url.path.rstrip('/')}{PATH} HTTP/1.1\r\nHost: {url.netloc}\r\nUser-Agent: tuner\r\n{extra}\r\n"
        return cls(host=host, port=url.port or (443 if tls else 80), tls=tls, request=text.encode())

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection."""
        context = ssl.create_default_context() if self.tls else None
        return await asyncio.open_connection(self.host, self.port, ssl=context, limit=_LARGEST_REPLY)


async def measure(base_url: str, headers: Sequence[tuple[str, str]], needed_per_s: float) -> RouteReading:
    """Measure the way to a server that runs: a second or two of small requests, and no generation.

    Args:
        base_url: ``http://host:port``.
        headers: the server's key, if it asks for one.
        needed_per_s: counting ends early once this is shown.
    """
    server = Server.of(base_url, headers)
    try:
        async with asyncio.timeout(_PATIENCE_S):
            trip_s = await _trip_s(server)
    except (OSError, _Broken, TimeoutError) as error:
        return RouteReading(problem=f"{base_url} does not answer: {_text(error)}")
    try:
        async with asyncio.timeout(_PATIENCE_S):
            return RouteReading(trip_s=trip_s, replies_per_s=await _replies_per_s(server, needed_per_s))
    except (OSError, _Broken, TimeoutError) as error:
        return RouteReading(trip_s=trip_s, problem=f"{base_url} gave up under small requests: {_text(error)}")


async def _trip_s(server: Server) -> float:
    reader, writer = await server.connect()
    try:
        trips = []
        for _ in range(TRIPS):
            started_s = time.perf_counter()
            writer.write(server.request)
            await read_reply(reader)
            trips.append(time.perf_counter() - started_s)
        return statistics.median(trips)
    finally:
        await _close(writer)


async def _replies_per_s(server: Server, needed_per_s: float) -> float:
    """Count replies over several connections with many requests under way on each."""
    count = 0
    started_s = time.perf_counter()

    def is_over() -> bool:
        passed_s = time.perf_counter() - started_s
        return passed_s >= _LONGEST_S or (passed_s >= _ENOUGH_S and count >= needed_per_s * passed_s)

    async def carry() -> None:
        nonlocal count
        reader, writer = await server.connect()
        try:
            writer.write(server.request * _AHEAD)
            while not is_over():
                await read_reply(reader)
                count += 1
                writer.write(server.request)
        finally:
            await _close(writer)

    carriers = [asyncio.ensure_future(carry()) for _ in range(_CONNECTIONS)]
    try:
        await asyncio.gather(*carriers)  # and no TaskGroup: one broken connection is one error, not a group
    finally:
        for carrier in carriers:
            carrier.cancel()
        await asyncio.gather(*carriers, return_exceptions=True)
    return count / (time.perf_counter() - started_s)


async def read_reply(reader: asyncio.StreamReader) -> int:
    """Read one whole reply; return its status.

    Raises:
        _Broken: it is not HTTP/1.1, or was cut.
    """
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if fields.get("transfer-encoding", "").lower() == "chunked":
            while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
                await reader.readexactly(size + 2)
            await reader.readuntil(b"\r\n")
        else:
            await reader.readexactly(int(fields.get("content-length", "0")))
        return int(first.split()[1])
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, IndexError) as error:
        raise _Broken(str(error)) from error


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()  # replies that are still under way are nobody's
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def _text(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {_PATIENCE_S:g} s"
    return " ".join(str(error).split()) or type(error).__name__


def needed_chunks_per_s(ladder: Sequence[int]) -> float:
    """Return what the highest level of a ladder sends, all streams together."""
    return max(ladder, default=1) * CHUNKS_OF_A_STREAM


def route_row(reading: RouteReading, ladder: Sequence[int], way: str) -> Row:
    """Decide whether the way is wide enough for the study's load.

    Args:
        reading: of a server that runs.
        ladder: the study's levels.
        way: how it goes, for the reader.
    """
    check = "route"
    if reading.trip_s is None:
        return warning(
            check,
            f"{way}: {reading.problem}",
            "the unit may still be loading; else look at the firewall between, or write tunnel = true",
        )
    trip = f"{way}: round trip {reading.trip_s * 1000:.1f} ms"
    if reading.replies_per_s is None:
        return warning(check, f"{trip}; {reading.problem}", "run doctor again while the server is idle")
    needed, top = needed_chunks_per_s(ladder), max(ladder, default=1)
    seen = (
        f"{trip}, carries {reading.replies_per_s:.0f} small replies/s; {top} streams send about {needed:.0f} chunks/s"
    )
    if reading.replies_per_s < needed:
        return warning(
            check,
            seen,
            "too narrow, or the server's own HTTP is: run tuner nearer to the host (a Ray worker there), "
            "or leave the highest levels out of the ladder",
        )
    return ok(check, seen)


def silent_row(trip_s: float | None, way: str) -> Row:
    """Say what is known of the way while no server runs.

    Args:
        trip_s: of a small command on the host.
        way: how the load will go, for the reader.
    """
    trip = "" if trip_s is None else f"; a command on the host takes {trip_s * 1000:.0f} ms"
    return ok("route", f"{way}{trip}; what it carries was not measured: no server runs")
