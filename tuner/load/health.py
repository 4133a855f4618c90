"""Watches the client itself while a leg runs: whether it was the bottleneck."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from tuner.load.stream import ReadCounts
from tuner.model.account import ClientHealth, Stamps
from tuner.model.record import RequestRecord
from tuner.stats.latency import percentile

_TICK_S = 0.02  # of the lag ticker
_ROUNDING_S = 1e-3  # the event loop waits whole milliseconds, rounded up
_KERNEL_SHARE = 0.5  # of the reads; a machine whose wall clock is set ten times a second loses a part of them


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """Beyond these the client was the bottleneck: it had no time left, and its numbers show it.

    A client that is late although it uses little of its core waited for a machine that was busy with
    something else. That moves no kernel stamp and is in the record; its tokens and speeds still hold.
    What only the client can bring about is its own share of a core: without that it is not to blame.
    Where the stamps are its own, being late makes them wrong, whoever was to blame.

    Attributes:
        cpu_share: CPU seconds of the process a wall second; up to it no leg is client-bound.
        lag_p99_s: 99th percentile of the event loop's lag.
        merged_share: chunks whose own time is not known; None: any share of them will do.
        user_lag_p99_s: the lag beyond which stamps that are not the kernel's are not believed; None: they are.
    """

    cpu_share: float = 0.9
    lag_p99_s: float = 0.05
    merged_share: float | None = None
    user_lag_p99_s: float | None = None

    def why_bound(self, health: ClientHealth) -> str | None:
        """Say why the client was the bottleneck; None: it was not. What is unknown says nothing."""
        lag_s, user_s = health.lag_p99_s, self.user_lag_p99_s
        if health.stamps is Stamps.USER and lag_s is not None and user_s is not None and lag_s > user_s:
            return f"its loop ran {lag_s * 1e3:.0f} ms late (p99), and the stamps are its own"
        if health.cpu_share <= self.cpu_share:
            return None
        signs: list[str] = []
        if lag_s is not None and lag_s > self.lag_p99_s:
            signs.append(f"its loop ran {lag_s * 1e3:.0f} ms late (p99)")
        merged = health.merged_share
        if merged is not None and self.merged_share is not None and merged > self.merged_share:
            signs.append(f"{merged:.1%} of the chunks were read together with a later one")
        return f"{' and '.join(signs)} at {health.cpu_share:.0%} of a core" if signs else None


TOLERANT_LIMITS = ClientLimits()
"""For a server that is simulated on the same machine: its numbers are for looking at."""

STRICT_LIMITS = ClientLimits(cpu_share=0.6, lag_p99_s=1e-3, merged_share=0.01, user_lag_p99_s=10e-3)
"""For numbers that somebody relies on."""


class ClientWatch:
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
            self._lags_s.append(max(0.0, time.perf_counter() - before - _TICK_S - _ROUNDING_S))

    def health(self, reads: ReadCounts, records: Sequence[RequestRecord]) -> ClientHealth:
        """Say how the client fared until now.

        Args:
            reads: of all connections.
            records: of the requests so far.
        """
        wall_s = time.perf_counter() - self._wall_s
        chunks = sum(len(record.chunk_s) for record in records)
        is_kernel = reads.stamped > 0 and reads.stamped >= _KERNEL_SHARE * reads.reads
        return ClientHealth(
            cpu_share=(time.process_time() - self._cpu_s) / wall_s,
            lag_p99_s=percentile(self._lags_s, 0.99),  # None when the leg was shorter than a tick
            late_share=reads.late / reads.stamped if reads.stamped else None,
            merged_share=sum(record.merged for record in records) / chunks if chunks else None,
            stamps=Stamps.KERNEL if is_kernel else Stamps.USER,
        )


@contextlib.asynccontextmanager
async def watching() -> AsyncIterator[ClientWatch]:
    """Watch this process for as long as the block runs, and keep what is old out of its collector's way."""
    gc.freeze()  # a full collection of what was there before takes tens of milliseconds
    watch = ClientWatch()
    ticker = asyncio.create_task(watch.tick())
    try:
        yield watch
    finally:
        ticker.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await ticker
        gc.unfreeze()
