"""Running work against what may end it early."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class StopRequestedError(Exception):
    """The run is being stopped; what was under way was cancelled and has ended."""


async def until_stop(work: Coroutine[Any, Any, T], stop: asyncio.Event, *others: asyncio.Future[Any]) -> T | None:
    """Run ``work`` until it is done, ``stop`` is set, or one of ``others`` is done.

    Whatever comes first, ``work`` has ended when this returns: nothing runs on behind
    the caller's back.

    Returns:
        The result of ``work``; None when one of ``others`` was done first (they win a tie).

    Raises:
        StopRequestedError: ``stop`` was set first.
    """
    task = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({task, stopping, *others}, return_when=asyncio.FIRST_COMPLETED)
        if any(other.done() for other in others):
            return None
        if stopping.done():
            raise StopRequestedError
        return task.result()
    finally:
        await end(task)
        await end(stopping)


async def end(task: asyncio.Future[Any]) -> None:
    """Cancel a task unless it is done, and wait until it has really ended."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # marks it as seen: whoever needed it has it already
