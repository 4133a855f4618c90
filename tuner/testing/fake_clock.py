"""A clock that stands still until everybody sleeps, and then jumps.

Time passes only in :meth:`FakeClock.sleep` and :meth:`FakeClock.advance`. While any task of the
event loop can run, the clock stands; when all of them wait, it jumps to the earliest sleeper and
wakes that one alone (those of the same instant in the order in which they went to sleep). A night
of several tasks therefore takes milliseconds and always happens in the same order.

It works in any asyncio event loop::

    clock = FakeClock()

    async def night() -> float:
        await asyncio.gather(clock.sleep(3600), clock.sleep(10))
        return clock.monotonic_s()

    assert asyncio.run(night()) == 3600

Time-outs of asyncio itself (``asyncio.timeout``) run on real time: code under test should sleep
on its clock. Threads and sockets are not waited for.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools

EPOCH_S = 1_767_225_600.0
"""Unix time at which a fake clock starts: 2026-01-01 00:00 UTC."""

# Passes of the event loop in a row that find nobody who can run before the clock jumps: a second one
# is never made by a loop that is being stopped, whose sleepers have nothing to wait for.
_QUIET_PASSES = 2
# The same on an event loop that does not show its queue: as long as any chain of callbacks takes.
_BLIND_PASSES = 50


class FakeClock:
    """``ports.Clock`` without waiting.

    Args:
        start_s: what :meth:`monotonic_s` says at first.
    """

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._watched: asyncio.AbstractEventLoop | None = None

    def now_s(self) -> float:
        """Unix time, for the reader."""
        return EPOCH_S + self._now_s

    def monotonic_s(self) -> float:
        """Seconds since the clock's start, plus ``start_s``."""
        return self._now_s

    async def sleep(self, seconds: float) -> None:
        """Suspend the caller until the clock has jumped ``seconds`` on."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        loop = asyncio.get_running_loop()
        if self._watched is not loop:
            # Sleepers of a loop that has ended will never be woken.
            self._sleepers.clear()
            self._watched = loop
            self._watch(loop)
        woken: asyncio.Future[None] = loop.create_future()
        heapq.heappush(self._sleepers, (self._now_s + seconds, next(self._order), woken))
        await woken

    def advance(self, seconds: float) -> None:
        """Let time pass at once, waking whoever slept less long."""
        self._now_s += seconds
        while self._sleepers and self._sleepers[0][0] <= self._now_s:
            self._wake(heapq.heappop(self._sleepers)[2])

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_soon(self._jump_when_quiet, loop, _QUIET_PASSES if hasattr(loop, "_ready") else _BLIND_PASSES)

    def _jump_when_quiet(self, loop: asyncio.AbstractEventLoop, passes_left: int) -> None:
        # The loop's queue of callbacks that can run now tells exactly whether anybody else can;
        # asyncio has no public way to ask.
        if getattr(loop, "_ready", None):
            self._watch(loop)
            return
        if passes_left > 1:
            loop.call_soon(self._jump_when_quiet, loop, passes_left - 1)
            return
        while self._sleepers and self._sleepers[0][2].done():  # cancelled
            heapq.heappop(self._sleepers)
        if not self._sleepers:
            self._watched = None  # the next sleeper starts the watch again
            return
        due_s, _, woken = heapq.heappop(self._sleepers)
        self._now_s = max(self._now_s, due_s)
        self._wake(woken)
        self._watch(loop)

    @staticmethod
    def _wake(woken: asyncio.Future[None]) -> None:
        if not woken.done():
            woken.set_result(None)
