"""Voids a measurement in which somebody else, the hardware or the network had a part.

:class:`Guard` looks at the start of a leg, every ``limits.gpu_look_s`` and at its end, and ends
the leg at the first look that shows it void.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from tuner.errors import HostFault, MeasurementFault
from tuner.model.account import GpuUse
from tuner.model.host import Activity, GpuLook, GpuProcess, GpuReading
from tuner.model.metric import Estimate
from tuner.model.outcome import Cause
from tuner.runtime.cleaning import HostSession
from tuner.runtime.racing import end
from tuner.runtime.strangers import process_text, strangers, strangers_text
from tuner.stats.gpu import gpu_use

T = TypeVar("T")

ALONE = frozenset(
    {
        Cause.REJECTED_ARGUMENTS,
        Cause.CONFIGURATION_MISMATCH,
        Cause.MODEL_MISSING,
        Cause.DEPENDENCY_MISMATCH,
        Cause.PORT_IN_USE,
    }
)
"""Causes in which nobody else can have had a part."""

OVER_THE_NETWORK = frozenset({Cause.FAILED_REQUESTS, Cause.HANG})
"""Causes that are read from requests, which a connection that is out fails as well."""

THROUGH_THE_TUNNEL = OVER_THE_NETWORK | {Cause.START_TIMEOUT}
"""Causes that a tunnel brings about that is down, and be it for the moment that the server was asked in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Network:
    """How long the connection to the host was out, in seconds, and how often the load's tunnel died, until now."""

    out_s: float
    deaths: int


