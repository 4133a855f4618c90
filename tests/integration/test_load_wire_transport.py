"""The epoll transport against real sockets: as httpx's own, pushed, and where a server misbehaves."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager

import httpx
import pytest

from tuner.load.http import HttpSlot
from tuner.load.stream import Failure, StreamEnd
from tuner.load.wire.poller import _POLLERS
from tuner.load.wire.transport import EpollTransport
from tuner.model.http import HttpCall

OK = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
CALL = HttpCall(path="/v1/completions", body={"prompt": "x"}, timeout_s=5.0)
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(body), body)


async def request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
    return head + await reader.readexactly(length)


@asynccontextmanager
async def serving(serve: Serve, host: str = "127.0.0.1"):  # type: ignore[no-untyped-def]  # noqa: ANN201
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(accept, host, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def answering(*replies: bytes) -> Serve:
    """Answer each request of a connection with the next reply, the last one again and again."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for number in range(100):
            await request(reader)
            writer.write(replies[min(number, len(replies) - 1)])

    return serve


class Sink:
    def __init__(self) -> None:
        self.sends: list[float] = []
        self.pieces: list[bytes] = []
        self.stamps: list[float] = []

    def sent(self, at_s: float) -> None:
        self.sends.append(at_s)

    def feed(self, piece: bytes, at_s: float) -> None:
        self.pieces.append(piece)
        self.stamps.append(at_s)


def run(serve: Serve, act: Callable[[int], Awaitable[object]], host: str = "127.0.0.1") -> None:
    async def main() -> None:
        async with serving(serve, host) as port:
            await asyncio.wait_for(act(port), 20)
        assert asyncio.get_running_loop() not in _POLLERS, "a socket was left open"

    asyncio.run(main())


def stream(serve: Serve, sink: Sink, *, call: HttpCall = CALL, times: int = 1, is_open: bool = False) -> StreamEnd:
    ends: list[StreamEnd] = []

    async def act(port: int) -> None:
        slot = HttpSlot(f"http://127.0.0.1:{port}")
        if is_open:
            await slot.open()
        ends.extend([await slot.stream(call, sink) for _ in range(times)])
        await slot.close()

    run(serve, act)
    return ends[-1]


# ------------------------------------------------------------------ as any transport of httpx


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhelloworld",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunk(b"hello") + chunk(b"world") + chunk(b""),
        b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhelloworld",
    ],
    ids=["sized", "chunked", "interim"],
)
def test_a_client_of_httpx_works_over_it_and_keeps_its_connection(reply: bytes) -> None:
    transport = EpollTransport()

    async def act(port: int) -> None:
        async with httpx.AsyncClient(transport=transport, base_url=f"http://127.0.0.1:{port}") as client:
            for _ in range(3):
                found = await client.post("/x", json={"a": 1})
                assert (found.status_code, found.text) == (200, "helloworld")
            assert len(transport._idle["127.0.0.1", port]) == 1
            assert transport.address == "127.0.0.1"

    run(answering(reply), act)


def test_many_requests_at_once_have_a_connection_each() -> None:
    connections: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(1)
        body = await request(reader)
        await asyncio.sleep(0.05)
        number = body.rpartition(b"=")[2]
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(number), number))
        await reader.read()

    async def act(port: int) -> None:
        async with httpx.AsyncClient(transport=EpollTransport(), base_url=f"http://127.0.0.1:{port}") as client:
            found = await asyncio.gather(*(client.post("/", content=b"n=%d" % n) for n in range(40)))
        assert [int(reply.text) for reply in found] == list(range(40))
        assert len(connections) == 40

    run(serve, act)


def test_a_large_request_is_written_in_parts_and_a_large_reply_read_in_its_reader_s_time() -> None:
    body = b"abcdefgh" * (1 << 19)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.05)  # until the socket is full
        got = await request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + got[-len(body) :])
        await writer.drain()
        await reader.read()

    async def act(port: int) -> None:
        transport = EpollTransport()
        async with (
            httpx.AsyncClient(transport=transport, base_url=f"http://127.0.0.1:{port}", timeout=10) as client,
            client.stream("POST", "/", content=body) as reply,
        ):
            pieces = []
            async for piece in reply.aiter_raw():
                pieces.append(piece)
                await asyncio.sleep(0)
            assert b"".join(pieces) == body

    run(serve, act)


