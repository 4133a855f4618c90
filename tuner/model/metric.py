"""Measured numbers and the objectives made of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

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
    """One axis of the Pareto front; ``name`` is a metric as :mod:`tuner.model.metric_text` writes it."""

    name: str
    direction: Direction = Direction.MAXIMIZE
    unit: str = "tok/s"


OBJECTIVES = (
    Objective(name=SINGLE_REQUEST_THROUGHPUT),
    Objective(name=AGGREGATE_THROUGHPUT),
)
"""The objectives of a study that names none, in the order in which values are told."""


# ---------------------------------------------------------------------------- the registry


class Level(Enum):
    """The level of the ladder that a metric is of where its text names none."""

    LONE = "lowest"  # one request alone
    PEAK = "peak"  # where the aggregate throughput is highest
    HIGHEST = "highest"
    BEST = "best"  # where the metric itself is best


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """What can be measured of a trial.

    Attributes:
        unit: of its value.
        direction: which way it is better.
        level: that it is of by default.
        is_spread: it has a value a request: a statistic of them is to be named.
        has_bounds: it counts requests within bounds that are to be named.
        meaning: in a few words.
    """

    unit: str
    direction: Direction
    level: Level
    meaning: str
    is_spread: bool = False
    has_bounds: bool = False


_UP, _DOWN = Direction.MAXIMIZE, Direction.MINIMIZE

QUANTITIES: Final[Mapping[str, Quantity]] = {
    SINGLE_REQUEST_THROUGHPUT: Quantity(
        unit="tok/s", direction=_UP, level=Level.LONE, meaning="decode speed of one request"
    ),
    AGGREGATE_THROUGHPUT: Quantity(unit="tok/s", direction=_UP, level=Level.PEAK, meaning="tokens of all requests"),
    "requests_per_s": Quantity(unit="1/s", direction=_UP, level=Level.PEAK, meaning="requests completed"),
    "joules_per_token": Quantity(unit="J/token", direction=_DOWN, level=Level.PEAK, meaning="energy of the GPUs"),
    "ttft_s": Quantity(unit="s", direction=_DOWN, level=Level.HIGHEST, meaning="until the first token", is_spread=True),
    "tpot_s": Quantity(
        unit="s", direction=_DOWN, level=Level.HIGHEST, meaning="a token after the first", is_spread=True
    ),
    "e2e_s": Quantity(unit="s", direction=_DOWN, level=Level.HIGHEST, meaning="a whole request", is_spread=True),
    "icl_s": Quantity(unit="s", direction=_DOWN, level=Level.HIGHEST, meaning="between chunks", is_spread=True),
    "goodput": Quantity(
        unit="1/s", direction=_UP, level=Level.BEST, meaning="requests completed within bounds", has_bounds=True
    ),
    "good_share": Quantity(
        unit="", direction=_UP, level=Level.HIGHEST, meaning="share of requests within bounds", has_bounds=True
    ),
}
"""The quantities that ``[[objectives]]`` and ``[[constraints]]`` may name; a new one is a line here and one in
:mod:`tuner.stats.objectives`."""

STATISTICS: Final = ("mean", "p50", "p90", "p95", "p99")
"""Of a quantity that each request has; fields of :class:`tuner.model.account.Spread`."""

BOUNDED: Final = ("ttft_s", "tpot_s", "e2e_s")
"""The latencies of a request that goodput may bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A latency of a request that it is to keep, seconds."""

    quantity: str
    most: float

    @property
    def text(self) -> str:
        """As people write it."""
        return f"{self.quantity} <= {number_text(self.most)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A number that a trial's legs give.

    Attributes:
        quantity: name in :data:`QUANTITIES`.
        statistic: one of :data:`STATISTICS` where the quantity is a spread, else None.
        bounds: that a request has to keep, where the quantity has any.
        at: concurrency; None: the quantity's own level.
    """

    quantity: str
    statistic: str | None = None
    bounds: tuple[Bound, ...] = ()
    at: int | None = None

    @property
    def kind(self) -> Quantity:
        """What the registry says of it."""
        return QUANTITIES[self.quantity]

    @property
    def text(self) -> str:
        """As people write it; equal for equal metrics."""
        text = self.quantity if self.statistic is None else f"{self.statistic}({self.quantity})"
        if self.bounds:
            text += f"({', '.join(bound.text for bound in self.bounds)})"
        return text if self.at is None else f"{text}@{self.at}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """What a configuration has to keep to be of use.

    Attributes:
        at_most: the metric must not be above ``limit``; False: not below it.
        limit: in the metric's unit.
    """

    metric: Metric
    at_most: bool
    limit: float

    @property
    def text(self) -> str:
        """As people write it."""
        return f"{self.metric.text} {'<=' if self.at_most else '>='} {number_text(self.limit)}"

    def exceedance(self, value: float) -> float:
        """Return how far ``value`` is outside, relative to the limit; 0: it is kept.

        Where the limit is 0, in the metric's own unit.
        """
        beyond = value - self.limit if self.at_most else self.limit - value
        return max(0.0, beyond) / (abs(self.limit) or 1.0)

    def words(self, value: float) -> str:
        """Say what was measured against what is wanted."""
        wanted = f"at {'most' if self.at_most else 'least'} {number_text(self.limit)} {self.metric.kind.unit}".rstrip()
        return f"{self.metric.text} is {value:.4g}, {wanted}"


def number_text(value: float) -> str:
    """Write a limit as a person would."""
    return f"{value:.12g}"
