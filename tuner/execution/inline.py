"""Runs trials in this process: for tests, and for looking at one trial with a debugger."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

from tuner.model.trial import TrialEvent, TrialRequest
from tuner.ports import EngineAdapter, HostPorts
from tuner.runtime.cleaning import HostSession
from tuner.runtime.limits import Limits
from tuner.runtime.trial import events_of


class InlineExecutor:
    """An Executor without workers."""

    def __init__(
        self, hosts: Mapping[str, HostPorts], engines: Mapping[str, EngineAdapter], limits: Limits | None = None
    ) -> None:
        self._sessions = {name: HostSession(ports, limits or Limits()) for name, ports in hosts.items()}
        self._engines = engines
        self._stops: dict[str, asyncio.Event] = {}

    async def open(self) -> None:
        """Nothing to start."""

    async def run(self, host: str, request: TrialRequest) -> AsyncIterator[TrialEvent]:
        """Run a trial; the last event is TrialFinished."""
        stop = self._stops[host] = asyncio.Event()
        async for event in events_of(request, self._sessions[host], self._engines[request.engine], stop):
            yield event

    async def stop(self, host: str) -> None:
        """Ask the host's trial to end now."""
        if host in self._stops:
            self._stops[host].set()

    async def close(self) -> None:
        """Nothing to stop: trials clean up after themselves."""
