"""The machine's own clock."""

from __future__ import annotations

import asyncio
import time


class SystemClock:
    """``ports.Clock`` over the machine's clocks; a time step of the wall clock moves only :meth:`now_s`."""

    def now_s(self) -> float:
        """Unix time, for the reader."""
        return time.time()

    def monotonic_s(self) -> float:
        """Monotonic time, for durations."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Suspend the caller; a negative time only yields to others."""
        await asyncio.sleep(max(0.0, seconds))
