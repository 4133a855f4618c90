"""The hosts of a run: which may take a trial, which are set aside, and when they come back."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from tuner.errors import TunerError
from tuner.model.outcome import Cause, Faulted, Infeasible, Interrupted, Outcome
from tuner.model.study import HostSpec
from tuner.ports import Clock, Executor, RunObserver
from tuner.runtime.racing import end

FAULTS_IN_A_ROW = 3
"""Faults after which a host is set aside (design, section 4)."""

PROBE_S = 60.0
"""Between two looks at whether a host that was set aside can be used again."""

COMEBACKS = 3
"""How often a host may come back without finishing a trial in between, before it is set aside for good."""

WAIT_S = 1800.0
"""How long a run waits for a host of somebody's when all are set aside: a GPU server takes minutes to boot."""


@dataclass(slots=True)
class _Host:
    name: str
    faults: int = 0
    last_fault: str = ""
    is_owned: bool = False
    comebacks: int = 0
    recovering: asyncio.Task[bool] | None = None
    is_aside: bool = False


class Roster:
    """Counts the faults of each host, sets hosts aside and takes them back."""

    def __init__(self, hosts: Iterable[HostSpec], executor: Executor, observer: RunObserver, clock: Clock) -> None:
        self._hosts = {host.name: _Host(host.name, is_owned=host.is_owned) for host in hosts}
        self._executor = executor
        self._observer = observer
        self._clock = clock

    def free(self, busy: Collection[str]) -> Iterator[str]:
        """Return the hosts that may take a trial."""
        return (host.name for host in self._hosts.values() if not host.is_aside and host.name not in busy)

    @property
    def recovering(self) -> list[asyncio.Task[bool]]:
        """What ends when a host comes back, or is known not to."""
        return [host.recovering for host in self._hosts.values() if host.recovering is not None]

    def faults(self) -> str:
        """Say why each host has no trial."""
        return "; ".join(f"{host.name}: {host.last_fault}" for host in self._hosts.values())

    def judge(self, name: str, outcome: Outcome) -> None:
        """Take into account how a trial ended; its host may be set aside for it."""
        host = self._hosts[name]
        if not isinstance(outcome, Faulted):
            if not _says_nothing_of_its_host(outcome):
                host.faults = host.comebacks = 0
            return
        host.faults += 1
        host.last_fault = outcome.error
        if host.faults < FAULTS_IN_A_ROW and not outcome.set_aside:
            return
        again = "" if host.comebacks == 0 else " once more"
        after = "" if outcome.set_aside else f" after {host.faults} faults in a row"
        self._observer.remark(f"host {host.name} is set aside{again}{after}: {host.last_fault}")
        host.is_aside = True
        host.recovering = asyncio.ensure_future(self._recover(host))

    def take_back(self) -> None:
        """Use the hosts again that have come back."""
        for host in self._hosts.values():
            if host.recovering is not None and host.recovering.done():
                host.is_aside = not host.recovering.result()  # a bug in it is a bug of the run
                host.recovering = None

    async def one_comes_back(self, stopped: asyncio.Event) -> bool:
        """Wait until a host can be used again or the run is stopped; False: none does in time.

        On a machine of our own nothing is waited for: what is wrong there, nobody else is mending.
        """
        hopes = [host.recovering for host in self._hosts.values() if host.is_owned and host.recovering is not None]
        if not hopes:
            return False
        self._observer.remark(f"all hosts are set aside: waiting up to {WAIT_S / 60:.0f} minutes for one to come back")
        limit, stop = asyncio.ensure_future(self._clock.sleep(WAIT_S)), asyncio.ensure_future(stopped.wait())
        try:
            await asyncio.wait([*hopes, limit, stop], return_when=asyncio.FIRST_COMPLETED)
            return not limit.done()
        finally:
            await end(limit)
            await end(stop)
            self.take_back()

    async def close(self) -> None:
        """Stop looking after hosts that were set aside."""
        for task in self.recovering:
            await end(task)

    async def _recover(self, host: _Host) -> bool:
        """Restore a host that was set aside, and return when it can be used again; False: never in this run."""
        try:
            await self._executor.release(host.name)
        except TunerError as error:
            self._observer.remark(f"host {host.name}: {error}")
        if host.comebacks >= COMEBACKS:
            return False
        host.comebacks += 1
        while True:
            await self._clock.sleep(PROBE_S)
            try:
                await self._executor.probe(host.name)
            except TunerError as error:
                host.last_fault = str(error)
            else:
                break
        # One more fault sets it aside again: it has not proven anything yet.
        host.faults = FAULTS_IN_A_ROW - 1
        self._observer.remark(f"host {host.name} answers again and takes trials")
        return True


def _says_nothing_of_its_host(outcome: Outcome) -> bool:
    """Whether a person, or the end of the run, ended a trial before its host could prove itself."""
    return isinstance(outcome, Interrupted) or (
        isinstance(outcome, Infeasible) and outcome.verdict.cause is Cause.RULED
    )
