"""Puts a server under load and measures it: legs of a closed loop, and their results."""

from __future__ import annotations

import time

from tuner.errors import MeasurementFault
from tuner.load.account import ServerAccount
from tuner.load.assembly import assemble
from tuner.load.health import ClientLimits, watching
from tuner.load.http import HttpSlot
from tuner.load.loop import ClosedLoop, Connect
from tuner.load.prompts import Prompt, load_prompts
from tuner.load.reading import LegReader, Reading
from tuner.load.schedule import PromptQueue, evaluation_period_s, is_hopeless, is_narrow, is_over
from tuner.model.record import LegResult, RequestRecord, RequestStatus
from tuner.ports import ControlClient, Leg, LoadProgress, ProgressSink, Target
from tuner.stats.steadiness import is_steady
from tuner.stats.window import median_decode_s, opening_s

_PROGRESS_S = 0.2
_WARM_UP_SALT = "warm-up"
_NO_FAILURE = frozenset({RequestStatus.OK, RequestStatus.CANCELLED})


DEFAULT_LIMITS = ClientLimits()


class HttpLoadGenerator:
    """``LoadGenerator``: a closed loop over HTTP.

    It remembers how long requests took, to stagger the next leg's start; nothing else
    passes from one call to the next.

    Args:
        connect: base URL -> slot.
        limits: of the client itself.
    """

    def __init__(self, *, connect: Connect = HttpSlot, limits: ClientLimits = DEFAULT_LIMITS) -> None:
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
        account = ServerAccount(target, control)
        await account.open()
        loop = ClosedLoop(
            target, concurrency=leg.concurrency, prompts=prompts, connect=self._connect, request_s=self._request_s
        )
        async with watching() as watch, loop:
            reading, is_converged = await _until_over(loop, target, leg, progress)
            health = watch.health()
            await account.close()
        await account.abort()
        # A server that refuses at once makes any client busy: its failures say more than our load.
        is_clean = all(record.status in _NO_FAILURE for record in loop.records)
        why = self._limits.why_bound(health) if is_clean else None
        if why is not None:
            raise MeasurementFault(
                f"{target.base_url}, concurrency {leg.concurrency}: the client was the bottleneck: {why}; "
                "free the machine that makes the load and measure again"
            )
        self._remember(loop.records)
        return assemble(leg, loop.records, reading=reading, is_converged=is_converged, client=health, account=account)

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
