"""A streaming server whose every token, chunk and gap is known: what a load generator is proved against.

It speaks the fake engine's protocol (OpenAI completions with usage). Chunks leave on a
grid fixed by the first one, so a late wake-up delays a chunk and not those after it. The
server notes when it sent what: ``tokens_between`` is the truth.

``python -m tuner.testing.golden_server --port 8000 --gap 0.0137 …`` runs it alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from enum import Enum

from aiohttp import web

from tuner.stats.window import Arrivals, tokens_at


class Flaw(Enum):
    """What goes wrong with a request."""

    NONE = "none"
    CUT = "cut"  # the connection closes in mid-stream
    SHORT = "short"  # half of the tokens asked for, then a regular end
    HTTP_500 = "http_500"
    ERROR_EVENT = "error_event"  # an error event in mid-stream
    EMPTY = "empty"  # a regular end without a token
    GARBAGE = "garbage"  # an event that is no JSON in mid-stream
    GZIP = "gzip"  # a body declared as compressed although identity was asked for
    SILENT = "silent"  # accepts the request and never answers
    CLOSED = "closed"  # closes the connection before one byte of a reply
    OPEN_END = "open_end"  # the body ends without an end marker


class Usage(Enum):
    """When the server says how many tokens it made."""

    RUNNING = "running"  # with every chunk and at the end
    FINAL = "final"  # in the last event only
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """How one request is answered.

    Attributes:
        first_s: from being taken up to the first chunk.
        gap_s: between chunks.
        first_tokens: tokens of the first chunk.
        tokens_per_chunk: tokens of each later chunk; the last may have fewer.
        empty_every: each so-many-th chunk has no text although the usage grew; 0: none.
        pause_s: the connection stays silent this long after the last token.
    """

    first_s: float = 0.02
    gap_s: float = 0.01
    first_tokens: int = 1
    tokens_per_chunk: int = 4
    empty_every: int = 0
    pause_s: float = 0.0
    usage: Usage = Usage.RUNNING
    flaw: Flaw = Flaw.NONE


@dataclass(frozen=True, slots=True)
class Sent:
    """What the server sent of one request: stamps and running token totals."""

    stamps_s: list[float]
    totals: list[int]


class GoldenServer:
    """The server; counts and notes everything it does.

    Args:
        script: number of the request, from 0 -> how it is answered.
        batch: requests that decode at the same time; the others wait.

    Attributes:
        sent: per request that was taken up.
        prompts: of all requests, in the order in which they came.
        most_running: most requests that decoded at the same time.
        has_decoded: set when the first request is taken up.
    """

    def __init__(self, script: Callable[[int], Script], *, batch: int = 256) -> None:
        self._script = script
        self._batch = asyncio.Semaphore(batch)
        self._running = 0
        self._queued = 0
        self._generated = 0
        self._steps = 0
        self._origins: set[tuple[str, int]] = set()
        self.sent: list[Sent] = []
        self.prompts: list[str] = []
        self.most_running = 0
        self.has_decoded = asyncio.Event()

    @property
    def connections(self) -> int:
        """Connections that carried at least one generation."""
        return len(self._origins)

    def tokens_between(self, start_s: float, end_s: float) -> float:
        """Return the tokens sent in a window, chunks at its edges interpolated."""
        curves = [Arrivals(stamps_s=s.stamps_s, totals=s.totals) for s in self.sent if s.stamps_s]
        before, after = tokens_at(curves, [start_s, end_s])
        return after - before

    def application(self) -> web.Application:
        """Return the routes."""
        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_get("/info", self._info)
        app.router.add_get("/counters", self._counters)
        app.router.add_post("/abort", self._health)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_post("/v1/chat/completions", self._complete)
        return app

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _info(self, _: web.Request) -> web.Response:
        return web.json_response({"batch": 8, "draft": 0})

    async def _counters(self, _: web.Request) -> web.Response:
        return web.json_response(
            {
                "generated_tokens": self._generated,
                "verify_steps": self._steps,
                "running": self._running,
                "queued": self._queued,
            }
        )

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        number = len(self.prompts)
        self.prompts.append(body["prompt"] if "prompt" in body else body["messages"][0]["content"])
        if request.transport is not None:
            self._origins.add(request.transport.get_extra_info("peername"))
        script = self._script(number)
        if script.flaw is Flaw.HTTP_500:
            return web.Response(status=500, text="golden failure")
        if script.flaw is Flaw.CLOSED and request.transport is not None:
            request.transport.abort()
            return web.Response()
        if script.flaw is Flaw.SILENT:
            await asyncio.sleep(3600)
        self._queued += 1
        try:
            await self._batch.acquire()
        finally:
            self._queued -= 1
        self._running += 1
        self.most_running = max(self.most_running, self._running)
        self.has_decoded.set()
        try:
            return await self._decode(request, script, int(body["max_tokens"]))
        except ConnectionResetError:
            return web.Response()  # the client went away; nobody reads this
        finally:
            self._running -= 1
            self._batch.release()

    async def _decode(self, request: web.Request, script: Script, asked: int) -> web.StreamResponse:
        headers = {"content-type": "text/event-stream"}
        if script.flaw is Flaw.GZIP:
            headers["content-encoding"] = "gzip"
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        sent = Sent([], [])
        self.sent.append(sent)
        plan = _plan(script, asked)
        name = f"cmpl-{len(self.sent)}"  # each reply has its own
        due_s = time.perf_counter() + script.first_s
        for index, total in enumerate(plan):
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            is_empty = script.empty_every > 0 and index % script.empty_every == script.empty_every - 1
            finish = "length" if index == len(plan) - 1 and script.flaw in (Flaw.NONE, Flaw.SHORT) else None
            event = _event("" if is_empty else " word" * script.tokens_per_chunk, finish)
            event["id"] = name
            if script.usage is Usage.RUNNING:
                event["usage"] = {"prompt_tokens": 7, "completion_tokens": total}
            self._generated += total - (sent.totals[-1] if sent.totals else 0)
            self._steps += index > 0
            sent.stamps_s.append(time.perf_counter())
            sent.totals.append(total)
            due_s = (due_s if index else sent.stamps_s[0]) + script.gap_s
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        if script.flaw is Flaw.CUT and request.transport is not None:
            request.transport.abort()
            return response
        if script.flaw is Flaw.ERROR_EVENT:
            await response.write(b'data: {"error": {"message": "golden error"}}\n\n')
        if script.flaw is Flaw.GARBAGE:
            await response.write(b"data: {broken\n\n")
        if script.pause_s:
            await asyncio.sleep(script.pause_s)
        if script.flaw is not Flaw.OPEN_END:
            if script.usage is not Usage.NEVER:
                usage = {"prompt_tokens": 7, "completion_tokens": plan[-1] if plan else 0}
                await response.write(b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n")
            await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response


def _plan(script: Script, asked: int) -> list[int]:
    """Return the running token total after each chunk."""
    wanted = {Flaw.NONE: asked, Flaw.EMPTY: 0, Flaw.GZIP: asked, Flaw.OPEN_END: asked}.get(script.flaw, asked // 2)
    totals = list(range(script.first_tokens, wanted, script.tokens_per_chunk)) if wanted else []
    return [*totals, wanted] if wanted else []


def _event(text: str, finish: str | None) -> dict[str, object]:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
    return {"id": "cmpl-golden", "object": "text_completion", "created": 0, "model": "golden", "choices": [choice]}


@asynccontextmanager
async def serving(server: GoldenServer, *, port: int = 0) -> AsyncIterator[str]:
    """Serve on a loopback port; yields the base URL. Open requests are ended at the exit."""
    runner = web.AppRunner(server.application(), access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def _main(port: int, batch: int, script: Script) -> None:
    async with serving(GoldenServer(lambda _: script, batch=batch), port=port):
        await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--first", type=float, default=0.02, help="seconds to the first chunk")
    parser.add_argument("--gap", type=float, default=0.01, help="seconds between chunks")
    parser.add_argument("--tokens-per-chunk", type=int, default=4)
    options = parser.parse_args()
    with suppress(KeyboardInterrupt):
        asyncio.run(
            _main(
                options.port,
                options.batch,
                Script(first_s=options.first, gap_s=options.gap, tokens_per_chunk=options.tokens_per_chunk),
            )
        )
