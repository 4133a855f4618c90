"""Putting a server under load."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tuner.model.record import LegResult, RequestRecord
from tuner.model.workload import Workload
from tuner.ports.engine import ControlClient, EngineAdapter


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """One level to measure.

    Attributes:
        concurrency: requests kept in flight, closed loop.
        min_s, max_s: shortest and longest measuring window.
        interval: wanted relative half width of the 95 % interval.
        salt: makes this leg's prompts differ from every other leg's (defeats the prefix cache).
    """

    concurrency: int
    min_s: float
    max_s: float
    interval: float
    salt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The server under load; ``headers`` go with every request."""

    base_url: str
    engine: EngineAdapter
    workload: Workload
    seed: int
    headers: tuple[tuple[str, str], ...] = ()


ProgressSink = Callable[[float, float | None], None]
"""Called with (seconds since the leg began, aggregate tok/s so far)."""


class LoadGenerator(Protocol):
    """Puts a server under load and measures it."""

    async def warm_up(self, target: Target, requests: int, concurrency: int) -> tuple[RequestRecord, ...]:
        """Send ``requests`` requests; their records are kept but count for nothing."""

    async def measure(
        self, target: Target, leg: Leg, control: ControlClient, progress: ProgressSink
    ) -> tuple[LegResult, tuple[RequestRecord, ...]]:
        """Run one leg to its end; cancelled, it closes every connection.

        Raises:
            MeasurementFault: the client was the bottleneck.
        """
