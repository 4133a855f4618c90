"""What the server itself says of a leg: its running totals before and after."""

from __future__ import annotations

from dataclasses import replace

from tuner.model.account import Speculation
from tuner.model.http import HttpCall
from tuner.model.metric import Estimate
from tuner.model.record import Counters
from tuner.ports import ControlClient, Target
from tuner.stats.speculation import acceptance_length, step_time_s

_CONTROL_TIMEOUT_S = 5.0  # counters and abort: the leg does not wait longer for what only explains it


class ServerAccount:
    """Reads a server's totals around one leg.

    Args:
        target: the server.
        control: asks it.
    """

    def __init__(self, target: Target, control: ControlClient) -> None:
        self._target = target
        self._control = control
        self._before: Counters | None = None
        self._after: Counters | None = None

    async def open(self) -> None:
        """Read before the first request."""
        self._before = await self._counters()

    async def close(self) -> None:
        """Read while the last requests still run."""
        self._after = await self._counters()

    async def abort(self) -> None:
        """Make sure that what we cut is not computed on into the next leg."""
        call = self._target.engine.abort_call()
        if call is not None:
            await self._control.call(_short(call))

    def speculation(self, single: Estimate | None) -> Speculation | None:
        """Say what speculation did; None: the engine does not tell."""
        acceptance = acceptance_length(self._before, self._after)
        if acceptance is None:
            return None
        return Speculation(acceptance_length=acceptance, step_time_s=step_time_s(acceptance, single))

    async def _counters(self) -> Counters | None:
        call = self._target.engine.counters_call()
        if call is None:
            return None
        reply = await self._control.call(_short(call))
        return self._target.engine.counters(reply) if reply.status == 200 else None


def _short(call: HttpCall) -> HttpCall:
    return replace(call, timeout_s=min(call.timeout_s, _CONTROL_TIMEOUT_S))
