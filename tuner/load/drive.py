"""Drives a paced server with a fixed load: the whole way of a request, without a leg's rules."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from tuner.load.stream import StreamSlot
from tuner.load.tally import Tally
from tuner.model.http import HttpCall
from tuner.model.record import RequestRecord
from tuner.model.workload import Workload
from tuner.ports import EngineApi

_WARM_UP_TOKENS = 2
_PATH = "/v1/chat/completions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What to send: ``streams`` times ``requests``, one after the other, of ``tokens`` each."""

    streams: int
    requests: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Driven:
    """What came of a load.

    Attributes:
        records: of all requests but the ones that opened the connections.
        started_s, ended_s: on ``time.perf_counter``; of the first send and the last end.
        cpu_s: that this process spent in between, user and system.
        has_kernel_stamps: any stamp is the kernel's.
    """

    records: tuple[RequestRecord, ...]
    started_s: float
    ended_s: float
    cpu_s: float
    has_kernel_stamps: bool


async def drive(base_url: str, engine: EngineApi, connect: Callable[[str], StreamSlot], load: Load) -> Driven:
    """Open the connections with a short request each, then send the load.

    Raises:
        UsageError, MeasurementFault: as the slots.
    """
    slots = [connect(base_url) for _ in range(load.streams)]
    numbers = count()
    try:
        await asyncio.gather(
            *(
                _requests(base, engine, numbers, replace(load, requests=1, tokens=_WARM_UP_TOKENS))
                for base in enumerate(slots)
            )
        )
        started_s, cpu_s = time.perf_counter(), time.process_time()
        kept = await asyncio.gather(*(_requests(base, engine, numbers, load) for base in enumerate(slots)))
        cpu_s = time.process_time() - cpu_s
        ended_s = time.perf_counter()
    finally:
        await asyncio.gather(*(slot.close() for slot in slots))
    records = tuple(record for some in kept for record in some)
    has_kernel_stamps = any(slot.counts.stamped for slot in slots)
    return Driven(
        records=records, started_s=started_s, ended_s=ended_s, cpu_s=cpu_s, has_kernel_stamps=has_kernel_stamps
    )


async def _requests(
    slot: tuple[int, StreamSlot], engine: EngineApi, numbers: Iterator[int], load: Load
) -> list[RequestRecord]:
    index, connection = slot
    workload = Workload(output_tokens=load.tokens, request_timeout_s=60.0)
    records: list[RequestRecord] = []
    for _ in range(load.requests):
        number = next(numbers)
        call = HttpCall(path=_PATH, body=_body(number, load.tokens), timeout_s=workload.request_timeout_s)
        tally = Tally(engine, workload, concurrency=load.streams, slot=index, prompt_id=str(number))
        records.append(tally.record(await connection.stream(call, tally)))
    return records


def _body(number: int, tokens: int) -> dict[str, Any]:
    """Return what the server is asked: its name is the last word, and the counts come with every chunk."""
    return {
        "messages": [{"role": "user", "content": f"Tell a story about number {number}"}],
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
