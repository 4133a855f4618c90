"""Measured numbers and the objectives made of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

SINGLE_REQUEST_THROUGHPUT = "single_request_throughput"
AGGREGATE_THROUGHPUT = "aggregate_throughput"


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A measured value with its 95 % confidence interval.

    Attributes:
        value: the point estimate, in the metric's unit (throughput: tok/s).
        low: lower end of the interval; None when there were too few samples for one.
        high: upper end of the interval; None likewise.
        samples: how many independent samples (requests, batches) stand behind it.
    """

    value: float
    low: float | None
    high: float | None
    samples: int

    @property
    def half_width(self) -> float | None:
        """Half the interval relative to the value (0.02 = ±2 %); None when unknown."""
        if self.low is None or self.high is None or self.value == 0:
            return None
        return (self.high - self.low) / 2 / abs(self.value)


class Direction(Enum):
    """Which way an objective is better."""

    MAXIMIZE = "maximize"
    MINIMIZE = "minimize"


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """One axis of the Pareto front."""

    name: str
    direction: Direction = Direction.MAXIMIZE
    unit: str = "tok/s"


OBJECTIVES = (
    Objective(name=SINGLE_REQUEST_THROUGHPUT),
    Objective(name=AGGREGATE_THROUGHPUT),
)
"""The two objectives of every study, in the order in which values are told."""
