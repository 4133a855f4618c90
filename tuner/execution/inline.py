"""Runs trials in this process: for tests, and for looking at one trial with a debugger."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping

from tuner.model.trial import TrialEvent, TrialRequest
from tuner.ports import EngineAdapter, HostPorts
from tuner.runtime.cleaning import HostSession
from tuner.runtime.limits import Limits
from tuner.runtime.stay import Proof
from tuner.runtime.trial import events_of

log = logging.getLogger("tuner.inline")


class InlineExecutor:
    """An Executor without workers."""

    def __init__(
        self,
        hosts: Mapping[str, HostPorts],
        engines: Mapping[str, EngineAdapter],
        limits: Limits | None = None,
        proof: Proof | None = None,
    ) -> None:
        self._sessions = {name: HostSession(ports, limits or Limits()) for name, ports in hosts.items()}
        self._engines = engines
        self._proof = proof
        self._stops: dict[str, asyncio.Event] = {}

    async def open(self) -> None:
        """Take the hosts."""
        for session in self._sessions.values():
            await session.stay.enter(log.info)

    async def run(self, host: str, request: TrialRequest) -> AsyncIterator[TrialEvent]:
        """Run a trial; the last event is TrialFinished."""
        stop = self._stops[host] = asyncio.Event()
        async for event in events_of(request, self._sessions[host], self._engines[request.engine], stop):
            yield event

    async def stop(self, host: str) -> None:
        """Ask the host's trial to end now."""
        if host in self._stops:
            self._stops[host].set()

    async def release(self, host: str) -> None:
        """Restore a host and give it back."""
        if self._proof is not None:
            await self._sessions[host].stay.leave(self._proof, log.info)

    async def probe(self, host: str) -> None:
        """Look at the host's service: whoever answers that can be used."""
        await self._sessions[host].ports.service.state()

    async def close(self) -> None:
        """Give the hosts back; trials clean up after themselves."""
        for host in self._sessions:
            await self.release(host)

    def hurry(self) -> bool:
        """Do not wait for the originals."""
        stays = [session.stay for session in self._sessions.values() if session.ports.tenancy is not None]
        for stay in stays:
            stay.hurried.set()
        return bool(stays)
