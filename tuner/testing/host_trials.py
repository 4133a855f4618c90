"""Single trials on a test host, in this process: without Ray, a command line or a database.

The host is held to be afterwards what it was before, whatever the trials and the test did to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from tuner.engines import engine
from tuner.hosts.gpu import NvidiaSmiProbe
from tuner.model.lease import Holder
from tuner.model.outcome import TrialState
from tuner.model.space import Assignment, Value
from tuner.model.study import HostCare, UnitHostSpec
from tuner.model.trial import (
    Command,
    LogText,
    Remark,
    StateEntered,
    TrialEvent,
    TrialFinished,
    TrialRequest,
    TrialResult,
)
from tuner.model.workload import Workload
from tuner.ports import HostPorts, HostTransport
from tuner.runtime.cleaning import HostSession
from tuner.runtime.limits import Limits
from tuner.runtime.stay import Proof
from tuner.runtime.trial import events_of
from tuner.testing.rig import HOME
from tuner.testing.unit_on_host import Standing, UnitOnHost
from tuner.wiring.host import build_host
from tuner.wiring.units import read_base

__all__ = ["PROGRAM", "SGLANG", "WORKLOAD", "Deed", "HostTrials", "Standing", "UnitOnHost", "play"]

SGLANG = engine("sglang")
WORKLOAD = Workload(
    output_tokens=24,
    ladder=(1, 4),
    level_min_s=0.5,
    level_max_s=0.5,
    interval=0.2,
    soak_s=0.3,
    warmup_requests=2,
    request_timeout_s=20,
    load_timeout_s=60,
)
PROGRAM = f"{HOME}/bin/sglang"

Deed = Callable[[], object]
"""Something done to the host from outside, blocking."""


class HostTrials:
    """Trials on one unit of a host that is taken; made by :func:`play`.

    Attributes:
        base: the command line that the unit runs.
        session: what they run in.
        events: of the last trial.
        workload: of the next one.
    """

    def __init__(self, host: UnitOnHost, base: Command, session: HostSession) -> None:
        self.host = host
        self.base = base
        self.session = session
        self.workload = WORKLOAD
        self.events: list[TrialEvent] = []
        self._number = 0

    async def run(
        self,
        settings: Mapping[str, Value] | None = None,
        *,
        more: Sequence[str] = (),
        when: Mapping[TrialState, Deed] | None = None,
        again: bool = False,
    ) -> TrialResult:
        """Run one trial.

        Args:
            settings: what differs from the unit's own.
            more: arguments after all others.
            when: what happens to the host as the trial first enters a state, each in a thread of its own.
            again: with every start of the server anew.
        """
        deeds = dict(when or {})
        waiting = dict(deeds)
        happening: list[asyncio.Task[object]] = []
        self.events = []
        async for event in events_of(self._request(settings or {}, more), self.session, SGLANG, asyncio.Event()):
            self.events.append(event)
            if not isinstance(event, StateEntered):
                continue
            if again and event.state is TrialState.CLEANING:
                waiting = dict(deeds)
            if event.state in waiting:
                deed = waiting.pop(event.state)
                happening.append(asyncio.create_task(asyncio.to_thread(deed)))
        await asyncio.gather(*happening)
        assert not waiting, f"the trial never came to {waiting}: {self.states}"
        return self.result

    def _request(self, settings: Mapping[str, Value], more: Sequence[str]) -> TrialRequest:
        self._number += 1
        assignment = SGLANG.canonical(Assignment.of({**SGLANG.settings_of(self.base), **settings}))
        command = SGLANG.command(self.base, assignment)
        return TrialRequest(
            study="s",
            number=self._number,
            assignment=assignment,
            command=replace(command, argv=(*command.argv, *more)),
            engine="sglang",
            workload=self.workload,
            seed=1,
        )

    @property
    def transport(self) -> HostTransport:
        """The connection to the host."""
        return _transport(self.session.ports)

    @property
    def result(self) -> TrialResult:
        """How the last trial ended."""
        last = self.events[-1]
        assert isinstance(last, TrialFinished)
        return last.result

    @property
    def states(self) -> tuple[TrialState, ...]:
        """Where the last trial was, in order."""
        return tuple(event.state for event in self.events if isinstance(event, StateEntered))

    @property
    def log(self) -> str:
        """What the last trial's servers logged."""
        return "".join(event.text for event in self.events if isinstance(event, LogText))

    @property
    def remarks(self) -> tuple[str, ...]:
        """What the last trial remarked."""
        return tuple(event.text for event in self.events if isinstance(event, Remark))


Scenario = Callable[[HostTrials], Awaitable[None]]
Change = Callable[[HostPorts], HostPorts]


def play(
    host: UnitOnHost,
    scenario: Scenario,
    *,
    care: HostCare | None = None,
    limits: Limits | None = None,
    change: Change = lambda ports: ports,
) -> None:
    """Take a host, let a scenario run its trials, give the host back, and hold that it is as it was.

    Args:
        host: on which a unit is installed.
        scenario: what happens meanwhile.
        care: what the host's owner wants.
        limits: of the runtime.
        change: of the ports, before they are used.
    """
    if host.shows("ActiveState") == "active":
        host.wait_until_it_answers()
    before = host.standing()
    assert before.traces == "", before.traces
    spec = UnitHostSpec(name=host.rig.name, unit=host.unit, login=host.rig.login(), care=care or HostCare())
    base = read_base((spec,), lambda _text: None)

    async def whole() -> None:
        holder = Holder(owner="ops@box", study="s", directory="/studies/s", machine="m1", pid=4711, since_s=0.0)
        ports = change(build_host(spec, holder))
        session = HostSession(ports, limits or Limits())
        try:
            await session.stay.enter(lambda _text: None)
            await scenario(HostTrials(host, base, session))
        finally:
            try:
                await session.stay.leave(Proof(engine=SGLANG, workload=WORKLOAD), lambda _text: None)
            finally:
                await _transport(ports).close()

    asyncio.run(whole())
    differences = host.standing().differences(before)
    assert not differences, "; ".join(differences)


def _transport(ports: HostPorts) -> HostTransport:
    """Return what the ports share; nobody else gets at it, for a worker's connection ends with its process."""
    assert isinstance(ports.gpu, NvidiaSmiProbe)
    return ports.gpu._transport  # noqa: SLF001
