"""One run of a client as it comes out of its box; writes what it saw as JSON. Needs no tuner.

    python stock.py CLIENT BASE_URL STREAMS REQUESTS TOKENS

Each client is written as its library's documents show it, with the limits and time-outs raised
that would stop it at this load, and reads the same stream for the same numbers.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count
from typing import Any

import aiohttp
import httpx
import orjson

Json = dict[str, Any]
Send = Callable[[Json], AsyncIterator[bytes]]
"""A body -> the payloads of its events, as they arrive."""


def _httpx(transport: httpx.AsyncBaseTransport | None, streams: int) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=streams, max_keepalive_connections=streams)
    return httpx.AsyncClient(transport=transport, limits=limits, timeout=None, trust_env=False)  # noqa: S113 - the run ends it


@asynccontextmanager
async def httpx_lines(url: str, streams: int) -> AsyncIterator[Send]:
    """Read with ``aiter_lines``."""
    async with _httpx(None, streams) as client:

        async def send(body: Json) -> AsyncIterator[bytes]:
            async with client.stream("POST", url, json=body) as response:
                async for line in response.aiter_lines():
                    if line.startswith("data: "):
                        yield line[6:].encode()

        yield send


async def _raw(response: httpx.Response) -> AsyncIterator[bytes]:
    rest = b""
    async for piece in response.aiter_raw():
        *events, rest = (rest + piece).split(b"\n\n")
        for event in events:
            yield event[6:]


@asynccontextmanager
async def httpx_raw(url: str, streams: int) -> AsyncIterator[Send]:
    """Split ``aiter_raw`` by hand."""
    async with _httpx(None, streams) as client:

        async def send(body: Json) -> AsyncIterator[bytes]:
            async with client.stream("POST", url, json=body) as response:
                async for payload in _raw(response):
                    yield payload

        yield send


@asynccontextmanager
async def httpx_aiohttp(url: str, streams: int) -> AsyncIterator[Send]:
    """Read as before, over aiohttp's connections."""
    from httpx_aiohttp import AiohttpTransport  # noqa: PLC0415 - not every environment has it

    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    transport = AiohttpTransport(client=lambda: aiohttp.ClientSession(connector=connector, timeout=timeout))
    async with _httpx(transport, streams) as client:

        async def send(body: Json) -> AsyncIterator[bytes]:
            async with client.stream("POST", url, json=body) as response:
                async for payload in _raw(response):
                    yield payload

        yield send


@asynccontextmanager
async def aiohttp_lines(url: str, _streams: int) -> AsyncIterator[Send]:
    """Iterate over a response's content, which reads lines."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:

        async def send(body: Json) -> AsyncIterator[bytes]:
            async with session.post(url, json=body) as response:
                async for line in response.content:
                    if line.startswith(b"data: "):
                        yield line[6:].strip()

        yield send


CLIENTS: dict[str, tuple[Callable[[str, int], AbstractAsyncContextManager[Send]], Callable[[bytes], Any]]] = {
    "httpx-lines": (httpx_lines, json.loads),
    "httpx-raw": (httpx_raw, orjson.loads),
    "httpx-aiohttp": (httpx_aiohttp, orjson.loads),
    "aiohttp": (aiohttp_lines, json.loads),
}


async def request(send: Send, parse: Callable[[bytes], Any], number: int, tokens: int) -> Json:
    """Send one request and note when its chunks came."""
    body: Json = {
        "messages": [{"role": "user", "content": f"Tell a story about number {number}"}],
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    stamps_s: list[float] = []
    counted, is_whole = 0, False
    sent_s = time.perf_counter()
    async for payload in send(body):
        at_s = time.perf_counter()
        if payload == b"[DONE]":
            is_whole = True
            continue
        event = parse(payload)
        counted = event["usage"]["completion_tokens"]
        if event["choices"]:
            stamps_s.append(at_s)
    return {
        "name": str(number),
        "sent_s": sent_s,
        "stamps_s": stamps_s,
        "tokens": counted,
        "merged": 0,
        "is_whole": is_whole,
    }


async def main(client: str, base_url: str, streams: int, requests: int, tokens: int) -> None:
    """Open the connections with a short request each, then run the load."""
    connect, parse = CLIENTS[client]

    async def loop(send: Send, numbers: Iterator[int], *, requests: int, tokens: int) -> list[Json]:
        return [await request(send, parse, next(numbers), tokens) for _ in range(requests)]

    numbers = count()
    async with connect(f"{base_url}/v1/chat/completions", streams) as send:
        await asyncio.gather(*(loop(send, numbers, requests=1, tokens=2) for _ in range(streams)))
        started_s = time.perf_counter()
        seen = await asyncio.gather(*(loop(send, numbers, requests=requests, tokens=tokens) for _ in range(streams)))
        ended_s = time.perf_counter()
    flat = [one for some in seen for one in some]
    json.dump({"started_s": started_s, "ended_s": ended_s, "requests": flat}, sys.stdout)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], *(int(word) for word in sys.argv[3:6])))
