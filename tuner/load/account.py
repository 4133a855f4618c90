"""What the server itself says of a leg: its running totals before and after, and how full it was."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, Self

from tuner.load.reading import LiveRequest
from tuner.model.account import ServerLoad, Speculation, TokenCheck
from tuner.model.http import HttpCall
from tuner.model.metric import Estimate
from tuner.model.record import Counters, RequestRecord
from tuner.ports import ControlClient, Target
from tuner.stats.server import server_load
from tuner.stats.speculation import speculation
from tuner.stats.tokens import disagreement, ended_tokens, is_countable, token_check
from tuner.stats.window import Window, tokens_per_chunk

_CONTROL_TIMEOUT_S = 5.0  # counters and abort: the leg does not wait longer for what only explains it
_LOOK_S = 1.0  # one page of counters a second costs the client a few tenths of a percent of a core
_REST_S = 0.1  # between two readings that must agree before a leg begins
_RESTS = 20  # at most: what was cut before has long ended then, or is somebody else's
_AGAIN_S = 0.3  # a page of counters can be older than the reply it comes in
_READINGS = 4  # at the end of a leg, while they contradict the replies


class Replies(Protocol):
    """The requests of a leg."""

    @property
    def records(self) -> Sequence[RequestRecord]:
        """Those that ended."""

    @property
    def live(self) -> Sequence[LiveRequest]:
        """Those in flight."""


class ServerAccount:
    """Reads a server's totals around one leg, and its gauges while it runs; used with ``async with``.

    Args:
        target: the server.
        control: asks it.

    Attributes:
        tokens: the server's two accounts of them; None: it has only one, or requests failed.
    """

    def __init__(self, target: Target, control: ControlClient) -> None:
        self._target = target
        self._control = control
        self._before: Counters | None = None
        self._after: Counters | None = None
        self._looks: list[tuple[float, Counters]] = []
        self._looking: asyncio.Task[None] | None = None
        self.tokens: TokenCheck | None = None

    async def __aenter__(self) -> Self:
        """Read the totals before the first request, at rest, and begin to look at the gauges."""
        self._before = await self._at_rest()
        if self._before is not None:
            self._looking = asyncio.create_task(self._look_on())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Look no more."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def close(self, replies: Replies) -> None:
        """Read the totals while the last requests still run, and hold them against the replies.

        Requests that are cut afterwards are in neither account. A reading that contradicts the replies
        is taken again a few times: the end of a reply may be on its way, and some servers bring their page
        up to date now and then only.
        """
        for attempt in range(_READINGS):
            if attempt:
                await asyncio.sleep(_AGAIN_S)
            least = self._delivered(replies)
            self._after = await self._counters()
            if self._before is None or self._after is None:
                return
            most = self._delivered(replies)
            if not is_countable(replies.records):
                self.tokens = None
                return
            self.tokens = token_check(self._before, self._after, least=least, most=most)
            if disagreement(self.tokens) is None:
                return

    async def abort(self) -> None:
        """Make sure that what we cut is not computed on into the next leg."""
        call = self._target.engine.abort_call()
        if call is not None:
            await self._control.call(_short(call))

    def speculation(self, records: Sequence[RequestRecord], single: Estimate | None) -> Speculation | None:
        """Say what speculation did; None: the engine does not tell."""
        return speculation(records, single, before=self._before, after=self._after)

    def server(self, records: Sequence[RequestRecord], window: Window) -> ServerLoad | None:
        """Say how full the server was; None: it does not tell."""
        return server_load(self._before, self._after, self._looks, records, window)

    def _delivered(self, replies: Replies) -> int:
        """Return the tokens that the server's totals have in them if they are up to date now."""
        tokens = ended_tokens(replies.records)
        if self._before is None or not self._before.is_live:
            return tokens
        per_chunk = tokens_per_chunk(replies.records)  # for requests whose count comes at their end only
        curves = [curve for request in replies.live if (curve := request.arrivals(per_chunk)) is not None]
        return tokens + round(sum(curve.totals[-1] for curve in curves))

    async def _at_rest(self) -> Counters | None:
        """Read until two readings agree and nothing runs: what was cut before can end a moment later."""
        last = await self._counters()
        if last is None or last.generated_tokens is None:
            return last
        for _ in range(_RESTS):
            await asyncio.sleep(_REST_S)
            now = await self._counters()
            if now is None:
                return last
            if now.generated_tokens == last.generated_tokens and not now.running and not now.queued:
                return now
            last = now
        return last

    async def _look_on(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            counters = await self._counters()
            if counters is not None:
                self._looks.append((time.perf_counter(), counters))

    async def _counters(self) -> Counters | None:
        """Read once; None: the engine counts nothing, or does not tell."""
        call = self._target.engine.counters_call()
        if call is None:
            return None
        reply = await self._control.call(_short(call))
        if reply.status != 200:
            return None
        counters = self._target.engine.counters(reply)
        return None if counters == Counters() else counters


def _short(call: HttpCall) -> HttpCall:
    return replace(call, timeout_s=min(call.timeout_s, _CONTROL_TIMEOUT_S))
