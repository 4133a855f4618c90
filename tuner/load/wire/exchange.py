"""One request and its reply on a connection: what has come, and who waits for it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from tuner.load.wire.body import Body, body_of
from tuner.load.wire.head import Head, split_head


class CutError(ConnectionError):
    """The connection ended or broke before the reply was whole."""


class Push(Protocol):
    """Takes a reply as it arrives; called while the socket is being read, so it must be quick."""

    def sent(self, at_s: float) -> None:
        """Take the moment just before the request is written."""

    def accepts(self, head: Head) -> bool:
        """Whether the body is to be pushed; else it is kept for whoever reads it."""

    def feed(self, piece: bytes, at_s: float) -> None:
        """Take what one read had of the body, and when its last byte arrived."""


class Exchange:
    """A reply on its way.

    Args:
        push: takes the body, if it accepts it; None: the body is kept until it is read.
        is_head: the request is a HEAD, whose reply has no body.

    Attributes:
        answer: the reply's head; of a pushed body only when it has ended.
        body: None until the head has come.
        held_bytes: kept and not yet read.
        is_over: nothing more comes.
    """

    __slots__ = (
        "_error",
        "_head",
        "_held",
        "_is_head",
        "_start",
        "_woken",
        "answer",
        "body",
        "feed",
        "held_bytes",
        "is_over",
        "push",
    )

    def __init__(self, push: Push | None, *, is_head: bool = False) -> None:
        self._is_head = is_head
        self._start = b""  # of a head, unfinished
        self._head: Head | None = None
        self._held: deque[bytes] = deque()
        self._woken = asyncio.Event()
        self._error: Exception | None = None
        self.push = push
        self.feed: Callable[[bytes, float], None] = self._hold
        self.answer: asyncio.Future[Head] = asyncio.get_running_loop().create_future()
        self.body: Body | None = None
        self.held_bytes = 0
        self.is_over = False

    def take_head(self, data: bytes) -> tuple[Head, bytes] | None:
        """Take bytes of the head; return it and what follows, None while it is not whole.

        Raises:
            NotHttpError: it never will be one.
        """
        rest = self._start + data
        while (taken := split_head(rest)) is not None and taken[0].is_interim:
            rest = taken[1]
        if taken is None:
            self._start = rest
            return None
        head = self._head = taken[0]
        self.body = body_of(head, is_to_head=self._is_head)
        if self.push is not None and self.push.accepts(head):
            self.feed = self.push.feed
        elif not self.answer.done():
            self.answer.set_result(head)
        return taken

    def _hold(self, piece: bytes, _: float) -> None:
        self._held.append(piece)
        self.held_bytes += len(piece)
        self._woken.set()

    def end(self, error: Exception | None) -> None:
        """Take the reply's end, or why it has none."""
        if self.is_over:
            return
        self.is_over = True
        self._error = error
        self._woken.set()
        if self.answer.done():
            return
        if error is not None:
            self.answer.set_exception(error)
        elif self._head is not None:
            self.answer.set_result(self._head)

    async def piece(self) -> bytes | None:
        """Wait for the next piece of a kept body; None at its end.

        Raises:
            CutError, NotHttpError: it ended too early.
        """
        while not self._held:
            if self.is_over:
                if self._error is not None:
                    raise self._error
                return None
            self._woken.clear()
            await self._woken.wait()
        piece = self._held.popleft()
        self.held_bytes -= len(piece)
        return piece
