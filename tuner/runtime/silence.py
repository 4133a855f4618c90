"""Tells a server that hangs from one that is slow: by how long it has sent nothing to anybody.

A server may keep answering its health check with 200 while no request gets anything: its front end
lives, its scheduler does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from tuner.model.workload import Workload
from tuner.ports import LoadProgress
from tuner.runtime.racing import end

T = TypeVar("T")

COLD_PATIENCE = 4.0
"""Before and in the warm-up, ``silence_s`` is so many times as long: the first requests of each size may
have kernels compiled, which takes a minute or two (SGLang's own watchdog waits 300 s for a forward)."""


def limit_s(workload: Workload, *, is_warm: bool) -> float:
    """Return the silence after which a server hangs, in seconds."""
    return workload.silence_s * (1.0 if is_warm else COLD_PATIENCE)


def is_hanging(progress: LoadProgress, limit_s: float) -> bool:
    """Whether requests wait and nothing has come back of any of them for too long."""
    return progress.in_flight > 0 and progress.silent_s >= limit_s


class Silence:
    """Watches the progress of one piece of load; :meth:`take` is its sink.

    Attributes:
        limit_s: of silence.
        broken_off: the progress at which the load was ended; None: it was not.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self.broken_off: LoadProgress | None = None
        self._noticed = asyncio.Event()

    def take(self, progress: LoadProgress) -> None:
        """Take how the load is coming along."""
        if self.broken_off is None and is_hanging(progress, self.limit_s):
            self.broken_off = progress
            self._noticed.set()

    async def during(self, load: Coroutine[Any, Any, T]) -> T | None:
        """Run ``load`` to its end; None: it was ended because the server hangs."""
        running = asyncio.ensure_future(load)
        noticed = asyncio.ensure_future(self._noticed.wait())
        try:
            await asyncio.wait({running, noticed}, return_when=asyncio.FIRST_COMPLETED)
            return running.result() if running.done() else None
        finally:
            await end(running)
            await end(noticed)