def test_a_server_that_answers_before_it_has_read_the_request_is_heard() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 3\r\n\r\nbig")
        await asyncio.sleep(0.2)

    async def act(port: int) -> None:
        async with httpx.AsyncClient(transport=EpollTransport(), base_url=f"http://127.0.0.1:{port}") as client:
            found = await client.post("/", content=b"x" * (1 << 23))
        assert (found.status_code, found.text) == (413, "big")

    run(serve, act)


def test_time_outs_and_refusals_are_those_of_httpx() -> None:
    async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    async def act(port: int) -> None:
        async with httpx.AsyncClient(transport=EpollTransport()) as client:
            with pytest.raises(httpx.ReadTimeout):
                await client.get(f"http://127.0.0.1:{port}/", timeout=0.05)
            with socket.create_server(("127.0.0.1", 0)) as free:
                nobody = free.getsockname()[1]
            with pytest.raises(httpx.ConnectError, match=f"port {nobody}"):
                await client.get(f"http://127.0.0.1:{nobody}/")
            with pytest.raises(httpx.UnsupportedProtocol):
                await client.get("https://127.0.0.1/")

    run(silent, act)


def test_a_reply_that_is_left_half_read_closes_its_connection() -> None:
    async def act(port: int) -> None:
        transport = EpollTransport()
        async with httpx.AsyncClient(transport=transport, base_url=f"http://127.0.0.1:{port}") as client:
            async with client.stream("GET", "/") as reply:
                assert reply.status_code == 200
            assert not any(transport._idle.values())

    run(answering(OK + chunk(b"a")), act)


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_localhost_is_tried_at_each_of_its_addresses() -> None:
    async def act(port: int) -> None:
        transport = EpollTransport()
        key = ("localhost", port)
        transport._resolved[key] = [
            (socket.AF_INET6, ("::1", port, 0, 0)),  # where nobody listens
            (socket.AF_INET, ("127.0.0.1", port)),
        ]
        async with httpx.AsyncClient(transport=transport) as client:
            assert (await client.get(f"http://localhost:{port}/")).text == "ok"
        assert transport.address == "127.0.0.1"

    run(answering(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"), act)


# ------------------------------------------------------------------ pushed


def test_a_stream_is_pushed_read_by_read_with_the_time_of_the_kernel() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(OK)
        for text in (b"one", b"two"):
            await asyncio.sleep(0.05)
            writer.write(chunk(text))
        await asyncio.sleep(0.05)
        writer.write(chunk(b""))

    sink = Sink()
    end = stream(serve, sink)
    assert (end.status, end.failure, sink.pieces) == (200, None, [b"one", b"two"])
    assert sink.sends[0] < sink.stamps[0] < sink.stamps[1] < end.ended_s
    assert sink.stamps[1] - sink.stamps[0] > 0.03


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's stamps are Linux'")
def test_a_read_that_comes_late_keeps_the_time_at_which_its_bytes_came() -> None:
    sink = Sink()
    seen_s: list[float] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(OK)
        await asyncio.sleep(0.05)
        writer.write(chunk(b"late"))
        seen_s.append(time.perf_counter())
        time.sleep(0.25)  # noqa: ASYNC251 - the client shares this loop: it cannot read now
        await asyncio.sleep(0.05)
        writer.write(chunk(b""))

    slots: list[HttpSlot] = []

    async def act(port: int) -> None:
        slots.append(HttpSlot(f"http://127.0.0.1:{port}"))
        await slots[0].stream(CALL, sink)
        await slots[0].close()

    run(serve, act)
    assert abs(sink.stamps[0] - seen_s[0]) < 0.1
    assert slots[0].counts.stamped == slots[0].counts.reads > 0
    assert slots[0].counts.late > 0


def test_an_opened_connection_carries_the_first_request() -> None:
    seen: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(1)
        await answering(OK + chunk(b"a") + chunk(b""))(reader, writer)

    assert stream(serve, Sink(), times=3, is_open=True).failure is None
    assert len(seen) == 1


def test_nobody_to_connect_to_is_told_by_the_request_and_not_by_opening() -> None:
    async def main() -> StreamEnd:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        slot = HttpSlot(f"http://127.0.0.1:{port}")
        await slot.open()
        end = await slot.stream(CALL, Sink())
        await slot.close()
        return end

    end = asyncio.run(main())
    assert (end.status, end.failure) == (None, Failure.REFUSED)


def test_an_idle_connection_that_the_server_closes_unseen_is_replayed_once_and_said() -> None:
    connections: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(1)
        await request(reader)
        writer.write(OK + chunk(b"a") + chunk(b""))
        if len(connections) == 1:
            await request(reader)  # and then it is gone, without a byte
            return
        await reader.read()

    sink = Sink()
    end = stream(serve, sink, times=2)
    assert (end.failure, sink.pieces) == (None, [b"a", b"a"])
    assert "sent again" in (end.detail or "")
    assert len(sink.sends) == 3


def test_a_reply_that_had_begun_is_cut_and_not_sent_again() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(OK + chunk(b"a") + chunk(b""))
        await request(reader)
        writer.write(OK + chunk(b"b"))

    sink = Sink()
    end = stream(serve, sink, times=2)
    assert (end.status, end.failure, len(sink.sends)) == (200, Failure.CUT, 2)


def test_an_error_of_the_sink_ends_its_request_and_is_not_swallowed() -> None:
    class Broken(Sink):
        def feed(self, piece: bytes, at_s: float) -> None:
            raise ZeroDivisionError(piece, at_s)

    with pytest.raises(ZeroDivisionError):
        stream(answering(OK + chunk(b"a")), Broken())


def test_a_cancelled_stream_closes_its_connection() -> None:
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(OK + chunk(b"a"))
        assert await reader.read() == b""
        gone.set()

    async def act(port: int) -> None:
        class Hearing(Sink):
            def feed(self, piece: bytes, at_s: float) -> None:
                super().feed(piece, at_s)
                heard.set()

        slot, heard = HttpSlot(f"http://127.0.0.1:{port}"), asyncio.Event()
        task = asyncio.create_task(slot.stream(CALL, Hearing()))
        await asyncio.wait_for(heard.wait(), 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(gone.wait(), 10)
        await slot.close()

    run(serve, act)


def test_many_streams_in_step_are_read_whole_and_none_before_it_was_sent() -> None:
    sent_s: list[float] = []
    started = asyncio.Event()
    waiting: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(OK)
        waiting.append(writer)
        if len(waiting) == 24:
            started.set()
        await reader.read()

    async def act(port: int) -> None:
        slots = [HttpSlot(f"http://127.0.0.1:{port}") for _ in range(24)]
        sinks = [Sink() for _ in slots]
        tasks = [asyncio.create_task(slot.stream(CALL, sink)) for slot, sink in zip(slots, sinks, strict=True)]
        await started.wait()
        for number in range(20):
            sent_s.append(time.perf_counter())
            for writer in waiting:
                writer.write(chunk(b"data: %d\n\n" % number))
            await asyncio.sleep(0.01)
        for writer in waiting:
            writer.write(chunk(b""))
        ends = await asyncio.gather(*tasks)
        assert {end.failure for end in ends} == {None}
        for sink in sinks:
            assert b"".join(sink.pieces) == b"".join(b"data: %d\n\n" % number for number in range(20))
            assert sink.stamps == sorted(sink.stamps)
            assert sink.stamps[0] >= sent_s[0] - 1e-4
        await asyncio.gather(*(slot.close() for slot in slots))

    run(serve, act)