class Guard:
    """Looks at the GPUs of one server while it is measured.

    Args:
        session: the host; knows which processes held GPU memory when it was proven clean.
        main_pid: of the server.
        remark: tells the reader of the evidence.
    """

    def __init__(self, session: HostSession, main_pid: int, remark: Callable[[str], None]) -> None:
        self._session = session
        self._host = session.ports
        self._limits = session.limits
        self._remark = remark
        # Grows, because a process of ours that has just died is listed a moment longer.
        self._ours = session.our_pids
        self._ours.add(main_pid)
        self._main_pid = main_pid
        self._out_s = self._outage_s()
        self._deaths = self._host.route.deaths
        self._at_death: GpuLook | None = None  # the look that was taken at once after it
        self._looks: list[GpuLook] = []  # while the last leg ran

    async def during(self, work: Callable[[], Coroutine[Any, Any, T]], *, what: str) -> T:
        """Run a leg to its end, unless it becomes void before.

        Args:
            work: begins the leg, which has ended when this returns or raises.
            what: the leg, for the reader.

        Raises:
            MeasurementFault: a foreign process used a GPU, the hardware slowed one down, or the host
                could not be reached for a while: what was measured is not the server's speed.
            HostFault: the GPUs cannot be looked at.
        """
        clocks: list[float] = []
        self._looks = []
        before = _Network(out_s=self._outage_s(), deaths=self._host.route.deaths)
        leg = asyncio.ensure_future(work())
        looking = asyncio.ensure_future(self._look_on(clocks, before))
        try:
            await asyncio.wait({leg, looking}, return_when=asyncio.FIRST_COMPLETED)
            if looking.done():
                looking.result()
            result = leg.result()
        finally:
            await end(leg)
            await end(looking)
        await self._look(clocks, before)
        text = clocks_text(clocks)
        if text is not None:
            self._remark(f"{what}: {text}")
        return result

    def use(self, throughput: Estimate | None) -> GpuUse | None:
        """Say what the GPUs did while the last leg ran; None: they do not tell.

        Args:
            throughput: of all requests, tok/s.
        """
        return gpu_use([look.readings for look in self._looks], throughput)

    async def accomplice(self, cause: Cause) -> MeasurementFault | None:
        """Say who else had a part in a death that was just seen; None: nobody.

        A process on the GPUs counts that is still there after ``limits.settle_s``: of a server that is
        being torn down, or started again by its manager, every look shows other processes.
        """
        if cause in ALONE:
            return None
        if cause in THROUGH_THE_TUNNEL and self._host.route.deaths > self._deaths:
            return MeasurementFault(
                f"requests failed ({cause.value}), but the tunnel to host {self._host.name} broke down "
                "since its server was started: that proves nothing; look at the network"
            )
        outage_s = self._outage_s() - self._out_s
        if cause in OVER_THE_NETWORK and outage_s > self._limits.outage_s:
            return MeasurementFault(
                f"requests failed ({cause.value}), but host {self._host.name} could not be reached for "
                f"{outage_s:.1f} s since its server was started: that proves nothing; look at the network"
            )
        try:
            look = self._at_death or await self._host.gpu.look()
            suspects = await self._lasting_strangers(look, wait_s=self._limits.settle_s)
        except HostFault as fault:
            # The death was seen, whatever became of the host since.
            self._remark(f"the GPUs could not be looked at after the server's death: {fault}")
            return None
        if not suspects:
            return None
        return MeasurementFault(
            f"the server died while {strangers_text(suspects)} on {self._host.name}: that proves nothing; "
            "keep others off these GPUs, or name the server's own in gpu_indices"
        )

    async def foreigners(self) -> tuple[str, ...]:
        """Name other people's processes that hold much GPU memory now and did not when the host was clean.

        For a death that was just seen. Now means in two looks, ``limits.again_s`` apart: a server's own are
        listed while they are torn down. What holds no more than ``limits.gpu_slack_bytes`` is passed over, and so
        is what was there all the time: every configuration on this host has to live beside that.

        Raises:
            HostFault: the GPUs cannot be looked at.
        """
        named = await self._large_strangers()
        if named:
            await self._host.clock.sleep(self._limits.again_s)
            still = {process.pid for process in await self._large_strangers()}
            named = tuple(process for process in named if process.pid in still)
        session = self._session
        guests = strangers(
            named, ours=self._ours, at_clean=session.gpu_at_clean, slack_bytes=self._limits.gpu_slack_bytes
        )
        session.foreign = tuple(process_text(process) for process in guests)
        return session.foreign

    async def _large_strangers(self) -> tuple[GpuProcess, ...]:
        self._ours.update(await self._host.service.members())  # first: they may be gone when the GPUs have told
        look = await self._host.gpu.look()
        self._at_death = self._at_death or look
        return tuple(
            process
            for process in look.processes
            if process.name
            and process.pid not in self._ours
            and process.memory_used_bytes > self._limits.gpu_slack_bytes
        )

    # -- looks -------------------------------------------------------------------------

    async def _look_on(self, clocks: list[float], before: _Network) -> NoReturn:
        while True:
            self._looks.append(await self._look(clocks, before))
            await self._host.clock.sleep(self._limits.gpu_look_s)

    async def _look(self, clocks: list[float], before: _Network) -> GpuLook:
        """Look once; ``clocks`` takes the lowest and highest clock seen so far."""
        look = await self._host.gpu.look()
        # After the look, which waits for a lost connection: it is the outage's end that is seen.
        outage_s = self._outage_s() - before.out_s
        if self._host.route.deaths > before.deaths:
            raise MeasurementFault(
                f"the tunnel to host {self._host.name} broke down during the measurement: it is void; "
                "look at the network"
            )
        if outage_s > self._limits.outage_s:
            raise MeasurementFault(
                f"host {self._host.name} could not be reached for {outage_s:.1f} s of the measurement: it is void; "
                "look at the network"
            )
        suspects = await self._lasting_strangers(look, wait_s=0.0)
        if suspects and not await self._is_up():
            # Its own processes, which nobody can tell for its own any more: :meth:`accomplice` looks again.
            return look
        if suspects:
            raise MeasurementFault(
                f"{strangers_text(suspects)} on {self._host.name} during the measurement: it is void; "
                "keep others off these GPUs, or name the server's own in gpu_indices"
            )
        slowed = [reading for reading in look.readings if reading.slowed_by]
        if slowed:
            raise MeasurementFault(
                f"{slowed_text(slowed)} on {self._host.name} during the measurement: it is void; "
                "look at its cooling and power supply"
            )
        seen = [*clocks, *(reading.sm_clock_hz for reading in look.readings if reading.sm_clock_hz is not None)]
        clocks[:] = [min(seen), max(seen)] if seen else []
        return look

    async def _lasting_strangers(self, look: GpuLook, *, wait_s: float) -> tuple[GpuProcess, ...]:
        """Return the foreign processes of a look that are there in another one too, ``wait_s`` later.

        Those of a server that ends just now are still listed, and no longer its members.
        """
        suspects = await self._strangers(look)
        if not suspects:
            return ()
        await self._host.clock.sleep(wait_s)
        still = {process.pid for process in await self._strangers(await self._host.gpu.look())}
        return tuple(process for process in suspects if process.pid in still)

    async def _strangers(self, look: GpuLook) -> tuple[GpuProcess, ...]:
        """Return the foreign processes of a look; the server is asked only about those not known yet."""
        suspects = self._unknown(look)
        if suspects:
            self._ours.update(await self._host.service.members())
            suspects = self._unknown(look)
        return suspects

    async def _is_up(self) -> bool:
        """Whether it still is the server that was started."""
        state = await self._host.service.state()
        return (
            state.activity is Activity.RUNNING
            and state.restarts == 0
            and state.identity is not None
            and state.identity.main_pid == self._main_pid
        )

    def _unknown(self, look: GpuLook) -> tuple[GpuProcess, ...]:
        return strangers(
            look.processes,
            ours=self._ours,
            at_clean=self._session.gpu_at_clean,
            slack_bytes=self._limits.gpu_slack_bytes,
        )

    def _outage_s(self) -> float:
        return 0.0 if self._host.outage_s is None else self._host.outage_s()


def slowed_text(readings: Iterable[GpuReading]) -> str:
    """Say which GPUs the hardware slows down, why, and to what clock."""
    return ", ".join(
        f"GPU {reading.index} is slowed down by {', '.join(reading.slowed_by)}"
        + ("" if reading.sm_clock_hz is None else f" to {reading.sm_clock_hz / 1e6:.0f} MHz")
        for reading in readings
    )


def clocks_text(clocks: Collection[float]) -> str | None:
    """Say between which clocks, in Hz, the GPUs ran; None: not known."""
    if not clocks:
        return None
    return f"GPU clock {min(clocks) / 1e6:.0f} to {max(clocks) / 1e6:.0f} MHz"
