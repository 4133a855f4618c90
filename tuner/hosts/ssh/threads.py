"""Blocking work beside the event loop, which can be cancelled.

In daemon threads of their own: a host that does not answer holds up neither other work nor an exit.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_thread(name: str, work: Callable[[], T], cancel: Callable[[], None]) -> T:
    """Run ``work``; cancelled, ``cancel`` is called, and the caller goes on once ``work`` has returned."""
    waiting = asyncio.wrap_future(_start(name, work))
    try:
        return await asyncio.shield(waiting)
    except asyncio.CancelledError:
        cancel()
        while not waiting.done():
            # Cancelled again: what is being ended needs a moment all the same.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait((waiting,))
        if not waiting.cancelled():
            waiting.exception()  # seen
        raise


async def in_thread_or_not_at_all(name: str, work: Callable[[], T], undo: Callable[[T], None]) -> T:
    """Run ``work``; cancelled, the caller goes on at once, and the result is undone when it comes."""
    lock, is_wanted = threading.Lock(), True

    def guarded() -> T:
        result = work()
        with lock:
            if is_wanted:
                return result
        undo(result)
        return result

    waiting = asyncio.wrap_future(_start(name, guarded))
    try:
        return await waiting
    except asyncio.CancelledError:
        with lock:
            is_wanted = False
        raise


def _start(name: str, work: Callable[[], T]) -> concurrent.futures.Future[T]:
    result: concurrent.futures.Future[T] = concurrent.futures.Future()
    result.set_running_or_notify_cancel()

    def run() -> None:
        try:
            done = work()
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            result.set_exception(error)
        else:
            result.set_result(done)

    threading.Thread(target=run, daemon=True, name=name).start()
    return result
