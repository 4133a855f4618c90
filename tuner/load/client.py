"""Puts a server under load and measures it: legs of a closed loop, and their results."""

from __future__ import annotations

import time

from tuner.errors import MeasurementFault
from tuner.load.account import ServerAccount
from tuner.load.assembly import assemble
from tuner.load.health import ClientLimits, watching
from tuner.load.http import HttpSlot
from tuner.load.loop import ClosedLoop, Connect
from tuner.load.prompts import load_prompts
from tuner.load.queue import Order, PromptQueue
from tuner.load.reading import Reading
from tuner.load.schedule import request_s
from tuner.load.stopping import Decision, LegWatch
from tuner.model.prompt import Prompt
from tuner.model.record import LegResult, RequestRecord, RequestStatus
from tuner.ports import ControlClient, Leg, LoadProgress, ProgressSink, Target
from tuner.stats.steadiness import is_warm
from tuner.stats.tokens import disagreement
from tuner.stats.window import decode_speeds, median_decode_s

_PROGRESS_S = 0.2
_WARM_UP_SALT = "warm-up"
_LONGEST_WARM_UP = 4  # times the requests asked for
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
        self._lasted_s: dict[int, float] = {}  # concurrency -> median decode time
        self._prompts: tuple[str, tuple[Prompt, ...]] | None = None

    async def warm_up(
        self, target: Target, requests: int, concurrency: int, progress: ProgressSink
    ) -> tuple[RequestRecord, ...]:
        """Send requests, ``concurrency`` at once, until the server's speed is steady.

        At least ``requests`` and at most four times as many; none beyond ``requests`` after a failure.
        """
        if requests < 1:
            return ()
        slots = min(concurrency, requests)
        records: list[RequestRecord] = []
        prompts = _UntilWarm(self._queue(target, _WARM_UP_SALT), records, least=requests, target=target)
        async with ClosedLoop(
            target, concurrency=slots, prompts=prompts, connect=self._connect, request_s=0.0, records=records
        ) as loop:
            began_s = time.perf_counter()
            while not await loop.wait(_PROGRESS_S):
                progress(_progress(loop, began_s=began_s, reading=None))
        self._remember(records, slots)
        return tuple(records)

    async def measure(
        self, target: Target, leg: Leg, control: ControlClient, progress: ProgressSink
    ) -> tuple[LegResult, tuple[RequestRecord, ...]]:
        """Run one leg to its end.

        Raises:
            MeasurementFault: the client was the bottleneck, or replies and counters disagree about the tokens.
            UsageError: the prompts or the address cannot be used.
        """
        prompts = self._queue(target, leg.salt)
        account = ServerAccount(target, control)
        async with account:
            loop = ClosedLoop(
                target,
                concurrency=leg.concurrency,
                prompts=prompts,
                connect=self._connect,
                request_s=request_s(self._lasted_s, leg.concurrency),
            )
            async with watching() as watch, loop:
                decision = await _until_over(loop, target, leg, progress)
                health = watch.health(loop.reads, loop.records)
                await account.close(loop)
        await account.abort()
        # A server that refuses at once makes any client busy: its failures say more than our load.
        is_clean = all(record.status in _NO_FAILURE for record in loop.records)
        why = self._limits.why_bound(health) if is_clean else None
        if why is not None:
            raise MeasurementFault(
                f"{target.base_url}, concurrency {leg.concurrency}: the client was the bottleneck: {why}; "
                "free the machine that makes the load and measure again"
            )
        differs = disagreement(account.tokens, stray=leg.concurrency)
        if differs is not None:
            raise MeasurementFault(f"{target.base_url}, concurrency {leg.concurrency}: {differs} and measure again")
        self._remember(loop.records, leg.concurrency)
        return assemble(
            leg,
            loop.records,
            reading=decision.reading,
            is_converged=decision.is_converged,
            client=health,
            account=account,
        )

    def _queue(self, target: Target, salt: str, limit: int | None = None) -> PromptQueue:
        source = target.workload.prompts
        if self._prompts is None or self._prompts[0] != source:
            self._prompts = (source, load_prompts(source))
        return PromptQueue(self._prompts[1], seed=target.seed, salt=salt, limit=limit)

    def _remember(self, records: list[RequestRecord], concurrency: int) -> None:
        lasted_s = median_decode_s(records)
        if lasted_s is not None:
            self._lasted_s[concurrency] = lasted_s


class _UntilWarm:
    """The prompts of a warm-up: they end once the requests so far say that the server is warm."""

    def __init__(self, prompts: PromptQueue, records: list[RequestRecord], *, least: int, target: Target) -> None:
        self._prompts = prompts
        self._records = records
        self._least = least
        self._interval = target.workload.interval
        self._taken = 0

    def take(self) -> Order | None:
        if self._taken >= self._least and self._is_enough():
            return None
        self._taken += 1
        return self._prompts.take()

    def _is_enough(self) -> bool:
        if self._taken >= _LONGEST_WARM_UP * self._least:
            return True
        if any(record.status is not RequestStatus.OK for record in self._records):
            return True
        return is_warm(decode_speeds(self._records), self._interval)


async def _until_over(loop: ClosedLoop, target: Target, leg: Leg, progress: ProgressSink) -> Decision:
    """Watch the leg until it is over; return the last look at it."""
    began_s = reported_s = time.perf_counter()
    watch = LegWatch(leg, request_timeout_s=target.workload.request_timeout_s, began_s=began_s)
    while True:
        await loop.wait(watch.period_s)
        now_s = time.perf_counter()
        decision = watch.look(now_s, loop.started_s, loop.records, loop.live)
        if now_s - reported_s >= _PROGRESS_S:
            reported_s = now_s
            progress(_progress(loop, began_s=began_s, reading=decision.reading))
        if decision.is_over:
            return decision


def _progress(loop: ClosedLoop, *, began_s: float, reading: Reading | None) -> LoadProgress:
    now_s = time.perf_counter()
    aggregate = None if reading is None else reading.aggregate
    return LoadProgress(
        elapsed_s=now_s - began_s,
        throughput=None if aggregate is None else aggregate.value,
        in_flight=loop.in_flight,
        silent_s=loop.silent_s(now_s),
    )
