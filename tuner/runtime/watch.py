"""Looks at a server from its first second to its last, in parallel with everything else."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.model.host import Activity, ServiceState
from tuner.model.trial import LogText, ServiceIdentity
from tuner.ports import LogReader
from tuner.runtime.context import TrialContext

_LONGEST_LINE = 65536
_HELD_BACK = 4096
"""Characters of an overlong line that wait for more: longer than any key that may be cut in two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The server is no longer the one that was started, or cannot live on.

    Attributes:
        looped: it was started again by its service manager: a crash loop.
        fatal_line: the process still lived when its log said that it cannot.
    """

    state: ServiceState
    looped: bool
    fatal_line: bool = False


class Watch:
    """Follows one server start: its process, its restart counter and its log."""

    def __init__(self, context: TrialContext, identity: ServiceIdentity, reader: LogReader) -> None:
        self._host = context.session.ports
        self._stay = context.session.stay
        self._limits = context.session.limits
        self._look_s = max(self._limits.look_s, self._host.look_s)
        self._emit = context.progress.emit
        self._scrub = context.progress.scrub
        self._identity = identity
        self._reader = reader
        self._cursor: str | None = None
        self._pending = ""

    async def until_end(self) -> Ended:
        """Return when the server has died, was replaced, or logged that it cannot live.

        What it logged last is still to be read: see :meth:`drain`.

        Raises:
            TransportFault: the host cannot be looked at.
            LeaseLost: the host is no longer ours.
        """
        fatal_since: float | None = None
        while True:
            self._stay.require()
            await self.read_log()
            state = await self._host.service.state()
            if self.is_ended(state):
                return Ended(state=state, looped=self.is_replaced(state))
            now = self._host.clock.monotonic_s()
            if self._reader.fatal and fatal_since is None:
                fatal_since = now
            if fatal_since is not None and now - fatal_since >= self._limits.settle_s:
                return Ended(state=state, looped=False, fatal_line=True)
            await self._host.clock.sleep(self._look_s)

    def is_replaced(self, state: ServiceState) -> bool:
        """Whether another invocation than ours runs, or will: the server restarted."""
        return state.restarts > 0 or state.activity is Activity.RESTARTING or state.identity != self._identity

    def is_ended(self, state: ServiceState) -> bool:
        """Whether ``state`` is anything but our server, alive and never restarted."""
        return state.activity is not Activity.RUNNING or self.is_replaced(state)

    async def read_log(self) -> bool:
        """Read what was logged since the last time; False when there was nothing new."""
        chunk = await self._host.service.read_log(self._cursor)
        self._cursor = chunk.cursor
        if not chunk.text:
            return False
        self._reader.feed(chunk.text)
        # Secrets are recognised a line at a time: a piece that ends inside one waits for its end.
        text = self._pending + chunk.text
        cut = text.rfind("\n") + 1
        if cut == 0 and len(text) > _LONGEST_LINE:
            text = self._scrub(text)  # first: a secret must not fall on both sides of the cut
            cut = len(text) - _HELD_BACK
        self._pending = text[cut:]
        if text[:cut]:
            self._emit(LogText(at_s=self._host.clock.now_s(), text=self._scrub(text[:cut])))
        return True

    async def drain(self, *, is_endless: bool) -> None:
        """Read the rest of a dead server's log, however long it is.

        Args:
            is_endless: it may go on for ever (a restart loop, a process that still lives):
                what comes later than ten times ``limits.drain_s`` is not waited for.
        """
        clock, limits = self._host.clock, self._limits
        quiet_since = began = clock.monotonic_s()
        while True:
            if await self.read_log():
                quiet_since = clock.monotonic_s()
                if is_endless and quiet_since - began >= 10 * limits.drain_s:
                    return
            elif clock.monotonic_s() - quiet_since >= limits.drain_s:
                return
            else:
                await clock.sleep(self._look_s)

    async def read_rest(self) -> None:
        """Read what a server that has been stopped logged at its end; nothing more can come."""
        while await self.read_log():
            pass
        if self._pending:
            self._emit(LogText(at_s=self._host.clock.now_s(), text=self._scrub(self._pending)))
            self._pending = ""
