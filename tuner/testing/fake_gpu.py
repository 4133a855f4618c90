"""The GPUs of a fake host: the fake server's memory, and whatever else a test lets happen on them."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.errors import TransportFault
from tuner.model.host import GpuLook, GpuProcess, GpuReading
from tuner.ports import Clock
from tuner.testing.fake_service import GIB, FakeService

_CLOCK_HZ = 1.98e9
_SLOWED_HZ = 1.2e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    """Somebody else's process on every GPU, from and to seconds of the host's clock."""

    pid: int = 9000
    name: str = "python train.py"
    memory_bytes: int = 10 * GIB
    from_s: float = 0.0
    to_s: float = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """GPU 0 is slowed down, from and to seconds of the host's clock."""

    reason: str = "hw_thermal_slowdown"
    from_s: float = 0.0
    to_s: float = float("inf")


class FakeGpu:
    """``ports.GpuProbe`` over the fake server's memory.

    Attributes:
        guests, slowdowns: what else happens on the GPUs; a test may set them.
        looks: times of all looks, in seconds of the clock.
    """

    def __init__(self, service: FakeService, clock: Clock, *, gpus: int, baseline_bytes: int, total_bytes: int) -> None:
        self.guests: tuple[Guest, ...] = ()
        self.slowdowns: tuple[Slowdown, ...] = ()
        self.looks: list[float] = []
        self._service = service
        self._clock = clock
        self._gpus = gpus
        self._baseline_bytes = baseline_bytes
        self._total_bytes = total_bytes

    async def read(self) -> tuple[GpuReading, ...]:
        """Return the same reading for every GPU."""
        self._require_reachable()
        guests = sum(guest.memory_bytes for guest in self._guests())
        used = min(self._total_bytes, self._baseline_bytes + self._service.gpu_bytes + guests)
        now_s = self._clock.monotonic_s()
        slowed_by = tuple(slow.reason for slow in self.slowdowns if slow.from_s <= now_s < slow.to_s)
        return tuple(
            GpuReading(
                index=index,
                memory_used_bytes=used,
                memory_total_bytes=self._total_bytes,
                sm_clock_hz=_SLOWED_HZ if slowed_by and index == 0 else _CLOCK_HZ,
                slowed_by=slowed_by if index == 0 else (),
            )
            for index in range(self._gpus)
        )

    async def processes(self) -> tuple[GpuProcess, ...]:
        """Return the server, the leftovers and the guests; memory that nobody holds has no process."""
        self._require_reachable()
        if not self._gpus:
            return ()
        gpus = tuple(range(self._gpus))
        own = tuple(
            GpuProcess(pid=pid, name="python3", memory_used_bytes=self._service.gpu_bytes, gpus=gpus)
            for pid in self._service.gpu_holders
        )
        return own + tuple(
            GpuProcess(pid=guest.pid, name=guest.name, memory_used_bytes=guest.memory_bytes * self._gpus, gpus=gpus)
            for guest in self._guests()
        )

    async def look(self) -> GpuLook:
        """Return both, and note when."""
        self.looks.append(self._clock.monotonic_s())
        return GpuLook(readings=await self.read(), processes=await self.processes())

    def _guests(self) -> tuple[Guest, ...]:
        now_s = self._clock.monotonic_s()
        return tuple(guest for guest in self.guests if guest.from_s <= now_s < guest.to_s)

    def _require_reachable(self) -> None:
        if not self._service.is_reachable:
            msg = "the host does not answer"
            raise TransportFault(msg)
