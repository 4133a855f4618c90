"""Putting a server under load."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tuner.model.record import LegResult, RequestRecord
from tuner.model.workload import Workload
from tuner.ports.engine import ControlClient, EngineApi


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """One level to measure.

    Attributes:
        concurrency: requests kept in flight, closed loop.
        min_s, max_s: shortest and longest measuring window.
        interval: wanted relative half width of the 95 % interval; with ``until_steady``, the relative
            drift over the window that is none.
        salt: makes this leg's prompts differ from every other leg's (defeats the prefix cache).
        until_steady: the leg is over once its throughput no longer drifts, however wide the interval is.
    """

    concurrency: int
    min_s: float
    max_s: float
    interval: float
    salt: str
    until_steady: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The server under load; ``headers`` go with every request."""

    base_url: str
    engine: EngineApi
    workload: Workload
    seed: int
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadProgress:
    """How load is coming along.

    Attributes:
        elapsed_s: since it began.
        throughput: aggregate tok/s so far; None until there is any, and in a warm-up.
        in_flight: requests that were sent and have not ended.
        silent_s: how long nothing has come back of any of them: no chunk, no end, no refusal (our own
            time-out is none); 0 while none is in flight.
    """

    elapsed_s: float
    throughput: float | None
    in_flight: int
    silent_s: float


ProgressSink = Callable[[LoadProgress], None]
"""Called several times a second, also while nothing comes back."""


class LoadGenerator(Protocol):
    """Puts a server under load and measures it."""

    async def warm_up(
        self, target: Target, requests: int, concurrency: int, progress: ProgressSink
    ) -> tuple[RequestRecord, ...]:
        """Send ``requests`` requests; their records are kept but count for nothing. Cancelled: as a leg."""

    async def measure(
        self, target: Target, leg: Leg, control: ControlClient, progress: ProgressSink
    ) -> tuple[LegResult, tuple[RequestRecord, ...]]:
        """Run one leg to its end; cancelled, it closes every connection.

        Raises:
            MeasurementFault: the client was the bottleneck.
        """
