"""Watches the client itself while a leg runs: whether it was the bottleneck."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from tuner.model.account import ClientHealth
from tuner.stats.latency import percentile

_TICK_S = 0.02  # of the lag ticker


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

    def why_bound(self, health: ClientHealth) -> str | None:
        """Say why the client was the bottleneck; None: it was not. An unknown lag says nothing."""
        lag_s = health.lag_p99_s
        if lag_s is None or lag_s <= self.lag_p99_s or health.cpu_share <= self.cpu_share:
            return None
        return f"its loop ran {lag_s * 1e3:.0f} ms late (p99) at {health.cpu_share:.0%} of a core"


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
            self._lags_s.append(max(0.0, time.perf_counter() - before - _TICK_S))

    def health(self) -> ClientHealth:
        """Say how the client fared until now."""
        wall_s = time.perf_counter() - self._wall_s
        return ClientHealth(
            cpu_share=(time.process_time() - self._cpu_s) / wall_s,
            lag_p99_s=percentile(self._lags_s, 0.99),  # None when the leg was shorter than a tick
        )


@contextlib.asynccontextmanager
async def watching() -> AsyncIterator[ClientWatch]:
    """Watch this process for as long as the block runs."""
    watch = ClientWatch()
    ticker = asyncio.create_task(watch.tick())
    try:
        yield watch
    finally:
        ticker.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await ticker
