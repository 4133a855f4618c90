"""What the way to the server takes and carries: round trip, and small replies a second.

Sockets and not an HTTP library: a library takes a millisecond of CPU a request, and would be what is measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import socket
import ssl
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from tuner.errors import TransportFault
from tuner.hosts.checks.advice import TABLE, Advice
from tuner.hosts.checks.row import Row, failed, ok, warning
from tuner.ports import Clock, HostTransport

PATH = "/v1/models"
"""Cheap, and spoken by every engine; what it answers does not matter."""
TRIPS = 20
BURST = 400
"""Small requests in the burst: a server writes a line of log for each, so there are few of them."""
CHUNKS_OF_A_STREAM = 50.0
"""A stream of 200 tok/s and more sends about this many chunks a second, several tokens in each."""
CHUNK_BYTES = 350
"""An event of an OpenAI stream with its usage, and what TCP and SSH put around it."""
SHARE = 0.1
"""Fewer small replies than this share of the chunks wanted are the way's fault; above, a server's own HTTP
is as likely: Python servers answer a thousand or two of them a second, and stream many more chunks."""
_CONNECTIONS = 2
_PATIENCE_S = 10.0
_PROXY_STATUS = (502, 503, 504)
_LARGEST_REPLY = 1 << 22
_FIRST_BYTES, _SECOND_BYTES = 1 << 18, 1 << 21
_SLOW_S = 1.0
_SHORTEST_S = 0.02  # what two starts of a command differ by
_BULK_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteReading:
    """What was measured; None: it was not.

    Attributes:
        trip_s: median round trip of one small request to the server.
        replies_per_s: small replies, with all requests under way at the same time.
        bytes_per_s: bulk from the host, over the SSH connection.
        problem: why the server did not tell more; empty when it did.
        is_cut: no request gets as far as the server; one that is only slow is reached.
    """

    trip_s: float | None = None
    replies_per_s: float | None = None
    bytes_per_s: float | None = None
    problem: str = ""
    is_cut: bool = False


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


async def measure(base_url: str, headers: Sequence[tuple[str, str]], *, is_through_proxy: bool = False) -> RouteReading:
    """Measure the way to a server that runs: some hundred small requests, and no generation.

    Args:
        base_url: ``http://host:port``.
        headers: the server's key, if it asks for one.
        is_through_proxy: a proxy may answer in its stead.
    """
    server = Server.of(base_url, headers)
    try:
        async with asyncio.timeout(_PATIENCE_S):
            connection = await server.connect()
    except OSError as error:  # TimeoutError is one
        return RouteReading(problem=f"{base_url} cannot be connected to: {_text(error)}", is_cut=True)
    try:
        async with asyncio.timeout(_PATIENCE_S):
            trip_s, status = await _trip_s(server, *connection)
    except (OSError, _Broken) as error:
        is_cut = not isinstance(error, TimeoutError)
        return RouteReading(problem=f"{base_url} does not answer: {_text(error)}", is_cut=is_cut)
    if is_through_proxy and status in _PROXY_STATUS:
        return RouteReading(problem=f"{base_url} answers {status}, as a proxy does without a server", is_cut=True)
    try:
        async with asyncio.timeout(_PATIENCE_S):
            return RouteReading(trip_s=trip_s, replies_per_s=await _replies_per_s(server))
    except (OSError, _Broken, TimeoutError) as error:
        return RouteReading(trip_s=trip_s, problem=f"{base_url} gave up under small requests: {_text(error)}")


async def read_bandwidth(transport: HostTransport, clock: Clock) -> float | None:
    """Return how many bytes a second the host sends us over SSH; None: it does not.

    No server takes part, and none is disturbed. A direct connection takes at least as much.
    """

    async def took_s(size: int) -> float:
        started_s = clock.monotonic_s()
        result = await transport.run(("head", "-c", str(size), "/dev/zero"), timeout_s=_BULK_TIMEOUT_S)
        return clock.monotonic_s() - started_s if len(result.stdout) == size else math.inf

    try:
        start_s = min(await took_s(1), await took_s(1))  # a login shell may take longer than the bytes
        size = _FIRST_BYTES
        bulk_s = await took_s(size) - start_s
        if bulk_s < _SLOW_S:
            size = _SECOND_BYTES
            bulk_s = await took_s(size) - start_s
    except TransportFault:
        return None
    return size / max(bulk_s, _SHORTEST_S) if math.isfinite(bulk_s) else None


async def _trip_s(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[float, int]:
    """Return the median round trip, and the status of the last reply."""
    try:
        trips = []
        for _ in range(TRIPS):
            started_s = time.perf_counter()
            writer.write(server.request)
            status = await read_reply(reader)
            trips.append(time.perf_counter() - started_s)
        return statistics.median(trips), status
    finally:
        await _close(writer)


async def _replies_per_s(server: Server) -> float:
    """Send a burst of requests over a few connections; count from the first reply to the last."""
    stamps: list[float] = []

    async def carry() -> None:
        reader, writer = await server.connect()
        try:
            writer.write(server.request * (BURST // _CONNECTIONS))
            for _ in range(BURST // _CONNECTIONS):
                await read_reply(reader)
                stamps.append(time.perf_counter())
        finally:
            await _close(writer)

    carriers = [asyncio.ensure_future(carry()) for _ in range(_CONNECTIONS)]
    try:
        await asyncio.gather(*carriers)  # and no TaskGroup: one broken connection is one error, not a group
    finally:
        for carrier in carriers:
            carrier.cancel()
        await asyncio.gather(*carriers, return_exceptions=True)
    return (len(stamps) - 1) / max(max(stamps) - min(stamps), 1e-6)


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
    if isinstance(error, socket.gaierror):
        return "no address is known here by that name"
    if isinstance(error, OSError) and error.errno is not None:  # "[Errno 111] Connect call failed (…)"
        return os.strerror(error.errno).lower()
    return " ".join(str(error).split()) or type(error).__name__


def needed_chunks_per_s(ladder: Sequence[int]) -> float:
    """Return what the highest level of a ladder sends, all streams together."""
    return max(ladder, default=1) * CHUNKS_OF_A_STREAM


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How the load goes to the server, for the reader.

    Attributes:
        text: in a few words.
        advice: how remedies are written down.
        is_tunnel: through SSH.
        base_url: that somebody named; None: straight to the host and the server's port.
        other_port: that the URL names another port than the command line; empty: it does not.
    """

    text: str
    advice: Advice = TABLE
    is_tunnel: bool = False
    base_url: str | None = None
    other_port: str = ""

    @property
    def remedy(self) -> str:
        """What to do where no request gets through."""
        if self.is_tunnel:
            return "a tunnel needs AllowTcpForwarding in the host's sshd_config, and a server that listens on loopback"
        if self.base_url is not None:
            return f"correct {self.advice.key('base_url')}, or let the firewall between pass it"
        return (
            f"let the firewall between pass it, or {self.advice.tunnel}, "
            "which needs AllowTcpForwarding in the host's sshd_config"
        )

    def problem(self, reading: RouteReading) -> str:
        """Say what a reading met; a URL once."""
        seen = reading.problem if self.text in reading.problem else f"{self.text}: {reading.problem}"
        return f"{seen}; {self.other_port}" if self.other_port else seen


