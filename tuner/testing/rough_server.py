"""An HTTP server that answers with exactly the bytes it is told to, and may break off anywhere.

What a load generator must survive is not in the HTTP standard only: chunks cut at any byte, events with
foreign line ends, bodies without an end, replies of other protocols. Each request is answered by a
script: bytes that are sent, seconds that pass, and how the connection ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from enum import Enum
from typing import TypeAlias

_LENGTH = re.compile(rb"(?im)^content-length:\s*(\d+)\s*$")
_NOW = struct.pack("ii", 1, 0)  # SO_LINGER: close at once, with a reset


class Act(Enum):
    """What happens to a connection."""

    CLOSE = "close"  # an orderly end of both directions
    HALF_CLOSE = "half_close"  # the server says no more, and goes on reading
    RESET = "reset"  # the connection is torn down
    HANG = "hang"  # nothing more comes, and nothing ends


Step: TypeAlias = bytes | float | Act
Answer: TypeAlias = Callable[[int, int], Sequence[Step]]
"""Number of the request, from 0, and tokens asked for -> what is done."""


def head(status: str = "200 OK", *, version: str = "1.1", **fields: str) -> bytes:
    """Return a reply's head; ``fields`` by name, with _ for -."""
    lines = [f"HTTP/{version} {status}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in fields.items() if value]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


STREAM = head(content_type="text/event-stream; charset=utf-8", transfer_encoding="chunked")
END = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def chunk(body: bytes) -> bytes:
    """Return a chunk of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(body), body)


def event(text: str = "word ", *, total: object = None, finish: str | None = None, reply: str = "cmpl-1") -> bytes:
    """Return a completion event; ``total`` is its usage's count, ``...`` for a usage that is null."""
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
    message: dict[str, object] = {"id": reply, "object": "text_completion", "model": "rough", "choices": [choice]}
    if total is ...:
        message["usage"] = None
    elif total is not None:
        message["usage"] = {"prompt_tokens": 7, "completion_tokens": total, "total_tokens": 7}
    return b"data: " + json.dumps(message).encode() + b"\n\n"


def events(asked: int, *, each: int = 4, reply: str = "cmpl-1") -> list[bytes]:
    """Return the events of a whole reply of ``asked`` tokens, its end marker included."""
    totals = [*range(each, asked, each), asked]
    return [*(event(total=n, reply=reply, finish="length" if n == asked else None) for n in totals), DONE]


class RoughServer:
    """The server.

    Args:
        answer: what is done with each generation; every other request gets ``200 ok``.

    Attributes:
        heads: of the generations, as they came.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._tasks: set[asyncio.Task[None]] = set()
        self.heads: list[bytes] = []

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection to its end."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            return  # the client went away, or the test is over
        finally:
            self._tasks.discard(task)
            writer.close()

    async def end(self) -> None:
        """End every connection."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            request = await reader.readuntil(b"\r\n\r\n")
            length = _LENGTH.search(request)
            body = await reader.readexactly(int(length.group(1)) if length else 0)
            if not request.startswith(b"POST /v1/"):
                writer.write(head(content_length="2") + b"ok")
                continue
            number = len(self.heads)
            self.heads.append(request)
            for step in self._answer(number, int(json.loads(body)["max_tokens"])):
                if await self._do(step, writer):
                    return

    async def _do(self, step: Step, writer: asyncio.StreamWriter) -> bool:
        """Take one step; whether the connection is over."""
        if isinstance(step, bytes):
            writer.write(step)
            await writer.drain()
            return False
        if isinstance(step, float):
            await asyncio.sleep(step)
            return False
        if step is Act.HALF_CLOSE:
            writer.write_eof()
            await asyncio.sleep(3600)
        if step is Act.HANG:
            await asyncio.sleep(3600)
        if step is Act.RESET:
            raw = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NOW)
            writer.transport.abort()
        return True


@asynccontextmanager
async def rough(answer: Answer, *, host: str = "127.0.0.1") -> AsyncIterator[tuple[RoughServer, int]]:
    """Serve on a loopback port; yields the server and its port."""
    server = RoughServer(answer)
    listening = await asyncio.start_server(server.accept, host, 0)
    try:
        yield server, listening.sockets[0].getsockname()[1]
    finally:
        listening.close()
        await server.end()
        with contextlib.suppress(asyncio.CancelledError):
            await listening.wait_closed()
