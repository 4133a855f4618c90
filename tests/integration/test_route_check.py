"""What the way to a server is found to be: against servers that refuse, hang up, keep silent, or are proxies."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest

from tuner.hosts.checks import route
from tuner.hosts.checks.route import RouteReading, measure

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def reading_of(serve: Serve | None, *, is_through_proxy: bool = False) -> RouteReading:
    async def scenario() -> RouteReading:
        if serve is None:
            with socket.socket() as sock:  # bound, so that nobody else listens there
                sock.bind(("127.0.0.1", 0))
                return await measure(f"http://127.0.0.1:{sock.getsockname()[1]}", ())
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            return await measure(url, (), is_through_proxy=is_through_proxy)

    return asyncio.run(scenario())


async def hangs_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def keeps_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


def answering(status: int) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % status)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    return serve


@pytest.mark.parametrize("serve", [None, hangs_up], ids=["refuses", "hangs up"])
def test_a_server_to_which_no_request_gets_is_cut_off(serve: Serve | None) -> None:
    reading = reading_of(serve)
    assert reading.is_cut
    assert reading.trip_s is None
    assert reading.problem.startswith("http://127.0.0.1:")


def test_a_server_that_only_keeps_silent_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route, "_PATIENCE_S", 0.3)
    reading = reading_of(keeps_silent)
    assert not reading.is_cut
    assert reading.problem.endswith("no answer within 0.3 s")


@pytest.mark.parametrize(
    ("status", "is_through_proxy", "is_cut"),
    [(200, True, False), (401, True, False), (502, True, True), (503, True, True), (503, False, False)],
)
def test_a_proxy_without_a_server_is_no_way(status: int, is_through_proxy: bool, is_cut: bool) -> None:
    reading = reading_of(answering(status), is_through_proxy=is_through_proxy)
    assert reading.is_cut is is_cut
    assert (reading.trip_s is None) is is_cut