def route_row(reading: RouteReading, ladder: Sequence[int], way: Way, *, listens: bool = False) -> Row:
    """Decide whether the way is wide enough for the study's load.

    Args:
        reading: of a server that runs.
        ladder: the study's levels.
        way: how it goes.
        listens: the host itself says that somebody listens on the server's port.
    """
    check = "route"
    if reading.is_cut and listens:
        listened = "" if way.other_port else ", although the server's port is listened on there"
        return failed(check, f"{way.problem(reading)}{listened}", way.remedy)
    if reading.trip_s is None:
        return warning(check, way.problem(reading), f"the unit may still be loading; else {way.remedy}")
    trip = f"{way.text}: round trip {reading.trip_s * 1000:.1f} ms"
    if reading.replies_per_s is None:
        return warning(check, f"{trip}; {reading.problem}", "run doctor again while the server is idle")
    seen = f"{trip}, {reading.replies_per_s:.0f} small replies/s"
    return _width_row(seen, reading, ladder)


def silent_row(trip_s: float, reading: RouteReading, ladder: Sequence[int], way: str) -> Row:
    """Say what is known of the way while no server runs.

    Args:
        trip_s: of a small command on the host.
        reading: what was measured without a server.
        ladder: the study's levels.
        way: how the load will go, for the reader.
    """
    seen = f"{way}: not measured to its end, no server runs; a command on the host takes {trip_s * 1000:.0f} ms"
    return _width_row(seen, reading, ladder)


def _width_row(seen: str, reading: RouteReading, ladder: Sequence[int]) -> Row:
    """Compare what the way carries with what the highest level sends."""
    needed, top = needed_chunks_per_s(ladder), max(ladder, default=1)
    replies_per_s, bytes_per_s = reading.replies_per_s, reading.bytes_per_s
    carried = None if bytes_per_s is None else bytes_per_s / CHUNK_BYTES
    if carried is not None:
        seen += f", carries {carried:.0f} chunks/s"
    seen += f"; {top} streams send about {needed:.0f} chunks/s"
    is_slow = replies_per_s is not None and replies_per_s < needed * SHARE
    if is_slow or (carried is not None and carried < needed):
        return warning(
            "route",
            f"{seen}: too narrow",
            "run tuner nearer to the host (a Ray worker there), or leave the highest levels out of the ladder",
        )
    return ok("route", seen)
