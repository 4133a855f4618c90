"""Two looks at the same time, neither of which outlives the other's failure."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

One = TypeVar("One")
Other = TypeVar("Other")


async def together(one: Coroutine[Any, Any, One], other: Coroutine[Any, Any, Other]) -> tuple[One, Other]:
    """Return both results; where one fails, the other is cancelled: it would use a connection that is closed.

    Not a TaskGroup, whose error is a group of errors.
    """
    tasks = asyncio.ensure_future(one), asyncio.ensure_future(other)
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
