"""Starts the paced server as a process of its own and asks it afterwards what it sent when."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import orjson

from tuner.errors import MeasurementFault
from tuner.load.http import HttpControlClient
from tuner.model.http import HttpCall

_START_S = 20.0  # a loaded machine takes seconds to start an interpreter
_STOP_S = 5.0
_TRUTH_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SentStream:
    """One stream as the server sent it; seconds on ``time.perf_counter``, which is its clock too.

    Attributes:
        name: the end of its prompt.
        read_s: when the request's last byte arrived.
        sent_s: of each chunk; of each block of chunks in a flood.
    """

    name: str
    read_s: float
    tokens: int
    chunks: int
    sent_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PacedServer:
    """A running paced server."""

    base_url: str
    pid: int

    async def truth(self, first: int = 0) -> list[SentStream]:
        """Return what it sent of the requests from number ``first`` on.

        Raises:
            MeasurementFault: it does not answer.
        """
        client = HttpControlClient(self.base_url)
        try:
            reply = await client.call(HttpCall(path=f"/truth?first={first}", timeout_s=_TRUTH_S))
        finally:
            await client.close()
        if reply.status != 200:
            raise MeasurementFault(f"the paced server at {self.base_url} does not answer: {reply.error}")
        return [
            SentStream(
                name=stream["name"],
                read_s=stream["read_ns"] / 1e9,
                tokens=stream["tokens"],
                chunks=stream["chunks"],
                sent_s=tuple(at_ns / 1e9 for at_ns in stream["sent_ns"]),
            )
            for stream in orjson.loads(reply.body)["requests"]
        ]


@contextlib.asynccontextmanager
async def paced_server(*options: str, prefix: Sequence[str] = ()) -> AsyncIterator[PacedServer]:
    """Serve on a free port of this machine; it ends with the block, or with this process.

    Args:
        options: of ``python -m tuner.testing.paced_server``.
        prefix: of the command line (``nice``, …).

    Raises:
        MeasurementFault: it did not start.
    """
    argv = (*prefix, sys.executable, "-m", "tuner.testing.paced_server", "--until-stdin-closes", *options)
    process = await asyncio.create_subprocess_exec(*argv, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)
    try:
        yield PacedServer(base_url=await _address(process), pid=process.pid)
    finally:
        await _stop(process)


async def _address(process: asyncio.subprocess.Process) -> str:
    if process.stdout is None:
        raise MeasurementFault("the paced server has no output")
    try:
        line = await asyncio.wait_for(process.stdout.readline(), _START_S)
    except TimeoutError as error:
        raise MeasurementFault(f"the paced server did not start within {_START_S:g} s") from error
    if not line:
        raise MeasurementFault("the paced server ended before it listened; its message is above")
    return line.decode().strip()


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.stdin is not None:
        process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), _STOP_S)
    except TimeoutError:
        process.kill()
        await process.wait()
