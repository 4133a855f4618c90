"""The closed loop: every slot sends its next request as soon as its last one has ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, Self

from tuner.load.queue import Order
from tuner.load.schedule import start_delay_s
from tuner.load.stream import ReadCounts, StreamSlot
from tuner.load.tally import Tally
from tuner.model.http import HttpCall
from tuner.model.record import RequestRecord, RequestStatus
from tuner.ports import Target

FAILURE_PAUSE_S = 0.05  # a dead server answers in microseconds and must not be hammered

Connect = Callable[[str], StreamSlot]


class Prompts(Protocol):
    """What the slots send."""

    def take(self) -> Order | None:
        """Return the next request; None after the last."""


class ClosedLoop:
    """Runs the slots of one leg; used with ``async with``, which closes every connection.

    Args:
        target: the server.
        concurrency: slots.
        prompts: what they send; shared, so that the order does not depend on who is faster.
        connect: base URL -> slot.
        request_s: how long one request takes, to stagger the start; None: the slots wait
            for the first slot's first request and use its time.
        records: where to put what ended; None: a list of its own.

    Attributes:
        records: of the requests that ended, in the order of their ends.
        started_s: when each slot began to send.
    """

    def __init__(
        self,
        target: Target,
        *,
        concurrency: int,
        prompts: Prompts,
        connect: Connect,
        request_s: float | None,
        records: list[RequestRecord] | None = None,
    ) -> None:
        self._target = target
        self._concurrency = concurrency
        self._prompts = prompts
        self._request_s = request_s
        self._first_end = asyncio.Event()
        self._live: dict[int, Tally] = {}
        self._slots = [connect(target.base_url) for _ in range(concurrency)]
        self._tasks: list[asyncio.Task[None]] = []
        self._reply_ids: set[str] = set()
        self._heard_s: float | None = None  # of requests that ended
        self.records: list[RequestRecord] = [] if records is None else records
        self.started_s: list[float] = []

    async def __aenter__(self) -> Self:
        """Open the connections, then start the slots."""
        try:
            await asyncio.gather(*(slot.open() for slot in self._slots))
        except BaseException:
            await self.cut()
            raise
        self._tasks = [asyncio.create_task(self._run(k, slot)) for k, slot in enumerate(self._slots)]
        return self

    async def __aexit__(self, *_: object) -> None:
        """Cut what is in flight, and close every connection."""
        await self.cut()

    @property
    def live(self) -> tuple[Tally, ...]:
        """The requests in flight."""
        return tuple(self._live.values())

    @property
    def in_flight(self) -> int:
        """How many requests were sent and have not ended."""
        return sum(tally.sent_s is not None for tally in self._live.values())

    @property
    def reads(self) -> ReadCounts:
        """How the reads of all connections fared so far."""
        counts = [slot.counts for slot in self._slots]
        return ReadCounts(
            reads=sum(each.reads for each in counts),
            stamped=sum(each.stamped for each in counts),
            late=sum(each.late for each in counts),
        )

    def silent_s(self, now_s: float) -> float:
        """Return how long nothing has come back of any request; 0 while none is in flight."""
        if not self.in_flight:
            return 0.0
        heard = [tally.stamps_s[-1] for tally in self._live.values() if tally.stamps_s]
        if self._heard_s is not None:
            heard.append(self._heard_s)
        return max(0.0, now_s - (max(heard) if heard else min(self.started_s)))

    async def cut(self) -> None:
        """End the requests in flight as CANCELLED, and close every connection."""
        for task in self._tasks:
            task.cancel()
        try:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        finally:
            await asyncio.gather(*(slot.close() for slot in self._slots))

    async def wait(self, seconds: float | None) -> bool:
        """Wait; return whether all slots have run out of prompts.

        Raises:
            UsageError, MeasurementFault: as the slots.
        """
        done, pending = await asyncio.wait(self._tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
        return not pending

    async def _run(self, slot: int, connection: StreamSlot) -> None:
        await self._stagger(slot)
        self.started_s.append(time.perf_counter())
        while (order := self._prompts.take()) is not None:
            record = await self._send(slot, connection, order)
            self.records.append(record)
            self._hear(record)
            if self._request_s is None:
                self._request_s = record.ended_s - record.sent_s
            self._first_end.set()
            if record.status is not RequestStatus.OK:
                await asyncio.sleep(FAILURE_PAUSE_S)

    def _hear(self, record: RequestRecord) -> None:
        """Note when the server last said anything; that we waited no longer is not its word."""
        heard_s = record.last_s if record.status is RequestStatus.TIMED_OUT else record.ended_s
        if heard_s is not None:
            self._heard_s = max(heard_s, self._heard_s or heard_s)

    async def _stagger(self, slot: int) -> None:
        if slot == 0:
            return
        if self._request_s is None:
            await self._first_end.wait()
        await asyncio.sleep(start_delay_s(slot, self._concurrency, self._request_s or 0.0))

    async def _send(self, slot: int, connection: StreamSlot, order: Order) -> RequestRecord:
        target = self._target
        call = self._call(order)
        prompt = order.prompt
        tally = Tally(
            target.engine,
            target.workload,
            concurrency=self._concurrency,
            slot=slot,
            prompt_id=prompt.id,
            prompt_class=prompt.prompt_class,
            output_tokens=prompt.output_tokens,
        )
        self._live[slot] = tally
        try:
            record = tally.record(await connection.stream(call, tally))
            return self._unless_seen(record, tally.reply_id)
        except asyncio.CancelledError:
            if tally.sent_s is not None:
                self.records.append(tally.cancelled(time.perf_counter()))
            raise
        finally:
            del self._live[slot]

    def _unless_seen(self, record: RequestRecord, reply_id: str | None) -> RequestRecord:
        """Note a reply's name; one that another reply of the leg had is that reply come again."""
        if reply_id is None:
            return record
        if reply_id in self._reply_ids and record.status is RequestStatus.OK:
            error = f"the reply {reply_id} has come before: something between answers from what it remembers"
            return replace(record, status=RequestStatus.DUPLICATED, error=error)
        self._reply_ids.add(reply_id)
        return record

    def _call(self, order: Order) -> HttpCall:
        workload = self._target.workload
        call = self._target.engine.generation_call(
            order.prompt,
            max_tokens=order.prompt.output_tokens or workload.output_tokens,
            workload=workload,
            stream=True,
            seed=self._target.seed + order.index,
        )
        headers = (*call.headers, *self._target.headers)
        return replace(call, timeout_s=workload.request_timeout_s, headers=headers)
