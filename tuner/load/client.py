"""Puts a server under load and measures it: legs of a closed loop, and their results."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from tuner.errors import MeasurementFault
from tuner.load.http import HttpSlot
from tuner.load.loop import ClosedLoop, Connect
from tuner.load.prompts import Prompt, load_prompts
from tuner.load.reading import LegReader, Reading
from tuner.load.schedule import PromptQueue, evaluation_period_s, is_hopeless, is_narrow, is_over
from tuner.model.http import HttpCall
from tuner.model.record import Counters, LegResult, RequestRecord, RequestStatus
from tuner.ports import ControlClient, Leg, LoadProgress, ProgressSink, Target
from tuner.stats.latency import percentile, ttft_s
from tuner.stats.speculation import acceptance_length, step_time_s
from tuner.stats.steadiness import is_steady
from tuner.stats.window import Window, is_in_window, median_decode_s, opening_s

_TICK_S = 0.02  # of the lag ticker
_PROGRESS_S = 0.2
_CONTROL_TIMEOUT_S = 5.0  # counters and abort: the leg does not wait longer for what only explains it
_WARM_UP_SALT = "warm-up"
_NO_FAILURE = frozenset({RequestStatus.OK, RequestStatus.CANCELLED})


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """Beyond both of these the client was the bottleneck: it had no time left and ran late.

    They are coarse, because this client cannot say how late each single stamp is.

    Attributes:
        lag_p99_s: 99th percentile of the event loop's lag.
        cpu_share: CPU seconds of the process a wall second.
    """

    lag_p99_s: float = 0.05
    cpu_share: float = 0.9

    def are_exceeded(self, lag_p99_s: float | None, cpu_share: float) -> bool:
        """Whether both are; an unknown lag exceeds nothing."""
        return lag_p99_s is not None and lag_p99_s > self.lag_p99_s and cpu_share > self.cpu_share


class _ClientWatch:
    """Measures this process while a leg runs: its CPU share and how late its loop runs."""

    def __init__(self) -> None:
        self._cpu_s = time.process_time()
        self._wall_s = time.perf_counter()
        self._lags_s: list[float] = []

    async def tick(self) -> None:
        """Record how late each tick comes, for ever."""
        while True:
            before = time.perf_counter()
            await asyncio.sleep(_TICK_S)
            self._lags_s.append(max(0.0, time.perf_counter() - before - _TICK_S))

    @property
    def cpu_share(self) -> float:
        """CPU seconds of the process a wall second."""
        return (time.process_time() - self._cpu_s) / (time.perf_counter() - self._wall_s)

    @property
    def lag_p99_s(self) -> float | None:
        """99th percentile of the lag; None when the leg was shorter than a tick."""
        return percentile(self._lags_s, 0.99)


@contextlib.asynccontextmanager
async def _watching() -> AsyncIterator[_ClientWatch]:
    watch = _ClientWatch()
    ticker = asyncio.create_task(watch.tick())
    try:
        yield watch
    finally:
        ticker.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await ticker


class HttpLoadGenerator:
    """``LoadGenerator``: a closed loop over HTTP.

    It remembers how long requests took, to stagger the next leg's start; nothing else
    passes from one call to the next.

    Args:
        connect: base URL -> slot.
        limits: of the client itself.
    """

    def __init__(self, *, connect: Connect = HttpSlot, limits: ClientLimits = ClientLimits()) -> None:
        self._connect = connect
        self._limits = limits
        self._request_s: float | None = None
        self._prompts: tuple[str, tuple[Prompt, ...]] | None = None

    async def warm_up(
        self, target: Target, requests: int, concurrency: int, progress: ProgressSink
    ) -> tuple[RequestRecord, ...]:
        """Send ``requests`` requests, ``concurrency`` at once."""
        if requests < 1:
            return ()
        prompts = self._queue(target, _WARM_UP_SALT, limit=requests)
        slots = min(concurrency, requests)
        async with ClosedLoop(target, concurrency=slots, prompts=prompts, connect=self._connect, request_s=0.0) as loop:
            began_s = time.perf_counter()
            while not await loop.wait(_PROGRESS_S):
                progress(_progress(loop, began_s=began_s, reading=None))
        self._remember(loop.records)
        return tuple(loop.records)

    async def measure(
        self, target: Target, leg: Leg, control: ControlClient, progress: ProgressSink
    ) -> tuple[LegResult, tuple[RequestRecord, ...]]:
        """Run one leg to its end.

        Raises:
            MeasurementFault: the client was the bottleneck.
            UsageError: the prompts or the address cannot be used.
        """
        prompts = self._queue(target, leg.salt)
        before = await _counters(target, control)
        loop = ClosedLoop(
            target, concurrency=leg.concurrency, prompts=prompts, connect=self._connect, request_s=self._request_s
        )
        async with _watching() as watch, loop:
            reading, is_converged = await _until_over(loop, target, leg, progress)
            cpu_share, lag_p99_s = watch.cpu_share, watch.lag_p99_s
            after = await _counters(target, control)
        await _abort(target, control)
        # A server that refuses at once makes any client busy: its failures say more than our load.
        is_clean = all(record.status in _NO_FAILURE for record in loop.records)
        if is_clean and self._limits.are_exceeded(lag_p99_s, cpu_share):
            raise MeasurementFault(
                f"{target.base_url}, concurrency {leg.concurrency}: the client was the bottleneck: its loop ran "
                f"{(lag_p99_s or 0.0) * 1e3:.0f} ms late (p99) at {cpu_share:.0%} of a core; "
                "free the machine that makes the load and measure again"
            )
        self._remember(loop.records)
        window = Window(start_s=0.0, end_s=0.0) if reading is None else reading.window
        records = tuple(replace(r, in_window=reading is not None and is_in_window(r, window)) for r in loop.records)
        acceptance = acceptance_length(before, after)
        single = None if reading is None else reading.single
        ended = [r for r in records if r.status is not RequestStatus.CANCELLED]
        completed = sum(r.status is RequestStatus.OK for r in ended)
        waits = [wait for r in records if r.in_window and (wait := ttft_s(r)) is not None]
        result = LegResult(
            concurrency=leg.concurrency,
            single_request_throughput=single,
            aggregate_throughput=None if reading is None else reading.aggregate,
            ttft_median_s=percentile(waits, 0.5),
            ttft_p99_s=percentile(waits, 0.99),
            acceptance_length=acceptance,
            step_time_s=step_time_s(acceptance, single),
            window_s=window.length_s,
            offered=len(ended),
            completed=completed,
            failed=len(ended) - completed,
            converged=is_converged,
            client_cpu_share=cpu_share,
            client_lag_p99_s=lag_p99_s,
        )
        return result, records

    def _queue(self, target: Target, salt: str, limit: int | None = None) -> PromptQueue:
        source = target.workload.prompts
        if self._prompts is None or self._prompts[0] != source:
            self._prompts = (source, load_prompts(source))
        return PromptQueue(self._prompts[1], seed=target.seed, salt=salt, limit=limit)

    def _remember(self, records: list[RequestRecord]) -> None:
        self._request_s = median_decode_s(records) or self._request_s


async def _until_over(
    loop: ClosedLoop, target: Target, leg: Leg, progress: ProgressSink
) -> tuple[Reading | None, bool]:
    """Watch the leg until its window can close; return the last reading, and whether it is narrow or steady enough."""
    began_s = time.perf_counter()
    period_s = evaluation_period_s(leg)
    reader: LegReader | None = None
    reported_s = began_s
    while True:
        await loop.wait(period_s)
        now_s = time.perf_counter()
        if reader is None:
            waiting = [tally.sent_s for tally in loop.live if tally.sent_s is not None and not tally.stamps_s]
            opened_s = opening_s(loop.started_s, loop.records, waiting, concurrency=leg.concurrency, now_s=now_s)
            reader = None if opened_s is None else LegReader(loop, opened_s, counts_batches=leg.until_steady)
        reading = None if reader is None else reader.read(now_s)
        if now_s - reported_s >= _PROGRESS_S:
            reported_s = now_s
            progress(_progress(loop, began_s=began_s, reading=reading))
        if reader is not None and reading is not None:
            if leg.until_steady:
                narrow = is_steady(reading.batch_throughputs, leg.interval)
            else:
                narrow = is_narrow(leg, reading.single, reading.aggregate)
            if is_over(
                leg,
                window_s=now_s - reader.opened_s,
                is_narrow=narrow,
                single=reading.single,
                request_timeout_s=target.workload.request_timeout_s,
            ):
                return reading, narrow
        elif is_hopeless(
            leg,
            elapsed_s=now_s - began_s,
            complete=sum(r.status is RequestStatus.OK for r in loop.records),
            failed=sum(r.status is not RequestStatus.OK for r in loop.records),
            request_timeout_s=target.workload.request_timeout_s,
        ):
            return None, False


def _progress(loop: ClosedLoop, *, began_s: float, reading: Reading | None) -> LoadProgress:
    now_s = time.perf_counter()
    aggregate = None if reading is None else reading.aggregate
    return LoadProgress(
        elapsed_s=now_s - began_s,
        throughput=None if aggregate is None else aggregate.value,
        in_flight=loop.in_flight,
        silent_s=loop.silent_s(now_s),
    )


async def _counters(target: Target, control: ControlClient) -> Counters | None:
    call = target.engine.counters_call()
    if call is None:
        return None
    reply = await control.call(_short(call))
    return target.engine.counters(reply) if reply.status == 200 else None


async def _abort(target: Target, control: ControlClient) -> None:
    """Make sure that what we cut is not computed on into the next leg."""
    call = target.engine.abort_call()
    if call is not None:
        await control.call(_short(call))


def _short(call: HttpCall) -> HttpCall:
    return replace(call, timeout_s=min(call.timeout_s, _CONTROL_TIMEOUT_S))
