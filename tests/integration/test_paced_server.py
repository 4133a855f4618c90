"""The paced server says the truth about what it sends."""

from __future__ import annotations

import asyncio
import functools
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine
from urllib.parse import urlsplit

import orjson
import pytest

from tuner.engines import engine
from tuner.load.drive import Driven, Load, drive
from tuner.load.exactness import exactness
from tuner.load.http import HttpControlClient, HttpSlot
from tuner.load.paced import PacedServer, paced_server
from tuner.model.http import HttpCall

SGLANG = engine("sglang")
STAMP = re.compile(rb'"sent_ns": *(\d+)')


def in_loop(test: Callable[..., Coroutine[None, None, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run_test(**arguments: object) -> None:
        asyncio.run(test(**arguments))

    return run_test


def ask(base_url: str, tokens: int, *, slowly: bool = False, pieces: int = 1) -> bytes:
    """Send a request over a plain socket and return the reply's bytes, headers and all."""
    where = urlsplit(base_url)
    body = orjson.dumps({"prompt": "tell", "max_tokens": tokens, "stream": True})
    request = b"POST /v1/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    with socket.create_connection((str(where.hostname), where.port or 0), timeout=30) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096 if slowly else 1 << 20)
        size = -(-len(request) // pieces)
        for start in range(0, len(request), size):
            sock.sendall(request[start : start + size])
        found = bytearray()
        while not found.endswith(b"\r\n0\r\n\r\n"):
            piece = sock.recv(512 if slowly else 1 << 16)
            assert piece, bytes(found[-200:])
            found += piece
    return bytes(found)


@pytest.mark.parametrize("pace", ["--flood", "--interval-ms=0.2"], ids=["flood", "paced"])
@in_loop
async def test_a_reader_that_is_slow_gets_every_chunk_in_its_order(pace: str) -> None:
    async with paced_server(pace, "--ttft-ms=0") as server:
        reply = await asyncio.to_thread(ask, server.base_url, 3000, slowly=True)
        (sent,) = await server.truth()
    stamps = [int(found) for found in STAMP.findall(reply)]
    assert len(stamps) == sent.chunks == sent.tokens == 3000
    assert stamps == sorted(stamps)


@in_loop
async def test_every_event_carries_the_time_that_the_truth_has_for_it() -> None:
    async with paced_server("--interval-ms=2", "--tokens-per-chunk=4") as server:
        reply = await asyncio.to_thread(ask, server.base_url, 40, pieces=40)
        (sent,) = await server.truth()
    assert [int(found) / 1e9 for found in STAMP.findall(reply)] == list(sent.sent_s)
    assert sent.tokens == 40
    assert sent.chunks == 11
    assert sent.sent_s[0] - sent.read_s >= 0.02


@in_loop
async def test_streams_in_step_keep_to_one_grid_whenever_they_began() -> None:
    step_s = 0.05
    async with paced_server(f"--interval-ms={step_s * 1e3:g}", "--ttft-ms=0") as server:

        async def later(index: int) -> bytes:
            await asyncio.sleep(index * step_s / 4)
            return await asyncio.to_thread(ask, server.base_url, 20)

        await asyncio.gather(*(later(index) for index in range(4)))
        streams = await server.truth()
    stamps_s = [at_s for stream in streams for at_s in stream.sent_s]
    origin_s = min(stamps_s, key=lambda start_s: sum((at_s - start_s) % step_s for at_s in stamps_s)) - step_s / 100
    best_s = [min((at_s - origin_s) % step_s for at_s in stream.sent_s) for stream in streams]
    assert len(best_s) == 4
    assert max(best_s) < step_s / 6  # of twenty wake-ups one was in time; else the streams lie a quarter apart


async def run(server: PacedServer, load: Load) -> Driven:
    return await drive(server.base_url, SGLANG, HttpSlot, load)


@in_loop
async def test_what_the_client_records_is_what_was_sent() -> None:
    async with paced_server("--interval-ms=14", "--tokens-per-chunk=4") as server:
        driven = await run(server, Load(streams=8, requests=2, tokens=81))
        found = exactness(driven.records, await server.truth(8))
    assert (found.requests, found.unlike, found.chunks) == (16, 0, 16 * 21)
    assert found.late_p50_s is not None
    assert found.ttft_error_p50_s is not None
    assert found.late_p50_s > 0
    assert found.ttft_error_p50_s > 0
    assert driven.ended_s - driven.started_s > 2 * 20 * 0.014
    assert driven.cpu_s > 0


@in_loop
async def test_a_request_that_says_nonsense_gets_a_reason_and_the_server_lives_on() -> None:
    async with paced_server() as server:
        client = HttpControlClient(server.base_url)
        try:
            refused = await client.call(HttpCall(path="/v1/completions", body={"max_tokens": 3}))
            unknown = await client.call(HttpCall(path="/nowhere"))
            health = await client.call(SGLANG.health_call())
            whole = await client.call(HttpCall(path="/v1/completions", body={"prompt": "a", "max_tokens": 3}))
            counters = SGLANG.counters(await client.call(HttpCall(path="/metrics")))
            info = await client.call(SGLANG.info_calls()[0])
        finally:
            await client.close()
    assert (refused.status, refused.body) == (400, b"no prompt")
    assert unknown.status == 404
    assert health.status == 200
    assert SGLANG.generated_tokens(whole) == 3
    assert counters.generated_tokens == 3
    assert SGLANG.effective([info]).model == "paced"


@in_loop
async def test_a_client_that_leaves_in_mid_stream_disturbs_nobody() -> None:
    async with paced_server("--interval-ms=5") as server:
        where = urlsplit(server.base_url)
        body = b'{"prompt":"a","max_tokens":10000,"stream":true}'
        with socket.create_connection((str(where.hostname), where.port or 0), timeout=30) as sock:
            sock.sendall(b"POST /v1/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
            assert await asyncio.to_thread(sock.recv, 100)
        reply = await asyncio.to_thread(ask, server.base_url, 20)
        left, stayed = await server.truth()
    assert reply.count(b"sent_ns") == stayed.chunks == 20
    assert left.chunks < left.tokens


def test_the_server_ends_with_the_process_that_started_it() -> None:
    argv = (sys.executable, "-m", "tuner.testing.paced_server", "--until-stdin-closes")
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline().startswith("http://127.0.0.1:")
        process.stdin.close()
        assert process.wait(timeout=30) == 0
